"""The rolling calibration of a followed stream: statistics of its newest rows, and which of them count.

They are kept in the transaction of the rows they are of (`Streams.commit_stream`), so that whatever ends a
scorer, the next one judges with the same calibration. What the numbers are is `watch.rolling`'s to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import and_, delete, insert, select
from sqlalchemy.orm import Session

from seqmlm.registry import tables

_AT_ONCE = 500  # numbers in a statement; databases take some thousand


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Statistics of one row.

    Args:
        number: of the row, among those of the stream that have a score; from 1.
        row: number of its row of results, where that is an alarm.
        figures: 64-bit floating-point numbers, little-endian.
    """

    number: int
    row: int | None
    figures: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Owned:
    """A row whose statistics are kept, and the incident that it belongs to.

    Args:
        number: of the row, as of `Figures`.
        incident: id.
        verdict: what a person took the incident for; None where nobody has said.
    """

    number: int
    incident: int
    verdict: str | None

    @property
    def fault(self) -> bool:
        """Whether it is not normal."""
        return self.verdict == "fault"


@dataclass(frozen=True, kw_only=True)
class RollingEntry:
    """A rolling calibration as it stands.

    Args:
        state: JSON.
        rows: by number.
    """

    state: Mapping[str, Any]
    rows: Sequence[Figures]


@dataclass(frozen=True, kw_only=True)
class RollingChange(RollingEntry):
    """What became of a rolling calibration since the last commit: `rows` are the new ones.

    Args:
        dropped: numbers of rows that are not needed any more.
        anew: no earlier row is needed.
    """

    dropped: Sequence[int] = ()
    anew: bool = False


def keep(session: Session, stream: int, change: RollingChange) -> None:
    """Write a change; doing it again changes nothing."""
    kind = tables.StreamStatistics
    session.merge(tables.StreamCalibration(stream_id=stream, state=dict(change.state)))
    new = [
        {"stream_id": stream, "number": one.number, "row": one.row, "figures": one.figures}
        for one in change.rows
    ]
    own = kind.stream_id == stream
    if change.anew:
        session.execute(delete(kind).where(own))
    elif new:
        session.execute(delete(kind).where(own, kind.number >= new[0]["number"]))
    if new:
        session.execute(insert(kind), new)
    for first in range(0, len(change.dropped), _AT_ONCE):
        some = list(change.dropped[first : first + _AT_ONCE])
        session.execute(delete(kind).where(own, kind.number.in_(some)))


def found(session: Session, stream: int, since: datetime | None = None) -> RollingEntry | None:
    """The rolling calibration of a stream, with rows kept since a time; None where it has none."""
    row, kind = session.get(tables.StreamCalibration, stream), tables.StreamStatistics
    if row is None:
        return None
    query = select(kind.number, kind.row, kind.figures).where(kind.stream_id == stream)
    if since is not None:
        query = query.where(kind.created >= since)
    rows = session.execute(query.order_by(kind.number))
    return RollingEntry(
        state=row.state, rows=[Figures(number=n, row=own, figures=given) for n, own, given in rows]
    )


def owned(session: Session, stream: int) -> list[Owned]:
    """The rows that belong to incidents, in order."""
    kind, line, incident = tables.StreamStatistics, tables.StreamRow, tables.Incident
    query = (
        select(kind.number, incident.id, incident.verdict)
        .join(line, and_(line.stream_id == kind.stream_id, line.number == kind.row))
        .join(incident, and_(incident.stream_id == line.stream_id, incident.row == line.incident))
        .where(kind.stream_id == stream)
        .order_by(kind.number)
    )
    return [
        Owned(number=number, incident=own, verdict=verdict) for number, own, verdict in session.execute(query)
    ]
