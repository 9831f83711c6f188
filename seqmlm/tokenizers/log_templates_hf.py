"""A vocabulary of templates as a Hugging Face fast tokenizer: exported models load with AutoTokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from seqmlm.tokenizers.fast import fast_tokenizer


def fast_template_tokenizer(tokens: Sequence[str]) -> PreTrainedTokenizerFast:
    """A word-level tokenizer with the given ids, `[CLS]` and `[SEP]` added; other words are `<NEW>`.

    Args:
        tokens: (V,) the spelling of each id: "E1", "E2" ...; names in <> may hold a space.
    """
    ids = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.WordLevel(vocab=ids, unk_token="<NEW>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"<[^<>]*>|[^\s<>]+"), behavior="removed", invert=True)
    return fast_tokenizer(backend, [token for token in tokens if token.startswith("[")])
