"""What every tokenizer does: a batch is what its sequences are alone; saved it is the same, to others too."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import histories as patients
import numpy as np
import pytest
from dnabert import KmerTokenizer
from transformers import AutoTokenizer, EsmConfig, ModernBertConfig

from seqmlm.domains.code.tokenizer import CodeTokenizer
from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.domains.dna.bpe import DnaBpeTokenizer
from seqmlm.domains.dna.kmer_block import KmerBlockTokenizer
from seqmlm.domains.ehr.tokenizer import EventsTokenizer
from seqmlm.domains.logs.templates import TemplateTokenizer
from seqmlm.domains.logs.words import LogWordTokenizer
from seqmlm.domains.protein.tokenizer import ResidueTokenizer
from seqmlm.engine.types import Encoding
from seqmlm.errors import StateError
from seqmlm.tokenizers.base import Tokenizer, fingerprint
from seqmlm.tokenizers.subword import BpeTokenizer, UnigramTokenizer, WordPieceTokenizer
from tests.domains.code.test_tokenizer import TRICKY as TRICKY_CODE
from tests.domains.ehr.test_tokenizer import CHANNELS, VALUES, measured
from tests.domains.logs.test_fields import served
from tests.domains.logs.test_words import service, window
from tests.tokenizers.conftest import corpus
from tests.tokenizers.test_subword import TRICKY

SOURCE = random.Random(2)
BASES = [
    *("".join(SOURCE.choices("ACGTacgtNn", [9] * 8 + [1, 1], k=n)) for n in (6, 7, 30, 60, 80, 40_000)),
    *("N" * 9, "A" * 6),
]
HISTORIES = patients.histories(60)
CHANNELLED: dict[str, Any] = {"channels": CHANNELS, "visits": "gap"}
MEASURED = measured("LAB//x", VALUES, [("U/L", "ukat/L", None)[n % 3] for n in range(400)])
LINES = [window("user 7 in 0xff", "done x"), window("request 1 from ::1"), window("done", "what is this", "")]
STATES = [window(f"package {'abc'[i % 3] * i} is {('unpacked', 'installed')[i % 2]}") for i in range(1, 100)]
SUBWORD = [text for text in TRICKY if "[MASK]" not in text]  # which is a special token to Hugging Face

# The tokenizer, and raw sequences that are asked of it.
CASES: dict[str, tuple[Callable[[], Tokenizer], Sequence[Any]]] = {
    "bpe": (lambda: BpeTokenizer.train(corpus(), vocabulary_size=600), SUBWORD),
    "wordpiece": (lambda: WordPieceTokenizer.train(corpus(), vocabulary_size=600), SUBWORD),
    "unigram": (lambda: UnigramTokenizer.train(corpus(), vocabulary_size=600), SUBWORD),
    "code": (lambda: CodeTokenizer.train(TRICKY_CODE, vocabulary_size=400), TRICKY_CODE[:-1]),
    "log words": (lambda: LogWordTokenizer.train(service()), LINES),
    "templates": (lambda: TemplateTokenizer.train(service()), LINES),
    "closed templates": (lambda: TemplateTokenizer.train(STATES, values=64), [*STATES[:3], *LINES]),
    "fields": (lambda: TemplateTokenizer.train(served(), fields="auto", values=64), [*served(80), *LINES]),
    "residues": (ResidueTokenizer, ["MKTAYIAKQRXBUZO-.LAGV", "", "MX" * 60]),
    "bases": (BaseTokenizer, BASES),
    "k-mers": (lambda: KmerTokenizer(k=6), BASES),
    "blocks": (lambda: KmerBlockTokenizer(k=6), BASES),
    "bases in pairs": (lambda: DnaBpeTokenizer.train(BASES, vocabulary_size=60), BASES),
    "events": (lambda: EventsTokenizer.train(HISTORIES, min_subjects=3), HISTORIES),
    "events in units": (lambda: EventsTokenizer.train(MEASURED), MEASURED),
    "events, channelled": (lambda: EventsTokenizer.train(HISTORIES, min_subjects=3, **CHANNELLED), HISTORIES),
}


def same(one: Encoding, other: Encoding) -> bool:
    """Whether two encodings are equal in all columns, weights to rounding."""
    for column in (field.name for field in fields(Encoding) if field.name != "channels"):
        a, b = getattr(one, column), getattr(other, column)
        if (a is None) != (b is None) or (a is not None and not np.allclose(a, b, atol=1e-6)):
            return False
    names = one.channels.keys() | other.channels.keys()
    return all(np.allclose(one.channels[n], other.channels[n], equal_nan=True) for n in names)


def spelled(tokenizer: Tokenizer, raw: Any, encoding: Encoding) -> str:
    """A raw sequence as Hugging Face takes it."""
    if isinstance(tokenizer, EventsTokenizer):
        return " ".join(tokenizer.tokens[i] for i in encoding.ids[1:-1])
    return tokenizer.spell(raw) if hasattr(tokenizer, "spell") else raw


@pytest.mark.parametrize("name", CASES)
def test_a_batch_a_saved_folder_and_hugging_face_give_what_a_sequence_gives(
    name: str, tmp_path: Path
) -> None:
    make, raws = CASES[name]
    tokenizer = make()
    tokenizer.save(tmp_path)
    # In an exported model's folder; transformers must not choose EsmTokenizer, which needs a vocab.txt.
    config = EsmConfig if name == "residues" else ModernBertConfig
    config(vocab_size=33, hidden_size=8, num_hidden_layers=1, num_attention_heads=1).save_pretrained(tmp_path)
    auto, again = AutoTokenizer.from_pretrained(str(tmp_path)), type(tokenizer).load(tmp_path)
    for stated in ("tokens", "options", "channels"):
        assert getattr(again, stated) == getattr(tokenizer, stated)
    assert fingerprint(again) == fingerprint(tokenizer)
    assert (auto.mask_token_id, auto.pad_token_id) == (tokenizer.space.mask, tokenizer.space.pad)
    for raw, batched, loaded in zip(
        raws, tokenizer.encode_batch(raws), again.encode_batch(raws), strict=True
    ):
        assert same(tokenizer.encode(raw), batched)
        assert same(batched, loaded)
        text, ids = spelled(tokenizer, raw, batched), batched.ids.tolist()
        if name == "bpe" and text.startswith(" "):
            continue  # to plain transformers that space is the one that is added
        assert auto(text)["input_ids"] == tokenizer.hf()(text)["input_ids"] == ids
    assert tokenizer.encode_batch([]) == []
    with pytest.raises(StateError):
        type(tokenizer).load(tmp_path / "elsewhere")


def test_the_interface_is_small() -> None:
    members = {name for name in (*vars(Tokenizer), *Tokenizer.__annotations__) if not name.startswith("_")}
    assert len(members) <= 15, sorted(members)
