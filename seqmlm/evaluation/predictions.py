"""What predictions are worth: measures of each task with intervals over its natural unit, paired differences.

A measure is read from how often each item counts: once, or as often as a resample of whole groups (sentence,
chain, patient, session) has it. Those of ranks (AUROC, AUPRC, Spearman) have fewer draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqmlm.errors import UsageError
from seqmlm.evaluation.detection import Detection
from seqmlm.evaluation.effects import correlation
from seqmlm.evaluation.intervals import Difference as Interval
from seqmlm.evaluation.intervals import bootstrap_weights, resampled, summarized

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]
Reader = Callable[[Doubles], float]
"""How often each item counts (N,) -> the measure; NaN where it is not defined."""

PRIMARY = MappingProxyType(
    {"class": "accuracy", "multilabel": "micro_f1", "value": "spearman", "tags": "accuracy", "entities": "f1"}
)
"""The measure of each task that decides."""
RANKED = frozenset({"auroc", "auprc", "spearman"})
RANKED_DRAWS = 200
BINS = 15


class Difference(NamedTuple):
    """First minus second, its 95 % interval, and two-sided p-values of no difference."""

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
) -> dict[str, Interval]:
    """What predictions of a task are worth.

    Args:
        task: "class", "multilabel", "value", "tags" (one row a labelled unit) or "entities".
        truth: (N,) numbers of classes; (N, K) 0 or 1; (N,) or (N, K) values; N lists of BIO tags.
        predicted: (N, K) probabilities, for classes and labels; values or tags in the form of the truth.
        groups: (N,) what each item is resampled with, of any type.
        names: of the K classes, labels or values; of two classes the second is the one to find.
        seed, draws: of the bootstrap over groups; measures of ranks have 200 draws at most.

    Returns:
        By name, without those that cannot be had (an AUROC of one class). Macro means are over classes that
        occur, those of several values over their columns. `brier` is a sum over classes, 0 to 2; `ece` has 15
        equal bins of the top probability. An entity is found where type and both ends agree (seqeval's strict
        mode with IOB2); `f1_TYPE` is of one type.

    Raises:
        UsageError: no such task, numbers of rows or columns that differ, or NaN.

    >>> found = measures("class", [0, 1, 1, 0], [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]],
    ...                  groups=["a", "b", "c", "d"], names=["no", "yes"])
    >>> found["accuracy"].value, found["auroc"].value, found["accuracy"].high
    (0.75, 1.0, 1.0)
    """
    readers = _readers(task, truth, predicted, names, len(np.asarray(groups)))
    found: dict[str, Interval] = {}
    for ranked, most in ((False, draws), (True, min(draws, RANKED_DRAWS))):
        own = {name: read for name, read in readers.items() if (name in RANKED) == ranked}
        found |= resampled(partial(_all, own), groups, draws=most, seed=seed)
    return {name: found[name] for name in readers if not np.isnan(found[name].value)}


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
) -> Difference:
    """By how much the first predictions are better than the second, on the same items.

    The bootstrap draws groups; the randomization swaps the two predictions of whole groups (Noreen 1989).

    Args:
        task, truth, groups, names, seed: as in `measures`; first, second: as its `predicted`.
        metric: the name of a measure.
        draws: of both.

    Raises:
        UsageError: as `measures`; a measure that these predictions do not have.
    """
    # Both predictions of the same items, one after the other: one reader serves every mixture of them.
    both = (_twice(truth, truth), _twice(first, second))
    readers = _readers(task, *both, names, 2 * len(np.asarray(groups)))
    read = readers.get(metric)
    if read is None:
        raise UsageError(f"no measure {metric!r} of these predictions: one of {', '.join(readers)}")

    def between(one: Doubles, other: Doubles) -> float:
        return read(np.concatenate([one, other])) - read(np.concatenate([other, one]))

    ones, none = np.ones(len(truth)), np.zeros(len(truth))
    value = between(ones, none)
    if np.isnan(value):
        raise UsageError(f"{metric} is not defined for these predictions")
    units, place = np.unique(np.asarray(groups), return_inverse=True)
    weights = bootstrap_weights(place, draws, seed)
    drawn = np.array([between(weights(draw), none) for draw in range(draws if len(units) > 1 else 0)])
    random = np.random.default_rng(seed)
    kept = (random.integers(2, size=len(units)).astype(np.float64)[place] for _ in range(draws))
    swapped = np.array([between(one, 1 - one) for one in kept])
    found = summarized(value, drawn)
    side = min(int(np.sum(drawn <= 0)), int(np.sum(drawn >= 0)))
    # What is equal but for the order of a sum counts as equal.
    extreme = int(np.sum(np.abs(swapped) >= abs(value) - 1e-12))
    return Difference(
        *(value, found.low, found.high),
        min(1.0, 2 * (1 + side) / (1 + found.draws)),
        (1 + extreme) / (1 + int(np.sum(~np.isnan(swapped)))),
    )


def temperature(logits: Doubles, truth: ArrayLike) -> float:
    """The temperature of the smallest negative log-likelihood (Guo et al. 2017), 0.05 to 20.

    Of fewer than 100 rows it is 1 at least: a few that happen to be right would make all else certain.

    Args:
        logits: (N, K) of validation data.
        truth: (N,) numbers of classes.
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    rows, own = np.arange(len(logits)), np.asarray(truth, dtype=np.int64)

    def loss(log_temperature: float) -> float:
        return -float(log_softmax(logits / np.exp(log_temperature), axis=1)[rows, own].mean())

    least = 0.05 if len(rows) >= 100 else 1.0
    return float(np.exp(minimize_scalar(loss, bounds=np.log([least, 20.0]), method="bounded").x))


def _all(readers: Mapping[str, Reader], taken: Doubles) -> dict[str, float]:
    return {name: read(taken) for name, read in readers.items()}


def _twice(one: Any, other: Any) -> Any:
    return [*one, *other] if isinstance(one, list) else np.concatenate([one, other])


def _readers(task: str, truth: Any, predicted: Any, names: Sequence[str], n: int) -> dict[str, Reader]:
    """The measures of a task's predictions for `n` items."""
    if task not in READERS:
        raise UsageError(f"no task {task!r}: one of {', '.join(READERS)}")
    if task != "entities":
        truth, predicted = np.asarray(truth), np.asarray(predicted, dtype=np.float64)
        width = predicted.shape[1] if predicted.ndim == 2 else 1
        if width != len(names):
            raise UsageError(f"{width} columns of predictions for {len(names)} names")
        if not (np.isfinite(truth).all() and np.isfinite(predicted).all()):
            raise UsageError("a truth or a prediction is not a finite number")
    if not len(truth) == len(predicted) == n:
        raise UsageError(f"{len(predicted)} predictions and {n} groups for {len(truth)} items")
    return READERS[task](truth, predicted)


def _class(truth: Longs, predicted: Doubles) -> dict[str, Reader]:
    n, width = predicted.shape
    top, confidence = predicted.argmax(axis=1), predicted.max(axis=1)
    right = (top == truth).astype(np.float64)
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    # sum of (p - y)^2 = sum of p^2 - 2 p[truth] + 1
    brier = np.sum(predicted**2, axis=1) - 2 * predicted[np.arange(n), truth] + 1
    found = {1} if width == 2 else set(range(width))
    curves = _curves([(truth == one, predicted[:, one]) for one in sorted(found)])
    if width > 2:
        curves.pop("auprc", None)

    def counts(taken: Doubles) -> Doubles:
        """Rightly said, said and true, by class: (3, K)."""
        each = ((truth, taken * right), (top, taken), (truth, taken))
        return np.array([np.bincount(one, weights, width) for one, weights in each])

    def ece(taken: Doubles) -> float:
        gaps = np.bincount(bins, taken * (confidence - right), BINS)
        return float(np.abs(gaps).sum() / taken.sum())

    return {
        "accuracy": lambda taken: float(taken @ right / taken.sum()),
        "macro_f1": lambda taken: _mean(_f1(*counts(taken))),
        "mcc": lambda taken: _mcc(*counts(taken)),
        "brier": lambda taken: float(taken @ brier / taken.sum()),
        "ece": ece,
        **curves,
    }


def _multilabel(truth: Longs, predicted: Doubles) -> dict[str, Reader]:
    true, said = truth == 1, predicted >= 0.5
    each = [one.astype(np.float64) for one in (true & said, said, true)]
    return {
        "micro_f1": lambda taken: float(_f1(*((taken @ one).sum() for one in each))),
        "macro_f1": lambda taken: _mean(_f1(*(taken @ one for one in each))),
        **_curves(zip(true.T, predicted.T, strict=True)),
    }


def _value(truth: Doubles, predicted: Doubles) -> dict[str, Reader]:
    from scipy.stats import rankdata

    columns = [np.reshape(one, (len(truth), -1)).T.astype(np.float64) for one in (truth, predicted)]

    def r2(x: Doubles, y: Doubles) -> float:
        return float(1 - np.mean((x - y) ** 2) / x.var()) if np.ptp(x) else float("nan")

    def reader(measure: Callable[[Doubles, Doubles], float]) -> Reader:
        """Mean over columns of a measure of true and predicted values (N,)."""

        def read(taken: Doubles) -> float:
            rows = np.repeat(np.arange(len(taken)), taken.astype(int))
            return _mean([measure(x[rows], y[rows]) for x, y in zip(*columns, strict=True)])

        return read

    return {
        "spearman": reader(lambda x, y: correlation(rankdata(x), rankdata(y))),
        "pearson": reader(correlation),
        "rmse": reader(lambda x, y: float(np.sqrt(np.mean((x - y) ** 2)))),
        "r2": reader(r2),
    }


def _entities(truth: Any, predicted: Any) -> dict[str, Reader]:
    from seqeval.scheme import IOB2, Entities

    sentences = [
        [{(one.tag, one.start, one.end) for one in own} for own in Entities(tags, scheme=IOB2).entities]
        for tags in (truth, predicted)
    ]
    types = sorted({tag for side in sentences for own in side for tag, _, _ in own})
    found = np.zeros((len(truth), 3, len(types)))  # rightly said, said and true
    for row, (true, said) in enumerate(zip(*sentences, strict=True)):
        for part, own in enumerate((true & said, said, true)):
            for tag, _, _ in own:
                found[row, part, types.index(tag)] += 1
    total = found.sum(axis=2)

    def of_type(number: int) -> Reader:
        return lambda taken: float(_f1(*(taken @ found[:, :, number])))

    return {
        "f1": lambda taken: float(_f1(*(taken @ total))),
        "precision": lambda taken: float(_share(*(taken @ total)[:2])),
        "recall": lambda taken: float(_share(*(taken @ total)[::2])),
        **{f"f1_{tag}": of_type(number) for number, tag in enumerate(types)},
    }


READERS: Mapping[str, Callable[[Any, Any], dict[str, Reader]]] = MappingProxyType(
    {"class": _class, "tags": _class, "multilabel": _multilabel, "value": _value, "entities": _entities}
)


def _curves(columns: Iterable[tuple[Any, Any]]) -> dict[str, Reader]:
    """Mean AUROC and average precision over pairs of truth (N,) and score (N,) that have both values."""
    curves = [Detection(truth, score).curve for truth, score in columns if 0 < truth.sum() < len(truth)]
    return {
        "auroc": lambda taken: _mean([curve(taken).auroc for curve in curves]),
        "auprc": lambda taken: _mean([curve(taken).average_precision for curve in curves]),
    }


def _share(part: ArrayLike, whole: ArrayLike) -> Doubles:
    """part / whole, NaN where there is no whole."""
    whole = np.asarray(whole, dtype=np.float64)
    share: Doubles = np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0)
    return share


def _f1(right: ArrayLike, said: ArrayLike, true: ArrayLike) -> Doubles:
    return _share(2 * np.asarray(right), np.asarray(said) + np.asarray(true))


def _mcc(right: Doubles, said: Doubles, true: Doubles) -> float:
    """Of several classes (Gorodkin 2004); 0 where one class is said only, as in scikit-learn."""
    n = true.sum()
    spread, said_spread = n**2 - true @ true, n**2 - said @ said
    value = _share(right.sum() * n - said @ true, np.sqrt(spread * said_spread))
    return 0.0 if spread > 0 and said_spread <= 0 else float(value)


def _mean(values: Any) -> float:
    """Over those that are defined; NaN if none is."""
    good = np.asarray(values, dtype=np.float64)
    good = good[~np.isnan(good)]
    return float(good.mean()) if len(good) else float("nan")
