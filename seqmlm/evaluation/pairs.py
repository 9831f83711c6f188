"""Accuracy on minimal pairs: how often the better sequence is the more probable one.

A tie counts as wrong, because the model has not distinguished the two sequences. Two scores tie if they agree
to three decimals, the rounding of CrowS-Pairs (Nangia et al. 2020). Smaller differences are due to float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqmlm.errors import DataError
from seqmlm.evaluation.intervals import Doubles, exact_accuracy

Metric = Literal["sum", "mean", "shared"]
"""The scores that are compared: sum of log-probabilities, mean per unit, or sum over shared tokens."""

_DECIMALS = 3


def pair_figures(rows: Sequence[Mapping[str, Any]], metric: Metric) -> dict[str, Any]:
    """The accuracy over all pairs, by group, and by other metrics.

    Args:
        rows: one row for each pair, with the fields for `metric_scores`, `group`, and `unknown`: the number
            of tokens that have no score.
        metric: the metric to use.

    Returns:
        The figures of `accuracy`, and `macro`: the mean over groups. `groups` has the accuracy of each group,
        if there are several. `beside` has the accuracies of the other metrics. One of these is the baseline
        `length`, which prefers the text with fewer characters. `unknown_tokens` is the number of tokens that
        have no score.

    Raises:
        DataError: there are no rows.
    """
    metrics = ("length",) if metric == "shared" else ("sum", "mean", "length")
    groups = group_accuracies(*metric_scores(rows, metric), [row["group"] for row in rows])
    return {
        **accuracy(*metric_scores(rows, metric)),
        "macro": macro_accuracy(groups),
        "groups": groups if len(groups) > 1 else {},
        "beside": {name: accuracy(*metric_scores(rows, name)) for name in metrics if name != metric},
        "unknown_tokens": sum(row["unknown"] for row in rows),
    }


def metric_scores(rows: Sequence[Mapping[str, Any]], metric: str) -> tuple[Doubles, Doubles]:
    """(N,) scores of the good sequences and (N,) of the bad sequences; higher is better.

    Args:
        rows: rows with `pll_good`, `units_good`, `length_good` (characters), and the same for the bad
            sequence.
        metric: a `Metric` or "length".
    """

    def side(name: str) -> Doubles:
        pll, units, length = (
            np.array([row[f"{key}_{name}"] for row in rows], dtype=np.float64)
            for key in ("pll", "units", "length")
        )
        if metric == "length":
            return -length
        return pll / np.maximum(1, units) if metric == "mean" else pll

    return side("good"), side("bad")


def comparison_signs(good: ArrayLike, bad: ArrayLike) -> NDArray[np.int8]:
    """(N,) 1 if the good score is higher, 0 for a tie, and -1 if the bad score is higher."""
    first, second = (np.round(np.asarray(side, dtype=np.float64), _DECIMALS) for side in (good, bad))
    signs: NDArray[np.int8] = np.sign(first - second).astype(np.int8)
    return signs


def accuracy(good: ArrayLike, bad: ArrayLike) -> dict[str, Any]:
    """The accuracy of (N,) scores of good sequences and (N,) of bad ones; higher is more probable.

    >>> found = accuracy([-1.0, -2.0, -3.0], [-2.0, -2.0, -1.0])
    >>> found["pairs"], found["accuracy"] == 1 / 3, found["ties"], found["margin"]
    (3, True, 1, -0.3333333333333333)

    Returns:
        `pairs` and `ties` are counts. `accuracy` is the fraction of pairs whose good score is strictly
        higher, with its exact interval (`low`, `high`). `margin` is the mean of good minus bad.

    Raises:
        DataError: there are no pairs.
    """
    first, second = np.asarray(good, dtype=np.float64), np.asarray(bad, dtype=np.float64)
    if not len(first):
        raise DataError("there are no pairs to compare", remedy="name a file that contains pairs")
    signs = comparison_signs(first, second)
    return {
        "pairs": len(signs),
        **exact_accuracy(int((signs > 0).sum()), len(signs)),
        "ties": int((signs == 0).sum()),
        "margin": float((first - second).mean()),
    }


def group_accuracies(good: ArrayLike, bad: ArrayLike, groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Group -> the `accuracy` within it."""
    first, second, names = np.asarray(good), np.asarray(bad), np.asarray(groups)
    return {str(name): accuracy(first[names == name], second[names == name]) for name in np.unique(names)}


def macro_accuracy(parts: Mapping[str, Mapping[str, Any]]) -> float:
    """The mean accuracy over groups. Each group counts the same, whatever its number of pairs."""
    return float(np.mean([part["accuracy"] for part in parts.values()]))
