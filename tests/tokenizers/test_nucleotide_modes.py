"""Modes of scoring where units are bases: against loops over tokens and letters with plain calls."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from seqmlm.domains.dna.overlapping import KmerTokenizer
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.reductions import Entropy, Rank, top
from seqmlm.engine.scoring import Scorer, SequenceScore
from seqmlm.engine.units import Mode, partition
from seqmlm.errors import UsageError
from seqmlm.tokenizers.kmer_block import KmerBlockTokenizer
from seqmlm.tokenizers.nucleotide import NucleotideTokenizer
from tests.tokenizers.test_unit_questions import BPE, RAW, rows_for, share_of_kmers, share_of_token


def scored(tokenizer: NucleotideTokenizer, text: str, owned: Any = None) -> SequenceScore:
    ask = Conditionals(rows_for(tokenizer.space).eval())
    scorer = Scorer(ask, tokenizer.units, mode=Mode.parse(text), want=(Entropy(), Rank(), *top(5)))
    [score] = scorer.windows([(tokenizer.encode(RAW), owned)])
    return score


def check(score: SequenceScore, i: int, shares: dict[str, float], true: str, log_prob: float) -> None:
    """One unit's numbers against the distribution over its letters."""
    assert score.log_probs[i] == pytest.approx(log_prob, abs=1e-5)
    own = {name: value[i] for name, value in score.values.items()}
    entropy = -sum(p * math.log(p) for p in shares.values() if p > 0)
    assert own["entropy"] == pytest.approx(entropy, abs=1e-5)
    assert own["rank"] == sum(p > shares[true] + 1e-7 for p in shares.values())
    best = sorted((base for base in "ACGT" if shares[base] > 0), key=lambda base: -shares[base])
    count = len(best)
    assert ["ACGT"[letter] for letter in own["top_ids"][:count]] == best
    assert (own["top_ids"][count:] == -1).all()
    np.testing.assert_allclose(
        own["top_log_probs"][:count], [math.log(shares[base]) for base in best], atol=1e-4
    )
    assert (own["top_log_probs"][count:] == -math.inf).all()


@pytest.mark.parametrize("text", ["exact", "partition:7", "partition:50"])
def test_overlapping_kmers(text: str) -> None:
    tokenizer = KmerTokenizer(k=3)
    rows, encoding, score = rows_for(tokenizer.space).eval(), tokenizer.encode(RAW), scored(tokenizer, text)
    places = [i for i, base in enumerate(RAW) if base != "N"]
    assert sorted(score.groups.tolist()) == places
    mode = Mode.parse(text)
    passes = partition(len(places), mode.parts) if mode.kind == "partition" else np.arange(len(places))
    for i, place in enumerate(score.groups.tolist()):
        hidden = {p for p, own in zip(places, passes, strict=True) if own == passes[places.index(place)]}
        shares = share_of_kmers(tokenizer, rows, encoding, hidden, place)
        check(score, i, shares, RAW[place], math.log(shares[RAW[place]]))


@pytest.mark.parametrize("text", ["exact", "partition:3", "one-pass"])
@pytest.mark.parametrize("tokenizer", [KmerBlockTokenizer(k=3), BPE], ids=["blocks", "bpe"])
def test_tokens_of_several_bases(tokenizer: NucleotideTokenizer, text: str) -> None:
    rows, encoding, score = rows_for(tokenizer.space).eval(), tokenizer.encode(RAW), scored(tokenizer, text)
    assert score.groups.tolist() == [i for i, base in enumerate(RAW) if base != "N"]
    mode = Mode.parse(text)
    inside = [t for t in range(len(encoding)) if encoding.groups[t] >= 0]
    number = {t: n for n, t in enumerate(inside)}
    passes = partition(len(inside), mode.parts) if mode.kind == "partition" else np.arange(len(inside))
    spans = encoding.spans
    for i, place in enumerate(score.groups.tolist()):
        [token] = [t for t in inside if spans[t, 0] <= place < spans[t, 1]]
        together = {t for t in inside if passes[number[t]] == passes[number[token]]}
        ordinary = {t for t in together if not tokenizer.space.is_special[encoding.ids[t]]}
        masked = set() if mode.kind == "one-pass" else ordinary
        shares, log_prob = share_of_token(tokenizer, rows, encoding, masked, (token, place))
        check(score, i, shares, RAW[place], log_prob)


@pytest.mark.parametrize("text", ["exact", "partition:7"])
def test_a_part_of_overlapping_kmers_is_scored_as_in_the_whole(text: str) -> None:
    tokenizer = KmerTokenizer(k=3)
    whole = scored(tokenizer, text)
    owned = np.zeros(len(tokenizer.encode(RAW)), dtype=np.bool_)
    owned[8:15] = True
    part = scored(tokenizer, text, owned)
    kept = np.isin(whole.groups, part.groups)
    assert 0 < kept.sum() == len(part.groups) < len(whole.groups)
    np.testing.assert_allclose(part.log_probs, whole.log_probs[kept], atol=1e-5)
    np.testing.assert_allclose(part.values["entropy"], whole.values["entropy"][kept], atol=1e-5)


@pytest.mark.parametrize(
    ("text", "reason"), [("one-pass", "overlapping"), ("partition:3", "at least partition:6")]
)
def test_modes_that_would_show_or_hide_all_are_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        scored(KmerTokenizer(k=3), text)
