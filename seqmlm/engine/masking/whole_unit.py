"""`whole_unit.v1`: all tokens of a unit (word, event ...) or none, so that no token reveals the others."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from seqmlm.engine.masking.base import Outcome, RateMasker, draw, number_units
from seqmlm.engine.types import Bools, Encoding


class WholeUnit(RateMasker):
    """Selects each unit independently with probability `rate` (whole word masking, Cui et al. 2021)."""

    name: ClassVar[str] = "whole_unit.v1"
    outcome: ClassVar[Outcome] = "unit"

    def select(self, encoding: Encoding, eligible: Bools, rng: np.random.Generator) -> Bools:
        """(L,) True at the positions to predict."""
        selected = np.zeros(len(eligible), dtype=np.bool_)
        numbers, count = number_units(encoding.groups[eligible])
        selected[eligible] = draw(count, self.rate, rng)[numbers]
        return selected
