"""Trees over the units of a sequence: the maximum spanning tree, and the best tree whose edges do not cross.

Units are first combined into nodes (the pieces of a word, the words of a string). Units without a node
(punctuation, white space) are not part of the tree. Values below 0 count as 0, as in Zhang and Hashimoto
(2021). As in their tie-break, neighbours get a slightly larger value. If a map has no information, the tree
is therefore the chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Node = tuple[int, ...]
"""Units of one node, ascending; the first represents the node."""
Edge = tuple[int, int]
"""Two units or nodes, the smaller first."""

TIE = 1e-4
"""Number that is added to the values of neighbours, in the unit of the map."""

_UNASKED = -1.0  # below every value: such a pair is an edge only if nothing else connects its sides


def node_values(values: Doubles, nodes: Sequence[Node]) -> Doubles:
    """(M, M) values between nodes: the largest value of their units, at least 0; -1 for unknown pairs.

    Args:
        values: (N, N) values of units, NaN for unknown pairs.
        nodes: the M nodes, without a common unit.
    """
    order = [unit for node in nodes for unit in node]
    if not order:
        return np.zeros((0, 0))
    filled = np.where(np.isnan(values), _UNASKED, np.maximum(values, 0.0))[np.ix_(order, order)]
    starts = np.cumsum([0, *(len(node) for node in nodes[:-1])])
    between: Doubles = np.maximum.reduceat(np.maximum.reduceat(filled, starts, axis=0), starts, axis=1)
    return between


def favour_adjacent(weights: Doubles) -> Doubles:
    """(N, N) weights. Weights of adjacent positions are raised by `TIE`, so that they win ties."""
    side = np.arange(len(weights) - 1)
    tied = weights.copy()
    tied[side, side + 1] += TIE
    tied[side + 1, side] += TIE
    return tied


def spanning_tree(weights: Doubles) -> frozenset[Edge]:
    """The tree with the largest sum of weights; of equal pairs, the nearer one and then the first is used.

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
    # Ranks instead of weights: no two are equal, and none is 0, which scipy would not treat as an edge.
    ranks = np.zeros((size, size))
    ranks[first[order], second[order]] = np.arange(1, len(order) + 1)
    i, j = minimum_spanning_tree(ranks).nonzero()
    return frozenset(zip(np.minimum(i, j).tolist(), np.maximum(i, j).tolist(), strict=True))


def projective_tree(weights: Doubles) -> frozenset[Edge]:
    """The tree with the largest sum of weights among all trees whose edges do not cross.

    It is Eisner's (1996) algorithm for weights without direction, with M^3 steps. A tree over i..j consists
    of three parts. The first is the edge from i to its farthest neighbour m. The second is a tree on either
    side of a cut below this edge. The third is a tree over m..j.

    Args:
        weights: (M, M) symmetric.
    """
    size = len(weights)
    best = np.zeros((size, size))  # largest sum of a tree over i..j
    joined = np.zeros((size, size))  # largest sum of a tree over i..j that has the edge (i, j)
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
    """(size, size) number of edges on the path between two nodes; infinite if there is no path."""
    from scipy.sparse.csgraph import shortest_path

    links = np.zeros((size, size))
    for i, j in edges:
        links[i, j] = links[j, i] = 1.0
    lengths: Doubles = shortest_path(links, directed=False, unweighted=True)
    return lengths


def chain(size: int) -> frozenset[Edge]:
    """The edges from every node to the next one: the baseline without a model."""
    return frozenset((node, node + 1) for node in range(size - 1))


def unit_edges(edges: Iterable[Edge], nodes: Sequence[Node]) -> frozenset[Edge]:
    """Edges between nodes as edges between the units that represent them."""
    pairs = ((nodes[i][0], nodes[j][0]) for i, j in edges)
    return frozenset((min(pair), max(pair)) for pair in pairs)


def shuffle_by_distance(weights: Doubles, random: np.random.Generator) -> Doubles:
    """The weights, shuffled among the pairs at the same distance."""
    shuffled = np.zeros_like(weights)
    for distance in range(1, len(weights)):
        values = random.permutation(np.diagonal(weights, distance))
        at = np.arange(len(values))
        shuffled[at, at + distance] = shuffled[at + distance, at] = values
    return shuffled
