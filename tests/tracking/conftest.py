"""Trackers and runs to test on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seqmlm.tracking import Tracker
from seqmlm.tracking.run import TrackedRun
from seqmlm.workspace import Workspace


@pytest.fixture
def home(tracked_workspace: Path) -> Workspace:
    """A workspace whose MLflow database is there and empty."""
    return Workspace.locate()


@pytest.fixture
def warnings_given() -> list[str]:
    """What a tracker warned of."""
    return []


@pytest.fixture
def tracker(home: Workspace, warnings_given: list[str]) -> Tracker:
    return Tracker(home, warn=warnings_given.append)


@pytest.fixture
def start(tracker: Tracker) -> Callable[..., TrackedRun]:
    """Start a run `r`, with whatever else is asked."""

    def begin(name: str = "r", **options: Any) -> TrackedRun:
        return tracker.start(name, **{"experiment": "test", "params": {}, **options})

    return begin


def log_steps(run: TrackedRun, steps: range, key: str = "train/loss") -> None:
    """Do what a training does with its steps; after a resume they may be some of those before."""
    run.cut_metrics(steps[0] - 1)
    for step in steps:
        run.log_metrics(step, {key: 1 / step}, {"skipped": False})


@pytest.fixture
def steps() -> Callable[..., None]:
    return log_steps


def kill(run: TrackedRun) -> None:
    """Leave a run as kill -9 does: nothing more is sent, the lock is free, the ledger says RUNNING."""
    run._stop.set()
    if run._thread is not None:
        run._thread.join()
    run._lock.release()
    run._ledger.status = "KILLED"  # of the object alone: an end of it would do nothing


@pytest.fixture
def die() -> Callable[[TrackedRun], None]:
    return kill
