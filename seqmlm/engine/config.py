"""How long, how fast and how safely to train: the settings of the loop."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from seqmlm.engine.device import Precision
from seqmlm.engine.distributed import Sharding
from seqmlm.engine.schedule import Kind
from seqmlm.errors import UsageError

# Settings that change no number: a resumed run may differ in them without a word.
_OPERATIONAL = {
    "max_seconds",
    "micro_tokens",
    "loader_workers",
    "evaluate_every",
    "checkpoint_every_steps",
    "checkpoint_every_seconds",
    "keep_last",
    "keep_every",
    "max_bad_steps",
}


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """Settings of `Loop`; at least one of `max_steps`, `max_seconds` and `epochs` says when to end.

    Args:
        max_steps: optimizer steps.
        max_seconds: training time, over all resumptions. The learning rate falls over its last fifth; with no
            other limit it is constant before that, whatever `schedule` says.
        epochs: passes over the data, fractions allowed.
        learning_rate: its peak.
        weight_decay: of matrices; norms, biases and embeddings are not decayed.
        betas, epsilon: of AdamW.
        warmup: share of the steps when below 1, else steps.
        schedule: "cosine", or "wsd": constant, then falling over the last fifth.
        clip: largest gradient norm; None never clips.
        rows_per_batch: packed rows of one optimizer step, over all processes.
        micro_tokens: largest number of tokens computed at once, where a row is too much for the memory.
        loader_workers: processes that prepare batches ahead; 0 prepares them in this one.
        compile: run `torch.compile` on the layers of the model.
        precision: "auto" is bfloat16 on CUDA where the device has it, else float32.
        device: "auto" takes the machine's accelerator.
        sharding: "fsdp2" divides the model among the processes.
        evaluate_every: steps between evaluations; None never evaluates.
        checkpoint_every_steps, checkpoint_every_seconds: a checkpoint is written when either has passed.
        keep_last, keep_every: which checkpoints stay: the newest, and multiples of a step for ever.
        max_bad_steps: that many steps in a row with a loss or gradient that is not finite end the training.
        seed: of dropout.
    """

    max_steps: int | None = None
    max_seconds: float | None = None
    epochs: float | None = None
    learning_rate: float = 5e-4
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    epsilon: float = 1e-6
    warmup: float = 0.06
    schedule: Kind = "cosine"
    clip: float | None = 1.0
    rows_per_batch: int = 1
    micro_tokens: int | None = None
    loader_workers: int = 0
    compile: bool = False
    precision: Precision = "auto"
    device: Literal["auto", "cpu"] = "auto"
    sharding: Sharding = "none"
    evaluate_every: int | None = None
    checkpoint_every_steps: int = 50
    checkpoint_every_seconds: float = 60.0
    keep_last: int = 2
    keep_every: int | None = None
    max_bad_steps: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_steps is None and self.max_seconds is None and self.epochs is None:
            raise UsageError("set max_steps, max_seconds or epochs: nothing says when training ends")
        positive = (
            "max_steps",
            "max_seconds",
            "epochs",
            "learning_rate",
            "epsilon",
            "clip",
            "rows_per_batch",
            "micro_tokens",
            "evaluate_every",
            "checkpoint_every_steps",
            "checkpoint_every_seconds",
            "keep_last",
            "keep_every",
            "max_bad_steps",
        )
        for name in positive:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name} = {value} must be above 0")
        for name in ("weight_decay", "warmup", "loader_workers"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} = {getattr(self, name)} must not be negative")
        allowed = {
            "schedule": ("cosine", "wsd"),
            "precision": ("auto", "fp32", "bf16"),
            "device": ("auto", "cpu"),
            "sharding": ("none", "fsdp2"),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise UsageError(f"{name} = {getattr(self, name)!r} must be one of {', '.join(values)}")

    def settings(self) -> dict[str, Any]:
        """What changes the numbers of a training, as JSON gives it back."""
        values = {name: value for name, value in asdict(self).items() if name not in _OPERATIONAL}
        settings: dict[str, Any] = json.loads(json.dumps(values))
        return settings
