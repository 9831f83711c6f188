"""The tail: known laws, few values, degenerate ones."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import genpareto

from seqmlm.evaluation.ranks import Tail


def fitted(values: np.ndarray) -> Tail:
    tail = Tail.fit(np.sort(values))
    assert tail is not None
    return tail


@pytest.mark.parametrize("shape", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("scale", [1e-6, 3.0])
def test_many_excesses_give_the_law_back(shape: float, scale: float) -> None:
    rng = np.random.default_rng(1)
    tail = fitted(genpareto.rvs(shape, scale=scale, size=200_000, random_state=rng))
    assert tail.shape == pytest.approx(shape, abs=0.06)
    # Above its threshold, a generalized Pareto law has the scale `scale + shape * threshold`.
    assert tail.scale == pytest.approx(scale + shape * tail.threshold, rel=0.08)
    assert tail.scale / scale > 0.9


def test_it_is_scipys_fit_where_the_prior_has_nothing_to_say() -> None:
    rng = np.random.default_rng(2)
    values = np.sort(genpareto.rvs(0.3, size=500_000, random_state=rng))
    tail = fitted(values)
    excesses = values[values > tail.threshold] - tail.threshold
    shape, _, scale = genpareto.fit(excesses, floc=0)
    assert tail.shape == pytest.approx(shape, abs=0.01)
    assert tail.scale == pytest.approx(scale, rel=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_few_excesses_stay_sober(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tail = fitted(rng.exponential(size=100))
    assert 0 <= tail.shape < 0.45
    assert 0.3 < tail.scale < 2.5


def test_a_tail_with_an_end_is_given_none() -> None:
    tail = fitted(np.random.default_rng(3).uniform(size=10_000))
    assert tail.shape == 0.0
    assert 0 < genpareto.sf(1.5, tail.shape, loc=tail.threshold, scale=tail.scale) < 1e-3


def test_rarer_and_rarer_beyond_the_largest() -> None:
    tail = fitted(np.random.default_rng(4).normal(size=5_000))
    far = tail.beyond_largest(tail.largest + np.array([0.0, 1e-9, 0.5, 3.0, 1e6, np.inf]))
    assert far[0] == 1.0
    assert far[1] == pytest.approx(1.0, abs=1e-6)
    assert (np.diff(far) <= 0).all()
    assert far[2] < 1
    assert far[-1] == 0


@pytest.mark.parametrize(
    "values",
    [[], [1.0], [1.0, 2.0, 3.0], [7.0] * 1000, [0.0] * 999 + [1.0], [0.0] * 500 + [np.inf], [-np.inf] * 500],
)
def test_no_tail_where_there_is_none(values: list[float]) -> None:
    assert Tail.fit(np.array(values)) is None
