"""`position.v1`: given positions, such as an appended label (Zhang and Hashimoto 2021, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from seqmlm.engine.masking.base import RateMasker, check_share, draw
from seqmlm.engine.types import Bools, Encoding, TokenSpace
from seqmlm.errors import UsageError
from seqmlm.parsing import Share


class Position(RateMasker):
    """Selects exactly the given positions with probability p, and otherwise other tokens uniformly at `rate`.

    Thus p is the rate at which the given positions are predicted: always for p = 1, never for p = 0. A
    sequence without these positions is masked uniformly. A sequence without other tokens is masked at these
    positions.

    Args:
        rate: fraction of the other tokens to select, in [0, 1].
        space: the vocabulary.
        positions: token positions without special tokens: 0 is the first token, -1 the last.
        p: probability of selecting the given positions, in [0, 1].

    Raises:
        UsageError: no positions are given.
    """

    name: ClassVar[str] = "position.v1"

    def __init__(self, *, rate: float, space: TokenSpace, positions: Sequence[int], p: Share = 1.0) -> None:
        super().__init__(rate=rate, space=space)
        if not positions:
            raise UsageError("position masks need positions (masking.options.positions), such as [-1]")
        self.positions, self.p = tuple(positions), check_share("p", p)

    def select(self, encoding: Encoding, eligible: Bools, rng: np.random.Generator) -> Bools:
        """(L,) True at the positions to predict."""
        inner = (encoding.groups >= 0).nonzero()[0]
        at_positions = np.zeros(len(eligible), dtype=np.bool_)
        at_positions[[inner[place] for place in self.positions if -len(inner) <= place < len(inner)]] = True
        at_positions &= eligible
        elsewhere = eligible & ~at_positions
        choose_positions = rng.random() < self.p
        if not elsewhere.any() or (choose_positions and at_positions.any()):
            return at_positions
        elsewhere[elsewhere] = draw(int(np.count_nonzero(elsewhere)), self.rate, rng)
        return elsewhere
