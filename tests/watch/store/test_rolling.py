"""Rolling calibrations in the database: kept with the rows, and which rows are of real incidents."""

from __future__ import annotations

from functools import partial

from registered import commit

from seqmlm.watch.grouping import Grouping
from seqmlm.watch.store import Change, Figures, Incident, RollingState, Streams


def incident(row: int) -> Incident:
    return Grouping(model="app").begun(row, {"source": "a.log", "line": 1, "p_value": 0.01}, 0.0)


def figures(*numbers: int, rows: dict[int, int] | None = None) -> list[Figures]:
    return [Figures(number=n, row=(rows or {}).get(n), figures=bytes([n] * 8)) for n in numbers]


def change(*rows: Figures, dropped: tuple[int, ...] = (), anew: bool = False) -> RollingState:
    return RollingState(state={"number": len(rows)}, rows=rows, dropped=dropped, anew=anew)


def test_rows_come_and_go_in_one_commit_however_often(registry: Streams) -> None:
    stream, other = (registry.begin_stream(name, {}) for name in ("/a.jsonl", "/b.jsonl"))
    assert registry.rolling(stream) is None
    commit(registry, other, calibration=change(*figures(1, 2), anew=True))
    for _ in range(2):
        commit(registry, stream, calibration=change(*figures(1, 2, 3), anew=True))
    keep = partial(commit, registry, stream, calibration=change(*figures(4, 5), dropped=(1, 2, 4)))
    keep()
    keep()  # the connection was lost, and it is not known whether that was done
    assert registry.rolling(stream) == RollingState(state={"number": 2}, rows=figures(3, 5))
    commit(registry, stream, calibration=change(anew=True))  # another calibration begins
    assert registry.rolling(stream) == RollingState(state={"number": 0}, rows=[])
    kept = registry.rolling(other)
    assert kept.rows == figures(1, 2)


def test_real_are_rows_of_incidents_that_were_acknowledged_as_faults(registry: Streams) -> None:
    stream = registry.begin_stream("/a.jsonl", {})
    (first,) = commit(
        registry,
        stream,
        Change(kind="opened", incident=incident(7)),
        rows=[(7, True, '{"id": 7}')],
        belongs={7: 7},
        calibration=change(*figures(1, 2, 3, rows={2: 7}), anew=True),
    )
    number = first.incident.id
    assert registry.faults(stream) == set()
    registry.mark_incident(number, state="acknowledged")
    assert registry.faults(stream) == {2}
    commit(registry, stream, Change(kind="resolved", incident=incident(7)))
    assert registry.incident(number).state == "resolved"
    assert registry.faults(stream) == {2}  # it was real, also when it is over
    registry.mark_incident(number, muted=True)
    assert registry.faults(stream) == {2}  # nobody wants to hear of it, which does not make it normal
    registry.mark_incident(number, muted=False)
    registry.mark_incident(number, state="open")
    assert registry.faults(stream) == set()
    registry.mark_incident(number, state="acknowledged")  # in the morning after
    assert registry.incident(number).state == "resolved"
    assert registry.faults(stream) == {2}


def test_rows_of_a_false_alarm_are_normal_until_somebody_says_it_was_a_fault(registry: Streams) -> None:
    stream = registry.begin_stream("/a.jsonl", {})
    opened = [Change(kind="opened", incident=incident(row)) for row in (7, 8)]
    kept = change(*figures(1, 2, 3, rows={1: 7, 2: 8}), anew=True)
    told = commit(registry, stream, *opened, belongs={7: 7, 8: 8}, calibration=kept)
    commit(registry, stream, rows=[(row, True, f'{{"id": {row}}}') for row in (7, 8)], belongs={7: 7, 8: 8})
    first, other = (one.incident.id for one in told)
    for number in (first, other):
        registry.mark_incident(number, state="acknowledged")
    assert registry.faults(stream) == {1, 2}
    said = registry.mark_incident(first, state="acknowledged", verdict="normal", muted=True)
    assert (said.verdict, said.muted, said.silences, said.told_state) == (
        *("normal", True, True),
        "acknowledged, normal",
    )
    assert registry.faults(stream) == {2}
    commit(registry, stream, Change(kind="resolved", incident=incident(7)))
    assert registry.incident(first).told_state == "resolved, normal"
    assert registry.mark_incident(first, muted=False).verdict == "normal"  # what it was is another question
    registry.mark_incident(first, muted=True)
    again = registry.mark_incident(first, state="acknowledged")
    assert (again.verdict, again.muted) == ("fault", False)
    assert registry.faults(stream) == {1, 2}
    # Somebody muted a fault before it was taken for one; that is not taken back with it.
    registry.mark_incident(other, muted=True)
    assert registry.mark_incident(other, state="open").muted
