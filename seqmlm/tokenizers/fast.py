"""Every vocabulary as a Hugging Face fast tokenizer with equal ids, so that exported models load with
AutoTokenizer.

The `tokenizers` library has no overlapping tokens, log templates or lexers: what a fast tokenizer cannot do
is approximated by its normalizer where possible, else the fast tokenizer reads the vocabulary's own spelling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from seqmlm.tokenizers.events_vocabulary import SPECIAL

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
        backend: with model and pre-tokenizer; changed in place.
        special: tokens of its vocabulary, [CLS] and [SEP] among them; others than BERT's five are added.
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


def fast_residue_tokenizer(tokens: Sequence[str]) -> PreTrainedTokenizerFast:
    """A fast tokenizer with the given ids, every character a token, `<cls>` and `<eos>` added.

    Args:
        tokens: (V,) the vocabulary in id order.
    """
    backend = _word_level(tokens, "<unk>")
    # Spaces between residues (ProtBert's habit) are dropped, as EsmTokenizer drops them.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("."), behavior="isolated")]
    )
    backend.add_special_tokens([token for token in tokens if token.startswith("<")])
    backend.post_processor = processors.TemplateProcessing(
        single="<cls> $A <eos>",
        pair="<cls> $A <eos> $B <eos>",
        special_tokens=[(token, tokens.index(token)) for token in ("<cls>", "<eos>")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        cls_token="<cls>",
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        mask_token="<mask>",
    )


def fast_letter_tokenizer(
    tokens: Sequence[str], roles: Mapping[str, int | None], aliases: Mapping[str, str]
) -> PreTrainedTokenizerFast:
    """A fast tokenizer with the given ids, every character a token; blanks between them are dropped.

    Args:
        tokens: (V,) the vocabulary in id order.
        roles: ids of pad, mask, unk, start and end, or None.
        aliases: letters that are read as others.
    """
    names = {role: tokens[number] for role, number in roles.items() if number is not None}
    backend = _word_level(tokens, names.get("unk", names["mask"]))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Replace(letter, other) for letter, other in aliases.items()]
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


_LETTERS = "ACGTN"


def every_base(tokens: Sequence[str], k: int) -> PreTrainedTokenizerFast:
    """Vocabulary of overlapping k-mers: a token of k letters at every base; `N` if it contains an N.

    The library has no overlapping tokens, so the normalizer spells them out: every letter becomes a word of
    its own, then k - 1 times every word takes over the last letter of the word behind it, and the words at
    the end that could not grow are dropped.
    """
    steps = [normalizers.Replace(letter, letter + " ") for letter in _LETTERS]
    for size in range(1, k):
        # A word's end, before a word whose letter number `size` is to be taken over.
        steps += [
            normalizers.Replace(Regex(rf" (?=[{_LETTERS}]{{{size - 1}}}{letter})"), letter + " ")
            for letter in _LETTERS
        ]
    steps.append(normalizers.Replace(Regex(rf"(?<![{_LETTERS}])[{_LETTERS}]{{1,{k - 1}}} "), ""))
    steps.append(normalizers.Replace(Regex(rf"[{_LETTERS}]*N[{_LETTERS}]*"), "N"))
    backend = _word_level(tokens)
    backend.normalizer = _upper(steps)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _finished(backend, tokens)


def kmer_blocks(tokens: Sequence[str], k: int) -> PreTrainedTokenizerFast:
    """Vocabulary of non-overlapping k-mers, with single letters where none fits."""
    backend = _word_level(tokens)
    backend.normalizer = _upper([])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(f"[ACGT]{{{k}}}|."), behavior="isolated")
    return _finished(backend, tokens)


def bpe(tokens: Sequence[str], merges: Sequence[tuple[str, str]]) -> PreTrainedTokenizerFast:
    """Vocabulary of merges of bases."""
    ids = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=ids, merges=list(merges), unk_token="[UNK]"))
    backend.normalizer = _upper([])
    return _finished(backend, tokens)


def _word_level(tokens: Sequence[str], unknown: str = "[UNK]") -> Tokenizer:
    ids = {token: number for number, token in enumerate(tokens)}
    return Tokenizer(models.WordLevel(vocab=ids, unk_token=unknown))


def _upper(further: Sequence[Any]) -> Any:
    """Soft-masked bases have the same ids."""
    return normalizers.Sequence([*(normalizers.Replace(one.lower(), one) for one in _LETTERS), *further])


def _finished(backend: Tokenizer, tokens: Sequence[str]) -> PreTrainedTokenizerFast:
    return fast_tokenizer(backend, [token for token in tokens if token.startswith("[")])


def fast_events_tokenizer(tokens: Sequence[str]) -> PreTrainedTokenizerFast:
    """A fast tokenizer with the given ids: what stands between white space is a token.

    Args:
        tokens: (V,) the vocabulary in id order, special tokens first.
    """
    backend = _word_level(tokens)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return fast_tokenizer(backend, SPECIAL)


def fast_template_tokenizer(tokens: Sequence[str]) -> PreTrainedTokenizerFast:
    """A word-level tokenizer with the given ids, `[CLS]` and `[SEP]` added; other words are `<NEW>`.

    Args:
        tokens: (V,) the spelling of each id: "E1", "E2" ...; names in <> may hold a space.
    """
    backend = _word_level(tokens, "<NEW>")
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"<[^<>]*>|[^\s<>]+"), behavior="removed", invert=True)
    return _finished(backend, tokens)
