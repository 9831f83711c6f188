"""One log file on its way from lines to records: its format, its events, its sessions or windows.

The format is found by the first lines, because names say little (app.log may be anything); a stream that
begins unlike the rest has to be given its format.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import get_args

from seqmlm.data.clock import Clock, is_form
from seqmlm.data.files import live_of, memory_of, source_of
from seqmlm.data.lines import Undecodable, lines
from seqmlm.data.problems import Problems
from seqmlm.data.readers.objects import json_object, no_object
from seqmlm.data.record import Record
from seqmlm.data.splits import hash64
from seqmlm.domains.holes import MASK
from seqmlm.domains.logs.readers import headers, objects
from seqmlm.domains.logs.readers.escapes import without_escapes
from seqmlm.domains.logs.readers.events import (
    Continues,
    Event,
    Events,
    Lines,
    LogLines,
    clean_events,
    join_messages,
    join_parts,
    line_batches,
    peek,
)
from seqmlm.domains.logs.readers.headers import likely_format
from seqmlm.domains.logs.readers.objects import (
    JOURNAL,
    LISTS,
    Dates,
    Fields,
    JsonRow,
    LogTable,
    delimiter_of,
    read_time,
    text_event,
)
from seqmlm.domains.logs.readers.origins import NOTHING
from seqmlm.domains.logs.readers.rotations import service_of
from seqmlm.domains.logs.readers.sessions import (
    Ids,
    Limits,
    Piece,
    Sessions,
    Window,
    id_finder,
    ids_recur,
    open_id_finder,
    pattern_of,
    unread_events,
    usual_pattern,
    window_of,
    windows,
)
from seqmlm.domains.logs.readers.traces import GOES_ON
from seqmlm.errors import DataError, UsageError
from seqmlm.parsing import duration

MAX_BYTES = 4 << 20
"""Longest line of a log that is taken for one."""

WINDOW = 64
"""Lines of a window where nothing is said of windows or sessions."""

LIVE_GAP = 60.0
"""Seconds without a line after which a session of a live input is over, where no session_gap is given."""

LOOKED_AT = 500
"""Lines that decide."""

KEYS = re.compile(r"\s*(?:([^,\s]+)[,\t]\s*)?(\d+(?:\s+\d+)*)\s*", re.ASCII)
"""A line of a session file: event ids, before them perhaps the session's id and a comma."""


def kind_of(texts: Sequence[str], named_fields: Fields) -> str:
    """ "sessions", "jsonl", "csv", "tsv", the name of a header, or "plain", by the first lines. Columns asked
    for make a table of a file whose own names are unusual."""
    lines = [text for text in texts[:LOOKED_AT] if text and not text.isspace()]
    if not lines:
        return "plain"
    if all(KEYS.fullmatch(line) for line in lines):
        return "sessions"
    first = lines[:20]  # a banner may come before
    if sum(json_object(line) is not None for line in first) * 2 >= len(first):
        return "jsonl"
    delimiter = delimiter_of(lines[0], named_fields)
    if delimiter is not None:
        return "tsv" if delimiter == "\t" else "csv"
    return likely_format(lines) or "plain"


# From lines to records

# Where no line has a header: what is surely of the message before.
_INDENTED = re.compile(r"\s|Caused by: |\.\.\. \d+ more")

_ALONE = (
    "a line without the header of the format, an event of its own (option multiline says what begins one)"
)


@dataclass(frozen=True)
class Reading:
    """Read a log (also .gz, .zst, "-") as windows or sessions: records whose raw is a `LogLines`.

    `meta["lines"]` has the 1-based line each message begins on; `meta["labels"]` what the file calls each and
    `meta["label"]` what it calls the session, or all lines of it; `meta["origins"]` where each comes from
    (see `origins`), and None where no header says so; sensitive logs have none. `document` is the session,
    or the stretch of windows that share lines.

    Args:
        kind: name of a format in `KINDS`; "auto" tells it by the first lines.
        path: the file.
        problems: receives what cannot be read.
        session: expression whose group 1, else whole match, is the id of a line's session (a line with
            several belongs to each); "none" for windows; "auto" takes ids that a field names, or usual ones
            (blk_1, request_id=...) where most of the first lines have them, unless a window is given.
        window: lines of a window, or its duration ("5m"); 64 lines where nothing else is said. With sessions,
            lines that belong to none make such windows.
        step: from one window to the next, in the same kind; None for windows side by side.
        session_gap: pause that ends a session ("30m", or seconds); None: it lasts to the end of the file. On
            a live standard input it is also measured by our own clock, and a minute if it is None.
        max_open, max_held: most sessions open at a time, and most lines of them together; beyond it the one
            idle longest is ended, with a note.
        max_session: most lines of one session's record; further ones make another.
        multiline: "auto" gives lines without the header of the format that go on by their form (indented, of
            a trace) to the message before; "off"; or an expression for the lines that begin a message.
        zone: of times that name none: UTC, an offset (+02:00), or a name (Europe/Berlin).
        year: of the first line, where times have none (syslog); None: the latest the file's age allows.
        date_format: how JSON lines and tables write their dates, such as %m/%d/%Y, where these are no usual
            times of logs; None: in the one order of day and month that all of the first ones fit.
        keep_header: messages are whole lines.
        undecodable: "refuse" lines that are no UTF-8 or hold NUL bytes; "replace" those bytes; or take such a
            line for an "event" of its own, "(binary)". A file that is watched has no line refused.
        text: the same as message_field, as data sets of all fields have it.
        message_field, time_field, session_field, label_field: of JSON lines and tables, where names are not
            the usual ones; several fields of a time with commas between them.
        labels: a CSV or TSV file with a session's id and its label in the first two columns.
        fields: "auto" takes requests of access logs, key=value pairs and JSON objects for fields when a model
            is trained, "none" for words; a trained model reads them as it was trained.
        keep: when a model is trained, fields that stand in templates with each of their values, however many;
            several with commas between them.
        mask: when a model is trained, fields that never do, in the same way.
        patterns: when a model is trained, a file of further kinds of values, one a line: a name in capital
            letters, white space, a regular expression.
        max_bytes: longest line.
        holes: a line [MASK], which is to be filled in, is of the session of the line before it.

    Raises:
        UsageError: options that make no sense.
    """

    kind: str
    path: str | Path
    problems: Problems
    _: KW_ONLY
    session: str = "auto"
    window: int | str | None = None
    step: int | str | None = None
    session_gap: int | str | None = None
    max_open: int = 50_000
    max_held: int = 1_000_000
    max_session: int = 10_000
    multiline: str = "auto"
    zone: str = "UTC"
    year: int | None = None
    date_format: str | None = None
    keep_header: bool = False
    undecodable: Undecodable = "refuse"
    text: str | None = None
    message_field: str | None = None
    time_field: str | None = None
    session_field: str | None = None
    label_field: str | None = None
    labels: str | None = None
    fields: str = "auto"
    keep: str | None = None
    mask: str | None = None
    patterns: str | None = None
    max_bytes: int = MAX_BYTES
    holes: bool = False

    def __post_init__(self) -> None:
        if self.fields not in ("auto", "none"):
            raise UsageError(f"fields is auto or none; got {self.fields!r}")
        if self.fields == "none" and (self.keep or self.mask):
            raise UsageError("keep and mask name fields, and fields=none reads none: leave one of them out")
        _ = self.line_windows, self.limits, self.dates, self.named_labels  # what is wrong is said at once
        if self.undecodable not in get_args(Undecodable):
            raise UsageError(f"undecodable is refuse, replace or event; got {self.undecodable!r}")

    @property
    def source(self) -> str:
        """The file, or a live input."""
        return source_of(self.path)

    @property
    def followed(self) -> bool:
        """Whether others write to the file for good: then reading goes on whatever comes."""
        return memory_of(self.source) is not None

    @property
    def name(self) -> str:
        """The name of the file."""
        return Path(self.path).name

    @cached_property
    def named_fields(self) -> Fields:
        """The fields that options name."""
        message = self.text or self.message_field
        return Fields(
            message=message, time=self.time_field, session=self.session_field, label=self.label_field
        )

    @cached_property
    def line_windows(self) -> Window:
        """The windows of lines without sessions."""
        return window_of(WINDOW if self.window is None else self.window, self.step)

    @cached_property
    def limits(self) -> Limits:
        """The limits at which sessions are over."""
        gap = None
        if self.session_gap is not None:
            session_gap = self.session_gap
            gap = float(session_gap) if isinstance(session_gap, int) else duration(session_gap)
            if not gap:
                raise UsageError(f"session_gap is a duration such as 90s, 30m, 1h; got {session_gap!r}")
        idle = None if live_of(self.path) is None else gap or LIVE_GAP
        maxima = {"max_open": self.max_open, "max_held": self.max_held, "max_lines": self.max_session}
        return Limits(gap=gap, idle=idle, **maxima)

    @cached_property
    def dates(self) -> Dates:
        """The reader of times and of their dates."""
        form = self.date_format
        if form is not None and not is_form(form):
            raise UsageError(f"date_format takes how a date is written, such as %m/%d/%Y; got {form!r}")
        live = live_of(self.path) is not None
        clock = Clock(self.zone, self.year, _modification_time(self.path), live=live)
        if form is not None:
            clock.read_dates(objects.moments_of(form))
        return Dates(clock, self.source, self.problems, form is not None, live=self.followed)

    @cached_property
    def named_labels(self) -> dict[str, str]:
        """Session id to label, from a table whose first line names its columns."""
        labels: dict[str, str] = {}
        for number, text in lines(self.labels, self.problems) if self.labels is not None else ():
            cells = text.split("\t" if "\t" in text else ",")
            if number > 1 and len(cells) > 1:
                labels[cells[0]] = cells[1]
        return labels

    def records(self) -> Iterator[Record]:
        """The file's lines as records, without those that an earlier reader of a live input has handed on."""
        batches = line_batches(
            self.source, self.problems, undecodable=self.undecodable, max_bytes=self.max_bytes
        )
        memory = memory_of(self.source)
        for record in self._records(without_escapes(batches, self.problems)):
            if memory is not None and memory.is_past(record.line):
                continue  # of a format with a record a line; those of others have been left out before
            if memory is not None:
                memory.last_line = max(memory.last_line, record.line)
            yield record

    def _records(self, batches: Iterator[Lines]) -> Iterator[Record]:
        """The records of the file's lines, by its format."""
        first, batches = peek(batches)
        kind = self.kind if self.kind != "auto" else kind_of(first.texts, self.named_fields)
        if kind == "sessions":
            yield from self._key_sessions(batches)
        elif kind in ("csv", "tsv"):
            yield from self._table(kind, first, batches)
        elif kind in ("jsonl", "journal", "docker"):
            yield from self._objects(batches)
        else:
            header = None if kind == "plain" else kind
            events = headers.parse_lines(header, batches, self.dates.clock, self.keep_header)
            if kind == "cri":  # every line of a trace has the runtime's header
                events = join_parts(list(map(headers.runtime_event, batch)) for batch in events)
            yield from self._events(join_messages(events, *self._continues(kind), self.problems))

    def _continues(self, kind: str) -> tuple[Continues | None, re.Pattern[str] | None]:
        """Whether a line without header continues a message, and what begins one, where the user says so."""
        choice = self.multiline
        if choice == "off":
            return None, None
        if choice != "auto":
            try:
                return lambda line: True, re.compile(choice)
            except re.error as error:
                raise UsageError(f"multiline is auto, off or a regular expression: {error}") from None
        if kind in ("plain", "docker", "cri"):
            return lambda line: _INDENTED.match(line) is not None, None
        return self._goes_on, None

    def _goes_on(self, line: str) -> bool:
        """Whether a line without header is of the message before by its form; others are counted."""
        goes_on = GOES_ON.match(line) is not None
        if not goes_on:
            self.problems.note(_ALONE, source=self.source)
        return goes_on

    def _events(self, events: Iterator[Events]) -> Iterator[Record]:
        """The records of events: sessions or windows."""
        events = clean_events(events, self.problems)
        first = next(filter(None, events), None)
        if first is None:
            return
        events = chain([first], events)
        ids, memory = self._ids(first), memory_of(self.source)
        if memory is not None:
            events = unread_events(events, memory)
        if ids is None:
            pieces = windows(events, self.line_windows, self.source, self.problems, memory)
        else:
            ids = _with_gaps(ids, first) if self.holes else ids
            open_ids = ids if memory is None else open_id_finder(ids, memory)
            sessions = Sessions(open_ids, self.limits, self.line_windows, self.source, self.problems)
            if memory is not None:
                memory.held = sessions.waiting_lines
            pieces = sessions(events)
        for piece in pieces:
            yield self._record(piece)

    def _ids(self, first: Events) -> Ids | None:
        """A function that finds the sessions of an event; None for windows."""
        choice = self.session
        if choice not in ("auto", "none"):
            return id_finder(pattern_of(choice))
        if choice == "none" or (
            (self.window, self.step) != (None, None) and self.named_fields.session is None
        ):
            return None
        if first[0].sessions is not None:
            has_field = self.named_fields.session is not None
            named = has_field or ids_recur([event.sessions or () for event in first])
            return (lambda event: event.sessions or ()) if named else None
        pattern = usual_pattern(first)
        return None if pattern is None else id_finder(pattern)

    def _record(self, piece: Piece) -> Record:
        """The record of a piece of the log: a window, or a session."""
        numbers, messages, _, labels, origins = zip(*piece.lines, strict=True)
        meta: dict[str, object] = {"lines": numbers}
        if any(label is not None for label in labels):
            meta["labels"] = labels
            if piece.session is not None and len(set(labels)) == 1:
                meta["label"] = labels[0]
        if not self.problems.sensitive:
            named = any(origin is not None for origin in origins)  # text between objects names nothing
            meta["origins"] = tuple(origin or NOTHING for origin in origins) if named else None
        windowed = piece.session is None and not self.line_windows.by_time
        raw = LogLines(lines=messages, times=piece.times, windowed=windowed)
        return self._build_record(raw, piece.session, numbers[0], f"{self.name}:{piece.group}", meta)

    def _build_record(
        self, raw: LogLines, session: str | None, line: int, group: str, meta: dict[str, object]
    ) -> Record:
        """A record with its id, its subject and the label that options give its session."""
        place = f"{self.name}:{line}"
        if session is not None and session in self.named_labels:
            meta["label"] = self.named_labels[session]
        if "label" in meta and self.named_fields.label is not None:
            meta[self.named_fields.label] = meta["label"]
        if session is not None and self.problems.sensitive:
            session = f"{hash64(session) & (1 << 64) - 1:016x}"  # an id may be a person's
        return Record(
            id=session or place,
            raw=replace(raw, subject=service_of(self.source) if session is None else f"session {session}"),
            source=self.source,
            line=line,
            document=session or group,
            meta=meta,
        )

    def _session(self, raw: LogLines, session: str | None, line: int, label: str | None = None) -> Record:
        """The record of a session that stands in one line."""
        meta: dict[str, object] = {"lines": (line,) * len(raw.lines)}
        if label is not None:
            meta["label"] = label
        return self._build_record(raw, session, line, f"{self.name}:{line}", meta)

    def _table(self, kind: str, first: Lines, batches: Iterator[Lines]) -> Iterator[Record]:
        """The records of a table."""
        header = next((text for text in first.texts if text and not text.isspace()), "")
        delimiter = "\t" if kind == "tsv" else (delimiter_of(header, self.named_fields) or ",")
        table = LogTable(batches, delimiter, self.named_fields, self.max_bytes, self.dates)
        fields = table.fields
        if fields is None and self.followed:
            rows = chain([[table.header]], table.batches())
            yield from self._events(
                [text_event(line, table.text(row)) for line, row in batch] for batch in rows
            )
        elif fields is None:
            return
        elif str(fields.message).lower() in LISTS and self.named_fields.message is None:
            yield from self._session_rows(table, fields)
        else:
            yield from self._events(table.events(fields))

    def _session_rows(self, table: LogTable, fields: Fields) -> Iterator[Record]:
        """The records of a table with a session a row, whose event ids are in one column."""
        at: dict[str | None, int] = {name: i for i, name in enumerate(table.names)}
        for rows in table.batches():
            for line, row in rows:
                if len(row) < len(table.names):
                    yield self._session(LogLines(lines=(table.text(row),), keys=True), None, line)
                    continue
                keys = tuple(row[at[fields.message]].split())
                if not keys:
                    self.problems.note("a session without events")
                    continue
                session, label = (
                    row[at[column]] if column else None for column in (fields.session, fields.label)
                )
                raw = LogLines(lines=keys, keys=all(map(str.isdecimal, keys)))
                yield self._session(raw, session, line, label)

    def _objects(self, batches: Iterator[Lines]) -> Iterator[Record]:
        """The records of JSON objects, one or many lines each."""
        rows = objects.read_objects(batches)
        first = next((batch for batch in rows if batch), None)
        while first is not None and not self.followed and not objects.only_objects(first):
            for number, text in first:  # perhaps it is a file of another format
                self.problems.bad(no_object(self.source, number), str(text))
            first = next((batch for batch in rows if batch), None)
        if first is None:
            return
        rows, object_rows = chain([first], rows), objects.only_objects(first)
        fields = self.named_fields.choose([list(row) for _, row in object_rows])
        sessions = (
            bool(object_rows)
            and fields.message is not None
            and objects.is_session(object_rows[0][1], fields.message)
        )
        if self.followed or not sessions:  # else a text is a bad record, which is counted where it is met
            rows = objects.count_texts(rows, self.source, self.problems)
        if not sessions:
            yield from self._events(self._object_events(rows))
        elif (all_fields := objects.fields_of(object_rows, self.named_fields, self.dates)) is not None:
            yield from self._session_objects(rows, all_fields)

    def _object_events(self, rows: Iterator[list[JsonRow]]) -> Iterator[Events]:
        """Objects and what stands between them as events; the first objects tell what their fields are."""
        object_rows: list[objects.ObjectRow] = []
        for batch in rows:
            if object_rows := objects.only_objects(batch):
                rows = chain([batch], rows)
                break
            yield [text_event(number, str(text)) for number, text in batch]
        if not object_rows:
            return
        if self.named_fields == Fields() and objects.is_container(object_rows[0][1]):
            events = join_parts(objects.container_events(rows, self.dates))
            yield from join_messages(events, *self._continues("docker"), self.problems)
            return
        if self.fields == "auto" and objects.lacks_message(object_rows, self.named_fields):
            yield from objects.json_events(rows, self.named_fields, self.dates)
            return
        fields = objects.fields_of(object_rows, self.named_fields, self.dates)
        if fields is None and self.followed:
            yield from objects.json_events(rows, self.named_fields, self.dates)
        if fields is None:
            return
        # What stands beside a message is read, but not where one field was named, nor of the journal, whose
        # other fields are about the process.
        reads_fields = (
            self.fields == "auto" and self.named_fields.message is None and JOURNAL not in object_rows[0][1]
        )
        format_message = objects.message_format(fields) if reads_fields else None
        yield from objects.events_of(rows, fields, self.named_fields, self.dates, format_message)

    def _session_objects(self, batches: Iterator[list[JsonRow]], fields: Fields) -> Iterator[Record]:
        """The records of objects with a session each, whose messages are in one field."""
        assert fields.message is not None
        for line, row in chain.from_iterable(batches):
            texts = None if isinstance(row, str) else row.get(fields.message)
            is_list = isinstance(texts, list) and texts and all(isinstance(t, (str, int)) for t in texts)
            if isinstance(row, str) or not isinstance(texts, list) or not is_list:
                if self.followed:
                    text = row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)
                    yield self._session(LogLines(lines=(text,)), None, line)
                elif isinstance(row, str):
                    self.problems.bad(no_object(self.source, line), row)
                else:
                    self.problems.bad(objects.no_message(fields.message, self.source, line))
                continue
            session = None if fields.session is None else row.get(fields.session)
            times = row.get(fields.times[0]) if len(fields.times) == 1 else None
            has_times = isinstance(times, list) and len(times) == len(texts)
            timed = ((line, moment) for moment in times or ())
            if has_times and not self.dates.can_read(timed, fields.times[0]):
                return
            raw = LogLines(
                lines=tuple(map(str, texts)),
                times=tuple(read_time(moment, self.dates.clock) for moment in times or ())
                if has_times
                else None,
                keys=all(str(t).isdecimal() for t in texts),
            )
            label = None if fields.label is None else row.get(fields.label)
            session, label = (None if name is None else str(name) for name in (session, label))
            yield self._session(raw, session, line, label)

    def _key_sessions(self, batches: Iterator[Lines]) -> Iterator[Record]:
        """The records of lines with a session each: event ids between spaces."""
        for numbers, texts in batches:
            for line, text in zip(numbers, texts, strict=True):
                if not text or text.isspace():
                    continue
                match = KEYS.fullmatch(text)
                if match is None and self.followed:
                    yield self._session(LogLines(lines=(text,), keys=True), None, line)
                    continue
                if match is None:
                    reason = "a line of a session file that is not event ids"
                    remedy = "event ids are whole numbers between spaces; name the format the file has"
                    error = DataError(reason, source=self.source, line=line, remedy=remedy)
                    self.problems.bad(error, text)
                    continue
                yield self._session(LogLines(lines=tuple(match[2].split()), keys=True), match[1], line)


def _with_gaps(ids: Ids, first: Events) -> Ids:
    """A function that finds the ids of events; a line that is a gap has those of the line before it, or else
    of the first line."""
    last = next(filter(None, map(ids, first)), ())

    def event_ids(event: Event) -> Sequence[str]:
        nonlocal last
        names = ids(event)
        if not names and event.message.strip() == MASK:
            return last
        last = names or last
        return names

    return event_ids


def _modification_time(path: str | Path) -> float:
    """Seconds since 1970-01-01 UTC at which a file was last written; now for standard input."""
    try:
        return time.time() if str(path) == "-" else Path(path).stat().st_mtime
    except OSError:
        return time.time()  # what is wrong with the file is said where it is read
