"""Streams as they stand, and what can be pruned of them: nothing that is still needed, whatever the times."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from receiver import incident
from registered import commit
from sqlalchemy import update

from seqmlm.errors import StateError
from seqmlm.watch import store, tables
from seqmlm.watch.store import Change, Notice, Pruned, Streams
from seqmlm.workspace import Workspace

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


def change(row: int, days: int, *, over: bool = True) -> Change:
    """What opened, or ended, an incident so many days ago."""
    at = NOW - days * DAY
    ended = {"state": "resolved", "resolved": at} if over else {}
    of = incident(id=0, row=row, opened=at, updated=at, **ended)
    return Change(kind="resolved" if over else "opened", incident=of)


@dataclass
class Stream:
    """A stream with a row a day for twenty days; all but the last few are written."""

    registry: Streams
    unwritten: int = 2
    name: str = "/out.jsonl"

    def __post_init__(self) -> None:
        self.id = self.registry.begin_stream(self.name, {"files": ["/logs/*.log"]})

    def fill(
        self, owners: dict[int, int] | None = None, changes: Sequence[Change] = (), told: bool = False
    ) -> None:
        def notify(done: Sequence[Change]) -> list[Notice]:
            ids = [one.incident.id for one in done if told]
            given = {"sink": "hook", "kind": "opened", "body": {}}
            return [Notice(key=f"{self.id}-{n}", incident=n, **given) for n in ids]

        rows = [(n, n % 2 == 0, f'{{"n": {n}}}') for n in range(1, 21)]
        more = {"written": 20 - self.unwritten, "belongs": owners or {}, "notify": notify}
        commit(self.registry, self.id, *changes, rows=rows, **more)
        kind = tables.StreamRow
        with self.registry.writing() as session:
            for number in range(1, 21):
                row = (kind.stream_id == self.id, kind.number == number)
                at = NOW - (20 - number) * DAY
                session.execute(update(kind).where(*row).values(created=at))

    def numbers(self) -> list[int]:
        return [number for number, _ in self.registry.stream_rows(self.id, 0, 999)]

    def incidents(self) -> list[int]:
        return [one.row for one in self.registry.incidents(stream=self.id)]


def test_old_rows_go_and_the_rest_stays(registry: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, other = Stream(registry), Stream(registry, name="/other.jsonl")
    stream.fill()
    other.fill()
    before = NOW - 9.5 * DAY
    would = registry.prune(stream.id, before, pretend=True)
    assert (would, stream.numbers()) == (Pruned(rows=10, through=10), list(range(1, 21)))
    monkeypatch.setattr(store, "STEP", 3)  # in several transactions
    assert registry.prune(stream.id, before) == would
    assert stream.numbers() == list(range(11, 21))
    assert registry.prune(stream.id, before) == Pruned()
    assert registry.streams()[0].pruned == would
    assert other.numbers() == list(range(1, 21))


def test_what_the_output_does_not_have_and_the_last_row_stay(registry: Streams) -> None:
    behind, whole = Stream(registry), Stream(registry, unwritten=0, name="/whole.jsonl")
    behind.fill()
    whole.fill()
    for stream in (behind, whole):
        registry.prune(stream.id, NOW + DAY)
    assert (behind.numbers(), whole.numbers()) == ([19, 20], [20])
    entry = registry.streams()[1]
    assert (entry.last, entry.pruned) == (20, Pruned(rows=19, through=19))
    assert entry.judged is not None
    assert abs(entry.judged - NOW) < timedelta(seconds=1)


def test_incidents_that_are_not_over_keep_their_rows_and_what_is_muted_stays_silent(registry: Streams):
    stream = Stream(registry)
    given = [
        change(1, 19),
        change(3, 16, over=False),
        change(5, 15, over=False),  # acknowledged
        change(7, 13),  # muted
        change(9, 2),  # it went on until lately
    ]
    stream.fill({1: 1, 2: 1, 3: 3, 4: 3, 5: 5, 7: 7, 9: 9, 18: 9}, given)
    by_row = {one.row: one.id for one in registry.incidents(stream=stream.id)}
    registry.mark_incident(by_row[5], state="acknowledged")
    registry.mark_incident(by_row[7], muted=True)
    found = registry.prune(stream.id, NOW - 9.5 * DAY)
    assert (found.rows, found.incidents) == (6, 1)
    assert stream.incidents() == [3, 5, 7, 9]
    assert stream.numbers() == [3, 4, 5, 9, *range(11, 21)]
    assert registry.streams()[0].pruned == Pruned(rows=6, through=10, incidents=1)


def test_what_a_webhook_is_still_to_be_told_stays(registry: Streams) -> None:
    stream = Stream(registry)
    stream.fill(changes=[change(1, 19), change(3, 16)], told=True)
    queue = registry.notices(stream.id)
    first, _ = queue.due("hook", NOW + DAY)
    queue.settle(first, done=NOW)
    assert registry.prune(stream.id, NOW - DAY, pretend=True).incidents == 1
    assert registry.prune(stream.id, NOW - DAY).incidents == 1
    assert stream.incidents() == [3]
    assert queue.counts() == {"hook": {"waiting": 1, "delivered": 0, "given_up": 0}}
    (second,) = queue.due("hook", NOW + DAY)
    queue.settle(second, done=NOW, error="403")
    assert registry.prune(stream.id, NOW - DAY).incidents == 1
    assert (stream.incidents(), queue.counts()) == ([], {})


def test_a_commit_goes_on_behind_what_was_pruned(registry: Streams) -> None:
    stream = Stream(registry, unwritten=0)
    stream.fill()
    registry.prune(stream.id, NOW + DAY)
    entry = registry.streams()[0]
    commit(registry, stream.id, rows=[(entry.last + 1, False, "{}")], written=entry.last)
    assert stream.numbers() == [20, 21]
    assert registry.streams()[0].pruned == entry.pruned  # a commit leaves it as it is


def test_rows_since_a_time_come_in_order_and_in_pieces(registry: Streams, monkeypatch: pytest.MonkeyPatch):
    stream = Stream(registry)
    stream.fill()
    for step in (1, 4, 100):
        monkeypatch.setattr(store, "STEP", step)
        found = list(registry.rows_since(stream.id, NOW - 3.5 * DAY))
        assert [(alarm, line) for _, alarm, line in found] == [
            (n % 2 == 0, f'{{"n": {n}}}') for n in range(17, 21)
        ]
        assert abs(found[-1][0] - NOW) < timedelta(seconds=1)
    assert list(registry.rows_since(stream.id, NOW + DAY)) == []


def test_a_stream_says_when_it_was_alive(registry: Streams) -> None:
    stream = Stream(registry)
    (begun,) = registry.streams()
    assert abs(begun.alive - datetime.now(UTC)) < timedelta(minutes=1)
    assert (begun.judged, begun.last) == (None, 0)
    commit(registry, stream.id)
    assert registry.streams()[0].alive > begun.alive


def _state(number: int, offset: int, *, done: bool = False) -> dict[str, object]:
    return {"number": number, "done": done, "offset": offset, "held": {"a": [1, 2]}}


def test_a_stream_is_kept_whole_or_not_at_all(registry: Streams) -> None:
    stream = registry.begin_stream("/out.jsonl", {"fpr": 0.01})
    assert registry.stream("/other.jsonl") is None
    row, more = (1, False, '{"id": "a"}'), (2, True, '{"id": "b", "alarm": true}')
    commit(registry, stream, files=[_state(1, 10), _state(2, 5)], rows=[row], counts={"rows": 1})
    last: dict[str, Any] = {"counts": {"rows": 2}, "mark": {"bytes": 12, "tail": 7}, "written": 1}
    commit(registry, stream, files=[_state(1, 20, done=True)], rows=[more], **last)
    other = (2, True, "another second row")
    for again in (more, other):  # repeated, or impossible: nothing of this is kept
        with nullcontext() if again is more else pytest.raises(StateError):
            commit(registry, stream, files=[_state(2, 99)], written=2, rows=[again])
    found = registry.stream("/out.jsonl")
    assert found.request == {"fpr": 0.01}
    assert {name: getattr(found, name) for name in last} == last
    assert found.files == (_state(1, 20, done=True), _state(2, 5))
    assert registry.stream_rows(stream, 0, 9) == [(1, row[2]), (2, more[2])]
    assert registry.stream_rows(stream, 1, 9) == [(2, more[2])]
    assert registry.stream_rows(stream, 0, 1) == [(1, row[2])]


def test_a_database_with_sensitive_rows_is_its_owners(registry: Streams, home: Workspace) -> None:
    registry.begin_stream("/out.jsonl", {})
    registry.protect({"sensitive": True})
    if home.database_url.startswith("sqlite"):
        file = Path(home.database_url.removeprefix("sqlite:///"))
        assert {one.stat().st_mode & 0o077 for one in file.parent.glob(f"{file.name}*")} == {0}
