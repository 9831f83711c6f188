"""Fusions: against the formulas in plain numbers, to the edge of floating point."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import combine_pvalues

from seqmlm.evaluation.conformal import FUSIONS, fisher, harmonic
from seqmlm.evaluation.ranks import LEAST_P


def test_the_formulas() -> None:
    rng = np.random.default_rng(0)
    p_values = {name: rng.uniform(1e-6, 1, size=50) for name in "abc"}
    rows = list(zip(*p_values.values(), strict=True))
    assert fisher(p_values) == pytest.approx([combine_pvalues(row, "fisher").statistic for row in rows])
    means = [len(row) / sum(1 / p for p in row) for row in rows]
    assert harmonic(p_values) == pytest.approx([-math.log(mean) for mean in means])


def test_what_says_nothing_dilutes_a_sum_and_hardly_a_mean_led_by_the_smallest() -> None:
    few = {name: np.array([0.5, 0.001]) for name in "ab"}
    faulty = {"a": np.array([0.15, 0.001]), **{name: np.array([0.15, 1.0]) for name in "bcdefghij"}}
    assert fisher(faulty)[0] > fisher(faulty)[1]
    assert harmonic(faulty)[1] > harmonic(faulty)[0]
    for fused in FUSIONS.values():
        assert fused(few)[1] > fused(few)[0]


@pytest.mark.parametrize("name", FUSIONS)
def test_the_least_p_values_are_finite_and_above_all_others(name: str) -> None:
    fused = FUSIONS[name]  # type: ignore[index]
    found = fused({"a": np.array([1.0, 1e-9, LEAST_P]), "b": np.ones(3)})
    assert np.isfinite(found).all()
    assert found[0] == pytest.approx(0)
    assert (np.diff(found) > 0).all()
