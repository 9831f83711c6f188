"""DNA with a token at every base: single bases, or overlapping k-mers (the base and the k - 1 after it).

A base shows in k overlapping tokens, so hiding it means hiding all of them, and its log-probability comes
from all of them: each gives the total probability of the k-mers that agree with the visible bases, averaged
over the k offsets. That costs more passes than non-overlapping tokens (`seqmlm.tokenizers.kmer_block`), but
keeps bits per base comparable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.masking.base import draw, eligible_tokens
from seqmlm.engine.packing import ranges
from seqmlm.engine.query import Answer, Query
from seqmlm.engine.reductions import Reduction, Rows
from seqmlm.engine.types import SPECIAL_GROUP, Bools, Encoding, Floats, Ids, Longs, TokenSpace
from seqmlm.engine.units import (
    EXACT,
    QUERY_TOKENS,
    Doubles,
    Mode,
    UnitLogProbs,
    Units,
    of_units,
    partition,
    variants,
)
from seqmlm.errors import DataError, UsageError
from seqmlm.tokenizers.nucleotide import (
    _FOUR,
    CLS,
    FIRST,
    SEP,
    SPECIALS,
    Bases,
    Flat,
    N,
    NucleotideTokenizer,
    checked,
    cut,
    kmer_complements,
    kmers,
    read_shares,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


SHORTEST, LONGEST = 3, 6


class _EveryBase(NucleotideTokenizer):
    """A token at every base; k = 1 and k > 1 differ only in the vocabulary."""

    k: int

    @cached_property
    def tokens(self) -> Sequence[str]:  # type: ignore[override]
        return (*SPECIALS, *kmers(self.k))

    @property
    def masking_facts(self) -> Mapping[str, Any]:
        """k, and the id of the first k-mer: the others follow in alphabetical order."""
        return {"k": self.k, "first": FIRST}

    @cached_property
    def _complement(self) -> Ids:
        return np.concatenate([np.arange(FIRST, dtype=np.int32), FIRST + kmer_complements(self.k)])

    def _encode(self, raws: Sequence[str], flat: Flat) -> list[Encoding]:
        if self.k > 1 and (flat.lengths < self.k).any():
            raise DataError(
                f"a sequence of fewer than {self.k} bases, which has no {self.k}-mer",
                remedy="skip it (--on-error skip), or use the tokenizer base.v1",
            )
        k, total = self.k, len(flat.codes)
        ids = self._numbers(flat) + np.int32(FIRST)
        ids[self._with_n(flat)] = N
        first, last = flat.starts - 1, flat.starts + flat.lengths - k + 1
        ids[first], ids[last] = CLS, SEP
        groups = np.arange(total, dtype=np.int32)
        groups[1:-1] -= np.repeat(flat.starts.astype(np.int32), flat.lengths + 2)
        groups = groups[: len(ids)]
        spans = np.empty((len(ids), 2), dtype=np.int32)
        spans[:, 0], spans[:, 1] = groups, groups + k
        spans[first] = spans[last] = 0
        groups[ids < FIRST] = SPECIAL_GROUP
        weights = self._token_weights(flat)
        return cut(zip(first.tolist(), (last + 1).tolist(), strict=True), ids, groups, spans, weights)

    def _numbers(self, flat: Flat) -> Ids:
        """(T - k + 1,) the number of the k-mer that begins at each letter; undefined across N and ends."""
        count = len(flat.codes) - self.k + 1
        numbers = flat.codes[:count].copy()
        for offset in range(1, self.k):
            numbers *= 4
            numbers += flat.codes[offset : offset + count]
        return numbers

    def _with_n(self, flat: Flat) -> np.ndarray[Any, Any]:
        """The k-mers that contain an N, by their first letter."""
        at = np.flatnonzero(flat.codes == 4)
        if self.k > 1 and len(at):
            at = np.unique(at[:, None] - np.arange(self.k))
        return at[(at >= 0) & (at <= len(flat.codes) - self.k)]

    def _token_weights(self, flat: Flat) -> Floats | None:
        """The mean weight of each token's bases; None if case is ignored."""
        if self._weight == 1:
            return None
        count = len(flat.codes) - self.k + 1
        if not (flat.letters > ord("Z")).any():
            return np.ones(count, dtype=np.float32)
        single = self._weights.take(flat.letters)
        weights = single[:count].copy()
        for offset in range(1, self.k):
            weights += single[offset : offset + count]
        weights /= self.k
        weights[flat.starts - 1] = weights[flat.starts + flat.lengths - self.k + 1] = 1
        return weights

    def _other_strand(self, ids: Ids) -> Ids | None:
        return self._complement[ids[::-1]]

    def _spans(self, ids: Ids, start: int) -> Ids:
        first = np.arange(start, start + len(ids), dtype=np.int32)
        return np.stack([first, first + np.int32(self.k)], axis=1)

    def _turned_weights(self, weights: Floats, ids: Ids, turned: Ids) -> Floats:
        return weights[::-1]

    def hf(self) -> PreTrainedTokenizerFast:
        from seqmlm.tokenizers.fast import every_base

        return every_base(self.tokens, self.k)


class BaseTokenizer(_EveryBase):
    """One token a base.

    >>> BaseTokenizer().encode("ACGTN").ids.tolist()
    [2, 6, 7, 8, 9, 5, 3]
    """

    name: ClassVar[str] = "base.v1"
    k = 1

    @property
    def units(self) -> Units:
        return Units(self.space, complement=self._complement)

    @property
    def single_tokens(self) -> bool:
        return True


class KmerTokenizer(_EveryBase):
    """Overlapping k-mers, one at every base (Ji et al. 2021, DNABERT); a k-mer with an N in it is `N`.

    A base shows in k tokens, so a masker must hide all of them: `kmer_span.v1`.

    Args:
        k: bases of a token, 3 to 6.
        soft_mask_weight: see `NucleotideTokenizer`.

    >>> KmerTokenizer(k=3).encode("AACG").spans.tolist()
    [[0, 0], [0, 3], [1, 4], [0, 0]]
    """

    name: ClassVar[str] = "kmer.v1"

    def __init__(self, *, k: int = 6, soft_mask_weight: float = 0.1) -> None:
        super().__init__(soft_mask_weight=soft_mask_weight)
        if not SHORTEST <= k <= LONGEST:
            raise UsageError(f"k must be between {SHORTEST} and {LONGEST}, not {k}")
        self.k = k

    @property
    def options(self) -> Mapping[str, Any]:
        return {"k": self.k, **super().options}

    @property
    def overlap(self) -> int:
        return self.k

    @cached_property
    def units(self) -> Units:  # type: ignore[override]
        return OverlappingUnits(self.space, k=self.k, first=FIRST)


_ENTRIES = 1 << 20  # probabilities handled at a time


@dataclass(frozen=True, slots=True, eq=False)
class _Overlaps:
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


@dataclass(frozen=True, slots=True, eq=False)
class Hidden:
    """What a query hides.

    Args:
        bases, variant: (H,) each hidden base, and where: ordered by variant and base.
        asked: (H,) True at those that are read.
    """

    bases: Longs
    variant: Longs
    asked: Bools


class OverlappingUnits(Bases):
    """A k-mer at every base: a base is hidden with all tokens that cover it.

    Args:
        space: the vocabulary.
        k: bases of a token.
        first: id of the first k-mer; the others follow in alphabetical order.
    """

    def __init__(self, space: TokenSpace, *, k: int, first: int) -> None:
        super().__init__(space)
        self.k, self._first = k, first
        self._place = _FOUR ** np.arange(k - 1, -1, -1, dtype=np.int64)  # (k,) worth of each base of a k-mer

    def frequencies(self, counts: NDArray[Any]) -> Doubles:
        """(4,) add-one frequencies of the bases in the training split, where each shows in k tokens."""
        checked(counts, self.space)
        kmers = np.arange(_FOUR**self.k)
        own = counts[self._first : self._first + len(kmers)]
        seen = sum(np.bincount(kmers // worth % _FOUR, weights=own, minlength=_FOUR) for worth in self._place)
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

    def needs(self, want: Collection[Reduction] = ()) -> tuple[Reduction, ...]:
        return (Rows(),)

    def ask(
        self,
        encoding: Encoding,
        hidden: Longs,
        asked: Longs,
        *,
        hidden_in: Longs | None = None,
        asked_in: Longs | None = None,
    ) -> Query:
        """As `Units.ask`; a base is hidden with all tokens that cover it, and read only where it is hidden.

        Raises:
            UsageError: a base that is not there, nothing to ask, or a base that is asked and not hidden.
        """
        if (hidden_in is None) is not (asked_in is None):
            raise UsageError("hidden_in, asked_in: both or neither")
        layout = self._layout(encoding)
        count = len(layout.code)
        each = np.arange(count + 1), np.arange(count)  # here a unit is its own only part
        bases, variant = of_units(*each, hidden, hidden_in)
        read, read_in = of_units(*each, asked, asked_in)
        if not len(read):
            raise UsageError("no base is asked")
        names, wanted = variant * count + bases, read_in * count + read
        if not np.isin(wanted, names).all():
            raise UsageError("a base in overlapping k-mers can be asked only where it is hidden")
        chosen = np.isin(names, wanted)
        masked, masked_in = self._covering(layout, bases, variant)
        tokens, tokens_in = self._covering(layout, bases[chosen], variant[chosen])
        return Query(
            encoding=encoding,
            masked=masked.astype(np.int32),
            asked=tokens.astype(np.int32),
            masked_in=None if hidden_in is None else masked_in.astype(np.int32),
            asked_in=None if asked_in is None else tokens_in.astype(np.int32),
            units=Hidden(bases, variant, chosen),
        )

    def _covering(self, layout: _Overlaps, bases: Longs, variant: Longs) -> tuple[Longs, Longs]:
        """The tokens over some bases, and the variant of each, by variant and token."""
        count = layout.high - layout.low + 1
        first = np.concatenate([[0], np.cumsum(count)])
        return of_units(first, ranges(layout.low, count), bases, variant)

    def hide(self, encoding: Encoding, rate: float, rng: np.random.Generator) -> Query | None:
        layout = self._layout(encoding)
        free = np.concatenate([[0], np.cumsum(~eligible_tokens(encoding, self.space))])
        able = np.flatnonzero(free[layout.high + 1] == free[layout.low])
        chosen = able[draw(len(able), rate, rng)]
        return self.ask(encoding, chosen, chosen) if len(chosen) else None

    def each(self, encoding: Encoding, owned: Bools | None = None) -> Iterator[Query]:
        """A variant for each base, all its tokens hidden; it belongs to who owns the last of them."""
        layout = self._layout(encoding)
        bases = np.arange(len(layout.code))
        if owned is not None:
            bases = bases[owned[layout.high]]
        step = max(1, QUERY_TOKENS // max(1, len(encoding)))
        for begin in range(0, len(bases), step):
            some = bases[begin : begin + step]
            alone = np.arange(len(some))
            yield self.ask(encoding, some, some, hidden_in=alone, asked_in=alone)

    def questions(
        self, encoding: Encoding, owned: Bools | None = None, mode: Mode = EXACT
    ) -> Iterator[Query]:
        """As `Units.questions`; a base that is hidden with others is hidden with all tokens that cover it.

        Raises:
            UsageError: a mode that leaves the hidden bases, or nothing else, to be seen.
        """
        if mode.kind == "one-pass":
            raise UsageError(
                f"one-pass scores need tokens that show what no other shows; here each base stands in "
                f"{self.k} overlapping k-mers: use --mode exact or partition:K"
            )
        if mode.kind != "partition":  # a base is a unit whole
            yield from self.each(encoding, owned)
            return
        if mode.parts <= self.k:
            raise UsageError(
                f"partition:{mode.parts} would hide every overlapping {self.k}-mer in each pass; "
                f"use at least partition:{2 * self.k}"
            )
        yield from self._passes(encoding, owned, mode.parts)

    def _passes(self, encoding: Encoding, owned: Bools | None, parts: int) -> Iterator[Query]:
        """A query for each pass in which a base is asked."""
        layout = self._layout(encoding)
        passes = partition(len(layout.code), parts)
        wanted = np.ones(len(layout.code), dtype=np.bool_) if owned is None else owned[layout.high]
        for number in np.unique(passes[wanted]).tolist():
            bases = np.flatnonzero(passes == number)
            yield self.ask(encoding, bases, bases[wanted[bases]])

    def read(self, query: Query, answer: Answer, want: Collection[Reduction] = ()) -> UnitLogProbs:
        """Restrict each token to the k-mers that agree with the visible bases; average over the tokens."""
        layout, hidden = self._layout(query.encoding), query.units
        count = len(layout.code)
        names = hidden.variant * count + hidden.bases
        bases = layout.base[query.asked][:, None] + np.arange(self.k)  # (A, k) base numbers
        own = variants(query)[:, None] * count + bases
        place = np.searchsorted(names, own).clip(max=len(names) - 1)
        slots = np.where(names[place] == own, place, -1)
        total = np.zeros((len(names), _FOUR))
        for shares, which in self._shares(answer.values[Rows.name], layout.code[bases], slots):
            np.add.at(total, which, shares)
        read, total = hidden.bases[hidden.asked], total[hidden.asked]
        total /= total.sum(axis=1, keepdims=True)
        symbol = layout.code[read]
        with np.errstate(divide="ignore"):
            log_probs = np.log(total[np.arange(len(symbol)), symbol])
        return UnitLogProbs(
            position=layout.high[read].astype(np.int32),
            unit=read,
            symbol=symbol,
            log_probs=log_probs,
            variant=hidden.variant[hidden.asked],
            values=read_shares(want, total, symbol, answer),
        )

    def _shares(
        self, rows: NDArray[np.float32], codes: Longs, slots: Longs
    ) -> Iterator[tuple[Doubles, NDArray[Any]]]:
        """(M, 4) p(base) by every token for every hidden base it covers, with the base's slot (M,).

        Args:
            rows: (A, V) log-probabilities. codes: (A, k) the true bases. slots: (A, k) -1 where visible.
        """
        patterns = (slots >= 0) @ (1 << np.arange(self.k))
        for pattern in np.unique(patterns).tolist():
            hidden = [i for i in range(self.k) if pattern >> i & 1]
            visible = [i for i in range(self.k) if not pattern >> i & 1]
            choices = np.indices((_FOUR,) * len(hidden)).reshape(len(hidden), -1)
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
                    yield weights @ (choices[row][:, None] == np.arange(_FOUR)), slots[some, offset]

    def _layout(self, encoding: Encoding) -> _Overlaps:
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
        code = (ids[high] - self._first).astype(np.int64) // self._place[within - last] % _FOUR
        base = np.full(len(ids), -1, dtype=np.int64)
        base[inside] = ranges(np.cumsum(bases) - bases, sizes)
        spans = encoding.spans
        start = groups[first] if spans is None else spans[first, 0].astype(np.int64)
        return _Overlaps(
            code=code,
            number=groups[first] + within,
            start=start + within,
            low=first + np.maximum(within - k + 1, 0),
            high=high,
            base=base,
        )
