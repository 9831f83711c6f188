"""Streams in the database: rows, incidents, notices and calibrations, each committed with what it came of.

A transaction has all that one turn has done, so a kill neither loses nor doubles any of it. What happened to
an incident is the stream's to say, what it means to a person (acknowledged, muted, a note) that person's:
neither overwrites the other's columns, so a command may run while the stream does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from sqlalchemy import ColumnElement, and_, bindparam, delete, exists, func, insert, or_, select, update
from sqlalchemy.orm import Session, aliased

from seqmlm.engine.durable import FileLock
from seqmlm.errors import StateError, number_of
from seqmlm.registry import tables
from seqmlm.registry.database import utc
from seqmlm.registry.store import Registry

STATES = ("open", "acknowledged", "resolved")

UPDATES = timedelta(seconds=30)
"""An incident that goes on is told of once in this time."""

LONGEST = timedelta(seconds=300)
"""The longest time between two attempts to send a notice."""

ALIVE = timedelta(seconds=60)
"""Between commits of a stream that reads nothing: whoever looks at the database sees that it is alive."""

STEP = 5000
"""Rows that are deleted, or read, at a time: a stream that runs waits for no more."""

_SOME = 100  # notices that are looked up at a time
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
        """What broke, how much of it, and where."""
        what = self.what
        if self.new:
            more = f" and {len(self.new) - _NAMED} more" if len(self.new) > _NAMED else ""
            was = "was" if len(self.new) == 1 else "were"
            what = f"{', '.join(self.new[:_NAMED])}{more} {was} never seen"
        lines = number_of(self.lines, "line")
        count = f"{self.new_lines:,} of {lines}" if self.new_lines else lines
        if not self.lines:  # nothing came
            return f"{what}, {span(Path(self.place).name, self.start, self.end - 1)}"
        return f"{what}: {count}, {span(Path(self.place).name, self.start, self.end - 1)}"

    @property
    def first_line(self) -> str:
        return f"{self.place}:{self.start}"

    @property
    def last_line(self) -> str:
        return f"{self.place}:{self.end - 1}"

    @property
    def told_state(self) -> str:
        """The state for people, with what a person has said: "resolved, normal", "open, muted"."""
        said = "normal" if self.verdict == "normal" else "muted" if self.muted else ""
        return f"{self.state}, {said}" if said else self.state

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
_FACTS = {one.name for one in fields(Incident)} - {*_KEYS, *_TIMES, "output"}


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a commit did to an incident."""

    kind: Literal["opened", "updated", "resolved"]
    incident: Incident


Notice = tables.Notice
"""What one webhook is to be told: name of the webhook, a key unlike every other, and a body."""


class Figures(NamedTuple):
    """Statistics of one row."""

    number: int  # among the rows of the stream that have a score, from 1
    row: int | None  # of an alarm, the number of its row of results
    figures: bytes  # 64-bit floating-point numbers, little-endian


@dataclass(frozen=True, kw_only=True)
class RollingState:
    """A rolling calibration as it stands, or what became of it since the last commit."""

    state: Mapping[str, Any]  # JSON
    rows: Sequence[Figures]  # by number; of a change the new ones
    dropped: Sequence[int] = ()  # numbers of rows that are not needed any more
    anew: bool = False  # no earlier row is needed


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What was deleted of a stream, or would be; `through` is the number of the last row."""

    rows: int = 0
    through: int = 0
    incidents: int = 0

    def __add__(self, more: Pruned) -> Pruned:
        through = max(self.through, more.through)
        return Pruned(rows=self.rows + more.rows, through=through, incidents=self.incidents + more.incidents)


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
        held = bool(FileLock(out.with_name(f"{out.name}.lock")).held)
        return held or (self.server and abs(now() - self.alive) < 2.5 * ALIVE)

    @property
    def follows(self) -> list[str]:
        """Patterns of files, or the source."""
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

    def protect(self) -> None:
        """Let only the owner read a database that is a file: rows of sensitive data are in it; StateError:
        the file is somebody else's."""
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
        calibration: RollingState | None = None,
    ) -> list[Change]:
        """Keep what a stream has done since the last time, all or nothing; the changes, as they are kept.

        It may be repeated: a connection that is lost during a commit does not say whether that was done.

        Args:
            files: states of the generations that changed, with `number` and `done`.
            rows: (number, whether it is an alarm, line) of each new row.
            counts: of the whole stream.
            mark, written: where the output ends with the row of this number.
            belongs: numbers of new rows to the row that opened the incident each belongs to.
            notify: what webhooks are to be told of the changes, as they are kept.
            calibration: what became of its rolling calibration.
        """
        kind = tables.StreamRow
        with self.writing() as session:
            row = session.get_one(tables.Stream, stream)
            last = session.get(kind, (stream, rows[-1][0])) if rows else None
            if last is not None and last.line == rows[-1][2]:
                return [_kept(session, row, one) for one in changes]
            row.counts, row.mark, row.written, row.alive = dict(counts), dict(mark), written, now()
            for one in files:
                own = {"number": one["number"], "done": one["done"], "state": dict(one)}
                session.merge(tables.StreamFile(stream_id=stream, **own))
            names, owner = ("stream_id", "number", "alarm", "line", "incident"), belongs or {}
            new = [dict(zip(names, (stream, *one, owner.get(one[0])), strict=True)) for one in rows]
            if new:
                session.execute(insert(kind), new)
            if calibration is not None:
                _keep_calibration(session, row, calibration)
            told = [_kept(session, row, one) for one in changes]
            for notice in notify(told):
                _queue(session, stream, notice)
            return told

    # rows

    def stream_rows(self, stream: int, after: int, most: int) -> list[tuple[int, str]]:
        """Number and line of a stream's rows behind a number, in order, so many at most."""
        kind = tables.StreamRow
        query = select(kind.number, kind.line).where(kind.stream_id == stream, kind.number > after)
        with self.reading() as session:
            return [(n, line) for n, line in session.execute(query.order_by(kind.number).limit(most))]

    def rows_since(self, stream: int, since: datetime) -> Iterator[tuple[datetime, bool, str]]:
        """When each row of a stream was judged from a time on, whether it is an alarm, and its line."""
        kind = tables.StreamRow
        own = (kind.stream_id == stream, kind.created >= since)
        first = select(func.min(kind.number)).where(*own).scalar_subquery()
        query = select(kind.created, kind.alarm, kind.line).where(*own, kind.number >= first)
        with self.reading() as session:
            given = query.order_by(kind.number).execution_options(yield_per=STEP)
            for at, alarm, line in session.execute(given):
                yield utc(at), alarm, line

    def incident_rows(self, incident: Incident, most: int) -> tuple[int, list[str]]:
        """How many rows an incident has, those that it silenced included, and the first lines of them."""
        kind = tables.StreamRow
        own = (kind.stream_id == incident.stream_id, kind.incident == incident.row)
        lines = select(kind.line).where(*own).order_by(kind.number).limit(most)
        with self.reading() as session:
            return session.scalar(select(func.count()).where(*own)) or 0, list(session.scalars(lines))

    # calibrations

    def rolling(self, stream: int, since: datetime | None = None) -> RollingState | None:
        """The rolling calibration of a stream, with rows kept since a time; None where it has none."""
        kind = tables.StreamStatistics
        query = select(kind.number, kind.row, kind.figures).where(kind.stream_id == stream)
        if since is not None:
            query = query.where(kind.created >= since)
        with self.reading() as session:
            state = session.get_one(tables.Stream, stream).rolling
            found = [Figures(*row) for row in session.execute(query.order_by(kind.number))]
        return RollingState(state=state, rows=found) if state else None

    def owners(self, stream: int) -> dict[int, tuple[int, str | None]]:
        """Numbers of rows, among a stream's statistics, to the incident that each belongs to, and what a
        person took that for."""
        kind, line, incident = tables.StreamStatistics, tables.StreamRow, tables.Incident
        query = (
            select(kind.number, incident.id, incident.verdict)
            .join(line, and_(line.stream_id == kind.stream_id, line.number == kind.row))
            .join(incident, and_(incident.stream_id == line.stream_id, incident.row == line.incident))
            .where(kind.stream_id == stream)
        )
        with self.reading() as session:
            return {number: (own, verdict) for number, own, verdict in session.execute(query)}

    def faults(self, stream: int) -> set[int]:
        """Numbers, among a stream's statistics, of rows of incidents that a person took for a fault."""
        return {number for number, (_, verdict) in self.owners(stream).items() if verdict == "fault"}

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
        given = [(kind.id, id), (kind.stream_id, stream), (streams.output, output), (kind.state, state)]
        which = [column == value for column, value in cast(Any, given) if value is not None]
        which += [] if since is None else [kind.updated >= since]
        which += [or_(kind.state != "resolved", kind.muted)] if standing else []
        query = select(kind, streams.output).join(streams, streams.id == kind.stream_id).where(*which)
        with self.reading() as session:
            return [_incident(row, name) for row, name in session.execute(query.order_by(kind.id))]

    def incident(self, incident: int) -> Incident:
        """One incident; StateError: there is none of this id."""
        if not (found := self.incidents(id=incident)):
            raise StateError(f"there is no incident {incident}; see 'seqmlm incidents list'")
        return found[0]

    def mark_incident(self, incident: int, **said: Any) -> Incident:
        """Keep what a person says of an incident: `muted`, `note`, `verdict`, or the `state` (open or
        acknowledged, which is the verdict "fault" where none is given); StateError: there is none of this id.

        One that is resolved stays so, and its verdict is kept all the same. Where "normal" is taken back,
        its likes are heard again.
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
            return _incident(row, known.output)

    def prune(self, stream: int, before: datetime, *, pretend: bool = False) -> Pruned:
        """Delete what was judged before a time and is no longer needed of a stream, which may be running; to
        `pretend` is only to say what would be deleted.

        Rows go that are in the output and belong to no incident that stays; the last one stays, because the
        numbers of the next ones go on from it.
        """
        kind, over = tables.StreamRow, _old_incidents(stream, before)
        if pretend:
            with self.reading() as session:
                old = select(func.count(), func.max(kind.number)).where(_old_rows(session, stream, before))
                rows, through = session.execute(old).one()
                incidents = session.scalar(select(func.count()).select_from(tables.Incident).where(over))
            return Pruned(rows=rows, through=through or 0, incidents=incidents or 0)
        done, numbers = Pruned(), [0]
        while numbers:
            with self.writing() as session:
                row = session.get_one(tables.Stream, stream, with_for_update=True)
                which = _old_rows(session, stream, before)
                oldest = select(kind.number).where(which).order_by(kind.number).limit(STEP)
                if numbers := list(session.scalars(oldest)):
                    session.execute(delete(kind).where(which, kind.number <= numbers[-1]))
                    step = Pruned(rows=len(numbers), through=numbers[-1])
                else:
                    ids = list(session.scalars(select(tables.Incident.id).where(over)))
                    for one in ids:  # with what webhooks were told of it
                        session.execute(
                            delete(Notice).where(Notice.stream_id == stream, Notice.incident == one)
                        )
                        session.execute(delete(tables.Incident).where(tables.Incident.id == one))
                    step = Pruned(incidents=len(ids))
                row.pruned, done = asdict(Pruned(**row.pruned) + step), done + step
        return done

    def notices(self, stream: int) -> NoticeQueue:
        """What webhooks are to be told of a stream."""
        return NoticeQueue(self, stream)


def _entry(session: Session, row: tables.Stream) -> StreamEntry:
    kind = tables.StreamRow
    newest = select(kind.number, kind.created).where(kind.stream_id == row.id).order_by(kind.number.desc())
    last = session.execute(newest.limit(1)).one_or_none()
    names = ("id", "output", "request", "counts", "mark", "written")
    return StreamEntry(
        **{name: getattr(row, name) for name in names},
        alive=utc(row.alive),
        judged=None if last is None else utc(last.created),
        last=0 if last is None else last.number,
        pruned=Pruned(**row.pruned),
        server=session.get_bind().dialect.name != "sqlite",
    )


def _keep_calibration(session: Session, stream: tables.Stream, change: RollingState) -> None:
    """Write a change; doing it again changes nothing."""
    kind: Any = tables.StreamStatistics
    own = kind.stream_id == stream.id
    stream.rolling = dict(change.state)
    if change.anew or change.rows:
        first = 0 if change.anew else change.rows[0].number
        session.execute(delete(kind).where(own, kind.number >= first))
    if change.rows:
        session.execute(insert(kind), [{"stream_id": stream.id, **one._asdict()} for one in change.rows])
    if change.dropped:
        gone = delete(kind.__table__).where(own, kind.number == bindparam("gone"))
        session.execute(gone, [{"gone": number} for number in change.dropped])


def _kept(session: Session, stream: tables.Stream, change: Change) -> Change:
    """Write what a stream did to an incident, doing it again changes nothing; the change with the id, and
    with what a person has said meanwhile."""
    given, kind = change.incident, tables.Incident
    query = select(kind).where(kind.stream_id == stream.id, kind.row == given.row)
    row = session.scalars(query).one_or_none()
    if row is None:
        row = kind(stream_id=stream.id, row=given.row, state="open", muted=False, note="")
        session.add(row)
    if change.kind == "resolved":
        row.state = "resolved"
    row.facts = {name: getattr(given, name) for name in _FACTS}
    for name in _TIMES:
        setattr(row, name, getattr(given, name))
    session.flush()
    return replace(change, incident=_incident(row, stream.output))


def _incident(row: tables.Incident, output: str) -> Incident:
    facts = {name: row.facts[name] for name in _FACTS}
    known: dict[str, Any] = {n: tuple(one) if isinstance(one, list) else one for n, one in facts.items()}
    known |= {name: None if (one := getattr(row, name)) is None else utc(one) for name in _TIMES}
    return Incident(**known, **{name: getattr(row, name) for name in _KEYS}, output=output)


# What is old


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


def _old_rows(session: Session, stream: int, before: datetime) -> ColumnElement[bool]:
    kind, incident = tables.StreamRow, tables.Incident
    written = session.get_one(tables.Stream, stream).written
    last = session.scalar(select(func.max(kind.number)).where(kind.stream_id == stream)) or 0
    staying = select(incident.row).where(
        incident.stream_id == stream,
        or_(incident.state != "resolved", incident.updated >= before, _counts_as_fault(stream)),
    )
    return and_(
        kind.stream_id == stream,
        kind.number <= min(written, last - 1),
        kind.created < before,
        or_(kind.incident.is_(None), kind.incident.not_in(staying)),
    )


def _old_incidents(stream: int, before: datetime) -> ColumnElement[bool]:
    kind = tables.Incident
    waiting = select(Notice.incident).where(Notice.stream_id == stream, Notice.done.is_(None))
    return and_(
        kind.stream_id == stream,
        kind.state == "resolved",
        kind.updated < before,
        kind.resolved < before,
        ~kind.muted,  # else what is like it would be silent no more
        or_(kind.verdict.is_(None), ~_counts_as_fault(stream)),
        kind.id.not_in(waiting),  # of these somebody is still to be told
    )


# The queue of notices


def _queue(session: Session, stream: int, one: Notice) -> None:
    """Add a notice to the queue, within the transaction of what it tells of, if it is not there."""
    kind, time = Notice, now()
    if session.scalars(select(kind.id).where(kind.key == one.key)).first() is not None:
        return
    due = time + (UPDATES if one.kind == "updated" else timedelta())
    of = (kind.stream_id == stream, kind.sink == one.sink, kind.incident == one.incident)
    same = select(kind).where(*of, kind.done.is_(None), kind.kind == "updated").limit(1)
    # Locked, where rows can be: it must not be confirmed between this and the change of its key.
    waiting = None if one.kind == "opened" else session.scalars(same.with_for_update()).first()
    if waiting is not None:  # it is out of date
        waiting.key, waiting.body, waiting.kind = one.key, one.body, one.kind
        waiting.due = waiting.due if one.kind == "updated" else due
        return
    one.stream_id, one.attempts, one.due, one.created = stream, 0, due, time
    session.add(one)
    session.flush()  # ids are in the order of the changes


class NoticeQueue:
    """What webhooks are to be told of one stream, for whoever sends it; any thread may have its own.

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
        query = select(kind).where(*waiting).order_by(kind.attempts, kind.id).limit(_SOME)
        with self._registry.reading() as session:
            return list(session.scalars(query))

    def settle(self, one: Notice, *, error: str | None = None, **said: datetime) -> None:
        """Say what came of an attempt: the webhook has it, or with an error it is given up (`done`); or it is
        put off until it is `due`. Its row may have become that of another notice while it was sent: that is
        left alone."""
        mine = and_(Notice.id == one.id, Notice.key == one.key)
        with self._registry.writing() as session:
            values = {"attempts": one.attempts + 1, "error": error, **said}
            session.execute(update(Notice).where(mine).values(**values))

    def counts(self) -> dict[str, dict[str, int]]:
        """Of each webhook of this stream, also of earlier processes: "waiting", "delivered", "given_up"."""
        state = (Notice.sink, Notice.done.is_not(None), Notice.error.is_not(None))
        query = select(*state, func.count()).where(Notice.stream_id == self._stream).group_by(*state)
        found: dict[str, dict[str, int]] = {}
        with self._registry.reading() as session:
            for sink, done, failed, number in session.execute(query.order_by(Notice.sink)):
                of = found.setdefault(sink, {"waiting": 0, "delivered": 0, "given_up": 0})
                of["waiting" if not done else "given_up" if failed else "delivered"] += number
        return found
