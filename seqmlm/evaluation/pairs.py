"""Accuracy on minimal pairs: how often the better sequence is the more probable one.

A tie counts as wrong: the model has not distinguished the two. Two scores tie if they agree to the third
decimal (as CrowS-Pairs, Nangia et al. 2020, rounds them); smaller differences are float32 rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqmlm.engine.types import Floats
from seqmlm.errors import DataError
from seqmlm.evaluation.intervals import Doubles, exact_accuracy
from seqmlm.evaluation.predictions import measures

Metric = Literal["sum", "mean", "shared"]
"""What of two sequences is compared: sums of log-probabilities, means by unit, sums over what both have."""

_DECIMALS = 3


def figures(rows: Sequence[Mapping[str, Any]], metric: Metric) -> dict[str, Any]:
    """How pairs came out: all, by `group` where there are several, by other metrics (`beside`), and the floor
    among these: the shorter text, in characters, is the better (`length`).

    Args:
        rows: a pair each, as for `compared`; `group`, and `unknown`, the tokens that no score counts.

    Raises:
        DataError: no rows.
    """
    others = ("length",) if metric == "shared" else ("sum", "mean", "length")
    groups = by_group(*compared(rows, metric), [row["group"] for row in rows])
    return {
        **accuracy(*compared(rows, metric)),
        "macro": macro(groups),
        "groups": groups if len(groups) > 1 else {},
        "beside": {name: accuracy(*compared(rows, name)) for name in others if name != metric},
        "unknown_tokens": sum(row["unknown"] for row in rows),
    }


def compared(rows: Sequence[Mapping[str, Any]], metric: str) -> tuple[Doubles, Doubles]:
    """What a metric, or "length", compares: (N,) of the good and of the bad sequences of rows, which have
    `pll_good`, `units_good`, `length_good` (characters), and the same of the bad one."""

    def side(name: str) -> Doubles:
        pll, units, length = (
            np.array([row[f"{key}_{name}"] for row in rows], dtype=np.float64)
            for key in ("pll", "units", "length")
        )
        if metric == "length":
            return -length
        return pll / np.maximum(1, units) if metric == "mean" else pll

    return side("good"), side("bad")


def outcomes(good: ArrayLike, bad: ArrayLike) -> NDArray[np.int8]:
    """(N,) 1 where the good score is higher, 0 at a tie, -1 where the bad one is."""
    first, second = (np.round(np.asarray(side, dtype=np.float64), _DECIMALS) for side in (good, bad))
    signs: NDArray[np.int8] = np.sign(first - second).astype(np.int8)
    return signs


def accuracy(good: ArrayLike, bad: ArrayLike) -> dict[str, Any]:
    """Compare scores (N,) of the good and the bad sequences, higher being more probable.

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
    signs = outcomes(first, second)
    return {
        "pairs": len(signs),
        **exact_accuracy(int((signs > 0).sum()), len(signs)),
        "ties": int((signs == 0).sum()),
        "margin": float((first - second).mean()),
    }


def by_group(good: ArrayLike, bad: ArrayLike, groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The accuracy within each group, by name."""
    first, second, names = np.asarray(good), np.asarray(bad), np.asarray(groups)
    return {str(name): accuracy(first[names == name], second[names == name]) for name in np.unique(names)}


def macro(parts: Mapping[str, Mapping[str, Any]]) -> float:
    """Mean of the groups' accuracies: each group counts the same, however many pairs it has."""
    return float(np.mean([part["accuracy"] for part in parts.values()]))


def cosine(one: Floats, other: Floats) -> float:
    """Of two vectors; 0 where one has no length."""
    lengths = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return float(one @ other) / lengths if lengths else 0.0


def agreement(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How the cosines of pairs go with what is known of them: Spearman with its interval, and Pearson."""
    cosines = np.array([row["cosine"] for row in rows])
    found: dict[str, float] = {"pairs": len(rows), "mean_cosine": float(cosines.mean())}
    if "truth" not in rows[0]:
        return found
    truth = np.array([row["truth"] for row in rows])
    told = measures("value", truth, cosines, groups=np.arange(len(rows)), names=["cosine"])
    if "spearman" not in told:
        return found
    rho = told["spearman"]
    values = {"spearman": rho.value, "low": rho.low, "high": rho.high, "pearson": told["pearson"].value}
    return found | values
