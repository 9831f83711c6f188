"""Tokenize DNA as non-overlapping k-mers, as in the Nucleotide Transformer (Dalla-Torre et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

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
    SeveralBases,
    kmer_complements,
    kmer_numbers,
    kmers,
)
from seqmlm.engine.types import SPECIAL_GROUP, Encoding, Floats, Ids
from seqmlm.engine.units import Units
from seqmlm.errors import UsageError
from seqmlm.parsing import Share
from seqmlm.tokenizers.base import split_encodings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_FIRST_KMER = FIRST + len(BASES)


class SeveralBaseTokenizer(NucleotideTokenizer):
    """Base class of tokenizers whose tokens have one or more bases and do not overlap."""

    @cached_property
    def _sizes(self) -> Ids:
        """(V,) the number of bases of each token. N has 1, other special tokens have 0."""
        return np.array([0] * N + [1] + [len(token) for token in self.tokens[FIRST:]], dtype=np.int32)

    @cached_property
    def units(self) -> Units:
        return SeveralBases(self.space, self._unit_facts(), self.tokens)

    def _make_encodings(self, ids: Ids, bounds: Sequence[int], flat: Flat) -> list[Encoding]:
        """The encodings of R sequences.

        Args:
            ids: (T,) token ids of all sequences, including [CLS] and [SEP].
            bounds: (R + 1,) where each sequence begins in `ids`, and the end of the last sequence.
            flat: the letters of the sequences.
        """
        sizes = self._sizes[ids].astype(np.int64)
        ends = np.cumsum(sizes)
        begins = ends - sizes
        counts = np.diff(bounds)
        spans = np.stack([begins, ends], axis=1) - np.repeat(begins[bounds[:-1]], counts)[:, None]
        spans[sizes == 0] = 0
        spans = spans.astype(np.int32)
        groups = spans[:, 0].copy()
        groups[ids < FIRST] = SPECIAL_GROUP
        weights = None if self._weight == 1 else self._mean_weights(flat, sizes)
        return split_encodings(pairwise(bounds), ids, groups, spans, weights)

    def _mean_weights(self, flat: Flat, sizes: np.ndarray[Any, Any]) -> Floats:
        """(T,) the mean weight of the letters of each token."""
        if not (flat.letters > ord("Z")).any():
            return np.ones(len(sizes), dtype=np.float32)
        return _means(self._weights.take(flat.letters[flat.letters > 0]), sizes)

    def _spans(self, ids: Ids, start: int) -> Ids:
        ends = start + np.cumsum(self._sizes[ids])
        return np.stack([ends - self._sizes[ids], ends], axis=1).astype(np.int32)

    def _strand_weights(self, weights: Floats, ids: Ids, turned: Ids) -> Floats:
        return _means(np.repeat(weights, self._sizes[ids])[::-1], self._sizes[turned])


class KmerBlockTokenizer(SeveralBaseTokenizer):
    """Non-overlapping k-mers from left to right. Remaining bases before an N or the end are single tokens.

    Args:
        k: bases per token, 2 to 8.
        soft_mask_weight: see `NucleotideTokenizer`.

    Raises:
        UsageError: k is out of range.

    >>> tokenizer = KmerBlockTokenizer(k=3)
    >>> [tokenizer.tokens[i] for i in tokenizer.encode("ACGTTNCCC").ids]
    ['[CLS]', 'ACG', 'T', 'T', 'N', 'CCC', '[SEP]']
    """

    name: ClassVar[str] = "kmer_block.v1"

    def __init__(self, *, k: int = 6, soft_mask_weight: Share = 0.1) -> None:
        super().__init__(soft_mask_weight=soft_mask_weight)
        if not 2 <= k <= 8:
            raise UsageError(f"k must be between 2 and 8, not {k}")
        self.k, self.options = k, {"k": k, **self.options}

    @cached_property
    def tokens(self) -> Sequence[str]:  # type: ignore[override]
        return (*SPECIALS, *BASES, *kmers(self.k))

    def _encode(self, raws: Sequence[str], flat: Flat) -> list[Encoding]:
        codes, total = flat.codes, len(flat.codes)
        runs = np.flatnonzero(np.diff(codes < 4, prepend=False, append=False))  # start, end, start, end ...
        starts, lengths = runs[::2], np.diff(runs)[::2]
        # For each base: its distance from the start of its run, and the bases of the run that k-mers cover.
        offset, covered = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64)
        bases = codes < 4
        offset[bases] = np.flatnonzero(bases) - np.repeat(starts, lengths)
        covered[bases] = np.repeat(lengths // self.k * self.k, lengths)
        heads = bases & (offset < covered) & (offset % self.k == 0)
        is_token = ~bases | heads | (offset >= covered)
        ids = np.where(bases, codes + np.int32(FIRST), np.int32(N)).astype(np.int32)
        at = np.flatnonzero(heads)
        ids[at] = _FIRST_KMER + kmer_numbers(codes, self.k)[at]
        ids[flat.starts - 1], ids[flat.starts + flat.lengths] = CLS, SEP
        is_token[0] = is_token[-1] = False
        tokens_before = np.concatenate([[0], np.cumsum(is_token)])
        bounds = [*tokens_before[flat.starts - 1].tolist(), int(tokens_before[-1])]
        return self._make_encodings(ids[is_token], bounds, flat)

    @cached_property
    def _complement(self) -> Ids:
        return np.concatenate(
            [np.full(_FIRST_KMER, -1, dtype=np.int32), _FIRST_KMER + kmer_complements(self.k)]
        )

    def _other_strand(self, ids: Ids) -> Ids | None:
        """The ids of the other strand; None unless all tokens are k-mers. If a part has an N or single bases,
        the other strand is divided at other positions."""
        turned = self._complement[ids[::-1]]
        return None if (turned < 0).any() else turned

    def hf(self) -> PreTrainedTokenizerFast:
        from seqmlm.domains.dna.fast import kmer_blocks

        return kmer_blocks(self.tokens, self.k)


def _means(values: Floats, sizes: np.ndarray[Any, Any]) -> Floats:
    """(T,) means of consecutive groups of values. `sizes` (T,) are the group sizes; an empty group has 1."""
    ends = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    stop = np.cumsum(sizes)
    means = (ends[stop] - ends[stop - sizes]) / np.maximum(sizes, 1)
    return np.where(sizes == 0, 1.0, means).astype(np.float32)
