"""Streams in the database: read positions, rows, incidents and notices.

One transaction contains all work of a turn, so that a kill neither loses nor repeats any of it. For an
incident, the stream writes the facts, and a person's command writes the marks (acknowledged, muted, a note).
They write different columns. A command can therefore run while the stream runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from sqlalchemy import ColumnElement, and_, delete, exists, func, insert, or_, select, update
from sqlalchemy.orm import Session, aliased

from seqmlm.engine.durable import FileLock
from seqmlm.errors import StateError, number_of
from seqmlm.registry.schema import Schema
from seqmlm.registry.store import Registry
from seqmlm.watch import tables

STATES = ("open", "acknowledged", "resolved")

UPDATES = timedelta(seconds=30)
"""Shortest time between two notices about updates of the same incident."""

LONGEST = timedelta(seconds=300)
"""The longest time between two attempts to send a notice."""

ALIVE = timedelta(seconds=60)
"""Time between commits of a stream that reads nothing. The commits show that it is alive."""

STEP = 5000
"""Rows that are deleted, or read, at a time. A running stream waits for one step at most."""

_BATCH = 100  # notices that are fetched at a time
_NAMED = 3  # new values in a title


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A group of related alarms at one place.

    Attributes:
        id: number for users; 0 before it is stored.
        stream_id: id of its stream.
        output: the file of the stream's rows.
        row: number of the row that opened it. Together with the stream, it identifies the incident.
        model: reference of the model that scored its rows.
        place: the file of its lines. Only alarms at the same place are merged.
        state: one of `STATES`. A person acknowledges it; it is resolved after a time without alarms.
        muted: whether similar alarms open no incident.
        verdict: the verdict of a person, "fault" or "normal"; kept when it is over.
        note: the note of a person.
        what: the fault, without counts and place.
        reason: the reason of its most unusual row.
        template: the template of the line that made that row unusual.
        new: values that do not occur in the training data.
        expected: the lines that were expected instead of that line, most probable first.
        first_time: earliest time in its lines, ISO 8601; None if the lines have no times.
        last_time: latest time in its lines, ISO 8601; None if the lines have no times.
        severity: the highest severity in its rows, as written in the lines.
        host: the most frequent host in its most unusual row, such as "web1 and 2 others".
        service: the most frequent service in that row.
        rows: number of rows with an alarm.
        lines: number of lines in these rows.
        new_lines: number of these lines with `new` values, or of kinds that were never seen.
        p_value: the smallest p-value of its rows.
        start: number of its first line in the file.
        end: number of the line after its last line.
        likes: digests by which similar alarms are recognised.
        opened: time in UTC when its first row was scored.
        updated: time in UTC when its last row was scored.
        resolved: time in UTC when it was over; None before.
    """

    id: int = 0
    stream_id: int = 0
    output: str = ""
    row: int
    model: str
    place: str
    state: str = "open"
    muted: bool = False
    verdict: str | None = None
    note: str = ""
    what: str
    reason: str
    template: str
    new: tuple[str, ...]
    expected: tuple[str, ...] = ()
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
    def title(self) -> str:
        """The fault, its number of lines, and its place."""
        fault = self.what
        if self.new:
            news = len(self.new)
            and_more = f" and {news - _NAMED} more" if news > _NAMED else ""
            verb = "was" if news == 1 else "were"
            fault = f"{', '.join(self.new[:_NAMED])}{and_more} {verb} never seen"
        lines = number_of(self.lines, "line")
        count = f"{self.new_lines:,} of {lines}" if self.new_lines else lines
        if not self.lines:  # a pause
            return f"{fault}, {span(Path(self.place).name, self.start, self.end - 1)}"
        return f"{fault}: {count}, {span(Path(self.place).name, self.start, self.end - 1)}"

    @property
    def first_line(self) -> str:
        return f"{self.place}:{self.start}"

    @property
    def last_line(self) -> str:
        return f"{self.place}:{self.end - 1}"

    @property
    def full_state(self) -> str:
        """The state for people, with the mark of a person: "resolved, normal", "open, muted"."""
        mark = "normal" if self.verdict == "normal" else "muted" if self.muted else ""
        return f"{self.state}, {mark}" if mark else self.state

    @property
    def silences(self) -> bool:
        """Whether similar alarms are silenced: for good if it is muted, or while it is acknowledged."""
        return self.muted or self.state == "acknowledged"


def span(file: str, line: int, last: int | None) -> str:
    """The place of lines in a file, as text.

    >>> span("a.log", 3, 5), span("a.log", 3, None)
    ('a.log:3-5', 'a.log:3')
    """
    return f"{file}:{line}" if last in (None, line) else f"{file}:{line}-{last}"


_KEYS = ("id", "stream_id", "row", "state", "muted", "verdict", "note")  # columns not written by the stream
_TIMES = ("opened", "updated", "resolved")
_FACTS = {field.name for field in fields(Incident)} - {*_KEYS, *_TIMES, "output"}


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of an incident in a commit."""

    kind: Literal["opened", "updated", "resolved"]
    incident: Incident


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The work of a stream since its last commit.

    Args:
        files: states of the generations that changed, with `number` and `done`.
        rows: number, alarm and line of each new row.
        counts: counts of the whole stream.
        mark: the position of the end of the output.
        written: number of the last row in the output.
        changes: changes of incidents.
        belongs: for each new row in an incident, the number of the row that opened it.
    """

    files: Sequence[Mapping[str, Any]]
    rows: Sequence[tuple[int, bool, str]]
    counts: Mapping[str, Any]
    mark: Mapping[str, Any]
    written: int
    changes: Sequence[Change] = ()
    belongs: Mapping[int, int] = field(default_factory=dict)


Notice = tables.Notice
"""A notice for a webhook: the name of the webhook, a unique key, and a body."""


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """Numbers of deleted rows and incidents of a stream.

    Args:
        rows: number of deleted rows.
        through: number of the last deleted row.
        incidents: number of deleted incidents.
    """

    rows: int = 0
    through: int = 0
    incidents: int = 0

    def __add__(self, step: Pruned) -> Pruned:
        through = max(self.through, step.through)
        return Pruned(rows=self.rows + step.rows, through=through, incidents=self.incidents + step.incidents)


@dataclass(frozen=True, kw_only=True)
class StreamEntry:
    """The stored state of a stream.

    Attributes:
        id: its id.
        output: absolute path of the file of its rows.
        request: everything that determines its rows.
        counts: counts of the whole stream.
        mark: the position of the end of the output.
        written: number of the last row before this position.
        files: read positions of its generations, oldest first.
        alive: time of its last commit.
        judged: time when its last row was scored; None before the first row.
        last: number of its last row.
        pruned: the rows and incidents that were deleted.
        server: whether the database is on a server.
    """

    id: int
    output: str
    request: Mapping[str, Any]
    counts: Mapping[str, Any]
    mark: Mapping[str, Any]
    written: int
    files: tuple[Mapping[str, Any], ...] = ()
    alive: datetime
    judged: datetime | None
    last: int
    pruned: Pruned
    server: bool

    @property
    def running(self) -> bool:
        """Whether a process runs the stream now: it has the lock of the output.

        With a database server, the process may be on another machine. It then counts as running if its last
        commit is less than 150 s old.
        """
        out = Path(self.output)
        locked = bool(FileLock(out.with_name(f"{out.name}.lock")).is_held)
        return locked or (self.server and abs(now() - self.alive) < 2.5 * ALIVE)

    @property
    def follows(self) -> list[str]:
        """The patterns of files. Streams of earlier versions of this package may have a source instead."""
        return list(map(str, self.request.get("files") or [self.request.get("source") or ""]))

    @property
    def alarms_only(self) -> bool:
        """Whether only rows with an alarm are stored, and counted in `last`."""
        return bool(self.request.get("alarms_only"))

    def sentence(self) -> str:
        """Whether it runs and when it last scored a row, with the time in the local zone."""
        runs = "is running" if self.running else "is not running"
        if self.judged is None:
            return f"{runs}, and has scored nothing yet"
        return f"{runs}, and has scored nothing since {self.judged.astimezone():%Y-%m-%d %H:%M:%S}"


def now() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


class Streams(Registry):
    """The registry of a workspace, with the tables of its streams."""

    schemas: ClassVar[tuple[Schema, ...]] = (*Registry.schemas, tables.STREAMS)

    def protect(self, request: Mapping[str, Any]) -> None:
        """Make a database file with sensitive rows readable only by its owner.

        Raises:
            StateError: the file belongs to another user.
        """
        if not request.get("sensitive"):
            return
        file = self.engine.url.database
        if self.engine.dialect.name != "sqlite" or not file:
            return
        try:
            for path in map(Path, (file, f"{file}-wal", f"{file}-shm")):
                if path.exists():
                    path.chmod(0o600)
        except OSError as error:
            raise StateError(
                f"{file} would get rows of sensitive data, but other users can read it: {error.strerror}; "
                "use your own workspace (SEQMLM_HOME)"
            ) from None

    # streams

    def begin_stream(self, output: str, request: Mapping[str, Any]) -> int:
        """Add a new stream, and return its id."""
        row = tables.Stream(output=output, request=dict(request), counts={}, mark={}, written=0)
        with self.writing() as session:
            session.add(row)
            session.flush()
            return row.id

    def stream(self, output: str) -> StreamEntry | None:
        """The stream that writes its rows to this file, with its read positions; None if there is none."""
        state = tables.StreamFile
        query = select(tables.Stream).where(tables.Stream.output == output)
        with self.reading() as session:
            if (row := session.scalars(query).first()) is None:
                return None
            files = select(state.state).where(state.stream_id == row.id).order_by(state.number)
            return replace(_entry(session, row), files=tuple(session.scalars(files)))

    def streams(self) -> list[StreamEntry]:
        """All streams, oldest first, without their read positions."""
        with self.reading() as session:
            rows = session.scalars(select(tables.Stream).order_by(tables.Stream.id))
            return [_entry(session, row) for row in rows]

    def set_request(self, stream: int, request: Mapping[str, Any]) -> None:
        """Replace the request of a stream."""
        with self.writing() as session:
            session.get_one(tables.Stream, stream).request = dict(request)

    def commit_stream(
        self, stream: int, turn: Turn, notify: Callable[[Sequence[Change]], Sequence[Notice]] = lambda _: ()
    ) -> list[Change]:
        """Commit the work of a turn in one transaction.

        The call can be repeated: if a connection is lost during a commit, nobody knows whether it succeeded.

        Args:
            stream: id of the stream.
            turn: the work.
            notify: makes notices from the stored changes.

        Returns:
            The changes, as they are stored.
        """
        kind, number_of_last = tables.StreamRow, turn.rows[-1][0] if turn.rows else 0
        with self.writing() as session:
            row = session.get_one(tables.Stream, stream)
            last = session.get(kind, (stream, number_of_last)) if turn.rows else None
            if last is not None and last.line == turn.rows[-1][2]:
                return [_write_change(session, row, change) for change in turn.changes]
            row.counts, row.mark = dict(turn.counts), dict(turn.mark)
            row.written, row.alive = turn.written, now()
            for state in turn.files:
                columns = {"number": state["number"], "done": state["done"], "state": dict(state)}
                session.merge(tables.StreamFile(stream_id=stream, **columns))
            names = ("stream_id", "number", "alarm", "line", "incident")
            values = [
                dict(zip(names, (stream, *line, turn.belongs.get(line[0])), strict=True))
                for line in turn.rows
            ]
            if values:
                session.execute(insert(kind), values)
            changes = [_write_change(session, row, change) for change in turn.changes]
            for notice in notify(changes):
                _queue(session, stream, notice)
            return changes

    # rows

    def stream_rows(self, stream: int, last: int, limit: int) -> list[tuple[int, str]]:
        """The numbers and lines of a stream's rows after number `last`, in order, at most `limit`."""
        kind = tables.StreamRow
        query = select(kind.number, kind.line).where(kind.stream_id == stream, kind.number > last)
        with self.reading() as session:
            return [(n, line) for n, line in session.execute(query.order_by(kind.number).limit(limit))]

    def rows_since(self, stream: int, since: datetime) -> Iterator[tuple[datetime, bool, str]]:
        """The rows of a stream that were scored since a time: time of scoring, alarm, and line."""
        kind = tables.StreamRow
        period = (kind.stream_id == stream, kind.created >= since)
        first = select(func.min(kind.number)).where(*period).scalar_subquery()
        query = select(kind.created, kind.alarm, kind.line).where(*period, kind.number >= first)
        with self.reading() as session:
            ordered = query.order_by(kind.number).execution_options(yield_per=STEP)
            yield from ((time, alarm, line) for time, alarm, line in session.execute(ordered))

    def incident_rows(self, incident: Incident, limit: int) -> tuple[int, list[str]]:
        """The number of rows of an incident, including silenced ones, and the lines of the first rows."""
        kind = tables.StreamRow
        members = (kind.stream_id == incident.stream_id, kind.incident == incident.row)
        lines = select(kind.line).where(*members).order_by(kind.number).limit(limit)
        with self.reading() as session:
            return session.scalar(select(func.count()).where(*members)) or 0, list(session.scalars(lines))

    # incidents

    def incidents(
        self,
        *,
        id: int | None = None,
        stream: int | None = None,
        output: str | None = None,
        state: str | None = None,
        since: datetime | None = None,
        standing: bool = False,
    ) -> list[Incident]:
        """Incidents that meet all given conditions, in the order in which they were opened.

        Args:
            id: the incident with this id.
            stream: incidents of the stream with this id.
            output: incidents of the stream with this output.
            state: incidents in this state.
            since: incidents with a row scored since this time.
            standing: incidents that are not resolved, or muted.
        """
        kind, streams = tables.Incident, tables.Stream
        equal = [(kind.id, id), (kind.stream_id, stream), (streams.output, output), (kind.state, state)]
        conditions = [column == value for column, value in cast(Any, equal) if value is not None]
        conditions += [] if since is None else [kind.updated >= since]
        conditions += [or_(kind.state != "resolved", kind.muted)] if standing else []
        query = select(kind, streams.output).join(streams, streams.id == kind.stream_id).where(*conditions)
        with self.reading() as session:
            return [_incident(row, name) for row, name in session.execute(query.order_by(kind.id))]

    def incident(self, incident: int) -> Incident:
        """The incident with this id.

        Raises:
            StateError: there is no such incident.
        """
        if not (incidents := self.incidents(id=incident)):
            raise StateError(f"there is no incident {incident}; see 'seqmlm incidents list'")
        return incidents[0]

    def mark_incident(self, incident: int, **marks: Any) -> Incident:
        """Store the marks of a person for an incident.

        A resolved incident stays resolved, but its verdict is stored. If the verdict "normal" is withdrawn,
        the incident is also unmuted.

        Args:
            incident: its id.
            marks: `muted`, `note`, `verdict` or `state` ("open" or "acknowledged"). Without a verdict,
                "acknowledged" sets the verdict "fault".

        Raises:
            StateError: there is no such incident.
        """
        earlier = self.incident(incident)
        with self.writing() as session:
            row = session.get_one(tables.Incident, earlier.id)
            if "state" in marks:
                marks = {"verdict": "fault" if marks["state"] == "acknowledged" else None, **marks}
            if row.verdict == "normal" and marks.get("verdict", "normal") != "normal":
                marks = {"muted": False, **marks}
            for name, value in marks.items():
                if name != "state" or row.state != "resolved":
                    setattr(row, name, value)
            session.flush()
            return _incident(row, earlier.output)

    def prune(self, stream: int, until: datetime, *, pretend: bool = False) -> Pruned:
        """Delete old rows and incidents of a stream that are no longer needed. The stream may be running.

        A row is deleted if it is in the output and belongs to no incident that is kept. The last row is
        always kept, because the next rows continue its number.

        Args:
            stream: id of the stream.
            until: only rows and incidents before this time.
            pretend: delete nothing.

        Returns:
            The numbers of rows and incidents that were (or would be) deleted.
        """
        kind, old_incidents = tables.StreamRow, _old_incidents(stream, until)
        if pretend:
            with self.reading() as session:
                query = select(func.count(), func.max(kind.number)).where(_old_rows(session, stream, until))
                rows, through = session.execute(query).one()
                incidents = session.scalar(
                    select(func.count()).select_from(tables.Incident).where(old_incidents)
                )
            return Pruned(rows=rows, through=through or 0, incidents=incidents or 0)
        done, numbers = Pruned(), [0]
        while numbers:
            with self.writing() as session:
                row = session.get_one(tables.Stream, stream, with_for_update=True)
                old_rows = _old_rows(session, stream, until)
                oldest = select(kind.number).where(old_rows).order_by(kind.number).limit(STEP)
                if numbers := list(session.scalars(oldest)):
                    session.execute(delete(kind).where(old_rows, kind.number <= numbers[-1]))
                    step = Pruned(rows=len(numbers), through=numbers[-1])
                else:
                    ids = list(session.scalars(select(tables.Incident.id).where(old_incidents)))
                    for number in ids:  # its notices are deleted, too
                        session.execute(
                            delete(Notice).where(Notice.stream_id == stream, Notice.incident == number)
                        )
                        session.execute(delete(tables.Incident).where(tables.Incident.id == number))
                    step = Pruned(incidents=len(ids))
                row.pruned, done = asdict(Pruned(**row.pruned) + step), done + step
        return done

    def notices(self, stream: int) -> NoticeQueue:
        """The queue of notices of a stream."""
        return NoticeQueue(self, stream)


def _entry(session: Session, row: tables.Stream) -> StreamEntry:
    kind = tables.StreamRow
    newest = select(kind.number, kind.created).where(kind.stream_id == row.id).order_by(kind.number.desc())
    last = session.execute(newest.limit(1)).one_or_none()
    names = ("id", "output", "request", "counts", "mark", "written")
    return StreamEntry(
        **{name: getattr(row, name) for name in names},
        alive=row.alive,
        judged=None if last is None else last.created,
        last=0 if last is None else last.number,
        pruned=Pruned(**row.pruned),
        server=session.get_bind().dialect.name != "sqlite",
    )


def _write_change(session: Session, stream: tables.Stream, change: Change) -> Change:
    """Write a change of an incident by its stream. Writing it again has no effect.

    Returns:
        The change with the stored incident: its id, and the current marks of a person.
    """
    incident, kind = change.incident, tables.Incident
    query = select(kind).where(kind.stream_id == stream.id, kind.row == incident.row)
    row = session.scalars(query).one_or_none()
    if row is None:
        row = kind(stream_id=stream.id, row=incident.row, state="open", muted=False, note="")
        session.add(row)
    if change.kind == "resolved":
        row.state = "resolved"
    row.facts = {name: getattr(incident, name) for name in _FACTS}
    for name in _TIMES:
        setattr(row, name, getattr(incident, name))
    session.flush()
    return replace(change, incident=_incident(row, stream.output))


def _incident(row: tables.Incident, output: str) -> Incident:
    facts = {name: row.facts[name] for name in _FACTS}
    fields: dict[str, Any] = {
        name: tuple(fact) if isinstance(fact, list) else fact for name, fact in facts.items()
    }
    fields |= {name: getattr(row, name) for name in (*_KEYS, *_TIMES)}
    return Incident(**fields, output=output)


# Old rows


def _old_rows(session: Session, stream: int, until: datetime) -> ColumnElement[bool]:
    kind, incident = tables.StreamRow, tables.Incident
    written = session.get_one(tables.Stream, stream).written
    last = session.scalar(select(func.max(kind.number)).where(kind.stream_id == stream)) or 0
    staying = select(incident.row).where(
        incident.stream_id == stream,
        or_(incident.state != "resolved", incident.updated >= until),
    )
    return and_(
        kind.stream_id == stream,
        kind.number <= min(written, last - 1),
        kind.created < until,
        or_(kind.incident.is_(None), kind.incident.not_in(staying)),
    )


def _old_incidents(stream: int, until: datetime) -> ColumnElement[bool]:
    kind = tables.Incident
    waiting = select(Notice.incident).where(Notice.stream_id == stream, Notice.done.is_(None))
    return and_(
        kind.stream_id == stream,
        kind.state == "resolved",
        kind.updated < until,
        kind.resolved < until,
        ~kind.muted,  # a muted incident must continue to silence similar alarms
        kind.id.not_in(waiting),  # notices about these must still be sent
    )


# The queue of notices


def _queue(session: Session, stream: int, notice: Notice) -> None:
    """Add a notice to the queue unless it exists, in the transaction of the change that it reports."""
    kind, time = Notice, now()
    if session.scalars(select(kind.id).where(kind.key == notice.key)).first() is not None:
        return
    due = time + (UPDATES if notice.kind == "updated" else timedelta())
    incident = (kind.stream_id == stream, kind.sink == notice.sink, kind.incident == notice.incident)
    update = select(kind).where(*incident, kind.done.is_(None), kind.kind == "updated").limit(1)
    # The row is locked if the database can do this: it must not be confirmed before its key changes.
    waiting = None if notice.kind == "opened" else session.scalars(update.with_for_update()).first()
    if waiting is not None:  # replace the outdated notice
        waiting.key, waiting.body, waiting.kind = notice.key, notice.body, notice.kind
        waiting.due = waiting.due if notice.kind == "updated" else due
        return
    notice.stream_id, notice.attempts, notice.due, notice.created = stream, 0, due, time
    session.add(notice)
    session.flush()  # keeps ids in the order of the changes


class NoticeQueue:
    """The queue of notices of a stream. Each thread can have its own queue object.

    A notice waits until the webhook has accepted it, even after a restart. Each notice is sent at least once,
    always with the same key. Notices about one incident keep their order. They do not delay notices about
    other incidents. If an incident changes often, only its newest update waits.
    """

    def __init__(self, registry: Registry, stream: int) -> None:
        self._registry, self._stream = registry, stream

    def due(self, sink: str, now: datetime) -> list[Notice]:
        """The notices of a webhook that can be sent now, at most one per incident.

        Notices with the fewest failures come first, then the oldest. A notice that always fails therefore
        does not block others.
        """
        kind, earlier = Notice, aliased(Notice)
        waiting = (
            *(kind.stream_id == self._stream, kind.sink == sink, kind.done.is_(None)),
            # A due time so far in the future means that the clock was set back.
            or_(kind.due <= now, kind.due > now + 2 * LONGEST),
            ~exists().where(
                *(earlier.stream_id == self._stream, earlier.sink == sink, earlier.done.is_(None)),
                *(earlier.incident == kind.incident, earlier.id < kind.id),
            ),
        )
        query = select(kind).where(*waiting).order_by(kind.attempts, kind.id).limit(_BATCH)
        with self._registry.reading() as session:
            return list(session.scalars(query))

    def settle(self, notice: Notice, *, error: str | None = None, **times: datetime) -> None:
        """Record the result of an attempt to send a notice.

        If the row was replaced by another notice in the meantime, nothing is recorded.

        Args:
            notice: the notice.
            error: the error, if the attempt failed.
            times: `done`, the time when it was delivered or, with an error, given up; or `due`, the time of
                the next attempt.
        """
        same = and_(Notice.id == notice.id, Notice.key == notice.key)
        with self._registry.writing() as session:
            values = {"attempts": notice.attempts + 1, "error": error, **times}
            session.execute(update(Notice).where(same).values(**values))

    def counts(self) -> dict[str, dict[str, int]]:
        """The number of notices of each webhook by state: "waiting", "delivered", "given_up"."""
        state = (Notice.sink, Notice.done.is_not(None), Notice.error.is_not(None))
        query = select(*state, func.count()).where(Notice.stream_id == self._stream).group_by(*state)
        counts: dict[str, dict[str, int]] = {}
        with self._registry.reading() as session:
            for sink, done, failed, number in session.execute(query.order_by(Notice.sink)):
                states = counts.setdefault(sink, {"waiting": 0, "delivered": 0, "given_up": 0})
                states["waiting" if not done else "given_up" if failed else "delivered"] += number
        return counts
