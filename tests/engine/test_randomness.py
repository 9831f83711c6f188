"""Keyed generators depend on their key alone; the permutation is a bijection."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.engine.randomness import EVALUATION, KeyedGenerator, Permutation, rng
from seqmlm.errors import UsageError

keys = st.integers(min_value=-(2**70), max_value=2**70)
small = st.integers(min_value=0, max_value=2**40)


@given(seed=keys, places=st.lists(st.tuples(small, small, st.sampled_from([0, 1])), min_size=2, max_size=4))
def test_a_rewound_generator_equals_a_fresh_one(seed, places):
    shared = KeyedGenerator(seed)
    for epoch, sample, stream in places:
        rewound, fresh = shared.at(epoch, sample, stream), rng(seed, epoch, sample, stream)
        assert rewound.integers(1000, dtype=np.uint32) == fresh.integers(1000, dtype=np.uint32)
        np.testing.assert_array_equal(rewound.random(5), fresh.random(5))


def test_seed_epoch_sample_and_stream_each_matter():
    def first(*key: int) -> float:
        return float(rng(*key).random())

    draws = [first(1, 2, 3), first(9, 2, 3), first(1, 9, 3), first(1, 2, 9), first(1, 2, 3, EVALUATION)]
    assert len(set(draws)) == len(draws)
    assert first(1, 2, 3) == draws[0]


def test_neighbouring_samples_do_not_overlap():
    long = rng(0, 0, 0).random(10_000)
    for key in ((0, 0, 1), (0, 1, 0), (1, 0, 0)):
        assert not np.isin(rng(*key).random(100), long).any()


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda shared: pickle.loads(pickle.dumps(shared))])
def test_a_copy_draws_the_same(clone):
    shared = KeyedGenerator(5)
    shared.at(3, 4).random(7)
    np.testing.assert_array_equal(clone(shared).at(1, 2).random(9), rng(5, 1, 2).random(9))


@given(n=st.integers(min_value=0, max_value=3000), key=st.tuples(keys, small))
def test_permutation_is_a_bijection(n, key):
    permutation = Permutation(n, key)
    sent = permutation(np.arange(n))
    np.testing.assert_array_equal(np.sort(sent), np.arange(n))
    np.testing.assert_array_equal(permutation(np.arange(min(n, 3))), sent[:3])


@given(n=st.integers(min_value=1, max_value=2**62 - 1), key=st.tuples(keys), data=st.data())
def test_permutation_of_any_size_stays_inside(n, key, data):
    index = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20, unique=True)))
    sent = Permutation(n, key)(index)
    assert ((sent >= 0) & (sent < n)).all()
    assert len(set(sent.tolist())) == len(index)


def test_every_order_of_four_is_about_as_likely():
    counts = Counter(tuple(Permutation(4, (seed, 0))(np.arange(4)).tolist()) for seed in range(2400))
    assert set(counts) == set(permutations(range(4)))
    chi_square = sum((count - 100) ** 2 / 100 for count in counts.values())
    assert chi_square < 49.7  # 23 degrees of freedom, p = .001


def test_permutation_has_no_order_left():
    n = 50_000
    for epoch in range(3):
        sent = Permutation(n, (0, epoch))(np.arange(n))
        assert abs(np.corrcoef(sent[:-1], sent[1:])[0, 1]) < 5 / np.sqrt(n)
        assert abs(np.corrcoef(np.arange(n), sent)[0, 1]) < 5 / np.sqrt(n)
        assert np.count_nonzero(sent == np.arange(n)) < 10  # fixed points: 1 expected


def test_permutation_refuses_what_lies_outside():
    with pytest.raises(UsageError, match="n = -1"):
        Permutation(-1, (0,))
    for index in (-1, 7):
        with pytest.raises(IndexError, match="range\\(7\\)"):
            Permutation(7, (0,))(np.array([index]))
