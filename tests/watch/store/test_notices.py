"""The queue of notices: in the transaction of what they tell of, in order, until they are taken."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from receiver import incident
from registered import Clocked, commit

from seqmlm.errors import StateError
from seqmlm.watch.store import LONGEST, UPDATES, Change, Incident, Notice, Streams


def _incident(row: int = 1, rows: int = 1) -> Incident:
    return incident(id=0, row=row, rows=rows)


def _told(changes: Sequence[Change]) -> list[Notice]:
    """One for each change, with a key of its own."""
    return [
        Notice(
            sink="hook",
            key=f"{one.incident.stream_id}-{one.incident.row}-{one.kind}-{one.incident.rows}",
            incident=one.incident.id,
            kind=one.kind,
            body=[one.kind, one.incident.rows],
        )
        for one in changes
    ]


class Queue(Clocked):
    def change(
        self, *changes: tuple[str, Incident], notify: Any = _told, again: bool = False
    ) -> list[Change]:
        self.row += not again
        given = [Change(kind=kind, incident=one) for kind, one in changes]  # type: ignore[arg-type]
        return self.keep(*given, notify=notify)

    def due(self) -> list[Notice]:
        return self.queue.due("hook", self.now)

    def take(self) -> list[Any]:
        """Deliver all that is due, until nothing is."""
        found = []
        while some := self.due():
            for one in some:
                self.queue.settle(one, done=self.now)
                found.append(one.body)
        return found


@pytest.fixture
def queue(registry: Streams, monkeypatch: pytest.MonkeyPatch) -> Queue:
    return Queue(registry, monkeypatch)


def test_a_notice_comes_with_the_incident_and_stays_until_it_is_taken(queue: Queue) -> None:
    (kept,) = queue.change(("opened", _incident()))
    (one,) = queue.due()
    told = _told([kept])[0]
    assert (one.key, one.kind, one.body) == (told.key, told.kind, told.body)
    assert one.incident == kept.incident.id > 0
    assert queue.queue.due("another hook", queue.now) == []
    assert queue.queue.counts() == {"hook": {"waiting": 1, "delivered": 0, "given_up": 0}}
    queue.queue.settle(one, done=queue.now)
    assert queue.due() == []
    assert queue.queue.counts() == {"hook": {"waiting": 0, "delivered": 1, "given_up": 0}}


def test_neither_is_there_if_the_transaction_is_not(queue: Queue) -> None:
    def fails(changes: Sequence[Change]) -> list[Notice]:
        raise StateError("lost")

    with pytest.raises(StateError, match="lost"):
        queue.change(("opened", _incident()), notify=fails)
    assert queue.due() == []
    assert queue.registry.incidents() == []


@pytest.mark.parametrize("rows", [True, False])
def test_a_repeated_commit_tells_nothing_twice(queue: Queue, rows: bool) -> None:
    queue.change(("opened", _incident()))
    if rows:
        queue.change(("opened", _incident()), again=True)
    else:  # nothing else of the commit says that it was done
        again = Change(kind="opened", incident=_incident())
        commit(queue.registry, queue.stream, again, notify=_told)
    assert queue.take() == [["opened", 1]]


def test_an_incident_that_goes_on_is_told_of_once_in_a_time_and_as_it_is_then(queue: Queue) -> None:
    queue.change(("opened", _incident()))
    for rows in (2, 3, 4):
        queue.change(("updated", _incident(rows=rows)))
    assert queue.take() == [["opened", 1]]
    queue.now += UPDATES - timedelta(seconds=1)
    assert queue.take() == []
    queue.now += timedelta(seconds=1)
    assert queue.take() == [["updated", 4]]


def test_the_end_takes_the_place_of_an_update_and_is_told_at_once(queue: Queue) -> None:
    queue.change(("opened", _incident()), ("opened", _incident(row=2)))
    queue.change(("updated", _incident(rows=2)))
    queue.change(("resolved", _incident(rows=2)))
    assert queue.take() == [["opened", 1], ["opened", 1], ["resolved", 2]]
    queue.now += UPDATES
    assert queue.take() == []


def test_order_holds_within_an_incident_and_holds_nobody_else_up(queue: Queue) -> None:
    queue.change(("opened", _incident()))
    queue.change(("resolved", _incident()), ("opened", _incident(row=2)))
    first, other = queue.due()
    assert [first.body, other.body] == [["opened", 1], ["opened", 1]]
    queue.queue.settle(first, error="down", due=queue.now + timedelta(seconds=8))
    assert [one.id for one in queue.due()] == [other.id]  # not "resolved" of the first
    queue.now += timedelta(seconds=8)
    again = queue.due()[-1]  # one that failed comes behind those that did not
    assert (again.id, again.attempts) == (first.id, 1)
    queue.queue.settle(again, error="answers 400 Bad Request", done=queue.now)
    assert queue.take() == [["resolved", 1], ["opened", 1]]
    assert queue.queue.counts()["hook"] == {"waiting": 0, "delivered": 2, "given_up": 1}


def test_a_clock_that_goes_back_delays_nothing_for_long(queue: Queue) -> None:
    queue.change(("opened", _incident()))
    (one,) = queue.due()
    queue.queue.settle(one, error="down", due=queue.now + LONGEST)
    assert queue.due() == []
    queue.now -= timedelta(days=400)
    assert [again.id for again in queue.due()] == [one.id]


def test_streams_do_not_mix(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.change(("opened", _incident()))
    other = Queue(queue.registry, monkeypatch, "other.jsonl")
    assert other.due() == []
    assert other.queue.counts() == {}


@pytest.mark.parametrize("seed", range(5))
def test_whatever_fails_every_incident_is_told_of_in_order_and_to_its_end(queue: Queue, seed: int) -> None:
    chance = random.Random(seed)
    happened: dict[int, list[Any]] = {row: [] for row in range(1, 5)}
    taken: dict[int, list[Any]] = {row: [] for row in range(1, 5)}
    of: dict[int, int] = {}

    def some(most: int) -> None:
        for one in queue.due()[:most]:
            if chance.random() < 0.4:
                queue.queue.settle(
                    one, error="down", due=queue.now + timedelta(seconds=chance.randrange(1, 90))
                )
            else:
                taken[of[one.incident]].append(one.body)
                if chance.random() < 0.8:  # else it dies before that is noted, and sends it again
                    queue.queue.settle(one, done=queue.now)

    for step in range(40):
        row = chance.randrange(1, 5)
        story = happened[row]
        if story and story[-1][0] == "resolved":
            continue
        kind = "opened" if not story else chance.choice(["updated", "updated", "resolved"])
        story.append([kind, step])
        (kept,) = queue.change((kind, _incident(row=row, rows=step)))
        of[kept.incident.id] = row
        queue.now += timedelta(seconds=chance.randrange(40))
        some(chance.randrange(3))
    for _ in range(400):
        queue.now += timedelta(seconds=30)
        some(9)
    assert queue.queue.counts()["hook"]["waiting"] == 0
    for row, story in happened.items():
        once = [one for at, one in enumerate(taken[row]) if one not in taken[row][:at]]
        assert once == [one for one in story if one in once], "out of order"
        assert once[:1] == story[:1]
        assert once[-1:] == story[-1:]
