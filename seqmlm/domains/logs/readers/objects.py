"""Logs whose lines have named fields: JSON objects and rows of tables.

Which field is the message, the time, the session or the label is found by its usual names, since every
system has its own; options name others.
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

from seqmlm.data.clock import NAN, Clock, Moment, common, epoch, is_date, moments, orders, read_as, unsettled
from seqmlm.data.counts import Things
from seqmlm.data.problems import Problems
from seqmlm.data.readers.objects import json_object
from seqmlm.data.readers.tables import missing, rows_of, too_few_fields
from seqmlm.domains.logs.readers.events import Event, Events, Lines, batched
from seqmlm.domains.logs.readers.origins import NOTHING, Origin, reading
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
    """Names of fields; None: found by their usual names. `message` may be the list of a session's lines, and
    `time` several names with commas between them (date,time)."""

    message: str | None = None
    time: str | None = None
    session: str | None = None
    label: str | None = None

    @property
    def times(self) -> tuple[str, ...]:
        """The fields whose values make a time."""
        return tuple(self.time.split(",")) if self.time else ()

    def among(self, rows: Sequence[Collection[str]]) -> Fields:
        """Choose among the names of each line's fields; of several usual ones that which most lines have. A
        line that has several counts for the most usual one."""
        lower = [{name.lower(): name for name in reversed([*names])} for names in rows]

        def usual(known: Iterable[str]) -> str | None:
            order = list(known)
            own = (next((names[one] for one in order if one in names), None) for names in lower)
            counts = Counter(name for name in own if name is not None)
            return max(counts, key=lambda name: (counts[name], -order.index(name.lower())), default=None)

        parts = [name for name in dict.fromkeys(chain.from_iterable(rows)) if name.lower() in TIME_PARTS]
        split = ",".join(parts) if any(name.lower() == "time" for name in parts) else None
        return Fields(
            message=self.message or usual((*MESSAGE, *LISTS)),
            time=self.time or usual(TIME) or split,
            session=self.session or usual(SESSION),
            label=self.label or usual(LABEL),
        )

    def missing(self, asked: Fields, names: Iterable[str]) -> tuple[str, str] | None:
        """(name, option) of the first field that was asked for, or needed, and is not there."""
        wanted = [(self.message or "message", "message_field")]
        wanted += [(name, "time_field") for name in self.times if asked.time is not None]
        wanted += [(self.session, "session_field")] if self.session else []
        wanted += [(self.label, "label_field")] if self.label else []
        there = set(names) if self.message else set()
        return next((one for one in wanted if one[0] not in there), None)


def read_time(value: Any, clock: Clock) -> float:
    """Seconds since 1970-01-01 UTC of a field's value; not a number where it says no time."""
    if isinstance(value, str):
        return clock[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return NAN
    try:
        return epoch(float(value))
    except OverflowError:  # a whole number of hundreds of digits
        return NAN


class Dates:
    """How a file writes its dates: as told, or in the order that all of the first ones fit.

    Args:
        clock: is taught to read those that it cannot.
        source, problems: of the file; problems are told the order, or receive one error for the file where
            the first dates leave it open.
        told: somebody has said how dates are written.
        live: the file is followed, and read on whatever comes: where the dates leave it open, times are not
            read.
    """

    def __init__(
        self, clock: Clock, source: str, problems: Problems, told: bool, *, live: bool = False
    ) -> None:
        self.clock, self.source, self.problems, self._settled = clock, source, problems, told
        self.live = live

    def settled(self, times: Iterable[tuple[int, Any]], field: str) -> bool:
        """Whether the file can be read on, decided by its first times, each with its line."""
        if self._settled:
            return True
        given = [(line, _spaced(time)) for line, time in times if isinstance(time, str) and time]
        self._settled = bool(given)
        unread = [(line, text) for line, text in given if is_date(text) and isnan(self.clock[text])]
        odd = [(line, fits) for line, text in unread if (fits := orders(text))]
        if not odd:
            return True
        fitting = common(fits for _, fits in odd)
        if len(fitting) == 1:
            self.problems.note(read_as(fitting[0]), Things(1), source=self.source, line=odd[0][0])
            self.clock.read_dates(moments_of(fitting[0]))
        elif 2 * len(odd) > len(given):
            fault = unsettled(fitting, self.source, odd[0][0], field)
            if not self.live:
                self.problems.bad(fault)
                return False
            self.problems.note(fault.reason, source=self.source, line=odd[0][0])
        return True


def moments_of(date_format: str) -> Moment:
    """As `moments`, also with a comma before the time of day, as browsers write it."""
    of = moments(date_format)
    return lambda text: of(_spaced(text))


def _spaced(text: str) -> str:
    return text.strip().replace(", ", " ")


# JSON lines: an application's own, `journalctl -o json`, a container's; or a session an object

ObjectRow = tuple[int, dict[str, Any]]

JsonRow = tuple[int, dict[str, Any] | str]
"""The line that an object begins on, or a text that stands between objects, and the object or text."""

_ELSEWHERE = "a message in another field than most lines have it in"

_BETWEEN = "text between JSON objects, an event of its own"

_NO_MESSAGE = "an object without a message, an event of its other fields"

JOURNAL = "__REALTIME_TIMESTAMP"

_DECIDE = 500  # objects that tell which of several fields is the message

DOCKER = frozenset({"log", "stream", "time"})

_PLACES = frozenset(
    word_list(
        """host hostname node pid ppid tid process process_id process.pid processname thread thread_name
        threadname thread_id pod pod_name namespace kubernetes docker container container_id agent cloud ecs
        instance caller file filename pathname line lineno func function source version v @version"""
    )
)
"""Names, in small letters, of where a line was written: other ones after each deployment."""

_SHORT = 64  # characters of a value that may be one of few; a longer one is a text, such as a trace


def objects(batches: Iterator[Lines]) -> Iterator[list[JsonRow]]:
    """(line, object) of every line that is a JSON object, and (line, text) of what stands between objects: a
    trace is one text, an object over several lines an object. Blank lines are passed over.

    An empty list is a pause (`Lines`).
    """
    text = TextEvent()

    def ended() -> list[JsonRow]:
        return [(text.number, text.end())] if text else []

    for numbers, lines in batches:
        rows: list[JsonRow] = []
        for number, line in zip(numbers, lines, strict=True):
            row = json_object(line)
            if row is not None:
                rows += [*ended(), (number, row)]
            elif text.goes_on(line):
                text.take(number, line)
            elif line and not line.isspace():
                rows += ended()
                text.take(number, line)
        rows += [] if lines else ended()
        if rows:
            yield rows
        if not lines:
            yield []
    if rows := ended():
        yield rows


def noted(batches: Iterator[list[JsonRow]], source: str, problems: Problems) -> Iterator[list[JsonRow]]:
    """The same rows; `problems` counts the texts between objects."""
    for rows in batches:
        for number, row in rows:
            problems.note(_BETWEEN, isinstance(row, str), source=source, line=number)
        yield rows


def only_objects(rows: Iterable[JsonRow]) -> list[ObjectRow]:
    """The rows that are objects."""
    return [(number, row) for number, row in rows if isinstance(row, dict)]


def text_event(number: int, text: str, found: Fields | None = None) -> Event:
    """An event of what stands between objects, which has no field of those that were found."""
    timed, named = (found is None or bool(found.times)), found is not None and found.session is not None
    sessions = () if named else None
    return Event(number, text, NAN if timed else None, sessions=sessions, head=False, whole=text)


def is_container(row: dict[str, Any]) -> bool:
    """Whether a container runtime wrote it (docker's json-file driver)."""
    return row.keys() >= DOCKER


def docker(batches: Iterator[list[JsonRow]], dates: Dates) -> Iterator[Events]:
    """What a container wrote, line by line; one without a line end goes on in its stream."""
    for rows in batches:
        events: Events = []
        for number, row in rows:
            if isinstance(row, str):
                events.append(text_event(number, row))
                continue
            text = message_of(row.get("log"))
            if text is None:
                events.append(text_event(number, _without_message(row, (), number, dates)))
                continue
            message, time = text.rstrip("\r\n"), read_time(row.get("time"), dates.clock)
            more = bool(text) and not text.endswith("\n")
            stream = str(row.get("stream"))
            events.append(Event(number, message, time, head=False, whole=message, more=more, stream=stream))
        if events or not rows:
            yield events


def events_of(
    batches: Iterator[list[JsonRow]],
    found: Fields,
    asked: Fields,
    dates: Dates,
    spoken: Callable[[dict[str, Any], str], str] | None = None,
) -> Iterator[Events]:
    """Objects as events, a message each, or what `spoken` says of an object and its message. An object
    without a message is an event that says its other fields; but where the field of the message was named,
    it goes to `problems`, unless the file is followed."""
    assert found.message is not None
    refuses, others = asked.message is not None and not dates.live, () if asked.message else MESSAGE
    for rows in batches:
        own = only_objects(rows)
        if not _settled(own, found.times, dates):
            return
        origin = reading(name for _, row in own for name in row)
        events: Events = []
        for number, row in rows:
            if isinstance(row, str):
                events.append(text_event(number, row, found))
                continue
            text = _message(row, found.message, others, number, dates)
            if text is None and refuses:
                fault = no_message(found.message, dates.source, number)
                dates.problems.bad(fault, json.dumps(row, ensure_ascii=False))
                continue
            if text is None:
                text = _without_message(row, found.times, number, dates)
            elif spoken is not None:
                text = spoken(row, text)
            whence = NOTHING if origin is None else origin(row)
            events.append(_event((number, row), text, found, dates.clock, whence))
        if events or not rows:
            yield events


def spoken(found: Fields) -> Callable[[dict[str, Any], str], str]:
    """What an object and its message say, as JSON: the message, and the fields beside it that are short, say
    neither when nor where and are not read apart (`found`); the message alone where none is left."""
    own = (found.message, "message", *found.times, found.session, found.label, *TIME, *TIME_PARTS, *SESSION)
    apart = _PLACES | {name.lower() for name in own if name is not None}
    elsewhere = apart.union(MESSAGE, LISTS)

    def said(row: dict[str, Any], text: str) -> str:
        left = elsewhere if message_of(row.get(found.message or "")) is None else apart
        fields = {name: one for name, one in row.items() if name.lower() not in left and _is_short(one)}
        return json.dumps({"message": text, **fields}, ensure_ascii=False) if fields else text

    return said


def _is_short(value: Any) -> bool:
    if isinstance(value, str):
        return 0 < len(value) <= _SHORT and "\n" not in value
    return isinstance(value, dict) or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _event(numbered: ObjectRow, text: str, found: Fields, clock: Clock, origin: Origin | None) -> Event:
    number, row = numbered
    label = None if found.label is None else row.get(found.label)
    return Event(
        number,
        text,
        read_time(_named_time(row, found.times), clock) if found.times else None,
        None if label is None else str(label),
        origin,
        None if found.session is None else _ids(row.get(found.session)),
        whole=text,
    )


def _message(row: dict[str, Any], name: str, others: Sequence[str], number: int, dates: Dates) -> str | None:
    """The message of an object. Without one in the field `name` it is that of another of its usual names, as
    other programs write them."""
    text = message_of(row.get(name))
    if text is None:
        text = next(filter(None, (message_of(row.get(other)) for other in others)), None)
        dates.problems.note(_ELSEWHERE, text is not None, source=dates.source, line=number)
    return text


def _without_message(row: dict[str, Any], times: Collection[str], number: int, dates: Dates) -> str:
    """What an object without a message says, as JSON: its fields but for the time, and for what journald
    tells of the process and the place."""
    dates.problems.note(_NO_MESSAGE, source=dates.source, line=number)
    fields = {name: one for name, one in row.items() if name not in times and name.lower() not in TIME}
    if JOURNAL in row:
        fields = {name: one for name, one in fields.items() if not name.startswith("_")}
    return json.dumps(fields, ensure_ascii=False)


def message_of(value: Any) -> str | None:
    """The text of a message: journald writes what is no UTF-8 as a list of bytes."""
    if isinstance(value, list) and value and all(isinstance(b, int) and 0 <= b < 256 for b in value):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else None


def no_message(name: str, source: str, line: int) -> DataError:
    """The error for an object without a message."""
    remedy = "name another field with --option message_field=NAME, or leave such lines out"
    return DataError("no message in the field", source=source, line=line, field=name, remedy=remedy)


def fields_of(rows: list[ObjectRow], wanted: Fields, dates: Dates) -> Fields | None:
    """The fields of a file by its first objects; None where one is missing, which `problems` then has."""
    found = wanted.among(_given(rows))
    return found if is_whole(found, wanted, _names(rows), rows[0][0], dates) else None


def is_whole(found: Fields, wanted: Fields, names: Sequence[str], line: int, dates: Dates) -> bool:
    """Whether all fields are there that are needed or were asked for; else the problems are told. Of a file
    that is followed the lines are events without these fields, so it is a note."""
    absent = found.missing(wanted, names)
    if absent is not None:
        fault = missing(absent[0], names, dates.source, line, absent[1], dates.problems)
        if dates.live:
            dates.problems.note(
                f"{fault.reason}: lines are read whole", Things(1), source=dates.source, line=line
            )
        else:
            dates.problems.bad(fault)
    return absent is None


def without_message(rows: list[ObjectRow], wanted: Fields) -> bool:
    """Whether the objects are fields alone, as a web server's are: several, none of them a message."""
    return wanted.message is None and wanted.among(_given(rows)).message is None and len(_names(rows)) > 2


def _names(rows: list[ObjectRow]) -> list[str]:
    """The names of all fields."""
    return list(dict.fromkeys(name for _, row in rows for name in row))


def _given(rows: list[ObjectRow]) -> list[list[str]]:
    """The names of those fields of the first objects that say something themselves."""
    return [
        [name for name, value in row.items() if value is not None and not isinstance(value, dict)]
        for _, row in rows[:_DECIDE]
    ]


def whole_events(batches: Iterator[list[JsonRow]], wanted: Fields, dates: Dates) -> Iterator[Events]:
    """Objects as events whose message is the object itself, as JSON."""
    for rows in batches:
        own = only_objects(rows)
        found = replace(wanted, time=wanted.among([_names(own)]).time or "time")
        if not _settled(own, found.times, dates):
            return
        yield [
            text_event(number, row, found)
            if isinstance(row, str)
            else _event((number, row), json.dumps(row, ensure_ascii=False), found, dates.clock, None)
            for number, row in rows
        ]


def _settled(rows: list[ObjectRow], names: tuple[str, ...], dates: Dates) -> bool:
    return dates.settled(((line, _named_time(row, names)) for line, row in rows), ",".join(names))


def is_session(row: dict[str, Any], name: str) -> bool:
    """Whether the field holds the lines of a session."""
    return isinstance(row.get(name), list) and bool(row[name]) and isinstance(row[name][0], str)


def _named_time(row: dict[str, Any], names: tuple[str, ...]) -> Any:
    """What stands in the field of the time, or in all of several."""
    parts = [row.get(name) for name in names]
    if len(parts) < 2:
        return parts[0] if parts else None
    return None if None in parts else " ".join(map(str, parts))


def _ids(value: Any) -> tuple[str, ...]:
    return () if value is None or value == "" else (str(value),)


_BESIDE = {*SESSION, *LABEL, "eventid", "eventtemplate", "occurrences"}

# Tables: a line a row, or a session a row

TableRow = tuple[int, list[str]]


def delimiter_of(header: str, wanted: Fields) -> str | None:
    """What separates the columns of a table's first line; None where it is no table of ours."""
    for delimiter in ("\t", ",", ";"):
        names = [name.strip('"') for name in header.split(delimiter)]
        # One that lies beside logs (labels of sessions, templates) holds no lines.
        beside = {name.lower() for name in names} <= _BESIDE
        if len(names) > 1 and (beside or wanted.among([names]).missing(wanted, names) is None):
            return delimiter
    return None


class Table:
    """The rows of a table, a list of them at a time, with the line each begins on.

    Args:
        batches: its lines.
        delimiter: between columns; with a tab, quotation marks are ordinary characters.
        wanted: the columns asked for.
        max_bytes: of the longest field.
        dates: of the file; its problems receive what cannot be read. In a file that is followed all is
            read: a row that is too short, or has no end before a pause, is an event of its own.

    Attributes:
        header: the line of the names, and these.
        names, found: the columns; None where a wanted one is missing.
    """

    def __init__(
        self, batches: Iterator[Lines], delimiter: str, wanted: Fields, max_bytes: int, dates: Dates
    ) -> None:
        pause = Lines([0], [""])
        numbered = (pair for one in batches for pair in zip(*(one if one.texts else pause), strict=True))
        # Without quotation marks a row is a line, and need not pass through the csv module.
        if delimiter == "\t":
            self._each = _divided(numbered)
        elif dates.live:
            self._each = _live_rows(numbered, delimiter)
        else:
            self._each = rows_of(numbered, dates.source, dates.problems, {"delimiter": delimiter}, max_bytes)
        self._dates, self._delimiter = dates, delimiter
        empty: TableRow = (1, [])
        self.header = next((pair for pair in self._each if pair is not None), empty)
        line, self.names = self.header
        found = wanted.among([self.names])
        self.found = found if is_whole(found, wanted, self.names, line, dates) else None

    def batches(self) -> Iterator[list[TableRow]]:
        """The rows that have all columns; the others go to `problems`, unless the file is followed; no rows
        are a pause (`Lines`)."""
        width = len(self.names)
        for rows in batched(self._each):
            if not rows or self._dates.live:
                yield rows
                continue
            for line, row in (pair for pair in rows if len(pair[1]) < width):
                fault = too_few_fields(self._dates.source, line, width)
                self._dates.problems.bad(fault, "\t".join(row))
            if whole := [pair for pair in rows if len(pair[1]) >= width]:
                yield whole

    def events(self, found: Fields) -> Iterator[Events]:
        """The rows as events."""
        at: dict[str | None, int] = {name: i for i, name in enumerate(self.names)}
        message, session, label = at[found.message], at.get(found.session), at.get(found.label)
        times, clock = [at[name] for name in found.times], self._dates.clock
        origin = reading(self.names)
        for rows in self.batches():
            whole = [(line, row) for line, row in rows if len(row) >= len(self.names)]
            written = ((line, " ".join(row[i] for i in times)) for line, row in whole)
            if times and not self._dates.settled(written, ",".join(found.times)):
                return
            yield [
                text_event(line, self.text(row), found)
                if len(row) < len(self.names)
                else Event(
                    line,
                    row[message],
                    clock[" ".join(row[i] for i in times)] if times else None,
                    None if label is None else row[label],
                    NOTHING if origin is None else origin(dict(zip(self.names, row, strict=False))),
                    None if session is None else _ids(row[session]),
                    whole=row[message],
                )
                for line, row in rows
            ]

    def text(self, row: Sequence[str]) -> str:
        """What stands in the lines of a row."""
        return self._delimiter.join(row)


def _divided(numbered: Iterator[tuple[int, str]]) -> Iterator[TableRow | None]:
    """(line, fields between tabs) of every row that is not blank; None at a pause."""
    for number, text in numbered:
        if text or not number:
            yield (number, text.split("\t")) if number else None


_OPEN_LINES = 200  # lines of a row whose quotation mark has no end; then its first line stands alone
_SENTINEL = "\x1fend"


def _live_rows(numbered: Iterator[tuple[int, str]], delimiter: str) -> Iterator[TableRow | None]:
    """(line, fields) of every row of a followed file that is not blank; None at a pause. A line behind which
    a quotation mark has no end for `_OPEN_LINES`, or until a pause, is a row of one field."""
    held: deque[tuple[int, str]] = deque()  # the lines of a row whose quotation mark is open

    def rows(*, flush: bool) -> Iterator[TableRow]:
        waiting = list(held)
        held.clear()
        while waiting:
            lines = [text for _, text in waiting]
            closed = next((n for n in range(1, len(lines) + 1) if _fields(lines[:n], delimiter)), None)
            if closed is None and len(lines) < _OPEN_LINES and not flush:
                held.extend(waiting)
                return
            yield waiting[0][0], (_fields(lines[:closed], delimiter) if closed else None) or lines[:1]
            del waiting[: closed or 1]

    for number, text in numbered:
        if not number:
            yield from rows(flush=True)
            yield None
        elif not held and '"' not in text:
            if text:
                yield number, text.split(delimiter)
        else:
            held.append((number, text))
            yield from rows(flush=False)
    yield from rows(flush=True)


def _fields(lines: Sequence[str], delimiter: str) -> list[str] | None:
    """The fields of a row of these lines; None where a quotation mark in it has no end."""
    try:
        rows = list(csv.reader([*(f"{line}\n" for line in lines), _SENTINEL], delimiter=delimiter))
    except csv.Error:
        return list(lines)  # a CR in a field
    return rows[0] if len(rows) == 2 and rows[1] == [_SENTINEL] else None
