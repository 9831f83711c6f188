"""What was measured of variants, and what else predicts it: what a model's effects are compared with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.domains.variants import Variant, Variants
from seqmlm.errors import DataError, StateError, nearest
from seqmlm.evaluation.effects import DRAWS, Agreement, agreement
from seqmlm.inference.expert import stored_expert
from seqmlm.inference.session import Session

Doubles = NDArray[np.float64]

BINS = "DMS_score_bin"
"""ProteinGym's column of what counts as fit."""

TRAINING = "training frequencies"


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurements:
    """What was measured of N variants, and what others predict.

    Args:
        values: (N,) NaN where there is none.
        fit: (N,) True for those that count as fit.
        predictions: by name (N,).
        variants: N of them.
        places: of each; variants of one place count together in a bootstrap.
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
        """Read them from the rows of the table.

        Args:
            column: of the measurements.
            prediction, cutoff, alignment: as of `seqmlm.tasks.variants.VariantsConfig`.

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

    def compared(self, effects: Iterable[float | None], draws: int = DRAWS) -> Agreement:
        """How N effects and the others agree with the measurements, on variants that have all of them."""
        own = np.array([_number(one) for one in effects])
        named = {"model": own, **self.predictions}
        return agreement(self.values, named, self.fit, self.places, draws=draws)


def training_floor(session: Session) -> Any:
    """How much more often a unit stood in the training data than the one before it; None if not known."""
    try:
        expert = stored_expert(session.model, "counts")
    except StateError:
        return None
    if expert is None or not session.tokenizer.single_tokens:
        return None
    log2, tokenizer = expert.log2_unigram, session.tokenizer

    def predict(variant: Variant) -> float | None:
        if not variant.substitutions:
            return None
        old = "".join(variant.wildtype[edit.start] for edit in variant.edits)
        new = "".join(edit.text for edit in variant.edits)
        before, after = (
            own.ids[tokenizer.units.places(own)] for own in map(tokenizer.encode_symbols, (old, new))
        )
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
            raise DataError(
                "not a number",
                source=one.source,
                line=one.line,
                field=column,
                remedy="name a column of numbers",
            ) from None
    if not np.isfinite(found).any():
        raise DataError("a column without numbers", source=variants[0].source, field=column)
    return found
