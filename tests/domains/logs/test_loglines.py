"""Equal texts of log records are equal records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seqmlm.domains.logs.readers.events import LogLines

messages = st.text("ab\n\0,tkl0 ", max_size=4)
records = st.integers(0, 4).flatmap(
    lambda n: st.builds(
        LogLines,
        lines=st.lists(messages, min_size=n, max_size=n).map(tuple),
        times=st.none() | st.lists(st.floats(0, 9, width=16), min_size=n, max_size=n).map(tuple),
        keys=st.booleans(),
    )
)


@given(records, records)
def test_equal_texts_are_equal_records(a: LogLines, b: LogLines):
    assert (str(a) == str(b)) == (a == b)
    assert str(a).startswith("\n".join(a.lines))
