"""Streams in the database: rows, incidents, notices and calibrations, each committed with what it came of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from seqmlm.errors import StateError
from seqmlm.registry import Registry, tables
from seqmlm.watch.store import incidents, notices, rolling, streams
from seqmlm.watch.store.incidents import Change, Incident
from seqmlm.watch.store.notices import Notice, NoticeQueue, Waiting
from seqmlm.watch.store.rolling import Figures, Owned, RollingChange, RollingEntry
from seqmlm.watch.store.streams import Pruned, StreamEntry

__all__ = [
    "Change",
    "Figures",
    "Incident",
    "Notice",
    "NoticeQueue",
    "Owned",
    "Pruned",
    "RollingChange",
    "RollingEntry",
    "StreamEntry",
    "Streams",
    "Waiting",
]


class Streams(Registry):
    """The registry of a workspace with the streams that it watches."""

    def protect(self) -> None:
        """Let only the owner read a database that is a file: rows of sensitive data are in it.

        Raises:
            StateError: the file is somebody else's.
        """
        file = self.engine.url.database
        if self.engine.dialect.name != "sqlite" or not file:
            return
        try:
            for name in (file, f"{file}-wal", f"{file}-shm"):
                if Path(name).exists():
                    Path(name).chmod(0o600)
        except OSError as error:
            raise StateError(
                f"{file} is to have rows of sensitive data, and cannot be kept from others: "
                f"{error.strerror}; use a workspace of your own (SEQMLM_HOME)"
            ) from None

    def stream(self, output: str) -> StreamEntry | None:
        """The stream whose rows go to this file; None where there is none."""
        with self.reading() as session:
            return next(iter(streams.entries(session, output=output, files=True)), None)

    def streams(self) -> list[StreamEntry]:
        """All streams, without how far their files are."""
        with self.reading() as session:
            return streams.entries(session)

    def rows_since(self, stream: int, since: datetime) -> Iterator[tuple[datetime, bool, str]]:
        """When each row of a stream was judged from a time on, whether it is an alarm, and its line."""
        with self.reading() as session:
            yield from streams.rows_since(session, stream, since)

    def prune(self, stream: int, before: datetime, *, pretend: bool = False) -> Pruned:
        """Delete what is no longer needed of a stream; see `watch.store.streams`. It may be running.

        Args:
            stream: its id.
            before: only what was judged before this time.
            pretend: only say what would be deleted.
        """
        with self.reading() as session:
            found = streams.old(session, stream, before)
        if pretend:
            return found
        rows = 0
        while number := self._written(streams.prune_rows, stream, before):
            rows += number
        over = self._written(streams.prune_incidents, stream, before)
        return replace(found, rows=rows, incidents=over)

    def _written(self, do: Callable[[Session, int, datetime], int], stream: int, before: datetime) -> int:
        with self.writing() as session:
            return do(session, stream, before)

    def begin_stream(self, output: str, request: Mapping[str, Any]) -> int:
        """Add a stream that has read nothing; its id."""
        row = tables.Stream(output=output, request=dict(request), counts={}, mark={}, written=0)
        with self.writing() as session:
            session.add(row)
            session.flush()
            return row.id

    def commit_stream(
        self,
        stream: int,
        *,
        files: Sequence[Mapping[str, Any]],
        rows: Sequence[tuple[int, bool, str]],
        counts: Mapping[str, Any],
        mark: Mapping[str, Any],
        written: int,
        changes: Sequence[Change] = (),
        belongs: Mapping[int, int] | None = None,
        notify: Callable[[Sequence[Change]], Sequence[Notice]] = lambda changes: (),
        calibration: RollingChange | None = None,
    ) -> list[Change]:
        """Keep what a stream has done since the last time, all of it or nothing.

        It may be repeated: a connection that is lost during a commit does not say whether that was done.

        Args:
            stream: its id.
            files: states of the generations that changed, with `number` and `done`.
            rows: (number, whether it is an alarm, line) of each new row.
            counts: of the whole stream.
            mark, written: where the output ends with the row of this number.
            changes: of its incidents.
            belongs: numbers of new rows to the row that opened the incident each belongs to.
            notify: what webhooks are to be told of the changes, as they are kept.
            calibration: what became of its rolling calibration.

        Returns:
            The changes, as they are kept.
        """
        with self.writing() as session:
            row = session.get_one(tables.Stream, stream)
            last = session.get(tables.StreamRow, (stream, rows[-1][0])) if rows else None
            if last is not None and last.line == rows[-1][2]:
                return incidents.keep(session, row, changes)
            row.counts, row.mark, row.written = dict(counts), dict(mark), written
            row.alive = notices.now()
            for one in files:
                kept = tables.StreamFile(
                    stream_id=stream, number=one["number"], done=one["done"], state=dict(one)
                )
                session.merge(kept)
            owners = belongs or {}
            new = [
                {
                    "stream_id": stream,
                    "number": number,
                    "alarm": alarm,
                    "line": line,
                    "incident": owners.get(number),
                }
                for number, alarm, line in rows
            ]
            if new:
                session.execute(insert(tables.StreamRow), new)
            if calibration is not None:
                rolling.keep(session, stream, calibration)
            told = incidents.keep(session, row, changes)
            notices.put(session, stream, notify(told), notices.now())
            return told

    def incident_counts(self, stream: int) -> dict[str, int]:
        """Incidents of a stream that are not resolved, by state."""
        kind = tables.Incident
        query = select(kind.state, func.count()).where(kind.stream_id == stream).group_by(kind.state)
        with self.reading() as session:
            found = {state: int(number) for state, number in session.execute(query)}
        return {state: found.get(state, 0) for state in ("open", "acknowledged")}

    def rolling(self, stream: int, since: datetime | None = None) -> RollingEntry | None:
        """The rolling calibration of a stream, with rows kept since a time; None where it has none."""
        with self.reading() as session:
            return rolling.found(session, stream, since)

    def owned_rows(self, stream: int) -> list[Owned]:
        """Rows, among a stream's statistics, that belong to incidents, in order."""
        with self.reading() as session:
            return rolling.owned(session, stream)

    def real_rows(self, stream: int) -> set[int]:
        """Numbers, among a stream's statistics, of rows of incidents that a person took for a fault."""
        return {one.number for one in self.owned_rows(stream) if one.fault}

    def notices(self, stream: int) -> NoticeQueue:
        """What webhooks are to be told of a stream."""
        return NoticeQueue(self, stream)

    def incidents(self, **asked: Any) -> list[Incident]:
        """Incidents in the order they were opened; what can be asked: see `store.incidents.found`."""
        with self.reading() as session:
            return incidents.found(session, **asked)

    def incident(self, incident: int) -> Incident:
        """One incident.

        Raises:
            StateError: there is none of this id.
        """
        found = self.incidents(id=incident)
        if not found:
            raise StateError(f"there is no incident {incident}; see 'seqmlm incidents list'")
        return found[0]

    def mark_incident(self, incident: int, **said: Any) -> Incident:
        """Keep what a person says of an incident: `muted`, `note`, `verdict`, or the `state` (open or
        acknowledged, which is the verdict "fault" where none is given).

        One that is resolved stays so, and its verdict is kept all the same. Where "normal" is taken back,
        its likes are heard again.

        Raises:
            StateError: there is none of this id.
        """
        known = self.incident(incident)
        with self.writing() as session:
            row = session.get_one(tables.Incident, known.id)
            if "state" in said:
                said = {"verdict": "fault" if said["state"] == "acknowledged" else None, **said}
            if row.verdict == "normal" and said.get("verdict", "normal") != "normal":
                said = {"muted": False, **said}
            for name, value in said.items():
                if name != "state" or row.state != "resolved":
                    setattr(row, name, value)
            session.flush()
            return incidents.found(session, id=incident)[0]

    def incident_rows(self, incident: Incident, most: int) -> tuple[int, list[str]]:
        """How many rows an incident has, those that it silenced included, and the first lines of them."""
        kind = tables.StreamRow
        own = (kind.stream_id == incident.stream_id, kind.incident == incident.row)
        with self.reading() as session:
            number = session.scalar(select(func.count()).where(*own)) or 0
            return number, list(
                session.scalars(select(kind.line).where(*own).order_by(kind.number).limit(most))
            )

    def stream_rows(self, stream: int, after: int, most: int) -> list[tuple[int, str]]:
        """Number and line of a stream's rows behind a number, in order, so many at most."""
        kind = tables.StreamRow
        query = select(kind.number, kind.line).where(kind.stream_id == stream, kind.number > after)
        with self.reading() as session:
            return [
                (number, line) for number, line in session.execute(query.order_by(kind.number).limit(most))
            ]
