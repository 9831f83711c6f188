"""Counts of units among their neighbours, against counting by hand, and as probabilities."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
from counted_units import LETTERS, RULE, drawn, encoding, space

from seqmlm.engine.counts import Chain, UnitHashes, chains_for, contexts, count, hash_units
from seqmlm.engine.expert import CountExpert
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import Strands, UnitFacts, Units


def of(sequences: list[list[tuple[int, ...]]], records: list[int] | None = None) -> UnitHashes:
    return hash_units(RULE, map(encoding, sequences), np.full(12, -2.0), records)


@pytest.mark.parametrize("places", [(-1, -2), (1, 2, 3), (-1, 1, -2, 2)])
def test_counts_are_those_of_counting_by_hand(places: tuple[int, ...]) -> None:
    sequences = drawn(0, sequences=40, units=12)
    units = of(sequences)
    levels = count(units, Chain("", places), budget=1 << 20)
    for length, (level, context) in enumerate(zip(levels, contexts(units, Chain("", places)), strict=True)):
        contexts_seen: Counter[Any] = Counter()
        events: Counter[Any] = Counter()
        keys = []
        for sequence in sequences:
            for at, unit in enumerate(sequence):
                near = [at + place for place in places[:length]]
                key = (len(unit), *(sequence[n] if 0 <= n < len(sequence) else None for n in near))
                keys.append((key, unit))
                contexts_seen[key] += 1
                events[key, unit] += 1
        found = level.find(context, units.hashes)
        assert found.totals[0].tolist() == [contexts_seen[key] for key, _ in keys]
        assert found.counts[0].tolist() == [events[one] for one in keys]
        assert found.types[0].tolist() == [sum(known == key for known, _ in events) for key, _ in keys]
        assert np.array_equal(found.kept, found.totals)


def test_rare_units_go_where_memory_is_short() -> None:
    units = of(drawn(1, sequences=200, units=12))
    whole = count(units, Chain("", (-1, -2)), budget=1 << 20)
    small = count(units, Chain("", (-1, -2)), budget=1000)
    assert sum(level.bytes for level in small) <= 1000 < sum(level.bytes for level in whole)
    assert small[2].counts.min() > whole[2].counts.min() == 1
    assert (small[2].kept < small[2].totals).any()


def test_what_few_records_have_leaves() -> None:
    sequences = [[(3,), (4,)]] * 9 + [[(3,), (5,)]] * 10
    units = of(sequences)
    levels = count(units, Chain("", (-1,)), budget=1 << 20, min_records=10)
    context = list(contexts(units, Chain("", (-1,))))
    assert levels[0].find(context[0], units.hashes).counts[0].tolist() == [19, 0] * 9 + [19, 10] * 10
    same_record = count(of(sequences, [0] * 19), Chain("", (-1,)), budget=1 << 20, min_records=2)
    assert [len(level.events) for level in same_record] == [0, 0]


def _expert(sequences: list[Encoding], **more: Any) -> CountExpert:
    return CountExpert.fit(
        sequences, RULE, RULE.frequencies(np.array([0, 0, 0, 9, 5, 2, 2, *[0] * 5])), **more
    )


def _total(expert: CountExpert, units: list[tuple[int, ...]], at: int, positions: list[int] | None) -> Any:
    """(chains,) the sum of P over all strings of as many tokens at one place, everything else unchanged."""
    changed = [
        encoding([*units[:at], candidate, *units[at + 1 :]], positions)
        for candidate in product(LETTERS, repeat=len(units[at]))
    ]
    return np.exp2(expert.count_log_probs(expert.hash_units(changed)).log2[:, at :: len(units)]).sum(axis=1)


@pytest.mark.parametrize("budget", [1 << 20, 1500])
def test_probabilities_sum_to_one_whatever_the_record_repeats(budget: int) -> None:
    expert = _expert(list(map(encoding, drawn(2, sequences=60, units=15))), budget=budget)
    expert = expert.with_best_smoothing(
        expert.hash_units(list(map(encoding, drawn(3, sequences=20, units=15))))
    )
    assert expert.record
    for units in (
        [(3,), (3,), (3,), (4,), (3,), (3,), (3,)],
        [(4,), (3, 4), (4,), (3, 4), (4,), (3, 4), (5,), (4,), (3, 4)],
        [(6,)],
        drawn(4, sequences=1, units=30)[0],
    ):
        for at in range(len(units)):
            assert _total(expert, units, at, None) == pytest.approx(1.0, abs=1e-9)


def test_few_symbols_have_long_contexts_and_nothing_of_their_own_in_a_record() -> None:
    assert len(chains_for(4, sets=False)[1].places) > len(chains_for(20, sets=False)[1].places)
    few = Units(space(4))
    unigram = few.frequencies(np.ones(7))
    assert not CountExpert.fit([encoding([(3,), (4,)] * 20)], few, unigram).record
    assert _expert([encoding([(3,), (4,)] * 20)]).record


def test_a_set_has_no_order() -> None:
    random = np.random.default_rng(5)
    units = drawn(6, sequences=1, units=40)[0]
    positions = sorted(random.integers(0, 4, size=len(units)).tolist())
    train = []
    for seed in range(30):
        one = drawn(seed, sequences=1, units=20)[0]
        train.append(encoding(one, sorted(random.integers(0, 3, size=len(one)).tolist())))
    expert = _expert(train)
    assert [chain.where for chain in expert.chains] == ["together", "before", "after"]
    order = np.lexsort((random.random(len(units)), positions))
    assert order.tolist() != list(range(len(units)))
    first = expert.count_log_probs(expert.hash_units([encoding(units, positions)])).log2
    again = expert.count_log_probs(expert.hash_units([encoding([units[i] for i in order], positions)])).log2
    assert np.allclose(again, first[:, order])


def test_probabilities_sum_to_one_in_sets_too() -> None:
    random = np.random.default_rng(0)
    train = []
    for one in drawn(7, sequences=60, units=20):
        train.append(encoding(one, sorted(random.integers(0, 5, size=len(one)).tolist())))
    expert = _expert(train)
    units = [(3,), (4,), (3, 4), (3,), (5,), (3, 4), (6,)]
    positions = [0, 0, 0, 0, 1, 1, 2]
    for at in range(len(units)):
        assert _total(expert, units, at, positions) == pytest.approx(1.0, abs=1e-9)


def test_the_other_strand_is_counted_too() -> None:
    complement = np.array([0, 1, 2, 6, 5, 4, 3], dtype=np.int32)
    strands = Strands(complement=complement, mirrored=lambda encoding: None)
    rule = Units(space(4), UnitFacts(unfamiliar=(), strands=strands))
    both = hash_units(rule, [encoding([(3,), (3,), (4,)])], np.full(12, -2.0), mirrored=True)
    alone = hash_units(rule, [encoding([(3,), (3,), (4,)]), encoding([(5,), (6,), (6,)])], np.full(12, -2.0))
    assert np.array_equal(both.hashes, alone.hashes)
    assert both.record.tolist() == [0, 0, 0, 0, 0, 0]


def test_symbols_and_units_are_told_apart() -> None:
    units = of([[(3, 4), (4, 3), (3,), (4,), (3, 4)]])
    assert len(set(units.hashes.tolist())) == 4
    assert units.hashes[0] == units.hashes[4]
    assert units.log2_unigram.tolist() == [-4.0, -4.0, -2.0, -2.0, -4.0]
