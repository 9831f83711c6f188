"""Trees against all trees there are, counted one by one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from seqmlm.structure.trees import (
    TIE,
    chain,
    favour_adjacent,
    node_values,
    path_lengths,
    projective_tree,
    shuffle_by_distance,
    spanning_tree,
    unit_edges,
)


def _connected(size: int, edges: tuple[tuple[int, int], ...]) -> bool:
    reached, grown = {0}, True
    while grown:
        more = {b for edge in edges for a, b in (edge, edge[::-1]) if a in reached} - reached
        reached |= more
        grown = bool(more)
    return len(reached) == size


def _crossing(edges: tuple[tuple[int, int], ...]) -> bool:
    return any(a < c < b < d for (a, b) in edges for (c, d) in edges)


def all_trees(size: int) -> list[tuple[tuple[int, int], ...]]:
    pairs = list(combinations(range(size), 2))
    return [edges for edges in combinations(pairs, size - 1) if _connected(size, edges)]


TREES = {size: all_trees(size) for size in range(1, 7)}


def drawn(size: int, seed: int) -> np.ndarray:
    made = np.random.default_rng(seed).normal(size=(size, size))
    return made + made.T


def test_there_are_as_many_trees_as_cayley_and_noy_counted():
    assert [len(TREES[size]) for size in range(1, 7)] == [1, 1, 3, 16, 125, 1296]
    planar = [sum(not _crossing(tree) for tree in TREES[size]) for size in range(1, 7)]
    assert planar == [1, 1, 3, 12, 55, 273]


@pytest.mark.parametrize("size", range(1, 7))
@pytest.mark.parametrize("seed", range(8))
def test_both_are_the_best_of_all(size: int, seed: int):
    weights = drawn(size, seed)
    best = max(TREES[size], key=lambda tree: sum(weights[edge] for edge in tree))
    assert spanning_tree(weights) == set(best)
    planar = [tree for tree in TREES[size] if not _crossing(tree)]
    best = max(planar, key=lambda tree: sum(weights[edge] for edge in tree))
    assert projective_tree(weights) == set(best)


def test_where_a_map_says_nothing_the_tree_is_the_chain():
    for tree in (spanning_tree, projective_tree):
        assert tree(favour_adjacent(np.zeros((6, 6)))) == chain(6)
        almost = np.zeros((4, 4))
        almost[0, 3] = almost[3, 0] = TIE / 2
        assert tree(favour_adjacent(almost)) == chain(4)
    assert sorted(spanning_tree(np.zeros((4, 4)))) == [(0, 1), (1, 2), (2, 3)]  # the nearer of equal pairs


def test_nodes_have_the_largest_value_of_their_units():
    values = np.array(
        [[np.nan, 9, 1, -5], [9, np.nan, 3, np.nan], [1, 3, np.nan, np.nan], [-5, np.nan, np.nan, 0]]
    )
    made = node_values(values, [(0, 1), (2,), (3,)])
    assert made[0].tolist() == [9, 3, 0]  # below 0 counts as 0
    assert made[1, 2] == -1  # not asked about: worse than nothing
    assert node_values(values, []).shape == (0, 0)
    assert unit_edges([(0, 2), (1, 2)], [(0, 1), (5,), (3,)]) == {(0, 3), (3, 5)}


def test_path_lengths_and_values_dealt_anew():
    assert path_lengths(4, [(0, 2), (2, 1)])[0].tolist() == [0, 2, 1, np.inf]
    weights = drawn(8, 0)
    dealt = shuffle_by_distance(weights, np.random.default_rng(0))
    assert (dealt == dealt.T).all()
    for distance in range(1, 8):
        own, new = np.diagonal(weights, distance), np.diagonal(dealt, distance)
        assert sorted(own) == sorted(new)
    assert not np.array_equal(np.diagonal(weights, 1), np.diagonal(dealt, 1))
