"""Faults planted in sessions: what is named wrong is, everything else stays in its place."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from seqmlm.anomaly.faults import Given, plant
from seqmlm.data.record import Record
from seqmlm.domains.logs.faults import FAULTS
from seqmlm.domains.logs.readers.events import LogLines

NOTHING = np.zeros((0, 2), dtype=np.int64)


def given(*lines: str, times: bool = False) -> Given:
    raw = LogLines(lines=lines, times=tuple(map(float, range(len(lines)))) if times else None, windowed=times)
    record = Record(id=lines[0], raw=raw, source="s", line=1, meta={"lines": list(range(9)), "host": "a"})
    return Given(record, NOTHING, None, 1)


OF_TIMES = {"hurried", "paused"}


@pytest.mark.parametrize("times", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind not in OF_TIMES])
def test_what_is_wrong_is_named(kind, times):
    normal = [given("open a", "read", "read b", "close", times=times), given("begin", "end", times=times)]
    planted = list(plant({kind: FAULTS[kind]}, normal, 40, seed=2))
    assert len(planted) > 15
    for _, found in planted:
        raw, old = found.record.raw, next(o.record.raw for o in normal if o.record.id == found.record.id)
        lines = [raw.text[start:end] for start, end in found.spans.tolist()]
        assert set(lines) <= set(raw.lines)
        before, after = Counter(old.lines), Counter(raw.lines)
        changed = {
            "swapped": before == after and len(lines) == 2,
            "substituted": (before - after).total() == 1 == (after - before).total(),
            "deleted": (before - after).total() == 1 and not after - before,
            "doubled": (after - before).total() == 1 and not before - after,
            "repeated": before.total() == after.total()
            and len(set(lines)) == 1
            and 1 <= (after - before).total() <= len(old.lines) / 2,
        }
        assert changed[kind]
        assert raw.lines != old.lines
        assert found.record.meta == {"host": "a"}
        assert (raw.times is not None) is times
        assert not times or (len(raw.times) == len(raw.lines) and list(raw.times) == sorted(raw.times))


@pytest.mark.parametrize("kind", sorted(OF_TIMES))
def test_times_alone_are_changed(kind):
    normal = [given("open a", "read", "read b", "close", times=True), given("begin", "end", times=True)]
    planted = list(plant({kind: FAULTS[kind]}, normal, 40, seed=2))
    assert len(planted) > 15
    for _, found in planted:
        raw, old = found.record.raw, next(o.record.raw for o in normal if o.record.id == found.record.id)
        assert raw.lines == old.lines
        assert found.spans.tolist() == [[0, len(raw.text)]]
        assert raw.times[0] == old.times[0]
        apart, usual = np.diff(raw.times), np.diff(old.times)
        if kind == "hurried":
            assert apart == pytest.approx(usual / 8)
        else:
            assert sorted(apart - usual)[:-1] == pytest.approx([0] * (len(apart) - 1))
            assert apart.sum() == pytest.approx(8 * usual.sum())


@pytest.mark.parametrize("kind", sorted(OF_TIMES))
def test_without_times_none_is_changed(kind):
    record = given("begin", "end", times=True).record
    at_once = replace(record, raw=replace(record.raw, times=(5.0, 5.0)))
    session = replace(record, raw=replace(record.raw, windowed=False))
    without = [given("a", "b"), Given(at_once, NOTHING, None, 1), Given(session, NOTHING, None, 1)]
    assert list(plant({kind: FAULTS[kind]}, without, 10, seed=0)) == []


def test_a_record_without_a_line_left_is_none():
    assert list(plant({"deleted": FAULTS["deleted"]}, [given("only"), given("one")], 10, seed=0)) == []
