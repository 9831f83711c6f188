"""`seqmlm report` through the entry point: what it says of a period, and that silence is no all-clear."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fork_server import Run
from pages import Reading
from receiver import NoFiles
from registered import origin
from sqlalchemy import update

from seqmlm.data.problems import Problems
from seqmlm.engine.durable import FileLock
from seqmlm.watch import tables
from seqmlm.watch.grouping import Grouping
from seqmlm.watch.outbox import Outbox
from seqmlm.watch.store import Streams
from seqmlm.workspace import Workspace

NOW = datetime.now(UTC)


def row(line: int, p_value: float | None = 0.5, **more: Any) -> dict[str, Any]:
    given = {"id": f"app.log:{line}", "source": "/logs/app.log", "line": line, "alarm": False}
    return {**given, "p_value": p_value, **more}


def alarm(line: int, what: str, **more: Any) -> dict[str, Any]:
    return row(line, 0.001, alarm=True, what=what, message=what, never_seen=[what], new_lines=1, **more)


def stream(
    home: Path,
    rows: Sequence[tuple[float, dict[str, Any]]],
    name: str = "out",
    *,
    model: str = "/models/web",
    private: bool = False,
    request: Mapping[str, Any] | None = None,
) -> Path:
    """A stream whose rows were judged so many hours ago."""
    clock = [0.0]
    out = home / f"{name}.jsonl"
    with Streams(Workspace.locate()) as registry:
        outbox = Outbox(
            out,
            registry,
            {"files": ["/logs/*.log"], **(request or {"model file": {f"{model}/model.safetensors": "0"}})},
            NoFiles,  # type: ignore[arg-type]
            grouping=Grouping(model="web:1"),
            clock=lambda: clock[0],
        )
        outbox.begin(Problems(sensitive=private))
        for ago, one in rows:
            clock[0] = (NOW - timedelta(hours=ago)).timestamp()
            outbox.write([one])
            outbox.commit({}, Problems())
        outbox.close()
        kind = tables.StreamRow
        with registry.writing() as session:
            for number, (ago, _) in enumerate(rows, 1):
                own = (kind.stream_id == outbox.stream, kind.number == number)
                at = NOW - timedelta(hours=ago)
                session.execute(update(kind).where(*own).values(created=at))
    return out


def test_where_nothing_is_followed_the_remedy_is_said(seqmlm: Run, workspace: Path) -> None:
    seqmlm("report").refused(4, "seqmlm watch MODEL 'logs/*.log'")
    stream(workspace, [])
    assert seqmlm("report", "nosuch").code == 4
    assert seqmlm("report", "--since", "soon").code == 2
    assert seqmlm("report", "--since", "9999999d").code == 2


def test_a_period_without_rows_is_no_all_clear(seqmlm: Run, workspace: Path) -> None:
    out = stream(workspace, [(30.0, row(1))])
    done = seqmlm("report")
    assert "0 rows scored." in done.out
    assert "warning: Nothing was scored in this period: this is not an all-clear." in done.out
    assert f"{out} is not running: nothing was scored since {NOW - timedelta(hours=30):%Y-%m-%d}" in done.out
    with FileLock(out.with_name("out.jsonl.lock")):  # as a scoring that runs
        done = seqmlm("report")
    assert "is running, but nothing was scored since" in done.out
    assert "/logs/*.log" in done.out
    assert "not an all-clear" in done.out


def test_rows_alarms_and_incidents_of_the_period(seqmlm: Run, workspace: Path) -> None:
    rows = [
        (30.0, alarm(1, "old")),
        (29.5, row(2)),
        *((9 + n / 100, row(100 + n, (n + 0.5) / 200)) for n in range(200, 0, -1)),
    ]
    rows += [(8.0, alarm(900, "disk 7", severity="ERROR", host="web1")), (7.99, alarm(901, "disk 8"))]
    rows += [(7.0, {"id": "g", "source": "/logs/app.log", "line": 950, "gap": {"offset": 1, "bytes": None}})]
    rows += [(6.0, alarm(990, "fan"))]
    out = stream(workspace, rows)
    page = workspace / "sub" / "page.html"
    done = seqmlm("report", "--report", page)
    assert done.err == f"report: {page}\n"
    lines = done.out.splitlines()
    assert lines[0].startswith("incident 3 (open): fan was never seen")
    assert lines[1].startswith("incident 2 (resolved): disk 7, disk 8 were never seen")
    assert lines[2:4] == ["1 incident is not over.", "1 incident is over."]
    assert lines[4] == "203 rows scored, 3 alarms."
    assert "P-values: about uniform" in done.out
    assert f"warning: {out} is not running" in done.out
    assert "has 1 place where bytes could not be read" in done.out
    found = seqmlm("report", "--json").json
    assert (
        sum(found["bins"]["rows"]) == sum(found["bins"]["p_values"]) == sum(found["p_values"]["rows"]) == 203
    )
    assert (sum(found["bins"]["alarms"]), found["bins"]["seconds"]) == (3, 900)
    hours = {
        begin: number
        for begin, number in zip(found["bins"]["begin"], found["bins"]["alarms"], strict=True)
        if number
    }
    at = datetime.fromisoformat(max(hours))
    assert at <= NOW - timedelta(hours=6) < at + timedelta(seconds=900)
    assert [one["id"] for one in found["incidents"]] == [3, 2]
    assert [one["line"] for one in found["incidents"][1]["first_rows"]] == [900, 901]
    (of,) = found["streams"]
    assert (of["rows"], of["alarms"], of["never_seen"], of["gaps"], of["running"]) == (203, 3, 3, 1, False)
    text = Reading(page.read_text()).text
    for wanted in ("disk 7, disk 8 were never seen", "open, but its stream is not running", "P-values of"):
        assert wanted in text, wanted
    assert "old was never seen" not in text
    assert len(seqmlm("report", "--since", "2d", "--json").json["incidents"]) == 3


def test_bins_are_as_wide_as_the_period_asks(seqmlm: Run, workspace: Path) -> None:
    stream(workspace, [(0.5, row(1)), (100.0, row(2))])
    for since, width in (("30s", 1), ("1h", 60), ("7d", 7200), ("300d", 604_800), ("9000d", 13 * 604_800)):
        found = seqmlm("report", "--since", since, "--json").json["bins"]
        assert (found["seconds"], len(found["rows"]) <= 101) == (width, True)
        assert sum(found["rows"]) == {"30s": 0, "1h": 1}.get(since, 2)


def test_all_clear_is_said_where_everything_runs_and_was_judged(seqmlm: Run, workspace: Path) -> None:
    out = stream(workspace, [(1.0, row(1))])
    with FileLock(out.with_name("out.jsonl.lock")):
        done = seqmlm("report")
    assert done.out.splitlines()[0] == "1 row scored, no alarm."
    assert "warning" not in done.out
    assert done.err == f"report: {workspace / 'report.html'}\n"


def test_p_values_that_are_not_uniform_and_streams_without_alarms_are_said(seqmlm: Run, workspace: Path):
    rows = [(1.0, {**row(n, 0.01 + n / 1000)}) for n in range(150)]
    for _, one in rows:
        del one["alarm"]
    stream(workspace, rows)
    said = seqmlm("report").out
    assert "150 rows scored.\n" in said
    assert "differ from the calibration data" in said
    assert "without --fpr or alarms_per_day, so it raises no alarms" in said
    assert seqmlm("report", "--json").json["streams"][0]["alarms"] is None


def test_where_alarms_alone_are_kept_nothing_is_said_of_the_other_rows(seqmlm: Run, workspace: Path) -> None:
    rows = [(1.0, alarm(n, "fire")) for n in range(1, 4 * 150, 4)]
    sparse = {"alarms_only": True, "files": [], "source": "journald -u web"}
    out = stream(workspace, rows, request=sparse)
    with FileLock(out.with_name("out.jsonl.lock")):
        done = seqmlm("report")
        found = json.loads(seqmlm("report", "--json").out)
    assert "150 rows stored, 150 alarms." in done.out
    assert "stores only rows with alarms (alarms_only): the number and p-values of other rows" in done.out
    assert "P-values" not in done.out
    assert sum(found["p_values"]["rows"]) == 0
    assert found["streams"][0]["files"] == ["journald -u web"]
    quiet = stream(workspace, [], "quiet", request={**sparse, "model file": {"/models/other/x": "0"}})
    with FileLock(quiet.with_name("quiet.jsonl.lock")):
        done = seqmlm("report", "/models/other")
    assert "nothing was scored" not in done.out


def test_only_the_streams_of_the_model(seqmlm: Run, workspace: Path) -> None:
    folder = workspace / "models" / "web"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    stream(workspace, [(1.0, row(1))], model=str(folder))
    stream(workspace, [(1.0, row(1)), (1.0, row(2))], "other")
    assert seqmlm("report", f"{folder}").out.startswith("1 row scored")
    assert seqmlm("report").out.startswith("3 rows scored")
    assert (workspace / "report-web.html").exists()


def test_a_stream_that_an_alias_judges_is_of_its_model(seqmlm: Run, workspace: Path) -> None:
    for version in (1, 2):
        folder = workspace / f"web{version}"
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        with Streams(Workspace.locate()) as registry:
            entry = registry.register("web", str(folder), origin(domain="logs"))
            registry.set_alias(entry, "live")
    stream(workspace, [(1.0, row(1))], request={"model": "web@live"})
    for model in ("web", "web@live"):
        assert "1 row scored" in seqmlm("report", model).out
    seqmlm("report", "web:1").refused(4, "no stream of this workspace uses web:1")


def test_pruned_rows_are_said(seqmlm: Run, workspace: Path) -> None:
    out = stream(workspace, [(float(n), row(n)) for n in (40, 30, 20, 10, 1)])
    with Streams(Workspace.locate()) as registry, registry.writing() as session:
        session.execute(update(tables.Stream).values(written=5))  # as after the next commit
    assert "was pruned:" not in seqmlm("report", "--since", "12h").out
    seqmlm("incidents", "prune", "--older-than", "15h")
    assert "was pruned:" not in seqmlm("report", "--since", "5h").out
    said = seqmlm("report", "--since", "24h").out
    assert f"{out} was pruned: rows from before" in said
    assert "2 rows scored" in said


def test_nothing_of_sensitive_logs_is_told(seqmlm: Run, workspace: Path) -> None:
    rows = [(1.0, row(n, sensitive=True)) for n in range(30)]
    rows += [(0.5, alarm(40, "Ann Smith", sensitive=True, reason="Ann Smith", template="Ann Smith"))]
    stream(workspace, rows, private=True)
    page = workspace / "report.html"
    said = [seqmlm("report").out, page.read_text(), seqmlm("report", "--json").out]
    assert not any("Ann" in one for one in said)
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    found = json.loads(said[2])
    assert (found["streams"][0]["alarms"], found["bins"]["alarms"], found["p_values"]) == (1, None, None)
    assert "31 rows scored, 1 alarm." in said[0]
    assert "&lt;11" not in said[1], "lines of a log are no people: the headline says what the table lists"


@pytest.mark.parametrize("number", [0, 25])
def test_many_incidents_and_none(seqmlm: Run, workspace: Path, number: int) -> None:
    rows = [(20.0 - n / 2, alarm(100 * n, f"fault {n}")) for n in range(number)] or [(1.0, row(1))]
    stream(workspace, rows)
    done = seqmlm("report")
    assert done.out.count("\nincident") + done.out.startswith("incident") == min(number, 10)
    text = Reading((workspace / "report.html").read_text()).text
    assert all(f"fault {n} " in text for n in range(number))
