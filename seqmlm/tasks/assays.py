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
from seqmlm.domains.variants import Assay, Variants
from seqmlm.engine.durable import replace_file
from seqmlm.errors import StateError, UsageError
from seqmlm.evaluation.effects import DRAWS, METRICS
from seqmlm.evaluation.intervals import Difference, bootstrap_weights, summarized
from seqmlm.inference.batches import BATCH_RECORDS
from seqmlm.inference.runner import NoProgress, Progress
from seqmlm.inference.session import Session
from seqmlm.tasks.gaps import GapConfig
from seqmlm.tasks.variants import Judged, Measurements, VariantsConfig, judged, scorer_of

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
    session = config.open()
    field = session.domain.variants()
    assays = field.assays(config.folder)
    found: dict[str, dict[str, dict[str, float]]] = {}
    variants = 0
    for number, assay in enumerate(assays, 1):
        own, count = _assay(config, session, field, assay, told)
        found[assay.name], variants = own, variants + count
        rho = own["model"]["spearman"]
        told.message(f"{number} of {len(assays)}: {assay.name}, {count:,} variants, Spearman {rho:.3f}")
    overall = summed_up(assays, found)
    if config.scores is not None:
        _write(config.scores / SUMMARY, _summary(assays, found))
    return AssaysResult(assays=found, overall=overall, variants=variants, seconds=time.monotonic() - began)


def _assay(
    config: AssaysConfig, session: Session, field: Variants, assay: Assay, told: Progress
) -> tuple[dict[str, dict[str, float]], int]:
    """Score one assay and write its table; its figures, and how many variants it has."""
    variants = list(field.read(assay.table, Problems(), told.message))
    asked = VariantsConfig(model=config.model, paths=(assay.table.path,), measured=assay.measured)
    measured = Measurements.of(asked, field, session, variants)
    scorer = scorer_of(session, field, config.convention)
    done = [
        one
        for at in range(0, len(variants), BATCH_RECORDS)
        for one in judged(scorer, variants[at : at + BATCH_RECORDS], config.convention)
    ]
    if config.scores is not None:
        name = session.card.run_name or Path(session.model.path).name
        _write(config.scores / f"{assay.name}.csv", _table(done, name))
    figures = measured.compared(done, draws=0).metrics
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
