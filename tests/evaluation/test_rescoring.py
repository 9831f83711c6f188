"""Interpolation, norms and word errors against their definitions."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.errors import DataError
from seqmlm.evaluation.rescoring import edit_distance, error_rate, totals


@given(st.text("ab", max_size=6), st.text("ab", max_size=6))
def test_edit_distance_is_its_recursion(first: str, second: str) -> None:
    @cache
    def naive(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        changed = naive(i - 1, j - 1) + (first[i - 1] != second[j - 1])
        return min(changed, naive(i - 1, j) + 1, naive(i, j - 1) + 1)

    assert edit_distance(first, second) == naive(len(first), len(second))


def test_totals_by_hand() -> None:
    first, pll, words = [-10.0, -12.0, -1.0], [-20.0, -8.0, 0.0], [4, 2, 0]
    assert totals(first, pll, words, weight=0).tolist() == first
    assert totals(first, pll, words, weight=0.5).tolist() == [-20.0, -16.0, -np.inf]
    assert totals(first, pll, words, weight=0.5, temperature=2).tolist() == [-15.0, -14.0, -np.inf]
    assert totals(first, pll, words, weight=0.5, norm="length").tolist() == [-5.0, -8.0, -np.inf]
    expected = [-20.0 / (9 / 6) ** 0.6, -16.0 / (7 / 6) ** 0.6]
    assert totals(first, pll, words, weight=0.5, norm="gnmt")[:2] == pytest.approx(expected)


def test_error_rates() -> None:
    assert error_rate([1, 0, 2], [5, 5, 10]) == 0.15
    with pytest.raises(DataError, match="no words"):
        error_rate([0], [0])
