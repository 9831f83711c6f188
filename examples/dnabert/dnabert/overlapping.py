"""Overlapping k-mers (Ji et al. 2021, DNABERT): the code for tokens that each cover k bases.

There is a token at every base. It shows that base and the k - 1 bases after it. A base occurs in k tokens.
To hide it, all of these tokens must be hidden. Each token gives the total probability of the k-mers that
agree with the visible bases. The log-probability of the base comes from the average over the k offsets.

In training, a single masked token hides nothing, because its neighbours show its bases. Ji et al. mask k
tokens in a row, which hides a single base. They draw [MASK], random or kept for each token separately. Then
unmasked tokens contradict the others. `KmerSpan` gives all tokens of a span of bases the same outcome.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.domains.dna.tokenizer import BASES, FIRST, Bases, Flat, check_counts, read_shares
from seqmlm.engine.masking.base import Outcome, RateMasker, check_share, draw, eligible_tokens
from seqmlm.engine.query import Answer, Query
from seqmlm.engine.reductions import Reduction, Rows
from seqmlm.engine.types import Bools, Encoding, Ids, Longs, TokenSpace, ranges
from seqmlm.engine.units import (
    EXACT,
    QUERY_TOKENS,
    Doubles,
    Mode,
    UnitFacts,
    UnitLogProbs,
    partition,
    unit_tokens,
    variants,
)
from seqmlm.errors import DataError, UsageError
from seqmlm.parsing import Share
from seqmlm.tokenizers.base import Traits
from seqmlm.tokenizers.spelling import Letters, Spelling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_FOUR = len(BASES)
_ENTRIES = 1 << 20  # probabilities handled at a time


class KmerTokenizer(BaseTokenizer):
    """A tokenizer with a token at every base, for it and the next bases; a k-mer with an N in it is `N`.

    Args:
        k: bases of a token, 3 to 6.
        soft_mask_weight: see `NucleotideTokenizer`.

    >>> KmerTokenizer(k=3).encode("AACG").spans.tolist()
    [[0, 0], [0, 3], [1, 4], [0, 0]]
    """

    name: ClassVar[str] = "kmer.v1"
    traits: ClassVar[Traits] = replace(BaseTokenizer.traits, single_tokens=False)

    def __init__(self, *, k: int = 6, soft_mask_weight: Share = 0.1) -> None:
        super().__init__(soft_mask_weight=soft_mask_weight)
        if not 3 <= k <= 6:
            raise UsageError(f"k must be between 3 and 6, not {k}")
        self.k, self.options = k, {"k": k, **self.options}

    @cached_property
    def units(self) -> OverlappingUnits:
        return OverlappingUnits(self.space, self._unit_facts(), k=self.k, first=FIRST)

    @cached_property
    def spelling(self) -> Spelling:
        return _Overlapping(self.tokens, self.units)

    def _encode(self, raws: Sequence[str], flat: Flat) -> list[Encoding]:
        if (flat.lengths < self.k).any():
            reason = f"a sequence of fewer than {self.k} bases, which has no {self.k}-mer"
            raise DataError(reason, remedy="leave it out, or use the tokenizer base.v1")
        return super()._encode(raws, flat)

    def hf(self) -> PreTrainedTokenizerFast:
        from dnabert.fast import every_base

        return every_base(self.tokens, self.k)


class _Overlaps(NamedTuple):
    """The bases of a sequence of overlapping k-mers, without those of N.

    Attributes:
        code, number, start: (N,) each base, its number in the whole sequence, and its place in the raw text.
        low, high: (N,) the first and last token that covers it.
        base: (L,) the first base of each token, or -1.
    """

    code: Longs
    number: Longs
    start: Longs
    low: Longs
    high: Longs
    base: Longs


class _Hidden(NamedTuple):
    """The hidden bases of a query, which are its key.

    Attributes:
        bases, variant: (H,) the bases and the variant of each, by variant and base.
        asked: (H,) whether the base is read.
    """

    bases: Longs
    variant: Longs
    asked: Bools


class _Overlapping(Letters):
    """The spelling of k-mers that share letters with their neighbours."""

    def __init__(self, tokens: Sequence[str], units: OverlappingUnits) -> None:
        super().__init__(tokens)
        self._units = units

    def respelled(self, encoding: Encoding) -> tuple[str, Ids]:
        layout = self._units.layout(encoding)
        place = np.arange(len(layout.code)) + np.cumsum(np.diff(layout.start, prepend=layout.start[:1]) > 1)
        letters = np.full(int(place.max(initial=-1)) + 1, " ")
        letters[place] = np.array([*BASES])[layout.code]
        spans = np.zeros((len(encoding), 2), dtype=np.int32)
        shown = layout.base >= 0
        spans[shown] = place[layout.base[shown]][:, None] + np.array([0, self._units.k])
        return "".join(letters.tolist()), spans

    def show(self, text: str, encoding: Encoding, places: Ids, predicted: Ids, hidden: str) -> str:
        """As `Spelling.show`; a base is hidden if all of its tokens are, and predicted k-mers vote on it."""
        assert encoding.spans is not None
        visible = np.zeros(len(text), dtype=np.bool_)
        for position in np.setdiff1d(np.flatnonzero(encoding.groups >= 0), places).tolist():
            visible[slice(*encoding.spans[position].tolist())] = True
        votes, covered = np.zeros((len(text), _FOUR), dtype=np.int64), np.zeros(len(text), dtype=np.bool_)
        for position, token in zip(places.tolist(), predicted.tolist(), strict=True):
            start, end = encoding.spans[position].tolist()
            covered[start:end] = True
            for place, base in zip(range(start, end), self.surface(token), strict=False):
                votes[place, BASES.find(base)] += base in BASES
        chosen = covered & ~visible
        guess = [BASES[i] for i in votes.argmax(axis=1)]
        lines = [
            ("masked", "".join(hidden if c else b for b, c in zip(text, chosen, strict=True))),
            ("predicted", "".join(g if c else b for b, g, c in zip(text, guess, chosen, strict=True))),
            ("true", text),
        ]
        return "\n".join(f"{label:<10}{line}" for label, line in lines)


class OverlappingUnits(Bases):
    """A k-mer at every base: a base is hidden with all tokens that cover it, and read in all of them.

    The k-mers begin at id `first`, in alphabetical order.
    """

    def __init__(self, space: TokenSpace, facts: UnitFacts, *, k: int, first: int) -> None:
        super().__init__(space, replace(facts, one_pass=False, masking={"k": k, "first": first}))
        self.k, self._first = k, first
        self._place = _FOUR ** np.arange(k - 1, -1, -1, dtype=np.int64)  # (k,) worth of each base of a k-mer

    def masker_problem(self, masker: type[Any]) -> str | None:
        if issubclass(masker, KmerSpan):
            return None
        return (
            f"tokenizer {KmerTokenizer.name} shows each base in {self.k} neighbouring tokens, and masker "
            f"{masker.name} would hide only some of them: use --set masking.masker={KmerSpan.name}"
        )

    def frequencies(self, counts: NDArray[Any]) -> Doubles:
        """(4,) add-one frequencies of the bases in the training split, where each shows in k tokens."""
        check_counts(counts, self.space)
        kmers = np.arange(_FOUR**self.k)
        own = counts[self._first : self._first + len(kmers)]
        seen = sum(np.bincount(kmers // worth % _FOUR, weights=own, minlength=_FOUR) for worth in self._place)
        bases = np.asarray(seen) / self.k + 1.0
        return np.asarray(bases / bases.sum())

    def numbers(self, encoding: Encoding) -> Longs:
        return self.layout(encoding).number

    def spans(self, encoding: Encoding) -> Longs:
        start = self.layout(encoding).start
        return np.stack([start, start + 1], axis=1)

    def places(self, encoding: Encoding) -> Longs:
        return self.layout(encoding).high

    def _base_codes(self, encoding: Encoding) -> Longs:
        return self.layout(encoding).code

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
        """As `Units.ask`; a base is hidden with all tokens that cover it.

        Raises:
            UsageError: a base is read but not hidden, or other values do not agree.
        """
        if (hidden_in is None) is not (asked_in is None):
            raise UsageError("hidden_in, asked_in: both or neither")
        layout = self.layout(encoding)
        count = len(layout.code)
        each = np.arange(count + 1), np.arange(count)  # here a unit is its own only part
        bases, variant = unit_tokens(*each, hidden, hidden_in)
        read, read_in = unit_tokens(*each, asked, asked_in)
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
            key=_Hidden(bases, variant, chosen),
        )

    def _covering(self, layout: _Overlaps, bases: Longs, variant: Longs) -> tuple[Longs, Longs]:
        """The tokens over some bases, and the variant of each, by variant and token."""
        count = layout.high - layout.low + 1
        first = np.concatenate([[0], np.cumsum(count)])
        return unit_tokens(first, ranges(layout.low, count), bases, variant)

    def evaluation_query(self, encoding: Encoding, rate: float, rng: np.random.Generator) -> Query | None:
        layout = self.layout(encoding)
        free = np.concatenate([[0], np.cumsum(~eligible_tokens(encoding, self.space))])
        able = np.flatnonzero(free[layout.high + 1] == free[layout.low])
        chosen = able[draw(len(able), rate, rng)]
        return self.ask(encoding, chosen, chosen) if len(chosen) else None

    def _one_by_one(self, encoding: Encoding, owned: Bools | None) -> Iterator[Query]:
        """A variant for each base, with all its tokens hidden; it belongs to the owner of the last token."""
        layout = self.layout(encoding)
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
        """As `Units.questions`; a base is hidden with all tokens that cover it.

        Raises:
            UsageError: the mode would leave hidden bases visible, or would hide all other bases.
        """
        if mode.kind == "one-pass":
            raise UsageError(
                f"one-pass scores need tokens that show what no other shows; here each base stands in "
                f"{self.k} overlapping k-mers: use --mode exact or partition:K"
            )
        if mode.kind != "partition":  # a base is a unit whole
            yield from self._one_by_one(encoding, owned)
            return
        if mode.parts <= self.k:
            raise UsageError(
                f"partition:{mode.parts} would hide every overlapping {self.k}-mer in each pass; "
                f"use at least partition:{2 * self.k}"
            )
        yield from self._passes(encoding, owned, mode.parts)

    def _passes(self, encoding: Encoding, owned: Bools | None, parts: int) -> Iterator[Query]:
        """A query for each pass in which a base is asked."""
        layout = self.layout(encoding)
        passes = partition(len(layout.code), parts)
        wanted = np.ones(len(layout.code), dtype=np.bool_) if owned is None else owned[layout.high]
        for number in np.unique(passes[wanted]).tolist():
            bases = np.flatnonzero(passes == number)
            yield self.ask(encoding, bases, bases[wanted[bases]])

    def unit_log_probs(self, query: Query, answer: Answer, want: Collection[Reduction] = ()) -> UnitLogProbs:
        """Restrict each token to the k-mers that agree with the visible bases; average over the tokens."""
        layout, hidden = self.layout(query.encoding), query.key
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
        """(M, 4) p(base) by every token for every hidden base it covers, with the slot (M,) of the base.

        Args:
            rows: (A, V) log-probabilities.
            codes: (A, k) true bases.
            slots: (A, k) their slots, or -1 if a base is visible.
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

    def layout(self, encoding: Encoding) -> _Overlaps:
        """The bases of a sequence, and the tokens that cover each."""
        k, ids, groups = self.k, encoding.ids, encoding.groups.astype(np.int64)
        inside = ids >= self._first
        firsts, sizes = _runs(encoding, inside)
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


class KmerSpan(RateMasker):
    """Hide spans of symbols of geometric length by selecting all s + k - 1 tokens that cover them.

    A span begins at every symbol with one probability. It is chosen so that a symbol is hidden with
    probability `rate`. Spans that touch or overlap are merged. A sequence without a span gets one.

    A run of selected tokens has one outcome. A random outcome is a random string of symbols, tokenized again
    together with the visible symbols next to it. Therefore tokens do not contradict each other and reveal
    nothing. With k = 1 the tokens are the symbols.

    Args:
        rate: share of symbols to hide, in [0, 1).
        space: the vocabulary.
        k: symbols of a token.
        first: id of the first k-mer; the other letters ** k - 1 follow in alphabetical order.
        p: parameter of the geometric lengths, P(s) proportional to p (1 - p)^(s - 1); in (0, 1].
        longest: longest span, at least 1.
        letters: number of symbols of the alphabet.

    Raises:
        UsageError: a value is out of range.
    """

    name: ClassVar[str] = "kmer_span.v1"
    outcome: ClassVar[Outcome] = "run"

    def __init__(
        self,
        *,
        rate: float,
        space: TokenSpace,
        k: int,
        first: int,
        p: Share = 0.2,
        longest: int = 10,
        letters: int = 4,
    ) -> None:
        super().__init__(rate=rate, space=space)
        if check_share("p", p) == 0 or longest < 1:
            raise UsageError(f"k-mer spans need p in (0, 1] and longest >= 1, not {p} and {longest}")
        if k < 1 or letters < 2 or not 0 <= first <= space.size - letters**k:
            raise UsageError(f"{letters} ** {k} k-mers from id {first} on do not fit {space.size} ids")
        self.k, self.first, self.letters = k, first, letters
        shares = p * (1 - p) ** np.arange(longest)
        shares /= shares.sum()
        self._length_below = np.cumsum(shares)[:-1]
        self._starts = _start_rate(np.cumsum(shares[::-1])[::-1], rate)
        self._worth = letters ** np.arange(k - 1, -1, -1)

    def select(self, encoding: Encoding, eligible: Bools, rng: np.random.Generator) -> Bools:
        """(L,) positions to predict: all tokens that cover a hidden symbol."""
        first, size = (one.tolist() for one in _runs(encoding, encoding.groups >= 0))
        runs = [slice(start, start + tokens) for start, tokens in zip(first, size, strict=True)]
        able = [self._able(eligible[run]) for run in runs]
        hidden = [self._spans(own, rng) for own in able]
        if not any(own.any() for own in hidden):
            self._one_span(able, hidden, rng)
        selected = np.zeros(len(eligible), dtype=np.bool_)
        for run, own in zip(runs, hidden, strict=True):
            selected[run] = self._covering(own)
        return selected

    def _spans(self, able: Bools, rng: np.random.Generator) -> Bools:
        """(n + k - 1,) the hidden symbols of a run of n tokens."""
        # Spans may begin before the first symbol, so that symbols near the ends are hidden as often as
        # others.
        longest = len(self._length_below) + 1
        draws = rng.random(len(able) + longest - 1)
        starts = np.flatnonzero(draws < self._starts) - (longest - 1)
        lengths = 1 + self._length_below.searchsorted(rng.random(len(starts)), side="right")
        edges = np.zeros(len(able) + 1, dtype=np.int64)
        np.add.at(edges, np.clip(starts, 0, len(able)), 1)
        np.add.at(edges, np.clip(starts + lengths, 0, len(able)), -1)
        hidden: Bools = (edges[:-1].cumsum() > 0) & able
        return hidden

    def _one_span(self, able: Sequence[Bools], hidden: Sequence[Bools], rng: np.random.Generator) -> None:
        """Hide a single span, at any symbol that can be hidden."""
        places = [(run, letter) for run, own in enumerate(able) for letter in np.flatnonzero(own).tolist()]
        if places:
            run, letter = places[int(rng.random() * len(places))]
            length = 1 + int(self._length_below.searchsorted(rng.random(), side="right"))
            span = slice(letter, letter + min(length, max(1, int(self.rate * len(able[run])))))
            hidden[run][span] = able[run][span]

    def _able(self, eligible: Bools) -> Bools:
        """(n + k - 1,) the symbols all of whose tokens may be selected."""
        barred = np.zeros(len(eligible) + self.k - 1, dtype=np.bool_)
        for offset in range(self.k):
            barred[offset : offset + len(eligible)] |= ~eligible
        return ~barred

    def _covering(self, hidden: Bools) -> Bools:
        """(n,) the tokens that show any of the hidden (n + k - 1,) symbols."""
        tokens = len(hidden) - self.k + 1
        covering = hidden[:tokens].copy()
        for offset in range(1, self.k):
            covering |= hidden[offset : offset + tokens]
        return covering

    def replace(self, encoding: Encoding, swapped: NDArray[np.intp], rng: np.random.Generator) -> Ids:
        """(S,) k-mers with random symbols where no other token shows them, and the true ones elsewhere."""
        first, size = _runs(encoding, encoding.groups >= 0)
        # Neighbouring positions of one run of tokens are tokenized together.
        run = np.searchsorted(first, swapped, side="right") - 1
        breaks = np.flatnonzero((np.diff(swapped) > 1) | (np.diff(run) > 0)) + 1
        parts = []
        for part, number in zip(np.split(swapped, breaks), run[np.r_[0, breaks]].tolist(), strict=True):
            begins = part[0] == first[number]
            closes = part[-1] == first[number] + size[number] - 1
            parts.append(self._respelled(encoding.ids[part] - self.first, bool(begins), bool(closes), rng))
        return np.concatenate(parts)

    def _respelled(self, numbers: Ids, begins: bool, closes: bool, rng: np.random.Generator) -> Ids:
        """(n,) ids of n consecutive k-mers after a change of the symbols that only they show."""
        k = self.k
        spelled = np.concatenate([numbers // self._worth[0], numbers[-1] // self._worth[1:] % self.letters])
        left, right = 0 if begins else k - 1, len(spelled) - (0 if closes else k - 1)
        if left < right:
            spelled[left:right] = (rng.random(right - left) * self.letters).astype(spelled.dtype)
        changed = np.zeros(len(numbers), dtype=np.int64)
        for offset in range(k):
            changed = changed * self.letters + spelled[offset : offset + len(numbers)]
        return (changed + self.first).astype(np.int32)


def _runs(encoding: Encoding, inside: Bools) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The starts and lengths of runs of neighbouring tokens. Group numbers increase by one within a run."""
    goes_on = np.zeros(len(inside), dtype=np.bool_)
    goes_on[1:] = inside[1:] & inside[:-1] & (np.diff(encoding.groups) == 1)
    first = np.flatnonzero(inside & ~goes_on)
    numbers = np.cumsum(inside & ~goes_on)[inside] - 1
    return first, np.bincount(numbers, minlength=len(first))


def _start_rate(at_least: NDArray[np.float64], rate: float) -> float:
    """The probability that a span begins at a symbol, so that a symbol is hidden with probability `rate`.

    A symbol is visible if none of the `longest` symbols up to it begins a span that reaches it. `at_least`
    has P(length >= 1), P(length >= 2), ...
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - np.prod(1 - middle * at_least) < rate else (low, middle)
    return high
