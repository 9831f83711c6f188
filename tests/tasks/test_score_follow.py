"""Scoring files while they are written: rows as of the whole files, going on by itself, clear refusals."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from log_models import NORMAL, write_log_model
from tiny_models import protein_model

from seqmlm.errors import StateError, UsageError
from seqmlm.inference import model_folder
from seqmlm.inference.runner import NoProgress
from seqmlm.registry import Registry
from seqmlm.tasks.score import score_files
from seqmlm.tasks.score_follow import score_following
from seqmlm.tasks.score_output import ScoreSummary
from seqmlm.tasks.score_plan import ScoreConfig

LINES = [f"2024-03-05 10:00:{n:02d} INFO {NORMAL[n % 4]}" for n in range(24)]
OPTIONS = {"window": 4, "session": "none"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    write_log_model(folder)
    return str(folder)


@pytest.fixture
def logs(workspace: Path) -> Path:
    folder = workspace / "logs"
    folder.mkdir()
    return folder


def _config(model: str, logs: Path, **changed: Any) -> ScoreConfig:
    given = ScoreConfig(
        model=model,
        paths=(str(logs / "*.log"),),
        follow=True,
        max_latency="0.2s",
        options=OPTIONS,
        format="iso",
        out=logs.parent / "rows.jsonl",
    )
    return replace(given, **changed)


class Said(NoProgress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)


def _follow(config: ScoreConfig, until: Callable[[], bool], said: Said | None = None) -> ScoreSummary:
    """Follow until something is so; then SIGTERM."""
    ended = threading.Event()

    def watch() -> None:
        for _ in range(3000):  # a fuse
            if until() or ended.wait(0.02):
                break
        if not ended.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        return score_following(config, said)
    finally:
        ended.set()
        watcher.join()


def _rows(config: ScoreConfig) -> list[dict[str, Any]]:
    assert config.out is not None
    if not config.out.exists():
        return []  # nothing was written
    return [json.loads(line) for line in config.out.read_text().splitlines()]


def _has(config: ScoreConfig, rows: int) -> Callable[[], bool]:
    assert config.out is not None
    out = config.out
    return lambda: out.exists() and out.read_bytes().count(b"\n") >= rows


def _compared(rows: list[dict[str, Any]]) -> dict[tuple[str, int], Any]:
    found = {(Path(row["source"]).name, row["line"]): pytest.approx(row["score"], abs=1e-4) for row in rows}
    assert len(found) == len(rows)
    return found


def _write(file: Path, lines: list[str]) -> None:
    with open(file, "a", encoding="utf-8") as opened:
        opened.write("".join(f"{line}\n" for line in lines))


def test_rows_are_those_of_the_whole_files_and_it_goes_on_by_itself(model: str, logs: Path) -> None:
    config = _config(model, logs)
    _write(logs / "a.log", LINES[:8])
    summary = _follow(config, _has(config, 2))
    assert summary.stopped == signal.SIGTERM
    _write(logs / "a.log", LINES[8:16])
    _write(logs / "b.log", LINES[:4])  # a new file of the pattern
    said = Said()
    summary = _follow(config, _has(config, 5), said)
    assert any("behind 2 rows" in one for one in said.said)
    assert (summary.records, summary.rows, summary.alarms) == (5, 5, None)
    whole = replace(
        config, follow=False, max_latency=None, paths=(str(logs),), out=logs.parent / "once.jsonl"
    )
    score_files(whole, io.StringIO())
    assert _compared(_rows(config)) == _compared(_rows(whole))
    with Registry(_located()) as registry:
        found = registry.stream(str(config.out))
        assert found is not None
        assert [line for _, line in registry.stream_rows(found.id, 0, 99)] == _text(config).splitlines()
        assert [one["offset"] for one in found.files] == [
            os.stat(logs / n).st_size for n in ("a.log", "b.log")
        ]


def _located() -> Any:
    from seqmlm.workspace import Workspace

    return Workspace.locate()


def _text(config: ScoreConfig) -> str:
    assert config.out is not None
    return config.out.read_text()


@pytest.mark.parametrize("left", ["nothing", "torn", "behind", "gone"])
def test_the_output_is_filled_again_from_the_database(model: str, logs: Path, left: str) -> None:
    config = _config(model, logs)
    assert config.out is not None
    _write(logs / "a.log", LINES[:8])
    _follow(config, _has(config, 2))
    before = _text(config)
    if left == "torn":
        config.out.write_text(before + '{"id": "half a ro')
    elif left == "gone":
        config.out.unlink()
    elif left == "behind":  # killed between the commit of the rows and the writing of the file
        with sqlite3.connect(logs.parent / "seqmlm.db") as base:
            base.execute("UPDATE seqmlm_streams SET mark = '{}', written = 0")
        config.out.write_text("")
    _write(logs / "a.log", LINES[8:12])
    _follow(config, _has(config, 3))
    assert _text(config).startswith(before)
    assert [row["line"] for row in _rows(config)] == [1, 5, 9]


def test_another_request_or_a_changed_file_is_refused(model: str, logs: Path) -> None:
    config = _config(model, logs)
    assert config.out is not None
    _write(logs / "a.log", LINES[:8])
    _follow(config, _has(config, 2))
    kept = _text(config)
    for changed, told in (
        (replace(config, level="line"), "level was session and is line"),
        (replace(config, options={**OPTIONS, "window": 8}), "options window has changed"),
        (replace(config, paths=(str(logs / "b.log"),)), "files was"),
    ):
        with pytest.raises(StateError, match=told):
            score_following(changed)
        assert _text(config) == kept
    config.out.write_text(kept.replace("a.log", "A.log"))
    with pytest.raises(StateError, match="not what was written to it; put it back"):
        score_following(config)
    with pytest.raises(StateError, match="no following of this workspace has written it"):
        score_following(replace(config, out=logs / "a.log"))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"out": None}, "name it with --out"),
        ({"out": Path("x.csv")}, "JSON lines"),
        ({"paths": ("-",)}, "about files"),
        ({"resume": True}, "--resume is not possible with --follow: it goes on by itself"),
        ({"report": Path("x.html")}, "--report is not possible with --follow"),
        ({"max_latency": "soon"}, "--max-latency is a duration"),
    ],
)
def test_requests_that_make_no_sense(model: str, logs: Path, changed: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        score_following(_config(model, logs, **changed))


def test_a_folder_and_a_field_that_cannot_be_followed(model: str, logs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a pattern in quotes: '.*logs/\*\.log'"):
        score_following(_config(model, logs, paths=(str(logs),)))
    loaded = protein_model()
    folder = tmp_path / "proteins"
    folder.mkdir()
    model_folder.write(folder, loaded.rows, loaded.tokenizer, loaded.card)
    with pytest.raises(UsageError, match="cannot be followed"):
        score_following(_config(str(folder), logs, options={}, format=None))


def test_a_full_disk_loses_nothing(model: str, logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = _config(model, logs)
    _write(logs / "a.log", LINES[:8])
    write, full = os.write, True

    def refuse(handle: int, data: bytes) -> int:
        if full and bytes(data[:6]) == b'{"id":':
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        with pytest.raises(StateError, match="No space left"):
            score_following(config)
    full = False
    assert _rows(config) == []
    _write(logs / "a.log", LINES[8:12])
    _follow(config, _has(config, 3))
    assert [row["line"] for row in _rows(config)] == [1, 5, 9]


def test_a_locked_database_is_waited_for(model: str, logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqmlm.registry.database._BUSY_MILLISECONDS", 50)
    config = _config(model, logs)
    _write(logs / "a.log", LINES[:4])
    _follow(config, _has(config, 1))
    other = sqlite3.connect(logs.parent / "seqmlm.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    _write(logs / "a.log", LINES[4:8])

    def free() -> None:
        time.sleep(0.5)
        other.execute("ROLLBACK")

    threading.Thread(target=free).start()
    _follow(config, _has(config, 2))
    other.close()
    assert [row["line"] for row in _rows(config)] == [1, 5]


def test_a_corrupt_database_is_refused(model: str, logs: Path) -> None:
    config = _config(model, logs)
    _write(logs / "a.log", LINES[:8])
    _follow(config, _has(config, 2))
    kept, base = _text(config), logs.parent / "seqmlm.db"
    base.write_bytes(b"no database at all" * 1000)
    for beside in ("seqmlm.db-wal", "seqmlm.db-shm"):
        (logs.parent / beside).unlink(missing_ok=True)
    with pytest.raises(
        StateError,
        match=r"the registry at .*seqmlm\.db cannot be used: file is not a database; .*doctor --repair",
    ):
        score_following(config)
    assert _text(config) == kept


def test_what_was_destroyed_while_nobody_followed_is_told(
    model: str, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqmlm.tasks.score_follow.PATIENCE", 0.3)
    config = _config(model, logs)
    _write(logs / "a.log", LINES[:8])
    _follow(config, _has(config, 2))
    (logs / "a.log").write_text("")
    _write(logs / "a.log", LINES[12:16])
    _follow(config, _has(config, 4))
    gaps = [row for row in _rows(config) if "gap" in row]
    assert [(row["line"], row["gap"]["bytes"]) for row in gaps] == [(9, None)]
    assert "was destroyed before it could be read" in gaps[0]["reason"]
    assert sorted(row["line"] for row in _rows(config) if "gap" not in row) == [1, 1, 5]
