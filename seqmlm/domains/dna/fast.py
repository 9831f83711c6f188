"""Vocabularies of bases as Hugging Face fast tokenizers with equal ids, so that AutoTokenizer loads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from seqmlm.tokenizers.fast import with_bracket_tokens, word_level

LETTERS = "ACGTN"


def kmer_blocks(tokens: Sequence[str], k: int) -> PreTrainedTokenizerFast:
    """Vocabulary of non-overlapping k-mers, with single letters where none fits."""
    backend = word_level(tokens)
    backend.normalizer = uppercase([])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(f"[ACGT]{{{k}}}|."), behavior="isolated")
    return with_bracket_tokens(backend, tokens)


def bpe(tokens: Sequence[str], merges: Sequence[tuple[str, str]]) -> PreTrainedTokenizerFast:
    """Vocabulary of merges of bases."""
    ids = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=ids, merges=list(merges), unk_token="[UNK]"))
    backend.normalizer = uppercase([])
    return with_bracket_tokens(backend, tokens)


def uppercase(later: Sequence[Any]) -> Any:
    """The normalizer that gives soft-masked bases the ids of others; then come the `later` normalizers."""
    return normalizers.Sequence(
        [*(normalizers.Replace(letter.lower(), letter) for letter in LETTERS), *later]
    )
