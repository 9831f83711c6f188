"""Runs, metrics, artifacts and registered models in MLflow; nothing else in the package touches MLflow.

    push.py    what a run's folder holds, and the idempotent `push` that sends it to MLflow
    run.py     a run while it is tracked, and the tracker that starts, resumes, synchronises and lists runs
    store.py   the connection to MLflow and the calls that are made to it

A run's folder is complete in itself. MLflow is a copy that may be late: an unreachable tracking server costs
a training one warning, and MLflow is synchronised once it is reachable (during the run, at its end, when it
is resumed, or by `Tracker.sync`).
"""

from __future__ import annotations

from seqmlm.tracking.push import LEDGER, METRICS, Ledger, MetricsFile, read_metrics
from seqmlm.tracking.run import MAX_PARAMS, TrackedRun, Tracker
from seqmlm.tracking.store import DESCRIPTION, RunInfo, TrackerDown, decimal, public

__all__ = [
    "DESCRIPTION",
    "LEDGER",
    "MAX_PARAMS",
    "METRICS",
    "Ledger",
    "MetricsFile",
    "RunInfo",
    "TrackedRun",
    "Tracker",
    "TrackerDown",
    "decimal",
    "public",
    "read_metrics",
]
