"""Reranking of n-best lists by log-linear interpolation (Salazar et al. 2020), and its error rates.

    total(W) = (first(W) + weight * PLL(W) / temperature) / norm(|W|)

with |W| the words of W, and norm 1 ("none"), |W| ("length") or ((5 + |W|) / 6) ** 0.6 ("gnmt", Wu et al.
2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqmlm.errors import DataError
from seqmlm.evaluation.intervals import Difference, summarized

Norm = Literal["none", "length", "gnmt"]
Doubles = NDArray[np.float64]
_GNMT_ALPHA = 0.6


def totals(
    first: ArrayLike,
    pll: ArrayLike,
    lengths: ArrayLike,
    *,
    weight: float,
    norm: Norm = "none",
    temperature: float = 1.0,
) -> Doubles:
    """The interpolated score of each hypothesis (H,); higher is better.

    A hypothesis without words has no pseudo-log-likelihood: with a weight above 0 its total is -inf.

    Args:
        first: (H,) log-probabilities of the first pass.
        pll: (H,) pseudo-log-likelihoods, nats.
        lengths: (H,) words.
        weight: at least 0; 0 is the first pass, divided by the norm.
        norm: what totals are divided by.
        temperature: above 0; divides the pseudo-log-likelihood.
    """
    words = np.asarray(lengths, dtype=np.float64)
    model = np.asarray(pll, dtype=np.float64) / temperature
    total = np.asarray(first, dtype=np.float64) + weight * model
    if norm == "length":
        total = total / np.maximum(words, 1)
    elif norm == "gnmt":
        total = total / ((5 + words) / 6) ** _GNMT_ALPHA
    return np.where((words == 0) & (weight > 0), -np.inf, total)


def edit_distance(first: Sequence[object], second: Sequence[object]) -> int:
    """Fewest insertions, deletions and substitutions between two sequences (Levenshtein 1966).

    >>> edit_distance("kitten", "sitting")
    3
    """
    row = list(range(len(second) + 1))
    for i, one in enumerate(first, start=1):
        before, row[0] = row[0], i
        for j, other in enumerate(second, start=1):
            changed = before + (one != other)
            before = row[j]
            row[j] = min(changed, row[j] + 1, row[j - 1] + 1)
    return row[-1]


def error_rate(edits: ArrayLike, lengths: ArrayLike) -> float:
    """Edits over the words of the references: the word error rate.

    Raises:
        DataError: references without a word.
    """
    words = float(np.sum(np.asarray(lengths)))
    if not words:
        raise DataError("the references have no words", remedy="check the reference file")
    return float(np.sum(np.asarray(edits))) / words


def error_rate_difference(
    first: ArrayLike, second: ArrayLike, lengths: ArrayLike, *, draws: int = 1000, seed: int = 0
) -> Difference:
    """First error rate minus second, with a paired bootstrap over lists (Bisani and Ney 2004).

    Args:
        first, second: (N,) edits of each list's choice.
        lengths: (N,) words of its reference.
        draws, seed: of the resampling.
    """
    gains = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    words = np.asarray(lengths, dtype=np.float64)
    chosen = np.random.default_rng(seed).integers(len(gains), size=(draws, len(gains)))
    sums = words[chosen].sum(axis=1)
    drawn = np.divide(gains[chosen].sum(axis=1), sums, out=np.full(draws, np.nan), where=sums > 0)
    return summarized(error_rate(gains, words), drawn)
