"""Mixtures: the shares are as asked for, and each item comes up as often as its neighbours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.data.mixture import Mixture, rates, resample, shares
from seqmlm.engine.types import Encoding, Ids, Longs
from seqmlm.errors import UsageError


class Numbers:
    """A dataset whose item i is the single number `base + i`, repeated."""

    def __init__(self, base: int, lengths: list[int]) -> None:
        self.base = base
        self._lengths = np.array(lengths, dtype=np.int32)

    @property
    def lengths(self) -> Ids:
        return self._lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: int) -> Encoding:
        ids = np.full(self._lengths[index], self.base + index, dtype=np.int32)
        return Encoding(ids=ids, groups=ids)

    @property
    def longest(self) -> int:
        return int(self._lengths.max())

    def lengths_at(self, epoch: int, indices: Longs) -> Ids:
        """Windows that move by a token, and back."""
        return self._lengths[indices] + np.where(indices % 2, -(epoch % 2), epoch % 2).astype(np.int32)

    def at(self, epoch: int, index: int) -> Encoding:
        ids = np.full(self.lengths_at(epoch, np.array([index]))[0], self.base + index, dtype=np.int32)
        return Encoding(ids=ids, groups=ids, classes=np.full(len(ids), epoch, dtype=np.int16))

    def records(self, indices: Sequence[int]) -> Longs:
        """Two neighbouring items are of one record."""
        return np.asarray(indices, dtype=np.int64) // 2


def test_shares_by_hand() -> None:
    for alpha, wanted in ((0.5, [0.75, 0.25]), (1.0, [0.9, 0.1]), (0.0, [0.5, 0.5])):
        assert shares([900, 100], alpha) == pytest.approx(wanted)
    p = np.array([0.99, 0.01])
    assert shares([990, 10]) == pytest.approx(p**0.3 / (p**0.3).sum()), "as in the papers"


def test_rates_keep_the_total_and_give_the_shares() -> None:
    amounts = np.array([5000.0, 300.0, 20.0])
    taken = rates(amounts.tolist(), 0.3) * amounts
    assert taken.sum() == pytest.approx(amounts.sum())
    assert taken / taken.sum() == pytest.approx(shares(amounts.tolist(), 0.3))


def test_wrong_settings_are_named() -> None:
    with pytest.raises(UsageError, match="alpha"):
        shares([1, 2], 1.5)
    with pytest.raises(UsageError, match="none may be empty"):
        shares([1, 0])
    with pytest.raises(UsageError, match="too small"):
        Mixture([Numbers(0, [1] * 100), Numbers(100, [1])], alpha=1.0, epoch_size=3)


def test_resampling_a_stream() -> None:
    items = range(20_000)
    for rate in (0.2, 1.0, 2.7):
        counts = Counter(resample(items, rate, seed=1))
        assert set(counts.values()) <= {int(rate), int(rate) + 1}
        assert sum(counts.values()) == pytest.approx(rate * 20_000, rel=0.03)
        assert list(resample(items, rate, seed=1)) == sorted(counts.elements())
    assert list(resample(items, 0.5, seed=1)) != list(resample(items, 0.5, seed=2))
    assert list(resample("abc", 0.0)) == []


corpora = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=30), min_size=1, max_size=4)


@given(corpora, st.floats(0, 1), st.integers(0, 5), st.one_of(st.none(), st.integers(200, 400)))
def test_every_index_is_an_item_and_items_come_up_equally_often(
    lengths: list[list[int]], alpha: float, seed: int, epoch_size: int | None
) -> None:
    datasets = [Numbers(1000 * c, one) for c, one in enumerate(lengths)]
    try:
        mixture = Mixture(datasets, alpha=alpha, seed=seed, epoch_size=epoch_size)
    except UsageError:
        assert epoch_size is not None
        return
    assert len(mixture) == len(mixture.lengths) == mixture.counts.sum()
    seen: list[Counter[int]] = [Counter() for _ in lengths]
    for index in range(len(mixture)):
        encoding = mixture[index]
        assert len(encoding) == mixture.lengths[index]
        corpus, item = mixture.locate(index)
        assert encoding.ids[0] == 1000 * corpus + item
        seen[corpus][item] += 1
    for corpus, counts in enumerate(seen):
        often = [counts[item] for item in range(len(lengths[corpus]))]
        assert max(often) - min(often) <= 1
        assert sum(often) == mixture.counts[corpus]
        assert min(often) >= 1 or epoch_size is not None


def test_items_that_come_up_again_are_cut_anew() -> None:
    mixture = Mixture([Numbers(0, [4] * 6), Numbers(100, [4, 4])], alpha=0.0)
    assert mixture.counts.tolist() == [6, 6]
    for epoch in range(3):
        turns = [int(mixture.at(epoch, index).classes[0]) for index in range(len(mixture))]
        assert turns[:6] == [epoch] * 6
        assert turns[6:] == [3 * epoch + time for time in (0, 0, 1, 1, 2, 2)]


@given(corpora, st.floats(0, 1), st.integers(0, 5), st.integers(0, 3))
def test_windows_have_the_lengths_that_are_told(
    lengths: list[list[int]], alpha: float, seed: int, epoch: int
) -> None:
    longer = [Numbers(1000 * c, [length + 1 for length in one]) for c, one in enumerate(lengths)]
    mixture = Mixture(longer, alpha=alpha, seed=seed)
    indices = np.arange(len(mixture))[::-1]
    found = [len(mixture.at(epoch, index)) for index in indices.tolist()]
    assert mixture.lengths_at(epoch, indices).tolist() == found
    for index in indices.tolist():
        assert mixture.at(epoch, index).ids[0] == mixture[index].ids[0]


def test_the_shares_are_of_tokens() -> None:
    large, small = Numbers(0, [10] * 3000), Numbers(10_000, [50] * 30)
    mixture = Mixture([large, small])
    tokens = [mixture.lengths[: mixture.counts[0]].sum(), mixture.lengths[mixture.counts[0] :].sum()]
    wanted = shares([30_000, 1500])
    assert np.array(tokens) / sum(tokens) == pytest.approx(wanted, rel=0.01)
    assert mixture.counts[0] == 3000  # the larger one whole, once
    smaller = Mixture([large, small], epoch_size=500)
    assert len(smaller) == pytest.approx(500, abs=1)
    items = [smaller.locate(i)[1] for i in range(int(smaller.counts[0]))]
    assert max(np.diff(sorted(items))) <= 3000 // len(items) + 1  # an even sample, not the beginning


def test_an_index_out_of_range() -> None:
    mixture = Mixture([Numbers(0, [1, 2])])
    assert mixture[-1].ids.tolist() == [1, 1]
    with pytest.raises(IndexError):
        mixture[2]


def test_records_are_told_apart_across_datasets() -> None:
    mixture = Mixture([Numbers(0, [3] * 6), Numbers(100, [3] * 4)], alpha=0.3, seed=1)
    everything = range(len(mixture))
    numbers = mixture.records(everything)
    own = [(mixture.locate(index)[0], mixture.locate(index)[1] // 2) for index in everything]
    pairs = set(zip(numbers.tolist(), own, strict=True))
    assert len(pairs) == len(set(numbers.tolist())) == len(set(own))
