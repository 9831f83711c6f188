"""`uniform.v1`: every token is selected with the same probability (Devlin et al. 2019)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from seqmlm.engine.masking.base import RateMasker, draw
from seqmlm.engine.types import Bools, Encoding


class Uniform(RateMasker):
    """Selects each token independently with probability `rate`."""

    name: ClassVar[str] = "uniform.v1"

    def select(self, encoding: Encoding, eligible: Bools, rng: np.random.Generator) -> Bools:
        """(L,) True at the positions to predict."""
        selected = np.zeros(len(eligible), dtype=np.bool_)
        selected[eligible] = draw(int(np.count_nonzero(eligible)), self.rate, rng)
        return selected
