"""Receivers of a training's progress: the tracked run, which writes `metrics.jsonl`, and the console."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.loop import Observer, StepReport
from seqmlm.engine.randomness import EVALUATION, rng
from seqmlm.engine.reductions import TopIds
from seqmlm.engine.schedule import LoopConfig
from seqmlm.engine.types import Sequences
from seqmlm.errors import duration_text, printable
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.tasks.deadline import AFTERWARDS
from seqmlm.tracking import TrackedRun

__all__ = ["Console", "Recorder", "SilentConsole", "StepReport", "complete_console"]

# Messages for the events of the loop. "" prints nothing.
EVENTS = {
    "pace": "",
    "decay": "the learning rate decays from step {decay_start} to the last step, {end}",
    "stopping": "stopping after step {step} (signal {signal}): saving",
    "resumed": "resuming from step {step} ({path})",
    "checkpoint_skipped": "checkpoint {path} is incomplete ({reason}); trying the previous one",
    "out_of_memory": "out of memory: {micro_tokens} tokens per pass instead of {before}; same batch",
    "bad_step": "step {step} skipped: loss {loss}, gradient norm {grad_norm} ({in_a_row} in a row)",
}


SPEED_STEPS, SPEED_SECONDS = 3, 1.0
"""The speed of a training is known after this many steps and this many seconds."""


class Console(Protocol):
    """Receives messages and progress of a task.

    The CLI supplies a console, and library users may supply another. A user's console may lack some members:
    tasks add them with `complete_console`.

    Attributes:
        began: value of `time.monotonic` at which a time limit starts. None starts it at the call of the task.
    """

    began: float | None = None

    def message(self, text: str) -> None:
        """Show a sentence."""
        return

    def step(self, report: StepReport, total: float | None) -> None:
        """Show a finished step. `total` is the expected number of steps of the training, if known."""
        return

    def phase(self, name: str, share: float) -> None:
        """Show the completed share of a part of the run other than training steps."""
        return

    def calibration(self, mode: str, share: float, rows: int) -> None:
        """Show the progress of a calibration: its mode, the completed share and the rows so far."""
        return


class SilentConsole(Console):
    """A console that prints nothing."""


class _CompletedConsole(SilentConsole):
    """The members that a console has. Missing members do nothing."""

    def __init__(self, console: object) -> None:
        for member in ("began", "message", "step", "phase", "calibration"):
            if hasattr(console, member):
                setattr(self, member, getattr(console, member))


def complete_console(console: object) -> Console:
    """A console with all members of `Console`. Members that `console` lacks do nothing."""
    return _CompletedConsole(console)


class Recorder(Observer):
    """Passes the reports of the loop to the tracked run and the console. Checkpoints are not passed on.

    Args:
        loop: settings of the loop, with the limits of the training.
        epoch: number of tokens of an epoch. None if an epoch is a step.
    """

    def __init__(self, run: TrackedRun, console: Console, loop: LoopConfig, epoch: int | None) -> None:
        self.run, self.console, self.loop, self.epoch = run, console, loop, epoch
        self._first: StepReport | None = None
        self._is_expected = loop.max_seconds is not None  # with a time limit, the user knows the duration

    def on_step(self, report: StepReport) -> None:
        if self._first is None:
            # A resumed run without a checkpoint starts from the first step.
            self.run.cut_metrics(report.step - 1)
            self._first = report
        same = ("grad_norm", "learning_rate", "tokens_per_second", "fill", "tokens")
        values = {"train/loss": report.loss, **{name: float(getattr(report, name)) for name in same}}
        details = {name: getattr(report, name) for name in ("masked", "epoch", "skipped", "seconds")}
        self.run.log_metrics(report.step, values, details)
        epoch = 1.0 if self.epoch is None else self.epoch * report.step / report.tokens
        total = expected_steps(self.loop, step=report.seconds / report.step, epoch=epoch)
        self.console.step(report, max(report.step, total))
        if not self._is_expected:
            self._expect(report, self._first, total)

    def _expect(self, report: StepReport, first: StepReport, total: float) -> None:
        """Show how long a training without a time limit takes, once its speed is known."""
        steps, seconds = report.step - first.step, report.seconds - first.seconds
        if steps >= SPEED_STEPS and seconds >= SPEED_SECONDS:
            self._is_expected = True
            seconds_left = (1 + AFTERWARDS) * (total - report.step) * seconds / steps
            self.console.message(
                f"{total:,.0f} steps, evaluation, counts and calibration: estimated time "
                f"{duration_text(seconds_left)} (--max-time sets a limit)"
            )

    def on_evaluation(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log_metrics(step, values)
        bits, floor = values.get("eval/bits_per_unit"), values.get("eval/unigram_bits_per_unit")
        if bits is not None and floor is not None:
            self.console.message(f"step {step}: {bits:.3f} bits per unit (unigram {floor:.3f})")

    def on_event(self, kind: str, detail: Mapping[str, Any]) -> None:
        if kind == "resumed":
            self.run.cut_metrics(detail["step"])
        text = f"{kind.replace('_', ' ')}: {dict(detail)}"
        if kind in EVENTS:
            text = EVENTS[kind].format_map(detail)
        if text:
            self.console.message(text)
        self.run.set_tag(f"seqmlm.{kind}", json.dumps(detail, default=str))


def expected_steps(loop: LoopConfig, *, step: float, epoch: float) -> float:
    """Estimate the optimizer steps until the first limit.

    Args:
        loop: settings of the loop, with the limits.
        step: seconds per step.
        epoch: steps per epoch.
    """
    epochs, seconds = loop.epochs, loop.training_seconds
    limits = (loop.max_steps, epochs and epochs * epoch, seconds and seconds / max(step, 1e-9))
    return max(1.0, min(float(limit) for limit in limits if limit is not None))


def sample_predictions(
    conditionals: Conditionals, model: LoadedModel, sequences: Sequences, indices: Sequence[int]
) -> str:
    """Validation sequences as text: the original, the masked version, and the model's predictions.

    The text is decoded from the ids, because prepared data contain no text.
    """
    blocks, tokenizer = [], model.tokenizer
    for index in indices:
        encoding = sequences[index]
        raw, spans = tokenizer.spelling.respelled(encoding)
        query = tokenizer.units.evaluation_query(encoding, 0.15, rng(model.card.seed, 0, index, EVALUATION))
        if query is None:
            continue
        answer = next(conditionals.ask([query], [TopIds(1)]))
        best = answer.values[TopIds.name][:, 0].astype(np.int32)
        text = model.domain.text.show(tokenizer, raw, replace(encoding, spans=spans), query.asked, best)
        blocks.append(printable(text, lines=True))
    return "\n\n".join(blocks) + "\n"
