"""Counts of normal logs and the statistics made of them, against computations line by line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import nbinom

from seqmlm.domains.logs import counts as counts_module
from seqmlm.domains.logs.counts import LogCounts, counts_of, line_at, lines_of
from seqmlm.domains.logs.levels import BatchComparison, floored_bits, stretch_maxima, surprisal_statistics
from seqmlm.domains.logs.readers.events import LogLines
from seqmlm.domains.logs.templates import TemplateTokenizer
from seqmlm.domains.logs.words import LogWordTokenizer
from seqmlm.errors import DataError

TRAIN = ["1 2 3", "1 2 3", "1 2 2 3", "1 3", "1 2 4 3", "1 2 3 3"]
OTHER = ["1 2 3", "3 2 1", "1 9 3", "2", "1 2 4 4 4 3 2", "9 9"]

sessions = st.lists(st.lists(st.integers(0, 6).map(str), min_size=1, max_size=9), min_size=1, max_size=12)


def keyed(text: str) -> LogLines:
    return LogLines(lines=tuple(text.split()), keys=True)


@pytest.fixture(scope="module")
def tokenizer() -> TemplateTokenizer:
    return TemplateTokenizer.train(map(keyed, TRAIN))


@pytest.fixture(scope="module")
def counts(tokenizer: TemplateTokenizer) -> LogCounts:
    return counts_of(tokenizer.encode_batch(list(map(keyed, TRAIN))), tokenizer)


def naive_bigrams(train: list[list[str]], lines: list[str]) -> list[float]:
    """Witten and Bell, backing off to an add-one unigram with a place for what was never seen."""
    follows: dict[str, Counter[str]] = {}
    single: Counter[str] = Counter()
    for one in train:
        for a, b in zip(["#", *one], [*one, "#"], strict=True):
            follows.setdefault(a, Counter())[b] += 1
            single[b] += 1
    kinds = len(single) - 1
    surprisals = []
    for a, b in zip(["#", *lines], [*lines, "#"], strict=True):
        unigram = (single[b] + 1) / (single.total() + kinds + 2)
        after = follows.get(a)
        p = unigram if after is None else (after[b] + len(after) * unigram) / (after.total() + len(after))
        surprisals.append(-math.log2(p))
    return surprisals


def naive_nearest(train: list[list[str]], lines: list[str]) -> float:
    def distance(one: list[str]) -> float:
        a, b = Counter(one), Counter(lines)
        return math.sqrt(sum((math.log1p(a[e]) - math.log1p(b[e])) ** 2 for e in a | b))

    return min(map(distance, train))


def naive_surplus(train: list[list[str]], lines: list[str]) -> float:
    """The largest log-likelihood ratio of a Poisson count of a known event, in bits."""
    single = Counter(event for one in train for event in one)
    bits = 0.0
    for event, number in Counter(lines).items():
        expected = len(lines) * (single[event] + 0.5) / (single.total() + 0.5 * (len(single) + 1))
        if event in single and number > expected:
            bits = max(bits, number * math.log2(number / expected) - (number - expected) * math.log2(math.e))
    return bits


@settings(deadline=None, max_examples=60)
@given(train=sessions, other=sessions)
def test_bigrams_and_neighbours_are_those_of_loops(train: list[list[str]], other: list[list[str]]) -> None:
    raws, asked_of = ([LogLines(lines=tuple(one), keys=True) for one in some] for some in (train, other))
    tokenizer = TemplateTokenizer.train(raws)
    counts = counts_of(tokenizer.encode_batch(raws), tokenizer)
    lines = lines_of(tokenizer.encode_batch(asked_of), tokenizer)
    together = BatchComparison.of(lines, counts)
    found = together.statistics
    pairs, record = counts.bigrams(lines, counts.events(lines.keys))
    known = {event for one in train for event in one}
    for row, one in enumerate(other):
        here = [event if event in known else "?" for event in one]  # what was never seen is one event
        bits = naive_bigrams(train, here)
        assert pairs[record == row].tolist() == pytest.approx(bits)
        assert found["bigram_max"][row] == pytest.approx(max([0.0, *bits[1:-1]]))
        assert found["neighbour"][row] == pytest.approx(naive_nearest(train, here), abs=1e-12)
        surplus = counts.surplus(lines, together.sets)[0]
        assert surplus[row] == pytest.approx(naive_surplus(train, here), abs=1e-12)
        assert math.isinf(found["unseen"][row]) == (not known.issuperset(one))


def test_events_that_nearly_all_have_are_missed(counts: LogCounts, tokenizer: TemplateTokenizer) -> None:
    # 1 and 3 are in all six, 2 in five: less than nine in ten.
    lines = lines_of(tokenizer.encode_batch([keyed("1 3"), keyed("2 3"), keyed("2")]), tokenizer)
    missing = counts.absence(lines, counts.events(lines.keys)).sum(axis=1)
    assert missing.tolist() == pytest.approx([0, math.log2(8), 2 * math.log2(8)])


@pytest.mark.parametrize("numbers", [range(11, 17), [1, 2, 3, 20, 25, 30]], ids=["steady", "in bursts"])
def test_none_of_what_comes_often_is_rarer_than_one_record_in_all(numbers: Sequence[int]) -> None:
    raws = [keyed(" ".join(["1"] * n + ["2"] * (40 - n))) for n in numbers]
    tokenizer = TemplateTokenizer.train(raws)
    counts = counts_of(tokenizer.encode_batch(raws), tokenizer)
    lines = lines_of(tokenizer.encode_batch([keyed(" ".join(["2"] * n)) for n in (40, 10, 80)]), tokenizer)
    mean, variance = np.mean(numbers), np.var(numbers)
    spread = variance / mean
    if spread > 1:
        none = nbinom.pmf(0, mean / (spread - 1), 1 / spread)
    else:
        none = spread ** (mean / (1 - spread))  # binomial, of a number of trials that need not be whole
    missing = counts.absence(lines, counts.events(lines.keys)).sum(axis=1)
    floor = math.log2(len(numbers) + 2)
    assert missing == pytest.approx([max(floor, -math.log2(none) * part) for part in (1, 1 / 4, 1)])
    assert missing[0] > missing[1]


def test_the_shortest_are_all_but_a_hundredth(tokenizer: TemplateTokenizer) -> None:
    raws = [keyed(" ".join(["1"] * length)) for length in range(1, 101)]
    assert counts_of(TemplateTokenizer.train(raws).encode_batch(raws), tokenizer).shortest == 1
    raws = [keyed("1 1 1")] * 300 + raws[:3]
    assert counts_of(TemplateTokenizer.train(raws).encode_batch(raws), tokenizer).shortest == 3


def test_reductions_of_surprisals_are_those_of_loops() -> None:
    rng = np.random.default_rng(0)
    number = np.array([3, 0, 12, 1])
    ends = np.concatenate([[0], np.cumsum(number)])
    bits = rng.exponential(2, ends[-1])
    found = surprisal_statistics(bits, ends)
    for row, (a, b) in enumerate(pairwise(ends.tolist())):
        if a == b:
            assert all(np.isnan(value[row]) for value in found.values())
            continue
        assert found["pll_mean"][row] == pytest.approx(bits[a:b].mean())
        assert found["pll_max"][row] == bits[a:b].max() == stretch_maxima(bits, ends)[row]


def test_a_line_never_seen_is_no_cheaper_than_chance(counts: LogCounts) -> None:
    events = np.array([0, counts.size, counts.size])
    assert floored_bits(np.array([0.1, 0.1, 9.0]), events, counts).tolist() == pytest.approx(
        [0.1, math.log2(5) + 1, 9.0]
    )


def test_lines_of_words_are_equal_where_their_words_are() -> None:
    texts = [f"open file {n}\nread block {n} of {n + 1}\nclose" for n in range(40)]
    tokenizer = LogWordTokenizer.train(texts)
    raws = ["open file 7\nclose", "close\nopen file 12\nopen 12 file", "close\n\nclose"]
    encodings = tokenizer.encode_batch(raws)
    lines = lines_of(encodings, tokenizer)
    first, second, third = (lines.keys[a:b] for a, b in zip(lines.offsets, lines.offsets[1:], strict=False))
    assert first[0] == second[1] != second[2]
    assert first[1] == second[0] == third[0] == third[2]
    assert len(third) == 3
    words = np.flatnonzero(encodings[1].groups >= 0)
    spans = encodings[1].spans
    truth = [raws[1][: spans[at, 0]].count("\n") for at in words.tolist()]
    assert line_at(encodings[1], words, tokenizer).tolist() == truth


def test_what_few_sessions_have_is_not_kept_where_the_vocabulary_keeps_it_out() -> None:
    raws = [keyed("1 2 3")] * 12 + [keyed("1 3 2")] * 3 + [keyed("1 2 2 3")] * 2
    tokenizer = TemplateTokenizer.train(raws, min_sessions=10)
    counts = counts_of(tokenizer.encode_batch(raws), tokenizer)
    assert counts.values.reshape(-1, 3).tolist() == [[1, 1, 1]]
    assert counts.pair_lines.min() >= 10
    assert counts.records.min() >= 10


def test_the_commonest_vectors_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts_module, "VECTORS", 2)
    raws = list(map(keyed, ["1", "2 2", "2 2", "3", "1 2", "1 2", "2 1"]))
    tokenizer = TemplateTokenizer.train(raws)
    counts = counts_of(tokenizer.encode_batch(raws), tokenizer)
    assert len(counts.indptr) - 1 == 2
    assert [counts.values[a:b].tolist() for a, b in pairwise(counts.indptr)] == [[1, 1], [2]]


def test_remembered_distances_are_forgotten_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch, counts: LogCounts, tokenizer: TemplateTokenizer
) -> None:
    lines = lines_of(tokenizer.encode_batch(list(map(keyed, OTHER))), tokenizer)
    sets = BatchComparison.of(lines, counts).sets
    before = counts.nearest(sets)
    monkeypatch.setattr(counts_module, "_REMEMBERED", 2)
    again = counts.nearest(sets)
    assert again[0].tolist() == before[0].tolist()
    assert again[1].tolist() == before[1].tolist()


def test_counts_come_back_from_their_arrays(
    tmp_path: Path, counts: LogCounts, tokenizer: TemplateTokenizer
) -> None:
    np.savez(tmp_path / "counts.npz", **counts.arrays())
    with np.load(tmp_path / "counts.npz") as stored:
        again = LogCounts.of(dict(stored))
    lines = lines_of(tokenizer.encode_batch(list(map(keyed, OTHER))), tokenizer)
    found = BatchComparison.of(lines, again).statistics
    for name, value in BatchComparison.of(lines, counts).statistics.items():
        assert found[name].tolist() == value.tolist()


def test_nothing_cannot_be_counted(tokenizer: TemplateTokenizer) -> None:
    with pytest.raises(DataError, match="no log lines"):
        counts_of(tokenizer.encode_batch([LogLines(lines=(), keys=True)]), tokenizer)
    with pytest.raises(DataError, match="no log lines"):
        counts_of([], tokenizer)
