"""The n-gram baseline against its formula written with dictionaries, and as a probability."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ngram import NGram, Smoothing, Unit, without_order

from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.engine.units import Units
from seqmlm.errors import UsageError

# Token 0 is special, 1..3 are ordinary.
TOKENS = np.array([0.0, 0.5, 0.3, 0.2])

units = st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple)
corpora = st.lists(st.lists(units, max_size=6), min_size=1, max_size=24).filter(any)


def spelled(unit: Unit) -> float:
    return float(np.prod([TOKENS[t] for t in unit]))


def by_dictionaries(corpus: list[list[Unit]], smoothing: Smoothing) -> Callable[[list[Unit], Unit], float]:
    """P(unit | the units before), by the formula in the module's docstring, one n-gram at a time."""
    order = len(smoothing.orders)
    counts: list[dict[Any, Counter[Unit]]] = [defaultdict(Counter) for _ in range(order)]
    before: list[dict[Any, set[Any]]] = [defaultdict(set) for _ in range(order)]
    for sequence in corpus:
        padded: list[Any] = ["begin"] * order + list(sequence)
        for i in range(order, len(padded)):
            for k in range(order):
                history = (len(padded[i]), *padded[i - k : i])
                counts[k][history][padded[i]] += 1
                before[k][history, padded[i]].add(padded[i - k - 1])
    if smoothing.counting == "continuations":
        for k in range(order - 1):
            for history, seen in counts[k].items():
                if "begin" not in history[1:2]:
                    for unit in seen:
                        seen[unit] = len(before[k][history, unit])

    def probability(history: list[Unit], unit: Unit) -> float:
        padded: list[Any] = ["begin"] * order + list(history)
        p = spelled(unit)
        for k, (discount, strength) in enumerate(smoothing.orders):
            seen = counts[k].get((len(unit), *padded[len(padded) - k :]))
            if seen is not None:
                kept = max(seen.get(unit, 0) - discount, 0)
                p = (kept + (strength + discount * len(seen)) * p) / (sum(seen.values()) + strength)
        return p

    return probability


@given(corpus=corpora, asked=corpora, order=st.integers(1, 4))
@settings(max_examples=60)
def test_equals_the_formula(corpus: Any, asked: Any, order: int) -> None:
    model = NGram(order=order, unigram=TOKENS).fit(corpus)
    probability = by_dictionaries(corpus, model.smoothing)
    expected = [-np.log2(probability(s[:i], s[i])) for s in asked for i in range(len(s))]
    np.testing.assert_allclose(model.bits(asked), expected, rtol=1e-9, atol=1e-12)


@given(corpus=corpora, history=st.lists(units, max_size=4), size=st.integers(1, 2))
@settings(max_examples=60)
def test_probabilities_sum_to_one(corpus: Any, history: list[Unit], size: int) -> None:
    """Over all strings of `size` ordinary tokens, whether or not they were seen, after any history."""
    model = NGram(order=3, unigram=TOKENS).fit(corpus)
    every = [[*history, unit] for unit in product((1, 2, 3), repeat=size)]
    bits = model.bits_at(every, [[len(history)]] * len(every))
    assert np.exp2(-bits).sum() == pytest.approx(1, abs=1e-9)


def chains(count: int, length: int, vocabulary: int, seed: int) -> list[list[Unit]]:
    """A Markov chain of the first order over units of one token."""
    rng = np.random.default_rng(seed)
    step = np.cumsum(np.random.default_rng(0).dirichlet(np.full(vocabulary, 0.3), vocabulary), axis=1)
    state, drawn = rng.integers(0, vocabulary, count), []
    for _ in range(length):
        state = (rng.random(count)[:, None] > step[state]).sum(1).clip(max=vocabulary - 1)
        drawn.append(state)
    return [[(int(t),) for t in row] for row in np.stack(drawn, 1)]


def test_higher_orders_do_not_hurt_where_they_have_nothing() -> None:
    """The reason for choosing the smoothing on held-out data: dense contexts ruin a fixed rule."""
    train, test = chains(150, 60, 8, seed=1), chains(50, 60, 8, seed=2)
    flat = np.full(8, 1 / 8)
    costs = [NGram(order=order, unigram=flat).fit(train).bits(test).mean() for order in (1, 2, 5)]
    assert costs[0] > costs[1] + 0.3
    assert costs[2] < costs[1] + 0.02


def test_rare_words_are_counted_by_their_contexts() -> None:
    """ "francisco" is frequent but only follows "san": unlikely anywhere else (Kneser and Ney 1995)."""
    rng = np.random.default_rng(0)
    corpus: list[list[Unit]] = []
    for _ in range(400):
        words = [(int(t),) for t in rng.zipf(1.3, 12) if t < 60]
        pairs = [[word, (61,)] if word == (3,) else [word] for word in words]
        corpus.append([word for pair in pairs for word in pair])
    model = NGram(order=2, unigram=np.full(62, 1 / 62)).fit(corpus)
    assert model.smoothing.counting == "continuations"


def test_unit_without_ordinary_tokens_is_context_and_never_an_event() -> None:
    corpus = [[(1,), (), (2,)], [(1,), (3,)]] * 5
    model = NGram(order=2, unigram=TOKENS).fit(corpus)
    assert len(model.bits(corpus)) == 20
    after_gap, after_one = model.bits_at([[(), (2,)], [(1,), (2,)]], [[1], [1]])
    assert after_gap < after_one


def test_bits_at_takes_the_units_that_were_chosen() -> None:
    corpus = [[(1,), (2,), (3,), (1, 2)], [(2,), (2,)]]
    model = NGram(order=3, unigram=TOKENS).fit(corpus)
    everything = model.bits(corpus)
    np.testing.assert_array_equal(model.bits_at(corpus, [[3, 1], []]), everything[[3, 1]])
    assert len(model.bits_at([], [])) == 0


def test_a_unit_of_many_tokens_does_not_underflow() -> None:
    """2 ** -2000 is no float; 2000 bits are."""
    model = NGram(order=2, unigram=np.array([0.0, 0.5, 0.5])).fit([[(1,), (2,)]])
    assert model.bits([[(1, 2) * 1000]])[0] == pytest.approx(2000)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="order of at least 1"):
        NGram(order=0, unigram=TOKENS)
    with pytest.raises(UsageError, match="at least one training unit"):
        NGram(order=2, unigram=TOKENS).fit([[], []])
    with pytest.raises(UsageError, match="fit the n-gram first"):
        NGram(order=2, unigram=TOKENS).bits([[(1,)]])


def test_sets_have_no_order_and_units_are_found_again() -> None:
    tokens = np.array([0, 1, 2, 3, 1, 2, 3, 3, 0], dtype=np.int32)
    groups = np.array([-1, 0, 1, 1, 2, 3, 4, 5, -1], dtype=np.int32)
    positions = np.array([0, 1, 1, 1, 1, 2, 2, 2, 3], dtype=np.int32)
    space = TokenSpace(size=4, pad=0, mask=0, unk=None, start=0, end=0, special=(0,))
    found, random = set(), np.random.default_rng(0)
    plain = [(1,), (2, 3), (1,), (2,), (3,), (3,)]
    for _ in range(50):
        encoding = Encoding(ids=tokens, groups=groups, positions=positions)
        shuffled, place = without_order(Units(space), encoding, random)
        assert [shuffled[at] for at in place] == plain
        assert [sorted(shuffled[:3]), sorted(shuffled[3:])] == [sorted(plain[:3]), sorted(plain[3:])]
        found.add(tuple(place))
    assert len(found) > 20
    ordered = Encoding(ids=tokens, groups=groups)
    assert without_order(Units(space), ordered, random) == (plain, list(range(6)))
