"""The flat set of hashes against Python's own set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seqmlm.data.duplicates import SeenHashes, distinct, hash128
from seqmlm.data.record import Record


@given(st.lists(st.integers(0, 300), max_size=400))
def test_as_a_set_would_say(numbers: list[int]) -> None:
    seen = SeenHashes()
    firsts = [n not in numbers[:at] for at, n in enumerate(numbers)]
    assert [seen.add(hash128(str(n))) for n in numbers] == firsts


def test_raw_of_every_kind_has_a_hash() -> None:
    raws = ["a", b"b", 17, ["a"], "\ud800"]
    assert len({hash128(raw) for raw in raws}) == len(raws)
    assert hash128(17) == hash128("17"), "a structured sequence is what its text says"
    assert all(len(hash128(raw)) == 16 for raw in raws)


def test_distinct_records_are_the_first_of_each() -> None:
    records = [Record(id=str(i), raw=f"text {i % 700}", source="s", line=i) for i in range(2000)]
    assert [record.id for record in distinct(records)] == [str(i) for i in range(700)]
