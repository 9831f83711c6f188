"""The vocabulary of events as a Hugging Face fast tokenizer: exported models load with AutoTokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from seqmlm.tokenizers.events_codes import SPECIAL
from seqmlm.tokenizers.fast import fast_tokenizer


def fast_events_tokenizer(tokens: Sequence[str]) -> PreTrainedTokenizerFast:
    """A fast tokenizer with the given ids: what stands between white space is a token.

    Args:
        tokens: (V,) the vocabulary in id order, special tokens first.
    """
    ids = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.WordLevel(vocab=ids, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return fast_tokenizer(backend, SPECIAL)
