"""Export DNA vocabularies as Hugging Face fast tokenizers with the same ids, for `AutoTokenizer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from seqmlm.tokenizers.fast import with_bracket_tokens, word_level

LETTERS = "ACGTN"


def kmer_blocks(tokens: Sequence[str], k: int) -> PreTrainedTokenizerFast:
    """The fast tokenizer for non-overlapping k-mers. Bases that do not fill a k-mer are single letters."""
    backend = word_level(tokens)
    backend.normalizer = uppercase([])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(f"[ACGT]{{{k}}}|."), behavior="isolated")
    return with_bracket_tokens(backend, tokens)


def bpe(tokens: Sequence[str], merges: Sequence[tuple[str, str]]) -> PreTrainedTokenizerFast:
    """The fast tokenizer for byte-pair merges of bases."""
    ids = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=ids, merges=list(merges), unk_token="[UNK]"))
    backend.normalizer = uppercase([])
    return with_bracket_tokens(backend, tokens)


def uppercase(later: Sequence[Any]) -> Any:
    """A normalizer that turns soft-masked bases into capitals and then applies the `later` normalizers."""
    return normalizers.Sequence(
        [*(normalizers.Replace(letter.lower(), letter) for letter in LETTERS), *later]
    )
