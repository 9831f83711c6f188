"""`uniform.v1` and `whole_unit.v1`: tokens independently, or units as a whole, at the rate."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.engine.masking.base import eligible_tokens
from seqmlm.engine.masking.uniform import Uniform
from seqmlm.engine.masking.whole_unit import WholeUnit


@given(data=st.data(), seed=st.integers(0, 99))
def test_units_are_selected_as_a_whole(encodings, space, data, seed):
    encoding = data.draw(encodings)
    eligible = eligible_tokens(encoding, space)
    selected = WholeUnit(rate=0.4, space=space).select(encoding, eligible, np.random.default_rng(seed))
    for group in set(encoding.groups.tolist()):
        own = selected[(encoding.groups == group) & eligible]
        assert own.all() or not own.any()


def test_rate_counts_units(space, long):
    selected = WholeUnit(rate=0.2, space=space).select(
        long, eligible_tokens(long, space), np.random.default_rng(0)
    )
    units = len(set(long.groups.tolist()) - {-1})
    chosen = len(set(long.groups[selected].tolist()))
    assert abs(chosen / units - 0.2) < 5 * np.sqrt(0.2 * 0.8 / units)
    assert WholeUnit.outcome == "unit"


def test_rate_within_binomial_bounds_and_neighbours_independent(space, long):
    selected = Uniform(rate=0.15, space=space).select(
        long, eligible_tokens(long, space), np.random.default_rng(0)
    )
    inner = selected[1:-1].astype(float)
    assert abs(inner.mean() - 0.15) < 5 * np.sqrt(0.15 * 0.85 / 30_000)
    assert abs(np.corrcoef(inner[1:], inner[:-1])[0, 1]) < 5 / np.sqrt(30_000)
