"""The four DNA tokenizers: what they spell, the other strand, soft masks, the same from Hugging Face."""

from __future__ import annotations

import random

import numpy as np
import pytest
from dnabert import KmerTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.domains.dna.bpe import DnaBpeTokenizer
from seqmlm.domains.dna.kmer_block import KmerBlockTokenizer
from seqmlm.domains.dna.tokenizer import FIRST, NucleotideTokenizer, reverse_complement
from seqmlm.engine.windows import join, windows
from seqmlm.errors import DataError, UsageError
from seqmlm.tokenizers.base import UnknownUnit, fingerprint


def _bpe() -> DnaBpeTokenizer:
    source = random.Random(0)
    words = ["".join(source.choices("ACGT", k=5)) for _ in range(20)]
    texts = ["".join(source.choices(words, k=40)) for _ in range(50)]
    return DnaBpeTokenizer.train(texts, vocabulary_size=60)


TOKENIZERS: list[NucleotideTokenizer] = [
    BaseTokenizer(),
    KmerTokenizer(k=3),
    KmerTokenizer(k=6),
    KmerBlockTokenizer(k=3),
    KmerBlockTokenizer(k=6),
    _bpe(),
]
NAMES = [f"{one.name}-{getattr(one, 'k', '')}" for one in TOKENIZERS]
every = pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=NAMES)
masked = st.text("ACGTacgtN", min_size=6, max_size=60)
COLUMNS = ("ids", "groups", "spans")


def same(a, b) -> bool:
    weights = np.allclose(a.weights, b.weights, atol=1e-6)
    return weights and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in COLUMNS)


@every
@given(raw=masked)
@settings(max_examples=40)
def test_spans_hold_what_the_tokens_say(tokenizer, raw):
    encoding = tokenizer.encode(raw)
    space = tokenizer.space
    assert encoding.ids[0] == space.start
    assert encoding.ids[-1] == space.end
    covered = np.zeros(len(raw), dtype=bool)
    for token, (start, end), group, weight in zip(
        encoding.ids[1:-1], encoding.spans[1:-1], encoding.groups[1:-1], encoding.weights[1:-1], strict=True
    ):
        letters = raw[start:end]
        covered[start:end] = True
        assert weight == pytest.approx(np.mean([0.1 if c.islower() else 1 for c in letters]), abs=1e-5)
        if "N" in letters:
            assert (tokenizer.tokens[token], group) == ("N", -1)
        else:
            assert (tokenizer.spelling.surface(token), group) == (letters.upper(), start)
    assert covered.all()


@every
@given(raw=masked)
@settings(max_examples=40)
def test_the_other_strand_is_that_of_the_letters_and_turns_back(tokenizer, raw):
    encoding = tokenizer.encode(raw)
    turned = tokenizer.reverse_complement(encoding)
    assert len(turned) == len(encoding)
    if turned is encoding:
        assert tokenizer.name in ("kmer_block.v1", "dna_bpe.v1")
        return
    assert np.array_equal(turned.ids, tokenizer.encode(reverse_complement(raw)).ids)
    if tokenizer.name != "dna_bpe.v1":  # whose tokens are cut elsewhere: a mean of means is not a mean
        assert same(turned, tokenizer.encode(reverse_complement(raw)))
        assert same(tokenizer.reverse_complement(turned), encoding)
    assert np.array_equal(tokenizer.reverse_complement(turned).ids, encoding.ids)


@pytest.mark.parametrize("k", [2, 3, 6])
@given(codons=st.lists(st.text("ACGT", min_size=6, max_size=6), min_size=1, max_size=9))
def test_whole_blocks_are_turned(k, codons):
    tokenizer = KmerBlockTokenizer(k=k)
    encoding = tokenizer.encode("".join(codons))
    turned = tokenizer.reverse_complement(encoding)
    assert turned is not encoding
    assert same(turned, tokenizer.encode(reverse_complement("".join(codons))))
    assert tokenizer.reverse_complement(tokenizer.encode("".join(codons) + "A")).ids[-2] == FIRST


def test_some_other_strands_of_byte_pairs_are_as_long():
    tokenizer, source = TOKENIZERS[-1], random.Random(1)
    encodings = [tokenizer.encode("".join(source.choices("ACGT", k=30))) for _ in range(100)]
    turned = sum(tokenizer.reverse_complement(one) is not one for one in encodings)
    assert 10 < turned < 100


@pytest.mark.parametrize("tokenizer", TOKENIZERS[:3], ids=NAMES[:3])
def test_windows_and_joined_sequences_are_turned_in_place(tokenizer):
    raw = "ACGGTTACnNGATTACAGATACCAGGGAtatcc"
    [_, middle, *_] = windows(tokenizer.encode(raw), tokenizer.space, 12)
    turned = tokenizer.reverse_complement(middle)
    start, end = int(middle.spans[1:-1].min()), int(middle.spans[1:-1].max())
    alone = tokenizer.encode(reverse_complement(raw[start:end]))
    assert np.array_equal(turned.ids, alone.ids)
    assert np.array_equal(turned.spans[1:-1], alone.spans[1:-1] + start)
    assert same(tokenizer.reverse_complement(turned), middle)
    two = [tokenizer.encode(raw), tokenizer.encode("GGGATTTCCA")]
    [joined] = join(two, tokenizer.space, 200)
    both = join([tokenizer.reverse_complement(one) for one in two], tokenizer.space, 200)[0]
    assert np.array_equal(tokenizer.reverse_complement(joined).ids, both.ids)
    assert same(tokenizer.reverse_complement(tokenizer.reverse_complement(joined)), joined)


def test_either_strand_half_of_the_time():
    tokenizer, rng = BaseTokenizer(), np.random.default_rng(0)
    encoding = tokenizer.encode("AACCCGGT")
    forward = sum(tokenizer.units.facts.augment(encoding, rng) is encoding for _ in range(1000))
    assert abs(forward - 500) < 5 * np.sqrt(250)


@every
@pytest.mark.parametrize("bad", ["E", "R", "U", " ", "\0", "ÿ", "Ω", "["])
def test_other_letters_are_named_with_their_place(tokenizer, bad):
    raws = ["ACGTACG"] * 100 + ["ACG" + bad + "ACGTA" + bad] + ["ACGTAEE"]
    with pytest.raises(UnknownUnit) as caught:
        tokenizer.encode_batch(raws)
    assert (caught.value.index, caught.value.found) == (100, (3, bad))
    assert tokenizer.unknown(raws[100]) == [(3, bad), (9, bad)]
    assert tokenizer.unknown("ACGTNacgtn") == []


def test_case_counts_only_if_it_is_to():
    assert BaseTokenizer(soft_mask_weight=1).encode("ACgt").weights is None
    assert KmerBlockTokenizer(k=2, soft_mask_weight=1).encode("ACgt").weights is None
    assert BaseTokenizer(soft_mask_weight=0).encode("ACgt").weights.tolist() == [1, 1, 1, 0, 0, 1]


def test_a_sequence_without_a_whole_kmer_is_refused():
    with pytest.raises(DataError, match="fewer than 6 bases"):
        KmerTokenizer().encode_batch(["ACGTACGT", "ACGT"])
    assert KmerBlockTokenizer().encode("ACGT").ids.tolist() == [2, 6, 7, 8, 9, 3]


def test_options_out_of_range_are_refused():
    for wrong in (lambda: KmerTokenizer(k=2), lambda: KmerTokenizer(k=7), lambda: KmerBlockTokenizer(k=1)):
        with pytest.raises(UsageError, match="k must be"):
            wrong()
    with pytest.raises(UsageError, match="soft_mask_weight"):
        BaseTokenizer(soft_mask_weight=1.5)
    with pytest.raises(UsageError, match="fixed vocabulary"):
        BaseTokenizer.train(["ACGT"])


def test_training_byte_pairs():
    train = DnaBpeTokenizer.train
    assert train(["ACACACNNacacac"], vocabulary_size=12).tokens[FIRST:] == (*"ACGT", "AC", "ACAC")
    assert "ACGTACGT" in train(["ACGT" * 30] * 3).tokens
    with pytest.raises(DataError, match="no bases"):
        train(["NNN", ""])
    for wrong, said in (({"vocabulary_size": 9}, "at least 10"), ({"k": 3}, "no option 'k'")):
        with pytest.raises(UsageError, match=said):
            train(["ACGT"], **wrong)


def test_fingerprints_are_those_of_these_vocabularies():
    # Stored with every model: a change here means that old models no longer match their tokenizer.
    known = {BaseTokenizer: "350ad1fc", KmerTokenizer: "02603c5d", KmerBlockTokenizer: "80eb0d2e"}
    assert {kind: fingerprint(kind())[:8] for kind in known} == known


@every
@given(raw=masked)
@settings(max_examples=30)
def test_encodings_are_spelled_back_with_spaces_for_n(tokenizer, raw):
    encoding = tokenizer.encode(raw)
    text, spans = tokenizer.spelling.respelled(encoding)
    shown = encoding.groups >= 0
    for token, (start, end) in zip(encoding.ids[shown].tolist(), spans[shown].tolist(), strict=True):
        assert text[start:end] == tokenizer.tokens[token]
    shortest = tokenizer.k if tokenizer.name == "kmer.v1" else 1
    assert text.split() == [run for run in raw.upper().split("N") if len(run) >= shortest]
