"""Accuracy on minimal pairs: how often the better sequence is the more probable one.

A tie counts as wrong: the model has not distinguished the two. Two scores tie if they agree to the third
decimal (as CrowS-Pairs, Nangia et al. 2020, rounds them); smaller differences are float32 rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqmlm.errors import DataError
from seqmlm.evaluation.intervals import Doubles, exact_accuracy

Metric = Literal["sum", "mean", "shared"]
"""Scores of two sequences to compare: sums of log-probabilities, means by unit, sums over what both have."""

_DECIMALS = 3


def pair_figures(rows: Sequence[Mapping[str, Any]], metric: Metric) -> dict[str, Any]:
    """Accuracies of all pairs, by `group` where there are several, by other metrics (`beside`), and the floor
    among these: the shorter text, in characters, is the better (`length`).

    Args:
        rows: a pair each, as for `metric_scores`; `group`, and `unknown`, the tokens that no score counts.

    Raises:
        DataError: no rows.
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
    """Scores (N,) of the good and (N,) of the bad sequences by a metric, or "length", higher being better.

    Rows have `pll_good`, `units_good`, `length_good` (characters), and the same of the bad sequence.
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
    """(N,) 1 where the good score is higher, 0 at a tie, -1 where the bad one is."""
    first, second = (np.round(np.asarray(side, dtype=np.float64), _DECIMALS) for side in (good, bad))
    signs: NDArray[np.int8] = np.sign(first - second).astype(np.int8)
    return signs


def accuracy(good: ArrayLike, bad: ArrayLike) -> dict[str, Any]:
    """Accuracy of scores (N,) of the good and the bad sequences, higher being more probable.

    >>> found = accuracy([-1.0, -2.0, -3.0], [-2.0, -2.0, -1.0])
    >>> found["pairs"], found["accuracy"] == 1 / 3, found["ties"], found["margin"]
    (3, True, 1, -0.3333333333333333)

    Returns:
        The number of `pairs`, the share of them in which the good score is strictly higher (`accuracy`) with
        its exact interval (`low`, `high`), the `ties`, and the mean of good minus bad (`margin`).

    Raises:
        DataError: no pairs.
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
    """The accuracy within each group, by name."""
    first, second, names = np.asarray(good), np.asarray(bad), np.asarray(groups)
    return {str(name): accuracy(first[names == name], second[names == name]) for name in np.unique(names)}


def macro_accuracy(parts: Mapping[str, Mapping[str, Any]]) -> float:
    """Mean of the groups' accuracies: each group counts the same, however many pairs it has."""
    return float(np.mean([part["accuracy"] for part in parts.values()]))
