"""The DNA vocabularies as Hugging Face fast tokenizers: exported models load with AutoTokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from seqmlm.tokenizers.fast import fast_tokenizer

_LETTERS = "ACGTN"


def every_base(tokens: Sequence[str], k: int) -> PreTrainedTokenizerFast:
    """A token at every base, of k letters; `N` where there is an N among them.

    The library has no overlapping tokens, so the normalizer spells them out: every letter becomes a word of
    its own, then k - 1 times every word takes over the last letter of the word behind it, and the words at
    the end that could not grow are dropped.
    """
    steps = [normalizers.Replace(letter, letter + " ") for letter in _LETTERS] if k > 1 else []
    for size in range(1, k):
        # A word's end, before a word whose letter number `size` is to be taken over.
        steps += [
            normalizers.Replace(Regex(rf" (?=[{_LETTERS}]{{{size - 1}}}{letter})"), letter + " ")
            for letter in _LETTERS
        ]
    if k > 1:
        steps.append(normalizers.Replace(Regex(rf"(?<![{_LETTERS}])[{_LETTERS}]{{1,{k - 1}}} "), ""))
        steps.append(normalizers.Replace(Regex(rf"[{_LETTERS}]*N[{_LETTERS}]*"), "N"))
    single = pre_tokenizers.Split(Regex("."), behavior="isolated")
    backend = _word_level(tokens)
    backend.normalizer = _upper(steps)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit() if k > 1 else single
    return _finished(backend, tokens)


def kmer_blocks(tokens: Sequence[str], k: int) -> PreTrainedTokenizerFast:
    """k-mers side by side, single letters where none fits."""
    backend = _word_level(tokens)
    backend.normalizer = _upper([])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(f"[ACGT]{{{k}}}|."), behavior="isolated")
    return _finished(backend, tokens)


def bpe(tokens: Sequence[str], merges: Sequence[tuple[str, str]]) -> PreTrainedTokenizerFast:
    """Merges of bases."""
    ids = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=ids, merges=list(merges), unk_token="[UNK]"))
    backend.normalizer = _upper([])
    return _finished(backend, tokens)


def _word_level(tokens: Sequence[str]) -> Tokenizer:
    ids = {token: number for number, token in enumerate(tokens)}
    return Tokenizer(models.WordLevel(vocab=ids, unk_token="[UNK]"))


def _upper(further: Sequence[Any]) -> Any:
    """Soft-masked bases have the same ids."""
    return normalizers.Sequence([*(normalizers.Replace(one.lower(), one) for one in _LETTERS), *further])


def _finished(backend: Tokenizer, tokens: Sequence[str]) -> PreTrainedTokenizerFast:
    return fast_tokenizer(backend, [token for token in tokens if token.startswith("[")])
