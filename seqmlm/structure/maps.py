"""A map of dependence between the units of one sequence, and what is done with maps whatever made them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class DependenceMap:
    """How much the units of one sequence depend on each other.

    N counts the units of the whole sequence (`seqmlm.engine.units.Units.numbers`).

    Args:
        values: (N, N) float64, symmetric; NaN where a pair was not asked about (the diagonal, pairs farther
            apart than allowed); in nats where `nats`, else on the scale of the method.
        method: that made it, such as "cmi/exact".
        nats: whether values are nats.
        error: (N, N) standard errors of the values, or None where the method is deterministic.
        passes: masked or changed copies of the sequence that the model was asked about (its cost).
        z, p: (N, N) of each pair under a null model, or None.
        details: figures of the method for the whole map, such as the probability mass that was covered, or
            how incompatible the two conditionals were.
    """

    values: Doubles
    method: str
    nats: bool = True
    error: Doubles | None = None
    passes: int = 0
    z: Doubles | None = None
    p: Doubles | None = None
    details: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values)
