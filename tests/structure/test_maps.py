"""What is done with maps: both directions, corrections, units of several tokens, and null models."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from tiny_models import dna_model

from seqmlm.engine.types import Encoding
from seqmlm.errors import UsageError
from seqmlm.structure.maps import (
    DependenceMap,
    apc,
    null_sequences,
    symmetric_values,
    unit_values,
    with_null_scores,
)

TOKENIZER = dna_model().tokenizer
NAN = float("nan")


def test_both_directions_of_a_pair_are_one() -> None:
    directed = np.array([[0.0, 1.0, NAN], [3.0, 0.0, 2.0], [NAN, NAN, 0.0]])
    np.testing.assert_array_equal(symmetric_values(directed)[0], [NAN, 2.0, NAN])
    np.testing.assert_array_equal(symmetric_values(directed)[1], [2.0, NAN, 2.0])  # one direction is known
    np.testing.assert_array_equal(symmetric_values(directed, "max")[1], [3.0, NAN, 2.0])


def test_apc_by_hand() -> None:
    values = np.random.default_rng(0).random((5, 5))
    values = (values + values.T) / 2
    np.fill_diagonal(values, NAN)
    rows = [np.nanmean(row) for row in values]
    expected = values - np.outer(rows, rows) / np.nanmean(values)
    np.fill_diagonal(values, 9.0)
    found = apc(values)
    off = ~np.eye(5, dtype=bool)
    np.testing.assert_allclose(found[off], expected[off])


def test_what_a_row_has_in_common_is_taken_away() -> None:
    rows = np.linspace(1.0, 2.0, 20)
    assert np.nanmax(np.abs(apc(symmetric_values(np.outer(rows, rows))))) < 0.25
    assert apc(np.zeros((3, 3))).tolist() == np.zeros((3, 3)).tolist()


def test_tokens_are_put_together_to_units_by_hand() -> None:
    values = np.log(np.arange(1.0, 17.0).reshape(4, 4))
    unit = np.array([0, 2, 2, 3])
    found = unit_values(values, unit, 4)
    assert found[0, 2] == pytest.approx(np.log(3.0))  # the larger of 2 and 3
    assert found[2, 0] == pytest.approx(np.log((5.0 + 9.0) / 2))
    assert found[2, 3] == pytest.approx(np.log((8.0 + 12.0) / 2))
    assert unit_values(values, unit, 4, rows="max")[2, 0] == pytest.approx(np.log(9.0))
    assert np.isnan(found[1]).all()  # a unit without an ordinary token
    assert np.isnan(np.diag(found)).all()
    values[0, 1] = NAN
    assert unit_values(values, unit, 4)[0, 2] == pytest.approx(np.log(3.0))


SEQUENCE = "ACGTTGACCAGTACGGTTAAC"


def shown(encoding: Encoding) -> list[int]:
    return encoding.ids[1:-1].tolist()


@pytest.mark.parametrize("kind", ["shuffled", "dinucleotide", "mirrored"])
def test_null_sequences_have_the_same_units(kind: str) -> None:
    encoding = TOKENIZER.encode(SEQUENCE)
    found = list(null_sequences(encoding, TOKENIZER.space, 6, kind=kind))  # type: ignore[arg-type]
    assert len(found) == (1 if kind == "mirrored" else 6)
    for one in found:
        assert Counter(shown(one)) == Counter(shown(encoding))
        assert (one.ids[0], one.ids[-1]) == (encoding.ids[0], encoding.ids[-1])
        assert one.groups.tolist() == encoding.groups.tolist()
    if kind == "mirrored":
        assert shown(found[0]) == shown(encoding)[::-1]
        return
    assert len({tuple(shown(one)) for one in found}) > 3
    pairs = [Counter(pairwise(shown(one))) for one in (encoding, *found)]
    assert all(one == pairs[0] for one in pairs) is (kind == "dinucleotide")
    again = list(null_sequences(encoding, TOKENIZER.space, 6, kind=kind))  # type: ignore[arg-type]
    assert [shown(one) for one in again] == [shown(one) for one in found]


def test_units_of_several_tokens_are_moved_whole() -> None:
    encoding = Encoding(
        ids=np.array([1, 10, 11, 12, 13, 14, 2], dtype=np.int32),
        groups=np.array([-1, 0, 0, 1, 2, 2, -1], dtype=np.int32),
    )
    space = replace(TOKENIZER.space, size=20, special=(0, 1, 2, 3), pad=0, start=1, end=2, mask=3, unk=None)
    for one in null_sequences(encoding, space, 5):
        units = [tuple(one.ids[one.groups == number].tolist()) for number in range(3)]
        assert sorted(units) == [(10, 11), (12,), (13, 14)]
    named = replace(encoding, symbols=np.array([-1, 7, 7, 8, 9, 9, -1], np.int32))
    for one in null_sequences(named, space, 5):
        names = {10: 7, 11: 7, 12: 8, 13: 9, 14: 9}
        assert one.symbols[1:-1].tolist() == [names[token] for token in one.ids[1:-1].tolist()]
    with pytest.raises(UsageError, match="not possible in these sequences"):
        list(null_sequences(replace(encoding, groups=np.array([-1, 0, 1, 0, 2, 2, -1], np.int32)), space, 1))
    with pytest.raises(UsageError, match="not possible in these sequences"):
        list(null_sequences(replace(encoding, positions=np.arange(7, dtype=np.int32)), space, 1))


def test_sequences_of_one_length_are_shuffled_apart() -> None:
    space = replace(TOKENIZER.space, size=60, special=(0, 1, 2, 3), pad=0, start=1, end=2, mask=3, unk=None)
    orders = []
    for first in (10, 30):
        ids = np.r_[1, np.arange(first, first + 20), 2].astype(np.int32)
        encoding = Encoding(ids=ids, groups=np.r_[-1, np.arange(20), -1].astype(np.int32))
        orders.append([(one.ids[1:-1] - first).tolist() for one in null_sequences(encoding, space, 3)])
    assert len({tuple(order) for own in orders for order in own}) == 6


def _map(rng: np.random.Generator, size: int = 30) -> DependenceMap:
    values = rng.exponential(size=(size, size))
    return DependenceMap(values=symmetric_values(values), method="x", passes=3)


def test_pairs_of_a_null_map_are_significant_as_often_as_asked() -> None:
    rng = np.random.default_rng(1)
    shares = []
    for _ in range(20):
        found = with_null_scores(_map(rng), [_map(rng) for _ in range(10)])
        assert found.p is not None
        shares.append(np.nanmean(found.p <= 0.05))
        assert found.passes == 33
    assert np.mean(shares) == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_maps_that_go_up_and_down_as_wholes_are_no_more_often_significant(alpha: float) -> None:
    rng = np.random.default_rng(3)
    every = [_map(rng) for _ in range(4)]
    every = [replace(one, values=one.values * rng.exponential() + rng.exponential()) for one in every]
    found = [with_null_scores(every[n], every[:n] + every[n + 1 :]).p for n in range(len(every))]
    shares = [float((p[np.isfinite(p)] <= alpha).mean()) for p in found if p is not None]
    assert max(shares) > alpha
    assert np.mean(shares) <= alpha, "each of them is the own one once"


def test_p_is_a_rank_among_pairs_that_are_as_far_apart() -> None:
    rng = np.random.default_rng(2)
    own, others = _map(rng, 6), [_map(rng, 6) for _ in range(3)]
    found = with_null_scores(own, others)
    null = np.concatenate([np.diag(one.values, 1) for one in others])
    value, pairs = own.values[2, 3], np.concatenate([null, np.diag(own.values, 1)])
    assert found.p[2, 3] == found.p[3, 2] == (pairs >= value).mean()
    assert found.z[2, 3] == pytest.approx((value - null.mean()) / null.std())
    assert np.isnan(np.diag(found.p)).all()
