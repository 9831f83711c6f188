"""Bits per base for tokens of several bases, and for tokens that overlap.

Hidden is the same in all cases, a share of the bases, and priced is -log2 p of the true ones:

    one base a token       the token
    several bases a token  all bases of the token together, at -log2 p(token); each counts as an equal part
    overlapping k-mers     all tokens that cover a chosen base are hidden; it costs what the k-mers say that
                           agree with all bases not chosen, averaged over the k offsets
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.documents import ranges
from seqmlm.engine.masking.base import draw, eligible_tokens
from seqmlm.engine.query import Answer, Query
from seqmlm.engine.types import Bools, Encoding, Ids, TokenSpace
from seqmlm.engine.units import QUERY_TOKENS, Doubles, Longs, Prices, Units
from seqmlm.errors import UsageError

_BASES = 4
_ENTRIES = 1 << 20  # probabilities looked at together


def base_codes(tokens: Sequence[str], first: int) -> list[list[int]]:
    """The bases of each token, 0..3; none for the special ones, which stand before id `first`."""
    return [["ACGT".index(base) for base in token] if i >= first else [] for i, token in enumerate(tokens)]


class _Bases(Units, ABC):
    """Units that are bases, whatever the tokens."""

    @property
    def letters(self) -> int:
        return _BASES

    def spelled(self, encoding: Encoding) -> list[tuple[int, ...]]:
        return [(code,) for code in self._codes(encoding).tolist()]

    @abstractmethod
    def _codes(self, encoding: Encoding) -> Longs:
        """(N,) the bases of a sequence, 0..3, those of N left out."""


class SeveralBases(_Bases):
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
        _check(counts, self.space)
        bases = np.bincount(self._flat, weights=np.repeat(counts, self._sizes), minlength=_BASES) + 1.0
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
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """The bases of a sequence of overlapping k-mers, those of N left out.

    Args:
        code, number, start: (N,) each base, its number in the whole sequence, and its place in the raw text.
        low, high: (N,) the first and last token that covers it.
        base: (L,) the first base of each token, -1 for special tokens.
    """

    code: Longs
    number: Longs
    start: Longs
    low: Longs
    high: Longs
    base: Longs


@dataclass(frozen=True, slots=True)
class _Hidden:
    """What a query hides: (H,) bases, and the variant of each, or None for one variant."""

    bases: Longs
    variant: Longs | None


class OverlappingUnits(_Bases):
    """A k-mer at every base: a base is hidden with all tokens that cover it.

    Args:
        space: the vocabulary.
        k: bases of a token.
        first: id of the first k-mer; the others follow in alphabetical order.
    """

    whole_rows: ClassVar[bool] = True

    def __init__(self, space: TokenSpace, *, k: int, first: int) -> None:
        super().__init__(space)
        self.k, self._first = k, first
        self._place = _BASES ** np.arange(k - 1, -1, -1, dtype=np.int64)  # (k,) worth of each base of a k-mer

    def frequencies(self, counts: NDArray[Any]) -> Doubles:
        """(4,) add-one frequencies of the bases in the training split, where each shows in k tokens."""
        _check(counts, self.space)
        kmers = np.arange(_BASES**self.k)
        own = counts[self._first : self._first + len(kmers)]
        seen = sum(
            np.bincount(kmers // worth % _BASES, weights=own, minlength=_BASES) for worth in self._place
        )
        bases = np.asarray(seen) / self.k + 1.0
        return np.asarray(bases / bases.sum())

    def numbers(self, encoding: Encoding) -> Longs:
        return self._layout(encoding).number

    def spans(self, encoding: Encoding) -> Longs:
        start = self._layout(encoding).start
        return np.stack([start, start + 1], axis=1)

    def places(self, encoding: Encoding) -> Longs:
        return self._layout(encoding).high

    def _codes(self, encoding: Encoding) -> Longs:
        return self._layout(encoding).code

    def hide(self, encoding: Encoding, rate: float, rng: np.random.Generator) -> Query | None:
        layout = self._layout(encoding)
        free = np.concatenate([[0], np.cumsum(~eligible_tokens(encoding, self.space))])
        able = np.flatnonzero(free[layout.high + 1] == free[layout.low])
        chosen = able[draw(len(able), rate, rng)]
        if not len(chosen):
            return None
        covering = ranges(layout.low[chosen], layout.high[chosen] - layout.low[chosen] + 1)
        masked = np.unique(covering).astype(np.int32)
        return Query(encoding=encoding, masked=masked, asked=masked, key=_Hidden(chosen, None))

    def each(self, encoding: Encoding, owned: Bools | None = None) -> Iterator[Query]:
        """A variant for each base, all its tokens hidden; it belongs to who owns the last of them."""
        layout = self._layout(encoding)
        bases = np.arange(len(layout.code))
        if owned is not None:
            bases = bases[owned[layout.high]]
        step = max(1, QUERY_TOKENS // max(1, len(encoding)))
        for begin in range(0, len(bases), step):
            some = bases[begin : begin + step]
            count = layout.high[some] - layout.low[some] + 1
            tokens = ranges(layout.low[some], count).astype(np.int32)
            variant = np.arange(len(some))
            inside = np.repeat(variant, count).astype(np.int32)
            yield Query(
                encoding=encoding,
                masked=tokens,
                masked_in=inside,
                asked=tokens,
                asked_in=inside,
                key=_Hidden(some, variant),
            )

    def read(self, query: Query, answer: Answer) -> Prices:
        """Restrict each token to the k-mers that agree with the visible bases; average over the tokens."""
        layout, hidden = self._layout(query.encoding), query.key
        bases = layout.base[query.asked][:, None] + np.arange(self.k)  # (A, k) base numbers
        if hidden.variant is None:
            slot_of = np.full(len(layout.code), -1)
            slot_of[hidden.bases] = np.arange(len(hidden.bases))
            slots = slot_of[bases]
        else:
            own = hidden.bases[query.asked_in][:, None]
            slots = np.where(bases == own, np.asarray(query.asked_in)[:, None], -1)
        assert answer.rows is not None
        total, count = np.zeros(len(hidden.bases)), np.zeros(len(hidden.bases))
        for shares, which in self._shares(answer.rows, layout.code[bases], slots):
            np.add.at(total, which, shares)
            np.add.at(count, which, 1)
        with np.errstate(divide="ignore"):
            log_probs = np.log(total / count)
        return Prices(
            position=layout.high[hidden.bases].astype(np.int32),
            unit=hidden.bases,
            letter=layout.code[hidden.bases],
            log_probs=log_probs,
        )

    def _shares(
        self, rows: NDArray[np.float32], codes: Longs, slots: Longs
    ) -> Iterator[tuple[Doubles, NDArray[Any]]]:
        """p(true base) by every token for every hidden base it covers, with the base's slot.

        Args:
            rows: (A, V) log-probabilities. codes: (A, k) the true bases. slots: (A, k) -1 where visible.
        """
        patterns = (slots >= 0) @ (1 << np.arange(self.k))
        for pattern in np.unique(patterns).tolist():
            hidden = [i for i in range(self.k) if pattern >> i & 1]
            visible = [i for i in range(self.k) if not pattern >> i & 1]
            choices = np.indices((_BASES,) * len(hidden)).reshape(len(hidden), -1)
            offsets = self._place[hidden] @ choices  # (4^h,)
            members = np.flatnonzero(patterns == pattern)
            step = max(1, _ENTRIES // len(offsets))
            for begin in range(0, len(members), step):
                some = members[begin : begin + step]
                known = codes[some][:, visible] @ self._place[visible]
                columns = self._first + known[:, None] + offsets
                logits = rows[some[:, None], columns].astype(np.float64)
                weights = np.exp(logits - logits.max(axis=1, keepdims=True))
                weights /= weights.sum(axis=1, keepdims=True)
                for row, offset in enumerate(hidden):
                    true = choices[row][None, :] == codes[some, offset][:, None]
                    yield (weights * true).sum(axis=1), slots[some, offset]

    def _layout(self, encoding: Encoding) -> _Layout:
        k, ids, groups = self.k, encoding.ids, encoding.groups.astype(np.int64)
        inside = ids >= self._first
        goes_on = np.zeros(len(ids), dtype=np.bool_)
        goes_on[1:] = inside[1:] & inside[:-1] & (np.diff(groups) == 1)
        firsts = np.flatnonzero(inside & ~goes_on)
        run = np.cumsum(inside & ~goes_on)[inside] - 1  # the run of each k-mer
        sizes = np.bincount(run, minlength=len(firsts)).astype(np.int64)  # k-mers of each run
        bases = sizes + k - 1
        within = ranges(np.zeros_like(bases), bases)
        first, size = np.repeat(firsts, bases), np.repeat(sizes, bases)
        last = np.minimum(within, size - 1)  # the last k-mer of the run that covers the base
        high = first + last
        code = (ids[high] - self._first).astype(np.int64) // self._place[within - last] % _BASES
        base = np.full(len(ids), -1, dtype=np.int64)
        base[inside] = ranges(np.cumsum(bases) - bases, sizes)
        spans = encoding.spans
        start = groups[first] if spans is None else spans[first, 0].astype(np.int64)
        return _Layout(
            code=code,
            number=groups[first] + within,
            start=start + within,
            low=first + np.maximum(within - k + 1, 0),
            high=high,
            base=base,
        )


def _check(counts: NDArray[Any], space: TokenSpace) -> None:
    if counts.shape != (space.size,):
        raise UsageError(f"token counts have shape {counts.shape} for a vocabulary of {space.size}")
