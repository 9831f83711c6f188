"""Logs that a scorer follows until something is so, models that judge them, and what it says meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TextIO

import pytest
from log_models import NORMAL, write_log_model
from registered import origin

from seqmlm.inference import model_folder
from seqmlm.registry.entries import ModelEntry
from seqmlm.reports.summary import NoProgress, Summary
from seqmlm.scoring.calibrate import CalibrateConfig, calibrate_files
from seqmlm.scoring.config import ScoreConfig, ScoringRequest
from seqmlm.watch.config import WatchConfig
from seqmlm.watch.scoring import watch_files
from seqmlm.watch.store import Streams
from seqmlm.workspace import Workspace

OPTIONS = {"window": 4, "session": "none"}


def following(model: str, logs: Path, **given: Any) -> WatchConfig:
    """A request to follow all logs of a folder, with rows in a file beside it."""
    asked = {"max_latency": "0.2s", "options": OPTIONS, "format": "iso", "out": logs.parent / "rows.jsonl"}
    return WatchConfig(**{"model": model, "paths": (str(logs / "*.log"),), **asked, **given})


def in_one_go(config: WatchConfig, **changed: Any) -> ScoreConfig:
    """A request to score the same when it is written."""
    given = {one.name: getattr(config, one.name) for one in fields(ScoringRequest)}
    return ScoreConfig(**{**given, **changed})


ORDERS = ((0, 1, 2, 3), (0, 2, 1, 3), (1, 0, 2, 3), (0, 1, 3, 2), (3, 2, 1, 0))


def line(number: int, message: str | None = None) -> str:
    """One a second, which says something usual where nothing else is given."""
    time = f"{10 + number // 3600}:{number // 60 % 60:02d}:{number % 60:02d}"
    return f"2024-03-05 {time} INFO {message or NORMAL[number % 4]}"


def windows(numbers: Iterable[int]) -> list[str]:
    """Windows of four lines in one of five orders."""
    return [line(4 * w + n, NORMAL[k]) for w in numbers for n, k in enumerate(ORDERS[w * w % 11 % 5])]


def fake_journalctl(folder: Path, journal: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journalctl that tells the entries of a file; where it is."""
    program = folder / "bin" / "journalctl"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{Path(__file__).with_name('journalctl.py').read_text()}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_JOURNAL", str(journal))
    return program


def sensitive_copy(folder: str, to: Path) -> str:
    """The same model, of sensitive data."""
    shutil.copytree(folder, to)
    card = model_folder.read_card(to)
    assert card is not None
    model_folder.seal(to, replace(card, sensitive=True))
    return str(to)


class Said(NoProgress):
    """What a person is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)

    def has(self, text: str) -> list[str]:
        return [one for one in self.said if text in one]


def write(file: Path, lines: Iterable[str]) -> None:
    """Append lines."""
    with open(file, "a", encoding="utf-8") as opened:
        opened.write("".join(f"{line}\n" for line in lines))


def calibrated_model(
    folder: Path, lines: Iterable[str], known: tuple[str, ...] = NORMAL, options: Mapping[str, Any] = OPTIONS
) -> str:
    """A model that knows that these lines are usual."""
    write_log_model(folder, known)
    normal = folder.with_name(f"{folder.name}.log")
    write(normal, lines)
    given: dict[str, Any] = {"level": "session", "mode": "exact", "options": options, "format": "iso"}
    calibrate_files(CalibrateConfig(model=str(folder), paths=(str(normal),), **given), lambda text: None)
    return str(folder)


def register(folder: str | Path, *aliases: str) -> ModelEntry:
    """Make a model folder the next version of "app"."""
    with Streams(Workspace.locate()) as registry:
        return registry.register("app", str(folder), origin(domain="logs"), aliases=list(aliases))


def rows_of(config: WatchConfig) -> list[dict[str, Any]]:
    """The rows that are written whole."""
    if not config.out.exists():
        return []  # nothing was written
    return [json.loads(line) for line in config.out.read_text().splitlines(keepends=True) if line[-1] == "\n"]


def until(so: Callable[[], bool]) -> None:
    """Wait, but not for ever."""
    for _ in range(3000):
        if so():
            return
        time.sleep(0.02)


def follow(
    config: WatchConfig,
    until: Callable[[], bool] | int,
    said: Said | None = None,
    *,
    stdout: TextIO | None = None,
) -> Summary:
    """Follow until something is so, or so many rows are there; then SIGTERM."""
    ended, seen = threading.Event(), threading.Event()

    def watch() -> None:
        try:
            for _ in range(3000):  # a fuse
                if len(rows_of(config)) >= until if isinstance(until, int) else until():
                    seen.set()
                    break
                if ended.wait(0.02):
                    break
        finally:
            if not ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        summary = watch_files(config, said, stdout=stdout)
    finally:
        ended.set()
        watcher.join()
    assert seen.is_set()
    return summary
