"""Nested pairs: of all sets of pairs that do not cross, the one with the highest sum of weights.

Dynamic programming over intervals as of Nussinov and Jacobson (1980), where pairs come in stems of several
stacked pairs: single pairs of a map are as often noise as not. The trade-off is that pairs which cross
(pseudoknots) are never found, and that two stems around a bulge must each be long enough.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


def nested(weights: Doubles, *, loop: int = 3, least: int = 3) -> list[tuple[int, int]]:
    """The pairs (i, j), i < j, ascending, of the best nested set of stems; of equal sums any one.

    Args:
        weights: (N, N), of which the upper triangle counts; NaN and -inf for pairs that cannot be.
        loop: units that are at least between the two of a pair.
        least: stacked pairs (i, j), (i+1, j-1), ... of a stem.

    Takes time N x (N + pairs of a positive sum), and memory N x N twice.

    >>> weights = np.full((4, 4), -np.inf)
    >>> weights[0, 3] = weights[1, 2] = 1.0
    >>> nested(weights, loop=0, least=2)
    [(0, 3), (1, 2)]
    """
    size = len(weights)
    weight = np.where(np.isnan(weights), -np.inf, weights)
    # inside[i, j]: best sum of units i to j - 1. stem[i, j]: the same if a stem begins with (i, j).
    inside = np.zeros((size + 1, size + 1))
    stem = np.full((size + 1, size + 1), -np.inf)
    opened = np.full((size, size), -np.inf)  # sum of the `least` stacked pairs that begin with (i, j)
    for i in range(size - 1, -1, -1):
        inside[i] = inside[i + 1]
        _stems(weight, inside, stem, opened, i, loop, least)
        for j in np.flatnonzero(stem[i] > 0).tolist():
            np.maximum(inside[i, j + 1 :], stem[i, j] + inside[j + 1, j + 1 :], out=inside[i, j + 1 :])
    return sorted(_traced(weight, inside, stem, opened, least))


def _stems(
    weight: Doubles, inside: Doubles, stem: Doubles, opened: Doubles, i: int, loop: int, least: int
) -> None:
    """Fill row i of `opened` and `stem`."""
    size = len(weight)
    ends = np.arange(i + 2 * least - 1 + loop, size)  # of stems that have room for their pairs and the loop
    if not len(ends):
        return
    # -inf + -inf is no warning, and a finite number cannot come of it.
    opened[i, ends] = sum(weight[i + k, ends - k] for k in range(least))
    stem[i, ends] = opened[i, ends] + inside[i + least, ends - least + 1]
    longer = weight[i, ends] + stem[i + 1, ends - 1]
    np.maximum(stem[i, ends], longer, out=longer)
    stem[i, ends] = longer


def _traced(
    weight: Doubles, inside: Doubles, stem: Doubles, opened: Doubles, least: int
) -> list[tuple[int, int]]:
    """One of the best sets, by going back over how its sum was made."""
    found: list[tuple[int, int]] = []
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
        while stem[i, j] > opened[i, j] + inside[i + least, j - least + 1]:
            found.append((i, j))
            i, j = i + 1, j - 1
        found += [(i + k, j - k) for k in range(least)]
        waiting.append((i + least, j - least + 1))
    return found
