"""Byte-pair encoding of DNA over A C G T: frequent strings of bases are one token.

DNABERT-2 uses the same method (Zhou et al. 2023).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from seqmlm.domains.dna.kmer_block import SeveralBaseTokenizer
from seqmlm.domains.dna.tokenizer import BASES, CLS, FIRST, SEP, SPECIALS, Flat, reverse_complement
from seqmlm.engine.types import Encoding, Ids
from seqmlm.errors import DataError, UsageError
from seqmlm.parsing import Share
from seqmlm.tokenizers.backend import read_backend
from seqmlm.tokenizers.base import Traits, read_card

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SMALLEST, LARGEST = 64, 4096

_PIECE = (
    64  # bases per training word; words are short because the trainer scans the whole word for every merge
)
_PIECES = 1 << 16
_PIECES_PER_LINE = 256

Merges = list[tuple[str, str]]


class DnaBpeTokenizer(SeveralBaseTokenizer):
    """A byte-pair tokenizer whose merges are trained on the data. Each N is a token by itself.

    Args:
        merges: pairs of tokens in the order of training. `train` and `load` supply them.
        soft_mask_weight: see `NucleotideTokenizer`.
    """

    name: ClassVar[str] = "dna_bpe.v1"
    traits: ClassVar[Traits] = replace(SeveralBaseTokenizer.traits, trainable=True)

    def __init__(self, merges: Sequence[tuple[str, str]], *, soft_mask_weight: Share = 0.1) -> None:
        super().__init__(soft_mask_weight=soft_mask_weight)
        self.merges: Merges = [(a, b) for a, b in merges]
        self.tokens = (*SPECIALS, *BASES, *(a + b for a, b in self.merges))
        vocabulary = {token: number for number, token in enumerate(self.tokens)}
        self._backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=self.merges))

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        vocabulary_size: int | None = None,
        soft_mask_weight: Share = 0.1,
        **options: Any,
    ) -> Self:
        """Train a tokenizer on sequences.

        Args:
            texts: the sequences, which are read once. At most 4 million bases are used, sampled evenly from
                all sequences.
            vocabulary_size: maximum number of token ids, including the six special tokens. None chooses it
                from the data: 2 sqrt(bases), rounded up to a multiple of 8, between 64 and 4,096. DNABERT-2
                has 4,096.
            soft_mask_weight: see `NucleotideTokenizer`.

        Raises:
            UsageError: unknown option, or the vocabulary size is too small for the four bases.
            DataError: the sequences contain no bases.
        """
        if options:
            raise UsageError(f"{cls.name} has no option {min(options)!r}; known: soft_mask_weight")
        pieces, bases = _sample_pieces(texts)
        if not pieces:
            reason = "the sequences contain no bases, so no vocabulary can be trained"
            raise DataError(reason, remedy="give files that contain DNA")
        size = vocabulary_size or min(max(math.ceil(2 * math.sqrt(bases) / 8) * 8, SMALLEST), LARGEST)
        if size < (smallest := FIRST + len(BASES)):
            raise UsageError(f"{cls.name} needs a vocabulary_size of at least {smallest}; got {size}")
        return cls(_learn(pieces, size - len(SPECIALS)), soft_mask_weight=soft_mask_weight)

    def _encode(self, raws: Sequence[str], flat: Flat) -> list[Encoding]:
        encodings = self._backend.encode_batch_fast([raw.upper() for raw in raws])
        tokens = [[CLS, *encoding.ids, SEP] for encoding in encodings]
        bounds = [0, *accumulate(map(len, tokens))]
        ids = np.fromiter(chain.from_iterable(tokens), dtype=np.int32, count=bounds[-1])
        return self._make_encodings(ids, bounds, flat)

    def _other_strand(self, ids: Ids) -> Ids | None:
        """(L,) the token ids of the other strand, or None if it has a different number of tokens."""
        turned = reverse_complement("".join([self.tokens[token] for token in ids.tolist()]))
        ids_of_strand = self._backend.encode(turned).ids
        return np.array(ids_of_strand, dtype=np.int32) if len(ids_of_strand) == len(ids) else None

    def hf(self) -> PreTrainedTokenizerFast:
        from seqmlm.domains.dna.fast import bpe

        return bpe(self.tokens, self.merges)

    @classmethod
    def load(cls, directory: Path) -> Self:
        options = read_card(directory, expected=cls.name)["options"]
        return cls(_merges_of(read_backend(directory)), **options)

    def _content(self) -> Any:
        return [list(pair) for pair in self.merges]


def _merges_of(backend: tokenizers.Tokenizer) -> Merges:
    """The merges of a trained tokenizer, in the order of training."""
    merges = json.loads(backend.to_str())["model"]["merges"]
    return [(a, b) for a, b in merges]


def _learn(pieces: Sequence[str], size: int) -> Merges:
    """Train the merges for a vocabulary of `size` tokens. Four of these are the bases, so there are at most
    `size` - 4 merges."""
    scratch = tokenizers.Tokenizer(models.BPE())
    scratch.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, show_progress=False, initial_alphabet=list(BASES)
    )
    lines = (" ".join(pieces[i : i + _PIECES_PER_LINE]) for i in range(0, len(pieces), _PIECES_PER_LINE))
    scratch.train_from_iterator(lines, trainer)
    return _merges_of(scratch)


def _sample_pieces(texts: Iterable[str]) -> tuple[list[str], int]:
    """At most `_PIECES` pieces, sampled evenly from all texts, and the number of bases in all texts."""
    sample: list[str] = []
    bases, step = 0, 1
    for number, piece in enumerate(_pieces(texts)):
        bases += len(piece)
        if number % step == 0:
            sample.append(piece)
            if len(sample) > _PIECES:
                sample, step = sample[::2], step * 2
    return sample, bases


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    """The texts in order, in pieces of at most `_PIECE` bases. N is dropped and separates pieces."""
    for text in texts:
        for run in text.upper().split("N"):
            for start in range(0, len(run), _PIECE):
                yield run[start : start + _PIECE]
