"""`seqmlm evaluate` of predictions: the figures of a fine-tuning, from stored predictions and their truth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.data.examples import LabelSource, examples
from seqmlm.data.privacy import SMALLEST, redact_small_counts
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.rows import read_rows, required
from seqmlm.data.tags import scheme_of
from seqmlm.engine.heads import Kind
from seqmlm.errors import DataError, UsageError
from seqmlm.evaluation.predictions import PRIMARY, Doubles, measures
from seqmlm.parsing import parse_json
from seqmlm.streams.sinks import unescaped
from seqmlm.tasks.evaluate import EvaluateConfig
from seqmlm.tasks.predict import TRUTH
from seqmlm.tasks.predictions import Predictions, is_stored, read_predictions

_OF_SCORES = ("labels", "baseline", "prevalence", "report")


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
        `kind`, `primary`, counts, measures by name and their `intervals`.

    Raises:
        UsageError: settings that are of scores.
        DataError: rows that cannot be read, a truth that is missing or is no class of the model, fewer than
            11 groups of sensitive data.
    """
    if wrong := next((name for name in _OF_SCORES if getattr(config, name) is not None), None):
        raise UsageError(f"--{wrong} is of scores; predictions have their truth in a column, --label-field")
    stored = len(config.paths) == 1 and is_stored(Path(config.paths[0]))
    found = read_predictions(Path(config.paths[0])) if stored else _read(config)
    counts = {"items": len(found.ids), "groups": len(set(found.groups))}
    if config.sensitive and counts["groups"] < SMALLEST:
        raise DataError(f"fewer than {SMALLEST} groups of sensitive data", remedy="evaluate on more records")
    of: dict[str, Any] = {"groups": found.groups, "names": found.names}
    own = measures(found.kind, found.truth, found.predicted, **of, seed=config.seed, draws=config.draws)
    return {
        "kind": found.kind,
        "primary": PRIMARY[found.kind],
        **redact_small_counts(counts, config.sensitive),
        **{name: one.value for name, one in own.items()},
        "intervals": {name: [one.low, one.high] for name, one in own.items()},
    }


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
    if kind == "value":
        each = [row["prediction"] for row in rows]
        values = _numbers([[*one.values()] if isinstance(one, Mapping) else [one] for one in each], config)
        return Predictions(kind, (TRUTH,) * values.shape[1], ids, groups, np.array(labels, float), values)
    names, told = tuple(rows[0]["p"]), [(one,) if isinstance(one, str) else one for one in labels]
    if (unknown := next((n for n, own in enumerate(told) if not {*own} <= {*names}), None)) is not None:
        at = records[unknown]
        reason = "a truth that is no class of these predictions"
        raise DataError(reason, source=at.source, line=at.line, remedy="correct it, or leave the row out")
    if kind == "entities":
        places = [[*own] for _, own in groupby(range(len(ids)), key=lambda n: (records[n].source, ids[n]))]
        ids, groups = ([of[own[0]] for own in places] for of in (ids, groups))
        tags = ([[of[n] for n in own] for own in places] for of in (labels, [x["prediction"] for x in rows]))
        return Predictions(kind, names, ids, groups, *tags)
    p = _numbers([[(row.get("p") or {}).get(name) for name in names] for row in rows], config)
    hot = np.array([[name in own for name in names] for own in told], np.int64)
    return Predictions(kind, names, ids, groups, hot if kind == "multilabel" else hot.argmax(axis=1), p)


def _numbers(rows: list[list[Any]], config: EvaluateConfig) -> Doubles:
    try:
        return np.array(rows, np.float64)
    except (TypeError, ValueError):
        source, remedy = ", ".join(config.paths), "evaluate what seqmlm predict wrote"
        raise DataError("predictions without numbers", source=source, remedy=remedy) from None


def _kind(record: Record) -> Kind:
    """Of what kind predictions are, by their first row."""
    parts, p = record.meta.get("start") not in (None, ""), record.meta.get("p")
    if not isinstance(p, Mapping):
        if not parts:
            return "value"
        remedy = "predict with --level unit: a row for each unit"
        raise DataError("entities alone", source=record.source, line=record.line, remedy=remedy)
    if parts:
        return "entities" if scheme_of(p) is not None else "tags"
    return "multilabel" if isinstance(record.meta["prediction"], list) else "class"


def _records(config: EvaluateConfig) -> Iterator[Record]:
    """Rows as records that have them as columns, and their truth as a further one."""
    column = config.columns.label
    for path in config.paths:
        for line, given in read_rows(path):
            row = {name: _value(value) for name, value in given.items()}
            truth = required(row, TRUTH if column not in row and TRUTH in row else column, path, line)
            name = str(required(row, "id", path, line))
            yield Record(id=name, raw="", source=path, line=line, meta={**row, TRUTH: truth})


def _value(value: Any) -> Any:
    """A cell as it was before it was written to a table, where lists and mappings are JSON."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        with suppress(ValueError):
            return parse_json(value)
    return unescaped(value) if isinstance(value, str) else value
