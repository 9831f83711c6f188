"""The base of the DNA tokenizers: the alphabet, soft-masked bases, the other strand, and bits per base.

`A C G T` are ordinary. `N` has an id of its own and is special: it is never masked, inserted, predicted or
counted, but the model sees that a base of unknown kind is there. Lower case is a soft-masked repeat: the same
ids, a smaller weight in the training loss (Benegas et al. 2023, GPN).

All tokenizers hide a share of the *bases* and measure -log2 p of the true ones, so their bits are comparable:

    one base per token       the token
    several bases per token  all bases of the token together, at -log2 p(token), in equal parts
    overlapping k-mers       all tokens over a chosen base are hidden (the plug-in `examples/dnabert`)
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

_BLOCK = 1 << 16  # letters handled at a time: they fit the processor's cache
_OTHER, _FOUR = 5, len(BASES)
_TO_OTHER_STRAND = str.maketrans("ACGTacgt", "TGCAtgca")


# A letter's code: 0..3 for A C G T, 4 for N and for the gap in a row of an alignment, 5 for anything else.
_CODE = np.full(256, _OTHER, dtype=np.int32)
_CODE[[*b"ACGTN-"]] = _CODE[[*b"acgtn-"]] = [0, 1, 2, 3, 4, 4]


def letter_codes(text: str) -> NDArray[np.int32]:
    """(L,) 0..3 for A C G T in either case, 4 for N, 5 for all else."""
    return _CODE[np.frombuffer(text.encode("latin-1", errors="replace"), dtype=np.uint8)]


BASE_COMPLEMENT: Ids = np.array([3, 2, 1, 0], dtype=np.int32)
"""(4,) the number of each base's partner on the other strand."""


class Flat(NamedTuple):
    """Concatenated sequences, with two places before each and two after the last.

    letters: (T,) their bytes, 0 at the places between. codes: (T,) 0..3 for bases, 4 for N, 5 between.
    starts, lengths: (R,) where each sequence begins, and its letters.
    """

    letters: NDArray[np.uint8]
    codes: NDArray[np.int32]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


class NucleotideTokenizer(Tokenizer):
    """Base of the DNA tokenizers; the letters are `ACGTN`, lower case for soft-masked bases.

    Args:
        soft_mask_weight: weight of a soft-masked base in the training loss, in [0, 1]; a token has the mean
            of its bases. Evaluation and scores ignore the weight, but skip tokens of weight 0.

    Raises:
        UsageError: a weight outside [0, 1].
    """

    traits: ClassVar[Traits] = Traits(unit="base", closed=True)

    def __init__(self, *, soft_mask_weight: Share = 0.1) -> None:
        if not 0 <= soft_mask_weight <= 1:
            raise UsageError(f"soft_mask_weight must lie in [0, 1], not {soft_mask_weight}")
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
        """Facts about units of sequences that can be read on either strand.

        Nothing is unfamiliar: N is a base that is not known, which genomes have in long runs.

        Args:
            complement: (K,) the symbol that each one is on the other strand.
        """
        strands = Strands(complement=complement, mirrored=self.mirrored)
        return UnitFacts(unfamiliar=(), augment=self._either_strand, strands=strands)

    def encode_batch(self, raws: Sequence[str]) -> list[Encoding]:
        """Encode sequences; groups are the 0-based number of a token's first base, spans are its letters.

        Raises:
            UnknownUnit: a letter that is neither a base nor N.
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
        """Encode sequences without unknown letters."""

    def unknown(self, raw: str) -> list[Unknown]:
        return [Unknown(i, raw[i]) for i in np.flatnonzero(letter_codes(raw) == _OTHER).tolist()]

    def _either_strand(self, encoding: Encoding, rng: np.random.Generator) -> Encoding:
        """Either strand, with probability 1/2 each."""
        return self.reverse_complement(encoding) if rng.random() < 0.5 else encoding

    def reverse_complement(self, encoding: Encoding) -> Encoding:
        """The encoding of the other strand, read in its own direction; of the same length.

        If the other strand has another number of tokens, returns the encoding itself. In a window that
        several sequences share, each is reversed in place. Without spans, bases are numbered by groups.
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
        """The other strand; None where k-mers divide it otherwise."""
        turned = self.reverse_complement(encoding)
        return None if turned is encoding else turned

    @abstractmethod
    def _other_strand(self, ids: Ids) -> Ids | None:
        """Token ids of the reverse complement, or None where it has another number of tokens."""

    @abstractmethod
    def _spans(self, ids: Ids, start: int) -> Ids:
        """(L, 2) spans of tokens of which the first begins at base `start`."""

    @abstractmethod
    def _strand_weights(self, weights: Floats, ids: Ids, turned: Ids) -> Floats:
        """(L,) the weights of the reversed tokens."""

    @classmethod
    def load(cls, directory: Path) -> Self:
        return cls(**read_card(directory, expected=cls.name)["options"])


def reverse_complement(raw: str) -> str:
    """The reverse complement of a sequence; N and case are kept.

    >>> reverse_complement("AACGn")
    'nCGTT'
    """
    return raw[::-1].translate(_TO_OTHER_STRAND)


def kmers(k: int) -> list[str]:
    """All 4^k k-mers in alphabetical order: the number of a k-mer is its spelling in base 4."""
    return ["".join(bases) for bases in product(BASES, repeat=k)]


def kmer_numbers(codes: NDArray[np.int32], k: int) -> Ids:
    """(T - k + 1,) the number of the k-mer that begins at each of T letters; undefined across N and ends."""
    count = len(codes) - k + 1
    totals = codes[:count].copy()
    for offset in range(1, k):
        totals *= 4
        totals += codes[offset : offset + count]
    return totals


def kmer_complements(k: int) -> Ids:
    """(4^k,) the number of each k-mer's reverse complement."""
    numbers = np.arange(4**k, dtype=np.int32)
    turned = np.zeros_like(numbers)
    for _ in range(k):
        turned = turned * 4 + (3 - numbers % 4)
        numbers //= 4
    return turned.astype(np.int32)


def _parts(raws: Sequence[str]) -> Iterator[Sequence[str]]:
    """Consecutive sequences of together about `_BLOCK` letters, one at least."""
    first = size = 0
    for number, raw in enumerate(raws):
        if size and size + len(raw) > _BLOCK:
            yield raws[first:number]
            first, size = number, 0
        size += len(raw) + 2
    if first < len(raws):
        yield raws[first:]


def _flatten(raws: Sequence[str]) -> Flat:
    """Sequences as flat arrays."""
    text = "\0\0".join(["", *raws, ""])
    letters = np.frombuffer(text.encode("latin-1", errors="replace"), dtype=np.uint8)
    lengths = np.fromiter(map(len, raws), dtype=np.int64, count=len(raws))
    starts = 2 + np.cumsum(lengths + 2) - (lengths + 2)
    return Flat(letters, _CODE.take(letters), starts, lengths)


def _between_edges(ids: Ids) -> Iterator[slice]:
    """The stretches between [CLS], [SEP] and [PAD]."""
    edge = (ids == CLS) | (ids == SEP) | (ids == PAD)
    places = np.flatnonzero(np.diff(edge.astype(np.int8), prepend=1, append=1))
    for start, stop in zip(places[::2].tolist(), places[1::2].tolist(), strict=True):
        yield slice(start, stop)


class Bases(Units, ABC):
    """Units that are bases, whatever the tokens."""

    def __init__(self, space: TokenSpace, facts: UnitFacts) -> None:
        super().__init__(space, replace(facts, names=BASES))

    def symbols_of(self, encoding: Encoding) -> tuple[Longs, Longs]:
        codes = self._base_codes(encoding)
        return np.arange(len(codes) + 1), codes.astype(np.int64)

    def open_gaps(
        self, encoding: Encoding, spans: Sequence[tuple[int, int]], counts: Sequence[int] | None = None
    ) -> Gapped:
        """The encoding with its gaps: the bases that stand in each span, whatever their tokens; a UsageError
        if a gap has none, or another number than `counts` asks for."""
        starts = self.spans(encoding)[:, 0]
        gaps = tuple(np.flatnonzero((starts >= start) & (starts < end)) for start, end in spans)
        for number, (units, (start, end)) in enumerate(zip(gaps, spans, strict=True)):
            required = end - start if counts is None else counts[number]
            if len(units) != required:
                raise UsageError(f"gap {number + 1} has {len(units)} bases that can be asked, not {required}")
        return Gapped(encoding=encoding, gaps=gaps)

    @abstractmethod
    def _base_codes(self, encoding: Encoding) -> Longs:
        """(N,) codes of the bases of a sequence, 0..3, without those of N."""


class SeveralBases(Bases):
    """Tokens (V,) that stand side by side and show one base or more; the special ones show none."""

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
        """The query that `Units.ask` makes. A base is hidden with all bases of its token, of whose
        log-probability it has an equal part, while what is read beside it is of the base itself."""
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
        # A base was asked alone by `ask` only: its neighbours in the token are left out.
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
        """(E, 4) probabilities of each base of the true tokens, by all tokens of as many bases as the true
        one; of (A, V) log-probabilities and (A,) bases of each true token."""
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
    """The reductions in `want`, by name, of (E, 4) probabilities of the bases instead of those of tokens."""
    draw = np.stack([np.full(len(symbol), answer.stream), np.arange(len(symbol))], axis=1)
    return reduce_shares(want, shares, symbol, draw) if want else {}


def check_counts(counts: NDArray[Any], space: TokenSpace) -> None:
    """Raise a UsageError for token counts of another vocabulary."""
    if counts.shape != (space.size,):
        raise UsageError(f"token counts have shape {counts.shape} for a vocabulary of {space.size}")
