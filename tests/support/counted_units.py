"""Random sequences of units of one or two tokens, to count."""

from __future__ import annotations

import numpy as np

from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.engine.units import Units


def space(letters: int) -> TokenSpace:
    return TokenSpace(size=3 + letters, pad=0, mask=1, unk=2, start=None, end=None, special=(0, 1, 2))


RULE = Units(space(9))
LETTERS = range(3, 12)


def encoding(units: list[tuple[int, ...]], positions: list[int] | None = None) -> Encoding:
    """A sequence of units, each some tokens."""
    groups = np.repeat(np.arange(len(units)), [len(unit) for unit in units])
    return Encoding(
        ids=np.array([token for unit in units for token in unit], dtype=np.int32),
        groups=groups.astype(np.int32),
        positions=None if positions is None else np.array(positions, dtype=np.int32)[groups],
    )


def drawn(seed: int, *, sequences: int, units: int) -> list[list[tuple[int, ...]]]:
    """Random sequences of units of one or two tokens."""
    random = np.random.default_rng(seed)
    known = [(3,), (4,), (5,), (3, 4), (6, 6)]
    return [
        [known[i] for i in random.choice(5, size=random.integers(1, units), p=(0.4, 0.2, 0.1, 0.2, 0.1))]
        for _ in range(sequences)
    ]
