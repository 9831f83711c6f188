"""One log file on its way from lines to records: its format, its events, its sessions or windows.

The format is found by the first lines, because names say little (app.log may be anything); a stream that
begins unlike the rest has to be given its format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from seqmlm.data.files import memory_of
from seqmlm.data.problems import Problems
from seqmlm.data.readers.objects import json_object
from seqmlm.data.record import Record
from seqmlm.data.splits import hash64
from seqmlm.data.timestamps import Clock
from seqmlm.domains.logs.readers import headers, objects
from seqmlm.domains.logs.readers.events import (
    Continues,
    Events,
    Lines,
    LogLines,
    filled,
    joined,
    peek,
    unsplit,
)
from seqmlm.domains.logs.readers.headers import fitting
from seqmlm.domains.logs.readers.objects import LISTS, Fields, Found, Table, delimiter_of, read_time
from seqmlm.domains.logs.readers.rotations import service_of
from seqmlm.domains.logs.readers.sessions import (
    Ids,
    Piece,
    Sessions,
    Window,
    ids_by,
    named_ids,
    pattern_of,
    recurring,
    remaining,
    still_open,
    usual_pattern,
    windows,
)
from seqmlm.errors import DataError, UsageError

_JOURNAL = "__REALTIME_TIMESTAMP"

LOOKED_AT = 500
"""Lines that decide."""

KEYS = re.compile(r"\s*(?:([^,\s]+)[,\t]\s*)?(\d+(?:\s+\d+)*)\s*", re.ASCII)
"""A line of a session file: event ids, before them perhaps the session's id and a comma."""


def kind_of(texts: Sequence[str], wanted: Fields) -> str:
    """ "sessions", "jsonl", "csv", "tsv", the name of a header, or "plain".

    Args:
        texts: the first lines.
        wanted: columns asked for, which make a table of a file whose own names are unusual.
    """
    lines = [text for text in texts[:LOOKED_AT] if text and not text.isspace()]
    if not lines:
        return "plain"
    if all(KEYS.fullmatch(line) for line in lines):
        return "sessions"
    if sum(json_object(line) is not None for line in lines[:20]) * 2 >= len(
        lines[:20]
    ):  # a banner may come before
        return "jsonl"
    delimiter = delimiter_of(lines[0], wanted)
    if delimiter is not None:
        return "tsv" if delimiter == "\t" else "csv"
    return fitting(lines) or "plain"


# From lines to records

# Where no line has a header: what is surely of the message before.
_INDENTED = re.compile(r"\s|Caused by: |\.\.\. \d+ more")

# Where lines have one: further lines of a trace, and of JSON or XML over several lines.
_GOES_ON = re.compile(
    r"\s|$|[\])}]|[{\[(]$|</|---|(?:Wrapped by|Caused by|Suppressed|Stack ?trace|stack backtrace):"
    r"|Traceback \(|During handling of the |The above exception was |(?:[a-z_]\w*\.)+[A-Z][\w$]*(?::|$)"
    r"|[\w.$]*(?:Error|Exception|Warning|Interrupt|Exit|Failure)(?::|$)|at |\.\.\. \d+ |\S+:\d+:in [`']"
    r"|#\d+ |(?:panic|fatal error): |goroutine \d+ \[|created by |[\w./*()-]+\.\w+\([^()]*\)$",
    re.ASCII,
)

_ALONE = (
    "a line without the header of the format, an event of its own (option multiline says what begins one)"
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the options of a reader ask for, checked; see `read_logs`."""

    kind: str
    session: str
    window: Window
    windowed: bool
    gap: float | None
    idle: float | None
    max_open: int
    max_held: int
    max_session: int
    multiline: str
    keep_header: bool
    fields: Fields
    max_bytes: int
    whole: bool = False
    date_format: str | None = None


class Reading:
    """One file being read."""

    def __init__(
        self, asked: Asked, clock: Clock, source: str, labels: Mapping[str, str], problems: Problems
    ) -> None:
        self._asked, self._clock, self._source = asked, clock, source
        self._labels, self._problems = labels, problems
        self._name, self._service = Path(source).name, service_of(source)
        self._memory = memory_of(source)
        self._dates = objects.Dates(clock, source, problems, asked.date_format is not None)
        if asked.date_format is not None:
            clock.read_dates(objects.moments_of(asked.date_format))

    def records(self, batches: Iterator[Lines]) -> Iterator[Record]:
        """The file's lines as records, without those that an earlier reader of a live input has handed on."""
        for record in self._records(batches):
            memory = self._memory
            if memory is not None and memory.is_past(record.line):
                continue  # of a format with a record a line; those of others have been left out before
            if memory is not None:
                memory.taken = max(memory.taken, record.line)
            yield record

    def _records(self, batches: Iterator[Lines]) -> Iterator[Record]:
        first, batches = peek(batches)
        kind = self._asked.kind if self._asked.kind != "auto" else kind_of(first.texts, self._asked.fields)
        if kind == "sessions":
            yield from self._key_sessions(batches)
        elif kind in ("csv", "tsv"):
            yield from self._table(kind, first, batches)
        elif kind in ("jsonl", "journal", "docker"):
            yield from self._objects(batches)
        else:
            header = None if kind == "plain" else kind
            events = headers.parsed(header, batches, self._clock, self._asked.keep_header)
            if kind == "cri":  # every line of a trace has the runtime's header
                events = unsplit(list(map(headers.of_runtime, batch)) for batch in events)
            yield from self._events(joined(events, *self._continues(kind), self._problems))

    def _continues(self, kind: str) -> tuple[Continues | None, re.Pattern[str] | None]:
        """Whether a line without header continues a message, and what begins one, where the user says so."""
        choice = self._asked.multiline
        if choice == "off":
            return None, None
        if choice != "auto":
            try:
                return _always, re.compile(choice)
            except re.error as error:
                raise UsageError(f"multiline is auto, off or a regular expression: {error}") from None
        return (_is_indented if kind in ("plain", "docker", "cri") else self._goes_on), None

    def _goes_on(self, line: str) -> bool:
        """Whether a line without header is of the message before by its form; others are counted."""
        found = _GOES_ON.match(line) is not None
        if not found:
            self._problems.note(_ALONE, source=self._source)
        return found

    def _events(self, events: Iterator[Events]) -> Iterator[Record]:
        """Events to records: sessions or windows."""
        events = filled(events, self._problems)
        first = next(filter(None, events), None)
        if first is None:
            return
        events = chain([first], events)
        ids, memory = self._ids(first), self._memory
        if memory is not None:
            events = remaining(events, memory)
        if ids is None:
            pieces = windows(events, self._asked.window, self._source, self._problems, memory)
        else:
            sessions = Sessions(
                ids if memory is None else still_open(ids, memory),
                gap=self._asked.gap,
                max_open=self._asked.max_open,
                max_held=self._asked.max_held,
                max_lines=self._asked.max_session,
                rest=self._asked.window,
                idle=self._asked.idle,
                source=self._source,
                problems=self._problems,
            )
            if memory is not None:
                memory.held = sessions.held
            pieces = sessions(events)
        for piece in pieces:
            yield self._record(piece)

    def _ids(self, first: Events) -> Ids | None:
        """How to tell the sessions of lines; None for windows."""
        choice = self._asked.session
        if choice not in ("auto", "none"):
            return ids_by(pattern_of(choice))
        if choice == "none" or (self._asked.windowed and self._asked.fields.session is None):
            return None
        if first[0].sessions is not None:
            asked = self._asked.fields.session is not None
            return named_ids if asked or recurring([one.sessions or () for one in first]) else None
        pattern = usual_pattern(first)
        return None if pattern is None else ids_by(pattern)

    def _record(self, piece: Piece) -> Record:
        meta: dict[str, object] = {"lines": piece.numbers}
        if piece.labels is not None:
            meta["labels"] = piece.labels
        if not self._problems.sensitive:
            meta["origins"] = piece.origins
        cut = piece.session is None and not self._asked.window.by_time
        raw = LogLines(lines=piece.messages, times=piece.times, windowed=cut)
        return self._made(raw, piece.session, piece.numbers[0], f"{self._name}:{piece.group}", meta)

    def _made(
        self, raw: LogLines, session: str | None, line: int, group: str, meta: dict[str, object]
    ) -> Record:
        place = f"{self._name}:{line}"
        if session is not None and session in self._labels:
            meta["label"] = self._labels[session]
        if "label" in meta and self._asked.fields.label is not None:
            meta[self._asked.fields.label] = meta["label"]
        if session is not None and self._problems.sensitive:
            session = f"{hash64(session) & (1 << 64) - 1:016x}"  # an id may be a person's
        return Record(
            id=session or place,
            raw=replace(raw, subject=self._service if session is None else f"session {session}"),
            source=self._source,
            line=line,
            document=session or group,
            meta=meta,
        )

    def _session(self, raw: LogLines, session: str | None, line: int, label: str | None = None) -> Record:
        """The record of a session that stands in one line."""
        meta: dict[str, object] = {"lines": (line,) * len(raw.lines)}
        if label is not None:
            meta["label"] = label
        return self._made(raw, session, line, f"{self._name}:{line}", meta)

    def _table(self, kind: str, first: Lines, batches: Iterator[Lines]) -> Iterator[Record]:
        asked = self._asked
        header = next((text for text in first.texts if text and not text.isspace()), "")
        delimiter = "\t" if kind == "tsv" else (delimiter_of(header, asked.fields) or ",")
        table = Table(batches, delimiter, asked.fields, asked.max_bytes, self._source, self._problems)
        if not table.open():
            return
        found = table.found
        assert found.message is not None
        if found.message.lower() in LISTS and asked.fields.message is None:
            yield from self._session_rows(table, found)
        else:
            yield from self._events(table.events(self._dates))

    def _session_rows(self, table: Table, found: Found) -> Iterator[Record]:
        """A table with a session a row: its event ids in one column."""
        at = {name: i for i, name in enumerate(table.names)}
        assert found.message is not None
        for rows in table.batches():
            for line, row in rows:
                keys = tuple(row[at[found.message]].split())
                if not keys:
                    self._problems.note("a session without events")
                    continue
                session = None if found.session is None else row[at[found.session]]
                label = None if found.label is None else row[at[found.label]]
                raw = LogLines(lines=keys, keys=all(map(str.isdecimal, keys)))
                yield self._session(raw, session, line, label)

    def _objects(self, batches: Iterator[Lines]) -> Iterator[Record]:
        rows = objects.objects(batches, self._source, self._problems)
        first = next((batch for batch in rows if batch), None)
        if first is None:
            return
        rows = chain([first], rows)
        if self._asked.fields == Fields() and objects.is_container(first[0][1]):
            events = unsplit(objects.docker(rows, self._clock, self._source, self._problems))
            yield from self._events(joined(events, *self._continues("docker"), self._problems))
            return
        if self._asked.whole and objects.without_message(first, self._asked.fields):
            yield from self._events(objects.whole_events(rows, self._asked.fields, self._dates))
            return
        found = objects.fields_of(first, self._asked.fields, self._source, self._problems)
        if found is None:
            return
        assert found.message is not None
        if objects.is_session(first[0][1], found.message):
            yield from self._session_objects(rows, found)
        else:
            asked = self._asked.fields
            spoken = objects.Spoken(found) if self._reads_fields(first[0][1]) else None
            events = objects.events_of(rows, found, asked, self._dates, self._source, self._problems, spoken)
            yield from self._events(events)

    def _reads_fields(self, row: Mapping[str, Any]) -> bool:
        """Whether what stands beside a message is read: not where one field was named, nor of the journal,
        whose other fields are about the process."""
        return self._asked.whole and self._asked.fields.message is None and _JOURNAL not in row

    def _session_objects(self, batches: Iterator[list[objects.ObjectRow]], found: Found) -> Iterator[Record]:
        """An object a session: its messages in one field."""
        assert found.message is not None
        for line, row in chain.from_iterable(batches):
            texts = row.get(found.message)
            if not isinstance(texts, list) or not texts or not all(isinstance(t, (str, int)) for t in texts):
                self._problems.bad(objects.no_message(found.message, self._source, line))
                continue
            session = None if found.session is None else row.get(found.session)
            times = row.get(found.times[0]) if len(found.times) == 1 else None
            known = isinstance(times, list) and len(times) == len(texts)
            if known and not self._dates.settled(((line, one) for one in times or ()), found.times[0]):
                return
            raw = LogLines(
                lines=tuple(map(str, texts)),
                times=tuple(read_time(one, self._clock) for one in times or ()) if known else None,
                keys=all(str(t).isdecimal() for t in texts),
            )
            label = None if found.label is None else row.get(found.label)
            session, label = (None if one is None else str(one) for one in (session, label))
            yield self._session(raw, session, line, label)

    def _key_sessions(self, batches: Iterator[Lines]) -> Iterator[Record]:
        """A session a line: event ids between spaces."""
        for numbers, texts in batches:
            for line, text in zip(numbers, texts, strict=True):
                if not text or text.isspace():
                    continue
                found = KEYS.fullmatch(text)
                if found is None:
                    error = DataError(
                        "a line of a session file that is not event ids",
                        source=self._source,
                        line=line,
                        remedy="event ids are whole numbers between spaces; name the format the file has",
                    )
                    self._problems.bad(error, text)
                    continue
                yield self._session(LogLines(lines=tuple(found[2].split()), keys=True), found[1], line)


def _always(message: str) -> bool:
    return True


def _is_indented(message: str) -> bool:
    return _INDENTED.match(message) is not None
