"""Where the progress of a training goes: metrics file, MLflow and console; and the figures drawn from it.

`metrics.jsonl` is written first and is complete; MLflow may be unreachable, and is synchronised from it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from seqmlm.domains.base import Domain
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.loop import Observer, StepReport
from seqmlm.engine.randomness import EVALUATION, rng
from seqmlm.engine.types import Encoding, Sequences
from seqmlm.errors import StateError
from seqmlm.tokenizers.base import Tokenizer
from seqmlm.tracking import TrackedRun

__all__ = ["METRICS", "Console", "MetricsFile", "Recorder", "SilentConsole", "StepReport", "read_metrics"]

METRICS = "metrics.jsonl"

# Messages for the events of the loop; "" prints nothing.
EVENTS = {
    "pace": "",
    "decay": "the learning rate decays from step {decay_start} to step {end}, the last one",
    "stopping": "stopping after step {step} (signal {signal}): saving",
    "resumed": "resuming from step {step} ({path})",
    "checkpoint_skipped": "checkpoint {path} is incomplete ({reason}); trying the previous one",
    "out_of_memory": "out of memory: {micro_tokens} tokens per pass instead of {before}; same batch",
    "bad_step": "step {step} skipped: loss {loss}, gradient norm {grad_norm} ({in_a_row} in a row)",
}


class Console(Protocol):
    """Receives messages and progress of a task; the CLI supplies one, library users may supply their own."""

    def message(self, text: str) -> None: ...
    def step(self, report: StepReport, total: float | None) -> None: ...


class SilentConsole:
    """Prints nothing."""

    def message(self, text: str) -> None:
        """Drop the text."""

    def step(self, report: StepReport, total: float | None) -> None:
        """Drop the report."""


def step_metrics(report: StepReport) -> dict[str, float]:
    """The values of a step under their MLflow names."""
    return {
        "train/loss": report.loss,
        "grad_norm": report.grad_norm,
        "learning_rate": report.learning_rate,
        "tokens_per_second": report.tokens_per_second,
        "fill": report.fill,
        "tokens": float(report.tokens),
    }


class MetricsFile:
    """`metrics.jsonl`: a line for each optimizer step and evaluation; survives kill -9 and is the truth.

    Args:
        path: appended to; made where missing. Use as a context manager.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a", encoding="utf-8")
        if path.is_file():
            self.cut_after(None)

    def cut_after(self, step: int | None) -> None:
        """Drop the lines of later steps (they are run again), if any, and a last line torn by a kill."""
        lines = _whole_lines(self.path)
        kept = lines if step is None else [line for line in lines if json.loads(line)["step"] <= step]
        temporary = self.path.with_suffix(".tmp")
        with _disk_errors(self.path):
            temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
            temporary.replace(self.path)
        self._file.close()
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one line; numbers that are not finite become null.

        Raises:
            StateError: the disk is full.
        """
        line = {"step": step, "time": int(time.time() * 1000), **values}
        safe = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
        with _disk_errors(self.path):
            self._file.write(json.dumps(safe) + "\n")
            self._file.flush()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Every line was flushed when it was written; what is left is one that found the disk full.
        with suppress(OSError):
            self._file.close()


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateError(f"cannot write {path}: {error.strerror}; free space, then --resume") from None


def _whole_lines(path: Path) -> list[str]:
    """Lines that are whole JSON; a line torn by a kill ends the file."""
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            json.loads(line)
        except json.JSONDecodeError:
            break
        lines.append(line)
    return lines


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a metrics file, in order."""
    return [json.loads(line) for line in _whole_lines(path)] if path.exists() else []


class Recorder(Observer):
    """Passes the loop's reports to the metrics file, MLflow and the console."""

    def __init__(
        self, metrics: MetricsFile, run: TrackedRun, console: Console, total: Callable[[StepReport], float]
    ) -> None:
        self.metrics, self.run, self.console, self.total = metrics, run, console, total
        self._first = True

    def on_step(self, report: StepReport) -> None:
        if self._first:
            # A resumed run that found no checkpoint starts from the first step.
            self.metrics.cut_after(report.step - 1)
            self._first = False
        values = step_metrics(report)
        extra = {"masked": report.masked, "epoch": report.epoch, "skipped": report.skipped}
        self.metrics.write(report.step, {**values, **extra, "seconds": report.seconds})
        self.run.log_metrics(report.step, values)
        self.console.step(report, self.total(report))

    def on_evaluation(self, step: int, values: Mapping[str, float]) -> None:
        self.metrics.write(step, values)
        self.run.log_metrics(step, values)
        bits, floor = values.get("eval/bits_per_unit"), values.get("eval/unigram_bits_per_unit")
        if bits is not None and floor is not None:
            self.console.message(f"step {step}: {bits:.3f} bits per unit (unigram {floor:.3f})")

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Do nothing: the checkpoint folder is its own record."""

    def on_event(self, kind: str, detail: Mapping[str, Any]) -> None:
        if kind == "resumed":
            self.metrics.cut_after(detail["step"])
        text = f"{kind.replace('_', ' ')}: {dict(detail)}"
        if kind in EVENTS:
            text = EVENTS[kind].format_map(detail)
        if text:
            self.console.message(text)
        self.run.set_tag(f"seqmlm.{kind}", json.dumps(detail, default=str))


def loss_plot(metrics: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw training loss and evaluation bits against steps into a PNG.

    Args:
        metrics: lines of metrics.jsonl.
        path: file to write.
        title: the run's name.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    losses = [(line["step"], line["train/loss"]) for line in metrics if line.get("train/loss") is not None]
    if losses:
        steps, values = np.array(losses).T
        left.plot(steps, values, color="#9db8d9", linewidth=0.8, label="each step")
        width = len(values) // 25
        if width > 1:
            smooth = np.convolve(values, np.ones(width) / width, mode="valid")
            left.plot(steps[width - 1 :], smooth, color="#1f4e8c", label=f"mean of {width} steps")
            left.legend(frameon=False)
    left.set(xlabel="optimizer step", ylabel="loss (nats per masked token)", title="training")
    key, floor = "eval/bits_per_unit", "eval/unigram_bits_per_unit"
    bits = [(line["step"], line[key], line[floor]) for line in metrics if line.get(key) is not None]
    if bits:
        steps, values, floors = np.array(bits).T
        right.plot(steps, values, "o-", color="#1f4e8c", markersize=3, label="model")
        right.axhline(floors[-1], linestyle="--", color="#b0562c", label="unigram")
        right.legend(frameon=False)
    right.set(xlabel="optimizer step", ylabel="bits per masked unit", title="validation")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def sample_predictions(
    conditionals: Conditionals,
    domain: Domain,
    tokenizer: Tokenizer,
    sequences: Sequences,
    indices: Sequence[int],
    seed: int,
) -> str:
    """A few validation sequences as text: true, masked, and with the model's predictions.

    The text is decoded from the ids, since prepared data keep no text. Must not be called for sensitive data.
    """
    blocks = []
    for index in indices:
        raw, encoding = _spelled(tokenizer, sequences[index])
        query = tokenizer.units.hide(encoding, 0.15, rng(seed, 0, index, EVALUATION))
        if query is None:
            continue
        answer = next(conditionals.ask([query], top=1))
        assert answer.top_ids is not None
        blocks.append(
            domain.show(tokenizer, raw, encoding, query.asked, answer.top_ids[:, 0].astype(np.int32))
        )
    return "\n\n".join(blocks) + "\n"


def _spelled(tokenizer: Tokenizer, encoding: Encoding) -> tuple[str, Encoding]:
    """Text of an encoding, with spaces where units were separate, and spans that point into that text."""
    pieces: list[str] = []
    spans = np.zeros((len(encoding), 2), dtype=np.int32)
    at, last_group, last_end = 0, None, None
    for position, (token, group) in enumerate(
        zip(encoding.ids.tolist(), encoding.groups.tolist(), strict=True)
    ):
        if group < 0:
            continue
        start, end = encoding.spans[position].tolist() if encoding.spans is not None else (0, 0)
        text = tokenizer.surface(token)
        if tokenizer.overlap > 1 and last_end is not None and start < last_end:  # shows its end again
            back = last_end - start
            spans[position] = at - back, at - back + len(text)
            pieces.append(text[back:])
            at, last_group, last_end = at - back + len(text), group, end
            continue
        if last_group is not None and group != last_group and start != last_end:
            pieces.append(" ")
            at += 1
        spans[position] = at, at + len(text)
        pieces.append(text)
        at, last_group, last_end = at + len(text), group, end
    return "".join(pieces), replace(encoding, spans=spans)
