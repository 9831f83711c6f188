"""Read logs whose lines have named fields: JSON objects and rows of tables.

The fields with the message, the time, the session and the label are found by their common names, because
every system has its own. Options name others.
"""

from __future__ import annotations

import csv
import json
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import isnan
from typing import Any

from seqmlm.data.clock import (
    NAN,
    Clock,
    Moment,
    common,
    epoch,
    is_date,
    moments,
    order_error,
    orders,
    read_as,
)
from seqmlm.data.counts import Things
from seqmlm.data.problems import Problems
from seqmlm.data.readers.objects import json_object
from seqmlm.data.readers.tables import missing, rows_of, too_few_fields
from seqmlm.domains.logs.readers.events import Event, Events, Lines, batched
from seqmlm.domains.logs.readers.origins import NOTHING, Origin, origin_reader
from seqmlm.domains.logs.readers.traces import TextEvent
from seqmlm.errors import DataError
from seqmlm.parsing import word_list

MESSAGE = ("message", "content", "msg", "log", "text", "@message", "body", "event")
LISTS = ("templates", "sequence", "lines", "messages", "events", "eventsequence")
TIME = ("timestamp", "@timestamp", "__realtime_timestamp", "datetime", "ts", "asctime")
TIME_PARTS = ("month", "date", "day", "time")
SESSION = ("session", "session_id", "sessionid", "seq_id", "blockid", "trace_id", "traceid", "request_id")
LABEL = ("label", "anomaly", "is_anomaly")


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Names of fields; None means that the field is found by its common names.

    Attributes:
        message: the field of the message, or of the list of a session's lines.
        time: the field of the time, or several names with commas between them (date,time).
        session: the field of the session's id.
        label: the field of the label.
    """

    message: str | None = None
    time: str | None = None
    session: str | None = None
    label: str | None = None

    @property
    def times(self) -> tuple[str, ...]:
        """The fields whose values make a time."""
        return tuple(self.time.split(",")) if self.time else ()

    def choose(self, rows: Sequence[Collection[str]]) -> Fields:
        """Choose the fields to read from the names in each line.

        Among several common names, the one in most lines is chosen. A line with several of these names counts
        for the most common one.
        """
        lower = [{name.lower(): name for name in reversed([*names])} for names in rows]

        def usual(usual_names: Iterable[str]) -> str | None:
            """The name among the common ones that most lines have; None if no line has one."""
            order = list(usual_names)
            matches = (
                next((names[usual_name] for usual_name in order if usual_name in names), None)
                for names in lower
            )
            counts = Counter(name for name in matches if name is not None)
            return max(counts, key=lambda name: (counts[name], -order.index(name.lower())), default=None)

        parts = [name for name in dict.fromkeys(chain.from_iterable(rows)) if name.lower() in TIME_PARTS]
        split = ",".join(parts) if any(name.lower() == "time" for name in parts) else None
        return Fields(
            message=self.message or usual((*MESSAGE, *LISTS)),
            time=self.time or usual(TIME) or split,
            session=self.session or usual(SESSION),
            label=self.label or usual(LABEL),
        )

    def missing(self, named_fields: Fields, names: Iterable[str]) -> tuple[str, str] | None:
        """(name, option) of the first missing field that is needed or named by an option."""
        needed = [(self.message or "message", "message_field")]
        needed += [(name, "time_field") for name in self.times if named_fields.time is not None]
        needed += [(self.session, "session_field")] if self.session else []
        needed += [(self.label, "label_field")] if self.label else []
        there = set(names) if self.message else set()
        return next((pair for pair in needed if pair[0] not in there), None)


def read_time(value: Any, clock: Clock) -> float:
    """Seconds since 1970-01-01 UTC for a field's value; NaN if it is not a time."""
    if isinstance(value, str):
        return clock[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return NAN
    try:
        return epoch(float(value))
    except OverflowError:  # a whole number with hundreds of digits
        return NAN


class Dates:
    """Find how a file writes its dates: in the given format, or in the only order that fits the first dates.

    Args:
        clock: reads times; it learns the dates that it cannot read yet.
        source: the file.
        problems: receives a note with the order. If the first dates fit several orders, it receives an error
            for the file.
        fixed: whether an option says how dates are written.
        live: whether the file is followed, so that reading continues in any case. If the first dates fit
            several orders, times are not read.
    """

    def __init__(
        self, clock: Clock, source: str, problems: Problems, fixed: bool, *, live: bool = False
    ) -> None:
        self.clock, self.source, self.problems, self._settled = clock, source, problems, fixed
        self.live = live

    def can_read(self, times: Iterable[tuple[int, Any]], field: str) -> bool:
        """Whether reading can continue, decided by the first times of the file, each with its line."""
        if self._settled:
            return True
        texts = [(line, _without_comma(time)) for line, time in times if isinstance(time, str) and time]
        self._settled = bool(texts)
        unread = [(line, text) for line, text in texts if is_date(text) and isnan(self.clock[text])]
        odd = [(line, fits) for line, text in unread if (fits := orders(text))]
        if not odd:
            return True
        fitting = common(fits for _, fits in odd)
        if len(fitting) == 1:
            self.problems.note(read_as(fitting[0]), Things(1), source=self.source, line=odd[0][0])
            self.clock.read_dates(moments_of(fitting[0]))
        elif 2 * len(odd) > len(texts):
            fault = order_error(fitting, self.source, odd[0][0], field)
            if not self.live:
                self.problems.bad(fault)
                return False
            self.problems.note(fault.reason, source=self.source, line=odd[0][0])
        return True


def moments_of(date_format: str) -> Moment:
    """The date reader from `moments` that also accepts a comma before the time of day, as in browsers."""
    of = moments(date_format)
    return lambda text: of(_without_comma(text))


def _without_comma(text: str) -> str:
    """A time without the comma that browsers put before the time of day."""
    return text.strip().replace(", ", " ")


# JSON lines from an application, `journalctl -o json` or a container, or one session per object

ObjectRow = tuple[int, dict[str, Any]]

JsonRow = tuple[int, dict[str, Any] | str]
"""The line where an object or a text between objects begins, and the object or text."""

_ELSEWHERE = "a message found in another field than in most lines"

_BETWEEN = "text between JSON objects, read as a separate event"

_NO_MESSAGE = "an object without a message: its other fields are the event"

JOURNAL = "__REALTIME_TIMESTAMP"

_DECIDE = 500  # first objects, which decide which of several fields is the message

DOCKER = frozenset({"log", "stream", "time"})

_PLACES = frozenset(
    word_list(
        """host hostname node pid ppid tid process process_id process.pid processname thread thread_name
        threadname thread_id pod pod_name namespace kubernetes docker container container_id agent cloud ecs
        instance caller file filename pathname line lineno func function source version v @version"""
    )
)
"""Names in lower case for the place where a line was written, which changes with each deployment."""

_SHORT = 64  # maximum length of a categorical value in characters; longer values are texts, such as traces


def read_objects(batches: Iterator[Lines]) -> Iterator[list[JsonRow]]:
    """Yield (line, object) for JSON objects, and (line, text) for text between objects.

    A trace is one text, and an object over several lines is one object. Blank lines are skipped. An empty
    list is a pause (`Lines`).
    """
    text = TextEvent()

    def pending_text() -> list[JsonRow]:
        """The text that waits for its end, as a row; empty if there is none."""
        return [(text.number, text.end())] if text else []

    for numbers, lines in batches:
        rows: list[JsonRow] = []
        for number, line in zip(numbers, lines, strict=True):
            row = json_object(line)
            if row is not None:
                rows += [*pending_text(), (number, row)]
            elif text.goes_on(line):
                text.take(number, line)
            elif line and not line.isspace():
                rows += pending_text()
                text.take(number, line)
        rows += [] if lines else pending_text()
        if rows:
            yield rows
        if not lines:
            yield []
    if rows := pending_text():
        yield rows


def count_texts(batches: Iterator[list[JsonRow]], source: str, problems: Problems) -> Iterator[list[JsonRow]]:
    """Yield the same rows, and count the texts between objects in `problems`."""
    for rows in batches:
        for number, row in rows:
            problems.note(_BETWEEN, isinstance(row, str), source=source, line=number)
        yield rows


def only_objects(rows: Iterable[JsonRow]) -> list[ObjectRow]:
    """The rows that are objects."""
    return [(number, row) for number, row in rows if isinstance(row, dict)]


def text_event(number: int, text: str, fields: Fields | None = None) -> Event:
    """The event for text between objects, which has none of the known fields."""
    timed, named = (fields is None or bool(fields.times)), fields is not None and fields.session is not None
    sessions = () if named else None
    return Event(number, text, NAN if timed else None, sessions=sessions, head=False, full_line=text)


def is_container(row: dict[str, Any]) -> bool:
    """Whether a container runtime wrote the row (docker's json-file driver)."""
    return row.keys() >= DOCKER


def container_events(batches: Iterator[list[JsonRow]], dates: Dates) -> Iterator[Events]:
    """Events of the lines from a container. A line without a line end continues in its stream."""
    for rows in batches:
        events: Events = []
        for number, row in rows:
            if isinstance(row, str):
                events.append(text_event(number, row))
                continue
            text = message_of(row.get("log"))
            if text is None:
                events.append(text_event(number, _fields_text(row, (), number, dates)))
                continue
            message, time = text.rstrip("\r\n"), read_time(row.get("time"), dates.clock)
            cut = bool(text) and not text.endswith("\n")
            stream = str(row.get("stream"))
            events.append(
                Event(number, message, time, head=False, full_line=message, unfinished=cut, stream=stream)
            )
        if events or not rows:
            yield events


def events_of(
    batches: Iterator[list[JsonRow]],
    fields: Fields,
    named_fields: Fields,
    dates: Dates,
    format_message: Callable[[dict[str, Any], str], str] | None = None,
) -> Iterator[Events]:
    """Yield objects as events.

    An object without a message becomes an event with its other fields. If an option names the field of the
    message, such an object goes to `problems` instead, unless the file is followed.

    Args:
        format_message: makes a text from an object and its message; None uses the message itself.
    """
    assert fields.message is not None
    refuses, fallbacks = (
        named_fields.message is not None and not dates.live,
        () if named_fields.message else MESSAGE,
    )
    for rows in batches:
        object_rows = only_objects(rows)
        if not _can_read(object_rows, fields.times, dates):
            return
        origin = origin_reader(name for _, row in object_rows for name in row)
        events: Events = []
        for number, row in rows:
            if isinstance(row, str):
                events.append(text_event(number, row, fields))
                continue
            text = _message(row, fields.message, fallbacks, number, dates)
            if text is None and refuses:
                fault = no_message(fields.message, dates.source, number)
                dates.problems.bad(fault, json.dumps(row, ensure_ascii=False))
                continue
            if text is None:
                text = _fields_text(row, fields.times, number, dates)
            elif format_message is not None:
                text = format_message(row, text)
            whence = NOTHING if origin is None else origin(row)
            events.append(_event((number, row), text, fields, dates.clock, whence))
        if events or not rows:
            yield events


def message_format(columns: Fields) -> Callable[[dict[str, Any], str], str]:
    """A function that makes a JSON text from an object and its message.

    The text has the message and short other fields. Fields with time or place, and fields that are read
    separately (`columns`), are left out. If no field remains, the text is only the message.
    """
    named = (columns.message, "message", *columns.times, columns.session, columns.label)
    usual = (*TIME, *TIME_PARTS, *SESSION)
    excluded = _PLACES.union(usual, (name.lower() for name in named if name is not None))
    elsewhere = excluded.union(MESSAGE, LISTS)

    def message_text(row: dict[str, Any], text: str) -> str:
        """The message with its short fields, as JSON."""
        left_out = elsewhere if message_of(row.get(columns.message or "")) is None else excluded
        fields = {
            name: cell for name, cell in row.items() if name.lower() not in left_out and _is_short(cell)
        }
        return json.dumps({"message": text, **fields}, ensure_ascii=False) if fields else text

    return message_text


def _is_short(value: Any) -> bool:
    """Whether a value may be one of few: a short text without line ends, a number, or an object."""
    if isinstance(value, str):
        return 0 < len(value) <= _SHORT and "\n" not in value
    return isinstance(value, dict) or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _event(numbered: ObjectRow, text: str, fields: Fields, clock: Clock, origin: Origin | None) -> Event:
    """The event of an object whose message is `text`."""
    number, row = numbered
    label = None if fields.label is None else row.get(fields.label)
    return Event(
        number,
        text,
        read_time(_named_time(row, fields.times), clock) if fields.times else None,
        None if label is None else str(label),
        origin,
        None if fields.session is None else _ids(row.get(fields.session)),
        full_line=text,
    )


def _message(
    row: dict[str, Any], name: str, fallbacks: Sequence[str], number: int, dates: Dates
) -> str | None:
    """The message of an object.

    If the field `name` has none, the message comes from another common field, because other programs may
    write it there.
    """
    text = message_of(row.get(name))
    if text is None:
        text = next(filter(None, (message_of(row.get(fallback)) for fallback in fallbacks)), None)
        dates.problems.note(_ELSEWHERE, text is not None, source=dates.source, line=number)
    return text


def _fields_text(row: dict[str, Any], times: Collection[str], number: int, dates: Dates) -> str:
    """The fields of an object without a message, as JSON.

    The time is left out, and so are journald's fields about the process and the place.
    """
    dates.problems.note(_NO_MESSAGE, source=dates.source, line=number)
    fields = {name: cell for name, cell in row.items() if name not in times and name.lower() not in TIME}
    if JOURNAL in row:
        fields = {name: cell for name, cell in fields.items() if not name.startswith("_")}
    return json.dumps(fields, ensure_ascii=False)


def message_of(value: Any) -> str | None:
    """The text of a message. journald writes a message that is not UTF-8 as a list of bytes."""
    if isinstance(value, list) and value and all(isinstance(b, int) and 0 <= b < 256 for b in value):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else None


def no_message(name: str, source: str, line: int) -> DataError:
    """The error for an object without a message."""
    remedy = "name another field with --option message_field=NAME, or leave such lines out"
    return DataError("no message in the field", source=source, line=line, field=name, remedy=remedy)


def fields_of(rows: list[ObjectRow], named_fields: Fields, dates: Dates) -> Fields | None:
    """The fields of a file, found from its first objects.

    If one is missing, `problems` receives it; None is returned.
    """
    fields = named_fields.choose(_telling_names(rows))
    return fields if has_all_fields(fields, named_fields, _names(rows), rows[0][0], dates) else None


def has_all_fields(
    fields: Fields, named_fields: Fields, names: Sequence[str], line: int, dates: Dates
) -> bool:
    """Whether all fields exist that are needed or named by options.

    If not, `problems` receives an error. If the file is followed, it is only a note, because lines without
    these fields become events.
    """
    absent = fields.missing(named_fields, names)
    if absent is not None:
        fault = missing(absent[0], names, dates.source, line, absent[1], dates.problems)
        if dates.live:
            dates.problems.note(
                f"{fault.reason}: lines are read whole", Things(1), source=dates.source, line=line
            )
        else:
            dates.problems.bad(fault)
    return absent is None


def lacks_message(rows: list[ObjectRow], named_fields: Fields) -> bool:
    """Whether the objects consist of several fields without a message, as in logs of a web server."""
    return (
        named_fields.message is None
        and named_fields.choose(_telling_names(rows)).message is None
        and len(_names(rows)) > 2
    )


def _names(rows: list[ObjectRow]) -> list[str]:
    """The names of all fields."""
    return list(dict.fromkeys(name for _, row in rows for name in row))


def _telling_names(rows: list[ObjectRow]) -> list[list[str]]:
    """The names of fields in the first objects whose value is not an object."""
    return [
        [name for name, value in row.items() if value is not None and not isinstance(value, dict)]
        for _, row in rows[:_DECIDE]
    ]


def json_events(batches: Iterator[list[JsonRow]], named_fields: Fields, dates: Dates) -> Iterator[Events]:
    """Objects as events. The message of an event is the object itself, as JSON."""
    for rows in batches:
        object_rows = only_objects(rows)
        fields = replace(named_fields, time=named_fields.choose([_names(object_rows)]).time or "time")
        if not _can_read(object_rows, fields.times, dates):
            return
        yield [
            text_event(number, row, fields)
            if isinstance(row, str)
            else _event((number, row), json.dumps(row, ensure_ascii=False), fields, dates.clock, None)
            for number, row in rows
        ]


def _can_read(rows: list[ObjectRow], names: tuple[str, ...], dates: Dates) -> bool:
    """Whether the dates of these rows can be read; see `Dates.can_read`."""
    return dates.can_read(((line, _named_time(row, names)) for line, row in rows), ",".join(names))


def is_session(row: dict[str, Any], name: str) -> bool:
    """Whether the field has the lines of a session."""
    return isinstance(row.get(name), list) and bool(row[name]) and isinstance(row[name][0], str)


def _named_time(row: dict[str, Any], names: tuple[str, ...]) -> Any:
    """The value of the time field. For several fields, it is their values with spaces between them."""
    parts = [row.get(name) for name in names]
    if len(parts) < 2:
        return parts[0] if parts else None
    return None if None in parts else " ".join(map(str, parts))


def _ids(value: Any) -> tuple[str, ...]:
    """The id of a session in a field; none for an empty cell."""
    return () if value is None or value == "" else (str(value),)


_BESIDE = {*SESSION, *LABEL, "eventid", "eventtemplate", "occurrences"}

# Tables with one line per row, or one session per row

TableRow = tuple[int, list[str]]


def delimiter_of(header: str, named_fields: Fields) -> str | None:
    """The delimiter between the columns in a table's first line; None if it is not a log table."""
    for delimiter in ("\t", ",", ";"):
        names = [name.strip('"') for name in header.split(delimiter)]
        # A table of labels or templates, found next to logs, has no lines.
        is_label_table = {name.lower() for name in names} <= _BESIDE
        if len(names) > 1 and (
            is_label_table or named_fields.choose([names]).missing(named_fields, names) is None
        ):
            return delimiter
    return None


class LogTable:
    """The rows of a table, in lists, each with the line where it begins.

    Args:
        batches: the lines of the table.
        delimiter: text between columns. With a tab, quotation marks are ordinary characters.
        named_fields: the columns that options name.
        max_bytes: size of the longest field.
        dates: the dates of the file. Its problems receive rows that cannot be read. In a followed file,
            everything is read: a row that is too short, or has no end before a pause, is a separate event.

    Attributes:
        header: the line with the names, and the names.
        names: all columns.
        fields: the columns that are read; None if one of them is missing.
    """

    def __init__(
        self, batches: Iterator[Lines], delimiter: str, named_fields: Fields, max_bytes: int, dates: Dates
    ) -> None:
        pause = Lines([0], [""])
        numbered = (
            pair for batch in batches for pair in zip(*(batch if batch.texts else pause), strict=True)
        )
        # A row without quotation marks is a line, which the csv module need not read.
        if delimiter == "\t":
            self._each = _tab_rows(numbered)
        elif dates.live:
            self._each = _live_rows(numbered, delimiter)
        else:
            self._each = rows_of(numbered, dates.source, dates.problems, {"delimiter": delimiter}, max_bytes)
        self._dates, self._delimiter = dates, delimiter
        empty: TableRow = (1, [])
        self.header = next((pair for pair in self._each if pair is not None), empty)
        line, self.names = self.header
        fields = named_fields.choose([self.names])
        self.fields = fields if has_all_fields(fields, named_fields, self.names, line, dates) else None

    def batches(self) -> Iterator[list[TableRow]]:
        """Yield the rows that have all columns. No rows are a pause (`Lines`).

        Other rows go to `problems`, unless the file is followed.
        """
        width = len(self.names)
        for rows in batched(self._each):
            if not rows or self._dates.live:
                yield rows
                continue
            for line, row in (pair for pair in rows if len(pair[1]) < width):
                fault = too_few_fields(self._dates.source, line, width)
                self._dates.problems.bad(fault, "\t".join(row))
            if complete := [pair for pair in rows if len(pair[1]) >= width]:
                yield complete

    def events(self, fields: Fields) -> Iterator[Events]:
        """The rows as events."""
        at: dict[str | None, int] = {name: i for i, name in enumerate(self.names)}
        message, session, label = at[fields.message], at.get(fields.session), at.get(fields.label)
        times, clock = [at[name] for name in fields.times], self._dates.clock
        origin = origin_reader(self.names)
        for rows in self.batches():
            complete = [(line, row) for line, row in rows if len(row) >= len(self.names)]
            written = ((line, " ".join(row[i] for i in times)) for line, row in complete)
            if times and not self._dates.can_read(written, ",".join(fields.times)):
                return
            yield [
                text_event(line, self.text(row), fields)
                if len(row) < len(self.names)
                else Event(
                    line,
                    row[message],
                    clock[" ".join(row[i] for i in times)] if times else None,
                    None if label is None else row[label],
                    NOTHING if origin is None else origin(dict(zip(self.names, row, strict=False))),
                    None if session is None else _ids(row[session]),
                    full_line=row[message],
                )
                for line, row in rows
            ]

    def text(self, row: Sequence[str]) -> str:
        """The text of a row, its cells with the delimiter between them."""
        return self._delimiter.join(row)


def _tab_rows(numbered: Iterator[tuple[int, str]]) -> Iterator[TableRow | None]:
    """(line, fields between tabs) of every row that is not blank; None at a pause."""
    for number, text in numbered:
        if text or not number:
            yield (number, text.split("\t")) if number else None


_OPEN_LINES = 200  # most lines of a row with an open quotation mark; then its first line is a row by itself
_SENTINEL = "\x1fend"


def _live_rows(numbered: Iterator[tuple[int, str]], delimiter: str) -> Iterator[TableRow | None]:
    """(line, fields) of every row of a followed file that is not blank; None at a pause.

    If a quotation mark has no end for `_OPEN_LINES` lines, or until a pause, its first line is a row with one
    field.
    """
    open_lines: deque[tuple[int, str]] = deque()  # the lines of a row whose quotation mark is open

    def rows(*, flush: bool) -> Iterator[TableRow]:
        """Yield the rows of the open lines that have an end, or with `flush` the rows of all open lines."""
        waiting = list(open_lines)
        open_lines.clear()
        while waiting:
            lines = [text for _, text in waiting]
            closed = next((n for n in range(1, len(lines) + 1) if _fields(lines[:n], delimiter)), None)
            if closed is None and len(lines) < _OPEN_LINES and not flush:
                open_lines.extend(waiting)
                return
            yield waiting[0][0], (_fields(lines[:closed], delimiter) if closed else None) or lines[:1]
            del waiting[: closed or 1]

    for number, text in numbered:
        if not number:
            yield from rows(flush=True)
            yield None
        elif not open_lines and '"' not in text:
            if text:
                yield number, text.split(delimiter)
        else:
            open_lines.append((number, text))
            yield from rows(flush=False)
    yield from rows(flush=True)


def _fields(lines: Sequence[str], delimiter: str) -> list[str] | None:
    """The fields of a row with these lines; None if a quotation mark in it has no end."""
    try:
        rows = list(csv.reader([*(f"{line}\n" for line in lines), _SENTINEL], delimiter=delimiter))
    except csv.Error:
        return list(lines)  # a CR in a field
    return rows[0] if len(rows) == 2 and rows[1] == [_SENTINEL] else None
