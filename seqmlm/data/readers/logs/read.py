"""Logs of any kind to records: one reader, whose format is told by the user or by the first lines."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from seqmlm.data.files import lines
from seqmlm.data.loglines import LogLines
from seqmlm.data.problems import Problems
from seqmlm.data.readers.logs import headers, objects
from seqmlm.data.readers.logs.detect import KEYS, kind_of
from seqmlm.data.readers.logs.events import Continues, Events, filled, joined, unsplit
from seqmlm.data.readers.logs.fields import LISTS, Fields, Found
from seqmlm.data.readers.logs.pieces import Piece, Window, window_of, windows
from seqmlm.data.readers.logs.sessions import (
    Ids,
    Sessions,
    ids_by,
    named_ids,
    pattern_of,
    recurring,
    usual_pattern,
)
from seqmlm.data.readers.logs.source import Lines, line_batches, peek
from seqmlm.data.readers.logs.tables import Table, delimiter_of
from seqmlm.data.record import Record
from seqmlm.data.splits import hash64
from seqmlm.data.timestamps import Clock, duration
from seqmlm.errors import DataError, UsageError

MAX_BYTES = 4 << 20
"""Longest line of a log that is taken for one."""

WINDOW = 64
"""Lines of a window where nothing is said of windows or sessions."""

_INDENTED = re.compile(r"\s|Caused by: |\.\.\. \d+ more")


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What the options of a reader ask for, checked."""

    kind: str
    session: str
    window: Window
    windowed: bool
    gap: float | None
    max_open: int
    max_held: int
    max_session: int
    multiline: str
    keep_header: bool
    fields: Fields
    max_bytes: int


def read_logs(
    kind: str,
    path: str | Path,
    problems: Problems,
    *,
    session: str = "auto",
    window: int | str | None = None,
    step: int | str | None = None,
    session_gap: int | str | None = None,
    max_open: int = 50_000,
    max_held: int = 1_000_000,
    max_session: int = 10_000,
    multiline: str = "auto",
    zone: str = "UTC",
    year: int | None = None,
    keep_header: bool = False,
    undecodable: str = "refuse",
    message_field: str | None = None,
    time_field: str | None = None,
    session_field: str | None = None,
    label_field: str | None = None,
    labels: str | None = None,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Record]:
    """Read a log (also .gz, .zst, "-") as windows or sessions: records whose raw is a `LogLines`.

    `meta["lines"]` has the 1-based line each message begins on; `meta["labels"]` what the file calls each and
    `meta["label"]` what it calls the session, where it does. `document` is the session, or the stretch of
    windows that share lines.

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
        session_gap: pause that ends a session ("30m", or seconds); None: it lasts to the end of the file.
        max_open, max_held: most sessions open at a time, and most lines of them together; beyond it the one
            idle longest is ended, with a note.
        max_session: most lines of one session's record; further ones make another.
        multiline: "auto" gives lines without the header of the format (in plain text: indented lines) to the
            message before; "off"; or an expression for the lines that begin a message.
        zone: of times that name none: UTC, an offset (+02:00), or a name (Europe/Berlin).
        year: of the first line, where times have none (syslog); None: the latest the file's age allows.
        keep_header: messages are whole lines.
        undecodable: "refuse" lines that are no UTF-8 or hold NUL bytes, or "replace" those bytes.
        message_field, time_field, session_field, label_field: of JSON lines and tables, where names are not
            the usual ones; several fields of a time with commas between them.
        labels: a CSV or TSV file with a session's id and its label in the first two columns.
        max_bytes: longest line.

    Raises:
        UsageError: options that make no sense.
    """
    asked = _Asked(
        kind=kind,
        session=session,
        window=window_of(WINDOW if window is None else window, step),
        windowed=window is not None or step is not None,
        gap=None if session_gap is None else _seconds(session_gap),
        max_open=max_open,
        max_held=max_held,
        max_session=max_session,
        multiline=multiline,
        keep_header=keep_header,
        fields=Fields(message=message_field, time=time_field, session=session_field, label=label_field),
        max_bytes=max_bytes,
    )
    if undecodable not in ("refuse", "replace"):
        raise UsageError(f"undecodable is refuse or replace; got {undecodable!r}")
    clock = Clock(zone, year, _last_written(path))
    named = {} if labels is None else _labels(labels, problems)
    batches = line_batches(str(path), problems, replace=undecodable == "replace", max_bytes=max_bytes)
    return _Reading(asked, clock, str(path), named, problems).records(batches)


KINDS = (
    "auto",
    "plain",
    *headers.HEADERS,
    "jsonl",
    "journal",
    "docker",
    "csv",
    "tsv",
    "sessions",
)
"""Formats; "journal" and "docker" are told from other JSON lines by their fields."""

READERS = {kind: partial(read_logs, kind) for kind in KINDS}
"""Format name to its reader."""


class _Reading:
    """One file being read."""

    def __init__(
        self, asked: _Asked, clock: Clock, source: str, labels: Mapping[str, str], problems: Problems
    ) -> None:
        self._asked, self._clock, self._source = asked, clock, source
        self._labels, self._problems = labels, problems
        self._name = Path(source).name

    def records(self, batches: Iterator[Lines]) -> Iterator[Record]:
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
            if kind == "cri":
                events = unsplit((batch, headers.is_part(batch)) for batch in events)
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
        indented = kind in ("plain", "docker", "cri")
        return (_is_indented if indented else _always), None

    def _events(self, events: Iterator[Events]) -> Iterator[Record]:
        """Events to records: sessions or windows."""
        events = filled(events, self._problems)
        first = next(events, None)
        if first is None:
            return
        events = chain([first], events)
        ids = self._ids(first)
        if ids is None:
            pieces = windows(events, self._asked.window, self._source, self._problems)
        else:
            pieces = Sessions(
                ids,
                gap=self._asked.gap,
                max_open=self._asked.max_open,
                max_held=self._asked.max_held,
                max_lines=self._asked.max_session,
                rest=self._asked.window,
                source=self._source,
                problems=self._problems,
            )(events)
        for piece in pieces:
            yield self._record(piece)

    def _ids(self, first: Events) -> Ids | None:
        """How to tell the sessions of lines; None for windows."""
        choice = self._asked.session
        if choice not in ("auto", "none"):
            return ids_by(pattern_of(choice))
        if choice == "none" or (self._asked.windowed and self._asked.fields.session is None):
            return None
        if first.sessions is not None:
            asked = self._asked.fields.session is not None
            return named_ids if asked or recurring(first.sessions) else None
        pattern = usual_pattern(first)
        return None if pattern is None else ids_by(pattern)

    def _record(self, piece: Piece) -> Record:
        meta: dict[str, object] = {"lines": piece.numbers}
        if piece.labels is not None:
            meta["labels"] = piece.labels
        raw = LogLines(lines=piece.messages, times=piece.times)
        return self._made(raw, piece.session, piece.numbers[0], f"{self._name}:{piece.group}", meta)

    def _made(
        self, raw: LogLines, session: str | None, line: int, group: str, meta: dict[str, object]
    ) -> Record:
        place = f"{self._name}:{line}"
        if session is not None and session in self._labels:
            meta["label"] = self._labels[session]
        if session is not None and self._problems.sensitive:
            session = f"{hash64(session) & (1 << 64) - 1:016x}"  # an id may be a person's
        return Record(
            id=session or place,
            raw=raw,
            source=self._source,
            line=line,
            document=session or group,
            meta=meta,
        )

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
            yield from self._events(table.events(self._clock))

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
                meta: dict[str, object] = {"lines": (line,) * len(keys)}
                if found.label is not None:
                    meta["label"] = row[at[found.label]]
                numbers = all(key.isdecimal() for key in keys)
                yield self._made(
                    LogLines(lines=keys, keys=numbers), session, line, f"{self._name}:{line}", meta
                )

    def _objects(self, batches: Iterator[Lines]) -> Iterator[Record]:
        rows = objects.objects(batches, self._source, self._problems)
        first = next(rows, None)
        if first is None:
            return
        rows = chain([first], rows)
        if self._asked.fields == Fields() and objects.is_container(first[0][1]):
            events = unsplit(objects.docker(rows, self._clock))
            yield from self._events(joined(events, *self._continues("docker"), self._problems))
            return
        found = objects.fields_of(first, self._asked.fields, self._source, self._problems)
        if found is None:
            return
        assert found.message is not None
        if objects.is_session(first[0][1], found.message):
            yield from self._session_objects(rows, found)
        else:
            events = objects.events_of(rows, found, self._clock, self._source, self._problems)
            yield from self._events(events)

    def _session_objects(self, batches: Iterator[list[objects.Row]], found: Found) -> Iterator[Record]:
        """An object a session: its messages in one field."""
        assert found.message is not None
        for line, row in chain.from_iterable(batches):
            texts = row.get(found.message)
            if not isinstance(texts, list) or not texts or not all(isinstance(t, (str, int)) for t in texts):
                self._problems.bad(objects.no_message(found.message, self._source, line))
                continue
            session = None if found.session is None else row.get(found.session)
            meta: dict[str, object] = {"lines": (line,) * len(texts)}
            if found.label is not None and row.get(found.label) is not None:
                meta["label"] = str(row[found.label])
            raw = LogLines(lines=tuple(map(str, texts)), keys=all(str(t).isdecimal() for t in texts))
            name = None if session is None else str(session)
            yield self._made(raw, name, line, f"{self._name}:{line}", meta)

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
                keys = tuple(found[2].split())
                meta: dict[str, object] = {"lines": (line,) * len(keys)}
                yield self._made(
                    LogLines(lines=keys, keys=True), found[1], line, f"{self._name}:{line}", meta
                )


def _always(message: str) -> bool:
    return True


def _is_indented(message: str) -> bool:
    return _INDENTED.match(message) is not None


def _seconds(gap: int | str) -> float:
    seconds = float(gap) if isinstance(gap, int) else duration(gap)
    if not seconds:
        raise UsageError(f"session_gap is a duration such as 90s, 30m, 1h; got {gap!r}")
    return seconds


def _last_written(path: str | Path) -> float:
    try:
        return time.time() if str(path) == "-" else Path(path).stat().st_mtime
    except OSError:
        return time.time()  # what is wrong with the file is said where it is read


def _labels(path: str, problems: Problems) -> dict[str, str]:
    """Session id to label, from a table whose first line names its columns."""
    found: dict[str, str] = {}
    for number, text in lines(path, problems):
        cells = text.split("\t" if "\t" in text else ",")
        if number > 1 and len(cells) > 1:
            found[cells[0]] = cells[1]
    return found
