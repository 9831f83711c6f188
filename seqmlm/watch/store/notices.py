"""The queue of what webhooks are to be told: filled with the rows of a turn, emptied as they take it.

A notice is there exactly if the change of the incident that it tells of is: both are of one transaction. It
waits until the webhook has it, whatever ends the process meanwhile, so each is sent at least once; its key is
the same each time. Notices of one incident keep their order; those of others do not wait for them. Of an
incident that changes often only the newest update waits: the trade-off is that not every state of it is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import and_, exists, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from seqmlm.registry import Registry, tables

UPDATES = timedelta(seconds=30)
"""An incident that goes on is told of once in this time."""

LONGEST = timedelta(seconds=300)
"""The longest time between two attempts to send a notice."""

_SOME = 100  # notices that are looked up at a time


@dataclass(frozen=True, kw_only=True)
class Notice:
    """What one webhook is to be told.

    Args:
        sink: name of the webhook.
        key: of this notice, up to 64 characters, unlike every other.
        incident: its number.
        kind: "opened", "updated" or "resolved".
        body: JSON can hold it.
    """

    sink: str
    key: str
    incident: int
    kind: str
    body: Any


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A notice that is due.

    Args:
        id: of its row.
        attempts: that have failed.
        notice: what is to be sent.
    """

    id: int
    attempts: int
    notice: Notice


def put(session: Session, stream: int, notices: Sequence[Notice], now: datetime) -> None:
    """Add notices to the queue, within the transaction of what they tell of; those in it are passed over."""
    kind = tables.Notice
    for one in notices:
        if session.scalars(select(kind.id).where(kind.key == one.key)).first() is not None:
            continue
        due = now + (UPDATES if one.kind == "updated" else timedelta())
        same = select(kind).where(
            kind.stream_id == stream,
            kind.sink == one.sink,
            kind.done.is_(None),
            kind.incident == one.incident,
            kind.kind == "updated",
        )
        # Locked, where rows can be: it must not be confirmed between this and the change of its key.
        waiting = None if one.kind == "opened" else session.scalars(same.limit(1).with_for_update()).first()
        if waiting is not None:  # it is out of date
            waiting.key, waiting.body, waiting.kind = one.key, one.body, one.kind
            waiting.due = waiting.due if one.kind == "updated" else due
            continue
        session.add(
            tables.Notice(
                stream_id=stream,
                sink=one.sink,
                key=one.key,
                incident=one.incident,
                kind=one.kind,
                body=one.body,
                attempts=0,
                due=due,
                created=now,
            )
        )
        session.flush()  # ids are in the order of the changes


class NoticeQueue:
    """The notices of one stream, for whoever sends them; any thread may have its own.

    Args:
        registry: of the database.
        stream: its id.

    Raises:
        StateError: from each method, where the database cannot be used.
    """

    def __init__(self, registry: Registry, stream: int) -> None:
        self._registry, self._stream = registry, stream

    def due(self, sink: str, now: datetime) -> list[Waiting]:
        """Notices of a webhook that may be sent now, at most one of each incident.

        Those come first that have failed least, the oldest of them first: one that always fails is not what
        a webhook is always asked first.
        """
        kind, earlier = tables.Notice, aliased(tables.Notice)
        before = exists().where(
            earlier.stream_id == self._stream,
            earlier.sink == sink,
            earlier.done.is_(None),
            earlier.incident == kind.incident,
            earlier.id < kind.id,
        )
        # A time that no attempt was ever put off to: the clock went back since.
        reached = or_(kind.due <= now, kind.due > now + 2 * LONGEST)
        query = select(kind).where(*self._waiting(sink), reached, ~before)
        query = query.order_by(kind.attempts, kind.id).limit(_SOME)
        with self._registry.reading() as session:
            return [
                Waiting(
                    id=row.id,
                    attempts=row.attempts,
                    notice=Notice(
                        sink=row.sink, key=row.key, incident=row.incident, kind=row.kind, body=row.body
                    ),
                )
                for row in session.scalars(query)
            ]

    def delivered(self, one: Waiting, now: datetime) -> None:
        """The webhook has it."""
        self._settle(one, done=now, error=None)

    def give_up(self, one: Waiting, error: str, now: datetime) -> None:
        """It will never be sent again, and stays to be looked at."""
        self._settle(one, done=now, error=error)

    def put_off(self, one: Waiting, error: str, until: datetime) -> None:
        """The webhook could not be reached: try again."""
        self._settle(one, due=until, error=error)

    def waiting(self, sink: str) -> int:
        """Notices that a webhook has yet to get."""
        with self._registry.reading() as session:
            query = select(func.count()).select_from(tables.Notice).where(*self._waiting(sink))
            return session.scalar(query) or 0

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Of each webhook of this stream, also of earlier processes: "waiting", "delivered", "given_up"."""
        kind = tables.Notice
        query = select(kind.sink, kind.done.is_not(None), kind.error.is_not(None), func.count())
        query = query.where(kind.stream_id == self._stream).group_by(
            kind.sink, kind.done.is_not(None), kind.error.is_not(None)
        )
        found: dict[str, dict[str, int]] = {}
        with self._registry.reading() as session:
            for sink, done, failed, number in session.execute(query):
                of = found.setdefault(sink, {"waiting": 0, "delivered": 0, "given_up": 0})
                of["waiting" if not done else "given_up" if failed else "delivered"] += number
        return dict(sorted(found.items()))

    def _waiting(self, sink: str) -> tuple[Any, ...]:
        kind = tables.Notice
        return kind.stream_id == self._stream, kind.sink == sink, kind.done.is_(None)

    def _settle(self, one: Waiting, **values: Any) -> None:
        """Change its row, if that is still this notice: it may have been replaced while it was sent."""
        kind = tables.Notice
        mine = and_(kind.id == one.id, kind.key == one.notice.key)
        with self._registry.writing() as session:
            session.execute(update(kind).where(mine).values(attempts=one.attempts + 1, **values))


def now() -> datetime:
    """The time, as the queue has it."""
    return datetime.now(UTC)
