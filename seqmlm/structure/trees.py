"""Trees over the units of a sequence: the maximum spanning tree, and the best one whose edges do not cross.

Units are put together to nodes first (the pieces of a word, the words of a string), what is no node
(punctuation, white space) takes no part. Values below 0 count as 0, as of Zhang and Hashimoto (2021), whose
tie-break this has, too: neighbours get a little more, so that where a map says nothing the tree is the chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Node = tuple[int, ...]
"""Units that are one, ascending; the first of them stands for all."""
Edge = tuple[int, int]
"""Two units or nodes, the smaller first."""

TIE = 1e-4
"""Neighbours get so much more than others, in the unit of the map."""

_UNASKED = -1.0  # below every value: such a pair is an edge only where nothing else connects its sides


def node_values(values: Doubles, nodes: Sequence[Node]) -> Doubles:
    """(M, M) values between nodes, each of units of its own: the largest of their units' (N, N), at least 0;
    -1 for pairs not asked about (NaN)."""
    order = [unit for node in nodes for unit in node]
    if not order:
        return np.zeros((0, 0))
    filled = np.where(np.isnan(values), _UNASKED, np.maximum(values, 0.0))[np.ix_(order, order)]
    starts = np.cumsum([0, *(len(node) for node in nodes[:-1])])
    between: Doubles = np.maximum.reduceat(np.maximum.reduceat(filled, starts, axis=0), starts, axis=1)
    return between


def favour_adjacent(weights: Doubles) -> Doubles:
    """(N, N) weights, those of adjacent positions raised by `TIE`: of equal pairs the adjacent ones win."""
    side = np.arange(len(weights) - 1)
    tied = weights.copy()
    tied[side, side + 1] += TIE
    tied[side + 1, side] += TIE
    return tied


def spanning_tree(weights: Doubles) -> frozenset[Edge]:
    """The tree with the largest sum of weights; of equal pairs the nearer, then the first is taken.

    Args:
        weights: (M, M) symmetric, without NaN.

    >>> sorted(spanning_tree(np.array([[0.0, 1, 5], [1, 0, 2], [5, 2, 0]])))
    [(0, 2), (1, 2)]
    """
    from scipy.sparse.csgraph import minimum_spanning_tree

    size = len(weights)
    if size < 2:
        return frozenset()
    first, second = np.triu_indices(size, 1)
    order = np.lexsort((first, second - first, -weights[first, second]))
    # Ranks instead of weights: no two are equal, and none is 0, which would be no edge to scipy.
    ranks = np.zeros((size, size))
    ranks[first[order], second[order]] = np.arange(1, len(order) + 1)
    i, j = minimum_spanning_tree(ranks).nonzero()
    return frozenset(zip(np.minimum(i, j).tolist(), np.maximum(i, j).tolist(), strict=True))


def projective_tree(weights: Doubles) -> frozenset[Edge]:
    """The tree with the largest sum of weights (M, M), symmetric, among those no two edges of which cross.

    Eisner's (1996) algorithm for weights without direction, M^3 steps: a tree over i..j is the edge from i
    to its farthest neighbour m with a tree on either side of a cut below it, and a tree over m..j.
    """
    size = len(weights)
    best = np.zeros((size, size))  # of a tree over i..j
    joined = np.zeros((size, size))  # of a tree over i..j that has the edge (i, j)
    cut = np.zeros((size, size), dtype=np.int64)
    far = np.zeros((size, size), dtype=np.int64)
    for width in range(1, size):
        for i in range(size - width):
            j = i + width
            sides = best[i, i:j] + best[i + 1 : j + 1, j]
            cut[i, j] = i + int(sides.argmax())
            joined[i, j] = weights[i, j] + sides.max()
            through = joined[i, i + 1 : j + 1] + best[i + 1 : j + 1, j]
            far[i, j] = i + 1 + int(through.argmax())
            best[i, j] = through.max()
    edges: set[Edge] = set()
    waiting = [(0, size - 1)] if size > 1 else []
    while waiting:
        i, j = waiting.pop()
        middle = int(far[i, j])
        edges.add((i, middle))
        between = int(cut[i, middle])
        waiting += [(a, b) for a, b in ((i, between), (between + 1, middle), (middle, j)) if a < b]
    return frozenset(edges)


def path_lengths(size: int, edges: Iterable[Edge]) -> Doubles:
    """(size, size) edges on the way from one node to another; infinite where there is none."""
    from scipy.sparse.csgraph import shortest_path

    links = np.zeros((size, size))
    for i, j in edges:
        links[i, j] = links[j, i] = 1.0
    lengths: Doubles = shortest_path(links, directed=False, unweighted=True)
    return lengths


def chain(size: int) -> frozenset[Edge]:
    """The edges of every node to the next one: the rival that needs no model."""
    return frozenset((node, node + 1) for node in range(size - 1))


def unit_edges(edges: Iterable[Edge], nodes: Sequence[Node]) -> frozenset[Edge]:
    """Edges between nodes as edges between the units that stand for them."""
    pairs = ((nodes[i][0], nodes[j][0]) for i, j in edges)
    return frozenset((min(pair), max(pair)) for pair in pairs)


def shuffle_by_distance(weights: Doubles, random: np.random.Generator) -> Doubles:
    """The same values, dealt anew among the pairs that are equally far apart."""
    shuffled = np.zeros_like(weights)
    for distance in range(1, len(weights)):
        values = random.permutation(np.diagonal(weights, distance))
        at = np.arange(len(values))
        shuffled[at, at + distance] = shuffled[at + distance, at] = values
    return shuffled
