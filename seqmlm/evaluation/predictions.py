"""Measures of predictions for each task, with bootstrap intervals, and paired differences.

Every measure is a function of the weights of items. The weights are 1 for all items, or the number of times
that an item occurs in a resample. Resamples draw whole groups, such as sentences, chains, patients or
sessions. Rank measures (AUROC, AUPRC, Spearman) use fewer resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqmlm.errors import UsageError
from seqmlm.evaluation.correlations import correlation, rank_correlation
from seqmlm.evaluation.detection import Detection
from seqmlm.evaluation.intervals import (
    RANKED_DRAWS,
    Estimate,
    bootstrap_intervals,
    bootstrap_weights,
    percentile_interval,
)

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]
WeightedMeasure = Callable[[Doubles], float]
"""A function from the (N,) weights of items to a measure; NaN if it is undefined."""

PRIMARY = MappingProxyType(
    {"class": "accuracy", "multilabel": "micro_f1", "value": "spearman", "tags": "accuracy", "entities": "f1"}
)
"""Task -> the measure by which predictions are compared."""
RANKED = frozenset({"auroc", "auprc", "spearman"})
BINS = 15


class PairedDifference(NamedTuple):
    """A difference (first minus second), its 95 % interval, and two-sided p-values for no difference."""

    difference: float
    low: float
    high: float
    p_bootstrap: float
    p_randomization: float


def measures(
    task: str,
    truth: Any,
    predicted: Any,
    *,
    groups: ArrayLike,
    names: Sequence[str],
    seed: int = 0,
    draws: int = 1000,
) -> dict[str, Estimate]:
    """The measures of predictions for a task, with intervals.

    Args:
        task: "class", "multilabel", "value", "tags" (one row for each labelled unit) or "entities".
        truth: (N,) class numbers for "class" and "tags". (N, K) values 0 or 1 for "multilabel". (N,) or
            (N, K) values for "value". N lists of BIO tags for "entities".
        predicted: for classes and labels, (N, K) probabilities; otherwise, values or tags in the form of
            `truth`.
        groups: (N,) the group with which each item is resampled, of any type.
        names: the names of the K classes, labels or values. With two classes, the second is the positive
            class.
        seed, draws: seed and number of the resamples. Rank measures use at most 200 resamples.

    Returns:
        Name -> measure. Measures that are undefined (an AUROC with one class) are left out. Macro means are
        over the classes that occur, and means of several values over their columns. `brier` is a sum over
        classes, 0 to 2. `ece` has 15 equal bins of the highest probability. An entity is correct if its type
        and both ends agree (the strict mode of seqeval with IOB2). `f1_TYPE` is for one type.

    Raises:
        UsageError: the task is unknown, numbers of rows or columns differ, or a value is NaN.

    >>> found = measures("class", [0, 1, 1, 0], [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]],
    ...                  groups=["a", "b", "c", "d"], names=["no", "yes"])
    >>> found["accuracy"].value, found["auroc"].value, found["accuracy"].high
    (0.75, 1.0, 1.0)
    """
    measure_of = _weighted_measures(task, truth, predicted, names, len(np.asarray(groups)))
    intervals: dict[str, Estimate] = {}
    for ranked, max_draws in ((False, draws), (True, min(draws, RANKED_DRAWS))):
        chosen = {name: measure for name, measure in measure_of.items() if (name in RANKED) == ranked}
        intervals |= bootstrap_intervals(partial(_measure_all, chosen), groups, draws=max_draws, seed=seed)
    return {name: intervals[name] for name in measure_of if not np.isnan(intervals[name].value)}


def difference(
    task: str,
    metric: str,
    truth: Any,
    first: Any,
    second: Any,
    *,
    groups: ArrayLike,
    names: Sequence[str],
    seed: int = 0,
    draws: int = 2000,
) -> PairedDifference:
    """The difference between two predictions of the same items in a measure.

    The bootstrap draws groups. The randomization test swaps the two predictions of whole groups (Noreen
    1989).

    Args:
        task, truth, groups, names, seed: as in `measures`.
        first, second: the predictions, as `predicted` in `measures`.
        metric: the name of the measure.
        draws: number of resamples, and of randomizations.

    Raises:
        UsageError: as in `measures`, or the measure is undefined for these predictions.
    """
    # Both predictions of the same items are concatenated, so that one measure can be used for any mixture.
    doubled = (_stack(truth, truth), _stack(first, second))
    measure_of = _weighted_measures(task, *doubled, names, 2 * len(np.asarray(groups)))
    measure = measure_of.get(metric)
    if measure is None:
        raise UsageError(f"no measure {metric!r} for these predictions: use one of {', '.join(measure_of)}")

    def lead(first_weights: Doubles, second_weights: Doubles) -> float:
        ours, theirs = (first_weights, second_weights), (second_weights, first_weights)
        return measure(np.concatenate(ours)) - measure(np.concatenate(theirs))

    ones, none = np.ones(len(truth)), np.zeros(len(truth))
    value = lead(ones, none)
    if np.isnan(value):
        raise UsageError(f"{metric} is undefined for these predictions")
    units, place = np.unique(np.asarray(groups), return_inverse=True)
    weights = bootstrap_weights(place, draws, seed)
    resamples = np.array([lead(weights(draw), none) for draw in range(draws if len(units) > 1 else 0)])
    random = np.random.default_rng(seed)
    swaps = (random.integers(2, size=len(units)).astype(np.float64)[place] for _ in range(draws))
    swapped = np.array([lead(swap, 1 - swap) for swap in swaps])
    interval = percentile_interval(value, resamples)
    side = min(int(np.sum(resamples <= 0)), int(np.sum(resamples >= 0)))
    # Values that differ only by the order of a sum count as equal.
    extreme = int(np.sum(np.abs(swapped) >= abs(value) - 1e-12))
    return PairedDifference(
        *(value, interval.low, interval.high),
        min(1.0, 2 * (1 + side) / (1 + interval.draws)),
        (1 + extreme) / (1 + int(np.sum(~np.isnan(swapped)))),
    )


def temperature(logits: Doubles, truth: ArrayLike) -> float:
    """The temperature, 0.05 to 20, with the smallest negative log-likelihood (Guo et al. 2017).

    With fewer than 100 rows, it is at least 1. If a few rows are right by chance, all predictions would
    otherwise become certain.

    Args:
        logits: (N, K) logits of validation data.
        truth: (N,) class numbers.
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    rows, classes = np.arange(len(logits)), np.asarray(truth, dtype=np.int64)

    def loss(log_temperature: float) -> float:
        return -float(log_softmax(logits / np.exp(log_temperature), axis=1)[rows, classes].mean())

    lowest = 0.05 if len(rows) >= 100 else 1.0
    return float(np.exp(minimize_scalar(loss, bounds=np.log([lowest, 20.0]), method="bounded").x))


def _measure_all(measure_of: Mapping[str, WeightedMeasure], weights: Doubles) -> dict[str, float]:
    """All measures by name, where each item counts so often (N,)."""
    return {name: measure(weights) for name, measure in measure_of.items()}


def _stack(first: Any, second: Any) -> Any:
    """Concatenate two lists or arrays."""
    return [*first, *second] if isinstance(first, list) else np.concatenate([first, second])


def _weighted_measures(
    task: str, truth: Any, predicted: Any, names: Sequence[str], n: int
) -> dict[str, WeightedMeasure]:
    """Name -> measure of the predictions of a task, for `n` items; each is a function of weights (n,)."""
    if task not in MEASURES_BY_TASK:
        raise UsageError(f"no task {task!r}: one of {', '.join(MEASURES_BY_TASK)}")
    if task != "entities":
        truth, predicted = np.asarray(truth), np.asarray(predicted, dtype=np.float64)
        width = predicted.shape[1] if predicted.ndim == 2 else 1
        if width != len(names):
            raise UsageError(f"{width} columns of predictions for {len(names)} names")
        if not (np.isfinite(truth).all() and np.isfinite(predicted).all()):
            raise UsageError("a truth or a prediction is not a finite number")
    if not len(truth) == len(predicted) == n:
        raise UsageError(f"{len(predicted)} predictions and {n} groups for {len(truth)} items")
    return MEASURES_BY_TASK[task](truth, predicted)


def _class_measures(truth: Longs, predicted: Doubles) -> dict[str, WeightedMeasure]:
    """The measures of class probabilities (N, K) for true classes (N,)."""
    n, width = predicted.shape
    top, confidence = predicted.argmax(axis=1), predicted.max(axis=1)
    right = (top == truth).astype(np.float64)
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    # sum of (p - y)^2 = sum of p^2 - 2 p[truth] + 1
    brier = np.sum(predicted**2, axis=1) - 2 * predicted[np.arange(n), truth] + 1
    positives = {1} if width == 2 else set(range(width))
    curves = _curve_measures([(truth == number, predicted[:, number]) for number in sorted(positives)])
    if width > 2:
        curves.pop("auprc", None)

    def counts(weights: Doubles) -> Doubles:
        """(3, K) numbers of correct, predicted and true items, by class."""
        columns = ((truth, weights * right), (top, weights), (truth, weights))
        return np.array([np.bincount(classes, shares, width) for classes, shares in columns])

    def ece(weights: Doubles) -> float:
        gaps = np.bincount(bins, weights * (confidence - right), BINS)
        return float(np.abs(gaps).sum() / weights.sum())

    return {
        "accuracy": lambda weights: float(weights @ right / weights.sum()),
        "macro_f1": lambda weights: _mean(_f1(*counts(weights))),
        "mcc": lambda weights: _mcc(*counts(weights)),
        "brier": lambda weights: float(weights @ brier / weights.sum()),
        "ece": ece,
        **curves,
    }


def _label_measures(truth: Longs, predicted: Doubles) -> dict[str, WeightedMeasure]:
    """The measures of label probabilities (N, K) for true labels (N, K)."""
    true, chosen = truth == 1, predicted >= 0.5
    cells = [cell.astype(np.float64) for cell in (true & chosen, chosen, true)]
    return {
        "micro_f1": lambda weights: float(_f1(*((weights @ cell).sum() for cell in cells))),
        "macro_f1": lambda weights: _mean(_f1(*(weights @ cell for cell in cells))),
        **_curve_measures(zip(true.T, predicted.T, strict=True)),
    }


def _value_measures(truth: Doubles, predicted: Doubles) -> dict[str, WeightedMeasure]:
    """The measures of predicted values (N,) or (N, K)."""
    columns = [np.reshape(side, (len(truth), -1)).T.astype(np.float64) for side in (truth, predicted)]

    def r2(x: Doubles, y: Doubles) -> float:
        return float(1 - np.mean((x - y) ** 2) / x.var()) if np.ptp(x) else float("nan")

    def column_mean(measure: Callable[[Doubles, Doubles], float]) -> WeightedMeasure:
        """The mean over columns of a measure of true and predicted values (N,)."""

        def mean_measure(weights: Doubles) -> float:
            rows = np.repeat(np.arange(len(weights)), weights.astype(int))
            return _mean([measure(x[rows], y[rows]) for x, y in zip(*columns, strict=True)])

        return mean_measure

    return {
        "spearman": column_mean(rank_correlation),
        "pearson": column_mean(correlation),
        "rmse": column_mean(lambda x, y: float(np.sqrt(np.mean((x - y) ** 2)))),
        "r2": column_mean(r2),
    }


def _entity_measures(truth: Any, predicted: Any) -> dict[str, WeightedMeasure]:
    """The measures of entities in N lists of BIO tags."""
    from seqeval.scheme import IOB2, Entities

    def sentence_spans(tags: Any) -> list[set[tuple[str, int, int]]]:
        sentences = Entities(tags, scheme=IOB2).entities
        return [{(entity.tag, entity.start, entity.end) for entity in entities} for entities in sentences]

    sentences = [sentence_spans(tags) for tags in (truth, predicted)]
    types = sorted({tag for side in sentences for spans in side for tag, _, _ in spans})
    counts = np.zeros((len(truth), 3, len(types)))  # correct, predicted and true
    for row, (true_spans, predicted_spans) in enumerate(zip(*sentences, strict=True)):
        for part, spans in enumerate((true_spans & predicted_spans, predicted_spans, true_spans)):
            for tag, _, _ in spans:
                counts[row, part, types.index(tag)] += 1
    total = counts.sum(axis=2)

    def type_measure(number: int) -> WeightedMeasure:
        return lambda weights: float(_f1(*(weights @ counts[:, :, number])))

    return {
        "f1": lambda weights: float(_f1(*(weights @ total))),
        "precision": lambda weights: float(_share(*(weights @ total)[:2])),
        "recall": lambda weights: float(_share(*(weights @ total)[::2])),
        **{f"f1_{tag}": type_measure(number) for number, tag in enumerate(types)},
    }


MEASURES_BY_TASK: Mapping[str, Callable[[Any, Any], dict[str, WeightedMeasure]]] = MappingProxyType(
    {
        "class": _class_measures,
        "tags": _class_measures,
        "multilabel": _label_measures,
        "value": _value_measures,
        "entities": _entity_measures,
    }
)


def _curve_measures(columns: Iterable[tuple[Any, Any]]) -> dict[str, WeightedMeasure]:
    """The mean AUROC and average precision over columns of truth (N,) and score (N,).

    Columns whose truth has only one value are left out.
    """
    curves = [Detection(truth, score).curve for truth, score in columns if 0 < truth.sum() < len(truth)]
    return {
        "auroc": lambda weights: _mean([curve(weights).auroc for curve in curves]),
        "auprc": lambda weights: _mean([curve(weights).average_precision for curve in curves]),
    }


def _share(part: ArrayLike, total: ArrayLike) -> Doubles:
    """part / total; NaN where the total is 0."""
    total = np.asarray(total, dtype=np.float64)
    share: Doubles = np.divide(part, total, out=np.full(total.shape, np.nan), where=total > 0)
    return share


def _f1(right: ArrayLike, predicted: ArrayLike, true: ArrayLike) -> Doubles:
    """F1 from the numbers of correct, predicted and true items; NaN if there are none."""
    return _share(2 * np.asarray(right), np.asarray(predicted) + np.asarray(true))


def _mcc(right: Doubles, predicted: Doubles, true: Doubles) -> float:
    """The MCC of several classes (Gorodkin 2004); 0 if only one class is predicted, as in scikit-learn."""
    n = true.sum()
    spread, predicted_spread = n**2 - true @ true, n**2 - predicted @ predicted
    value = _share(right.sum() * n - predicted @ true, np.sqrt(spread * predicted_spread))
    return 0.0 if spread > 0 and predicted_spread <= 0 else float(value)


def _mean(values: Any) -> float:
    """The mean of the values that are not NaN; NaN if all are."""
    good = np.asarray(values, dtype=np.float64)
    good = good[~np.isnan(good)]
    return float(good.mean()) if len(good) else float("nan")
