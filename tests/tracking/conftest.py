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
