"""DNA with a token for each base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from seqmlm.engine.types import SPECIAL_GROUP, Encoding, Floats, Ids
from seqmlm.engine.units import Units
from seqmlm.tokenizers.nucleotide import (
    BASES,
    CLS,
    FIRST,
    SEP,
    SPECIALS,
    Flat,
    N,
    NucleotideTokenizer,
    cut,
    kmer_complements,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class BaseTokenizer(NucleotideTokenizer):
    """One token a base.

    >>> BaseTokenizer().encode("ACGTN").ids.tolist()
    [2, 6, 7, 8, 9, 5, 3]
    """

    name: ClassVar[str] = "base.v1"

    @cached_property
    def tokens(self) -> Sequence[str]:  # type: ignore[override]
        return (*SPECIALS, *BASES)

    @property
    def masking_facts(self) -> Mapping[str, Any]:
        """The bases of a token, and the id of the first one: the others follow in alphabetical order."""
        return {"k": 1, "first": FIRST}

    @cached_property
    def _complement(self) -> Ids:
        return np.concatenate([np.arange(FIRST, dtype=np.int32), FIRST + kmer_complements(1)])

    @property
    def units(self) -> Units:
        return Units(self.space, complement=self._complement)

    @property
    def single_tokens(self) -> bool:
        return True

    def _encode(self, raws: Sequence[str], flat: Flat) -> list[Encoding]:
        ids = flat.codes + np.int32(FIRST)
        ids[flat.codes == 4] = N
        first, last = flat.starts - 1, flat.starts + flat.lengths
        ids[first], ids[last] = CLS, SEP
        groups = np.arange(len(ids), dtype=np.int32)
        groups[1:-1] -= np.repeat(flat.starts.astype(np.int32), flat.lengths + 2)
        spans = np.stack([groups, groups + 1], axis=1)
        spans[first] = spans[last] = 0
        groups[ids < FIRST] = SPECIAL_GROUP
        weights = None if self._weight == 1 else self._weights.take(flat.letters)
        return cut(zip(first.tolist(), (last + 1).tolist(), strict=True), ids, groups, spans, weights)

    def _other_strand(self, ids: Ids) -> Ids | None:
        return self._complement[ids[::-1]]

    def _spans(self, ids: Ids, start: int) -> Ids:
        first = np.arange(start, start + len(ids), dtype=np.int32)
        return np.stack([first, first + 1], axis=1)

    def _turned_weights(self, weights: Floats, ids: Ids, turned: Ids) -> Floats:
        return weights[::-1]

    def hf(self) -> PreTrainedTokenizerFast:
        from seqmlm.tokenizers.fast import kmer_blocks

        return kmer_blocks(self.tokens, 1)
