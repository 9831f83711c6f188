"""Shared code of the DNA tokenizers: the alphabet, soft-masked bases, the other strand, and bits per base.

`A C G T` are normal tokens. `N` is a special token: it is never masked, inserted, predicted or counted, but
the model sees that there is an unknown base. Lower case marks soft-masked repeats. They have the same ids,
but a smaller weight in the training loss (Benegas et al. 2023, GPN).

All tokenizers mask a share of the *bases* and measure -log2 p of the true bases. Their bits are therefore
comparable:

    one base per token       the token is masked
    several bases per token  the token is masked; each of its bases has an equal part of -log2 p(token)
    overlapping k-mers       all tokens with a chosen base are masked (the plug-in `examples/dnabert`)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.holes import Gapped
from seqmlm.engine.query import Answer, Query
from seqmlm.engine.reductions import Reduction, Rows, TargetLogProb, reduce_shares, union
from seqmlm.engine.types import SPECIAL_GROUP, Encoding, Floats, Ids, Longs, TokenSpace, ranges
from seqmlm.engine.units import Doubles, Strands, UnitFacts, UnitLogProbs, Units, variants
from seqmlm.errors import UsageError
from seqmlm.parsing import Share
from seqmlm.tokenizers.base import Tokenizer, Traits, Unknown, UnknownUnit, read_card, space_of
from seqmlm.tokenizers.spelling import Letters, Spelling

BASES = "ACGT"
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "N")
PAD, UNK, CLS, SEP, MASK, N = range(6)
FIRST = len(SPECIALS)
LETTERS = "ACGTN, upper or lower case"

_BLOCK = 1 << 16  # letters that are processed together: they fit in the CPU cache
_OTHER, _FOUR = 5, len(BASES)
_TO_OTHER_STRAND = str.maketrans("ACGTacgt", "TGCAtgca")


# The code of each letter: 0..3 for A C G T, 4 for N and for a gap in an alignment, 5 for other letters.
_CODE = np.full(256, _OTHER, dtype=np.int32)
_CODE[[*b"ACGTN-"]] = _CODE[[*b"acgtn-"]] = [0, 1, 2, 3, 4, 4]


def letter_codes(text: str) -> NDArray[np.int32]:
    """(L,) the code of each letter: 0..3 for A C G T in either case, 4 for N and `-`, 5 for other letters."""
    return _CODE[np.frombuffer(text.encode("latin-1", errors="replace"), dtype=np.uint8)]


BASE_COMPLEMENT: Ids = np.array([3, 2, 1, 0], dtype=np.int32)
"""(4,) the code of each base's complement."""


class Flat(NamedTuple):
    """Concatenated sequences, with two separators before each sequence and two after the last.

    Attributes:
        letters: (T,) the letters as bytes; 0 for separators.
        codes: (T,) 0..3 for bases, 4 for N, 5 for separators.
        starts, lengths: (R,) the position of the first letter of each sequence, and its number of letters.
    """

    letters: NDArray[np.uint8]
    codes: NDArray[np.int32]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


class NucleotideTokenizer(Tokenizer):
    """Base class of the DNA tokenizers. The letters are `ACGTN`, in lower case for soft-masked bases.

    Args:
        soft_mask_weight: weight of a soft-masked base in the training loss, from 0 to 1. The weight of a
            token is the mean over its bases. Evaluation and scoring ignore the weight, but skip tokens with
            weight 0.

    Raises:
        UsageError: the weight is not in [0, 1].
    """

    traits: ClassVar[Traits] = Traits(unit="base", closed=True)

    def __init__(self, *, soft_mask_weight: Share = 0.1) -> None:
        if not 0 <= soft_mask_weight <= 1:
            raise UsageError(f"soft_mask_weight must be in [0, 1]; got {soft_mask_weight}")
        self._weight = float(soft_mask_weight)
        self.options = {"soft_mask_weight": self._weight}
        self._weights = np.ones(256, dtype=np.float32)
        self._weights[ord("a") : ord("z") + 1] = self._weight

    @cached_property
    def space(self) -> TokenSpace:  # type: ignore[override]
        return space_of(SPECIALS, len(self.tokens))

    @cached_property
    def spelling(self) -> Spelling:
        return Letters(self.tokens)

    def _unit_facts(self, complement: Ids = BASE_COMPLEMENT) -> UnitFacts:
        """The facts about units of sequences that can be read on both strands.

        No unit is unfamiliar: N is an unknown base, and genomes have long runs of N.

        Args:
            complement: (K,) for each symbol, the symbol on the other strand.
        """
        strands = Strands(complement=complement, mirrored=self.mirrored)
        return UnitFacts(unfamiliar=(), augment=self._either_strand, strands=strands)

    def encode_batch(self, raws: Sequence[str]) -> list[Encoding]:
        """Encode sequences.

        The group of a token is the 0-based number of its first base. Its span is the range of its letters.

        Raises:
            UnknownUnit: a letter is neither a base nor N.
        """
        encodings: list[Encoding] = []
        for part in _parts(raws):
            flat = _flatten(part)
            if np.count_nonzero(flat.codes == _OTHER) > 2 * len(part) + 2:
                index = next(i for i, raw in enumerate(part) if self.unknown(raw))
                unknown_letter = self.unknown(part[index])[0]
                raise UnknownUnit(unknown_letter, alphabet=LETTERS, index=len(encodings) + index)
            encodings += self._encode(part, flat)
        return encodings

    @abstractmethod
    def _encode(self, raws: Sequence[str], flat: Flat) -> list[Encoding]:
        """Encode sequences that have no unknown letters."""

    def unknown(self, raw: str) -> list[Unknown]:
        return [Unknown(i, raw[i]) for i in np.flatnonzero(letter_codes(raw) == _OTHER).tolist()]

    def _either_strand(self, encoding: Encoding, rng: np.random.Generator) -> Encoding:
        """The encoding of a random strand; each strand has probability 1/2."""
        return self.reverse_complement(encoding) if rng.random() < 0.5 else encoding

    def reverse_complement(self, encoding: Encoding) -> Encoding:
        """The encoding of the reverse complement, which has the same length.

        If the reverse complement has a different number of tokens, the encoding itself is returned. If a
        window has several sequences, each is reversed in place. Without spans, groups number the bases.
        """
        ids, groups = encoding.ids.copy(), encoding.groups.copy()
        spans = np.stack([groups, groups], axis=1) if encoding.spans is None else encoding.spans.copy()
        weights = None if encoding.weights is None else encoding.weights.copy()
        for part in _between_edges(ids):
            turned = self._other_strand(ids[part])
            if turned is None:
                return encoding
            if weights is not None:
                weights[part] = self._strand_weights(weights[part], ids[part], turned)
            inside = np.flatnonzero(groups[part] >= 0)
            shift = int(groups[part][inside[0]] - spans[part][inside[0], 0]) if len(inside) else 0
            spans[part] = self._spans(turned, int(spans[part][0, 0]))
            ids[part] = turned
            groups[part] = np.where(turned < FIRST, SPECIAL_GROUP, spans[part][:, 0] + shift)
        return replace(encoding, ids=ids, groups=groups, spans=spans, weights=weights)

    def mirrored(self, encoding: Encoding) -> Encoding | None:
        """The encoding of the reverse complement; None if it has a different number of tokens."""
        turned = self.reverse_complement(encoding)
        return None if turned is encoding else turned

    @abstractmethod
    def _other_strand(self, ids: Ids) -> Ids | None:
        """(L,) the token ids of the reverse complement; None if it has a different number of tokens."""

    @abstractmethod
    def _spans(self, ids: Ids, start: int) -> Ids:
        """(L, 2) the spans of tokens, if the first token begins at base `start`."""

    @abstractmethod
    def _strand_weights(self, weights: Floats, ids: Ids, turned: Ids) -> Floats:
        """(L,) the weights of the tokens of the reverse complement, `turned`."""

    @classmethod
    def load(cls, directory: Path) -> Self:
        return cls(**read_card(directory, expected=cls.name)["options"])


def reverse_complement(raw: str) -> str:
    """The reverse complement of a sequence. N and case are kept.

    >>> reverse_complement("AACGn")
    'nCGTT'
    """
    return raw[::-1].translate(_TO_OTHER_STRAND)


def kmers(k: int) -> list[str]:
    """All 4^k k-mers in alphabetical order: the index of a k-mer is the k-mer read as a base-4 number."""
    return ["".join(bases) for bases in product(BASES, repeat=k)]


def kmer_numbers(codes: NDArray[np.int32], k: int) -> Ids:
    """(T - k + 1,) the index of the k-mer that begins at each letter; undefined for k-mers with an N or a
    separator."""
    count = len(codes) - k + 1
    totals = codes[:count].copy()
    for offset in range(1, k):
        totals *= 4
        totals += codes[offset : offset + count]
    return totals


def kmer_complements(k: int) -> Ids:
    """(4^k,) for each k-mer, the index of its reverse complement."""
    numbers = np.arange(4**k, dtype=np.int32)
    turned = np.zeros_like(numbers)
    for _ in range(k):
        turned = turned * 4 + (3 - numbers % 4)
        numbers //= 4
    return turned.astype(np.int32)


def _parts(raws: Sequence[str]) -> Iterator[Sequence[str]]:
    """Groups of consecutive sequences, each with at least one sequence and at most about `_BLOCK` letters."""
    first = size = 0
    for number, raw in enumerate(raws):
        if size and size + len(raw) > _BLOCK:
            yield raws[first:number]
            first, size = number, 0
        size += len(raw) + 2
    if first < len(raws):
        yield raws[first:]


def _flatten(raws: Sequence[str]) -> Flat:
    """Concatenate sequences into flat arrays."""
    text = "\0\0".join(["", *raws, ""])
    letters = np.frombuffer(text.encode("latin-1", errors="replace"), dtype=np.uint8)
    lengths = np.fromiter(map(len, raws), dtype=np.int64, count=len(raws))
    starts = 2 + np.cumsum(lengths + 2) - (lengths + 2)
    return Flat(letters, _CODE.take(letters), starts, lengths)


def _between_edges(ids: Ids) -> Iterator[slice]:
    """The slices of tokens between [CLS], [SEP] and [PAD]."""
    edge = (ids == CLS) | (ids == SEP) | (ids == PAD)
    places = np.flatnonzero(np.diff(edge.astype(np.int8), prepend=1, append=1))
    for start, stop in zip(places[::2].tolist(), places[1::2].tolist(), strict=True):
        yield slice(start, stop)


class Bases(Units, ABC):
    """Base class of unit rules in which each unit is one base, independent of the tokens."""

    def __init__(self, space: TokenSpace, facts: UnitFacts) -> None:
        super().__init__(space, replace(facts, names=BASES))

    def symbols_of(self, encoding: Encoding) -> tuple[Longs, Longs]:
        codes = self._base_codes(encoding)
        return np.arange(len(codes) + 1), codes.astype(np.int64)

    def open_gaps(
        self, encoding: Encoding, spans: Sequence[tuple[int, int]], counts: Sequence[int] | None = None
    ) -> Gapped:
        """The encoding with a gap for each span. A gap has the bases that begin in its span.

        Args:
            encoding: the tokens of a sequence.
            spans: start and end (half open) of each gap, in letters.
            counts: the required number of bases of each gap; None requires all letters of the span.

        Raises:
            UsageError: a gap does not have the required number of bases.
        """
        starts = self.spans(encoding)[:, 0]
        gaps = tuple(np.flatnonzero((starts >= start) & (starts < end)) for start, end in spans)
        for number, (units, (start, end)) in enumerate(zip(gaps, spans, strict=True)):
            required = end - start if counts is None else counts[number]
            if len(units) != required:
                raise UsageError(f"gap {number + 1} has {len(units)} bases to predict, not {required}")
        return Gapped(encoding=encoding, gaps=gaps)

    @abstractmethod
    def _base_codes(self, encoding: Encoding) -> Longs:
        """(N,) the codes 0..3 of the bases of a sequence, without N."""


class SeveralBases(Bases):
    """The unit rule for tokens that have one or more bases and do not overlap.

    Args:
        space: the special and normal tokens.
        facts: facts about the units.
        tokens: (V,) the vocabulary. Special tokens have no bases.
    """

    def __init__(self, space: TokenSpace, facts: UnitFacts, tokens: Sequence[str]) -> None:
        super().__init__(space, facts)
        self._sizes = np.array([0] * FIRST + [len(token) for token in tokens[FIRST:]], dtype=np.int64)
        self._flat = letter_codes("".join(tokens[FIRST:])).astype(np.int64)
        self._first = np.cumsum(self._sizes) - self._sizes

    def frequencies(self, counts: NDArray[Any]) -> Doubles:
        """(4,) add-one frequencies of the bases in the training split."""
        check_counts(counts, self.space)
        bases = np.bincount(self._flat, weights=np.repeat(counts, self._sizes), minlength=_FOUR) + 1.0
        return np.asarray(bases / bases.sum())

    def count(self, ids: Ids, groups: Ids, offsets: Ids) -> int:
        return int(self._sizes[ids].sum())

    def numbers(self, encoding: Encoding) -> Longs:
        return ranges(encoding.groups.astype(np.int64), self._sizes[encoding.ids])

    def spans(self, encoding: Encoding) -> Longs:
        assert encoding.spans is not None
        starts = ranges(encoding.spans[:, 0].astype(np.int64), self._sizes[encoding.ids])
        return np.stack([starts, starts + 1], axis=1)

    def places(self, encoding: Encoding) -> Longs:
        return np.repeat(np.arange(len(encoding)), self._sizes[encoding.ids])

    def _base_codes(self, encoding: Encoding) -> Longs:
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
        """The query of `Units.ask`, for single bases.

        A base is masked together with all bases of its token, and gets an equal part of the log-probability
        of the token. Other values, such as the probabilities of the four bases, are of the base itself.
        """
        query = super().ask(encoding, hidden, asked, hidden_in=hidden_in, asked_in=asked_in)
        inside = np.zeros_like(asked) if asked_in is None else asked_in
        return replace(query, key=inside * len(self.places(encoding)) + asked)

    def unit_log_probs(self, query: Query, answer: Answer, want: Collection[Reduction] = ()) -> UnitLogProbs:
        sizes = self._sizes[query.encoding.ids]
        first = np.cumsum(sizes) - sizes
        places, count = query.asked, sizes[query.asked]
        symbol = self._flat[ranges(self._first[query.encoding.ids[places]], count)]
        unit = ranges(first[places], count)
        variant = np.repeat(variants(query), count)
        # Only `ask` makes queries for single bases (with a key). Other bases of the token are then left out.
        is_asked: Any = slice(None)
        if query.key is not None:
            is_asked = np.isin(variant * sizes.sum() + unit, query.key)
        log_probs = np.repeat(answer.values[TargetLogProb.name].astype(np.float64) / count, count)
        shares = self._marginals(answer.values[Rows.name], count)[is_asked] if want else np.zeros((0, _FOUR))
        return UnitLogProbs(
            position=np.repeat(places, count)[is_asked],
            unit=unit[is_asked],
            symbol=symbol[is_asked],
            log_probs=log_probs[is_asked],
            variant=variant[is_asked],
            tokens=np.repeat(1.0 / count, count)[is_asked],
            values=read_shares(want, shares, symbol[is_asked], answer),
        )

    def _tokens(self, encoding: Encoding) -> tuple[Longs, Longs]:
        places = self.places(encoding)
        return np.arange(len(places) + 1), places

    def _marginals(self, rows: NDArray[np.float32], count: Longs) -> Doubles:
        """(E, 4) the probability of each of the four bases, for each base of the true tokens.

        They are sums over all tokens with as many bases as the true token.

        Args:
            rows: (A, V) log-probabilities of all tokens.
            count: (A,) the number of bases of each true token.
        """
        marginals = np.zeros((int(count.sum()), _FOUR))
        first = np.cumsum(count) - count
        for size in np.unique(count[count > 0]).tolist():
            members, tokens = np.flatnonzero(count == size), np.flatnonzero(self._sizes == size)
            logits = rows[members][:, tokens].astype(np.float64)
            weights = np.exp(logits - logits.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            for offset in range(size):
                shows = self._flat[self._first[tokens] + offset][:, None] == np.arange(_FOUR)
                marginals[first[members] + offset] = weights @ shows
        return marginals


def read_shares(
    want: Collection[Reduction], shares: Doubles, symbol: Longs, answer: Answer
) -> dict[str, NDArray[Any]]:
    """The reductions in `want` by name, computed from the probabilities of the bases instead of the tokens.

    Args:
        want: the reductions.
        shares: (E, 4) probabilities of the four bases.
        symbol: (E,) the code of the true base.
        answer: the answer of the model, whose random stream is used.
    """
    draw = np.stack([np.full(len(symbol), answer.stream), np.arange(len(symbol))], axis=1)
    return reduce_shares(want, shares, symbol, draw) if want else {}


def check_counts(counts: NDArray[Any], space: TokenSpace) -> None:
    """Raise a UsageError if token counts are from a different vocabulary."""
    if counts.shape != (space.size,):
        raise UsageError(
            f"token counts have shape {counts.shape}, but the vocabulary has {space.size} tokens"
        )
