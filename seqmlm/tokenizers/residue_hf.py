"""The residue vocabulary as a Hugging Face fast tokenizer: exported models load with AutoTokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast


def fast_residue_tokenizer(tokens: Sequence[str]) -> PreTrainedTokenizerFast:
    """A fast tokenizer with the given ids, every character a token, `<cls>` and `<eos>` added.

    Args:
        tokens: (V,) the vocabulary in id order.
    """
    ids = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.WordLevel(vocab=ids, unk_token="<unk>"))
    # Spaces between residues (ProtBert's habit) are dropped, as EsmTokenizer drops them.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("."), behavior="isolated")]
    )
    backend.add_special_tokens([token for token in tokens if token.startswith("<")])
    backend.post_processor = processors.TemplateProcessing(
        single="<cls> $A <eos>",
        pair="<cls> $A <eos> $B <eos>",
        special_tokens=[("<cls>", ids["<cls>"]), ("<eos>", ids["<eos>"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        cls_token="<cls>",
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        mask_token="<mask>",
    )
