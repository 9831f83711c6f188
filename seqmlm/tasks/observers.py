"""Who is told how a training goes: the tracked run, which writes `metrics.jsonl`, and the console."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from seqmlm.engine.loop import Observer, StepReport
from seqmlm.tracking import TrackedRun

__all__ = ["Console", "Recorder", "SilentConsole", "StepReport"]

# What a person is told of the loop's events; "" is for the record alone.
EVENTS = {
    "pace": "",
    "decay": "the learning rate falls from step {decay_start} to the end at step {end}",
    "stopping": "stopping after step {step} (signal {signal}): saving",
    "resumed": "going on from step {step} ({path})",
    "checkpoint_skipped": "checkpoint {path} is not whole ({reason}); trying the one before",
    "out_of_memory": "memory ran out: {micro_tokens} tokens at a time, no longer {before}; the batch stays",
    "bad_step": "step {step} skipped: loss {loss}, gradient norm {grad_norm} ({in_a_row} in a row)",
}


class Console(Protocol):
    """What a task may tell a person while it works; the CLI supplies one, a library user may too."""

    def message(self, text: str) -> None: ...
    def step(self, report: StepReport, total: float | None) -> None: ...


class SilentConsole:
    """Says nothing."""

    def message(self, text: str) -> None:
        """Drop the text."""

    def step(self, report: StepReport, total: float | None) -> None:
        """Drop the report."""


def step_metrics(report: StepReport) -> dict[str, float]:
    """A step under the names that MLflow shows."""
    return {
        "train/loss": report.loss,
        "grad_norm": report.grad_norm,
        "learning_rate": report.learning_rate,
        "tokens_per_second": report.tokens_per_second,
        "fill": report.fill,
        "tokens": float(report.tokens),
    }


class Recorder(Observer):
    """Passes what the loop reports to the tracked run and the console."""

    def __init__(self, run: TrackedRun, console: Console, total: Callable[[StepReport], float]) -> None:
        self.run, self.console, self.total = run, console, total
        self._first = True

    def on_step(self, report: StepReport) -> None:
        if self._first:
            # A resumed run that found no checkpoint begins again.
            self.run.cut_metrics(report.step - 1)
            self._first = False
        details = {"masked": report.masked, "epoch": report.epoch, "skipped": report.skipped}
        self.run.log_metrics(report.step, step_metrics(report), {**details, "seconds": report.seconds})
        self.console.step(report, self.total(report))

    def on_evaluation(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log_metrics(step, values)
        bits, floor = values.get("eval/bits_per_unit"), values.get("eval/unigram_bits_per_unit")
        if bits is not None and floor is not None:
            self.console.message(f"step {step}: {bits:.3f} bits per unit (unigram {floor:.3f})")

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Checkpoints need no record: the folder is one."""

    def on_event(self, kind: str, detail: Mapping[str, Any]) -> None:
        if kind == "resumed":
            self.run.cut_metrics(detail["step"])
        text = f"{kind.replace('_', ' ')}: {dict(detail)}"
        if kind in EVENTS:
            text = EVENTS[kind].format_map(detail)
        if text:
            self.console.message(text)
        self.run.set_tag(f"seqmlm.{kind}", json.dumps(detail, default=str))
