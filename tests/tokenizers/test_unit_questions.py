"""Units hidden and read by `Units.ask`, and in modes of scoring: against loops of plain calls."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from dnabert import KmerTokenizer

from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.domains.dna.bpe import DnaBpeTokenizer
from seqmlm.domains.dna.kmer_block import KmerBlockTokenizer
from seqmlm.domains.dna.tokenizer import FIRST, NucleotideTokenizer
from seqmlm.engine.backbones import build
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.packing import Document, pack
from seqmlm.engine.reductions import Candidates, Entropy, Rank, Sample, top
from seqmlm.engine.scoring import Scorer, SequenceScore
from seqmlm.engine.shapes import ModelConfig
from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.engine.units import Mode, Units, partition
from seqmlm.errors import UsageError

RAW = "ACGTTGCATTNGACCAGTACGGATTACAGATTTGCCA"
PLACES = [i for i, base in enumerate(RAW) if base != "N"]
# Variant by variant: the hidden units, and those of them that are read.
HIDDEN = [[4, 5, 20], [0], [7, 9, 11, 33], [4]]
ASKED = [[5, 20], [0], [9], [4]]
HIDDEN_IN, ASKED_IN = (np.repeat(np.arange(4), [len(own) for own in some]) for some in (HIDDEN, ASKED))
DISTRIBUTION = (Entropy(), Candidates((0, 1, 2, 3)))
BPE = DnaBpeTokenizer.train(["ACGTTGCATTGACCAGTACGGATTACAGATTTGCCA" * 3], vocabulary_size=30)
SIDE_BY_SIDE = [KmerBlockTokenizer(k=3), BPE]


def rows_for(space: TokenSpace) -> MaskedRows:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    overrides = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return MaskedRows(build(ModelConfig(overrides={**overrides, "initializer_range": 0.5}), space), space)


def naive(rows: MaskedRows, encoding: Encoding, masked: set[int], asked: int) -> Any:
    """(V,) probabilities at one position, by one call."""
    ids = encoding.ids.copy()
    ids[sorted(masked)] = rows.space.mask
    with torch.no_grad():
        logits = rows(pack([Document(ids=ids, asked=np.array([asked]))]), output="logits")
    return torch.softmax(logits[0].double(), -1).numpy()


def share_of_token(
    tokenizer: NucleotideTokenizer,
    rows: MaskedRows,
    encoding: Encoding,
    masked: set[int],
    at: tuple[int, int],
) -> tuple[dict[str, float], float]:
    """Shares of the bases at `at`, a token and a place, among words of its length; its log p, per base."""
    token, place = at
    p, word = naive(rows, encoding, masked, token), tokenizer.tokens[encoding.ids[token]]
    alike = [n for n in range(FIRST, tokenizer.space.size) if len(tokenizer.tokens[n]) == len(word)]
    shares = dict.fromkeys("ACGT", 0.0)
    for n in alike:
        shares[tokenizer.tokens[n][place - encoding.spans[token, 0]]] += p[n] / p[alike].sum()
    return shares, math.log(p[encoding.ids[token]]) / len(word)


def share_of_kmers(
    tokenizer: KmerTokenizer, rows: MaskedRows, encoding: Encoding, hidden: set[int], place: int
) -> dict[str, float]:
    """Shares of the bases at a place: the mean over its k-mers, of words that fit what is seen."""
    spans = [
        tuple(span) if n >= FIRST else (0, 0)
        for n, span in zip(encoding.ids, encoding.spans.tolist(), strict=True)
    ]
    masked = {t for t, (a, b) in enumerate(spans) if hidden & set(range(a, b))}
    over = [t for t, (a, b) in enumerate(spans) if a <= place < b]
    shares = dict.fromkeys("ACGT", 0.0)
    for t in over:
        p, agreeing = naive(rows, encoding, masked, t), dict.fromkeys("ACGT", 0.0)
        for number in range(FIRST, tokenizer.space.size):
            word = tokenizer.tokens[number]
            if all(word[j - spans[t][0]] == RAW[j] for j in range(*spans[t]) if j not in hidden):
                agreeing[word[place - spans[t][0]]] += p[number]
        for letter in "ACGT":
            shares[letter] += agreeing[letter] / sum(agreeing.values()) / len(over)
    return shares


def answered(units: Units, encoding: Encoding, want: Any = DISTRIBUTION) -> Any:
    """What is said of `ASKED`, in one query of four variants."""
    query = units.ask(encoding, *map(np.concatenate, (HIDDEN, ASKED)), hidden_in=HIDDEN_IN, asked_in=ASKED_IN)
    [answer] = Conditionals(rows_for(units.space).eval()).ask([query], units.needs(want))
    return units.unit_log_probs(query, answer, want)


def each_base(found: Any) -> Any:
    """(variant, base, index of its entry) of what was read of bases, one entry each."""
    assert found.variant.tolist() == ASKED_IN.tolist()
    assert found.unit.tolist() == np.concatenate(ASKED).tolist()
    return zip(found.variant.tolist(), found.unit.tolist(), range(len(found.unit)), strict=True)


def check(found: Any, i: int, shares: dict[str, float]) -> None:
    with np.errstate(divide="ignore"):
        logs = np.log([shares[base] for base in "ACGT"])
    np.testing.assert_allclose(found.values["candidates"][i], logs, atol=1e-5)
    entropy = -sum(p * math.log(p) for p in shares.values() if p)
    assert found.values["entropy"][i] == pytest.approx(entropy, abs=1e-5)


def test_groups_of_tokens() -> None:
    space = TokenSpace(size=20, pad=0, mask=1, unk=2, start=3, end=4, special=(0, 1, 2, 3, 4))
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 4, 40)
    inner = rng.integers(5, 20, sizes.sum())
    inner[3] = space.unk
    groups = np.concatenate([[-1], np.repeat(np.arange(7, 47), sizes), [-1]]).astype(np.int32)
    encoding = Encoding(ids=np.array([3, *inner, 4], dtype=np.int32), groups=groups)
    units, rows = Units(space), rows_for(space).eval()
    found = answered(units, encoding, (Entropy(),))
    expected: dict[tuple[int, int], float] = {}
    entries = 0
    for variant, (hidden, asked) in enumerate(zip(HIDDEN, ASKED, strict=True)):
        masked = set(np.flatnonzero(np.isin(groups - 7, hidden) & (encoding.ids != space.unk)).tolist())
        for unit in asked:
            for position in sorted(masked & set(np.flatnonzero(groups - 7 == unit).tolist())):
                p = naive(rows, encoding, masked, position)
                assert (found.variant[entries], found.unit[entries]) == (variant, unit)
                assert found.log_probs[entries] == pytest.approx(
                    math.log(p[encoding.ids[position]]), abs=1e-5
                )
                entropy = -(p[5:] * np.log(p[5:])).sum()
                assert found.values["entropy"][entries] == pytest.approx(entropy, abs=1e-5)
                before = expected.get((variant, unit), 0.0)
                expected[variant, unit] = before + float(found.log_probs[entries])
                entries += 1
    assert entries == len(found.unit)
    variants, numbers, sums = found.totals()
    assert list(zip(variants.tolist(), numbers.tolist(), strict=True)) == sorted(expected)
    np.testing.assert_allclose(sums, [expected[key] for key in sorted(expected)])


@pytest.mark.parametrize("tokenizer", SIDE_BY_SIDE, ids=["blocks", "bpe"])
def test_bases_side_by_side_in_tokens(tokenizer: NucleotideTokenizer) -> None:
    rows, encoding = rows_for(tokenizer.space).eval(), tokenizer.encode(RAW)
    spans = encoding.spans
    token = [next(t for t, (a, b) in enumerate(spans.tolist()) if a <= place < b) for place in PLACES]
    found = answered(tokenizer.units, encoding)
    for variant, base, i in each_base(found):
        masked = {token[one] for one in HIDDEN[variant]}
        at = token[base], PLACES[base]
        shares, log_prob = share_of_token(tokenizer, rows, encoding, masked, at)
        check(found, i, shares)
        assert found.log_probs[i] == pytest.approx(log_prob, abs=1e-5)
        assert found.tokens[i] == pytest.approx(1 / np.diff(spans[token[base]])[0])


@pytest.mark.parametrize("k", [3, 4])
def test_bases_in_overlapping_kmers(k: int) -> None:
    tokenizer = KmerTokenizer(k=k)
    rows, encoding = rows_for(tokenizer.space).eval(), tokenizer.encode(RAW)
    found = answered(tokenizer.units, encoding)
    for variant, base, i in each_base(found):
        hidden, place = {PLACES[one] for one in HIDDEN[variant]}, PLACES[base]
        shares = share_of_kmers(tokenizer, rows, encoding, hidden, place)
        check(found, i, shares)
        assert found.log_probs[i] == pytest.approx(math.log(shares[RAW[place]]), abs=1e-5)


def test_one_base_a_token_is_a_group_of_one() -> None:
    tokenizer = BaseTokenizer()
    rows, encoding = rows_for(tokenizer.space).eval(), tokenizer.encode(RAW)
    letters = np.flatnonzero(np.isin(encoding.ids, [tokenizer.tokens.index(base) for base in "ACGT"]))
    found = answered(tokenizer.units, encoding, ())
    numbers = tokenizer.units.places(encoding)
    for variant, unit, i in zip(found.variant, found.unit, range(len(found.unit)), strict=True):
        masked = {int(numbers[one]) for one in HIDDEN[variant]} & set(letters.tolist())
        p = naive(rows, encoding, masked, int(numbers[unit]))
        expected = math.log(p[encoding.ids[numbers[unit]]])
        assert found.log_probs[i] == pytest.approx(expected, abs=1e-5)
    assert len(found.unit) == 5


def test_a_unit_that_is_seen_is_read_where_no_other_token_shows_it() -> None:
    hidden, asked = np.array([4]), np.array([5])
    tokenizer = KmerBlockTokenizer(k=3)
    query = tokenizer.units.ask(tokenizer.encode(RAW), hidden[:0], asked)
    assert not len(query.masked)
    with pytest.raises(UsageError, match="only where it is hidden"):
        KmerTokenizer(k=3).units.ask(KmerTokenizer(k=3).encode(RAW), hidden, asked)


@pytest.mark.parametrize("tokenizer", [BaseTokenizer(), KmerTokenizer(k=3), *SIDE_BY_SIDE])
def test_what_is_not_there_is_named(tokenizer: NucleotideTokenizer) -> None:
    encoding, some = tokenizer.encode(RAW), np.array([3])
    for wrong in (np.array([99]), np.array([-1])):
        with pytest.raises(UsageError, match="are not all in a sequence"):
            tokenizer.units.ask(encoding, wrong, wrong)
    with pytest.raises(UsageError, match="asked"):
        tokenizer.units.ask(encoding, some, some[:0])
    with pytest.raises(UsageError, match="both or neither"):
        tokenizer.units.ask(encoding, some, some, hidden_in=np.array([0]))


@pytest.mark.parametrize("tokenizer", [KmerTokenizer(k=3), *SIDE_BY_SIDE])
def test_bases_are_drawn_as_they_are_said_to_be(tokenizer: NucleotideTokenizer) -> None:
    """2,000 draws of one base: every share within five standard deviations."""
    units, encoding, variants = tokenizer.units, tokenizer.encode(RAW), np.arange(100)
    want, place = (Sample(7), Candidates((0, 1, 2, 3))), np.full(100, 10)
    query = units.ask(encoding, place, place, hidden_in=variants, asked_in=variants)
    answers = Conditionals(rows_for(tokenizer.space).eval()).ask([query] * 20, units.needs(want))
    found = [units.unit_log_probs(query, answer, want).values for answer in answers]
    counts = np.bincount(np.concatenate([own["sample"] for own in found]).astype(int), minlength=4)
    p = np.exp(found[0]["candidates"][0])
    assert p.max() < 0.9
    assert (np.abs(counts - 2000 * p) <= 5 * np.sqrt(2000 * p * (1 - p)) + 1e-9).all()


# Modes of scoring


def scored(tokenizer: NucleotideTokenizer, text: str, owned: Any = None) -> SequenceScore:
    ask = Conditionals(rows_for(tokenizer.space).eval())
    scorer = Scorer(ask, tokenizer.units, mode=Mode.parse(text), want=(Entropy(), Rank(), *top(5)))
    [score] = scorer.windows([(tokenizer.encode(RAW), owned)])
    return score


def check_score(score: SequenceScore, i: int, shares: dict[str, float], true: str, log_prob: float) -> None:
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
def test_modes_where_kmers_overlap(text: str) -> None:
    tokenizer = KmerTokenizer(k=3)
    rows, encoding, score = rows_for(tokenizer.space).eval(), tokenizer.encode(RAW), scored(tokenizer, text)
    places = [i for i, base in enumerate(RAW) if base != "N"]
    assert sorted(score.groups.tolist()) == places
    mode = Mode.parse(text)
    passes = partition(len(places), mode.parts) if mode.kind == "partition" else np.arange(len(places))
    for i, place in enumerate(score.groups.tolist()):
        hidden = {p for p, own in zip(places, passes, strict=True) if own == passes[places.index(place)]}
        shares = share_of_kmers(tokenizer, rows, encoding, hidden, place)
        check_score(score, i, shares, RAW[place], math.log(shares[RAW[place]]))


@pytest.mark.parametrize("text", ["exact", "partition:3", "one-pass"])
@pytest.mark.parametrize("tokenizer", SIDE_BY_SIDE, ids=["blocks", "bpe"])
def test_modes_where_tokens_have_several_bases(tokenizer: NucleotideTokenizer, text: str) -> None:
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
        check_score(score, i, shares, RAW[place], log_prob)


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
