"""Streams in the database: rows, incidents and notices, each committed with what it came of.

A transaction has all that one turn has done, so a kill neither loses nor doubles any of it. What happened to
an incident is the stream's to say, what it means to a person (acknowledged, muted, a note) that person's:
neither overwrites the other's columns, so a command may run while the stream does.
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
"""An incident that goes on is told of once in this time."""

LONGEST = timedelta(seconds=300)
"""The longest time between two attempts to send a notice."""

ALIVE = timedelta(seconds=60)
"""Between commits of a stream that reads nothing: whoever looks at the database sees that it is alive."""

STEP = 5000
"""Rows that are deleted, or read, at a time: a stream that runs waits for no more."""

_BATCH = 100  # notices that are looked up at a time
_NAMED = 3  # new values in a title


@dataclass(frozen=True, kw_only=True)
class Incident:
    """Alarms of one place that belong together; times are UTC by the clock, those of lines ISO 8601."""

    id: int = 0  # for people; 0 before it is kept
    stream_id: int = 0
    output: str = ""  # the file that the stream's rows go to
    row: int  # number of the row that opened it; with the stream, it names the incident
    model: str  # reference of the model that judged
    place: str  # alarms of one place may join: the file
    state: str = "open"  # one of `STATES`; by a person, or resolved by the clock
    muted: bool = False  # its likes make no incident
    verdict: str | None = None  # what a person took it for, also when it is over: "fault" or "normal"
    note: str = ""
    what: str  # broke, without counts and place
    reason: str  # of its most unusual row, as `template` and `expected`
    template: str  # of the line that made that row unusual
    new: tuple[str, ...]  # what no training line had
    expected: tuple[str, ...] = ()  # in place of that line, the most probable first
    first_time: str | None  # what the lines say; None where they say nothing
    last_time: str | None
    severity: str | None = None  # the highest that its rows name, as the lines write it
    host: str | None = None  # that most lines of its most unusual row name, "web1 and 2 others"
    service: str | None = None
    rows: int  # that alarmed
    lines: int  # in these rows
    new_lines: int = 0  # of them, those with what is `new`, or that training never had
    p_value: float  # the smallest of the rows
    start: int  # first line in its file
    end: int  # the one behind the last
    likes: tuple[str, ...] = ()  # what its rows are recognised by
    opened: datetime  # when its first row was judged
    updated: datetime  # when its last row was
    resolved: datetime | None = None  # when it was over

    @property
    def title(self) -> str:
        """The fault, its extent, and its place."""
        fault = self.what
        if self.new:
            news = len(self.new)
            and_more = f" and {news - _NAMED} more" if news > _NAMED else ""
            verb = "was" if news == 1 else "were"
            fault = f"{', '.join(self.new[:_NAMED])}{and_more} {verb} never seen"
        lines = number_of(self.lines, "line")
        count = f"{self.new_lines:,} of {lines}" if self.new_lines else lines
        if not self.lines:  # nothing came
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
        """The state for people, with what a person has said: "resolved, normal", "open, muted"."""
        mark = "normal" if self.verdict == "normal" else "muted" if self.muted else ""
        return f"{self.state}, {mark}" if mark else self.state

    @property
    def silences(self) -> bool:
        """Whether alarms like its own make no noise: for good, or while it goes on and somebody knows."""
        return self.muted or self.state == "acknowledged"


def span(file: str, line: int, last: int | None) -> str:
    """Where some lines are.

    >>> span("a.log", 3, 5), span("a.log", 3, None)
    ('a.log:3-5', 'a.log:3')
    """
    return f"{file}:{line}" if last in (None, line) else f"{file}:{line}-{last}"


_KEYS = ("id", "stream_id", "row", "state", "muted", "verdict", "note")  # columns the stream does not change
_TIMES = ("opened", "updated", "resolved")
_FACTS = {field.name for field in fields(Incident)} - {*_KEYS, *_TIMES, "output"}


@dataclass(frozen=True, kw_only=True)
class Change:
    """The work of a commit on an incident."""

    kind: Literal["opened", "updated", "resolved"]
    incident: Incident


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The work of a stream since its last commit.

    Args:
        files: states of the generations that changed, with `number` and `done`.
        rows: (number, whether it is an alarm, line) of each new row.
        counts: of the whole stream.
        mark, written: where the output ends with the row of this number.
        changes: of incidents.
        belongs: numbers of new rows to the row that opened the incident each belongs to.
    """

    files: Sequence[Mapping[str, Any]]
    rows: Sequence[tuple[int, bool, str]]
    counts: Mapping[str, Any]
    mark: Mapping[str, Any]
    written: int
    changes: Sequence[Change] = ()
    belongs: Mapping[int, int] = field(default_factory=dict)


Notice = tables.Notice
"""What one webhook is to be told: name of the webhook, a key unlike every other, and a body."""


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """Rows and incidents that were deleted of a stream; `through` is the number of the last row."""

    rows: int = 0
    through: int = 0
    incidents: int = 0

    def __add__(self, step: Pruned) -> Pruned:
        through = max(self.through, step.through)
        return Pruned(rows=self.rows + step.rows, through=through, incidents=self.incidents + step.incidents)


@dataclass(frozen=True, kw_only=True)
class StreamEntry:
    """A stream as it stands."""

    id: int
    output: str  # the file its rows go to, from the root on
    request: Mapping[str, Any]
    counts: Mapping[str, Any]
    mark: Mapping[str, Any]  # where the output ends
    written: int  # rows up to this number are in it then
    files: tuple[Mapping[str, Any], ...] = ()  # how far each generation is, the oldest first
    alive: datetime  # its last commit
    judged: datetime | None  # when its last row was
    last: int  # number of that
    pruned: Pruned
    server: bool  # the database is one

    @property
    def running(self) -> bool:
        """Whether some process goes on with it now: that holds the lock of its output; on another machine,
        with a database that is a server, it commits at least every minute."""
        out = Path(self.output)
        locked = bool(FileLock(out.with_name(f"{out.name}.lock")).is_held)
        return locked or (self.server and abs(now() - self.alive) < 2.5 * ALIVE)

    @property
    def follows(self) -> list[str]:
        """Patterns of files; of a stream of an earlier version of this package perhaps its source."""
        return list(map(str, self.request.get("files") or [self.request.get("source") or ""]))

    @property
    def alarms_only(self) -> bool:
        """Whether rows without an alarm are not kept (nor counted in `last`)."""
        return bool(self.request.get("alarms_only"))

    def sentence(self) -> str:
        """Whether it runs and when it last judged, with the time in the local zone."""
        runs = "is running" if self.running else "is not running"
        if self.judged is None:
            return f"{runs}, and has judged nothing yet"
        return f"{runs}, and has judged nothing since {self.judged.astimezone():%Y-%m-%d %H:%M:%S}"


def now() -> datetime:
    """The time, as the queue has it."""
    return datetime.now(UTC)


class Streams(Registry):
    """The registry of a workspace with the streams that it watches."""

    schemas: ClassVar[tuple[Schema, ...]] = (*Registry.schemas, tables.STREAMS)

    def protect(self, request: Mapping[str, Any]) -> None:
        """Let only the owner read a database file with sensitive rows; StateError: it is somebody else's."""
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
                f"{file} is to have rows of sensitive data, and cannot be kept from others: "
                f"{error.strerror}; use a workspace of your own (SEQMLM_HOME)"
            ) from None

    # streams

    def begin_stream(self, output: str, request: Mapping[str, Any]) -> int:
        """Add a stream that has read nothing; its id."""
        row = tables.Stream(output=output, request=dict(request), counts={}, mark={}, written=0)
        with self.writing() as session:
            session.add(row)
            session.flush()
            return row.id

    def stream(self, output: str) -> StreamEntry | None:
        """The stream whose rows go to this file, with how far its files are; None where there is none."""
        state = tables.StreamFile
        query = select(tables.Stream).where(tables.Stream.output == output)
        with self.reading() as session:
            if (row := session.scalars(query).first()) is None:
                return None
            files = select(state.state).where(state.stream_id == row.id).order_by(state.number)
            return replace(_entry(session, row), files=tuple(session.scalars(files)))

    def streams(self) -> list[StreamEntry]:
        """All streams in the order they were begun, without how far their files are."""
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
        """Keep the work of a turn, all or nothing; the changes, as they are kept.

        It may be repeated: a connection that is lost during a commit does not say whether that was done.
        `notify` makes the notices of the changes, as they are kept.
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
        """Number and line of a stream's rows behind the `last` number, in order, up to a limit."""
        kind = tables.StreamRow
        query = select(kind.number, kind.line).where(kind.stream_id == stream, kind.number > last)
        with self.reading() as session:
            return [(n, line) for n, line in session.execute(query.order_by(kind.number).limit(limit))]

    def rows_since(self, stream: int, since: datetime) -> Iterator[tuple[datetime, bool, str]]:
        """When each row of a stream was judged from a time on, whether it is an alarm, and its line."""
        kind = tables.StreamRow
        period = (kind.stream_id == stream, kind.created >= since)
        first = select(func.min(kind.number)).where(*period).scalar_subquery()
        query = select(kind.created, kind.alarm, kind.line).where(*period, kind.number >= first)
        with self.reading() as session:
            ordered = query.order_by(kind.number).execution_options(yield_per=STEP)
            yield from ((time, alarm, line) for time, alarm, line in session.execute(ordered))

    def incident_rows(self, incident: Incident, limit: int) -> tuple[int, list[str]]:
        """The number of rows that an incident has, those that it silenced included, and their first lines."""
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
        """Incidents in the order they were opened; those of an id, stream, output or state, with a row judged
        `since`, or `standing`: not resolved, or their likes are silenced for good."""
        kind, streams = tables.Incident, tables.Stream
        equal = [(kind.id, id), (kind.stream_id, stream), (streams.output, output), (kind.state, state)]
        conditions = [column == value for column, value in cast(Any, equal) if value is not None]
        conditions += [] if since is None else [kind.updated >= since]
        conditions += [or_(kind.state != "resolved", kind.muted)] if standing else []
        query = select(kind, streams.output).join(streams, streams.id == kind.stream_id).where(*conditions)
        with self.reading() as session:
            return [_incident(row, name) for row, name in session.execute(query.order_by(kind.id))]

    def incident(self, incident: int) -> Incident:
        """The incident of an id; StateError: there is none."""
        if not (incidents := self.incidents(id=incident)):
            raise StateError(f"there is no incident {incident}; see 'seqmlm incidents list'")
        return incidents[0]

    def mark_incident(self, incident: int, **marks: Any) -> Incident:
        """Keep what a person says of an incident: `muted`, `note`, `verdict`, or the `state` (open or
        acknowledged, which is the verdict "fault" where none is given); StateError: there is none of this id.

        One that is resolved stays so, and its verdict is kept all the same. Where "normal" is taken back,
        its likes are heard again.
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
        """Delete what was judged until a time and is no longer needed of a stream, which may be running; to
        `pretend` is only to say what would be deleted.

        Rows go that are in the output and belong to no incident that stays; the last one stays, because the
        numbers of the next ones go on from it.
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
                    for number in ids:  # with what webhooks were told of it
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
    """Write what a stream did to an incident, doing it again changes nothing; the change with the id, and
    with what a person has said meanwhile."""
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
        ~kind.muted,  # else what is like it would be silent no more
        kind.id.not_in(waiting),  # of these somebody is still to be told
    )


# The queue of notices


def _queue(session: Session, stream: int, notice: Notice) -> None:
    """Add a notice to the queue, within the transaction of what it tells of, if it is not there."""
    kind, time = Notice, now()
    if session.scalars(select(kind.id).where(kind.key == notice.key)).first() is not None:
        return
    due = time + (UPDATES if notice.kind == "updated" else timedelta())
    incident = (kind.stream_id == stream, kind.sink == notice.sink, kind.incident == notice.incident)
    update = select(kind).where(*incident, kind.done.is_(None), kind.kind == "updated").limit(1)
    # Locked, where rows can be: it must not be confirmed between this and the change of its key.
    waiting = None if notice.kind == "opened" else session.scalars(update.with_for_update()).first()
    if waiting is not None:  # it is out of date
        waiting.key, waiting.body, waiting.kind = notice.key, notice.body, notice.kind
        waiting.due = waiting.due if notice.kind == "updated" else due
        return
    notice.stream_id, notice.attempts, notice.due, notice.created = stream, 0, due, time
    session.add(notice)
    session.flush()  # ids are in the order of the changes


class NoticeQueue:
    """The notices that webhooks are to get of a stream; each thread may have a queue.

    A notice waits until the webhook has it, whatever ends the process meanwhile, so each is sent at least
    once; its key is the same each time. Notices of one incident keep their order; those of others do not wait
    for them. Of an incident that changes often only the newest update waits.
    """

    def __init__(self, registry: Registry, stream: int) -> None:
        self._registry, self._stream = registry, stream

    def due(self, sink: str, now: datetime) -> list[Notice]:
        """Notices of a webhook that may be sent now, at most one of each incident; first those that have
        failed least, the oldest of them first, lest one that always fails is always asked first."""
        kind, earlier = Notice, aliased(Notice)
        waiting = (
            *(kind.stream_id == self._stream, kind.sink == sink, kind.done.is_(None)),
            # A time that no attempt was ever put off to: the clock went back since.
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
        """Say what came of an attempt: the webhook has it, or with an error it is given up (`done`); or it is
        put off until it is `due`. Its row may have become that of another notice while it was sent: that is
        left alone."""
        same = and_(Notice.id == notice.id, Notice.key == notice.key)
        with self._registry.writing() as session:
            values = {"attempts": notice.attempts + 1, "error": error, **times}
            session.execute(update(Notice).where(same).values(**values))

    def counts(self) -> dict[str, dict[str, int]]:
        """Notices of each webhook of this stream by state: "waiting", "delivered", "given_up"."""
        state = (Notice.sink, Notice.done.is_not(None), Notice.error.is_not(None))
        query = select(*state, func.count()).where(Notice.stream_id == self._stream).group_by(*state)
        counts: dict[str, dict[str, int]] = {}
        with self._registry.reading() as session:
            for sink, done, failed, number in session.execute(query.order_by(Notice.sink)):
                states = counts.setdefault(sink, {"waiting": 0, "delivered": 0, "given_up": 0})
                states["waiting" if not done else "given_up" if failed else "delivered"] += number
        return counts
