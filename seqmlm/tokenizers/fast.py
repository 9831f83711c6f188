"""A backend of the `tokenizers` library as a Hugging Face fast tokenizer with BERT's special tokens."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

_NAMES = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def fast_tokenizer(backend: Tokenizer, special: Sequence[str]) -> PreTrainedTokenizerFast:
    """Make special tokens known as such, and put [CLS] in front and [SEP] behind.

    Args:
        backend: with model and pre-tokenizer; it is changed.
        special: tokens of its vocabulary, [CLS] and [SEP] among them; those beside BERT's five are extra.
    """
    backend.add_special_tokens(list(special))
    marks = [(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=marks
    )
    names = {name: token for name, token in _NAMES.items() if token in special}
    extra = [token for token in special if token not in names.values()]
    more = {"extra_special_tokens": extra} if extra else {}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names, **more)
