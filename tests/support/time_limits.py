"""A clock that moves by itself, and the time after trainings with and without a limit."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from seqmlm.engine.loop import LoopResult
from seqmlm.tasks import deadline
from seqmlm.tasks.deadline import Deadline, Phase, TimeAfterTraining


class FakeTime:
    """Stands for the module `time`: each reading of the clock is `tick` seconds after the one before."""

    def __init__(self, tick: float = 1.0, processor: float = 1.0) -> None:
        self.now = float(int(time.monotonic()))  # whole seconds: sums and differences are exact
        self.tick, self.processor = tick, processor

    def monotonic(self) -> float:
        self.now += self.tick
        return self.now

    def process_time(self) -> float:
        """A share `processor` of the time on the clock."""
        return self.processor * self.now


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    clock = FakeTime()
    monkeypatch.setattr(deadline, "time", clock)
    return clock


def finished(*, steps: int = 1, tokens: int = 0, seconds: float = 1.0) -> LoopResult:
    """How a training of so many steps has ended."""
    return LoopResult(
        status="finished",
        steps=steps,
        resumed_from=None,
        tokens=tokens,
        loss=None,
        seconds=seconds,
        checkpoint=Path(),
        signal=None,
    )


def unlimited() -> TimeAfterTraining:
    """The time after a training without a limit."""
    return TimeAfterTraining(outcome=finished(), deadline=Deadline())


def endless() -> Phase:
    """A phase that no clock cuts."""
    return Phase("all", Deadline())
