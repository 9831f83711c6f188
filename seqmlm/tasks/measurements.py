"""What was measured of variants, and what else predicts it: what a model's effects are compared with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.domains.variants import Variant, Variants
from seqmlm.errors import DataError, StateError, nearest
from seqmlm.evaluation.effects import DRAWS, METRICS, agreement
from seqmlm.evaluation.intervals import Difference
from seqmlm.inference.expert import stored_expert
from seqmlm.inference.session import Session
from seqmlm.rows.file import Row
from seqmlm.tasks.task import Figures
from seqmlm.tokenizers.base import encode_symbols

Doubles = NDArray[np.float64]

BINS = "DMS_score_bin"
"""ProteinGym's column of what counts as fit."""

TRAINING = "training frequencies"

TITLES = dict(zip(METRICS, ("Spearman", "NDCG@10%", "AUC", "MCC"), strict=True))


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurements:
    """What was measured of N variants, and what others predict.

    Args:
        values: (N,) NaN where there is none.
        fit: (N,) True for those that count as fit.
        predictions: by name (N,).
        places: of the variants; those of one place count together in a bootstrap.
    """

    values: Doubles
    fit: NDArray[np.bool_]
    predictions: Mapping[str, Doubles]
    variants: Sequence[Variant]
    places: Sequence[tuple[int, ...]]

    @classmethod
    def of(
        cls,
        column: str,
        field: Variants,
        session: Session,
        variants: Sequence[Variant],
        *,
        prediction: Sequence[str] = (),
        cutoff: float | None = None,
        alignment: str | None = None,
    ) -> Measurements:
        """Read them from a column of the table; `prediction` and `cutoff` as of
        `seqmlm.tasks.variants.VariantsConfig`, `alignment` its `family`.

        Raises:
            DataError: no such column, or one without a number.
        """
        values = _numbers(variants, column)
        if cutoff is None and BINS in variants[0].fields:
            fit = _numbers(variants, BINS) > 0
        else:
            fit = values >= (float(np.nanmedian(values)) if cutoff is None else cutoff)
        named = {name: _numbers(variants, name) for name in prediction}
        texts = list(dict.fromkeys(one.wildtype for one in variants))
        places = [tuple(edit.start for edit in one.edits) for one in variants]
        if field.windows:  # every window has its variant in the middle: a place is a row of the file
            places = [(one.line,) for one in variants]
        rivals = dict(field.rivals(texts, alignment))
        if alignment is None and (floor := training_floor(session)) is not None:
            rivals[TRAINING] = floor
        for name, predict in rivals.items():
            own = np.array([_number(predict(one) if one.scored else None) for one in variants])
            if np.isfinite(own).any():
                named[name] = own
        return cls(values=values, fit=fit, predictions=named, variants=variants, places=places)

    def compared(self, rows: Iterable[Row], draws: int = DRAWS) -> Figures:
        """How effects and the others agree with the measurements, on variants that have all of them.

        Rows have `line`, `id` and `effect`, in the variants' order; some may have none. 0 draws: no
        intervals.
        """
        own = np.array([_number(one) for one in effects_of(self.variants, rows)])
        named = {"model": own, **self.predictions}
        found = agreement(self.values, named, self.fit, self.places, draws=draws)
        each = intervals(found.metrics)
        gain = None if found.gain is None else {"against": found.against, **found.gain.bounds()}
        return {"measured": found.n, "fit": found.positive, "agreement": each, "gain": gain}

    def substitutions(self) -> set[tuple[int, str]]:
        """Place and new unit of each single substitution that was measured."""
        measured = np.isfinite(self.values)
        edits = (one.edits for one, known in zip(self.variants, measured, strict=True) if known)
        return {(own[0].start, own[0].text) for own in edits if len(own) == 1}


def effects_of(variants: Iterable[Variant], rows: Iterable[Row]) -> Iterator[float | None]:
    """The effect of each variant; None of one without a row."""
    left = iter(rows)
    row = next(left, None)
    for one in variants:
        if row is not None and (row["line"], row["id"]) == (one.line, one.name):
            yield row["effect"]
            row = next(left, None)
        else:
            yield None


def intervals(found: Mapping[str, Mapping[str, Difference]]) -> dict[str, dict[str, dict[str, float]]]:
    """Figures by prediction and metric, each with its interval, as JSON has them."""
    return {name: {key: one.bounds() for key, one in own.items()} for name, own in found.items()}


def agreement_table(found: Figures) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: a prediction a row, its figures with intervals."""
    rows = [
        [name, *(f"{one['value']:.4f} ({one['low']:.3f} to {one['high']:.3f})" for one in own.values())]
        for name, own in found.items()
    ]
    return ["prediction", *TITLES.values()], rows


def training_floor(session: Session) -> Any:
    """How much more often a unit stood in the training data than the one before it; None if not known."""
    try:
        expert = stored_expert(session.model, "counts")
    except StateError:
        return None
    if expert is None or not session.tokenizer.traits.single_tokens:
        return None
    log2, tokenizer = expert.log2_unigram, session.tokenizer

    def predict(variant: Variant) -> float | None:
        if not variant.substitutions:
            return None
        old = "".join(variant.wildtype[edit.start] for edit in variant.edits)
        new = "".join(edit.text for edit in variant.edits)
        both = (encode_symbols(tokenizer, one) for one in (old, new))
        before, after = (own.ids[tokenizer.units.places(own)] for own in both)
        return float((log2[after] - log2[before]).sum())

    return predict


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _numbers(variants: Sequence[Variant], column: str) -> Doubles:
    """(N,) a column of the table; NaN where a cell is empty.

    Raises:
        DataError: there is no such column, or a cell is no number.
    """
    found = np.full(len(variants), np.nan)
    for number, one in enumerate(variants):
        if column not in one.fields:
            remedy = nearest(column, [str(name) for name in one.fields][:40]).removeprefix("; ")
            raise DataError("no such field", source=one.source, line=one.line, field=column, remedy=remedy)
        cell = one.fields[column]
        if cell is None or str(cell).strip().lower() in ("", "nan", "na"):
            continue
        try:
            found[number] = float(cell)
        except ValueError:
            where: dict[str, Any] = {"source": one.source, "line": one.line, "field": column}
            raise DataError("not a number", **where, remedy="name a column of numbers") from None
    if not np.isfinite(found).any():
        raise DataError("a column without numbers", source=variants[0].source, field=column)
    return found
