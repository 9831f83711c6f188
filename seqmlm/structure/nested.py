"""Nested pairs: of all sets of pairs that do not cross, the one with the highest sum of weights.

Dynamic programming over intervals as of Nussinov and Jacobson (1980), where pairs come in stems of several
stacked pairs: single pairs of a map are as often noise as not. The trade-off is that pairs which cross
(pseudoknots) are never found, and that two stems around a bulge must each be long enough.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


def nested_pairs(weights: Doubles, *, loop: int = 3, min_stem: int = 3) -> list[tuple[int, int]]:
    """The pairs (i, j), i < j, ascending, of the best nested set of stems; of equal sums any one.

    Args:
        weights: (N, N), of which the upper triangle counts; NaN and -inf for pairs that cannot be.
        loop: units that are at least between the two of a pair.
        min_stem: stacked pairs (i, j), (i+1, j-1), ... of a stem.

    Takes time N x (N + pairs of a positive sum), and memory N x N twice.

    >>> weights = np.full((4, 4), -np.inf)
    >>> weights[0, 3] = weights[1, 2] = 1.0
    >>> nested_pairs(weights, loop=0, min_stem=2)
    [(0, 3), (1, 2)]
    """
    size = len(weights)
    weight = np.where(np.isnan(weights), -np.inf, weights)
    # inside[i, j]: best sum of units i to j - 1. stem[i, j]: the same if a stem begins with (i, j).
    inside = np.zeros((size + 1, size + 1))
    stem = np.full((size + 1, size + 1), -np.inf)
    opened = np.full((size, size), -np.inf)  # sum of the `min_stem` stacked pairs that begin with (i, j)
    for i in range(size - 1, -1, -1):
        inside[i] = inside[i + 1]
        _fill_stems(weight, inside, stem, opened, i, loop, min_stem)
        for j in np.flatnonzero(stem[i] > 0).tolist():
            np.maximum(inside[i, j + 1 :], stem[i, j] + inside[j + 1, j + 1 :], out=inside[i, j + 1 :])
    return sorted(_trace_pairs(weight, inside, stem, opened, min_stem))


def _fill_stems(
    weight: Doubles, inside: Doubles, stem: Doubles, opened: Doubles, i: int, loop: int, min_stem: int
) -> None:
    """Fill row i of `opened` and `stem`."""
    size = len(weight)
    ends = np.arange(
        i + 2 * min_stem - 1 + loop, size
    )  # of stems that have room for their pairs and the loop
    if not len(ends):
        return
    # -inf + -inf is no warning, and a finite number cannot come of it.
    opened[i, ends] = sum(weight[i + k, ends - k] for k in range(min_stem))
    stem[i, ends] = opened[i, ends] + inside[i + min_stem, ends - min_stem + 1]
    longer = weight[i, ends] + stem[i + 1, ends - 1]
    np.maximum(stem[i, ends], longer, out=longer)
    stem[i, ends] = longer


def _trace_pairs(
    weight: Doubles, inside: Doubles, stem: Doubles, opened: Doubles, min_stem: int
) -> list[tuple[int, int]]:
    """One of the best sets of pairs, by going back over the steps of its sum."""
    pairs: list[tuple[int, int]] = []
    waiting = [(0, len(weight))]
    while waiting:
        i, end = waiting.pop()
        while i < end and inside[i, end] == inside[i + 1, end]:
            i += 1
        if i >= end:
            continue
        ends = np.arange(i, end)
        j = int(ends[np.argmax(stem[i, ends] + inside[ends + 1, end])])
        waiting.append((j + 1, end))
        while stem[i, j] > opened[i, j] + inside[i + min_stem, j - min_stem + 1]:
            pairs.append((i, j))
            i, j = i + 1, j - 1
        pairs += [(i + k, j - k) for k in range(min_stem)]
        waiting.append((i + min_stem, j - min_stem + 1))
    return pairs
