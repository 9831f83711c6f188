"""Intervals of ratios against the delta method."""

from __future__ import annotations

import numpy as np
import pytest

from seqmlm.evaluation.intervals import ratio


def test_a_ratio_of_sums_and_its_interval() -> None:
    random = np.random.default_rng(0)
    hits, sizes = random.integers(0, 5, 200), random.integers(5, 10, 200)
    found = ratio(hits, sizes, draws=500, seed=1)
    assert found.value == pytest.approx(hits.sum() / sizes.sum())
    # The delta method: the variance of hits - value x sizes by the squared mean size, and by the items.
    error = np.std(hits - found.value * sizes) / sizes.mean() / np.sqrt(200)
    assert found.value - found.low == pytest.approx(1.96 * error, rel=0.2)
    assert found.high - found.value == pytest.approx(1.96 * error, rel=0.2)
    assert ratio([1.0, 2.0, 6.0]).value == pytest.approx(3.0), "a mean"
    assert np.isnan(ratio([1.0]).low)
    assert np.isnan(ratio([0.0, 0.0], [0.0, 0.0]).value)
