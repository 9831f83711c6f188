"""Cosines of pairs of vectors, and their correlation with true similarities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seqmlm.engine.types import Floats
from seqmlm.evaluation.correlations import correlation, rank_correlation
from seqmlm.evaluation.intervals import RANKED_DRAWS, Doubles, bootstrap_intervals


def cosine(first: Floats, second: Floats) -> float:
    """The cosine of two vectors (H,); 0 if one is the zero vector."""
    lengths = float(np.linalg.norm(first)) * float(np.linalg.norm(second))
    return float(first @ second) / lengths if lengths else 0.0


def cosine_agreement(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The number of pairs, their mean cosine, and the correlation of cosines with true similarities.

    The correlations are Spearman's, with its interval, and Pearson's. They are missing if rows have no
    `truth`, or if they are undefined.
    """
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
