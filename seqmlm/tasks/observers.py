"""Who is told how a training goes: the metrics file (the truth), the tracker, and the console."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from seqmlm.engine.loop import Observer, StepReport
from seqmlm.errors import StateError
from seqmlm.tracking import TrackedRun

METRICS = "metrics.jsonl"


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


class MetricsFile:
    """`metrics.jsonl`: one line per optimizer step, and one per evaluation; survives kill -9 and is the truth.

    On resume, lines of steps after the checkpoint are cut away, since those steps are run again.
    """

    def __init__(self, path: Path, *, resumed_from: int | None) -> None:
        self.path = path
        if resumed_from is not None and path.exists():
            kept = [line for line in _complete_lines(path) if json.loads(line)["step"] <= resumed_from]
            temporary = path.with_suffix(".tmp")
            temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
            temporary.replace(path)
        self._file = path.open("a", encoding="utf-8")

    def write(self, values: dict[str, Any]) -> None:
        """Append one line; numbers that are not finite are written as null.

        Raises:
            StateError: the disk is full.
        """
        safe = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
        try:
            self._file.write(json.dumps(safe) + "\n")
            self._file.flush()
        except OSError as error:
            raise StateError(f"cannot write {self.path}: {error.strerror}; free space, then --resume") from None

    def close(self) -> None:
        self._file.close()


def _complete_lines(path: Path) -> list[str]:
    """Lines that are whole JSON; a line torn by a kill ends the file."""
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            json.loads(line)
        except json.JSONDecodeError:
            break
        lines.append(line)
    return lines


class Recorder(Observer):
    """Passes what the loop reports to the metrics file, the tracker and the console."""

    def __init__(
        self, metrics: MetricsFile, run: TrackedRun, console: Console, total_steps: int | None
    ) -> None:
        self.metrics, self.run, self.console, self.total_steps = metrics, run, console, total_steps

    def on_step(self, report: StepReport) -> None:
        values = step_metrics(report)
        extra = {"masked": report.masked, "epoch": report.epoch, "skipped": report.skipped}
        self.metrics.write({"step": report.step, **values, **extra, "seconds": report.seconds})
        self.run.log_metrics(report.step, values)
        self.console.step(report, self.total_steps)

    def on_evaluation(self, step: int, values: dict[str, float]) -> None:
        self.metrics.write({"step": step, **values})
        self.run.log_metrics(step, values)
        bits, floor = values.get("eval/bits_per_unit"), values.get("eval/unigram_bits_per_unit")
        if bits is not None and floor is not None:
            self.console.message(f"step {step}: {bits:.3f} bits per unit (unigram {floor:.3f})")

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Checkpoints need no record: the folder is one."""

    def on_event(self, kind: str, detail: dict[str, Any]) -> None:
        self.console.message(f"{kind}: " + ", ".join(f"{key} {value}" for key, value in detail.items()))
        self.run.set_tag(f"seqmlm.{kind}", json.dumps(detail))


def read_metrics(path: Path) -> Sequence[dict[str, Any]]:
    """All whole lines of a metrics file, in order."""
    return [json.loads(line) for line in _complete_lines(path)] if path.exists() else []
