"""`seqmlm evaluate` for predictions: measures of a fine-tuned model, from stored predictions and truth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqmlm.data.counts import SMALLEST, redacted
from seqmlm.data.examples import LabelSource, examples
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.rows import read_rows, required
from seqmlm.data.tags import scheme_of
from seqmlm.errors import DataError, UsageError, number_of
from seqmlm.evaluation.predictions import PRIMARY, measures
from seqmlm.finetuning.predictions import TRUTH, Predictions, is_predictions_file, read_predictions
from seqmlm.parsing import parse_json
from seqmlm.reports.page import Page
from seqmlm.scoring.evaluate import EvaluateConfig
from seqmlm.scoring.labels import Columns
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.sinks import unescaped
from seqmlm.training.page import date

if TYPE_CHECKING:
    from seqmlm.engine.labels import Kind

_OF_SCORES = ("labels", "baseline", "prevalence", "positive", "negative")
_MOST_CLASSES, _MISTAKES = 12, 50  # of a page


def are_predictions(config: EvaluateConfig) -> bool:
    """Whether the rows to evaluate are predictions, not scores."""
    path = config.paths[0]
    if path == "-" or is_predictions_file(Path(path)):
        return path != "-"
    _, row = next(read_rows(path), (0, {}))
    return "prediction" in row and config.columns.score not in row


def evaluate_predictions(config: EvaluateConfig) -> dict[str, Any]:
    """The measures of predictions, with 95 % intervals over records, or over the groups of `--group`.

    Returns:
        `kind`, `primary`, counts, measures by name and their `intervals`. With `report`, a page has them too.

    Raises:
        UsageError: a setting is for scores, or the report is the same file as an input.
        DataError: a row cannot be read, a truth is missing or is not a class of the model, or sensitive data
            have fewer than 11 groups.
    """
    if wrong := next((name for name in _OF_SCORES if getattr(config, name) is not None), None):
        raise UsageError(f"--{wrong} is for scores; predictions have their truth in a column (--label-field)")
    check_outputs({"--report": config.report}, inputs=config.paths)
    stored = next((path for path in map(Path, config.paths) if is_predictions_file(path)), None)
    if stored and (config.columns != Columns() or len(config.paths) > 1):
        raise UsageError(f"{stored} already contains its truth and groups: omit columns and other files")
    predictions = read_predictions(stored) if stored else _row_predictions(config)
    counts = {"items": len(predictions.ids), "groups": len(set(predictions.groups))}
    if config.sensitive and counts["groups"] < SMALLEST:
        raise DataError(f"fewer than {SMALLEST} groups of sensitive data", remedy="evaluate on more records")
    kind, names, _, groups, truth, predicted = predictions
    options: dict[str, Any] = {"seed": config.seed, "draws": config.draws}
    estimates = measures(kind, truth, predicted, groups=groups, names=names, **options)
    figures = {
        "kind": kind,
        "primary": PRIMARY[kind],
        **(redacted(counts) if config.sensitive else counts),
        **{name: estimate.value for name, estimate in estimates.items()},
        "intervals": {name: [estimate.low, estimate.high] for name, estimate in estimates.items()},
    }
    if config.report is not None:  # it names records, as the predictions do
        modes = [path.stat().st_mode for path in map(Path, config.paths) if path.is_file()]
        private = config.sensitive or not all(mode & 0o044 for mode in modes)
        _predictions_page(predictions, figures, sensitive=private).write(config.report)
    return figures


def _predictions_page(predictions: Predictions, figures: Mapping[str, Any], *, sensitive: bool) -> Page:
    """The page with measures, a confusion table and the worst mistakes; for sensitive data only measures."""
    items, name = number_of(figures["items"], "prediction"), figures["primary"]
    lead = f"{name} is not defined for {items}, because all true labels or all predictions are equal."
    if name in figures:
        low, high = figures["intervals"][name]
        between = "" if math.isnan(low) else f" (95 %: {low:.3f} to {high:.3f})"
        lead = f"{name} {figures[name]:.3f}{between}, {items}."
    page = Page("Predictions against the truth", lead, sensitive=sensitive)
    page.head(date())
    intervals = [(measure, figures[measure], *bounds) for measure, bounds in figures["intervals"].items()]
    page.table("Measures", ("measure", "value", "95 % low", "95 % high"), intervals)
    if sensitive or predictions.kind in ("entities", "multilabel"):
        return page
    kind, names, ids, _, truth, predicted = predictions
    if kind == "value":
        errors = np.abs(np.asarray(predicted) - truth).reshape(len(ids), -1).max(axis=1)
        worst = np.argsort(-errors, kind="stable")[:_MISTAKES].tolist()
        rows = [(ids[n], _number_or_text(truth[n]), _number_or_text(predicted[n])) for n in worst]
        page.table("Largest errors", ("id", "truth", "prediction"), rows)
        return page
    predicted_classes = predicted.argmax(axis=1)
    if len(names) <= _MOST_CLASSES:
        confusion = np.zeros((len(names), len(names)), dtype=np.int64)
        np.add.at(confusion, (truth, predicted_classes), 1)
        counts_of = zip(names, confusion.tolist(), strict=True)
        cells: list[list[Any]] = [[name, *counts, sum(counts)] for name, counts in counts_of]
        page.table("Confusion table", ("truth \\ prediction", *names, "all"), cells)
    probability = predicted.max(axis=1)
    wrong = np.flatnonzero(predicted_classes != truth)
    surest = wrong[np.argsort(-probability[wrong], kind="stable")][:_MISTAKES].tolist()
    if surest and kind == "class":  # the position of a tag is not stored
        labels = [(names[truth[n]], names[predicted_classes[n]]) for n in surest]
        mistakes = [(ids[n], *pair, float(probability[n])) for n, pair in zip(surest, labels, strict=True)]
        page.table("Surest mistakes", ("id", "truth", "prediction", "probability"), mistakes)
    return page


def _number_or_text(label: Any) -> Any:
    """A single number, or several numbers as text."""
    numbers = np.ravel(label).tolist()
    return numbers[0] if len(numbers) == 1 else ", ".join(f"{number:.4g}" for number in numbers)


def _row_predictions(config: EvaluateConfig) -> Predictions:
    """The predictions in rows from `seqmlm predict`, each with its truth."""
    records = list(_records(config))
    if not records:
        raise DataError("no predictions", source=config.paths[0], remedy="write them with seqmlm predict")
    kind = _label_kind(records[0])
    rows, ids = [record.meta for record in records], [record.id for record in records]
    # A truth may be written in the same ways as a label for training.
    source = LabelSource(columns=(TRUTH,), numeric=kind == "value")
    labelled = examples(records, Problems(sensitive=config.sensitive), source)
    labels: list[Any] = [example.label for example in labelled]
    column = config.columns.group or ("group" if "group" in rows[0] else "id")
    groups = [str(required(record.meta, column, record.source, record.line)) for record in records]
    first = rows[0]["prediction" if kind == "value" else "p"]
    names = tuple(first) if isinstance(first, Mapping) else (TRUTH,)
    label_tuples = [(label,) if isinstance(label, str) else label for label in labels]
    for record, label_tuple in zip(records, label_tuples, strict=True):
        if fault := _row_fault(kind, names, record.meta, label_tuple):
            remedy = "correct it, or leave the row out"
            raise DataError(fault, source=record.source, line=record.line, remedy=remedy)
    if kind == "entities":
        origins = [
            (record.source, record.id, *map(record.meta.get, ("source", "line"))) for record in records
        ]
        sequences = [[*units] for _, units in groupby(range(len(ids)), key=origins.__getitem__)]
        ids, groups = ([texts[units[0]] for units in sequences] for texts in (ids, groups))
        predicted = [row["prediction"] for row in rows]
        tags = ([[column[unit] for unit in units] for units in sequences] for column in (labels, predicted))
        return Predictions(kind, names, ids, groups, *tags)
    p = np.array([_predicted_numbers(kind, names, row) for row in rows], np.float64)
    if kind == "value":
        return Predictions(kind, names, ids, groups, np.array(label_tuples, np.float64), p)
    hot = np.array([[name in labels for name in names] for labels in label_tuples], np.int64)
    return Predictions(kind, names, ids, groups, hot if kind == "multilabel" else hot.argmax(axis=1), p)


def _row_fault(kind: Kind, names: Sequence[str], row: Mapping[str, Any], truth: Any) -> str | None:
    """The fault of a row in words; None for a row without a fault."""
    if not isinstance(truth, tuple):
        return "a true label that is neither a class nor a number"
    if kind == "value" and len(truth) != len(names):
        return "a true label with a different number of values than the prediction"
    if kind != "value" and not {*truth} <= {*names}:
        return "a true label that is not a class of these predictions"
    if kind not in ("value", "multilabel") and len(truth) != 1:
        return "several true classes, or none, for a prediction of one class"
    if kind == "entities":
        return None if row.get("prediction") in names else "a predicted tag that the first row does not list"
    numbers = _predicted_numbers(kind, names, row)
    good = len(numbers) == len(names) and np.isfinite(numbers).all()
    return None if good else "a prediction without numbers"


def _predicted_numbers(kind: Kind, names: Sequence[str], row: Mapping[str, Any]) -> list[float]:
    """The predicted numbers of a row; missing numbers are NaN."""
    p = row.get("prediction" if kind == "value" else "p")
    probabilities = [p.get(name) for name in names] if isinstance(p, Mapping) else [p]
    try:
        return [math.nan if probability is None else float(probability) for probability in probabilities]
    except (TypeError, ValueError):
        return [math.nan]


def _label_kind(record: Record) -> Kind:
    """The kind of predictions, determined from their first row."""
    parts, p = record.meta.get("start") not in (None, ""), record.meta.get("p")
    prediction = required(record.meta, "prediction", record.source, record.line)
    if not isinstance(p, Mapping):
        if not parts:
            return "value"
        remedy = "predict with --level unit: a row for each unit"
        raise DataError(
            "rows of entities cannot be evaluated", source=record.source, line=record.line, remedy=remedy
        )
    if parts:
        return "entities" if scheme_of(p) is not None else "tags"
    return "multilabel" if isinstance(prediction, list) else "class"


def _records(config: EvaluateConfig) -> Iterator[Record]:
    """Each row as a record whose fields are its columns and its truth."""
    column = config.columns.label
    for path in config.paths:
        for line, cells in read_rows(path):
            row = {name: _parsed_cell(value) for name, value in cells.items()}
            named = TRUTH if column == Columns.label and column not in row else column
            if named not in row:
                remedy = "write it with seqmlm predict --truth COLUMN, or name it with --label-field NAME"
                reason = "the predictions have no truth"
                raise DataError(reason, source=path, line=line, field=named, remedy=remedy)
            truth = required(row, named, path, line)
            name = str(required(row, "id", path, line))
            yield Record(id=name, raw="", source=path, line=line, meta={**row, TRUTH: truth})


def _parsed_cell(value: Any) -> Any:
    """The value of a cell before it was written to a table; lists and mappings are JSON there."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        with suppress(ValueError):
            return parse_json(value)
    return unescaped(value) if isinstance(value, str) else value
