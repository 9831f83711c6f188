"""Incidents: what the alarms of a followed stream come to, and what a person has said of each.

They are kept in the transaction of the rows that they rest on (`Streams.commit_stream`), so that a kill
neither loses nor doubles one. What happened is the stream's to say, what it means to a person (acknowledged,
muted, a note) that person's: neither overwrites the other's columns, so a command may run while the
stream does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from seqmlm.registry import tables
from seqmlm.registry.database import utc

State = Literal["open", "acknowledged", "resolved"]

Verdict = Literal["fault", "normal"]

STATES: tuple[State, ...] = ("open", "acknowledged", "resolved")


@dataclass(frozen=True, kw_only=True)
class Incident:
    """Alarms of one place that belong together.

    Args:
        id: for people; 0 before it is kept.
        stream_id, output: of the stream, and the file its rows go to.
        row: number of the row that opened it; with the stream, it names the incident.
        model: reference of the model that judged.
        place: alarms of one place may join; the file.
        state: "open", "acknowledged" by a person, or "resolved": over by the clock.
        muted: its likes make no incident.
        verdict: what the person took it for: a "fault", or a false alarm: what it shows is "normal"; None
            where nobody has said. It stays when the incident is over.
        note: of the person.
        title: a sentence that says what broke.
        what: the same without counts and place.
        reason: of its most unusual row.
        template: of the line that made that row unusual; "" where that is not known or not told.
        new: what no training line had, at most `TOLD`.
        expected: what was expected in place of that line, the most probable first.
        first_line, last_line: where it lies, as "file:line".
        first_time, last_time: what the lines say, ISO 8601; None where they say nothing.
        severity: the highest that its rows name, as the lines write it; None where they say nothing.
        host, service: that most lines of its most unusual row name, "web1 and 2 others"; None likewise.
        rows: that alarmed.
        lines, new_lines: in these rows, and how many of them training never had.
        p_value: the smallest of the rows.
        start, end: first line, and the one behind the last, in its file.
        likes: what its rows are recognised by, at most `LIKES`.
        opened, updated: by the clock, when its first and last row were judged; UTC.
        resolved: when it was over; None while it is not.
    """

    id: int = 0
    stream_id: int
    output: str = ""
    row: int
    model: str
    place: str
    state: State = "open"
    muted: bool = False
    verdict: Verdict | None = None
    note: str = ""
    title: str
    what: str
    reason: str
    template: str
    new: tuple[str, ...]
    expected: tuple[str, ...] = ()
    first_line: str
    last_line: str
    first_time: str | None
    last_time: str | None
    severity: str | None = None
    host: str | None = None
    service: str | None = None
    rows: int
    lines: int
    new_lines: int = 0
    p_value: float
    start: int
    end: int
    likes: tuple[str, ...] = ()
    opened: datetime
    updated: datetime
    resolved: datetime | None = None

    @property
    def told_state(self) -> str:
        """The state for people, with what a person has said: "resolved, normal", "open, muted"."""
        said = "normal" if self.verdict == "normal" else "muted" if self.muted else ""
        return f"{self.state}, {said}" if said else self.state

    @property
    def silences(self) -> bool:
        """Whether alarms like its own make no noise: for good, or while it goes on and somebody knows."""
        return self.muted or self.state == "acknowledged"


TOLD, LIKES = 8, 64
"""How much is kept of an incident that goes on and on."""

Kind = Literal["opened", "updated", "resolved"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a commit did to an incident."""

    kind: Kind
    incident: Incident


# Columns that a person decides, beside `state`; a stream never writes them.
_PERSONS = ("muted", "verdict", "note")
_KEYS = ("id", "stream_id", "output", "row")
_TUPLES = ("new", "expected", "likes")


def keep(session: Session, stream: tables.Stream, changes: Sequence[Change]) -> list[Change]:
    """Write what a stream did to its incidents; doing it again changes nothing.

    Returns:
        The changes with ids, and with what a person has said meanwhile.
    """
    kept = []
    for change in changes:
        given, kind = change.incident, tables.Incident
        query = select(kind).where(kind.stream_id == stream.id, kind.row == given.row)
        row = session.scalars(query).one_or_none()
        if row is None:
            row = kind(stream_id=stream.id, row=given.row, state="open", muted=False, note="")
            session.add(row)
        if change.kind == "resolved":
            row.state = "resolved"
        for one in fields(Incident):
            if one.name not in (*_KEYS, *_PERSONS, "state"):
                value = getattr(given, one.name)
                setattr(row, one.name, list(value) if one.name in _TUPLES else value)
        session.flush()
        kept.append(replace(change, incident=_incident(row, stream.output)))
    return kept


def found(
    session: Session,
    *,
    id: int | None = None,
    stream: int | None = None,
    output: str | None = None,
    state: State | None = None,
    since: datetime | None = None,
    standing: bool = False,
) -> list[Incident]:
    """Incidents, in the order they were opened.

    Args:
        id, stream, output, state: only those of it; `output` is the file of the stream's rows.
        since: only those with a row judged since then.
        standing: only those that are not resolved, or whose likes are silenced for good.
    """
    kind, streams = tables.Incident, tables.Stream
    query = select(kind, streams.output).join(streams, streams.id == kind.stream_id)
    given: list[tuple[Any, Any]] = [(kind.id, id), (kind.stream_id, stream), (streams.output, output)]
    for column, value in (*given, (kind.state, state)):
        if value is not None:
            query = query.where(column == value)
    if since is not None:
        query = query.where(kind.updated >= since)
    if standing:
        query = query.where(or_(kind.state != "resolved", kind.muted))
    return [_incident(row, name) for row, name in session.execute(query.order_by(kind.id))]


def _incident(row: tables.Incident, output: str) -> Incident:
    values = {one.name: getattr(row, one.name) for one in fields(Incident) if one.name != "output"}
    values |= {name: tuple(values[name]) for name in _TUPLES}
    for name in ("opened", "updated", "resolved"):
        values[name] = None if values[name] is None else utc(values[name])
    return Incident(**values, output=output)
