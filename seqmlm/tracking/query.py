"""Reading runs back: from MLflow, and from run folders where MLflow does not have them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from seqmlm.errors import StateError
from seqmlm.tracking.ledger import LEDGER, METRICS, Ledger, read_points
from seqmlm.tracking.remote import Remote

NAME_TAG = "seqmlm.name"


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """One run as it stands; times are milliseconds since 1970, metrics the last value of each."""

    name: str
    run_id: str | None
    experiment: str
    status: str
    started: int
    ended: int | None
    params: dict[str, str]
    tags: dict[str, str]
    metrics: dict[str, float]
    tracked: bool
    """Whether this came from MLflow; False: from the run's folder."""


def folders(runs: Path) -> Iterator[Path]:
    """Run folders of a workspace, in order of their names."""
    if runs.is_dir():
        yield from (path.parent for path in sorted(runs.glob(f"*/{LEDGER}")))


def from_folder(directory: Path) -> RunInfo:
    """A run as its folder knows it.

    Raises:
        StateError: the folder's ledger is missing or damaged.
    """
    ledger = Ledger.read(directory)
    metrics = {p.key: p.value for p in read_points(directory / METRICS, set(ledger.metric_keys) or None)}
    return RunInfo(
        name=ledger.name,
        run_id=ledger.run_id,
        experiment=ledger.experiment,
        status=ledger.status,
        started=ledger.started,
        ended=ledger.ended,
        params=ledger.params,
        tags=ledger.tags,
        metrics=metrics,
        tracked=False,
    )


def from_mlflow(remote: Remote) -> list[RunInfo]:
    """All runs of ours in MLflow, newest first."""
    client = remote.client
    experiments: dict[str, str] = {}
    token: str | None = None
    while True:
        page = client.search_experiments(max_results=1000, page_token=token)
        experiments |= {found.experiment_id: found.name for found in page}
        token = page.token
        if not token:
            break
    runs: list[RunInfo] = []
    while True:
        page = client.search_runs(
            list(experiments), filter_string=f"tags.`{NAME_TAG}` != ''", max_results=1000, page_token=token
        )
        runs += [_info(run, experiments[run.info.experiment_id]) for run in page]
        token = page.token
        if not token:
            return sorted(runs, key=lambda run: run.started, reverse=True)


def _info(run: object, experiment: str) -> RunInfo:
    info, data = run.info, run.data  # type: ignore[attr-defined]
    return RunInfo(
        name=info.run_name,
        run_id=info.run_id,
        experiment=experiment,
        status=info.status,
        started=info.start_time,
        ended=info.end_time,
        params=dict(data.params),
        tags={key: value for key, value in data.tags.items() if not key.startswith("mlflow.")},
        metrics=dict(data.metrics),
        tracked=True,
    )


def pick(runs: list[RunInfo], reference: str) -> RunInfo:
    """The run with this name or id (or the beginning of its id, at least 6 characters).

    Raises:
        StateError: none, or several.
    """
    found = [run for run in runs if reference in (run.name, run.run_id)]
    if not found and len(reference) >= 6:
        found = [run for run in runs if run.run_id and run.run_id.startswith(reference)]
    if len(found) > 1:
        ids = ", ".join(str(run.run_id) for run in found)
        raise StateError(f"{reference!r} names {len(found)} runs; give one of their ids: {ids}")
    if not found:
        raise StateError(f"no run {reference!r}{_near(reference, runs)}")
    return found[0]


def _near(reference: str, runs: list[RunInfo]) -> str:
    from seqmlm.errors import nearest

    return nearest(reference, (run.name for run in runs[:20])) if runs else "; there are no runs here yet"
