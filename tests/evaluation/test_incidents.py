"""Incidents: against a naive grouping, streaming, bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.errors import UsageError
from seqmlm.evaluation.incidents import Alarm, Incident, Incidents, rate_for, rows_per_day


def alarm(number: int, place: str, start: float, end: float, p_value: float = 0.01) -> Alarm:
    return Alarm(id=f"w{number}", place=place, start=start, end=end, p_value=p_value)


def incidents(alarms: list[Alarm], gap: float = 0.0) -> list[Incident]:
    group = Incidents(gap)
    return [*(over for one in alarms for over in group.add(one)), *group.close()]


def naive(alarms: list[Alarm], gap: float) -> set[tuple[str, float, float, int]]:
    """Join whatever meets until nothing changes."""
    groups = [[one] for one in alarms]

    def meet(a: Alarm, b: Alarm) -> bool:
        return a.place == b.place and a.start <= b.end + gap and b.start <= a.end + gap

    changed = True
    while changed:
        changed = False
        for i, first in enumerate(groups):
            for second in groups[i + 1 :]:
                if any(meet(a, b) for a in first for b in second):
                    first += second
                    groups.remove(second)
                    changed = True
                    break
    return {(g[0].place, min(a.start for a in g), max(a.end for a in g), len(g)) for g in groups}


spans = st.lists(st.tuples(st.sampled_from("uv"), st.integers(0, 60), st.integers(0, 9)), max_size=25)


@given(spans, st.integers(0, 5))
def test_windows_in_order_are_grouped_as_the_naive_way_does(
    rows: list[tuple[str, int, int]], gap: int
) -> None:
    alarms = [
        alarm(n, place, start, start + size)
        for n, (place, start, size) in enumerate(sorted(rows, key=lambda r: r[1]))
    ]
    found = incidents(alarms, gap)
    assert len(found) == len({(one.place, one.start) for one in found})
    assert {(one.place, one.start, one.end, one.rows) for one in found} == naive(alarms, gap)


moments = st.lists(st.tuples(st.sampled_from("uv"), st.integers(0, 500), st.integers(0, 30)), max_size=25)


@given(moments, st.booleans())
def test_alarms_that_follow_each_other_soon_are_one_incident(
    rows: list[tuple[str, int, int]], timed: bool
) -> None:
    """By their own times, or else by when they were raised; their extents never meet."""
    given_alarms = [
        Alarm(
            id=f"w{n}",
            place=place,
            start=10 * n,
            end=10 * n + 1,
            p_value=0.01,
            times=(moment, moment + size) if timed else None,
            seen=0.0 if timed else moment,
        )
        for n, (place, moment, size) in enumerate(sorted(rows, key=lambda row: row[1]))
    ]
    group = Incidents(quiet=20)
    found = [*(over for one in given_alarms for over in group.add(one)), *group.close()]
    spans = [
        alarm(0, row.place, *(row.times or (row.seen, row.seen))) for row in given_alarms
    ]  # 20 seconds apart is not soon
    assert sorted((one.place, one.rows) for one in found) == sorted(
        (place, rows) for place, _, _, rows in naive(spans, 19.5)
    )
    if timed:
        assert {(one.place, *(one.times or ())) for one in found} == {
            (place, start, end) for place, start, end, _ in naive(spans, 19.5)
        }


def test_an_incident_that_is_held_goes_on() -> None:
    group = Incidents(quiet=5)
    group.hold(Incident(place="a", start=0, end=4, rows=3, p_value=0.5, worst="w", seen=100))
    assert group.add(Alarm(id="x", place="a", start=50, end=54, p_value=0.9, seen=104)) == []
    [over] = group.add(Alarm(id="y", place="a", start=90, end=94, p_value=0.9, seen=109))
    assert (over.start, over.end, over.rows, over.p_value, over.seen) == (0, 54, 4, 0.5, 104)


def test_the_worst_row_speaks_for_the_incident() -> None:
    rows = [
        alarm(0, "a", 0, 4, 0.02),
        alarm(1, "a", 2, 6, 0.001),
        alarm(2, "a", 6, 8, 0.001),
        alarm(3, "a", 9, 9),
    ]
    assert incidents(rows) == [
        Incident(place="a", start=0, end=8, rows=3, p_value=0.001, worst="w1"),
        Incident(place="a", start=9, end=9, rows=1, p_value=0.01, worst="w3"),
    ]


def test_a_stream_closes_what_is_over_and_holds_few_places() -> None:
    group = Incidents(gap=2, places=2)
    assert group.add(alarm(0, "a", 0, 5)) == []
    [over] = group.add(alarm(1, "a", 8, 9))
    assert over.end == 5
    assert [one.end for one in group.close()] == [9]
    for number, place in enumerate("bcd"):
        closed = group.add(alarm(number, place, 0, 1))
    assert [one.place for one in closed] == ["b"]
    assert [one.place for one in group.close()] == ["c", "d"]
    assert group.close() == []


def test_alarms_a_day_become_a_rate() -> None:
    assert rows_per_day(86_401, 0.0, 86_400.0) == 86_400.0
    assert rows_per_day(2, 5.0, 5.0) is None
    assert rows_per_day(1, 0.0, 5.0) is None
    assert rate_for(5, 10_000) == 5e-4
    assert rate_for(5, 2) == 1.0
    for alarms, rows in ((0, 10), (-1, 10), (5, 0), (float("nan"), 10)):
        with pytest.raises(UsageError):
            rate_for(alarms, rows)


@pytest.mark.parametrize(("gap", "places"), [(-1, 5), (0, 0)])
def test_groupings_that_make_no_sense_are_refused(gap: float, places: int) -> None:
    with pytest.raises(UsageError):
        Incidents(gap, places=places)
    with pytest.raises(UsageError):
        Incidents(quiet=-1.0)
