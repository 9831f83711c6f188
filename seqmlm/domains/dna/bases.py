"""Tokenizers with one token per base: the vocabulary of `seqmlm`, and the vocabularies of checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from seqmlm.domains.dna.tokenizer import (
    BASES,
    CLS,
    FIRST,
    SEP,
    SPECIALS,
    Flat,
    N,
    NucleotideTokenizer,
    kmer_complements,
    kmer_numbers,
    kmers,
)
from seqmlm.engine.types import SPECIAL_GROUP, Encoding, Floats, Ids
from seqmlm.engine.units import Units
from seqmlm.tokenizers.base import Traits, split_encodings
from seqmlm.tokenizers.letters import LetterTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class BaseTokenizer(NucleotideTokenizer):
    """The default DNA tokenizer: each base is one token.

    >>> BaseTokenizer().encode("ACGTN").ids.tolist()
    [2, 6, 7, 8, 9, 5, 3]
    """

    name: ClassVar[str] = "base.v1"
    traits: ClassVar[Traits] = replace(NucleotideTokenizer.traits, single_tokens=True)
    k: int = 1
    """Bases per token. A token has the position of its first base. If k > 1, neighbouring tokens overlap."""

    @cached_property
    def tokens(self) -> Sequence[str]:  # type: ignore[override]
        return (*SPECIALS, *kmers(self.k))

    @cached_property
    def _complement(self) -> Ids:
        return np.concatenate([np.arange(FIRST, dtype=np.int32), FIRST + kmer_complements(self.k)])

    @cached_property
    def units(self) -> Units:
        # Maskers need k and the id of the first k-mer. The other k-mers follow in alphabetical order.
        masking = {"k": self.k, "first": FIRST}
        return Units(self.space, replace(self._unit_facts(self._complement), masking=masking))

    def _encode(self, raws: Sequence[str], flat: Flat) -> list[Encoding]:
        k, total = self.k, len(flat.codes)
        ids = kmer_numbers(flat.codes, k) + np.int32(FIRST)
        at = np.unique(np.flatnonzero(flat.codes == 4)[:, None] - np.arange(k))
        ids[at[(at >= 0) & (at <= total - k)]] = N
        first, last = flat.starts - 1, flat.starts + flat.lengths - k + 1
        ids[first], ids[last] = CLS, SEP
        groups = np.arange(total, dtype=np.int32)
        groups[1:-1] -= np.repeat(flat.starts.astype(np.int32), flat.lengths + 2)
        groups = groups[: len(ids)]
        spans = np.stack([groups, groups + np.int32(k)], axis=1)
        spans[first] = spans[last] = 0
        groups[ids < FIRST] = SPECIAL_GROUP
        weights = self._token_weights(flat)
        return split_encodings(
            zip(first.tolist(), (last + 1).tolist(), strict=True), ids, groups, spans, weights
        )

    def _token_weights(self, flat: Flat) -> Floats | None:
        """(T - k + 1,) the mean weight of each token's bases; None if soft-masked bases have weight 1."""
        if self._weight == 1:
            return None
        count = len(flat.codes) - self.k + 1
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

    def _strand_weights(self, weights: Floats, ids: Ids, turned: Ids) -> Floats:
        return weights[::-1]

    def hf(self) -> PreTrainedTokenizerFast:
        from seqmlm.domains.dna.fast import kmer_blocks

        return kmer_blocks(self.tokens, 1)


class BaseLetters(LetterTokenizer):
    """The tokenizer for a checkpoint with a token for each of the four bases. It reads only one strand."""

    name: ClassVar[str] = "base_letters.v1"
    traits: ClassVar[Traits] = Traits(unit="base", closed=True, single_tokens=True)
    scored: ClassVar[str] = BASES
    unscored_letters: ClassVar[str] = "N-"
    gaps: ClassVar[str] = "N-"
    stand_in: ClassVar[str] = "N"
    either_case: ClassVar[bool] = True
