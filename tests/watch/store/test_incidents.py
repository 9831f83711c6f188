"""Incidents in the database: written with their rows, found again, and each side's columns its own."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from receiver import START
from receiver import incident as told_incident
from registered import commit

from seqmlm.errors import StateError
from seqmlm.watch.store import Change, Incident, Streams

NOW = START


def incident(row: int, **given: Any) -> Incident:
    hostile = {"new": ("a=1", "b=\x1b[2J"), "likes": ("x",), "new_lines": 2}
    return told_incident(**{"id": 0, "row": row, **hostile, **given})


def test_an_incident_comes_back_as_it_was_given_however_often(registry: Streams) -> None:
    stream = registry.begin_stream("/out.jsonl", {})
    opened = Change(kind="opened", incident=incident(1))
    keep = partial(commit, registry, stream, opened, rows=[(1, True, '{"id": 1}')], belongs={1: 1})
    (first,) = keep()
    assert keep() == [first]  # the connection was lost, and it is not known whether that was done
    assert first.incident == incident(1, id=first.incident.id, output="/out.jsonl", stream_id=stream)
    assert registry.incidents() == [first.incident]
    assert registry.incident_rows(first.incident, 9) == (1, ['{"id": 1}'])
    assert registry.incident_rows(first.incident, 0) == (1, [])


def test_a_stream_and_a_person_do_not_overwrite_each_other(registry: Streams) -> None:
    stream = registry.begin_stream("/out.jsonl", {})
    (first,) = commit(registry, stream, Change(kind="opened", incident=incident(1)))
    number = first.incident.id
    registry.mark_incident(number, state="acknowledged", muted=True, note="mine")
    (second,) = commit(registry, stream, Change(kind="updated", incident=incident(1, rows=7, what="more")))
    kept = second.incident
    said = (kept.id, kept.state, kept.muted, kept.note, kept.rows)
    assert said == (number, "acknowledged", True, "mine", 7)
    over = incident(1, state="resolved", resolved=NOW + timedelta(minutes=5))
    (third,) = commit(registry, stream, Change(kind="resolved", incident=over))
    assert (third.incident.state, third.incident.note) == ("resolved", "mine")
    assert third.incident.resolved == NOW + timedelta(minutes=5)
    assert registry.mark_incident(number, state="open", note="x").state == "resolved"
    with pytest.raises(StateError, match="there is no incident 99"):
        registry.mark_incident(99, muted=True)


def test_incidents_are_found_by_what_is_asked(registry: Streams) -> None:
    streams = [registry.begin_stream(f"/{name}.jsonl", {}) for name in "ab"]
    found = []
    for stream in streams:
        for row in range(1, 5):
            at = NOW + timedelta(hours=row)
            change = Change(kind="opened", incident=incident(row, updated=at, opened=NOW))
            found += commit(registry, stream, change)
    a, b = [one.incident.id for one in found[:4]], [one.incident.id for one in found[4:]]
    for number in (a[1], a[2], b[0]):
        (one,) = registry.incidents(id=number)
        commit(registry, one.stream_id, Change(kind="resolved", incident=one))
    registry.mark_incident(a[2], muted=True)
    registry.mark_incident(a[3], state="acknowledged")

    def ids(**asked: Any) -> list[int]:
        return [one.id for one in registry.incidents(**asked)]

    assert ids() == [*a, *b]
    assert ids(state="open") == [a[0], *b[1:]]
    assert ids(state="acknowledged") == [a[3]]
    assert ids(output="/a.jsonl", standing=True) == [a[0], *a[2:]]
    assert ids(stream=streams[1], since=NOW + timedelta(hours=3)) == b[2:]
    assert ids(output="/other.jsonl") == []
