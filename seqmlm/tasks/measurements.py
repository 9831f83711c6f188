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
from seqmlm.evaluation.intervals import Difference, bounds_text
from seqmlm.inference.expert import stored_expert
from seqmlm.inference.session import Session
from seqmlm.reports.summary import Figures
from seqmlm.rows.file import Row
from seqmlm.tasks.task import NOT_COMPUTED
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
            fit = values >= (fit_from(values) if cutoff is None else cutoff)
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
        gain = None if found.gain is None else {"against": found.rival, **found.gain.bounds()}
        absent = not_computed(found.metrics, found.undefined)
        figures = {"measured": found.n, "fit": found.positive, "agreement": each, "gain": gain}
        return {**figures, NOT_COMPUTED: absent} if absent else figures

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


def fit_from(values: Doubles) -> float:
    """The measurement from which on a variant counts as fit: the median, of two values the higher one.

    >>> fit_from(np.array([0.0, 0.0, 1.0])), fit_from(np.array([0.0, 1.0, 5.0]))
    (1.0, 1.0)
    """
    distinct = np.unique(values[np.isfinite(values)])
    return float(distinct[1] if len(distinct) == 2 else np.nanmedian(values))


def intervals(found: Mapping[str, Mapping[str, Difference]]) -> dict[str, dict[str, dict[str, float]]]:
    """Figures by prediction and metric, each with its interval, as JSON has them; without undefined ones."""
    return {
        name: {key: one.bounds() for key, one in own.items() if math.isfinite(one.value)}
        for name, own in found.items()
    }


def not_computed(
    found: Mapping[str, Mapping[str, Difference]], undefined: Mapping[str, str]
) -> dict[str, str]:
    """Why metrics are not there: of all predictions, or of one that is the same for all variants."""
    absent = {TITLES[metric]: why for metric, why in undefined.items()}
    for name, own in found.items():
        for metric, one in own.items():
            if metric not in undefined and not math.isfinite(one.value):
                absent[f"{TITLES[metric]} of {name}"] = "it predicts the same for all variants"
    return absent


def agreement_table(found: Figures) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: a prediction a row, a column for each metric that some prediction has."""
    metrics = [metric for metric in TITLES if any(metric in own for own in found.values())]
    rows = [[name, *(_with_interval(own.get(metric)) for metric in metrics)] for name, own in found.items()]
    return ["prediction", *(TITLES[metric] for metric in metrics)], rows


def _with_interval(figure: Mapping[str, float] | None) -> str:
    if figure is None:
        return "-"
    return f"{figure['value']:.4f}{bounds_text(figure['low'], figure['high'], '.3f')}"


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


_CLASSES = {
    **dict.fromkeys(("yes", "true", "benign", "likely benign", "benign/likely benign"), 1.0),
    **dict.fromkeys(("no", "false", "pathogenic", "likely pathogenic", "pathogenic/likely pathogenic"), 0.0),
    **dict.fromkeys(("", "nan", "na", "uncertain significance", "not provided"), math.nan),
    **dict.fromkeys(("conflicting interpretations of pathogenicity", "conflicting"), math.nan),
    "conflicting classifications of pathogenicity": math.nan,
}
"""Words of columns of two classes, as in ClinVar: 1 for those that count as fit, NaN if nothing is known."""


def _measurement(cell: Any) -> float:
    """A cell as a number, NaN where nothing is known; ValueError: it is none."""
    if cell is None:
        return math.nan
    word = str(cell).strip().lower().replace("_", " ").partition(",")[0]
    return _CLASSES[word] if word in _CLASSES else float(cell)


def _numbers(variants: Sequence[Variant], column: str) -> Doubles:
    """(N,) a column of the table; NaN where a cell is empty.

    Raises:
        DataError: there is no such column, or a cell is no number and no class that is known.
    """
    values = np.full(len(variants), np.nan)
    for number, one in enumerate(variants):
        if column not in one.fields:
            remedy = nearest(column, [str(name) for name in one.fields][:40]).removeprefix("; ")
            raise DataError("no such field", source=one.source, line=one.line, field=column, remedy=remedy)
        try:
            values[number] = _measurement(one.fields[column])
        except ValueError:
            where: dict[str, Any] = {"source": one.source, "line": one.line, "field": column}
            remedy = "name a column of numbers, or of yes and no, or of benign and pathogenic"
            raise DataError("not a number", **where, remedy=remedy) from None
    if not np.isfinite(values).any():
        raise DataError("a column without numbers", source=variants[0].source, field=column)
    return values
