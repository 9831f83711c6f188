"""huggingface.v1 takes any saved fast tokenizer: its special ids, words as units, nothing cut off."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import EsmTokenizer, PreTrainedTokenizerFast

from seqmlm.domains.protein.tokenizer import TOKENS, ResidueTokenizer
from seqmlm.errors import StateError, UsageError
from seqmlm.tokenizers.base import fingerprint
from seqmlm.tokenizers.huggingface import HuggingFaceTokenizer, checkpoint_tokenizer

ROBERTA = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}


def roberta_like(**roles: str) -> PreTrainedTokenizerFast:
    """Byte-level, ids of the special tokens as in RoBERTa, truncating and padding as sentence models do."""
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[letter] = len(vocabulary)
    vocabulary["Ġw"] = len(vocabulary)
    vocabulary["<mask>"] = len(vocabulary)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ġ", "w")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(ROBERTA.values()))
    backend.enable_truncation(4)
    backend.enable_padding(length=12, pad_id=1, pad_token="<pad>")
    return PreTrainedTokenizerFast(tokenizer_object=backend, **(roles or ROBERTA))


def letters_only() -> PreTrainedTokenizerFast:
    """One letter a token, no pre-tokenizer, no start and end tokens (as GPN)."""
    vocabulary = {token: i for i, token in enumerate(["[PAD]", "[MASK]", "[UNK]", "a", "c", "g", "t"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="[UNK]"))
    backend.add_special_tokens(["[PAD]", "[MASK]", "[UNK]"])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", mask_token="[MASK]", unk_token="[UNK]", cls_token="[PAD]"
    )


def test_a_saved_byte_level_tokenizer(tmp_path: Path):
    roberta_like().save_pretrained(str(tmp_path))
    tokenizer = HuggingFaceTokenizer.load(tmp_path)
    assert tokenizer.space.to_dict() == {
        "size": 262, "pad": 1, "mask": 261, "unk": 3, "start": 0, "end": 2, "special": [0, 1, 2, 3, 261],
    }  # fmt: skip
    text = "ab wé <mask>"
    encoding = tokenizer.encode(text)
    surfaces = map(tokenizer.spelling.surface, encoding.ids[:5].tolist())
    assert list(surfaces) == ["<s>", "a", "b", "w", "\ufffd"]
    assert encoding.groups.tolist() == [-1, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3, 4, -1]
    assert [text[a:b] for a, b in encoding.spans[1:6].tolist()] == ["a", "b", "w", "é", "é"]
    assert len(encoding) > 12  # neither cut at 4 nor padded to 12
    assert tokenizer.space.mask not in encoding.ids
    assert tokenizer.hf()("ab wé")["input_ids"] == tokenizer.encode("ab wé").ids.tolist()


def test_without_pre_tokenizer_every_token_is_a_unit():
    tokenizer = HuggingFaceTokenizer(letters_only())
    encoding, other = tokenizer.encode_batch(["acgNt", "gg"])
    assert encoding.ids.tolist() == [3, 4, 5, 2, 6]
    assert encoding.groups.tolist() == [0, 1, 2, -1, 4]
    assert other.groups.tolist() == [0, 1]
    assert tokenizer.unknown("acgNt") == [(3, "N")]
    # `cls_token` is named but the tokenizer does not add it.
    assert (tokenizer.space.start, tokenizer.space.end) == (None, None)


def test_units_equal_those_of_the_tokenizer_that_was_saved(bpe, tmp_path: Path):
    bpe.save(tmp_path)
    tokenizer = checkpoint_tokenizer(tmp_path)
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    assert tokenizer.space == bpe.space
    for text in ("Straße, señor (yes)!", "two  spaces", ""):
        ours, theirs = bpe.encode(text), tokenizer.encode(text)
        assert ours.ids.tolist() == theirs.ids.tolist()
        assert ours.groups.tolist() == theirs.groups.tolist()
        assert ours.spans.tolist() == theirs.spans.tolist()


def test_saved_again_it_is_the_same(tmp_path: Path):
    first = HuggingFaceTokenizer(roberta_like())
    first.save(tmp_path)
    second = HuggingFaceTokenizer.load(tmp_path)
    assert fingerprint(first) == fingerprint(second) != fingerprint(HuggingFaceTokenizer(letters_only()))


@pytest.mark.parametrize("slow", [True, False])
def test_esms_vocabulary_is_imported_as_residues(tmp_path: Path, slow):
    if slow:
        (tmp_path / "vocab.txt").write_text("\n".join(TOKENS))
        EsmTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(str(tmp_path))
    else:
        ResidueTokenizer().hf().save_pretrained(str(tmp_path))
    assert isinstance(checkpoint_tokenizer(tmp_path, [ResidueTokenizer]), ResidueTokenizer)


def test_what_cannot_be_used_is_refused_by_name(tmp_path: Path):
    with pytest.raises(StateError, match="no tokenizer could be read"):
        checkpoint_tokenizer(tmp_path)
    with pytest.raises(UsageError, match="mask_token"):
        HuggingFaceTokenizer(roberta_like(pad_token="<pad>", unk_token="<unk>"))
    (tmp_path / "vocab.txt").write_text("\n".join((*TOKENS, "extra")))
    EsmTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(str(tmp_path))
    with pytest.raises(UsageError, match="EsmTokenizer is a slow tokenizer"):
        checkpoint_tokenizer(tmp_path)
