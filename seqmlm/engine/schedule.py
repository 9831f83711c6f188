"""Duration, speed and safety of training: settings of the loop, learning rate, end of training.

The learning rate is a pure function of the step, so that a resumed run has the same one. A time limit needs
two decisions that depend on the clock: when to end the warm-up, and when to start the decay. They are stored
in the checkpoint. Between them, the learning rate depends only on the step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from seqmlm.engine.types import Precision, Sharding
from seqmlm.errors import UsageError
from seqmlm.parsing import word_list

if TYPE_CHECKING:
    from seqmlm.engine.checkpoint import Progress

Kind = Literal["cosine", "linear", "wsd"]

DECAY_SHARE = 0.2  # fraction of the steps (wsd) or of the time (with a time limit) for the decay
_PROBE_SHARE = 0.01  # fraction of the time in which the speed is measured, before the warm-up is planned
_PROBE_FACTOR = 0.01  # the learning rate until then, as a fraction of its peak


def warmup_steps(warmup: float, total: int) -> int:
    """Number of warm-up steps, always fewer than `total`.

    Args:
        warmup: number of steps if at least 1, else a fraction of `total`.
        total: planned number of steps.
    """
    steps = int(warmup) if warmup >= 1 else round(warmup * total)
    return max(0, min(steps, total - 1))


def warmup_factor(step: int, steps: int) -> float:
    """Factor of a linear warm-up: (step + 1) / (steps + 1) before `steps`, then 1."""
    return min(1.0, (step + 1) / (steps + 1))


def decay(progress: float) -> float:
    """Factor of the decay after a constant learning rate: 1 - sqrt(progress), for a progress from 0 to 1.

    Haegele et al. (2024) found it to be the best such decay.
    """
    return 1.0 - math.sqrt(min(1.0, max(0.0, progress)))


def learning_rate_factor(step: int, total: int, *, kind: Kind, warmup: float) -> float:
    """The learning rate of the update after `step` completed updates, as a fraction of its peak.

    Args:
        step: number of completed updates, 0 to total - 1; from `total` on, the result is 0.
        total: planned number of updates.
        kind: "cosine" decays to 0 from the end of the warm-up (Loshchilov & Hutter 2017), "linear" in a
            straight line (Devlin et al. 2019). For "wsd", the factor stays at 1 and decays over the last
            fifth (Hu et al. 2024).
        warmup: number of warm-up steps if at least 1, else a fraction of `total`.

    Returns:
        A number from 0 to 1, above 0 for every step before `total`.

    >>> [round(learning_rate_factor(s, 4, kind="cosine", warmup=0), 3) for s in range(5)]
    [1.0, 0.854, 0.5, 0.146, 0.0]
    """
    if step >= total:
        return 0.0
    rising = warmup_steps(warmup, total)
    if step < rising:
        return warmup_factor(step, rising)
    if kind != "wsd":
        done = (step - rising) / (total - rising)
        return 1.0 - done if kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    falling = max(1, round(DECAY_SHARE * total))
    start = max(total - falling, rising)
    return decay((step - start) / (total - start))


@dataclass(kw_only=True)
class TimePlan:
    """Decisions under a time limit, stored in the checkpoint, so that a resumed run follows them.

    The clock is read only for the two decisions. Between them, the learning rate depends only on the step. A
    run that repeats steps after a crash therefore repeats them exactly.

    Args:
        seconds: training time in seconds: what was left of the limit when training began.
        limit: the time limit in seconds that the user set. A training that continues with another limit
            decides again.
        first: time of the first step in seconds. It is excluded from the speed, because of compilation and
            cold caches.
        expected: number of steps expected within the limit, once measured; it determines the warm-up.
        decay_start: step at which the decay starts, decided when a fifth of the time is left.
        end: step at which the decay reaches 0 and training ends, decided at the same time.
    """

    seconds: float
    limit: float
    first: float | None = None
    expected: int | None = None
    decay_start: int | None = None
    end: int | None = None

    def observe(self, step: int, elapsed: float) -> str | None:
        """Make the decisions that are due after `step` steps.

        Args:
            step: number of completed steps.
            elapsed: training time in seconds.

        Returns:
            "pace" or "decay" if a decision was made, else None.
        """
        if self.first is None:
            self.first = elapsed
        per_step = (elapsed - self.first) / (step - 1) if step > 1 else elapsed
        seconds_left = self.seconds - elapsed
        if self.decay_start is None and seconds_left <= DECAY_SHARE * self.seconds:
            self.decay_start, self.end = step, step + max(1, int(seconds_left / max(per_step, 1e-9)))
            return "decay"
        measured = elapsed >= _PROBE_SHARE * self.seconds and (step > 1 or elapsed >= 0.1 * self.seconds)
        if self.expected is None and measured:
            self.expected = max(step, int(step + seconds_left / max(per_step, 1e-9)))
            return "pace"
        return None

    def warmup_factor(self, step: int, warmup: float) -> float:
        """Factor of the warm-up without a known number of steps: planned from the measured speed, then 1."""
        if warmup >= 1:
            return warmup_factor(step, int(warmup))
        if warmup == 0:
            return 1.0
        if self.expected is None:
            return _PROBE_FACTOR if self.decay_start is None else 1.0
        return max(_PROBE_FACTOR, warmup_factor(step, warmup_steps(warmup, self.expected)))

    def decay_factor(self, step: int) -> float:
        """Factor of the decay: 1 until the decay starts, then decreasing to 0 at `end`."""
        if self.decay_start is None or self.end is None:
            return 1.0
        return decay((step - self.decay_start) / (self.end - self.decay_start))

    def is_over(self, step: int, elapsed: float) -> bool:
        """Whether the last planned step is completed, or the time limit is reached."""
        return elapsed >= self.seconds or (self.end is not None and step >= self.end)


# Settings that do not influence the results: a resumed run may change them without notice.
_OPERATIONAL = word_list(
    "max_seconds spent micro_tokens loader_workers evaluate_every checkpoint_every_steps "
    "checkpoint_every_seconds keep_last keep_every max_bad_steps"
)
_POSITIVE = word_list(
    "max_steps max_seconds epochs learning_rate epsilon clip rows_per_batch micro_tokens evaluate_every "
    "checkpoint_every_steps checkpoint_every_seconds keep_last keep_every max_bad_steps patience"
)
_CHOICES = {"schedule": Kind, "precision": Precision, "device": Literal["auto", "cpu"], "sharding": Sharding}


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """Settings of the training loop; at least one of `max_steps`, `max_seconds` and `epochs` is needed.

    Args:
        max_steps: number of optimizer steps after which training ends; None for no limit.
        max_seconds: training time in seconds, over all resumed runs; None for no limit. The learning rate
            decays over the last fifth of it. Without another limit, the learning rate is constant before
            that, whatever `schedule` is.
        spent: seconds of `max_seconds` that were used before a new training begins, for example to read the
            data.
        epochs: number of passes over the data after which training ends, fractions allowed; None for no
            limit.
        learning_rate: the highest learning rate, reached after the warm-up.
        weight_decay: weight decay of AdamW for matrices; norms, biases and embeddings have none.
        betas: decay rates of the two running averages in AdamW.
        epsilon: constant that AdamW adds to the denominator.
        warmup: length of the warm-up: a number of steps if at least 1, else a fraction of all steps.
        schedule: how the learning rate changes: "cosine" and "linear" decay from the warm-up on, "wsd" is
            constant and decays over the last fifth.
        clip: largest gradient norm; None never clips.
        rows_per_batch: number of packed rows in one optimizer step, over all processes.
        micro_tokens: largest number of tokens that are computed at once; None computes each row at once. It
            is lowered automatically if memory runs out.
        loader_workers: number of processes that prepare batches ahead; 0 prepares them in the main process.
        compile: whether to run `torch.compile` on the layers of the model.
        precision: precision of matrix products: "fp32", "bf16" or "auto". With "auto", it is bfloat16 on
            CUDA devices that support it, else float32.
        device: device of the training: "auto" uses the accelerator if there is one, "cpu" never does.
        sharding: "fsdp2" divides the model among the processes; "none" keeps a copy in each.
        evaluate_every: number of steps between evaluations; None never evaluates.
        checkpoint_every_steps: largest number of steps between checkpoints.
        checkpoint_every_seconds: largest time between checkpoints, in seconds.
        keep_last: number of newest checkpoints to keep.
        keep_every: checkpoints at multiples of this number of steps are kept permanently; None keeps none of
            them.
        max_bad_steps: number of steps in a row with a non-finite loss or gradient after which training
            fails.
        patience: number of evaluations in a row without a better result after which training ends; None for
            no limit.
        seed: seed of dropout.

    Raises:
        UsageError: no limit is set, or a setting is out of range.
    """

    max_steps: int | None = None
    max_seconds: float | None = None
    spent: float = 0.0
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
    patience: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_steps is None and self.max_seconds is None and self.epochs is None:
            raise UsageError("set max_steps, max_seconds or epochs: training needs a limit")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name} = {value} must be above 0")
        for name in ("weight_decay", "warmup", "loader_workers", "spent"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} = {getattr(self, name)} must not be negative")
        for name, choices in _CHOICES.items():
            values = get_args(choices)
            if getattr(self, name) not in values:
                raise UsageError(f"{name} = {getattr(self, name)!r} must be one of {', '.join(values)}")

    @property
    def training_seconds(self) -> float | None:
        """The part of `max_seconds` that is left for a new training, in seconds; None without a limit."""
        return None if self.max_seconds is None else self.max_seconds - self.spent

    def settings(self) -> dict[str, Any]:
        """The settings that influence the results, as plain values."""
        values = {name: value for name, value in asdict(self).items() if name not in _OPERATIONAL}
        settings: dict[str, Any] = json.loads(json.dumps(values))
        return settings


class StopRule:
    """When training ends, and the learning rate of every step until then.

    Args:
        config: `max_steps`, `epochs` and `max_seconds` end training, whichever is reached first.
        rows_per_epoch: number of packed rows in one pass over the data.
        decided: `time_plan` from the progress of an earlier run; ignored if the time limit has changed.
    """

    def __init__(self, config: LoopConfig, rows_per_epoch: int, decided: Mapping[str, Any] | None) -> None:
        self._config = config
        limits = [] if config.max_steps is None else [config.max_steps]
        if config.epochs is not None:
            limits.append(max(1, math.ceil(config.epochs * rows_per_epoch / config.rows_per_batch)))
        self.total_steps = min(limits, default=None)
        self._time: TimePlan | None = None
        if config.max_seconds is not None and config.training_seconds is not None:
            same = decided is not None and decided.get("limit") == config.max_seconds
            fresh_plan = TimePlan(seconds=config.training_seconds, limit=config.max_seconds)
            self._time = TimePlan(**decided) if decided and same else fresh_plan

    def learning_rate(self, step: int) -> float:
        """The learning rate of the update after `step` completed updates."""
        config, factor = self._config, 1.0
        if self.total_steps is not None:
            factor = learning_rate_factor(step, self.total_steps, kind=config.schedule, warmup=config.warmup)
        elif self._time is not None:
            factor = self._time.warmup_factor(step, config.warmup)
        if self._time is not None:
            factor *= self._time.decay_factor(step)
        return config.learning_rate * factor

    def observe(self, progress: Progress) -> str | None:
        """Make the decisions that are due and store them in `progress`.

        Returns:
            The kind of the decision, or None.
        """
        if self._time is None:
            return None
        decision = self._time.observe(progress.step, progress.seconds)
        progress.time_plan = asdict(self._time)
        return decision

    def is_over(self, progress: Progress) -> bool:
        """Whether a limit on steps, time or evaluations without improvement is reached."""
        if self.total_steps is not None and progress.step >= self.total_steps:
            return True
        if self._config.patience is not None and progress.stale >= self._config.patience:
            return True
        return self._time is not None and self._time.is_over(progress.step, progress.seconds)
