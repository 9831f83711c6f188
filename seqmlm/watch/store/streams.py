"""Streams as they stand: when they were alive, when they last judged, and what of them is no longer needed.

Rows are kept for the output to be filled again; of a stream that goes on for years they would be most of the
database. What is pruned are rows that are in the output (`written`), were judged before a time and belong to
no incident that stays: of a fault, as long as statistics of its rows are kept. The last row always stays,
because the numbers of the next ones go on from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, cast

from sqlalchemy import ColumnElement, CursorResult, and_, delete, func, or_, select
from sqlalchemy.orm import Session, aliased

from seqmlm.registry import tables
from seqmlm.registry.database import utc

STEP = 5000
"""Rows that are deleted, or read, at a time: a stream that runs waits for no more."""


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What was deleted of a stream, or would be.

    Args:
        rows: how many.
        through: number of the last of them.
        incidents: how many.
    """

    rows: int = 0
    through: int = 0
    incidents: int = 0


@dataclass(frozen=True, kw_only=True)
class StreamEntry:
    """A scoring that follows files, as it stands."""

    id: int
    output: str
    """The file its rows go to, from the root on."""
    request: Mapping[str, Any]
    counts: Mapping[str, Any]
    mark: Mapping[str, Any]
    written: int
    """Rows up to this number are in the output, which ends at `mark` with them."""
    files: tuple[Mapping[str, Any], ...] = ()
    """How far each generation is, the oldest first."""
    created: datetime
    alive: datetime
    """Its last commit; a scoring that runs commits at least every minute."""
    judged: datetime | None = None
    """When its last row was judged."""
    last: int = 0
    """Number of that row."""
    pruned: Pruned = Pruned()


def entries(session: Session, *, output: str | None = None, files: bool = False) -> list[StreamEntry]:
    """Streams in the order they were begun.

    Args:
        output: only the one whose rows go to this file.
        files: with how far their files are.
    """
    query = select(tables.Stream).order_by(tables.Stream.id)
    if output is not None:
        query = query.where(tables.Stream.output == output)
    return [_entry(session, row, files) for row in session.scalars(query)]


def _entry(session: Session, row: tables.Stream, files: bool) -> StreamEntry:
    kind, state = tables.StreamRow, tables.StreamFile
    newest = select(kind.number, kind.created).where(kind.stream_id == row.id).order_by(kind.number.desc())
    last = session.execute(newest.limit(1)).one_or_none()
    given = select(state.state).where(state.stream_id == row.id).order_by(state.number)
    return StreamEntry(
        id=row.id,
        output=row.output,
        request=row.request,
        counts=row.counts,
        mark=row.mark,
        written=row.written,
        files=tuple(session.scalars(given)) if files else (),
        created=utc(row.created),
        alive=utc(row.alive),
        judged=None if last is None else utc(last.created),
        last=0 if last is None else last.number,
        pruned=Pruned(**row.pruned),
    )


def rows_since(session: Session, stream: int, since: datetime) -> Iterator[tuple[datetime, bool, str]]:
    """When each row was judged from a time on, whether it is an alarm, and its line; in order."""
    kind = tables.StreamRow
    own = (kind.stream_id == stream, kind.created >= since)
    number = session.scalar(select(func.min(kind.number)).where(*own))
    query = select(kind.number, kind.created, kind.alarm, kind.line).where(*own).order_by(kind.number)
    while number is not None:
        some = session.execute(query.where(kind.number >= number).limit(STEP)).all()
        yield from ((utc(one.created), one.alarm, one.line) for one in some)
        number = some[-1].number + 1 if len(some) == STEP else None


def _counts_as_fault(stream: int) -> ColumnElement[bool]:
    """Incidents of faults with rows whose statistics are kept: what is calibrated with them leaves these
    out."""
    kind, line, kept = tables.Incident, aliased(tables.StreamRow), tables.StreamStatistics
    rows = (
        select(line.incident)
        .join(kept, and_(kept.stream_id == line.stream_id, kept.row == line.number))
        .where(line.stream_id == stream, line.incident.is_not(None))
    )
    return and_(kind.verdict == "fault", kind.row.in_(rows))


def _old_rows(stream: tables.Stream, last: int, before: datetime) -> ColumnElement[bool]:
    kind, incident = tables.StreamRow, tables.Incident
    staying = select(incident.row).where(
        incident.stream_id == stream.id,
        or_(incident.state != "resolved", incident.updated >= before, _counts_as_fault(stream.id)),
    )
    return and_(
        kind.stream_id == stream.id,
        kind.number <= stream.written,
        kind.number < last,
        kind.created < before,
        or_(kind.incident.is_(None), kind.incident.not_in(staying)),
    )


def _old_incidents(stream: int, before: datetime) -> ColumnElement[bool]:
    kind, notice = tables.Incident, tables.Notice
    waiting = select(notice.incident).where(notice.stream_id == stream, notice.done.is_(None))
    return and_(
        kind.stream_id == stream,
        kind.state == "resolved",
        kind.updated < before,
        kind.resolved < before,
        ~kind.muted,  # else what is like it would be silent no more
        or_(kind.verdict.is_(None), ~_counts_as_fault(stream)),
        kind.id.not_in(waiting),  # of these somebody is still to be told
    )


def old(session: Session, stream: int, before: datetime) -> Pruned:
    """What `prune` would delete."""
    row = session.get_one(tables.Stream, stream)
    kind = tables.StreamRow
    last = _last(session, stream)
    number, through = session.execute(
        select(func.count(), func.max(kind.number)).where(_old_rows(row, last, before))
    ).one()
    incidents = select(func.count()).select_from(tables.Incident).where(_old_incidents(stream, before))
    return Pruned(rows=number, through=through or 0, incidents=session.scalar(incidents) or 0)


def prune_rows(session: Session, stream: int, before: datetime) -> int:
    """Delete `STEP` of the old rows, the oldest first; how many there were."""
    row, kind = _locked(session, stream), tables.StreamRow
    which = _old_rows(row, _last(session, stream), before)
    numbers = list(session.scalars(select(kind.number).where(which).order_by(kind.number).limit(STEP)))
    if numbers:
        session.execute(delete(kind).where(which, kind.number <= numbers[-1]))
        known = Pruned(**row.pruned)
        through = max(known.through, numbers[-1])
        row.pruned = asdict(replace(known, rows=known.rows + len(numbers), through=through))
    return len(numbers)


def prune_incidents(session: Session, stream: int, before: datetime) -> int:
    """Delete the old incidents, and what webhooks were told of them; how many there were."""
    row, kind, notice = _locked(session, stream), tables.Incident, tables.Notice
    which = _old_incidents(stream, before)
    told = and_(notice.stream_id == stream, notice.incident.in_(select(kind.id).where(which)))
    session.execute(delete(notice).where(told))
    number = cast(CursorResult[Any], session.execute(delete(kind).where(which))).rowcount
    known = Pruned(**row.pruned)
    row.pruned = asdict(replace(known, incidents=known.incidents + number))
    return number


def _locked(session: Session, stream: int) -> tables.Stream:
    return session.scalars(select(tables.Stream).where(tables.Stream.id == stream).with_for_update()).one()


def _last(session: Session, stream: int) -> int:
    kind = tables.StreamRow
    return session.scalar(select(func.max(kind.number)).where(kind.stream_id == stream)) or 0
