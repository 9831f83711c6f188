"""A vocabulary of templates as a Hugging Face fast tokenizer: exported models load with AutoTokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast


def fast_template_tokenizer(tokens: Sequence[str]) -> PreTrainedTokenizerFast:
    """A word-level tokenizer with the given ids, `[CLS]` and `[SEP]` added; other words are `<NEW>`.

    Args:
        tokens: (V,) the spelling of each id: "E1", "E2" ...; names in <> may hold a space.
    """
    ids = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.WordLevel(vocab=ids, unk_token="<NEW>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"<[^<>]*>|[^\s<>]+"), behavior="removed", invert=True)
    backend.add_special_tokens([token for token in tokens if token.startswith("[")])
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
