"""Scoring files while they are written: rows as of the whole files, going on by itself, clear refusals."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import signal
import sqlite3
import sys
import termios
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from log_models import NORMAL, write_log_model
from scored import score_files
from scored_streams import (
    OPTIONS,
    Said,
    calibrated_model,
    follow,
    following,
    in_one_go,
    line,
    rows_of,
    sensitive_copy,
    until,
    windows,
    write,
)
from tiny_models import protein_model, saved
from written import written

from seqmlm.errors import DataError, StateError, UsageError
from seqmlm.registry import database
from seqmlm.watch import outbox as module
from seqmlm.watch.config import WatchConfig
from seqmlm.watch.grouping import Grouping
from seqmlm.watch.incidents import list_incidents, mark_incident, show_incident
from seqmlm.watch.scoring import _announcer, watch_files
from seqmlm.watch.store import Change, StreamEntry, Streams
from seqmlm.workspace import Workspace

LINES = [f"2024-03-05 10:00:{n:02d} INFO {NORMAL[n % 4]}" for n in range(24)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    write_log_model(folder)
    return str(folder)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> str:
    return calibrated_model(tmp_path_factory.mktemp("calibrated"), [line(n) for n in range(4 * 60)])


@pytest.fixture
def logs(workspace: Path) -> Path:
    folder = workspace / "logs"
    folder.mkdir()
    return folder


def _compared(rows: list[dict[str, Any]]) -> dict[tuple[str, int], Any]:
    found = {(Path(row["source"]).name, row["line"]): pytest.approx(row["score"], abs=1e-4) for row in rows}
    assert len(found) == len(rows)
    return found


def test_rows_are_those_of_the_whole_files_and_it_goes_on_by_itself(model: str, logs: Path) -> None:
    config = following(model, logs)
    write(logs / "a.log", LINES[:8])
    summary = follow(config, 2)
    assert summary.stopped == signal.SIGTERM
    write(logs / "a.log", LINES[8:16])
    write(logs / "b.log", LINES[:4])  # a new file of the pattern
    said = Said()
    summary = follow(config, 5, said)
    assert any("after 2 rows" in one for one in said.said)
    assert (summary.items, summary.figures["rows"], summary.figures.get("alarms")) == (5, 5, None)
    whole = in_one_go(config, paths=(str(logs),), out=logs.parent / "once.jsonl")
    score_files(whole, io.StringIO())
    assert _compared(rows_of(config)) == _compared(rows_of(whole))
    with Streams(Workspace.locate()) as registry:
        found = registry.stream(str(config.out))
        assert [line for _, line in registry.stream_rows(found.id, 0, 99)] == text_of(config).splitlines()
        assert [one["offset"] for one in found.files] == [
            os.stat(logs / n).st_size for n in ("a.log", "b.log")
        ]


@pytest.fixture
def begun(model: str, logs: Path) -> WatchConfig:
    """A stream that has written the rows of eight lines."""
    config = following(model, logs)
    write(logs / "a.log", LINES[:8])
    follow(config, 2)
    return config


def text_of(config: WatchConfig) -> str:
    return config.out.read_text()


def _streamed() -> StreamEntry:
    """The one stream of the workspace."""
    with Streams(Workspace.locate()) as registry:
        [found] = registry.streams()
        entry = registry.stream(found.output)  # with its files
    assert entry is not None
    return entry


def _named(text: str) -> list[int]:
    """The lines that rows begin with."""
    return [json.loads(line)["line"] for line in text.splitlines()]


def test_rows_go_to_standard_output_and_it_goes_on_by_itself(model: str, logs: Path) -> None:
    config, out, said = following(model, logs, out=None), io.StringIO(), Said()
    write(logs / "a.log", LINES[:8])
    follow(config, lambda: out.getvalue().count("\n") >= 2, said, stdout=out)
    stream = _streamed()
    assert any(f"by the name {stream.output}" in one for one in said.said)
    assert not stream.running
    write(logs / "a.log", LINES[8:16])
    further = io.StringIO()
    follow(config, lambda: further.getvalue().count("\n") >= 2, stdout=further)
    assert (_named(out.getvalue()), _named(further.getvalue())) == ([1, 5], [9, 13])
    whole = in_one_go(config, paths=(str(logs),))
    score_files(whole, once := io.StringIO())
    rows = [json.loads(line) for line in (out.getvalue() + further.getvalue()).splitlines()]
    assert _compared(rows) == _compared([json.loads(line) for line in once.getvalue().splitlines()])
    with pytest.raises(StateError, match=r"per_unit.*name another file with --out"):
        watch_files(replace(config, per_unit=True), stdout=io.StringIO())


def test_who_reads_standard_output_slowly_is_waited_for(model: str, logs: Path) -> None:
    config, (end, begin) = following(model, logs, out=None), os.pipe()
    fcntl.fcntl(begin, fcntl.F_SETPIPE_SZ, 4096)
    many = [line(number) for number in range(4 * 80)]
    write(logs / "a.log", many[: 4 * 40])
    drained, held = list[bytes](), list[int]()

    def read() -> None:
        """Begin only when the pipe has been full for a while and more lines were written."""
        until(lambda: _waiting(end) > 0)
        held.append(_streamed().files[0]["offset"])
        write(logs / "a.log", many[4 * 40 :])
        time.sleep(0.6)  # three times the latency
        held.append(_streamed().files[0]["offset"])
        while b"".join(drained).count(b"\n") < 80:
            drained.append(os.read(end, 512))

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(begin, "w") as stdout:
        follow(config, lambda: not reader.is_alive(), stdout=stdout)
    reader.join()
    os.close(end)
    assert held[0] == held[1] < os.stat(logs / "a.log").st_size  # what nobody took is not read either
    assert _named(b"".join(drained).decode()) == list(range(1, 4 * 80, 4))


def _waiting(pipe: int) -> int:
    """Bytes that nobody has read."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4), sys.byteorder)


def test_what_a_reader_that_left_did_not_take_comes_again(model: str, logs: Path) -> None:
    class Left(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    config = following(model, logs, out=None)
    write(logs / "a.log", LINES[:8])
    with pytest.raises(BrokenPipeError):
        follow(config, lambda: False, stdout=Left())
    write(logs / "a.log", LINES[8:16])
    out = io.StringIO()
    follow(config, lambda: out.getvalue().count("\n") >= 4, stdout=out)
    assert _named(out.getvalue()) == [1, 5, 9, 13]


@pytest.mark.parametrize("left", ["nothing", "torn", "behind", "gone"])
def test_the_output_is_filled_again_from_the_database(begun: WatchConfig, logs: Path, left: str) -> None:
    config, before = begun, text_of(begun)
    if left == "torn":
        config.out.write_text(before + '{"id": "half a ro')
    elif left == "gone":
        config.out.unlink()
    elif left == "behind":  # killed between the commit of the rows and the writing of the file
        with sqlite3.connect(logs.parent / "seqmlm.db") as base:
            base.execute("UPDATE seqmlm_streams SET mark = '{}', written = 0")
        config.out.write_text("")
    write(logs / "a.log", LINES[8:12])
    follow(config, 3)
    assert text_of(config).startswith(before)
    assert [row["line"] for row in rows_of(config)] == [1, 5, 9]


def test_another_request_or_a_changed_file_is_refused(begun: WatchConfig, logs: Path) -> None:
    config, kept = begun, text_of(begun)
    for changed, told in (
        (replace(config, level="line"), "level was not given and is line"),
        (replace(config, options={**OPTIONS, "window": 8}), "options window has changed"),
        (replace(config, paths=(str(logs / "b.log"),)), "files was"),
    ):
        with pytest.raises(StateError, match=told):
            watch_files(changed)
        assert text_of(config) == kept
    config.out.write_text(kept.replace("a.log", "A.log"))
    with pytest.raises(StateError, match="it has changed since it was written; restore it"):
        watch_files(config)
    with pytest.raises(StateError, match="no stream of this workspace wrote it"):
        watch_files(replace(config, out=written(logs / "rows.jsonl", kept)))
    with pytest.raises(StateError, match="seqmlm did not write it"):
        watch_files(replace(config, out=written(logs / "mine.jsonl", "my notes")))
    assert (logs / "mine.jsonl").read_text() == "my notes"


HOOK = {"webhook": ("http://h",)}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"out": Path("x.csv")}, "JSON lines"),
        ({"paths": ("-",)}, "reads files only"),
        ({"paths": ()}, "nothing to watch"),
        ({"max_latency": "soon"}, "--max-latency is a duration"),
        ({"quiet": "soon"}, "quiet is a duration"),
        ({"paths": (".",)}, r"files or a pattern instead: '.*\*\.log'"),
        ({**HOOK, "fpr": None}, "--webhook needs alarms"),
        ({"webhook": ("h",)}, "is an address such as"),
        ({**HOOK, "webhook_format": "xml"}, "cannot be 'xml'"),
        ({"webhook_format": "alertmanager"}, "no effect without --webhook"),
        (
            {"webhook": ("http://h/a", "http://h/b")},
            "only one --webhook is possible: let its",
        ),
        ({"metrics_port": 70_000}, "70000 of 127.0.0.1 cannot be used"),
        ({"metrics_host": "0.0.0.0"}, "no effect without --metrics-port"),
    ],
)
def test_requests_that_make_no_sense(logs: Path, changed: dict[str, Any], told: str) -> None:
    """They are refused before a model is looked for."""
    with pytest.raises(UsageError, match=told):
        watch_files(following("no such model", logs, **{"fpr": 0.05, **changed}))


def test_a_field_that_cannot_be_followed(logs: Path, tmp_path: Path) -> None:
    proteins = saved(protein_model(), tmp_path / "proteins")
    with pytest.raises(UsageError, match="cannot be watched"):
        watch_files(following(str(proteins), logs, options={}, format=None))


def test_a_full_disk_loses_nothing(model: str, logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = following(model, logs)
    write(logs / "a.log", LINES[:8])
    given, full = os.write, True

    def refuse(handle: int, data: bytes) -> int:
        if full and bytes(data[:6]) == b'{"id":':
            raise OSError(errno.ENOSPC, "No space left on device")
        return given(handle, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        with pytest.raises(StateError, match="No space left"):
            watch_files(config)
    full = False
    assert rows_of(config) == []
    write(logs / "a.log", LINES[8:12])
    follow(config, 3)
    assert [row["line"] for row in rows_of(config)] == [1, 5, 9]


def test_a_locked_database_is_waited_for_and_one_that_stays_so_ends_it_and_nothing_is_lost(
    begun: WatchConfig, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqmlm.registry.database._BUSY_MILLISECONDS", 20)
    kept = text_of(begun)
    other = sqlite3.connect(logs.parent / "seqmlm.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    write(logs / "a.log", LINES[8:12])
    told = r"cannot be used: database is locked; check that it can be .* writ"
    with monkeypatch.context() as patched:
        patched.setattr("seqmlm.registry.database._PAUSES", (0.01, 0.01))
        with pytest.raises(StateError, match=told):
            watch_files(begun)
    assert text_of(begun) == kept
    freeing = threading.Timer(0.5, lambda: other.execute("ROLLBACK"))
    freeing.start()
    follow(begun, 3)
    freeing.join()
    other.close()
    assert [row["line"] for row in rows_of(begun)] == [1, 5, 9]


def test_a_disk_without_room_for_the_database_loses_nothing(
    begun: WatchConfig, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, kept = begun, text_of(begun)
    many = [line(number) for number in range(8, 4 * 400)]
    write(logs / "a.log", many)

    def limited(connection: Any, record: Any) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")

    prepare = database._prepare_sqlite
    with monkeypatch.context() as patched:
        patched.setattr(database, "_prepare_sqlite", lambda c, r: (prepare(c, r), limited(c, r)))
        with pytest.raises(StateError, match="cannot be used: database or disk is full"):
            watch_files(config)
    assert text_of(config).startswith(kept)
    follow(config, 400)
    assert sorted(row["line"] for row in rows_of(config)) == list(range(1, 4 * 400, 4))


def test_what_was_destroyed_while_nobody_followed_is_told(
    begun: WatchConfig, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqmlm.watch.scoring.PATIENCE", 0.3)
    config = begun
    (logs / "a.log").write_text("")
    write(logs / "a.log", LINES[12:16])
    follow(config, 4)
    gaps = [row for row in rows_of(config) if "gap" in row]
    assert [(row["line"], row["gap"]["bytes"]) for row in gaps] == [(9, None)]
    assert "was destroyed before it could be read" in gaps[0]["reason"]
    assert sorted(row["line"] for row in rows_of(config) if "gap" not in row) == [1, 1, 5]


def _alarming(model: str, logs: Path, **changed: Any) -> WatchConfig:
    return following(model, logs, mode="exact", fpr=0.05, quiet="0.5s", **changed)


def _states(*states: str) -> Callable[[], bool]:
    return lambda: (
        (logs := Workspace.locate().root / "seqmlm.db").exists()
        and logs.stat().st_size > 0
        and [one.state for one in list_incidents()[0]] == list(states)
    )


def test_alarms_become_incidents_that_are_told_and_end_by_the_clock(calibrated: str, logs: Path) -> None:
    config, said = _alarming(calibrated, logs), Said()
    write(logs / "a.log", [*map(line, range(8)), line(8), line(9, "disk 7 on fire"), *map(line, (10, 11))])
    summary = follow(config, _states("resolved"), said)
    assert (summary.figures["alarms"], summary.figures["incidents"]) == (1, 1)
    (one,) = list_incidents()[0]
    assert one.title == "'disk <NUM> on fire' was never seen: 1 of 4 lines, a.log:9-12"
    assert (one.template, one.model, one.rows, one.lines) == ("disk <NUM> on fire", calibrated, 1, 4)
    assert (one.first_line, one.last_line) == (f"{logs / 'a.log'}:9", f"{logs / 'a.log'}:12")
    assert (one.first_time, one.last_time) == ("2024-03-05T10:00:08+00:00", "2024-03-05T10:00:11+00:00")
    assert (one.severity, one.host, one.service) == ("INFO", None, None)
    for row, first in zip(rows_of(config), (0, 4, 8), strict=True):  # rows without an alarm say it as well
        told = [row["time"][11:19], row["last_time"][11:19], row["severity"]]
        assert told == [f"10:00:{first:02d}", f"10:00:{first + 3:02d}", "INFO"]
    assert set(one.expected) <= {"open file <NUM>", "close", "read block <NUM> of <NUM>", "<NEW>"}
    assert len(one.expected) == 3
    assert one.reason.endswith("bits).")
    told = [text for text in said.said if text.startswith("incident")]
    assert [text.split(":")[0] for text in told] == ["incident 1", "incident 1 is over after 1 row"]
    *_, shown = show_incident(one.id, 9)
    assert [row["id"] for row in shown] == ["a.log:9"]
    assert shown[0]["message"] == "disk 7 on fire"
    assert rows_of(config)[2] == shown[0]


def test_what_joins_an_incident_is_told_where_it_is_new(calibrated: str, logs: Path) -> None:
    said = Said()
    one = Grouping(model="app").incident(1, {"source": "a.log", "line": 1, "p_value": 0.01}, 0.0)
    one, told, new = replace(one, id=3, what="a"), _announcer(said), ("status=502",)
    for kind, news in (("opened", ()), *(("updated", news) for news in ((), new, new)), ("resolved", new)):
        told(Change(kind=kind, incident=replace(one, new=news, rows=2)))  # type: ignore[arg-type]
    assert said.said == [
        "incident 3: a: 1 line, a.log:1 (p 0.01)",
        "incident 3 continues: status=502 was never seen: 1 line, a.log:1 (p 0.01)",
        "incident 3 is over after 2 rows: status=502 was never seen: 1 line, a.log:1",
    ]
    said.said.clear()
    later = _announcer(said)  # another process goes on
    later(Change(kind="updated", incident=one))
    assert said.said == []


def test_a_second_kind_of_line_that_joins_is_told_and_named(calibrated: str, logs: Path) -> None:
    config, said = replace(_alarming(calibrated, logs), quiet="5m"), Said()
    write(logs / "a.log", _seen("disk 7 on fire"))

    def joined() -> bool:
        until(lambda: len(rows_of(config)) == 1)
        write(logs / "a.log", [*_seen("disk 8 on fire"), *_seen("roof is open")])
        until(lambda: len(rows_of(config)) == 3)
        return True

    follow(config, joined, said)
    kinds = "'disk <NUM> on fire', 'roof is open' were never seen: 3 of 12 lines, a.log:1-12"
    assert [text.partition(" (p ")[0] for text in said.said if text.startswith("incident")] == [
        "incident 1: 'disk <NUM> on fire' was never seen: 1 of 4 lines, a.log:1-4",
        f"incident 1 continues: {kinds}",
    ]
    assert [one.title for one in list_incidents()[0]] == [kinds]


def _seen(template: str) -> list[str]:
    return [line(12, template), *map(line, (13, 14, 15))]


def test_what_is_muted_or_ignored_is_written_and_opens_nothing(calibrated: str, logs: Path) -> None:
    config = _alarming(calibrated, logs)
    write(logs / "a.log", _seen("disk 7 on fire"))
    follow(config, _states("resolved"))
    mark_incident(1, muted=True)
    rules = written(logs / "ignore.txt", "^fan \\d+ stuck$\n")
    config = replace(config, ignore=rules)  # the stream goes on with other rules
    write(logs / "a.log", [*_seen("disk 8 on fire"), *_seen("fan 3 stuck"), *_seen("roof is open")])
    summary = follow(config, _states("resolved", "resolved"))
    assert (summary.figures["alarms"], summary.figures["incidents"]) == (4, 2)
    assert [row.get("muted") for row in rows_of(config)] == [None, "incident 1", f"{rules}:1", None]
    assert [one.what for one in list_incidents()[0]] == [
        "'roof is open' was never seen",
        "'disk <NUM> on fire' was never seen",
    ]
    assert [row["line"] for row in show_incident(1, 9)[-1]] == [1, 5]


def test_lines_that_are_not_like_those_of_the_calibration_are_told_of(
    tmp_path_factory: pytest.TempPathFactory, logs: Path
) -> None:
    normal = windows(range(120))
    config = _alarming(calibrated_model(tmp_path_factory.mktemp("shifted"), normal), logs)
    rare = [line(n, NORMAL[1]) for n in range(4 * 220)]
    write(logs / "a.log", normal + rare)
    said = Said()
    summary = follow(config, 340, said)
    (told,) = [text for text in said.said if "of the last 200 rows have p-values below .5" in text]
    assert "calibrate the model with normal data like these ('seqmlm calibrate'), then restart" in told
    assert summary.figures["low_p"] is not None
    write(logs / "a.log", rare)
    said = Said()
    follow(config, 560, said)
    assert not [text for text in said.said if text == told]  # on the same day


def _prune(config: WatchConfig) -> int:
    """Everything that is not needed, however young."""
    with Streams(Workspace.locate()) as registry:
        found = registry.stream(str(config.out))
        return registry.prune(found.id, datetime.now(UTC) + timedelta(days=1)).rows


def test_a_pruned_stream_goes_on_and_says_what_a_removed_output_lacks(calibrated: str, logs: Path) -> None:
    config, said = _alarming(calibrated, logs), Said()
    write(logs / "a.log", [*_seen("disk 7 on fire"), *map(line, range(8))])
    follow(config, _states("resolved"))
    before = text_of(config)
    assert _prune(config) == 2  # of three: the last one stays
    write(logs / "a.log", [*map(line, range(8, 12))])
    pruned: list[int] = []

    def running() -> bool:
        """Prune once more while it runs, and let it go on."""
        if not pruned and len(rows_of(config)) == 4:
            pruned.append(_prune(config))
            write(logs / "a.log", [*_seen("disk 8 on fire")])
        return bool(pruned) and _states("resolved")()

    summary = follow(config, running, said)
    assert (summary.figures["rows"], summary.figures["alarms"], sum(pruned)) == (5, 2, 1)
    assert summary.figures["incidents"] == 2
    assert said.said[0].endswith("rows.jsonl after 3 rows")
    assert text_of(config).startswith(before)
    assert [row["line"] for row in rows_of(config)] == [1, 5, 9, 13, 17]
    _prune(config)
    config.out.unlink()
    said = Said()
    write(logs / "a.log", [*map(line, range(12, 16))])
    follow(config, 2, said)
    assert f"{config.out} no longer exists; it is rewritten without 4 rows" in said.said[0]
    assert [row["line"] for row in rows_of(config)] == [17, 21]


def test_a_stream_that_reads_nothing_commits_that_it_is_alive(
    model: str, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ALIVE", timedelta(seconds=0.05))
    config = following(model, logs)
    write(logs / "a.log", LINES[:4])
    seen: set[object] = set()

    def alive() -> bool:
        if rows_of(config):
            found = _streamed()
            assert found.running
            seen.add(found.alive)
        return len(seen) > 3

    follow(config, alive)
    assert len(seen) > 3
    found = _streamed()
    assert (found.running, found.last, found.judged is not None) == (False, 1, True)
    found = replace(found, server=True)
    assert found.running  # from another machine: as far as is known
    assert not replace(found, alive=datetime.now(UTC) - timedelta(minutes=5)).running


def test_rules_that_are_wrong_are_refused_before_anything_is_read(logs: Path) -> None:
    rules = written(logs / "ignore.txt", "(")
    with pytest.raises(DataError, match=r"ignore.txt:1: '\(' is not a regular expression"):
        watch_files(_alarming("no such model", logs, ignore=rules))


def test_nothing_of_sensitive_logs_is_in_an_incident_or_on_the_console(
    calibrated: str, logs: Path, tmp_path: Path
) -> None:
    config, said = _alarming(sensitive_copy(calibrated, tmp_path / "sensitive"), logs), Said()
    write(logs / "a.log", _seen("ann fell ill"))
    follow(config, _states("resolved"), said)
    shown = show_incident(1, 9)
    assert "ann" not in repr((shown, said.said))
    assert shown[0].title == "unusual lines: 1 of 4 lines, a.log:1-4"
    assert [(row["line"], row["last_line"]) for row in shown[-1]] == [(1, 4)]
    assert "ann" in text_of(config)  # which only its owner may read
    with pytest.raises(UsageError, match="name a file with --out"):
        watch_files(replace(config, out=None), stdout=io.StringIO())
