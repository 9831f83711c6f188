"""Convert one log file from lines to records: find its format, its events, and its sessions or windows.

The format is found from the first lines, because names say little (app.log may be anything). For a stream
that begins unlike the rest, the format must be given.
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
"""Size of the longest line of a log."""

WINDOW = 64
"""Lines of a window if no option sets windows or sessions."""

LIVE_GAP = 60.0
"""Seconds without a line after which a session of a live input ends, if no session_gap is given."""

LOOKED_AT = 500
"""Number of first lines that determine the format."""

KEYS = re.compile(r"\s*(?:([^,\s]+)[,\t]\s*)?(\d+(?:\s+\d+)*)\s*", re.ASCII)
"""A line of a session file: event ids, perhaps after the session's id and a comma."""


def kind_of(texts: Sequence[str], named_fields: Fields) -> str:
    """Find the format from the first lines: "sessions", "jsonl", "csv", "tsv", a header name or "plain".

    If options name columns, a file with other names can also be a table.
    """
    lines = [text for text in texts[:LOOKED_AT] if text and not text.isspace()]
    if not lines:
        return "plain"
    if all(KEYS.fullmatch(line) for line in lines):
        return "sessions"
    first = lines[:20]  # a banner may come first
    if sum(json_object(line) is not None for line in first) * 2 >= len(first):
        return "jsonl"
    delimiter = delimiter_of(lines[0], named_fields)
    if delimiter is not None:
        return "tsv" if delimiter == "\t" else "csv"
    return likely_format(lines) or "plain"


# From lines to records

# If no line has a header: lines that certainly belong to the message before them.
_INDENTED = re.compile(r"\s|Caused by: |\.\.\. \d+ more")

_ALONE = (
    "a line without the header of the format, read as a separate event (option multiline defines where an "
    "event begins)"
)


@dataclass(frozen=True)
class Reading:
    """Read a log (also .gz, .zst, "-") as windows or sessions: records whose raw form is a `LogLines`.

    `meta["lines"]` has the 1-based line where each message begins. `meta["labels"]` has the label of each
    message in the file. `meta["label"]` is the label of the session, or of all its lines. `meta["origins"]`
    has the origin of each message (see `origins`), or None if no header names one. Sensitive logs have no
    origins. `document` is the session, or the stretch of windows that share lines.

    Args:
        kind: name of a format in `KINDS`; "auto" finds it from the first lines.
        path: the file.
        problems: receives lines and records that cannot be read.
        session: regular expression that finds the id of a line's session: group 1, or the whole match. A line
            with several ids belongs to each session. The value "none" reads windows. The value "auto" uses
            ids from a field. Without one, it uses common ids (blk_1, request_id=...) if most of the first
            lines have them. If a window is given, "auto" reads windows, unless session_field is given too.
        window: number of lines in a window, or its duration ("5m"); 64 lines by default. With sessions, lines
            that belong to no session make such windows.
        step: distance from one window to the next, in the same kind; None for windows without overlap.
        session_gap: pause that ends a session ("30m", or seconds); None: it lasts until the end of the file.
            For a live standard input, our own clock measures it too, and None means one minute.
        max_open, max_held: maximum number of open sessions, and of the lines in all of them. Beyond that, the
            session that was idle longest ends, with a note.
        max_session: most lines in one session's record; more lines make another record.
        multiline: with "auto", lines without the format's header join the message before them, if they are
            indented or look like part of a trace. With "off", they do not. A regular expression describes
            the lines that begin a message.
        zone: time zone of times without one: UTC, an offset (+02:00), or a name (Europe/Berlin).
        year: year of the first line, if times have none (syslog); None: the latest year that the file's age
            allows.
        date_format: format of dates in JSON lines and tables, such as %m/%d/%Y, if they are not common log
            times. None uses the only order of day and month that fits all of the first dates.
        keep_header: whether messages are whole lines.
        undecodable: "refuse" lines that are not UTF-8 or contain NUL bytes, "replace" these bytes, or make
            the line a separate "event" with the text "(binary)". In a watched file, no line is refused.
        text: the same as message_field; the name is common to data sets of all fields.
        message_field, time_field, session_field, label_field: fields of JSON lines and tables with uncommon
            names. Several fields of a time have commas between them.
        labels: a CSV or TSV file with a session's id and its label in the first two columns.
        fields: "auto" reads requests in access logs, key=value pairs and JSON objects as fields in training,
            "none" as words. A trained model reads them as in its training.
        keep: in training, fields that are in templates with each of their values, however many; several with
            commas between them.
        mask: in training, fields that are never in templates, in the same form.
        patterns: in training, a file with more kinds of values, one per line: a name in capital letters,
            white space, and a regular expression.
        max_bytes: longest line.
        holes: whether a line [MASK], which is a gap to fill, belongs to the session of the line before it.

    Raises:
        UsageError: options that are invalid or do not fit together.
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
            raise UsageError("keep and mask name fields, but fields=none reads none: leave out fields=none")
        _ = self.line_windows, self.limits, self.dates, self.named_labels  # report errors at once
        if self.undecodable not in get_args(Undecodable):
            raise UsageError(f"undecodable is refuse, replace or event; got {self.undecodable!r}")

    @property
    def source(self) -> str:
        """The file, or a live input."""
        return source_of(self.path)

    @property
    def followed(self) -> bool:
        """Whether other programs keep writing to the file. Reading then continues in any case."""
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
        """The windows for lines without sessions."""
        return window_of(WINDOW if self.window is None else self.window, self.step)

    @cached_property
    def limits(self) -> Limits:
        """The limits at which sessions end."""
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
        """The reader of times and their dates."""
        form = self.date_format
        if form is not None and not is_form(form):
            raise UsageError(f"date_format must be a pattern such as %m/%d/%Y; got {form!r}")
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
        """The file's lines as records, without those that an earlier reader of a live input has passed on."""
        batches = line_batches(
            self.source, self.problems, undecodable=self.undecodable, max_bytes=self.max_bytes
        )
        memory = memory_of(self.source)
        for record in self._records(without_escapes(batches, self.problems)):
            if memory is not None and memory.is_past(record.line):
                continue  # a format with one record per line; other formats have left it out before
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
            if kind == "cri":  # every line of a trace has the header of the runtime
                events = join_parts(list(map(headers.runtime_event, batch)) for batch in events)
            yield from self._events(join_messages(events, *self._continues(kind), self.problems))

    def _continues(self, kind: str) -> tuple[Continues | None, re.Pattern[str] | None]:
        """(whether a line without a header continues a message, the user's pattern for first lines)."""
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
        """Whether a line without a header has the form of a continuation; other lines are counted."""
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
        """A record with its id, its subject, and the label that options give its session."""
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
        """The record of a session that is in one line."""
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
        """The records of a table with one session per row and its event ids in one column."""
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
        """The records of JSON objects, with one line or many lines each."""
        rows = objects.read_objects(batches)
        first = next((batch for batch in rows if batch), None)
        while first is not None and not self.followed and not objects.only_objects(first):
            for number, text in first:  # perhaps the file has another format
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
        if self.followed or not sessions:  # otherwise a text is a bad record, which is counted later
            rows = objects.count_texts(rows, self.source, self.problems)
        if not sessions:
            yield from self._events(self._object_events(rows))
        elif (all_fields := objects.fields_of(object_rows, self.named_fields, self.dates)) is not None:
            yield from self._session_objects(rows, all_fields)

    def _object_events(self, rows: Iterator[list[JsonRow]]) -> Iterator[Events]:
        """Objects, and the text between them, as events. The first objects determine the fields."""
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
        # Fields next to a message are read, unless an option names the message. Other fields of the journal
        # describe the process and are not read.
        reads_fields = (
            self.fields == "auto" and self.named_fields.message is None and JOURNAL not in object_rows[0][1]
        )
        format_message = objects.message_format(fields) if reads_fields else None
        yield from objects.events_of(rows, fields, self.named_fields, self.dates, format_message)

    def _session_objects(self, batches: Iterator[list[JsonRow]], fields: Fields) -> Iterator[Record]:
        """The records of objects with one session each, whose messages are in one field."""
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
        """The records of lines with one session each: event ids between spaces."""
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
                    remedy = "write event ids as whole numbers between spaces, or name the format of the file"
                    error = DataError(reason, source=self.source, line=line, remedy=remedy)
                    self.problems.bad(error, text)
                    continue
                yield self._session(LogLines(lines=tuple(match[2].split()), keys=True), match[1], line)


def _with_gaps(ids: Ids, first: Events) -> Ids:
    """A function that finds the ids of events.

    A gap has the ids of the line before it, or else of the first line.
    """
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
    """Seconds since 1970-01-01 UTC when a file was last written; the present time for standard input."""
    try:
        return time.time() if str(path) == "-" else Path(path).stat().st_mtime
    except OSError:
        return time.time()  # the reader reports errors of the file
