"""The best nested stems against all nested sets there are."""

from __future__ import annotations

import numpy as np
import pytest

from seqmlm.structure.nested import nested_pairs

Pairs = list[tuple[int, int]]


def allowed(pairs: Pairs, loop: int, least: int) -> bool:
    """Whether no unit is in two pairs, none cross, loops have room and stems are long enough."""
    units = [unit for pair in pairs for unit in pair]
    crossed = any(a < c < b < d for a, b in pairs for c, d in pairs)
    if len(set(units)) != len(units) or crossed or any(b - a - 1 < loop for a, b in pairs):
        return False
    there = set(pairs)
    for i, j in pairs:
        while (i - 1, j + 1) in there:
            i, j = i - 1, j + 1
        length = 0
        while (i, j) in there:
            i, j, length = i + 1, j - 1, length + 1
        if length < least:
            return False
    return True


def best(weights: np.ndarray, loop: int, least: int) -> float:
    """The highest sum of any allowed set."""
    size, found = len(weights), 0.0

    def extended(pairs: Pairs, start: int) -> None:
        nonlocal found
        if allowed(pairs, loop, least):
            found = max(found, sum(weights[pair] for pair in pairs))
        for i in range(start, size):
            for j in range(i + 1, size):
                if np.isfinite(weights[i, j]):
                    extended([*pairs, (i, j)], i + 1)

    extended([], 0)
    return found


@pytest.mark.parametrize(("loop", "least"), [(0, 1), (1, 1), (3, 1), (0, 2), (1, 2), (2, 2), (0, 3)])
def test_the_sum_is_that_of_the_best_of_all_sets(loop: int, least: int) -> None:
    random = np.random.default_rng(loop * 10 + least)
    paired = 0
    for _ in range(20):
        size = int(random.integers(1, 8))
        weights = random.normal(0.3, 1, (size, size))
        weights[random.random((size, size)) < 0.3] = random.choice([-np.inf, np.nan])
        pairs = nested_pairs(weights, loop=loop, min_stem=least)
        assert allowed(pairs, loop, least)
        assert sum(weights[pair] for pair in pairs) == pytest.approx(best(weights, loop, least))
        paired += bool(pairs)
    assert paired


def test_ten_units_with_long_stems() -> None:
    weights = np.full((10, 10), -np.inf)
    weights[0, 9], weights[1, 8], weights[2, 7] = 1.0, -0.5, 1.0  # a weak pair within a stem
    weights[0, 5] = 1.2  # stronger than any of them, and alone
    assert nested_pairs(weights) == [(0, 9), (1, 8), (2, 7)]
    assert nested_pairs(weights, min_stem=1) == [(0, 9), (2, 7)]
    assert nested_pairs(weights, loop=5) == []
    assert sum(weights[pair] for pair in nested_pairs(weights)) == best(weights, 3, 3)


def test_no_units() -> None:
    assert nested_pairs(np.zeros((0, 0))) == []
