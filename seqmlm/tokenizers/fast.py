"""Build Hugging Face fast tokenizers with our ids, for exported models that load with AutoTokenizer.

Each tokenizer builds its own fast tokenizer from these parts (`Tokenizer.hf`). The `tokenizers` library has
no overlapping tokens, log templates or lexers. The normalizer of the fast tokenizer approximates them if
possible. Otherwise, the fast tokenizer reads the spelling of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

_NAMES = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def fast_tokenizer(backend: Tokenizer, special: Sequence[str]) -> PreTrainedTokenizerFast:
    """Register special tokens, and add [CLS] at the start and [SEP] at the end.

    Args:
        backend: a tokenizer with model and pre-tokenizer; changed in place.
        special: special tokens of its vocabulary, including [CLS] and [SEP]. Tokens that BERT does not have
            are added as extra special tokens.
    """
    backend.add_special_tokens(list(special))
    marks = [(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=marks
    )
    names = {name: token for name, token in _NAMES.items() if token in special}
    extra = [token for token in special if token not in names.values()]
    extra_tokens = {"extra_special_tokens": extra} if extra else {}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names, **extra_tokens)


def fast_letter_tokenizer(
    tokens: Sequence[str], roles: Mapping[str, int | None], aliases: Mapping[str, str]
) -> PreTrainedTokenizerFast:
    """A fast tokenizer with the given ids. Every character is a token, and blanks are dropped.

    Args:
        tokens: (V,) the vocabulary in id order.
        roles: ids of pad, mask, unk, start and end, or None.
        aliases: letters that are read as other letters.
    """
    names = {role: tokens[number] for role, number in roles.items() if number is not None}
    backend = word_level(tokens, names.get("unk", names["mask"]))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Replace(letter, replacement) for letter, replacement in aliases.items()]
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("."), behavior="isolated")]
    )
    backend.add_special_tokens(list(dict.fromkeys(names.values())))
    start, end = ([names[role]] if role in names else [] for role in ("start", "end"))
    edges = [*start, *end]
    if edges:
        backend.post_processor = processors.TemplateProcessing(
            single=[*start, "$A", *end],
            pair=[*start, "$A", *end, "$B", *end],
            special_tokens=[(token, tokens.index(token)) for token in dict.fromkeys(edges)],
        )
    keywords = {
        "pad": "pad_token",
        "mask": "mask_token",
        "unk": "unk_token",
        "start": "cls_token",
        "end": "sep_token",
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, **{keywords[role]: token for role, token in names.items()}
    )


def word_level(tokens: Sequence[str], unknown: str = "[UNK]") -> Tokenizer:
    """A backend whose tokens are whole words. `tokens` is the (V,) vocabulary in id order."""
    ids = {token: number for number, token in enumerate(tokens)}
    return Tokenizer(models.WordLevel(vocab=ids, unk_token=unknown))


def with_bracket_tokens(backend: Tokenizer, tokens: Sequence[str]) -> PreTrainedTokenizerFast:
    """The fast tokenizer of a backend. Its special tokens are the tokens that begin with a bracket."""
    return fast_tokenizer(backend, [token for token in tokens if token.startswith("[")])
