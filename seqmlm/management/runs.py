"""`seqmlm runs`: list runs, show one, compare several, upload to MLflow what it is missing."""

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
# Params that decide what an evaluation measures: where they differ, its numbers are not comparable.
_YARDSTICK = ("domain", "tokenizer", "vocabulary_size", "data_fingerprint")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several runs; every list has one item per run, None where a run lacks it."""

    runs: list[RunInfo]
    params: dict[str, list[str | None]]
    """Only those that differ."""
    metrics: dict[str, list[float | None]]
    """Final values."""
    best: dict[str, list[bool]]
    """By metric: which runs have the best value; none if it is not ranked or all are equal."""
    notes: list[str]
    """Reasons why these numbers may not be comparable."""

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
    """All runs of the workspace, newest first; runs whose process died are first marked KILLED."""
    tracker = Tracker(Workspace.locate(), warn=warn)
    tracker.mark_killed()
    return tracker.runs()


def show_run(reference: str, warn: Warn) -> dict[str, Any]:
    """One run: everything the tracker knows, and its folder; StateError where there is none."""
    home = Workspace.locate()
    tracker = Tracker(home, warn=warn)
    tracker.mark_killed()
    run = tracker.find(reference)
    folder = _folder(home, run.name)
    return {**asdict(run), "folder": str(folder) if folder else None}


def compare_runs(references: Sequence[str], warn: Warn) -> Comparison:
    """Compare runs, by names or ids; what comes twice is taken once.

    Raises:
        UsageError: fewer than two runs.
        StateError: there is no such run.
    """
    return compare(_runs_to_compare(references, warn))


def compare_predictions(references: Sequence[str], metric: str, warn: Warn) -> dict[str, Any]:
    """By how much the first of two fine-tunings is better, on the test data of both; see `PairedDifference`.

    Raises:
        UsageError: not two runs, runs with other test data, or no such measure.
        StateError: there is no such run, or it keeps no predictions.
    """
    runs = _runs_to_compare(references, warn)
    if len(runs) != 2:
        raise UsageError(f"--metric compares the predictions of two runs, not of {len(runs)}")
    home = Workspace.locate()
    folders = [home.runs / run.name for run in runs]
    first, second = map(read_predictions, folders)
    # They are for their owner only where an id may be a person's.
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
    """At least two runs, none twice."""
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
    """Compare runs: params that differ, final metrics and the best of them."""
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
    """Whether lower or higher values of a metric are better; None where neither is.

    >>> better("eval/loss"), better("tokens_per_second"), better("learning_rate")
    ('lower', 'higher', None)
    """
    if any(part in metric for part in _NOT_JUDGED):
        return None
    if any(part in metric for part in _HIGHER):
        return "higher"
    return "lower" if any(part in metric for part in _LOWER) else None


def sync_runs(warn: Warn) -> dict[str, int]:
    """Upload to MLflow what runs recorded while it was unreachable; points by run name."""
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
