"""Accuracy on minimal pairs: ties are wrong, groups count the same in the macro mean."""

from __future__ import annotations

import math

import pytest

from seqmlm.errors import DataError
from seqmlm.evaluation.pairs import accuracy, comparison_signs, group_accuracies, macro_accuracy, pair_figures


def test_ties_are_wrong_and_counted() -> None:
    found = accuracy([-1.0, -2.0, -3.0, -1.0002], [-2.0, -2.0, -1.0, -1.0003])
    assert (found["accuracy"], found["pairs"], found["ties"]) == (1 / 4, 4, 2)
    assert found["margin"] == pytest.approx((1.0 + 0.0 - 2.0 + 0.0001) / 4)
    assert comparison_signs([1.0, 0.0, 0.0], [0.0, 0.0, 1.0]).tolist() == [1, 0, -1]
    assert comparison_signs([-math.inf], [-1.0]).tolist() == [-1]


def test_groups_count_the_same_in_the_macro_mean() -> None:
    groups = group_accuracies([1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0], ["a", "a", "a", "b"])
    assert {name: part["accuracy"] for name, part in groups.items()} == {"a": 1.0, "b": 0.0}
    assert macro_accuracy(groups) == 0.5
    assert 0 < groups["a"]["low"] < groups["a"]["high"] == 1.0


def test_other_metrics_of_the_same_rows() -> None:
    rows = [
        {"pll_good": good, "pll_bad": bad, "units_good": 4, "units_bad": 2, "length_good": 9, "length_bad": 5}
        | {"group": "", "unknown": 1}
        for good, bad in ((-8.0, -3.0), (-2.0, -6.0))
    ]
    found = pair_figures(rows, "sum")
    assert (found["accuracy"], found["margin"], found["unknown_tokens"]) == (0.5, -0.5, 2)
    assert found["beside"]["mean"]["margin"] == pytest.approx(((1.5 - 2) + (3 - 0.5)) / 2)
    assert found["beside"]["length"]["accuracy"] == 0
    assert found["groups"] == {}
    assert set(pair_figures(rows, "shared")["beside"]) == {"length"}


def test_no_pairs_are_an_error() -> None:
    with pytest.raises(DataError, match="no pairs"):
        accuracy([], [])
