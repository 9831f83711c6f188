"""Measures of scores and alarms against labels: ranking measures, operating points, paired comparisons.

Higher scores are more unusual. Items with equal scores raise alarms together, so that no measure depends on
the order of ties. All measures are computed from counts at the distinct scores. The time of a bootstrap draw
is therefore linear in the number of items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqmlm.errors import DataError
from seqmlm.evaluation.intervals import Estimate, Rate, bootstrap_intervals, exact_rate

Bools = NDArray[np.bool_]
Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]
Measure = Callable[["Curve"], float]


@dataclass(frozen=True, eq=False)
class Curve:
    """All operating points of a score. At point k, items with at least the k-th highest score raise an alarm.

    Args:
        thresholds: (K,) distinct scores, descending.
        true, false: (K,) number of positives and of negatives with an alarm, or the sum of their weights.
    """

    thresholds: Doubles
    true: Doubles
    false: Doubles

    @property
    def positives(self) -> float:
        """Number of positive items."""
        return float(self.true[-1])

    @property
    def negatives(self) -> float:
        """Number of negative items."""
        return float(self.false[-1])

    @property
    def auroc(self) -> float:
        """Probability that a positive scores above a negative; ties count half. NaN with one class."""
        pairs = self.positives * self.negatives
        area = np.trapezoid(np.append(0.0, self.true), np.append(0.0, self.false))
        return float(area / pairs) if pairs else float("nan")

    @property
    def average_precision(self) -> float:
        """Area under the precision-recall curve as a step function; NaN without positives."""
        if not self.positives:
            return float("nan")
        alarmed = np.maximum(self.true + self.false, 1e-300)  # a resample may lack the highest items
        return float(np.diff(self.true, prepend=0.0) @ (self.true / alarmed) / self.positives)

    @property
    def oracle_f1(self) -> float:
        """The highest F1 of any threshold, which is chosen with the labels; NaN without positives."""
        if not self.positives:
            return float("nan")
        return float((2 * self.true / (self.true + self.false + self.positives)).max())

    def hits_at(self, rate: float) -> float:
        """Number of positives found if at most a fraction `rate` of the negatives raises an alarm."""
        # Counts are integers. The tolerance is only for the rounding of rate x negatives.
        point = np.searchsorted(self.false, rate * self.negatives * (1 + 1e-12), side="right")
        return float(self.true[point - 1]) if point else 0.0

    def recall_at(self, rate: float) -> float:
        """Fraction of positives found at a false positive rate of at most `rate`; NaN with one class."""
        return self.hits_at(rate) / self.positives if self.positives and self.negatives else float("nan")


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """The numbers of true and false alarms, and of items without an alarm."""

    true_positives: int
    false_positives: int
    false_negatives: int
    true_negatives: int

    @property
    def recall(self) -> Rate:
        """Fraction of positives with an alarm, with its exact interval."""
        return exact_rate(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def false_positive_rate(self) -> Rate:
        """Fraction of negatives with an alarm, with its exact interval."""
        return exact_rate(self.false_positives, self.false_positives + self.true_negatives)

    @property
    def precision(self) -> Rate:
        """Fraction of alarms that are positive, with its exact interval."""
        return exact_rate(self.true_positives, self.true_positives + self.false_positives)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 0 if no positive is found."""
        hits, errors = self.true_positives, self.false_positives + self.false_negatives
        return 2 * hits / (2 * hits + errors) if hits else 0.0

    def precision_and_f1_at(self, prevalence: float) -> tuple[float, float]:
        """Precision and F1 if a fraction `prevalence` of all items were positive, at the same rates.

        Precision is NaN if there were no alarms.
        """
        hits = prevalence * self.recall.value
        wrong = (1 - prevalence) * self.false_positive_rate.value
        precision = hits / (hits + wrong) if hits + wrong else float("nan")
        return precision, 2 * hits / (prevalence + hits + wrong)


class Detection:
    """Labels and scores of N items, from which all measures are computed.

    Args:
        labels: (N,) True for positive items.
        scores: (N,) scores; higher is more unusual, and -inf means that an item has no score.

    Raises:
        DataError: the numbers of labels and scores differ, a score is NaN, or all labels are equal.
    """

    def __init__(self, labels: ArrayLike, scores: ArrayLike) -> None:
        self.labels: Bools = np.asarray(labels, dtype=np.bool_)
        self.scores: Doubles = np.asarray(scores, dtype=np.float64)
        if self.labels.shape != self.scores.shape:
            raise DataError(f"{len(self.scores)} scores for {len(self.labels)} labels")
        if np.isnan(self.scores).any():
            raise DataError("a score is not a number", remedy="give every item a score")
        if self.labels.all() or not self.labels.any():
            kind = "positive" if self.labels.any() else "negative"
            raise DataError(
                f"all items are {kind} ({len(self.labels)} of {len(self.labels)})",
                remedy="evaluation needs both classes: check which label counts as positive",
            )
        values, place = np.unique(self.scores, return_inverse=True)
        self._values: Doubles = values[::-1]
        self._place: Longs = len(values) - 1 - place

    def curve(self, weights: Doubles | None = None) -> Curve:
        """All operating points. `weights` (N,) says how often each item counts; by default once."""
        ones = np.ones(len(self.labels)) if weights is None else weights
        size = len(self._values)
        true = np.bincount(self._place, weights=ones * self.labels, minlength=size)
        false = np.bincount(self._place, weights=ones * ~self.labels, minlength=size)
        return Curve(self._values, np.cumsum(true), np.cumsum(false))

    def auroc_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Confidence bounds of the AUROC for independent items (DeLong et al. 1988), between 0 and 1.

        They are (NaN, NaN) if the variance cannot be estimated: the AUROC is exactly 0 or 1, or a class has
        only one item. If items are in groups, use `bootstrap`, which resamples groups.
        """
        from scipy.stats import norm, rankdata

        ranks = rankdata(self._values.size - self._place)
        above, below = self.labels, ~self.labels
        m, n = int(above.sum()), int(below.sum())
        if min(m, n) < 2:
            return float("nan"), float("nan")
        of_positive = (ranks[above] - rankdata(ranks[above])) / n
        of_negative = 1 - (ranks[below] - rankdata(ranks[below])) / m
        variance = of_positive.var(ddof=1) / m + of_negative.var(ddof=1) / n
        if not variance:
            return float("nan"), float("nan")
        half = float(norm.ppf((1 + confidence) / 2) * np.sqrt(variance))
        area = float(of_positive.mean())
        return max(0.0, area - half), min(1.0, area + half)

    def bootstrap(
        self, measures: Mapping[str, Measure], groups: ArrayLike, *, draws: int = 1000, seed: int = 0
    ) -> dict[str, Estimate]:
        """Each measure with its percentile interval, from resamples of whole groups (N,)."""

        def measure_resample(weights: Doubles) -> dict[str, float]:
            curve = self.curve(weights)
            return {name: measure(curve) for name, measure in measures.items()}

        return bootstrap_intervals(measure_resample, groups, draws=draws, seed=seed)


def confusion(labels: ArrayLike, alarms: ArrayLike) -> Confusion:
    """The confusion counts of alarms (N,) and labels (N,), both true or false.

    Raises:
        DataError: the numbers of alarms and labels differ.
    """
    from sklearn.metrics import confusion_matrix

    truth, raised = np.asarray(labels, dtype=np.bool_), np.asarray(alarms, dtype=np.bool_)
    if truth.shape != raised.shape:
        raise DataError(f"{len(raised)} alarms for {len(truth)} labels")
    (quiet, wrong), (missed, right) = confusion_matrix(truth, raised, labels=[False, True]).tolist()
    return Confusion(
        true_positives=right, false_positives=wrong, false_negatives=missed, true_negatives=quiet
    )


def compare(
    first: Detection,
    second: Detection,
    measures: Mapping[str, Measure],
    groups: ArrayLike,
    *,
    draws: int = 1000,
    seed: int = 0,
) -> dict[str, Estimate]:
    """The difference, first minus second, in each measure, with a paired bootstrap over groups.

    Both scores are measured on the same resamples of whole groups. A column of alarms is a score of 0 and 1.
    `f1_of_alarms` then compares F1 at the thresholds of the alarms.

    Args:
        first, second: two scores of the same items in the same order.
        measures: name -> function of a curve.
        groups: (N,) the group of each item, such as its patient or session.
        draws, seed: number and seed of the resamples.

    Raises:
        DataError: the labels of the two differ.
    """
    if not np.array_equal(first.labels, second.labels):
        raise DataError("two scores can be compared only on the same items with the same labels")

    def measure_resample(weights: Doubles) -> dict[str, float]:
        first_curve, second_curve = first.curve(weights), second.curve(weights)
        return {name: measure(first_curve) - measure(second_curve) for name, measure in measures.items()}

    return bootstrap_intervals(measure_resample, groups, draws=draws, seed=seed)


def f1_of_alarms(curve: Curve) -> float:
    """F1 of a score that is 1 for items with an alarm and 0 for others; NaN without positives."""
    if not curve.positives:
        return float("nan")
    raised = curve.thresholds > 0
    true, false = float(curve.true[raised].max(initial=0)), float(curve.false[raised].max(initial=0))
    return 2 * true / (true + false + curve.positives)
