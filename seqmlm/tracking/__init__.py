"""Runs, metrics, artifacts and registered models in MLflow. No other package uses MLflow for these.

    push.py    the files of a run's folder, and `push`, which sends them to MLflow and is safe to repeat
    run.py     a run while it is tracked, and the tracker that starts, resumes, synchronises and lists runs
    store.py   the connection to MLflow, and all calls to it

A run's folder is complete. MLflow is a copy that can be late. If the tracking server is unreachable, a
training prints one warning and continues. MLflow is synchronised once it is reachable: during the run, at its
end, when it is resumed, or by `Tracker.sync`.
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
