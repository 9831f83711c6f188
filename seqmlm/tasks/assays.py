"""A benchmark of variants: every assay scored, a table each in the benchmark's own layout, and one figure."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.data.problems import Problems
from seqmlm.domains.variants import Assay, Variant, Variants
from seqmlm.engine.durable import replace_file
from seqmlm.errors import StateError, UsageError, number_of
from seqmlm.evaluation.effects import DRAWS, METRICS
from seqmlm.evaluation.intervals import Difference, bootstrap_weights, summarized
from seqmlm.inference.batches import BATCH_RECORDS
from seqmlm.inference.runner import NoProgress, Progress
from seqmlm.inference.session import Session
from seqmlm.streams.cursor import Cursor, Position, file_facts
from seqmlm.streams.sinks import changed
from seqmlm.tasks.gaps import GapConfig
from seqmlm.tasks.measurements import Measurements
from seqmlm.tasks.variants import Judged, judged, scorer_of

SUMMARY = "summary.csv"


@dataclass(frozen=True, kw_only=True)
class AssaysConfig(GapConfig):
    """What a benchmark can be told.

    Args:
        folder: the benchmark.
        convention: which of `CONVENTIONS` is the effect; deletions and insertions have "pll_delta".
        scores: folder of the tables that are written.
    """

    folder: Path
    convention: str = "masked"
    scores: Path | None = None

    def request(self, session: Session, assays: Sequence[Assay] = ()) -> dict[str, Any]:
        """What decides the scores."""
        told = {name: value for name, value in super().request(session).items() if name != "scores"}
        files = [one.table.path for one in assays]
        return {**told, "input": file_facts(files), "model file": file_facts(session.model.files)}


@dataclass(frozen=True, kw_only=True)
class AssaysResult:
    """How all assays came out.

    Args:
        assays: name -> prediction -> metric -> value.
        overall: prediction -> metric -> mean over kinds of the mean over subjects, with an interval of a
            bootstrap over subjects.
        variants: of all assays.
        seconds: that it took.
    """

    assays: Mapping[str, Mapping[str, Mapping[str, float]]]
    overall: Mapping[str, Mapping[str, Difference]]
    variants: int
    seconds: float


def judge_assays(config: AssaysConfig, progress: Progress | None = None) -> AssaysResult:
    """Score every assay of a benchmark.

    Raises:
        UsageError: a field without a benchmark.
        DataError: a folder or table that is not laid out as published.
        StateError: no such model, or a table that cannot be written.
    """
    told, began = progress or NoProgress(), time.monotonic()
    if config.resume and config.scores is None:
        raise UsageError("--resume continues the tables of a folder named with --out")
    session = config.open()
    field = session.domain.variants()
    assays = field.assays(config.folder)
    cursor, done = None, 0
    if config.scores is not None:
        cursor = Cursor(config.scores / SUMMARY, config.request(session, assays))
        if config.resume and (left := cursor.load()) is not None:
            done = left.records
            told.message(f"continuing {config.scores} after {number_of(done, 'assay')}")
        else:
            cursor.save(Position())
    found: dict[str, dict[str, dict[str, float]]] = {}
    variants = 0
    for number, assay in enumerate(assays, 1):
        own, count = _assay(config, session, field, assay, told, scored=number <= done)
        found[assay.name], variants = own, variants + count
        rho = own["model"]["spearman"]
        told.message(f"{number} of {len(assays)}: {assay.name}, {count:,} variants, Spearman {rho:.3f}")
        if cursor is not None:
            cursor.save(Position(records=max(number, done)))
    overall = summed_up(assays, found)
    if config.scores is not None and cursor is not None:
        _write(config.scores / SUMMARY, _summary(assays, found))
        cursor.remove()
    return AssaysResult(assays=found, overall=overall, variants=variants, seconds=time.monotonic() - began)


def _assay(
    config: AssaysConfig, session: Session, field: Variants, assay: Assay, told: Progress, *, scored: bool
) -> tuple[dict[str, dict[str, float]], int]:
    """Score one assay and write its table, or read what was scored; its figures, and number of variants."""
    variants = list(field.read(assay.table, Problems(), told.message))
    measured = Measurements.of(assay.measured, field, session, variants)
    name = session.card.run_name or Path(session.model.path).name
    path = None if config.scores is None else config.scores / f"{assay.name}.csv"
    if scored and path is not None:
        done = _read(path, name, variants, config.convention)
    else:
        scorer = scorer_of(session, field, config.convention)
        done = [
            one
            for at in range(0, len(variants), BATCH_RECORDS)
            for one in judged(scorer, variants[at : at + BATCH_RECORDS], config.convention)
        ]
        if path is not None:
            _write(path, _table(done, name))
    figures = measured.compared((one.effect for one in done), draws=0).metrics
    return {key: {m: value.value for m, value in own.items()} for key, own in figures.items()}, len(variants)


def summed_up(
    assays: Sequence[Assay], found: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> dict[str, dict[str, Difference]]:
    """Means as the benchmark makes them: assays of a subject and kind, subjects of a kind, then kinds.

    Args:
        assays: of the benchmark.
        found: assay -> prediction -> metric -> value; NaN is left out.
    """
    subjects = sorted({one.subject for one in assays})
    weights = bootstrap_weights(subjects, DRAWS, 0)
    every = [dict(zip(subjects, weights(draw), strict=True)) for draw in range(DRAWS)]
    names = [name for name in found[assays[0].name] if all(name in own for own in found.values())]

    def mean(name: str, metric: str, times: Mapping[str, float]) -> float:
        parts: dict[str, dict[str, list[float]]] = {}
        for one in assays:
            value = found[one.name][name][metric]
            if times[one.subject] and math.isfinite(value):
                parts.setdefault(one.kind, {}).setdefault(one.subject, []).append(value)
        kinds = [
            np.average([np.mean(own) for own in kind.values()], weights=[times[one] for one in kind])
            for kind in parts.values()
        ]
        return float(np.mean(kinds)) if kinds else math.nan

    once = dict.fromkeys(subjects, 1.0)
    return {
        name: {
            metric: summarized(
                mean(name, metric, once), np.array([mean(name, metric, times) for times in every])
            )
            for metric in METRICS
        }
        for name in names
    }


def _table(done: Sequence[Judged], model: str) -> list[list[Any]]:
    """The assay's own columns, and the model's scores in a column of its name."""
    columns = list(done[0].variant.fields)
    if model in columns:
        raise UsageError(f"the tables have a column {model!r} already: rename the model's folder")
    rows = [[*(one.variant.fields[name] for name in columns), one.effect] for one in done]
    return [[*columns, model], *rows]


def _read(path: Path, model: str, variants: Sequence[Variant], convention: str) -> list[Judged]:
    """The effects of an earlier process, from the table that it has written.

    Raises:
        StateError: the table is gone, or no longer what it was.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            values = [float(row[model]) if row[model] else None for row in csv.DictReader(file)]
        pairs = list(zip(variants, values, strict=True))
    except (OSError, KeyError, ValueError):
        raise changed(path) from None
    return [
        Judged(variant=one, effects={} if value is None else {convention: value}, convention=convention)
        for one, value in pairs
    ]


def _summary(
    assays: Sequence[Assay], found: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> list[list[Any]]:
    """A row for each assay and prediction."""
    rows = [
        [one.name, one.subject, one.kind, name, *(own[metric] for metric in METRICS)]
        for one in assays
        for name, own in found[one.name].items()
    ]
    return [["DMS_id", "UniProt_ID", "coarse_selection_type", "prediction", *METRICS], *rows]


def _write(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    """Write a table, whole or not at all.

    Raises:
        StateError: it cannot be written.
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.getvalue().encode())
    except OSError as error:
        raise StateError(f"cannot write {path}: {error.strerror}; free space or name another --out") from None
