"""Bits per base for tokens of several bases, and for tokens that overlap.

Hidden is the same in all cases, a share of the bases, and priced is -log2 p of the true ones:

    one base a token       the token
    several bases a token  all bases of the token together, at -log2 p(token); each counts as an equal part
    overlapping k-mers     all tokens that cover a chosen base are hidden; it costs what the k-mers say that
                           agree with all bases not chosen, averaged over the k offsets
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.documents import ranges
from seqmlm.engine.query import Answer, Query
from seqmlm.engine.types import Encoding, Ids, TokenSpace
from seqmlm.engine.units import Doubles, Longs, Prices, Units
from seqmlm.errors import UsageError

BASES = 4


def base_codes(tokens: Sequence[str], first: int) -> list[list[int]]:
    """The bases of each token, 0..3; none for the special ones, which stand before id `first`."""
    return [["ACGT".index(base) for base in token] if i >= first else [] for i, token in enumerate(tokens)]


class Bases(Units, ABC):
    """Units that are bases, whatever the tokens."""

    letter_rows: ClassVar[bool] = True
    names: ClassVar[Sequence[str] | None] = "ACGT"

    @property
    def letters(self) -> int:
        return BASES

    def spelled(self, encoding: Encoding) -> list[tuple[int, ...]]:
        return [(code,) for code in self._codes(encoding).tolist()]

    @abstractmethod
    def _codes(self, encoding: Encoding) -> Longs:
        """(N,) the bases of a sequence, 0..3, those of N left out."""


class SeveralBases(Bases):
    """Tokens that stand side by side and show one base or more.

    Args:
        space: the vocabulary.
        codes: (V,) the bases of each token.
    """

    def __init__(self, space: TokenSpace, codes: Sequence[Sequence[int]]) -> None:
        super().__init__(space)
        self._sizes = np.array([len(one) for one in codes], dtype=np.int64)
        self._flat = np.array([code for one in codes for code in one], dtype=np.int64)
        self._first = np.cumsum(self._sizes) - self._sizes

    def frequencies(self, counts: NDArray[Any]) -> Doubles:
        """(4,) add-one frequencies of the bases in the training split."""
        checked(counts, self.space)
        bases = np.bincount(self._flat, weights=np.repeat(counts, self._sizes), minlength=BASES) + 1.0
        return np.asarray(bases / bases.sum())

    def count(self, ids: Ids, groups: Ids, offsets: Ids) -> int:
        return int(self._sizes[ids].sum())

    def numbers(self, encoding: Encoding) -> Longs:
        ordinary = np.flatnonzero(self._sizes[encoding.ids])
        return ranges(encoding.groups[ordinary].astype(np.int64), self._sizes[encoding.ids[ordinary]])

    def spans(self, encoding: Encoding) -> Longs:
        assert encoding.spans is not None
        ordinary = np.flatnonzero(self._sizes[encoding.ids])
        starts = ranges(encoding.spans[ordinary, 0].astype(np.int64), self._sizes[encoding.ids[ordinary]])
        return np.stack([starts, starts + 1], axis=1)

    def places(self, encoding: Encoding) -> Longs:
        ordinary = np.flatnonzero(self._sizes[encoding.ids])
        return np.repeat(ordinary, self._sizes[encoding.ids[ordinary]]).astype(np.int64)

    def _codes(self, encoding: Encoding) -> Longs:
        return self._flat[ranges(self._first[encoding.ids], self._sizes[encoding.ids])]

    def read(self, query: Query, answer: Answer) -> Prices:
        sizes = self._sizes[query.encoding.ids]
        first = np.cumsum(sizes) - sizes
        asked, count = query.asked, sizes[query.asked]
        letters = self._flat[ranges(self._first[query.encoding.ids[asked]], count)]
        return Prices(
            position=np.repeat(asked, count),
            unit=ranges(first[asked], count),
            letter=letters,
            log_probs=np.repeat(answer.log_probs.astype(np.float64) / count, count),
            tokens=np.repeat(1.0 / count, count),
            **told(self._marginals(answer.rows, count), letters, answer),
        )

    def _marginals(self, rows: NDArray[np.float32] | None, count: Longs) -> Doubles:
        """(E, 4) what the tokens of as many bases as the true one say of each of its bases.

        Args:
            rows: (A, V) log-probabilities, or None where they were not asked for: then nothing comes back.
            count: (A,) bases of each true token.
        """
        if rows is None:
            return np.zeros((0, BASES))
        found = np.zeros((int(count.sum()), BASES))
        first = np.cumsum(count) - count
        for size in np.unique(count[count > 0]).tolist():
            members, tokens = np.flatnonzero(count == size), np.flatnonzero(self._sizes == size)
            logits = rows[members][:, tokens].astype(np.float64)
            weights = np.exp(logits - logits.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            for offset in range(size):
                shows = self._flat[self._first[tokens] + offset][:, None] == np.arange(BASES)
                found[first[members] + offset] = weights @ shows
        return found


def told(shares: Doubles, letter: Longs, answer: Answer) -> dict[str, Any]:
    """What `Prices` has beside log-probabilities, over the four bases, where the answer has it over tokens.

    Args:
        shares: (E, 4) probability of each base. letter: (E,) the true ones.
    """
    told: dict[str, Any] = {}
    with np.errstate(divide="ignore"):
        logs = np.log(shares)
    if answer.entropy is not None:
        told["entropy"] = -(shares * np.where(shares > 0, logs, 0)).sum(axis=1)
    if answer.ranks is not None:
        told["ranks"] = (shares > shares[np.arange(len(letter)), letter][:, None]).sum(axis=1)
    if answer.top_ids is not None:
        k = answer.top_ids.shape[1]
        order = np.argsort(-shares, axis=1, kind="stable")[:, :k]
        beyond = ((0, 0), (0, k - order.shape[1]))
        best = np.take_along_axis(logs, order, axis=1)
        told["top_ids"] = np.pad(np.where(best > -np.inf, order, -1), beyond, constant_values=-1)
        told["top_log_probs"] = np.pad(best, beyond, constant_values=-np.inf)
    return told


def checked(counts: NDArray[Any], space: TokenSpace) -> None:
    """Refuse token counts of another vocabulary."""
    if counts.shape != (space.size,):
        raise UsageError(f"token counts have shape {counts.shape} for a vocabulary of {space.size}")
