"""Nested pairs: the set of pairs with the highest sum of weights among all sets whose pairs do not cross.

It is dynamic programming over intervals as in Nussinov and Jacobson (1980), in which pairs form stems of
several stacked pairs. Single pairs of a map are too often noise. Pairs that cross (pseudoknots) are never
found. Two stems around a bulge must each be long enough.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


def nested_pairs(weights: Doubles, *, loop: int = 3, min_stem: int = 3) -> list[tuple[int, int]]:
    """The pairs (i, j), i < j, ascending, of the nested set of stems with the highest sum.

    If several sets have the same sum, any of them may be returned. The time is N x (N + pairs with a
    positive sum), and the memory two N x N arrays.

    Args:
        weights: (N, N), of which only the upper triangle is used; NaN or -inf for impossible pairs.
        loop: smallest number of units between the two units of a pair.
        min_stem: smallest number of stacked pairs (i, j), (i+1, j-1), ... in a stem.

    >>> weights = np.full((4, 4), -np.inf)
    >>> weights[0, 3] = weights[1, 2] = 1.0
    >>> nested_pairs(weights, loop=0, min_stem=2)
    [(0, 3), (1, 2)]
    """
    size = len(weights)
    weight = np.where(np.isnan(weights), -np.inf, weights)
    # inside[i, j]: best sum for units i to j - 1. stem[i, j]: the same if a stem begins with (i, j).
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
    )  # ends of stems that have room for their pairs and the loop
    if not len(ends):
        return
    # -inf + -inf gives no warning, and its result is not finite.
    opened[i, ends] = sum(weight[i + k, ends - k] for k in range(min_stem))
    stem[i, ends] = opened[i, ends] + inside[i + min_stem, ends - min_stem + 1]
    longer = weight[i, ends] + stem[i + 1, ends - 1]
    np.maximum(stem[i, ends], longer, out=longer)
    stem[i, ends] = longer


def _trace_pairs(
    weight: Doubles, inside: Doubles, stem: Doubles, opened: Doubles, min_stem: int
) -> list[tuple[int, int]]:
    """One of the best sets of pairs, found by tracing back the steps of its sum."""
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
