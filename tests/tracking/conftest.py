"""Trackers and runs to test on."""

from __future__ import annotations

import json
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
    """Do what a training does: write each step to metrics.jsonl, then log it."""
    with (run.directory / "metrics.jsonl").open("a", encoding="utf-8") as file:
        for step in steps:
            file.write(json.dumps({"step": step, key: 1 / step, "skipped": False}) + "\n")
            file.flush()
            run.log_metrics(step, {key: 1 / step})


@pytest.fixture
def steps() -> Callable[..., None]:
    return log_steps
