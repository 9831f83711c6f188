"""Planted faults: what is said to be wrong is what differs, and all else stays."""

import re

import numpy as np
import pytest

from seqmlm.anomaly.faults import (
    FAULTS,
    Given,
    edits,
    plant,
    recoded,
    shuffled,
    substituted,
    swapped,
    touched,
)
from seqmlm.anomaly.values import Row
from seqmlm.data.record import Record

TEXTS = [
    "the quick brown fox jumps over the lazy dog and runs away into the dark wood",
    "she sells sea shells at the sea shore, where nobody else would ever buy them",
    "one fish two fish red fish blue fish, and this one has a little star on it",
]


def given(text, rows=1, kinds=None):
    spans = np.array([m.span() for m in re.finditer(r"\w+", text)], dtype=np.int64)
    return Given(Record(id=text[:3], raw=text, source="s", line=1), spans, kinds, rows)


DRAWS = {
    "one": substituted(),
    "five": substituted(5),
    "own": substituted(own=True),
    "swapped": swapped(),
    "shuffled": shuffled(6),
    "recoded": recoded(6, {"e": "a", "a": "e"}),
    "half": recoded(6, {"e": "a"}, share=0.5),
}


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_only_what_is_named_differs(draw, rows):
    fault, random = edits(draw), np.random.default_rng(0)
    normal = [given(text, rows) for text in TEXTS]
    planted = 0
    for turn in range(60):
        one = normal[turn % 3]
        found = fault(one, normal[(turn + 1) % 3], random)
        if found is None:
            continue
        planted += 1
        text, old = found.record.raw, one.record.raw
        assert text != old
        assert (found.record.id, found.record.source) == (one.record.id, "s")
        pieces, at = [], 0
        for start, end in found.spans.tolist():
            pieces.append(re.escape(text[at:start]))
            at = end
        pieces.append(re.escape(text[at:]))
        assert re.fullmatch("(.*)".join(pieces), old, re.DOTALL)
    assert planted > 30


def test_units_are_those_of_the_other_record_and_of_the_same_kind():
    kinds = np.array([0, 1, 0, 1], dtype=np.int16)
    one, other = given("a B c D", kinds=kinds), given("e F g H", kinds=kinds)
    random = np.random.default_rng(1)
    for _ in range(50):
        found = edits(substituted())(one, other, random)
        [(start, end)] = found.spans.tolist()
        new = found.record.raw[start:end]
        assert new in "eFgH"
        assert new.isupper() == one.record.raw[start:end].isupper()
        assert edits(substituted(among=[1]))(one, other, random).record.raw[::4] == "ac"
        mixed = edits(swapped())(one, other, random)
        assert [letter.isupper() for letter in mixed.record.raw[::2]] == [False, True, False, True]
        assert sorted(mixed.record.raw) == sorted(one.record.raw)


@pytest.mark.parametrize("text", ["", "word", "same same same same"])
def test_what_cannot_be_planted_is_not(text):
    normal = [given(text), given(text)]
    assert list(plant(FAULTS, normal, 30, seed=0)) == []


def test_copies_are_spread_over_kinds_and_records_and_the_same_for_one_seed():
    normal = [given(text) for text in TEXTS]
    first, again = (list(plant(FAULTS, normal, 30, seed=5)) for _ in range(2))
    assert [(kind, one.record) for kind, one in first] == [(kind, one.record) for kind, one in again]
    assert {kind for kind, _ in first} == set(FAULTS)
    assert {one.record.id for _, one in first} == {text[:3] for text in TEXTS}
    assert len(first) <= 30
    assert list(plant(FAULTS, normal[:1], 30, seed=5)) == []


def row(start, end, score=1.0):
    return Row(
        id="r",
        source="s",
        line=1,
        start=start,
        end=end,
        units=np.arange(1),
        length=1,
        statistics={},
        score=score,
    )


def test_a_row_is_touched_by_half_of_the_shorter_stretch():
    spans = np.array([[10, 20]])
    rows = [row(0, 14), row(0, 15), row(15, 40), row(16, 40), row(12, 13), row(0, 100), row(0, 100, None)]
    assert touched(rows, spans) == [rows[1], rows[2], rows[4], rows[5]]
