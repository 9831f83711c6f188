"""Splits: no group on both sides, whatever the rule; the latest or a share validate."""

from __future__ import annotations

from collections import defaultdict
from datetime import date, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.data.record import Record
from seqmlm.data.splits import (
    CALIBRATION,
    TRAIN,
    VALIDATION,
    ByKey,
    Chronological,
    Split,
    hash64,
    neighbours,
)
from seqmlm.errors import DataError


def record(document: str = "d", raw: Any = "x", **meta: Any) -> Record:
    return Record(id="i", raw=raw, source="s.txt", line=7, document=document, meta=meta)


def key(record: Record) -> str:
    return str(record.document)


def when(record: Record) -> Any:
    return record.meta["time"]


def divided(split: Split, records: list[Record]) -> np.ndarray[Any, np.dtype[np.int8]]:
    return split.parts(np.array([split.mark(r) for r in records], dtype=np.int64).reshape(-1, 2))


def parts(split: Split, records: list[Record]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return divided(split, records) == VALIDATION


def sides(records: list[Record], validates: Any) -> dict[str, set[bool]]:
    found: dict[str, set[bool]] = defaultdict(set)
    for one, side in zip(records, validates, strict=True):
        found[key(one)].add(bool(side))
    return found


documents = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40)


@given(documents, st.integers(-(2**63), 2**63 - 1), st.floats(0.01, 0.99))
def test_a_key_is_on_one_side_and_both_sides_have_one(names: list[str], seed: int, share: float) -> None:
    records = [record(name) for name in names]
    found = sides(records, parts(ByKey(key=key, seed=seed, share=share), records))
    assert all(len(side) == 1 for side in found.values())
    both = set().union(*found.values())
    assert len(both) == min(2, len(set(names)))


def test_what_the_data_says_of_its_split_counts() -> None:
    labels = ["train", "validation", "train", None]
    records = [record(str(i), split=labels[i % 4]) for i in range(40)]
    split = ByKey(key=key, share=0.5, split_of=lambda r: r.meta["split"])
    assert parts(split, records).tolist() == [r.meta["split"] == "validation" for r in records]
    only_train = [record(str(i), split="train") for i in range(200)]
    assert 0.2 < parts(split, only_train).mean() < 0.8, "no validation named: some of them, by key"


def test_hashes_do_not_change_between_machines_and_versions() -> None:
    assert hash64("MKV") == -6662056296083400257
    assert hash64("MKV", 1) != hash64("MKV")


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(-5, 5)), min_size=1), st.floats(0.01, 0.9))
def test_nothing_in_training_begins_after_validation(rows: list[tuple[str, int]], share: float) -> None:
    records = [record(name, time=time) for name, time in rows]
    split = Chronological(key=key, order=when, share=share)
    validates = parts(split, records)
    found = sides(records, validates)
    assert all(len(side) == 1 for side in found.values())
    begins = {name: min(time for other, time in rows if other == name) for name in found}
    held = [begins[name] for name, side in found.items() if side == {True}]
    trained = [begins[name] for name, side in found.items() if side == {False}]
    assert trained
    assert bool(held) == (len(found) > 1)
    if held:
        assert max(trained) <= min(held)
        # As many records as asked for, and not one group more; except that training keeps a group.
        assert validates.sum() >= share * len(rows) or len(trained) == 1
        earliest = [name for name, side in found.items() if side == {True} and begins[name] == min(held)]
        without = min(validates.sum() - sum(name == other for other, _ in rows) for name in earliest)
        assert without < share * len(rows)


@given(documents, st.integers(0, 99), st.floats(0.01, 0.49), st.floats(0.01, 0.49), st.booleans())
def test_training_is_served_first_then_validation_then_calibration(
    names: list[str], seed: int, share: float, calibration: float, in_time: bool
) -> None:
    records = [record(name, time=ord(name)) for name in names]
    split: Split = ByKey(key=key, seed=seed, share=share, calibration=calibration)
    if in_time:
        split = Chronological(key=key, order=when, share=share, calibration=calibration)
    found = divided(split, records)
    groups = {one.document: set() for one in records}
    for one, part in zip(records, found.tolist(), strict=True):
        groups[one.document].add(part)
    assert all(len(own) == 1 for own in groups.values())
    wanted = {1: {TRAIN}, 2: {TRAIN, VALIDATION}}.get(len(groups), {TRAIN, VALIDATION, CALIBRATION})
    assert set().union(*groups.values()) == wanted
    if in_time:
        times = {part: [ord(n) for n, own in groups.items() if own == {part}] for part in wanted}
        ordered = [times[part] for part in (TRAIN, VALIDATION, CALIBRATION) if part in wanted]
        assert all(max(a) < min(b) for a, b in pairwise(ordered))


def test_shares_of_three_parts() -> None:
    records = [record(str(i), time=i) for i in range(20_000)]
    split: Split
    for split in (
        ByKey(key=key, seed=1, share=0.05, calibration=0.1),
        Chronological(key=key, order=when, share=0.05, calibration=0.1),
    ):
        found = divided(split, records)
        assert np.bincount(found) / 20_000 == pytest.approx([0.85, 0.05, 0.1], abs=0.01)
    # What validates does not depend on whether anything calibrates.
    alone = parts(ByKey(key=key, seed=1, share=0.05), records)
    assert (alone == parts(ByKey(key=key, seed=1, share=0.05, calibration=0.1), records)).all()


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(-5, 5)), min_size=1, max_size=400),
    st.floats(0.01, 0.4),
    st.floats(0.01, 0.4),
)
def test_spread_calibration_is_drawn_from_all_times_before_validation(
    rows: list[tuple[int, int]], share: float, calibration: float
) -> None:
    records = [record(str(name), time=time) for name, time in rows]
    split = Chronological(key=key, order=when, share=share, calibration=calibration, calibrate_on="spread")
    found = divided(split, records)
    groups = {one.document for one in records}
    of = {
        name: {int(p) for r, p in zip(records, found, strict=True) if r.document == name} for name in groups
    }
    assert all(len(own) == 1 for own in of.values())
    assert len(set(found.tolist())) == min(3, len(groups))
    begins = {name: min(when(r) for r in records if r.document == name) for name in groups}
    others = [begins[name] for name in groups if of[name] != {VALIDATION}]
    held = [begins[name] for name in groups if of[name] == {VALIDATION}]
    assert not held or max(others) <= min(held)
    # What validates does not depend on what calibrates, as long as there is enough for all.
    alone = Chronological(key=key, order=when, share=share)
    if len(groups) > 2 and (found == TRAIN).sum() > 1:
        validates = parts(alone, records)
        assert (found == VALIDATION).sum() <= validates.sum()


@pytest.mark.parametrize(("records", "calibrating"), [(1000, 100), (300, 40), (110, 22), (12, 3), (5, 1)])
def test_of_little_data_more_calibrates(records: int, calibrating: int) -> None:
    rows = [record(str(number), time=number) for number in range(records)]
    split = Chronological(key=key, order=when, share=0.05, calibration=0.1, enough=40)
    found = divided(split, rows)
    assert np.flatnonzero(found == CALIBRATION).tolist() == list(range(records - calibrating, records))


@pytest.mark.parametrize("period", [1, 7, 10])
def test_every_stretch_of_time_calibrates_whatever_the_period(period: int) -> None:
    """One of each ten groups, and of what repeats every so many groups no phase is favoured."""
    records = [record(f"s{i}", time=i // 2) for i in range(4000)]
    split = Chronological(key=key, order=when, share=0.05, calibration=0.1, calibrate_on="spread")
    found = divided(split, records)
    assert (found[3800:] == VALIDATION).all()
    places = np.flatnonzero(found == CALIBRATION)
    assert len(places) == 400
    assert np.diff(places).max() < 22
    phases = np.bincount(places % period, minlength=period)
    assert phases.min() > 0.5 * phases.mean()
    assert found.tolist() == divided(split, records).tolist()


def test_half_of_the_groups_of_a_given_validation_calibrate() -> None:
    records = [record(str(i // 2), split="train" if i < 200 else "validation") for i in range(600)]
    given_split = lambda r: r.meta["split"]  # noqa: E731
    split = ByKey(key=key, share=0.05, calibration=0.05, split_of=given_split)
    found = divided(split, records)
    assert (found[:200] == TRAIN).all()
    assert (found[200::2] == found[201::2]).all()
    assert 0.35 < (found[200:] == CALIBRATION).mean() < 0.65
    assert not (found[200:] == TRAIN).any()
    none = ByKey(key=key, share=0.05, split_of=given_split)
    assert set(divided(none, records)[200:]) == {VALIDATION}


def test_orders_of_every_kind_agree() -> None:
    numbers = [-1e300, -7, -0.5, 0, 1e-300, 3, 2**60]
    times = ["1950-01-01", "2001-02-03T04:05:06", "2001-02-03T04:05:07+00:00", "2020-05-05"]
    for values in (numbers, times, [date(1999, 1, 1), datetime(1999, 1, 1, 1), date(2000, 1, 1)]):
        marks = [Chronological(key=key, order=lambda r: r.raw).mark(record(raw=v))[1] for v in values]
        assert marks == sorted(marks)
        assert len(set(marks)) == len(marks)


@pytest.mark.parametrize("value", [None, "yesterday", float("nan"), [1]])
def test_a_record_without_a_time_is_named(value: Any) -> None:
    with pytest.raises(DataError, match=r"s.txt:7: the record has no usable time") as caught:
        Chronological(key=key, order=lambda r: r.raw).mark(record(raw=value))
    assert "yesterday" not in str(caught.value)


def test_neighbours_stay_together_within_a_stretch() -> None:
    lines = [
        Record(id="i", raw="x", source=f"{folder}/a.txt", line=n) for folder in "uv" for n in range(5000)
    ]
    keys = [neighbours(one) for one in lines]
    assert len(set(keys)) == 5
    assert keys[:5000] == keys[5000:]  # a folder may move
    assert neighbours(record("book")) == "book"


@pytest.mark.parametrize("seed", range(20))
def test_groups_of_different_sizes_give_each_part_its_share(seed: int) -> None:
    """A repository: one package has a quarter of the files, many have two."""
    names = ["big"] * 103 + [f"p{i}" for i in range(40) for _ in range(2 + i % 11)]
    split = ByKey(key=key, seed=seed, share=0.05, calibration=0.05)
    records = [record(name) for name in names]
    found = divided(split, records)
    for part in (VALIDATION, CALIBRATION):
        assert 0.025 <= (found == part).mean() <= 0.1
    for name in set(names):
        assert len({int(part) for part, one in zip(found, names, strict=True) if one == name}) == 1
    assert found.tolist() == divided(split, records).tolist()
