"""What happens to tracked runs: the steps of a training, and a death without a word."""

from __future__ import annotations

from seqmlm.tracking.run import TrackedRun


def steps(run: TrackedRun, numbers: range, key: str = "train/loss") -> None:
    """Do what a training does with its steps; after a resume they may be some of those before."""
    run.cut_metrics(numbers[0] - 1)
    for step in numbers:
        run.log_metrics(step, {key: 1 / step}, {"skipped": False})


def die(run: TrackedRun) -> None:
    """Leave a run as kill -9 does: nothing more is sent, the lock is free, the ledger says RUNNING."""
    run._stop.set()
    if run._thread is not None:
        run._thread.join()
    run._lock.release()
    run._ledger.status = "KILLED"  # of the object alone: an end of it would do nothing
