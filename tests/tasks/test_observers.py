from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqmlm.engine.loop import StepReport
from seqmlm.engine.schedule import LoopConfig
from seqmlm.tracking import MetricsFile, read_metrics
from seqmlm.training.observers import (
    EVENTS,
    SPEED_STEPS,
    Console,
    Recorder,
    complete_console,
)


class FakeRun:
    """A tracked run's file, and what else it is told."""

    def __init__(self, path: Path) -> None:
        self.file = MetricsFile(path)
        self.metrics: list[tuple[int, Mapping[str, float]]] = []
        self.tags: dict[str, str] = {}
        self.cut_metrics = self.file.cut_after

    def log_metrics(self, step: int, values: Mapping[str, float], details: Mapping[str, Any] = {}) -> None:
        self.metrics.append((step, values))
        self.file.write(step, {**values, **details})

    def set_tag(self, key: str, value: str) -> None:
        self.tags[key] = value


class FakeConsole:
    """Notes what a person is told."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def step(self, report: StepReport, total: float | None) -> None:
        self.messages.append(f"step {report.step}")


def _report(step: int, loss: float = 2.0) -> StepReport:
    given = {"grad_norm": 1.0, "learning_rate": 0.1, "masked": 15, "fill": 0.99, "tokens_per_second": 10.0}
    given |= {"tokens": 100 * step, "seconds": float(step), "epoch": 0, "bad_steps": 0}
    return StepReport(step=step, loss=loss, skipped=False, **given)


def _recorder(path: Path) -> tuple[Recorder, FakeRun, FakeConsole]:
    run, console = FakeRun(path), FakeConsole()
    return Recorder(run, console, LoopConfig(max_steps=9), 100), run, console  # type: ignore[arg-type]


def test_a_resumed_run_repeats_no_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    recorder, _, _ = _recorder(path)
    for step in range(1, 6):
        recorder.on_step(_report(step))
    recorder.on_evaluation(5, {"eval/loss": 1.0})
    with path.open("a") as file:
        file.write('{"step": 6, "train/lo')  # torn by a kill
    recorder, _, _ = _recorder(path)
    recorder.on_step(_report(4, loss=7.0))
    recorder.on_step(_report(5, loss=8.0))
    lines = read_metrics(path)
    assert [(line["step"], line["train/loss"]) for line in lines] == [(1, 2), (2, 2), (3, 2), (4, 7), (5, 8)]


def test_what_is_not_finite_stays_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    recorder, run, _ = _recorder(path)
    recorder.on_step(_report(1, loss=math.nan))
    [line] = [json.loads(text) for text in path.read_text().splitlines()]
    assert line["train/loss"] is None
    assert math.isnan(run.metrics[0][1]["train/loss"])  # the tracker counts it


def test_a_training_without_a_time_limit_says_how_long_it_takes(tmp_path: Path) -> None:
    """Once, after some steps: 90 steps of a second each are left, and a fifth for what follows."""
    console, run = FakeConsole(), FakeRun(tmp_path / "metrics.jsonl")
    recorder = Recorder(run, console, LoopConfig(max_steps=94), 100)  # type: ignore[arg-type]
    for step in range(1, 9):
        recorder.on_step(_report(step))
    [text] = [one for one in console.messages if "estimated" in one]
    assert text.startswith("94 steps, evaluation, counts and calibration: estimated time 2 minutes")
    assert console.messages.index(text) == SPEED_STEPS + 1


def test_a_training_with_a_time_limit_does_not_say_what_a_person_said(tmp_path: Path) -> None:
    console, run = FakeConsole(), FakeRun(tmp_path / "metrics.jsonl")
    recorder = Recorder(run, console, LoopConfig(max_seconds=94), 100)  # type: ignore[arg-type]
    for step in range(1, 9):
        recorder.on_step(_report(step))
    assert not [one for one in console.messages if "estimated" in one]


def test_events_are_told_in_words_and_kept(tmp_path: Path) -> None:
    details: dict[str, dict[str, Any]] = {
        "pace": {"seconds": 1},
        "decay": {"decay_start": 8, "end": 10},
        "stopping": {"step": 3, "signal": 15},
        "resumed": {"step": 3, "path": "p"},
        "checkpoint_skipped": {"path": "p", "reason": "torn"},
        "out_of_memory": {"micro_tokens": 4, "before": 8, "reason": "r"},
        "bad_step": {"step": 3, "loss": 1.0, "grad_norm": 2.0, "in_a_row": 1, "skipped": 1},
    }
    assert set(details) == set(EVENTS)
    recorder, run, console = _recorder(tmp_path / "metrics.jsonl")
    for kind, detail in {**details, "settings_changed": {"clip": [1, 2]}}.items():
        recorder.on_event(kind, detail)
    assert len(console.messages) == len(details)  # pace is for the record alone
    assert "the learning rate decays from step 8 to the last step, 10" in console.messages
    assert json.loads(run.tags["seqmlm.pace"]) == {"seconds": 1}


def test_a_console_that_lacks_members_is_completed() -> None:
    members = {name for name in vars(Console) if not name.startswith("_")}
    assert members == {"began", "message", "step", "phase", "calibration"}
    assert members <= set(dir(complete_console(object())))
    partial = FakeConsole()
    console = complete_console(partial)
    console.message("hello")
    console.phase("counts", 0.5)
    console.calibration("exact", 0.5, 3)
    assert (partial.messages, console.began) == (["hello"], None)
    partial.began = 7.0  # type: ignore[attr-defined]
    assert complete_console(partial).began == 7.0
