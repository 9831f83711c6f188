"""Bits per base mean the same for every tokenizer: models of known cost, hidden bases that stay hidden."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest
from dnabert import KmerTokenizer

from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.domains.dna.bpe import DnaBpeTokenizer
from seqmlm.domains.dna.kmer_block import KmerBlockTokenizer
from seqmlm.domains.dna.tokenizer import FIRST, NucleotideTokenizer
from seqmlm.engine.query import Answer, Query
from seqmlm.engine.randomness import EVALUATION, rng
from seqmlm.engine.reductions import Reduction
from seqmlm.engine.scoring import Scorer
from seqmlm.engine.types import InMemory
from seqmlm.engine.units import unit_symbols
from seqmlm.engine.windows import central_windows, windows
from seqmlm.errors import UsageError
from seqmlm.evaluation.bits import unit_bits

SOURCE = random.Random(0)
RAWS = ["".join(SOURCE.choices("ACGTacgtN", [9] * 8 + [1], k=SOURCE.randint(20, 90))) for _ in range(40)]
CLEAN = ["".join(SOURCE.choices("ACGT", k=SOURCE.randint(20, 90))) for _ in range(20)]
TOKENIZERS: list[NucleotideTokenizer] = [
    BaseTokenizer(),
    KmerTokenizer(k=3),
    KmerTokenizer(k=6),
    KmerBlockTokenizer(k=6),
    DnaBpeTokenizer.train(CLEAN, vocabulary_size=50),
]
NAMES = [f"{one.name}-{getattr(one, 'k', '')}" for one in TOKENIZERS]
every = pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=NAMES)
overlapping = pytest.mark.parametrize("tokenizer", TOKENIZERS[1:3], ids=NAMES[1:3])
SHARES = (0.4, 0.1, 0.2, 0.3)


class Stub:
    """Answers every position with the same distribution over tokens."""

    def __init__(self, tokenizer: NucleotideTokenizer, row: Callable[[str], float]) -> None:
        self.space = tokenizer.space
        with np.errstate(divide="ignore"):
            logs = np.log([row(token) if i >= FIRST else 0.0 for i, token in enumerate(tokenizer.tokens)])
        self.row = logs.astype(np.float32)

    def ask(self, queries: Iterable[Query], want: Iterable[Reduction], **_: object) -> Iterator[Answer]:
        for query in queries:
            rows = np.broadcast_to(self.row, (len(query.asked), len(self.row)))
            values = {"log_prob": self.row[query.encoding.ids[query.asked]], "rows": rows}
            yield Answer(key=query.key, values={one.name: values[one.name] for one in want})


def product(shares: tuple[float, ...]) -> Callable[[str], float]:
    return lambda token: math.prod(shares["ACGT".index(base)] for base in token)


def costs(tokenizer: NucleotideTokenizer, raws: list[str], shares: tuple[float, ...]):
    encodings = InMemory(tokenizer.encode_batch(raws))
    return unit_bits(
        Stub(tokenizer, product(shares)),  # type: ignore[arg-type]
        encodings,
        range(len(raws)),
        unigram=tokenizer.units.frequencies(np.ones(tokenizer.space.size, dtype=np.int64)),
        seed=3,
        units=tokenizer.units,
    )


@every
def test_independent_bases_cost_the_same_for_every_tokenizer(tokenizer):
    assert costs(tokenizer, RAWS, (0.25,) * 4).report().bits_per_unit == pytest.approx(2, abs=1e-6)
    found = costs(tokenizer, CLEAN, SHARES)
    letters = ["ACGT".index(CLEAN[s][u]) for s, u in zip(found.sample, found.unit, strict=True)]
    expected = -np.log2(np.array(SHARES)[letters])
    assert found.bits.sum() == pytest.approx(expected.sum(), rel=1e-6)
    if tokenizer.name in ("base.v1", "kmer.v1"):
        np.testing.assert_allclose(found.bits, expected, rtol=1e-5)


@every
def test_about_a_share_of_the_bases_is_hidden(tokenizer):
    source = random.Random(5)
    raws = ["".join(source.choices("ACGT", k=600)) for _ in range(60)]
    found = costs(tokenizer, raws, SHARES)
    share = len(found.bits) / (600 * 60)
    size = 6 if tokenizer.name == "kmer_block.v1" else 3
    assert abs(share - 0.15) < 5 * np.sqrt(0.15 * 0.85 / (36_000 / size))
    # A token of several bases is one token, whatever its bases count.
    assert found.tokens.sum() == pytest.approx(round(found.tokens.sum()), abs=1e-6)
    assert (found.tokens.sum() < 0.6 * len(found.bits)) == (tokenizer.name in ("kmer_block.v1", "dna_bpe.v1"))


@every
def test_the_unigram_is_that_of_the_bases(tokenizer):
    encodings = tokenizer.encode_batch(RAWS + CLEAN)
    counts = sum(np.bincount(e.ids, minlength=tokenizer.space.size) for e in encodings)
    found = tokenizer.units.frequencies(counts)
    text = "".join(RAWS + CLEAN).upper()
    true = np.array([text.count(base) + 1 for base in "ACGT"])
    atol = 0.02 if tokenizer.name == "kmer.v1" else 1e-9  # which has no token for fewer than k bases
    np.testing.assert_allclose(found[found > 0], true / true.sum(), atol=atol)
    with pytest.raises(UsageError, match="token counts"):
        tokenizer.units.frequencies(counts[1:])


@every
def test_units_are_the_bases_with_their_places(tokenizer):
    for raw, encoding in zip(RAWS, tokenizer.encode_batch(RAWS), strict=True):
        units = tokenizer.units
        spans, numbers = units.spans(encoding), units.numbers(encoding)
        assert (np.diff(spans, axis=1) == 1).all() or not len(spans)
        assert numbers.tolist() == spans[:, 0].tolist()
        letters = "".join(
            "ACGT"[code[0]] if tokenizer.name != "base.v1" else tokenizer.tokens[code[0]]
            for code in unit_symbols(units, encoding)
        )
        assert letters == "".join(raw[i] for i in numbers).upper()
        if tokenizer.name != "kmer.v1":
            assert letters == raw.upper().replace("N", "")


@overlapping
def test_a_hidden_base_shows_in_no_token(tokenizer):
    for index, (raw, encoding) in enumerate(zip(RAWS, tokenizer.encode_batch(RAWS), strict=True)):
        query = tokenizer.units.evaluation_query(encoding, 0.15, rng(3, 0, index, EVALUATION))
        if query is None:
            continue
        numbers = tokenizer.units.numbers(encoding)[query.key.bases]
        visible = np.ones(len(encoding), dtype=bool)
        visible[query.masked] = False
        shown = {
            i
            for (a, b), v, g in zip(encoding.spans, visible, encoding.groups, strict=True)
            if v and g >= 0
            for i in range(a, b)
        }
        assert not shown & set(numbers.tolist())
        assert all(raw[i] != "N" for i in numbers)


@every
def test_scores_of_windows_cover_every_base_once(tokenizer):
    source = random.Random(7)
    raw = "".join(source.choices("ACGT", k=150)) + "NN" + "".join(source.choices("ACGT", k=99))
    encoding, stub = tokenizer.encode(raw), Stub(tokenizer, product(SHARES))
    parts = central_windows(encoding, tokenizer.space, 30)
    assert len(parts) > 2
    scores = list(Scorer(stub, tokenizer.units).windows(parts))  # type: ignore[arg-type]
    groups = np.concatenate([score.groups for score in scores])
    assert sorted(groups.tolist()) == [i for i, base in enumerate(raw) if base != "N"]
    bits = -sum(score.pll for score in scores) / math.log(2)
    expected = -sum(math.log2(SHARES["ACGT".index(base)]) for base in raw if base != "N")
    assert bits == pytest.approx(expected, rel=1e-5)


@every
def test_weights_choose_what_is_asked_but_do_not_weigh(tokenizer):
    lower = [raw.lower() for raw in CLEAN]
    a, b = costs(tokenizer, CLEAN, SHARES), costs(tokenizer, lower, SHARES)
    np.testing.assert_allclose(a.bits, b.bits)


def test_bases_of_weight_zero_are_not_asked():
    for tokenizer in (BaseTokenizer(soft_mask_weight=0), KmerTokenizer(k=3, soft_mask_weight=0)):
        encoding = tokenizer.encode("acgtacgtacgtACGTACGATTACA")
        for seed in range(20):
            query = tokenizer.units.evaluation_query(encoding, 0.5, np.random.default_rng(seed))
            assert encoding.weights[query.masked].min() > 0
    assert (
        tokenizer.units.evaluation_query(tokenizer.encode("acgtacgt"), 0.5, np.random.default_rng(0)) is None
    )


def test_bases_counted_in_windows():
    for tokenizer in TOKENIZERS:
        [encoding] = tokenizer.encode_batch([CLEAN[0] * 3])
        parts = windows(encoding, tokenizer.space, 20)
        offsets = np.concatenate([[0], np.cumsum([len(p) for p in parts])]).astype(np.int32)
        ids, groups = (np.concatenate([getattr(p, n) for p in parts]) for n in ("ids", "groups"))
        counted = tokenizer.units.count(ids, groups, offsets)
        assert counted == 3 * len(CLEAN[0]) - (tokenizer.k - 1 if tokenizer.name == "kmer.v1" else 0)
