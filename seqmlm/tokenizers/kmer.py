"""DNA one token a base, or as overlapping k-mers (at every base a token that shows it and k - 1 more)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from seqmlm.engine.types import SPECIAL_GROUP, Encoding, Floats, Ids
from seqmlm.engine.units import Units
from seqmlm.errors import DataError, UsageError
from seqmlm.tokenizers.nucleotide import (
    CLS,
    FIRST,
    SEP,
    SPECIALS,
    Flat,
    N,
    NucleotideTokenizer,
    kmer_complements,
    kmers,
)
from seqmlm.tokenizers.overlapping_units import OverlappingUnits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SHORTEST, LONGEST = 3, 6


class _EveryBase(NucleotideTokenizer):
    """A token at every base; k = 1 and k > 1 differ in the table alone."""

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
                remedy="leave it out (--on-error skip), or use the tokenizer base.v1",
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
        return [
            Encoding(
                ids=ids[a:b],
                groups=groups[a:b],
                spans=spans[a:b],
                weights=None if weights is None else weights[a:b],
            )
            for a, b in zip(first.tolist(), (last + 1).tolist(), strict=True)
        ]

    def _numbers(self, flat: Flat) -> Ids:
        """(T - k + 1,) the number of the k-mer that begins at each letter; nonsense across N and ends."""
        count = len(flat.codes) - self.k + 1
        numbers = flat.codes[:count].copy()
        for offset in range(1, self.k):
            numbers *= 4
            numbers += flat.codes[offset : offset + count]
        return numbers

    def _with_n(self, flat: Flat) -> np.ndarray[Any, Any]:
        """The k-mers that hold an N, by their first letter."""
        at = np.flatnonzero(flat.codes == 4)
        if self.k > 1 and len(at):
            at = np.unique(at[:, None] - np.arange(self.k))
        return at[(at >= 0) & (at <= len(flat.codes) - self.k)]

    def _token_weights(self, flat: Flat) -> Floats | None:
        """The mean weight of each token's bases; None where case does not count."""
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


class BaseTokenizer(_EveryBase):
    """One token a base.

    >>> BaseTokenizer().encode("ACGTN").ids.tolist()
    [2, 6, 7, 8, 9, 5, 3]
    """

    name: ClassVar[str] = "base.v1"
    k = 1

    @property
    def single_tokens(self) -> bool:
        return True

    def hf(self) -> PreTrainedTokenizerFast:
        from seqmlm.tokenizers.nucleotide_hf import every_base

        return every_base(self.tokens, 1)


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
            raise UsageError(f"k must lie between {SHORTEST} and {LONGEST}, not {k}")
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

    def hf(self) -> PreTrainedTokenizerFast:
        from seqmlm.tokenizers.nucleotide_hf import every_base

        return every_base(self.tokens, self.k)
