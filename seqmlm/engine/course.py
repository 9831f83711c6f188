"""When training ends, and which learning rate each step has until then."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from seqmlm.engine import schedule
from seqmlm.engine.config import LoopConfig
from seqmlm.engine.progress import Progress
from seqmlm.engine.schedule import TimePlan


class Course:
    """The way from the first step to the last one.

    Args:
        config: `max_steps`, `epochs` and `max_seconds` end training, whichever is reached first.
        rows_per_epoch: packed rows of one pass over the data.
        decided: `time_plan` of an earlier run's progress; dropped when the time limit is another one.
    """

    def __init__(self, config: LoopConfig, rows_per_epoch: int, decided: Mapping[str, Any] | None) -> None:
        self._config = config
        self.total_steps = _total_steps(config, rows_per_epoch)
        self._time: TimePlan | None = None
        if config.max_seconds is not None:
            same = decided is not None and decided["seconds"] == config.max_seconds
            self._time = (
                TimePlan.from_dict(decided) if decided and same else TimePlan(seconds=config.max_seconds)
            )

    def learning_rate(self, step: int) -> float:
        """That of the update which follows `step` completed ones."""
        config, factor = self._config, 1.0
        if self.total_steps is not None:
            factor = schedule.factor(step, self.total_steps, kind=config.schedule, warmup=config.warmup)
        elif self._time is not None:
            factor = self._time.warm_factor(step, config.warmup)
        if self._time is not None:
            factor *= self._time.decay_factor(step)
        return config.learning_rate * factor

    def observe(self, progress: Progress) -> str | None:
        """Take the decisions that are due, note them in `progress`; returns the kind of event, if any."""
        if self._time is None:
            return None
        decision = self._time.observe(progress.step, progress.seconds)
        progress.time_plan = self._time.to_dict()
        return decision

    def is_over(self, progress: Progress) -> bool:
        if self.total_steps is not None and progress.step >= self.total_steps:
            return True
        return self._time is not None and self._time.over(progress.step, progress.seconds)


def _total_steps(config: LoopConfig, rows_per_epoch: int) -> int | None:
    limits = [] if config.max_steps is None else [config.max_steps]
    if config.epochs is not None:
        limits.append(max(1, math.ceil(config.epochs * rows_per_epoch / config.rows_per_batch)))
    return min(limits, default=None)
