"""What data hold and readers take: a census against plain counting; every option of a reader is explained."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmlm import plugins
from seqmlm.data.record import Record
from seqmlm.data.splits import VALIDATION, ByKey
from seqmlm.management.inspect import Census, formats

SPLIT = ByKey(key=lambda record: str(record.document), seed=3, share=0.3)


def record(number: int, raw: str, document: str) -> Record:
    return Record(id=str(number), raw=raw, source="s.txt", line=number + 1, document=document)


pairs = st.lists(
    st.tuples(st.sampled_from(["a", "bb", "ccc", "dddd"]), st.sampled_from("uvwxyz")), max_size=40
)


@given(pairs)
def test_as_counting_everything_would_say(rows):
    census, sides = Census(SPLIT, 0), defaultdict(set)
    records = [record(number, raw, document) for number, (raw, document) in enumerate(rows)]
    marks = np.array([SPLIT.mark(one) for one in records], dtype=np.int64).reshape(-1, 2)
    parts = SPLIT.parts(marks).tolist()
    for one, part in zip(records, parts, strict=True):
        census.add(one)
        sides[one.raw].add(part)
    assert (census.records, census.distinct, census.exact) == (len(rows), len(sides), True)
    found, leaked = census.divided()
    assert sum(found.values()) == len(rows)
    assert found["validation"] == parts.count(VALIDATION)
    assert leaked == sum(len(side) == 2 for side in sides.values())
    assert census.characters == sum(len(raw) for raw, _ in rows)


def test_a_long_stream_is_estimated_in_little_memory():
    census = Census(SPLIT, 0, distinct=500, uniform=1000, sample_size=20, characters=300)
    for number in range(20_000):
        # Every sequence twice, the second time in another document: about 42 % of them in both splits.
        census.add(record(number, f"sequence {number % 10_000}", f"d{number}"))
    found, leaked = census.divided()
    assert not census.exact
    assert abs(census.distinct - 10_000) < 2000
    assert abs(leaked - 4200) < 1500
    assert abs(found["validation"] / 20_000 - 0.3) < 0.06
    assert len(census._seen) <= 500
    assert 1 <= len(census.sampled_records) <= 20
    assert sum(len(one.raw) for one in census.sampled_records) <= 300
    assert max(int(one.id) for one in census.sampled_records) > 1000, "not only the first ones"
    lengths = census.length_quantiles((0.0, 1.0))
    assert 10 <= lengths["0.0"] <= lengths["1.0"] == 13


def test_nothing_at_all():
    census = Census(SPLIT, 0)
    assert (census.records, census.divided()[1]) == (0, 0)
    assert census.length_quantiles((0.5,)) == {"0.5": 0}


@pytest.mark.parametrize("domain", plugins.names("domains"))
def test_every_option_has_a_meaning(domain: str) -> None:
    found = formats(domain)
    assert [one.name for one in found] == list(plugins.domain(domain).files.formats)
    for one in found:
        assert one.reads, one.name
        for option in one.options:
            assert option.meaning, (one.name, option.name)


def test_meanings_are_those_of_the_docstring() -> None:
    csv = next(one for one in formats("text") if one.name == "csv")
    delimiter = next(option for option in csv.options if option.name == "delimiter")
    assert (delimiter.default, delimiter.meaning.partition(".")[0]) == (None, "one character")
    logs = next(one for one in formats("logs") if one.name == "auto")
    held = next(option for option in logs.options if option.name == "max_held")
    assert held.meaning.startswith("maximum number of open sessions, and of the lines")
