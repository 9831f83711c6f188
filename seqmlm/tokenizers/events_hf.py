"""The vocabulary of events as a Hugging Face fast tokenizer: exported models load with AutoTokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from seqmlm.tokenizers.events_codes import SPECIAL


def fast_events_tokenizer(tokens: Sequence[str]) -> PreTrainedTokenizerFast:
    """A fast tokenizer with the given ids: what stands between white space is a token.

    Args:
        tokens: (V,) the vocabulary in id order, special tokens first.
    """
    ids = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.WordLevel(vocab=ids, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(list(SPECIAL))
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        extra_special_tokens=["[VS]", "[VE]"],
    )
