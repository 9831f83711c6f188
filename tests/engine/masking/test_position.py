"""`position.v1`: the given positions with probability p, else others."""

from __future__ import annotations

import numpy as np
import pytest

from seqmlm.engine.masking.base import eligible_tokens
from seqmlm.engine.masking.position import Position
from seqmlm.engine.types import Encoding
from seqmlm.errors import UsageError


def sentence(n: int) -> Encoding:
    return Encoding(
        ids=np.array([2, *range(5, 5 + n), 3], np.int32), groups=np.array([-1, *range(n), -1], np.int32)
    )


def select(masker: Position, encoding: Encoding, space, seed: int) -> list[int]:
    eligible = eligible_tokens(encoding, space)
    return masker.select(encoding, eligible, np.random.default_rng(seed)).nonzero()[0].tolist()


def test_positions_count_from_both_ends_without_special_tokens(space):
    masker = Position(rate=0.15, space=space, positions=[0, -1, 99, -99])
    for seed in range(20):
        assert select(masker, sentence(6), space, seed) == [1, 6]


def test_p_is_the_rate_of_the_given_and_the_others_have_theirs(space):
    masker, encoding, n = Position(rate=0.2, space=space, positions=[-1], p=0.4), sentence(30), 3000
    drawn = [select(masker, encoding, space, seed) for seed in range(n)]
    given = [own for own in drawn if 30 in own]
    assert all(own == [30] for own in given)
    assert abs(len(given) / n - 0.4) < 5 * np.sqrt(0.4 * 0.6 / n)
    others = [own for own in drawn if 30 not in own]
    rate = sum(map(len, others)) / (29 * len(others))
    # One is always selected: .8^29 = .0015 of the draws have one more.
    assert abs(rate - 0.2) < 5 * np.sqrt(0.2 * 0.8 / (29 * len(others))) + 0.0001


def test_never_at_p_zero(space):
    masker = Position(rate=0.5, space=space, positions=[0, 1], p=0.0)
    assert not any({1, 2} & set(select(masker, sentence(5), space, seed)) for seed in range(50))


def test_something_is_always_selected(space):
    absent = Position(rate=0.0, space=space, positions=[10], p=1.0)
    nothing_else = Position(rate=0.0, space=space, positions=[0], p=0.0)
    for seed in range(20):
        assert len(select(absent, sentence(3), space, seed)) == 1
        assert select(nothing_else, sentence(1), space, seed) == [1]
        assert select(nothing_else, sentence(0), space, seed) == []


def test_a_given_position_that_may_not_be_masked_is_not(space):
    encoding = sentence(4)
    encoding.ids[4] = 1  # unknown
    masker = Position(rate=0.15, space=space, positions=[-1])
    for seed in range(20):
        chosen = select(masker, encoding, space, seed)
        assert chosen
        assert 4 not in chosen


def test_wrong_options_are_refused(space):
    with pytest.raises(UsageError, match="need positions"):
        Position(rate=0.15, space=space, positions=[])
    with pytest.raises(UsageError, match="'p' must lie in"):
        Position(rate=0.15, space=space, positions=[0], p=2)
