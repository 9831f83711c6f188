"""Rows are planned so that every sample is there once an epoch, in budget, and resumably."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.engine.packing import RowPlanner, best_fit
from seqmlm.errors import StateError, UsageError

CAPACITY = 32
some_lengths = st.lists(st.integers(1, CAPACITY), min_size=1, max_size=200).map(
    lambda x: np.array(x, np.int32)
)
planners = st.fixed_dictionaries({"seed": st.integers(0, 5), "lookahead": st.integers(1, 6)})


def bins_of(lengths, capacity):
    return best_fit(range(len(lengths)), lengths, capacity)


def one_epoch(planner: RowPlanner) -> list:
    rows, epoch = [], planner.epoch
    while planner.epoch == epoch:
        rows.append(planner.next_row())
    return rows


@given(lengths=st.lists(st.integers(1, 60), max_size=80), capacity=st.integers(1, 50))
def test_best_fit_holds_each_item_once_and_leaves_no_two_bins_to_merge(lengths, capacity):
    bins = bins_of(lengths, capacity)
    assert sorted(chain.from_iterable(bins)) == list(range(len(lengths)))
    loads = [sum(lengths[item] for item in own) for own in bins]
    for load, own in zip(loads, bins, strict=True):
        assert load <= capacity or len(own) == 1
    fullest_first = sorted(loads, reverse=True)
    assert all(a + b > capacity for a, b in pairwise(fullest_first))


def test_best_fit_prefers_the_fullest_bin():
    assert bins_of([6, 5, 4, 3], 10) == [[0, 2], [1, 3]]


@given(lengths=some_lengths, options=planners)
def test_each_epoch_holds_every_sample_once_and_fits(lengths, options):
    planner = RowPlanner(lengths, tokens_per_row=CAPACITY, **options)
    for epoch in range(3):
        rows = one_epoch(planner)
        assert sorted(chain.from_iterable(row.samples for row in rows)) == list(range(len(lengths)))
        for row in rows:
            assert row.epoch == epoch
            assert row.tokens == lengths[list(row.samples)].sum() <= CAPACITY


@given(lengths=some_lengths, options=planners, steps=st.integers(0, 40), data=st.data())
def test_resume_between_any_two_rows(lengths, options, steps, data):
    whole = RowPlanner(lengths, tokens_per_row=CAPACITY, **options)
    for _ in range(steps):
        whole.next_row()
    state = json.loads(json.dumps(whole.state_dict()))
    expected = [whole.next_row() for _ in range(12)]
    resumed = RowPlanner(lengths, tokens_per_row=CAPACITY, **options)
    for _ in range(data.draw(st.integers(0, 5))):
        resumed.next_row()
    resumed.load_state_dict(state)
    assert resumed.epoch == expected[0].epoch
    assert [resumed.next_row() for _ in range(12)] == expected


def test_epochs_and_seeds_differ_in_order():
    lengths = np.random.default_rng(0).integers(1, CAPACITY, 300).astype(np.int32)
    planner = RowPlanner(lengths, tokens_per_row=CAPACITY, seed=0)
    first, second = one_epoch(planner), one_epoch(planner)
    other = one_epoch(RowPlanner(lengths, tokens_per_row=CAPACITY, seed=1))
    together = [{frozenset(row.samples) for row in rows} for rows in (first, second, other)]
    assert len(together[0] & together[1]) < len(first) / 4
    assert len(together[0] & together[2]) < len(first) / 4
    same = one_epoch(RowPlanner(lengths, tokens_per_row=CAPACITY, seed=0))
    assert same == first


def test_short_sequences_are_not_gathered_by_length():
    lengths = np.random.default_rng(0).integers(3, 60, 20_000).astype(np.int32)
    rows = one_epoch(RowPlanner(lengths, tokens_per_row=4096, seed=0))
    means = [lengths[list(row.samples)].mean() for row in rows if len(row.samples) > 50]
    assert np.std(means) < 3 * lengths.std() / np.sqrt(4096 / lengths.mean())


def test_what_cannot_be_planned_is_refused_with_a_remedy():
    with pytest.raises(UsageError, match="sequence 1 has 9 tokens, more than tokens_per_row = 8; raise"):
        RowPlanner(np.array([3, 9, 2], np.int32), tokens_per_row=8, seed=0)
    with pytest.raises(UsageError, match="no sequence"):
        RowPlanner(np.zeros(0, np.int32), tokens_per_row=8, seed=0)
    with pytest.raises(UsageError, match="sequence 2 has no token"):
        RowPlanner(np.array([3, 1, 0], np.int32), tokens_per_row=8, seed=0)
    with pytest.raises(UsageError, match="lookahead"):
        RowPlanner(np.array([3], np.int32), tokens_per_row=8, seed=0, lookahead=0)


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("samples", {"lengths": np.full(9, 4, np.int32)}),
        ("tokens", {"lengths": np.full(10, 5, np.int32)}),
        ("tokens_per_row", {"tokens_per_row": 16}),
        ("seed", {"seed": 1}),
        ("lookahead", {"lookahead": 5}),
    ],
)
def test_a_state_of_other_data_or_settings_is_refused(key, change):
    arguments = {"lengths": np.full(10, 4, np.int32), "tokens_per_row": 8, "seed": 0}
    state = RowPlanner(**arguments).state_dict()
    with pytest.raises(StateError, match=f"planned with {key} = "):
        RowPlanner(**{**arguments, **change}).load_state_dict(state)


def test_a_hundred_million_sequences_need_no_memory():
    n = 100_000_000
    lengths = np.broadcast_to(np.int32(30), (n,))
    tracemalloc.start()
    try:
        planner = RowPlanner(lengths, tokens_per_row=4096, seed=3)
        planner.load_state_dict({**planner.state_dict(), "cursor": n // 2})
        rows = [planner.next_row() for _ in range(50)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**24
    assert len(json.dumps(planner.state_dict())) < 10_000
    samples = [sample for row in rows for sample in row.samples]
    assert len(set(samples)) == len(samples)
    assert max(samples) - min(samples) > n // 2


def test_memory_mapped_lengths_plan_the_same_rows(tmp_path: Path):
    lengths = np.random.default_rng(1).integers(1, CAPACITY, 500).astype(np.int32)
    lengths.tofile(tmp_path / "lengths")
    mapped = np.memmap(tmp_path / "lengths", dtype=np.int32, mode="r")
    planned = [one_epoch(RowPlanner(x, tokens_per_row=CAPACITY, seed=0)) for x in (lengths, mapped)]
    assert planned[0] == planned[1]


def sentence_lengths(folder: Path) -> list[int]:
    packed = (folder / "text/ud_en_ewt/en_ewt-ud-dev.conllu.gz").read_bytes()
    blocks = gzip.decompress(packed).decode().strip().split("\n\n")
    sentences = [block.split("\n") for block in blocks]
    return [sum(not line.startswith("#") for line in sentence) + 2 for sentence in sentences]


def protein_lengths(folder: Path) -> list[int]:
    packed = (folder / "protein/pretrain/swissprot_archaea_prokka.faa.gz").read_bytes()
    text = gzip.decompress(packed).decode()
    bodies = [entry.partition("\n")[2] for entry in text.split(">")[1:]]
    return [min(len(body.replace("\n", "")) + 2, 1024) for body in bodies]


@pytest.mark.parametrize("read", [sentence_lengths, protein_lengths])
@pytest.mark.parametrize("tokens_per_row", [1024, 4096])
def test_rows_of_real_lengths_are_at_least_97_percent_full(real_data: Path, read, tokens_per_row):
    lengths = np.array(read(real_data), np.int32)
    rows = one_epoch(RowPlanner(lengths, tokens_per_row=tokens_per_row, seed=0))
    assert (
        lengths.sum() / (tokens_per_row * (len(rows) - 1)) >= 0.97
    )  # the last row of the data has no choice
