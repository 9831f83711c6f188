"""The flat set of hashes against Python's own set."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.data.duplicates import SeenHashes, distinct, hash128
from seqmlm.data.record import Record


@given(st.lists(st.lists(st.integers(0, 300), max_size=40), max_size=12), st.sampled_from([1, 2, 64]))
def test_as_a_set_would_say(batches: list[list[int]], slots: int) -> None:
    table, known = SeenHashes(slots), set[int]()
    for batch in batches:
        wanted = []
        for number in batch:
            wanted.append(number not in known)
            known.add(number)
        assert table.add([hash128(str(n)) for n in batch]).tolist() == wanted
        assert len(table) == len(known)


def test_hashes_that_want_the_same_slot() -> None:
    table = SeenHashes(8)
    digests = [np.array([8, i], dtype=np.uint64).tobytes() for i in range(1, 200)]
    assert table.add(digests).all()
    assert not table.add(digests[::-1]).any()


def test_many_more_than_it_began_with() -> None:
    table = SeenHashes(4)
    digests = [hash128(str(i)) for i in range(20_000)]
    for start in range(0, len(digests), 1000):
        assert table.add(digests[start : start + 1000]).all()
    assert not table.add(digests).any()
    assert len(table) == 20_000


def test_raw_of_every_kind_has_a_hash() -> None:
    raws = ["a", b"b", 17, ["a"], "\ud800"]
    assert len({hash128(raw) for raw in raws}) == len(raws)
    assert hash128(17) == hash128("17"), "a structured sequence is what its text says"
    assert all(len(hash128(raw)) == 16 for raw in raws)


def test_distinct_records_are_the_first_of_each() -> None:
    records = [Record(id=str(i), raw=f"text {i % 700}", source="s", line=i) for i in range(2000)]
    assert [record.id for record in distinct(records)] == [str(i) for i in range(700)]
