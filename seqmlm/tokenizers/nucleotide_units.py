"""Bits per base for tokens of several bases, and for tokens that overlap.

Hidden is the same in all cases, a share of the bases, and what counts is -log2 p of the true ones:

    one base a token       the token
    several bases a token  all bases of the token together, at -log2 p(token); each counts as an equal part
    overlapping k-mers     all tokens that cover a chosen base are hidden; it costs what the k-mers say that
                           agree with all bases not chosen, averaged over the k offsets
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.layout import ranges
from seqmlm.engine.query import Answer, Query
from seqmlm.engine.reductions import Reduction, Rows, TargetLogProb, of_shares, union
from seqmlm.engine.types import Encoding, Ids, Longs, TokenSpace
from seqmlm.engine.units import Doubles, UnitLogProbs, Units, variants
from seqmlm.errors import UsageError

BASES = 4


def base_codes(tokens: Sequence[str], first: int) -> list[list[int]]:
    """The bases of each token, 0..3; none for the special ones, which stand before id `first`."""
    return [["ACGT".index(base) for base in token] if i >= first else [] for i, token in enumerate(tokens)]


class Bases(Units, ABC):
    """Units that are bases, whatever the tokens."""

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

    def needs(self, want: Collection[Reduction] = ()) -> tuple[Reduction, ...]:
        return union([TargetLogProb()], [Rows()] if want else [])

    def ask(
        self,
        encoding: Encoding,
        hidden: Longs,
        asked: Longs,
        *,
        hidden_in: Longs | None = None,
        asked_in: Longs | None = None,
    ) -> Query:
        """As `Units.ask`; a base is hidden with all bases of its token.

        The log-probability of a base is an equal part of its token's; what is read beside it is of the base
        itself.
        """
        query = super().ask(encoding, hidden, asked, hidden_in=hidden_in, asked_in=asked_in)
        inside = np.zeros_like(asked) if asked_in is None else asked_in
        return replace(query, units=inside * len(self.places(encoding)) + asked)

    def read(self, query: Query, answer: Answer, want: Collection[Reduction] = ()) -> UnitLogProbs:
        sizes = self._sizes[query.encoding.ids]
        first = np.cumsum(sizes) - sizes
        asked, count = query.asked, sizes[query.asked]
        letter = self._flat[ranges(self._first[query.encoding.ids[asked]], count)]
        unit = ranges(first[asked], count)
        variant = np.repeat(variants(query), count)
        # A base was asked alone by `ask` only: its neighbours in the token are left out.
        kept: Any = slice(None)
        if query.units is not None:
            kept = np.isin(variant * sizes.sum() + unit, query.units)
        log_probs = np.repeat(answer.values[TargetLogProb.name].astype(np.float64) / count, count)
        shares = self._marginals(answer.values[Rows.name], count)[kept] if want else np.zeros((0, BASES))
        return UnitLogProbs(
            position=np.repeat(asked, count)[kept],
            unit=unit[kept],
            letter=letter[kept],
            log_probs=log_probs[kept],
            variant=variant[kept],
            tokens=np.repeat(1.0 / count, count)[kept],
            values=read_shares(want, shares, letter[kept], answer),
        )

    def _tokens(self, encoding: Encoding) -> tuple[Longs, Longs]:
        places = self.places(encoding)
        return np.arange(len(places) + 1), places

    def _marginals(self, rows: NDArray[np.float32], count: Longs) -> Doubles:
        """(E, 4) what the tokens of as many bases as the true one say of each of its bases.

        Args:
            rows: (A, V) log-probabilities.
            count: (A,) bases of each true token.
        """
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


def read_shares(
    want: Collection[Reduction], shares: Doubles, letter: Longs, answer: Answer
) -> dict[str, NDArray[Any]]:
    """What is wanted beside log-probabilities, over the four bases instead of tokens.

    Args:
        shares: (E, 4) probability of each base. letter: (E,) the true ones.
    """
    draw = np.stack([np.full(len(letter), answer.stream), np.arange(len(letter))], axis=1)
    return of_shares(want, shares, letter, draw) if want else {}


def checked(counts: NDArray[Any], space: TokenSpace) -> None:
    """Refuse token counts of another vocabulary."""
    if counts.shape != (space.size,):
        raise UsageError(f"token counts have shape {counts.shape} for a vocabulary of {space.size}")
