"""`seqmlm evaluate` of predictions: the figures of a fine-tuning, from stored predictions and their truth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqmlm import __version__
from seqmlm.data.counts import SMALLEST, redacted
from seqmlm.data.examples import LabelSource, examples
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.rows import read_rows, required
from seqmlm.data.tags import scheme_of
from seqmlm.errors import DataError, UsageError, number_of
from seqmlm.evaluation.predictions import PRIMARY, measures
from seqmlm.finetuning.predictions import TRUTH, Predictions, is_stored, read_predictions
from seqmlm.parsing import parse_json
from seqmlm.reports.page import Page
from seqmlm.scoring.evaluate import EvaluateConfig
from seqmlm.scoring.labels import Columns
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.sinks import unescaped

if TYPE_CHECKING:
    from seqmlm.engine.labels import Kind

_OF_SCORES = ("labels", "baseline", "prevalence", "positive", "negative")
_MOST_CLASSES, _MISTAKES = 12, 50  # of a page


def are_predictions(config: EvaluateConfig) -> bool:
    """Whether what is to be evaluated are predictions, and no scores."""
    path = config.paths[0]
    if path == "-" or is_stored(Path(path)):
        return path != "-"
    _, row = next(read_rows(path), (0, {}))
    return "prediction" in row and config.columns.score not in row


def evaluate_predictions(config: EvaluateConfig) -> dict[str, Any]:
    """What predictions are worth, with 95 % intervals over records, or over the groups named.

    Returns:
        `kind`, `primary`, counts, measures by name and their `intervals`; a page has them where one is asked.

    Raises:
        UsageError: settings that are of scores, or a report that is no file of its own.
        DataError: rows that cannot be read, a truth that is missing or is no class of the model, fewer than
            11 groups of sensitive data.
    """
    if wrong := next((name for name in _OF_SCORES if getattr(config, name) is not None), None):
        raise UsageError(f"--{wrong} is of scores; predictions have their truth in a column, --label-field")
    check_outputs({"--report": config.report}, inputs=config.paths)
    stored = next((one for one in map(Path, config.paths) if is_stored(one)), None)
    if stored and (config.columns != Columns() or len(config.paths) > 1):
        raise UsageError(f"{stored} says what its truth and groups are: leave columns and other files out")
    found = read_predictions(stored) if stored else _read(config)
    counts = {"items": len(found.ids), "groups": len(set(found.groups))}
    if config.sensitive and counts["groups"] < SMALLEST:
        raise DataError(f"fewer than {SMALLEST} groups of sensitive data", remedy="evaluate on more records")
    of: dict[str, Any] = {"groups": found.groups, "names": found.names}
    own = measures(found.kind, found.truth, found.predicted, **of, seed=config.seed, draws=config.draws)
    figures = {
        "kind": found.kind,
        "primary": PRIMARY[found.kind],
        **(redacted(counts) if config.sensitive else counts),
        **{name: one.value for name, one in own.items()},
        "intervals": {name: [one.low, one.high] for name, one in own.items()},
    }
    if config.report is not None:  # it names records, as the predictions do
        modes = [path.stat().st_mode for path in map(Path, config.paths) if path.is_file()]
        private = config.sensitive or not all(mode & 0o044 for mode in modes)
        _page(found, figures, sensitive=private).write(config.report)
    return figures


def _page(found: Predictions, figures: Mapping[str, Any], *, sensitive: bool) -> Page:
    """What predictions are worth, what was taken for what, and the worst mistakes; of sensitive data the
    measures alone."""
    items, name = number_of(figures["items"], "prediction"), figures["primary"]
    lead = f"There is no {name} of {items}: truth or predictions are all alike."
    if name in figures:
        low, high = figures["intervals"][name]
        between = "" if math.isnan(low) else f" (95 %: {low:.3f} to {high:.3f})"
        lead = f"{name} {figures[name]:.3f}{between}, {items}."
    page = Page("Predictions against the truth", lead, sensitive=sensitive)
    page.head({"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, seqmlm {__version__}"})
    measured = [(one, figures[one], *between) for one, between in figures["intervals"].items()]
    page.table("Measures", ("measure", "value", "95 % low", "95 % high"), measured)
    if sensitive or found.kind in ("entities", "multilabel"):
        return page
    if found.kind == "value":
        errors = np.abs(np.asarray(found.predicted) - found.truth).reshape(len(found.ids), -1).max(axis=1)
        worst = np.argsort(-errors, kind="stable")[:_MISTAKES].tolist()
        rows = [(found.ids[n], _values(found.truth[n]), _values(found.predicted[n])) for n in worst]
        page.table("Largest errors", ("id", "truth", "prediction"), rows)
        return page
    said, names = found.predicted.argmax(axis=1), found.names
    if len(names) <= _MOST_CLASSES:
        counts = np.zeros((len(names), len(names)), dtype=np.int64)
        np.add.at(counts, (found.truth, said), 1)
        each = zip(names, counts.tolist(), strict=True)
        cells: list[list[Any]] = [[one, *own, sum(own)] for one, own in each]
        page.table("What was taken for what", ("truth \\ prediction", *names, "all"), cells)
    probability = found.predicted.max(axis=1)
    wrong = np.flatnonzero(said != found.truth)
    surest = wrong[np.argsort(-probability[wrong], kind="stable")][:_MISTAKES].tolist()
    if surest and found.kind == "class":  # where a tag stands is not kept
        what = [(found.ids[n], names[found.truth[n]], names[said[n]], float(probability[n])) for n in surest]
        page.table("Surest mistakes", ("id", "truth", "prediction", "probability"), what)
    return page


def _values(given: Any) -> Any:
    """One number, or several as text."""
    numbers = np.ravel(given).tolist()
    return numbers[0] if len(numbers) == 1 else ", ".join(f"{one:.4g}" for one in numbers)


def _read(config: EvaluateConfig) -> Predictions:
    """Rows that `seqmlm predict` wrote, each with its truth."""
    records = list(_records(config))
    if not records:
        raise DataError("no predictions", source=config.paths[0], remedy="write them with seqmlm predict")
    kind, rows, ids = _kind(records[0]), [one.meta for one in records], [one.id for one in records]
    # A truth may be written in all ways in which a label of training may.
    source = LabelSource(columns=(TRUTH,), numeric=kind == "value")
    labels: list[Any] = [one.label for one in examples(records, Problems(sensitive=config.sensitive), source)]
    column = config.columns.group or ("group" if "group" in rows[0] else "id")
    groups = [str(required(one.meta, column, one.source, one.line)) for one in records]
    first = rows[0]["prediction" if kind == "value" else "p"]
    names = tuple(first) if isinstance(first, Mapping) else (TRUTH,)
    told = [(one,) if isinstance(one, str) else one for one in labels]
    for record, own in zip(records, told, strict=True):
        if fault := _fault(kind, names, record.meta, own):
            remedy = "correct it, or leave the row out"
            raise DataError(fault, source=record.source, line=record.line, remedy=remedy)
    if kind == "entities":
        whole = [(one.source, one.id, one.meta.get("source"), one.meta.get("line")) for one in records]
        places = [[*own] for _, own in groupby(range(len(ids)), key=whole.__getitem__)]
        ids, groups = ([of[own[0]] for own in places] for of in (ids, groups))
        tags = ([[of[n] for n in own] for own in places] for of in (labels, [x["prediction"] for x in rows]))
        return Predictions(kind, names, ids, groups, *tags)
    p = np.array([_predicted(kind, names, row) for row in rows], np.float64)
    if kind == "value":
        return Predictions(kind, names, ids, groups, np.array(told, np.float64), p)
    hot = np.array([[name in own for name in names] for own in told], np.int64)
    return Predictions(kind, names, ids, groups, hot if kind == "multilabel" else hot.argmax(axis=1), p)


def _fault(kind: Kind, names: Sequence[str], row: Mapping[str, Any], truth: Any) -> str | None:
    """What is wrong with a row, if anything."""
    if not isinstance(truth, tuple):
        return "a truth that is no class and no number"
    if kind == "value" and len(truth) != len(names):
        return "a truth of another number of values than the prediction"
    if kind != "value" and not {*truth} <= {*names}:
        return "a truth that is no class of these predictions"
    if kind not in ("value", "multilabel") and len(truth) != 1:
        return "a truth of several classes, or of none, where one is predicted"
    if kind == "entities":
        return None if row.get("prediction") in names else "a prediction that is no tag of the first row"
    numbers = _predicted(kind, names, row)
    good = len(numbers) == len(names) and np.isfinite(numbers).all()
    return None if good else "a prediction without numbers"


def _predicted(kind: Kind, names: Sequence[str], row: Mapping[str, Any]) -> list[float]:
    """The numbers of a row, NaN where one is missing."""
    p = row.get("prediction" if kind == "value" else "p")
    given = [p.get(name) for name in names] if isinstance(p, Mapping) else [p]
    try:
        return [math.nan if one is None else float(one) for one in given]
    except (TypeError, ValueError):
        return [math.nan]


def _kind(record: Record) -> Kind:
    """Of what kind predictions are, by their first row."""
    parts, p = record.meta.get("start") not in (None, ""), record.meta.get("p")
    prediction = required(record.meta, "prediction", record.source, record.line)
    if not isinstance(p, Mapping):
        if not parts:
            return "value"
        remedy = "predict with --level unit: a row for each unit"
        raise DataError("entities alone", source=record.source, line=record.line, remedy=remedy)
    if parts:
        return "entities" if scheme_of(p) is not None else "tags"
    return "multilabel" if isinstance(prediction, list) else "class"


def _records(config: EvaluateConfig) -> Iterator[Record]:
    """Rows as records that have them as columns, and their truth as a further one."""
    column = config.columns.label
    for path in config.paths:
        for line, given in read_rows(path):
            row = {name: _value(value) for name, value in given.items()}
            named = TRUTH if column == Columns.label and column not in row else column
            if named not in row:
                remedy = "seqmlm predict --truth COLUMN writes it, --label-field NAME names another column"
                reason = "no truth beside the predictions"
                raise DataError(reason, source=path, line=line, field=named, remedy=remedy)
            truth = required(row, named, path, line)
            name = str(required(row, "id", path, line))
            yield Record(id=name, raw="", source=path, line=line, meta={**row, TRUTH: truth})


def _value(value: Any) -> Any:
    """A cell as it was before it was written to a table, where lists and mappings are JSON."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        with suppress(ValueError):
            return parse_json(value)
    return unescaped(value) if isinstance(value, str) else value
