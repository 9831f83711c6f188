"""Runs, metrics, artifacts and registered models in MLflow; nothing else in the package touches MLflow.

A tracker that is down costs a training one warning: `metrics.jsonl` and `tracking.json` in the run's folder
are the truth, and MLflow is brought up to them as soon as it answers again (during the run, at its end, on
resume, or by `Tracker.sync`).
"""

from __future__ import annotations

from seqmlm.tracking.connection import TrackerDown, public
from seqmlm.tracking.ledger import Ledger
from seqmlm.tracking.query import RunInfo
from seqmlm.tracking.run import TrackedRun
from seqmlm.tracking.tracker import Tracker

__all__ = ["Ledger", "RunInfo", "TrackedRun", "Tracker", "TrackerDown", "public"]
