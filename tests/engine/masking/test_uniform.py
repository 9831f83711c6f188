"""`uniform.v1`: tokens independently, at the rate."""

from __future__ import annotations

import numpy as np

from seqmlm.engine.masking.base import eligible_tokens
from seqmlm.engine.masking.uniform import Uniform


def test_rate_within_binomial_bounds_and_neighbours_independent(space, long):
    selected = Uniform(rate=0.15, space=space).select(
        long, eligible_tokens(long, space), np.random.default_rng(0)
    )
    inner = selected[1:-1].astype(float)
    assert abs(inner.mean() - 0.15) < 5 * np.sqrt(0.15 * 0.85 / 30_000)
    assert abs(np.corrcoef(inner[1:], inner[:-1])[0, 1]) < 5 / np.sqrt(30_000)
