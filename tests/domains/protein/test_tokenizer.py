"""residue.v1 is ESM's tokenizer: against transformers' own, and against a letter-by-letter loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import protein_model
from transformers import EsmTokenizer
from written import written

from seqmlm.domains.protein.tokenizer import GAPS, RESIDUES, STANDARD, TOKENS, ResidueTokenizer
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.scoring import Scorer
from seqmlm.engine.units import Mode, Units
from seqmlm.errors import StateError, UsageError
from seqmlm.tokenizers.base import UnknownUnit, fingerprint

# As facebookresearch/esm lists them.
ESM = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]

letters = st.text(alphabet=RESIDUES + GAPS, max_size=70)


@pytest.fixture(scope="module")
def esm(tmp_path_factory: pytest.TempPathFactory) -> EsmTokenizer:
    path = written(tmp_path_factory.mktemp("esm") / "vocab.txt", "\n".join(ESM))
    return EsmTokenizer(str(path))


@pytest.fixture(scope="module")
def fast():
    return ResidueTokenizer().hf()


def test_vocabulary_is_esms_in_esms_order():
    assert list(TOKENS) == ESM
    space = ResidueTokenizer().space
    assert (space.size, space.pad, space.mask, space.start, space.end, space.unk) == (33, 1, 32, 0, 2, 3)
    assert [TOKENS[i] for i in space.ordinary] == list(RESIDUES)


@given(raw=letters)
@settings(max_examples=60)
def test_ids_equal_esms_and_the_fast_tokenizers(esm, fast, raw):
    ours = ResidueTokenizer().encode(raw).ids.tolist()
    assert ours == esm(raw)["input_ids"] == fast(raw)["input_ids"]


def test_fast_tokenizer_knows_masks_and_pairs_as_esms_does(esm, fast):
    assert fast("MK<mask>V")["input_ids"] == esm("MK<mask>V")["input_ids"] == [0, 20, 15, 32, 7, 2]
    assert fast.mask_token_id == 32
    assert fast.all_special_ids == esm.all_special_ids


@given(raws=st.lists(letters, max_size=150))
@settings(max_examples=30)
def test_batch_equals_a_loop_over_letters(raws):
    encodings = ResidueTokenizer().encode_batch(raws)
    assert len(encodings) == len(raws)
    for raw, encoding in zip(raws, encodings, strict=True):
        spans = [(0, 0), *((i, i + 1) for i in range(len(raw))), (0, 0)]
        groups = [-1, *(-1 if letter in GAPS else i for i, letter in enumerate(raw)), -1]
        assert encoding.ids.tolist() == [0, *(ESM.index(letter) for letter in raw), 2]
        assert encoding.groups.tolist() == groups
        assert encoding.spans.tolist() == [list(span) for span in spans]
        assert (encoding.ids.dtype, encoding.groups.dtype, encoding.spans.dtype) == (np.int32,) * 3


@pytest.mark.parametrize("bad", ["k", "1", "*", " ", "?", "\0", "ÿ", "Ω", "😀", "<"])
def test_unknown_letters_are_named_with_their_place(bad):
    tokenizer = ResidueTokenizer()
    raws = ["MKV"] * 100 + ["MK" + bad + "V" + bad] + ["1"]
    with pytest.raises(UnknownUnit) as caught:
        tokenizer.encode_batch(raws)
    assert (caught.value.index, caught.value.found) == (100, (2, bad))
    assert tokenizer.unknown(raws[100]) == [(2, bad), (4, bad)]
    placed = caught.value.at("a.fasta", 7)
    assert str(placed).startswith(f"a.fasta:7: {bad!r} is not in the alphabet")
    assert "position 3" in str(placed)
    assert placed.exit_code == 3


def test_j_is_read_as_any_residue():
    tokenizer = ResidueTokenizer()
    assert tokenizer.encode("MJKJ").ids.tolist() == tokenizer.encode("MXKX").ids.tolist()


@pytest.mark.parametrize("mode", ["exact", "partition:3", "one-pass"])
def test_residues_that_are_not_known_are_seen_and_not_scored(mode):
    tokenizer, rows = ResidueTokenizer(), protein_model(max_length=40).rows
    raw = "MKXXBLAZGUVOJSERTX"
    standard = [place for place, letter in enumerate(raw) if letter in STANDARD]
    found, every = (
        next(
            Scorer(Conditionals(rows), units, mode=Mode.parse(mode)).windows([(tokenizer.encode(raw), None)])
        )
        for units in (tokenizer.units, Units(tokenizer.space))
    )
    assert found.groups.tolist() == standard
    assert every.groups.tolist() == list(range(len(raw)))
    np.testing.assert_allclose(found.log_probs, every.log_probs[standard], atol=1e-6)
    assert list(tokenizer.units.questions(tokenizer.encode("XXBZUO"), None, Mode.parse(mode))) == []


@given(raw=st.text(max_size=30))
@settings(max_examples=60)
def test_unknown_is_empty_exactly_where_encode_works(raw):
    tokenizer = ResidueTokenizer()
    assert tokenizer.unknown(raw) == [(i, c) for i, c in enumerate(raw) if c not in RESIDUES + GAPS + "J"]
    if tokenizer.unknown(raw):
        with pytest.raises(UnknownUnit):
            tokenizer.encode(raw)
    else:
        assert len(tokenizer.encode(raw)) == len(raw) + 2


def test_fingerprint_is_that_of_this_vocabulary():
    # Stored with every model: a change here means that old models no longer match their tokenizer.
    assert fingerprint(ResidueTokenizer()).startswith("ff936c769173bb8d")


def test_is_not_trained_and_not_loaded_from_elsewhere(tmp_path: Path):
    with pytest.raises(UsageError, match="fixed vocabulary"):
        ResidueTokenizer.train(["MKV"])
    with pytest.raises(StateError, match="no saved tokenizer"):
        ResidueTokenizer.load(tmp_path)
    (tmp_path / "seqmlm_tokenizer.json").write_text('{"name": "bpe.v1", "options": {}}')
    with pytest.raises(StateError, match=r"bpe\.v1"):
        ResidueTokenizer.load(tmp_path)
    (tmp_path / "seqmlm_tokenizer.json").write_text("{")
    with pytest.raises(StateError, match="not a tokenizer card"):
        ResidueTokenizer.load(tmp_path)
