"""What training tells about itself: a report of every step, and of everything out of the ordinary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One optimizer step, over all processes.

    Args:
        step: its number, from 1.
        loss: nats per masked token (per unit of loss weight); not finite where `skipped` may say why.
        grad_norm: before clipping.
        learning_rate: used by this step.
        tokens: trained on since the start.
        masked: tokens predicted in this step.
        fill: share of the rows' budget that holds tokens.
        tokens_per_second: of this step.
        seconds: training time since the start, over all resumptions.
        epoch: of the step's last row, from 0.
        skipped: True where the numbers were not finite and the model was left as it was.
        bad_steps: skipped in a row up to here.
    """

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    masked: int
    fill: float
    tokens_per_second: float
    seconds: float
    epoch: int
    skipped: bool
    bad_steps: int


class Observer(Protocol):
    """Hears what happens in training; only the main process's is called.

    Kinds of `on_event` and what `detail` holds: "resumed" (step, path), "checkpoint_skipped" (path, reason),
    "settings_changed" (name -> [before, now]), "pace" and "decay" (the decisions of a time limit: expected,
    decay_start, end, seconds), "out_of_memory" (micro_tokens, before, reason), "bad_step" (step, loss,
    grad_norm, in_a_row, skipped), "stopping" (step, signal).
    """

    def on_step(self, report: StepReport) -> None: ...

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def on_checkpoint(self, step: int, path: Path) -> None: ...

    def on_event(self, kind: str, detail: Mapping[str, Any]) -> None: ...


class NullObserver:
    """Hears and says nothing; a base for observers that care for some calls only."""

    def on_step(self, report: StepReport) -> None:
        """Nothing."""

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Nothing."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Nothing."""

    def on_event(self, kind: str, detail: Mapping[str, Any]) -> None:
        """Nothing."""


@dataclass(frozen=True, kw_only=True)
class LoopResult:
    """How training ended.

    Args:
        status: "finished", or "killed" by `signal` after a completed step.
        steps: done since the start of training; `resumed_from` of them by earlier runs (None: by none).
        tokens: trained on since the start.
        loss: of the last good step, nats per masked token.
        seconds: training time since the start.
        checkpoint: the last one, which holds exactly this state.
    """

    status: Literal["finished", "killed"]
    steps: int
    resumed_from: int | None
    tokens: int
    loss: float | None
    seconds: float
    checkpoint: Path
    signal: int | None
