"""`seqmlm runs`: list, show and compare runs, and upload missing data to MLflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from seqmlm.errors import UsageError
from seqmlm.evaluation.predictions import difference
from seqmlm.finetuning.predictions import PREDICTIONS, read_predictions
from seqmlm.tracking import RunInfo, Tracker
from seqmlm.workspace import Workspace

Warn = Callable[[str], None]
Better = Literal["lower", "higher"]

# Whether higher or lower is better, by a part of the metric's name; other metrics are not ranked.
_HIGHER = ("tokens_per_second", "fill", "accuracy", "auroc")
_LOWER = ("loss", "bits_per_unit", "perplexity")
# Properties of the data or the machine, not results of a run.
_NOT_JUDGED = ("unigram", "system/")
# Params that determine what an evaluation measures. If they differ, its figures are not comparable.
_YARDSTICK = ("domain", "tokenizer", "vocabulary_size", "data_fingerprint")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison of runs. Every list has one item per run; None if the run has no such value."""

    runs: list[RunInfo]
    params: dict[str, list[str | None]]
    """The params that differ, by name."""
    metrics: dict[str, list[float | None]]
    """The final values of metrics, by name."""
    best: dict[str, list[bool]]
    """Whether each run has the best value, by metric; no run if the metric is not ranked or all are equal."""
    notes: list[str]
    """Reasons why these figures may not be comparable."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "runs": [{"name": run.name, "run_id": run.run_id, "status": run.status} for run in self.runs],
            "params": self.params,
            "metrics": self.metrics,
            "best": {
                key: [run.name for run, good in zip(self.runs, marks, strict=True) if good]
                for key, marks in self.best.items()
                if any(marks)
            },
            "notes": self.notes,
        }


def list_runs(warn: Warn) -> list[RunInfo]:
    """All runs of the workspace, newest first. Runs whose process died are set to KILLED before."""
    tracker = Tracker(Workspace.locate(), warn=warn)
    tracker.mark_killed()
    return tracker.runs()


def show_run(reference: str, warn: Warn) -> dict[str, Any]:
    """The facts about a run, and its folder.

    Raises:
        StateError: there is no such run.
    """
    home = Workspace.locate()
    tracker = Tracker(home, warn=warn)
    tracker.mark_killed()
    run = tracker.find(reference)
    folder = _folder(home, run.name)
    return {**asdict(run), "folder": str(folder) if folder else None}


def compare_runs(references: Sequence[str], warn: Warn) -> Comparison:
    """Compare runs by names or ids. A run that is named twice is used once.

    Raises:
        UsageError: there are fewer than two runs.
        StateError: there is no such run.
    """
    return compare(_runs_to_compare(references, warn))


def compare_predictions(references: Sequence[str], metric: str, warn: Warn) -> dict[str, Any]:
    """The difference between two fine-tunings, first minus second, on their test data.

    Returns:
        The names of the runs, the metric, and the fields of `PairedDifference`.

    Raises:
        UsageError: there are not two runs, their test data differ, or the metric is unknown.
        StateError: there is no such run, or it has no predictions.
    """
    runs = _runs_to_compare(references, warn)
    if len(runs) != 2:
        raise UsageError(f"--metric compares the predictions of exactly two runs, not of {len(runs)}")
    home = Workspace.locate()
    folders = [home.runs / run.name for run in runs]
    first, second = map(read_predictions, folders)
    # Predictions are readable only by their owner if their ids may identify people.
    public = all((folder / PREDICTIONS).stat().st_mode & 0o044 for folder in folders)
    if (why := first.mismatch(second, ids=public)) is not None:
        raise UsageError(
            f"{runs[0].name} and {runs[1].name} cannot be compared: {why}; fine-tune both with the same "
            "labels and --test"
        )
    comparison = difference(
        first.kind,
        metric,
        first.truth,
        first.predicted,
        second.predicted,
        groups=first.groups,
        names=first.names,
    )
    return {"runs": [run.name for run in runs], "metric": metric, **comparison._asdict()}


def _runs_to_compare(references: Sequence[str], warn: Warn) -> list[RunInfo]:
    """The runs with these names or ids, each once.

    Raises:
        UsageError: there are fewer than two.
    """
    tracker = Tracker(Workspace.locate(), warn=warn)
    tracker.mark_killed()
    all_runs = tracker.runs()
    runs: list[RunInfo] = []
    for reference in references:
        run = tracker.find(reference, all_runs)
        if run not in runs:
            runs.append(run)
    if len(runs) < 2:
        raise UsageError("name at least two runs to compare; `seqmlm runs list` shows all runs")
    return runs


def compare(runs: list[RunInfo]) -> Comparison:
    """Compare runs by their params that differ and their final metrics."""
    params = {
        key: values
        for key, values in _side_by_side([run.params for run in runs]).items()
        if len({value or "" for value in values}) > 1
    }
    metrics = {
        key: values
        for key, values in _side_by_side([run.metrics for run in runs]).items()
        if not key.startswith("system/")
    }
    return Comparison(
        runs=runs,
        params=params,
        metrics=metrics,
        best={key: _best(key, values) for key, values in metrics.items()},
        notes=_notes(runs, params),
    )


def better(metric: str) -> Better | None:
    """Whether lower or higher values of a metric are better; None for metrics that are not ranked.

    >>> better("eval/loss"), better("tokens_per_second"), better("learning_rate")
    ('lower', 'higher', None)
    """
    if any(part in metric for part in _NOT_JUDGED):
        return None
    if any(part in metric for part in _HIGHER):
        return "higher"
    return "lower" if any(part in metric for part in _LOWER) else None


def sync_runs(warn: Warn) -> dict[str, int]:
    """Upload data that runs recorded while MLflow was unreachable; the number of points by run name."""
    return Tracker(Workspace.locate(), warn=warn).sync()


def _folder(workspace: Workspace, name: str) -> Path | None:
    folder = workspace.runs / name
    return folder if folder.is_dir() else None


def _side_by_side(mappings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    keys = sorted({key for mapping in mappings for key in mapping})
    return {key: [mapping.get(key) for mapping in mappings] for key in keys}


def _best(metric: str, values: Sequence[float | None]) -> list[bool]:
    distinct_values = {value for value in values if value is not None}
    direction = better(metric)
    if direction is None or len(distinct_values) < 2:
        return [False] * len(values)
    top = min(distinct_values) if direction == "lower" else max(distinct_values)
    return [value == top for value in values]


def _notes(runs: Sequence[RunInfo], params: Mapping[str, Sequence[str | None]]) -> list[str]:
    notes = []
    unlike = [key for key in _YARDSTICK if key in params]
    if unlike:
        differ = "differs" if len(unlike) == 1 else "differ"
        notes.append(f"{', '.join(unlike)} {differ}: the eval/ metrics are not comparable")
    unfinished = [f"{run.name} ({run.status})" for run in runs if run.status != "FINISHED"]
    if unfinished:
        notes.append(f"not finished: {', '.join(unfinished)}")
    return notes
