"""Overlapping k-mers as a Hugging Face fast tokenizer with equal ids, so that AutoTokenizer loads them."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Regex, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from seqmlm.domains.dna.fast import LETTERS, uppercase
from seqmlm.tokenizers.fast import with_bracket_tokens, word_level


def every_base(tokens: Sequence[str], k: int) -> PreTrainedTokenizerFast:
    """A fast tokenizer of overlapping k-mers: a token of k letters at every base; `N` if it contains an N.

    The library has no overlapping tokens. Therefore the normalizer spells them out. Every letter becomes a
    word. Then, k - 1 times, every word takes over the last letter of the next word. Words at the end that
    could not grow are dropped.
    """
    steps = [normalizers.Replace(letter, letter + " ") for letter in LETTERS]
    for size in range(1, k):
        # A word's end, before a word whose letter number `size` is to be taken over.
        steps += [
            normalizers.Replace(Regex(rf" (?=[{LETTERS}]{{{size - 1}}}{letter})"), letter + " ")
            for letter in LETTERS
        ]
    steps.append(normalizers.Replace(Regex(rf"(?<![{LETTERS}])[{LETTERS}]{{1,{k - 1}}} "), ""))
    steps.append(normalizers.Replace(Regex(rf"[{LETTERS}]*N[{LETTERS}]*"), "N"))
    backend = word_level(tokens)
    backend.normalizer = uppercase(steps)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return with_bracket_tokens(backend, tokens)
