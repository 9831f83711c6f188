"""Bring MLflow up to what a run's ledger says; each step may be repeated and then does nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seqmlm.tracking.ledger import METRICS, Ledger, Point, read_points
from seqmlm.tracking.remote import Remote


def open_run(remote: Remote, ledger: Ledger) -> str:
    """Create the run, or reopen it, or create it anew where it was deleted there; returns its id."""
    if ledger.run_id is not None and not remote.reopen(ledger.run_id):
        ledger.forget_sent()
    if ledger.run_id is None:
        ledger.run_id = remote.create_run(ledger.experiment, ledger.name, ledger.started, ledger.tags)
    ledger.status_sent = False
    remote.set_params(ledger.run_id, ledger.params)
    remote.set_tags(ledger.run_id, ledger.tags)
    return ledger.run_id


def push_entries(remote: Remote, ledger: Ledger) -> None:
    """Send the data sets, artifacts and models that MLflow does not have yet."""
    run_id = ledger.run_id
    assert run_id is not None
    for entry in ledger.datasets:
        if not entry["sent"]:
            remote.log_dataset(run_id, entry)
            entry["sent"] = True
    for entry in ledger.artifacts:
        if not entry["sent"]:
            # A file removed since then cannot be sent any more; that is not the tracker's failure.
            if Path(entry["path"]).exists():
                remote.log_artifact(run_id, entry["path"], entry["folder"])
            entry["sent"] = True
    for entry in ledger.models:
        if not entry["sent"]:
            _push_model(remote, run_id, entry)
            entry["sent"] = True


def _push_model(remote: Remote, run_id: str, entry: dict[str, Any]) -> None:
    if entry["model_id"] is not None:
        # The run went on after its model was registered: the same version, with other weights and numbers.
        remote.log_model_metrics(run_id, entry)
    elif remote.find_version(entry["name"], entry["version"]) is None and Path(entry["directory"]).is_dir():
        entry["model_id"] = remote.register(run_id, entry)


def push_metrics(remote: Remote, ledger: Ledger, path: Path) -> tuple[int, dict[str, tuple[int, float]]]:
    """Upload the points of a metrics.jsonl file that MLflow does not have.

    Returns:
        How many were uploaded, and the step and value that MLflow now has last of each metric.
    """
    assert ledger.run_id is not None
    last = remote.last_points(ledger.run_id)
    points = list(read_points(path, set(ledger.metric_keys) or None))
    if ledger.gaps:
        # Reading a long history back takes seconds, so only where that is needed.
        known = remote.history(ledger.run_id, {point.key for point in points})
        missing = [point for point in points if (point.step, point.value) not in known[point.key]]
    else:
        missing = _newer(points, last)
    remote.log_points(ledger.run_id, missing)
    ledger.gaps = False
    for point in missing:
        if point.step >= last.get(point.key, (-1, 0.0))[0]:
            last[point.key] = (point.step, point.value)
    return len(missing), last


def _newer(points: list[Point], last: dict[str, tuple[int, float]]) -> list[Point]:
    """What comes after the last point of each metric, of which a step may have several."""
    newer: dict[str, list[Point]] = {}
    for point in points:
        step, value = last.get(point.key, (-1, 0.0))
        if point.step == step and point.value == value:
            newer[point.key] = []
        elif point.step >= step:
            newer.setdefault(point.key, []).append(point)
    return [point for found in newer.values() for point in found]


def push_status(remote: Remote, ledger: Ledger) -> None:
    """End the run in MLflow as it ended here."""
    assert ledger.run_id is not None
    if ledger.status != "RUNNING" and not ledger.status_sent:
        remote.terminate(ledger.run_id, ledger.status, ledger.ended)
        ledger.status_sent = True


def push_all(remote: Remote, ledger: Ledger, directory: Path) -> int:
    """Everything at once, for a run that went on without the tracker; returns how many points went up."""
    open_run(remote, ledger)
    count, _ = push_metrics(remote, ledger, directory / METRICS)
    push_entries(remote, ledger)
    push_status(remote, ledger)
    ledger.complete = ledger.status != "RUNNING"
    return count
