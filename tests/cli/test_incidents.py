"""`seqmlm incidents` through the entry point: what is listed and shown, what a person says, exit codes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fork_server import Run
from receiver import NoFiles

from seqmlm.data.problems import Problems
from seqmlm.engine.durable import FileLock
from seqmlm.watch.grouping import Grouping
from seqmlm.watch.outbox import Outbox
from seqmlm.watch.store import Streams
from seqmlm.workspace import Workspace

EVIL = "x\x1b[2J\u202e<b>[red]\ud800\x00"
SHOWN = r"x\x1b[2J\u202e<b>[red]\ud800\x00"
NOW = datetime.now(UTC)


def _alarm(line: int, what: str, **more: Any) -> dict[str, Any]:
    place = {"id": f"app.log:{line}", "source": "/logs/app.log", "line": line, "last_line": line + 3}
    said = {"p_value": 0.0125, "alarm": True, "what": what, "reason": f"Because of {what}\nand more"}
    return {**place, "lines": 4, **said, **more}


def _stream(
    out: Path, *rows: dict[str, Any], ago: float = 0.0, over: bool = False, private: bool = False
) -> None:
    """A stream begins or goes on with rows, judged so many hours ago; perhaps their incident is over."""
    clock = [(NOW - timedelta(hours=ago)).timestamp()]
    with Streams(Workspace.locate()) as registry:
        outbox = Outbox(
            out,
            registry,
            {},
            NoFiles,  # type: ignore[arg-type]
            grouping=Grouping(model="app:1"),
            clock=lambda: clock[0],
        )
        outbox.begin(Problems(sensitive=private))
        outbox.write(rows)
        outbox.commit({}, Problems())
        clock[0] += 600 * over
        outbox.commit({}, Problems())
        outbox.close()


@pytest.fixture
def incidents(workspace: Path) -> Path:
    """Two streams: an old incident that is over; one that is open, and has three rows of a hostile log."""
    _stream(workspace / "old.jsonl", _alarm(1, "'close' is missing"), ago=30.0, over=True)
    more = {"never_seen": [EVIL], "new_lines": 2, "template": EVIL}
    _stream(workspace / "new.jsonl", *(_alarm(n, "what", **more) for n in (1, 5, 9)))
    return workspace


def test_a_newcomer_is_told_where_incidents_come_from(seqmlm: Run) -> None:
    done = seqmlm("incidents", "list")
    assert (done.code, done.out) == (0, "")
    assert "seqmlm watch MODEL" in done.err
    assert seqmlm("incidents", "list", "--json").json == []
    assert seqmlm("incidents", "list", "--state", "open").err == "no incidents match\n"


def test_list(incidents: Path, seqmlm: Run) -> None:
    done = seqmlm("incidents", "list")
    head, new, old = [line.split("\t") for line in done.out.splitlines()]
    assert head == ["id", "state", "opened", "last alarm", "rows", "p", "what broke"]
    shown = f"{SHOWN} was never seen: 6 of 12 lines, app.log:1-12"
    assert (new[0], new[1], new[4], new[5], new[6]) == ("2", "open, scoring stopped", "3", "0.0125", shown)
    assert (old[0], old[1], old[6]) == ("1", "resolved", "'close' is missing: 4 lines, app.log:1-4")
    assert done.err.startswith(f"{incidents / 'new.jsonl'} is not running, and has scored nothing since 20")

    def ids(*asked: object) -> list[int]:
        return [one["id"] for one in seqmlm("incidents", "list", *asked, "--json").json]

    assert ids() == [2, 1]
    assert ids("--state", "open") == ids("--since", "24h") == ids("--stream", incidents / "new.jsonl") == [2]
    assert ids("--since", "2d", "--state", "resolved") == [1]


def test_show(incidents: Path, seqmlm: Run) -> None:
    done = seqmlm("incidents", "show", 2, "--rows", 2)
    assert "\x1b" not in done.out + done.err
    facts = dict(line.split("  ", 1) for line in done.out.split("\n\n")[0].splitlines())
    facts = {name: value.strip() for name, value in facts.items()}
    assert facts["new"] == facts["template"] == SHOWN
    assert (facts["first line"], facts["last line"]) == ("/logs/app.log:1", "/logs/app.log:12")
    assert (facts["rows"], facts["smallest p"]) == ("3, of 12 lines", "0.0125")
    assert facts["reason"] == r"Because of what\nand more"
    assert facts["output"] == str(incidents / "new.jsonl")
    assert done.out.splitlines()[-1] == "app.log:5-8  p 0.013  Because of what and more"
    assert done.err == "1 more row (--rows)\n"
    found = seqmlm("incidents", "show", 2, "--json").json
    assert (found["all_rows"], [row["line"] for row in found["first_rows"]]) == (3, [1, 5, 9])
    assert (found["new"], found["first_rows"][0]["template"]) == ([SHOWN], EVIL)
    assert "likes" not in found


def test_ack_and_mute(incidents: Path, seqmlm: Run) -> None:
    done = seqmlm("incidents", "ack", 2, "--note", "Ann is on it")
    assert done.out.startswith(
        "incident 2 is acknowledged as a fault until it is over (for a false alarm: --normal): x\\x1b[2J"
    )
    assert "acknowledged" in seqmlm("incidents", "list").out
    assert seqmlm("incidents", "ack", 2, "--note", "\udcff", "--json").json["note"] == r"\udcff"
    assert seqmlm("incidents", "ack", 2, "--note", "Ann is on it").code == 0
    assert "note        Ann is on it" in seqmlm("incidents", "show", 2).out
    assert seqmlm("incidents", "ack", 2, "--undo", "--json").json["state"] == "open"
    assert "seqmlm incidents mute 1" in seqmlm("incidents", "ack", 1).out
    assert "open no incident" in seqmlm("incidents", "mute", 1, "--note", "backup").out
    _stream(incidents / "old.jsonl", _alarm(5, "'close' is missing"))
    shown = seqmlm("incidents", "show", 1).out
    assert "rows        1, of 4 lines; 1 muted since\n" in shown
    assert shown.splitlines()[-1].startswith("app.log:5-8  p 0.013  muted by incident 1  Because")
    found = seqmlm("incidents", "show", 1, "--json").json
    assert (found["state"], found["muted"], found["note"]) == ("resolved", True, "backup")
    assert "resolved, muted" in seqmlm("incidents", "list").out
    assert "no longer muted" in seqmlm("incidents", "mute", 1, "--undo").out
    assert not seqmlm("incidents", "show", 1, "--json").json["muted"]


def test_a_false_alarm_is_silent_and_counted(incidents: Path, seqmlm: Run) -> None:
    """What is like it opens nothing more, the report says how many there were; and it can be taken back."""
    assert "alse alarm" not in seqmlm("report", "--since", "3d").out  # nobody has said anything
    done = seqmlm("incidents", "ack", 1, "--normal", "--note", "backup")
    assert done.out.startswith(
        "incident 1 was a false alarm: similar alarms open no incident in this stream: "
    )
    found = seqmlm("incidents", "show", 1, "--json").json
    assert (found["state"], found["verdict"], found["muted"], found["note"]) == (
        *("resolved", "normal", True, "backup"),
    )
    assert "resolved, normal" in seqmlm("incidents", "list").out
    _stream(incidents / "old.jsonl", _alarm(5, "'close' is missing"))
    assert [one["id"] for one in seqmlm("incidents", "list", "--json").json] == [2, 1]
    told = "1 of 1 incident with a verdict (100%) was a false alarm; without a verdict: 1."
    page = incidents / "page.html"
    done = seqmlm("report", "--since", "3d", "--report", page)
    assert told in done.out
    assert "incident 1 (resolved, normal): " in done.out
    assert told in page.read_text()
    assert "resolved, normal" in page.read_text()
    assert seqmlm("incidents", "ack", 2).code == 0
    told = "1 of 2 incidents with a verdict (50%) was a false alarm."
    assert told in seqmlm("report", "--since", "3d").out
    assert seqmlm("report", "--since", "3d", "--json").json["verdicts"] == {
        "fault": 1,
        "normal": 1,
        "none": 0,
    }
    seqmlm("incidents", "ack", 2, "--normal", "--undo").refused(4, "not marked as normal")
    done = seqmlm("incidents", "ack", 1, "--normal", "--undo")
    assert done.out.startswith("incident 1 is over, and has no verdict: ")
    found = seqmlm("incidents", "show", 1, "--json").json
    assert (found["state"], found["verdict"], found["muted"]) == ("resolved", None, False)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["show", 9], 4, "there is no incident 9; see 'seqmlm incidents list'"),
        (["ack", 9], 4, "there is no incident 9"),
        (["mute", "nine"], 2, "--help"),
        (["mute", 1 << 70], 2, "2147483647"),
        (["list", "--state", "opened"], 2, "did you mean 'open'?"),
        (["list", "--since", "yesterday"], 2, "--since is a duration such as 24h"),
        (["list", "--stream", "other.jsonl"], 4, "no stream of this workspace writes other.jsonl"),
    ],
)
def test_what_cannot_be_done_is_said(incidents: Path, seqmlm: Run, words: list[object], code: int, told: str):
    seqmlm("incidents", *words).refused(code, told)


def test_rows_of_sensitive_data_are_not_shown(workspace: Path, seqmlm: Run) -> None:
    row = _alarm(1, "ann fell ill", message="ann", template="ann", sensitive=True, extra="ann")
    _stream(workspace / "s.jsonl", row, private=True)
    for words in (["list"], ["show", 1], ["ack", 1]):
        for form in ([], ["--json"]):
            done = seqmlm("incidents", *words, *form)
            assert "unusual lines" in done.out
            assert "ann" not in done.out + done.err
    assert json.loads((workspace / "s.jsonl").read_text())["message"] == "ann"


def test_incidents_say_whether_their_scoring_runs(incidents: Path, seqmlm: Run) -> None:
    """Who stands for a scoring that runs holds the lock of its output."""
    found = {one["id"]: one for one in seqmlm("incidents", "list", "--json").json}
    assert (found[2]["stream_running"], found[2]["stream_judged"][:4]) == (False, str(NOW.year))
    assert "not running, and has scored nothing since" in seqmlm("incidents", "show", 2).out
    assert "running" not in seqmlm("incidents", "show", 1).out  # it is over, whoever runs
    with FileLock(incidents / "new.jsonl.lock"):
        done = seqmlm("incidents", "list")
        assert ("stopped" in done.out, done.err) == (False, "")
        assert seqmlm("incidents", "show", 2, "--json").json["stream_running"]
        assert "is running, and has scored nothing since" in seqmlm("incidents", "show", 2).out


def test_prune(incidents: Path, seqmlm: Run) -> None:
    """The old stream's incident goes; its one row is its last, and stays, as does all of the other stream."""
    said = f"{incidents / 'old.jsonl'}: 0 of 1 rows and 1 incident "
    dry = seqmlm("incidents", "prune", "--older-than", "1s", "--dry-run")
    assert dry.out.splitlines()[0] == f"{said}would be deleted"
    assert len(seqmlm("incidents", "list", "--json").json) == 2
    found = seqmlm(
        "incidents", "prune", "--older-than", "1h", "--stream", incidents / "new.jsonl", "--json"
    ).json
    assert (len(found), found[0]["rows"], found[0]["incidents"]) == (1, 0, 0)
    assert seqmlm("incidents", "prune", "--older-than", "1h").out.splitlines()[0] == f"{said}deleted"
    assert [one["id"] for one in seqmlm("incidents", "list", "--json").json] == [2]
    for asked, code, told in (
        (["--older-than", "soon"], 2, "--older-than is a duration such as 24h"),
        (["--older-than", "1h", "--stream", "other.jsonl"], 4, "no stream of this workspace"),
        ([], 2, "--older-than"),
    ):
        seqmlm("incidents", "prune", *asked).refused(code, told)
