"""Accuracy on minimal pairs: ties are wrong, groups count the same in the macro mean."""

from __future__ import annotations

import math

import pytest

from seqmlm.errors import DataError
from seqmlm.evaluation.pairs import accuracy, by_group, macro, outcomes


def test_ties_are_wrong_and_counted() -> None:
    found = accuracy([-1.0, -2.0, -3.0, -1.0002], [-2.0, -2.0, -1.0, -1.0003])
    assert (found.rate.hits, found.rate.trials, found.ties) == (1, 4, 2)
    assert found.margin == pytest.approx((1.0 + 0.0 - 2.0 + 0.0001) / 4)
    assert outcomes([1.0, 0.0, 0.0], [0.0, 0.0, 1.0]).tolist() == [1, 0, -1]
    assert outcomes([-math.inf], [-1.0]).tolist() == [-1]


def test_groups_count_the_same_in_the_macro_mean() -> None:
    groups = by_group([1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0], ["a", "a", "a", "b"])
    assert {name: part.rate.value for name, part in groups.items()} == {"a": 1.0, "b": 0.0}
    assert macro(groups) == 0.5
    assert 0 < groups["a"].rate.low < groups["a"].rate.high == 1.0


def test_no_pairs_are_an_error() -> None:
    with pytest.raises(DataError, match="no pairs"):
        accuracy([], [])
