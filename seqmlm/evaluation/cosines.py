"""Cosines of pairs of vectors, and how they agree with true similarities of the pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seqmlm.engine.types import Floats
from seqmlm.evaluation.correlations import correlation, rank_correlation
from seqmlm.evaluation.intervals import RANKED_DRAWS, Doubles, bootstrap_intervals


def cosine(first: Floats, second: Floats) -> float:
    """The cosine of two vectors (H,); 0 where one has no length."""
    lengths = float(np.linalg.norm(first)) * float(np.linalg.norm(second))
    return float(first @ second) / lengths if lengths else 0.0


def cosine_agreement(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Agreement of the cosines of pairs with true similarities: Spearman with its interval, and Pearson."""
    cosines = np.array([row["cosine"] for row in rows])
    figures: dict[str, float] = {"pairs": len(rows), "mean_cosine": float(cosines.mean())}
    if "truth" not in rows[0]:
        return figures
    truth = np.array([row["truth"] for row in rows])
    pairs = np.arange(len(rows))

    def measure(weights: Doubles) -> dict[str, float]:
        drawn = np.repeat(pairs, weights.astype(int))
        return {"spearman": rank_correlation(truth[drawn], cosines[drawn])}

    rho = bootstrap_intervals(measure, pairs, draws=RANKED_DRAWS)["spearman"]
    if np.isnan(rho.value):
        return figures
    bounds = {"spearman": rho.value, "low": rho.low, "high": rho.high}
    return figures | bounds | {"pearson": correlation(truth, cosines)}
