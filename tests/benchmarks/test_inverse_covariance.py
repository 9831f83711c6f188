"""Inverse covariance tells a chain's steps from its ends; rows weigh what they should."""

from __future__ import annotations

import numpy as np
from inverse_covariance import inverse_covariance


def test_direct_pairs_are_above_indirect_ones() -> None:
    random = np.random.default_rng(3)
    columns = [random.integers(4, size=2000)]
    for _ in range(3):
        kept = random.random(2000) < 0.8
        columns.append(np.where(kept, columns[-1], random.integers(4, size=2000)))
    columns.append(random.integers(4, size=2000))
    rows = np.stack(columns + [random.integers(4, size=2000) for _ in range(15)], axis=1)
    found = inverse_covariance(rows, 4)
    steps = [found[k, k + 1] for k in range(3)]
    others = [found[i, j] for i in range(5) for j in range(i + 1, 5) if j != i + 1 or i > 2]
    assert min(steps) > 3 * max(others)
    assert np.isnan(np.diag(found)).all()
    np.testing.assert_allclose(found, found.T, atol=1e-9)


def test_gaps_have_no_part_in_the_norm() -> None:
    random = np.random.default_rng(4)
    rows = random.integers(3, size=(500, 8))
    rows[:250, 2:4] = 3  # gaps in the same rows
    found = inverse_covariance(rows, 3)
    assert found[2, 3] < np.nanmax(np.where(np.eye(8, dtype=bool), np.nan, found)) + 1e-12
