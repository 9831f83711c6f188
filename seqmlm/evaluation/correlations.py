"""Correlations of two arrays of numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def correlation(x: ArrayLike, y: ArrayLike) -> float:
    """Pearson's correlation of two arrays (N,); NaN if one of them is constant."""
    first, second = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if not (len(first) and np.ptp(first) and np.ptp(second)):
        return float("nan")
    return float(np.asarray(np.corrcoef(first, second))[0, 1])


def rank_correlation(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's correlation of two arrays (N,), with average ranks for ties; NaN if one is constant."""
    from scipy.stats import rankdata

    return correlation(rankdata(x), rankdata(y))
