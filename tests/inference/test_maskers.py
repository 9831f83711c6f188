"""Maskers are made with what the tokenizer knows, unless the user says otherwise."""

from __future__ import annotations

import pytest

from seqmlm.domains.protein.tokenizer import SPACE, ResidueTokenizer
from seqmlm.engine.masking.base import MaskingConfig
from seqmlm.engine.units import UnitFacts, Units
from seqmlm.errors import UsageError
from seqmlm.inference.maskers import make_masker


class Knowing(ResidueTokenizer):
    facts = UnitFacts(unfamiliar=(), masking={"max_units": 4, "something_else": 1})
    units = Units(SPACE, facts)


def test_a_tokenizer_tells_a_masker_what_it_must_know_and_the_user_has_the_last_word():
    config = MaskingConfig(masker="span.v1", rate=0.1)
    assert len(make_masker(config, Knowing())._length_below) == 4 - 1
    own = MaskingConfig(masker="span.v1", rate=0.1, options={"max_units": 7})
    assert len(make_masker(own, Knowing())._length_below) == 7 - 1


def test_word_lists_are_spelled_in_ids(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("# motifs\nMK\nV\n")
    config = MaskingConfig(masker="lexicon.v1", options={"words_file": str(words), "words": ["W"]})
    made = make_masker(config, ResidueTokenizer())
    spelled = [ResidueTokenizer().encode(word).ids[1:-1].tolist() for word in ("W", "MK", "V")]
    assert {tuple(word) for word in made.words} == {tuple(word) for word in spelled}
    with pytest.raises(UsageError, match="cannot read"):
        make_masker(
            MaskingConfig(masker="lexicon.v1", options={"words_file": "none.txt"}), ResidueTokenizer()
        )
