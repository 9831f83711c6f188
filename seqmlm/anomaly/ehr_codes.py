"""How common each code is in the training data: what is odd of a rare code is more than that it is rare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.background import Background
from seqmlm.anomaly.values import Doubles, Longs, Scored
from seqmlm.data.small_cells import SMALLEST
from seqmlm.engine.types import Sequences
from seqmlm.tokenizers.base import Tokenizer


class CodeCounts(Background):
    """How often each token was an event of the training split.

    Small counts are not kept as they are: of few people who calibrate a model, a count may be one's own.

    Args:
        counts: (V,) occurrences, 5 for 1 to 10, 0 for what is no event.
        special: (V,) True at special tokens.
        names: (V,) the codes as the data has them.
    """

    def __init__(self, counts: Longs, special: NDArray[np.bool_], names: Sequence[str]) -> None:
        self._counts, self._special, self.names = counts, special, names
        smoothed = np.where(special, 0.0, counts + 1.0)
        with np.errstate(divide="ignore"):
            self._bits = -np.log2(smoothed / smoothed.sum())

    @classmethod
    def fit(cls, train: Sequences, tokenizer: Tokenizer, *, seed: int) -> Self:
        counts = np.zeros(tokenizer.space.size, dtype=np.int64)
        for index in range(len(train)):
            encoding = train[index]
            places = np.flatnonzero(encoding.groups >= 0)
            counts += np.bincount(encoding.ids[_lasts(encoding.groups, places)], minlength=len(counts))
        counts[(counts > 0) & (counts < SMALLEST)] = SMALLEST // 2
        return cls._of(counts, tokenizer)

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], tokenizer: Tokenizer) -> Self:
        return cls._of(np.asarray(arrays["counts"], dtype=np.int64), tokenizer)

    @classmethod
    def _of(cls, counts: Longs, tokenizer: Tokenizer) -> Self:
        names = [tokenizer.surface(token) for token in range(tokenizer.space.size)]
        return cls(counts, tokenizer.space.is_special, names)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"counts": self._counts}

    def surprisal(self, scored: Scored) -> Doubles:
        """(U,) bits of each event by how common its code is, whatever the history."""
        bits: Doubles = self._bits[scored.encoding.ids[codes(scored)]]
        return bits


def codes(scored: Scored) -> Longs:
    """(U,) the token that is each event's code: its last, behind its family."""
    groups = scored.encoding.groups
    places = np.flatnonzero(groups >= 0)
    lasts = _lasts(groups, places)
    return lasts[np.searchsorted(groups[lasts], scored.number)]


def _lasts(groups: NDArray[np.int32], places: Longs) -> Longs:
    lasts: Longs = places[np.append(np.diff(groups[places]) != 0, True)[: len(places)]]
    return lasts
