"""The learning rate as a pure function of the step, and the decisions that a time limit adds to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["cosine", "wsd"]

DECAY_SHARE = 0.2  # of the steps (wsd) or of the time (a time limit)
_PROBE_SHARE = 0.01  # of the time: the speed is measured over this long before the warm-up is laid out
_PROBE_FACTOR = 0.01  # the learning rate until then, as a share of its peak


def warmup_steps(warmup: float, total: int) -> int:
    """Steps of warm-up: `warmup` itself from 1 on, else this share of `total`; never all of `total`."""
    wanted = int(warmup) if warmup >= 1 else round(warmup * total)
    return max(0, min(wanted, total - 1))


def warm(step: int, steps: int) -> float:
    """Linear warm-up: (step + 1) / (steps + 1) before `steps`, then 1."""
    return min(1.0, (step + 1) / (steps + 1))


def decay(progress: float) -> float:
    """1 - sqrt(progress): the decay that suits a constant learning rate best (Haegele et al. 2024)."""
    return 1.0 - math.sqrt(min(1.0, max(0.0, progress)))


def factor(step: int, total: int, *, kind: Kind, warmup: float) -> float:
    """Share of the peak learning rate used by the update that follows `step` completed ones.

    Args:
        step: 0 .. total - 1; from `total` on the factor is 0.
        total: planned updates.
        kind: "cosine" falls from the end of the warm-up to 0 (Loshchilov & Hutter 2017); "wsd" stays at 1
            and falls over the last fifth (Hu et al. 2024).
        warmup: share of `total` when below 1, else steps.

    Returns:
        A number within 0..1, above 0 for every step before `total`.

    >>> [round(factor(s, 4, kind="cosine", warmup=0), 3) for s in range(5)]
    [1.0, 0.854, 0.5, 0.146, 0.0]
    """
    if step >= total:
        return 0.0
    rising = warmup_steps(warmup, total)
    if step < rising:
        return warm(step, rising)
    if kind == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * (step - rising) / (total - rising)))
    falling = max(1, round(DECAY_SHARE * total))
    start = max(total - falling, rising)
    return decay((step - start) / (total - start))


@dataclass(kw_only=True)
class TimePlan:
    """What a time limit has decided so far; kept in the checkpoint, so that a resumed run follows it.

    The clock is read only to take the two decisions. Between them the learning rate depends on the step
    alone, so a run that repeats steps after a kill repeats them exactly.

    Args:
        seconds: the limit.
        first: seconds until the first step was done (compilation and cold caches: left out of the speed).
        expected: steps that the whole limit seemed good for, once measured; lays out the warm-up.
        decay_start: step from which the learning rate falls, decided when a fifth of the time was left.
        end: step at which it reaches 0 and training ends, decided then too.
    """

    seconds: float
    first: float | None = None
    expected: int | None = None
    decay_start: int | None = None
    end: int | None = None

    def observe(self, step: int, elapsed: float) -> str | None:
        """Take the decisions due after `step` steps; returns "pace" or "decay" when one was taken."""
        if self.first is None:
            self.first = elapsed
        per_step = (elapsed - self.first) / (step - 1) if step > 1 else elapsed
        left = self.seconds - elapsed
        if self.decay_start is None and left <= DECAY_SHARE * self.seconds:
            self.decay_start, self.end = step, step + max(1, int(left / max(per_step, 1e-9)))
            return "decay"
        measured = elapsed >= _PROBE_SHARE * self.seconds and (step > 1 or elapsed >= 0.1 * self.seconds)
        if self.expected is None and measured:
            self.expected = max(step, int(step + left / max(per_step, 1e-9)))
            return "pace"
        return None

    def warm_factor(self, step: int, warmup: float) -> float:
        """Warm-up where no number of steps is given: laid out from the measured speed, then constant."""
        if warmup >= 1:
            return warm(step, int(warmup))
        if warmup == 0:
            return 1.0
        if self.expected is None:
            return _PROBE_FACTOR if self.decay_start is None else 1.0
        return max(_PROBE_FACTOR, warm(step, warmup_steps(warmup, self.expected)))

    def decay_factor(self, step: int) -> float:
        """1 until the decay starts, then down to 0 at `end`."""
        if self.decay_start is None or self.end is None:
            return 1.0
        return decay((step - self.decay_start) / (self.end - self.decay_start))

    def over(self, step: int, elapsed: float) -> bool:
        """Whether the last step of the plan is done, or the time is up."""
        return elapsed >= self.seconds or (self.end is not None and step >= self.end)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TimePlan:
        return cls(**values)
