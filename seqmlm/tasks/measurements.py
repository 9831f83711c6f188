"""Measurements of variants and other predictions, for comparison with the effects of a model."""

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
from seqmlm.evaluation.intervals import Estimate, bounds_text
from seqmlm.inference.expert import stored_expert
from seqmlm.inference.session import Session
from seqmlm.reports.summary import Figures
from seqmlm.rows.file import Row
from seqmlm.tasks.task import NOT_COMPUTED
from seqmlm.tokenizers.base import encode_symbols

Doubles = NDArray[np.float64]

BINS = "DMS_score_bin"
"""ProteinGym's column that marks fit variants."""

TRAINING = "training frequencies"

TITLES = dict(zip(METRICS, ("Spearman", "NDCG@10%", "AUC", "MCC"), strict=True))


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurements:
    """Measurements of N variants, and other predictions for them.

    Args:
        values: (N,) measurements, NaN for missing ones.
        fit: (N,) True for variants that count as fit.
        predictions: name -> (N,) values.
        variants: the N variants.
        places: the places that each variant changes. The bootstrap resamples places.
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
        """Read measurements from a column of the table.

        Args:
            column: name of the column.
            prediction, cutoff, alignment: see `prediction`, `cutoff` and `family` of
                `seqmlm.tasks.variants.VariantsConfig`.

        Raises:
            DataError: the column does not exist, or has no numbers.
        """
        values = _numbers(variants, column)
        if cutoff is None and BINS in variants[0].fields:
            fit = _numbers(variants, BINS) > 0
        else:
            fit = values >= (fit_from(values) if cutoff is None else cutoff)
        predictions = {name: _numbers(variants, name) for name in prediction}
        texts = list(dict.fromkeys(variant.wildtype for variant in variants))
        places = [tuple(edit.start for edit in variant.edits) for variant in variants]
        if field.windows:  # every window has its variant in the middle, so a place is a row of the file
            places = [(variant.line,) for variant in variants]
        rivals = dict(field.rivals(texts, alignment))
        if alignment is None and (floor := count_predictor(session)) is not None:
            rivals[TRAINING] = floor
        for name, predict in rivals.items():
            predicted = np.array(
                [_number(predict(variant) if variant.scored else None) for variant in variants]
            )
            if np.isfinite(predicted).any():
                predictions[name] = predicted
        return cls(values=values, fit=fit, predictions=predictions, variants=variants, places=places)

    def agreement_with(self, rows: Iterable[Row], draws: int = DRAWS) -> Figures:
        """Agreement of effects and other predictions with the measurements, on variants that have all.

        Args:
            rows: rows with `line`, `id` and `effect`, in the order of the variants. Rows can be missing.
            draws: number of bootstrap resamples, 0 for no intervals.
        """
        effects = np.array([_number(effect) for effect in effects_of(self.variants, rows)])
        predictions = {"model": effects, **self.predictions}
        comparison = agreement(self.values, predictions, self.fit, self.places, draws=draws)
        metrics = intervals(comparison.metrics)
        gain = None if comparison.gain is None else {"against": comparison.rival, **comparison.gain.bounds()}
        absent = not_computed(comparison.metrics, comparison.undefined)
        figures = {"measured": comparison.n, "fit": comparison.positive, "agreement": metrics, "gain": gain}
        return {**figures, NOT_COMPUTED: absent} if absent else figures

    def substitutions(self) -> set[tuple[int, str]]:
        """The place and the new unit of each measured single substitution."""
        measured = np.isfinite(self.values)
        edits = (variant.edits for variant, flag in zip(self.variants, measured, strict=True) if flag)
        return {(changes[0].start, changes[0].text) for changes in edits if len(changes) == 1}


def effects_of(variants: Iterable[Variant], rows: Iterable[Row]) -> Iterator[float | None]:
    """Yield the effect of each variant, None for a variant without a row."""
    remaining = iter(rows)
    row = next(remaining, None)
    for variant in variants:
        if row is not None and (row["line"], row["id"]) == (variant.line, variant.name):
            yield row["effect"]
            row = next(remaining, None)
        else:
            yield None


def fit_from(values: Doubles) -> float:
    """The lowest measurement that counts as fit: the median, or the higher one of only two values.

    >>> fit_from(np.array([0.0, 0.0, 1.0])), fit_from(np.array([0.0, 1.0, 5.0]))
    (1.0, 1.0)
    """
    distinct = np.unique(values[np.isfinite(values)])
    return float(distinct[1] if len(distinct) == 2 else np.nanmedian(values))


def intervals(figures: Mapping[str, Mapping[str, Estimate]]) -> dict[str, dict[str, dict[str, float]]]:
    """Figures by prediction and metric with their intervals, ready for JSON.

    Undefined figures are left out.
    """
    return {
        name: {key: figure.bounds() for key, figure in metrics.items() if math.isfinite(figure.value)}
        for name, metrics in figures.items()
    }


def not_computed(
    figures: Mapping[str, Mapping[str, Estimate]], undefined: Mapping[str, str]
) -> dict[str, str]:
    """The reason for each missing metric.

    A metric can be undefined for all predictions, or for a prediction that is the same for all variants.
    """
    absent = {TITLES[metric]: why for metric, why in undefined.items()}
    for name, metrics in figures.items():
        for metric, figure in metrics.items():
            if metric not in undefined and not math.isfinite(figure.value):
                absent[f"{TITLES[metric]} of {name}"] = "it predicts the same value for all variants"
    return absent


def agreement_table(predictions: Figures) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: a prediction a row, a column for each metric that some prediction has."""
    metrics = [metric for metric in TITLES if any(metric in figures for figures in predictions.values())]
    rows = [
        [name, *(_with_interval(figures.get(metric)) for metric in metrics)]
        for name, figures in predictions.items()
    ]
    return ["prediction", *(TITLES[metric] for metric in metrics)], rows


def _with_interval(figure: Mapping[str, float] | None) -> str:
    if figure is None:
        return "-"
    return f"{figure['value']:.4f}{bounds_text(figure['low'], figure['high'], '.3f')}"


def count_predictor(session: Session) -> Any:
    """A prediction from counts: log2 of the frequency of the new units over the old ones.

    Returns:
        A function of a variant, or None for a model without counts.
    """
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
        old_letters = "".join(variant.wildtype[edit.start] for edit in variant.edits)
        new_letters = "".join(edit.text for edit in variant.edits)
        encodings = (encode_symbols(tokenizer, letters) for letters in (old_letters, new_letters))
        old_ids, new_ids = (encoding.ids[tokenizer.units.places(encoding)] for encoding in encodings)
        return float((log2[new_ids] - log2[old_ids]).sum())

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
"""Words in columns with two classes, as in ClinVar: 1 for fit, 0 for unfit, NaN for unknown."""


def _measurement(cell: Any) -> float:
    """A cell as a number, NaN for unknown.

    Raises:
        ValueError: the cell is neither a number nor a known word.
    """
    if cell is None:
        return math.nan
    word = str(cell).strip().lower().replace("_", " ").partition(",")[0]
    return _CLASSES[word] if word in _CLASSES else float(cell)


def _numbers(variants: Sequence[Variant], column: str) -> Doubles:
    """(N,) the numbers in a column of the table, NaN for empty cells.

    Raises:
        DataError: the column does not exist, or a cell is neither a number nor a known class.
    """
    values = np.full(len(variants), np.nan)
    for number, variant in enumerate(variants):
        if column not in variant.fields:
            remedy = nearest(column, [str(name) for name in variant.fields][:40]).removeprefix("; ")
            raise DataError(
                "no such field", source=variant.source, line=variant.line, field=column, remedy=remedy
            )
        try:
            values[number] = _measurement(variant.fields[column])
        except ValueError:
            place: dict[str, Any] = {"source": variant.source, "line": variant.line, "field": column}
            remedy = "give a column with numbers, with yes and no, or with benign and pathogenic"
            raise DataError("not a number", **place, remedy=remedy) from None
    if not np.isfinite(values).any():
        raise DataError("a column without numbers", source=variants[0].source, field=column)
    return values
