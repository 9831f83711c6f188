"""How surprising tokens of a class usually are, so that rare names are not all that a scan of code finds.

    z = (s - mean of its class) / (standard deviation of its class)

with s in bits; a class is the lexer's (operator, call, string ...) and how many sub-words the unit takes.
Learnt from scored normal files without labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.background import Background
from seqmlm.anomaly.values import Doubles, Longs, Scored
from seqmlm.engine.types import Sequences
from seqmlm.errors import StateError
from seqmlm.tokenizers.base import Tokenizer
from seqmlm.tokenizers.lexers.classes import CLASSES

SUBWORDS = 4
"""Sub-words of a unit that are told apart: 1, 2, 3, and more."""

# What is little known leans on what is better known: a class on all tokens, a cell on its class, as if the
# latter had been seen this many times.
_PRIOR = 20.0
_LEAST_SPREAD = 0.1  # bits


class ClassNorms(Background):
    """Mean and standard deviation of surprisals by lexer class and number of sub-words.

    Args:
        moments: (C + 1, S, 3) count, sum and sum of squares of surprisals in bits; the last class is that of
            units of none.
    """

    needs_scores: ClassVar[bool] = True

    def __init__(self, moments: Doubles) -> None:
        self._moments = moments
        self._learnt = bool(moments[..., 0].sum())
        self._mean, self._spread = _shrunk(moments)

    @classmethod
    def fit(cls, train: Sequences, tokenizer: Tokenizer, *, seed: int) -> Self:
        """Nothing of what occurs matters, only how it is scored: see `learn`."""
        return cls(np.zeros((len(CLASSES) + 1, SUBWORDS, 3)))

    def learn(self, normal: Iterable[Scored]) -> Self:
        moments = np.zeros_like(self._moments)
        for scored in normal:
            kind, subwords = cells(scored)
            bits = scored.surprisal
            np.add.at(moments, (kind, subwords), np.stack([np.ones_like(bits), bits, bits**2], axis=1))
        return type(self)(moments)

    def z(self, scored: Scored) -> Doubles:
        """(U,) by how many standard deviations each unit is more surprising than its class.

        Raises:
            StateError: nothing was learnt yet.
        """
        if not self._learnt:
            raise StateError(
                "this model does not know how surprising normal code is: run seqmlm calibrate on it, or ask "
                "for the level 'file'"
            )
        kind, subwords = cells(scored)
        z: Doubles = (scored.surprisal - self._mean[kind, subwords]) / self._spread[kind, subwords]
        return z

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"moments": self._moments}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], tokenizer: Tokenizer) -> Self:
        return cls(np.asarray(arrays["moments"], dtype=np.float64))


def cells(scored: Scored) -> tuple[Longs, Longs]:
    """(U,) class of each unit, C for none; (U,) its number of sub-words less one, at most `SUBWORDS` - 1."""
    groups = scored.encoding.groups
    counts = np.bincount(groups[groups >= 0], minlength=1)
    subwords = np.minimum(counts[scored.number], SUBWORDS) - 1
    none = len(CLASSES)
    if scored.classes is None:
        return np.full(len(scored), none, dtype=np.int64), subwords
    kind = scored.classes.astype(np.int64)
    return np.where((kind >= 0) & (kind < none), kind, none), subwords


def _shrunk(moments: Doubles) -> tuple[Doubles, Doubles]:
    """(C + 1, S) means and standard deviations; cells lean on their class, classes on all."""
    everything = moments.sum(axis=(0, 1))
    prior = everything / max(everything[0], 1.0)
    classes = moments.sum(axis=1) + _PRIOR * prior
    classes /= np.maximum(classes[:, :1], 1.0)
    found = moments + _PRIOR * classes[:, None, :]
    found /= np.maximum(found[..., :1], 1.0)
    spread = np.sqrt(np.maximum(found[..., 2] - found[..., 1] ** 2, 0.0))
    return found[..., 1], np.maximum(spread, _LEAST_SPREAD)
