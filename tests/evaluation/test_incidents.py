"""Incidents: against a naive grouping, streaming, bounded."""

from __future__ import annotations

from itertools import combinations

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.errors import UsageError
from seqmlm.evaluation.incidents import Incidents, rate_for, rows_per_day

alarms = st.lists(st.tuples(st.sampled_from("uv"), st.integers(0, 60), st.integers(0, 9)), max_size=25)


@given(alarms)
def test_windows_in_order_are_grouped_as_the_naive_way_does(rows: list[tuple[str, int, int]]) -> None:
    spans = [(place, start, start + size) for place, start, size in sorted(rows, key=lambda row: row[1])]
    meeting = networkx.Graph()
    meeting.add_nodes_from(range(len(spans)))
    for (one, (place, start, end)), (two, (other, first, last)) in combinations(enumerate(spans), 2):
        if place == other and start <= last and end >= first:
            meeting.add_edge(one, two)
    group = Incidents()
    for span in spans:
        group.add(*span)
    assert group.count == networkx.number_connected_components(meeting)


def test_a_stream_ends_what_is_over_and_holds_few_places() -> None:
    group = Incidents(places=2)
    for start, end in ((0, 5), (7, 8), (8, 9)):
        group.add("a", start, end)
    assert group.count == 2
    for place in "bac":
        group.add(place, 9, 10)
    assert group.count == 4  # the second one of "a" goes on; "b" has ended, the longest inactive
    group.add("b", 10, 11)
    assert group.count == 5


def test_alarms_a_day_become_a_rate() -> None:
    assert rows_per_day(86_401, 0.0, 86_400.0) == 86_400.0
    assert rows_per_day(2, 5.0, 5.0) is None
    assert rows_per_day(1, 0.0, 5.0) is None
    assert rate_for(5, 10_000) == 5e-4
    assert rate_for(5, 2) == 1.0
    for alarms, rows in ((0, 10), (-1, 10), (5, 0), (float("nan"), 10)):
        with pytest.raises(UsageError):
            rate_for(alarms, rows)
