"""Accuracy on minimal pairs: how often the better sequence is the more probable one.

A tie counts as wrong: the model has not distinguished the two. Two scores tie if they agree to the third
decimal (as CrowS-Pairs, Nangia et al. 2020, rounds them); smaller differences are float32 rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqmlm.errors import DataError
from seqmlm.evaluation.intervals import Rate, exact_rate

Doubles = NDArray[np.float64]
_DECIMALS = 3


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """The result on some pairs.

    Args:
        rate: pairs in which the good sequence scores strictly higher, with the exact interval.
        ties: pairs with equal scores, counted as wrong.
        margin: mean of good minus bad, in the unit of the scores.
    """

    rate: Rate
    ties: int
    margin: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rate = self.rate
        return {
            "pairs": rate.trials,
            "accuracy": rate.value,
            "low": rate.low,
            "high": rate.high,
            "ties": self.ties,
            "margin": self.margin,
        }


def outcomes(good: ArrayLike, bad: ArrayLike) -> NDArray[np.int8]:
    """(N,) 1 where the good score is higher, 0 at a tie, -1 where the bad one is."""
    first, second = (np.round(np.asarray(side, dtype=np.float64), _DECIMALS) for side in (good, bad))
    signs: NDArray[np.int8] = np.sign(first - second).astype(np.int8)
    return signs


def accuracy(good: ArrayLike, bad: ArrayLike) -> Accuracy:
    """Compare scores (N,) of the good and the bad sequences, higher being more probable.

    >>> accuracy([-1.0, -2.0, -3.0], [-2.0, -2.0, -1.0]).rate.hits
    1

    Raises:
        DataError: no pairs.
    """
    first, second = np.asarray(good, dtype=np.float64), np.asarray(bad, dtype=np.float64)
    if not len(first):
        raise DataError("there are no pairs to compare", remedy="name a file that contains pairs")
    signs = outcomes(first, second)
    return Accuracy(
        rate=exact_rate(int((signs > 0).sum()), len(signs)),
        ties=int((signs == 0).sum()),
        margin=float((first - second).mean()),
    )


def by_group(good: ArrayLike, bad: ArrayLike, groups: Sequence[str]) -> dict[str, Accuracy]:
    """The accuracy within each group, by name."""
    first, second, names = np.asarray(good), np.asarray(bad), np.asarray(groups)
    return {str(name): accuracy(first[names == name], second[names == name]) for name in np.unique(names)}


def macro(parts: dict[str, Accuracy]) -> float:
    """Mean of the groups' accuracies: each group counts the same, however many pairs it has."""
    return float(np.mean([part.rate.value for part in parts.values()]))
