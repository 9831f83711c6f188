"""Printing: machines get strict JSON and tabs, people get aligned text."""

from __future__ import annotations

import json
import math
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from seqmlm.cli import start
from seqmlm.cli.console import ScoringConsole, TrainingConsole
from seqmlm.cli.output import duration, escape, number, print_facts, print_json, print_table
from seqmlm.engine.loop import StepReport


def _report(step: int) -> StepReport:
    numbers = {"grad_norm": 1.0, "learning_rate": 0.1, "masked": 15, "fill": 0.99, "tokens_per_second": 10.0}
    more = {"tokens": 100 * step, "seconds": float(step), "epoch": 0, "bad_steps": 0}
    return StepReport(step=step, loss=2.0, skipped=False, **numbers, **more)


def test_json_is_one_strict_line(capsys: pytest.CaptureFixture[str]) -> None:
    values = {"a": math.nan, "b": [math.inf, 1.5], "path": Path("x"), "at": datetime(2026, 1, 1, tzinfo=UTC)}
    print_json({**values, "yes": True, "big": 10**400})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {
        "a": None,
        "b": [None, 1.5],
        "path": "x",
        "at": "2026-01-01T00:00:00+00:00",
        "yes": True,
        "big": 10**400,
    }


def test_tables_in_a_pipe_are_tab_separated(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "note"], [["[bold]a[/]", "two\nlines"], [escape("[b]"), 3]])
    assert capsys.readouterr().out == "name\tnote\na\ttwo lines\n[b]\t3\n"


def test_tables_on_a_terminal_are_drawn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(["name", "note"], [["a", "b"]], title="things")
    out = capsys.readouterr().out
    assert "\t" not in out
    assert out.splitlines()[0].count("things") == 1


@pytest.mark.parametrize("console", [ScoringConsole, TrainingConsole])
@pytest.mark.parametrize("terminal", [False, True])
def test_rows_for_a_file_pass_by_the_progress_on_a_terminal(
    console: type[Any], terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # standard error is a terminal
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    before = sys.stdout
    with console():
        assert (sys.stdout is before) != terminal


def test_a_training_has_one_bar_that_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # standard error is a terminal
    shares = []
    with TrainingConsole() as console:

        def seen() -> None:
            [task] = console._progress.tasks
            shares.append((task.completed, task.description))

        for step in (1, 5, 10):
            console.step(_report(step), 10.0)
            seen()
        for name in ("evaluation", "counts", "calibration background"):
            for share in (0.0, 1.0):
                console.phase(name, share)
                seen()
        console.calibration("one-pass", 1.0, 100)
        seen()
    done = [share for share, _ in shares]
    assert done == sorted(done)
    assert done[-1] == 1.0
    assert {"training", "evaluation", "counts", "calibration one-pass"} <= {name for _, name in shares}


def test_elsewhere_a_training_writes_a_line_in_ten_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("seqmlm.cli.console.time.monotonic", lambda: now[0])
    with TrainingConsole() as console:
        for step in range(1, 31):
            now[0] += 1.0
            console.step(_report(step), 60.0)
            console.phase("evaluation", step / 30)
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_the_time_of_a_command_counts_from_the_start_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_is_own", [])
    assert start.began() == pytest.approx(time.monotonic(), abs=1), "a process that does other work, too"
    start.own_process()
    age = time.time() - psutil.Process().create_time()
    assert time.monotonic() - start.began() == pytest.approx(age, abs=1)


def test_facts_are_aligned_and_absent_ones_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts({"a": 1, "long": "x", "none": None, "empty": ""})
    assert capsys.readouterr().out.splitlines() == ["a      1", "long   x"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (3, "3"), (3.14159, "3.142"), (0.0005, "0.0005"), (12345.678, "12,346"), (20000, "20,000")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59, "59s"), (61, "1m01s"), (3600, "1h00m"), (90061, "25h01m")]
)
def test_durations(seconds: int, text: str) -> None:
    assert duration(1000, 1000 + seconds * 1000) == text
    assert duration(1000, None) == ""
