"""Logs whose lines have named fields: JSON objects and rows of tables.

Which field is the message, the time, the session or the label is found by its usual names, since every
system has its own; options name others.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import isnan
from typing import Any

from seqmlm.data.dates import Moment, common, is_date, moments, orders, read_as, unsettled
from seqmlm.data.privacy import Things
from seqmlm.data.problems import Problems
from seqmlm.data.readers.objects import json_object, no_object
from seqmlm.data.readers.tables import missing, rows_of, too_few_fields
from seqmlm.data.timestamps import NAN, Clock, epoch
from seqmlm.domains.logs.readers.events import Event, Events, Lines, batched
from seqmlm.domains.logs.readers.origins import NOTHING, Origin, reading
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
    """

    def __init__(self, clock: Clock, source: str, problems: Problems, told: bool) -> None:
        self.clock, self.source, self.problems, self._settled = clock, source, problems, told

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
            self.problems.bad(unsettled(fitting, self.source, odd[0][0], field))
            return False
        return True


def moments_of(date_format: str) -> Moment:
    """As `moments`, also with a comma before the time of day, as browsers write it."""
    of = moments(date_format)
    return lambda text: of(_spaced(text))


def _spaced(text: str) -> str:
    return text.strip().replace(", ", " ")


# JSON lines: an application's own, `journalctl -o json`, a container's; or a session an object

ObjectRow = tuple[int, dict[str, Any]]

_ELSEWHERE = "a message in another field than most lines have it in"

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


def objects(batches: Iterator[Lines], source: str, problems: Problems) -> Iterator[list[ObjectRow]]:
    """(line, object) of every line that is a JSON object; others go to `problems`, blank ones nowhere.

    An empty list is a pause (`Lines`).
    """
    for numbers, texts in batches:
        if not texts:
            yield []
        rows: list[ObjectRow] = []
        for number, text in zip(numbers, texts, strict=True):
            row = json_object(text)
            if row is not None:
                rows.append((number, row))
            elif text and not text.isspace():
                problems.bad(no_object(source, number), text)
        if rows:
            yield rows


def is_container(row: dict[str, Any]) -> bool:
    """Whether a container runtime wrote it (docker's json-file driver)."""
    return row.keys() >= DOCKER


def docker(batches: Iterator[list[ObjectRow]], dates: Dates) -> Iterator[Events]:
    """What a container wrote, line by line; one without a line end goes on in its stream.

    Objects without a message go to `problems`.
    """
    for rows in batches:
        events: Events = []
        for (number, row), text in _with_message(rows, "log", dates):
            message, time = text.rstrip("\r\n"), read_time(row.get("time"), dates.clock)
            more = bool(text) and not text.endswith("\n")
            stream = str(row.get("stream"))
            events.append(Event(number, message, time, head=False, whole=message, more=more, stream=stream))
        if events or not rows:
            yield events


def events_of(
    batches: Iterator[list[ObjectRow]],
    found: Fields,
    asked: Fields,
    dates: Dates,
    spoken: Callable[[dict[str, Any], str], str] | None = None,
) -> Iterator[Events]:
    """Objects as events, a message each, or what `spoken` says of an object and its message; objects without
    a message go to `problems`."""
    assert found.message is not None
    others = () if asked.message is not None else MESSAGE
    for rows in batches:
        kept = list(_with_message(rows, found.message, dates, others))
        if spoken is not None:
            kept = [((number, row), spoken(row, text)) for (number, row), text in kept]
        origin = reading(name for (_, row), _ in kept for name in row)
        if not _settled(rows, found.times, dates):
            return
        if kept or not rows:
            yield [
                _event(one, text, found, dates.clock, NOTHING if origin is None else origin(one[1]))
                for one, text in kept
            ]


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


def _with_message(
    rows: list[ObjectRow], name: str, dates: Dates, others: Sequence[str] = ()
) -> Iterator[tuple[ObjectRow, str]]:
    """The objects that have a message, each with it; the others go to `problems`. Without one in the field
    `name` it is that of another of its usual names, as other programs write them."""
    for number, row in rows:
        text = message_of(row.get(name))
        if text is None:
            text = next(filter(None, (message_of(row.get(other)) for other in others)), None)
            dates.problems.note(_ELSEWHERE, text is not None, source=dates.source, line=number)
        if text is None:
            dates.problems.bad(no_message(name, dates.source, number), json.dumps(row, ensure_ascii=False))
        else:
            yield (number, row), text


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
    """Whether all fields are there that are needed or were asked for; else the problems are told."""
    absent = found.missing(wanted, names)
    if absent is not None:
        dates.problems.bad(missing(absent[0], names, dates.source, line, absent[1], dates.problems))
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


def whole_events(batches: Iterator[list[ObjectRow]], wanted: Fields, dates: Dates) -> Iterator[Events]:
    """Objects as events whose message is the object itself, as JSON."""
    for rows in batches:
        found = replace(wanted, time=wanted.among([_names(rows)]).time or "time")
        if not _settled(rows, found.times, dates):
            return
        yield [_event(one, json.dumps(one[1], ensure_ascii=False), found, dates.clock, None) for one in rows]


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
        dates: of the file; its problems receive what cannot be read.

    Attributes:
        names, found: the columns; None where a wanted one is missing.
    """

    def __init__(
        self, batches: Iterator[Lines], delimiter: str, wanted: Fields, max_bytes: int, dates: Dates
    ) -> None:
        pause = Lines([0], [""])
        numbered = (pair for one in batches for pair in zip(*(one if one.texts else pause), strict=True))
        # Without quotation marks a row is a line, and need not pass through the csv module.
        self._each = (
            _divided(numbered)
            if delimiter == "\t"
            else rows_of(numbered, dates.source, dates.problems, {"delimiter": delimiter}, max_bytes)
        )
        self._dates = dates
        empty: TableRow = (1, [])
        line, self.names = next((pair for pair in self._each if pair is not None), empty)
        found = wanted.among([self.names])
        self.found = found if is_whole(found, wanted, self.names, line, dates) else None

    def batches(self) -> Iterator[list[TableRow]]:
        """The rows that have all columns; the others go to `problems`; no rows are a pause (`Lines`)."""
        width = len(self.names)
        for rows in batched(self._each):
            if not rows:
                yield []
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
            written = ((line, " ".join(row[i] for i in times)) for line, row in rows)
            if times and not self._dates.settled(written, ",".join(found.times)):
                return
            yield [
                Event(
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


def _divided(numbered: Iterator[tuple[int, str]]) -> Iterator[TableRow | None]:
    """(line, fields between tabs) of every row that is not blank; None at a pause."""
    for number, text in numbered:
        if text or not number:
            yield (number, text.split("\t")) if number else None
