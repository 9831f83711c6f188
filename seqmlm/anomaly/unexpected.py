"""What is unexpected rather than unpredictable: surprisal above the entropy of its place."""

from __future__ import annotations

import numpy as np

from seqmlm.anomaly.values import Doubles, Scored
from seqmlm.engine.reductions import Entropy


def excess(scored: Scored) -> Doubles | None:
    """(U,) surprisal minus entropy in bits: 0 on average wherever the model is right, however open the place.

    None where entropies were not asked for.
    """
    entropy = scored.values.get(Entropy.name)
    return None if entropy is None else scored.surprisal - entropy


def highest_mean(values: Doubles, width: int) -> float:
    """The highest mean of `width` neighbours, of all values where there are fewer; NaN for none.

    >>> highest_mean(np.array([0.0, 3.0, 5.0, 0.0]), 2)
    4.0
    """
    if not len(values):
        return float("nan")
    size = min(width, len(values))
    total = np.concatenate([[0.0], np.cumsum(values)])
    return float((total[size:] - total[:-size]).max() / size)
