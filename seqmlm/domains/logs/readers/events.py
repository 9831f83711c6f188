"""From the bytes of a log to events: lines in batches, messages with times, and what a record is.

Everything is done with whole lists, so that later steps run in C. A live input has pauses, which pass
through all steps as empty batches: then every step hands on what it keeps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import chain, islice
from math import isnan
from typing import Any, NamedTuple, TypeVar

from seqmlm.data.files import blocks, live_of, memory_of, too_long
from seqmlm.data.lines import lines, lines_and_pauses
from seqmlm.data.problems import Problems
from seqmlm.data.readers.huggingface import is_table, numbered_rows
from seqmlm.data.timestamps import NAN
from seqmlm.domains.logs.readers.origins import Origin
from seqmlm.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLines:
    """The lines of one window of a log, or of one session.

    Args:
        lines: the message of each line, without the header (time, level, host, process) that the format
            knows; a message of several physical lines keeps its line ends. Of a session file, the event ids
            as text ("5", "22").
        times: seconds since 1970-01-01 UTC of each line, or None where they are unknown.
        keys: the lines are event ids of a session file, not messages.
        subject: whose lines they are, the session or the file with its rotations; None where nobody says.
            Vocabularies of sensitive logs keep what enough subjects have. No part of what the lines say.
        windowed: the log was cut after a number of lines, or where it paused: another cut would do as well.

    >>> raw = LogLines(lines=("started", "ready"), times=(0.0, 1.5))
    >>> raw.text
    'started\\nready'
    """

    lines: tuple[str, ...]
    times: tuple[float, ...] | None = None
    keys: bool = False
    subject: str | None = field(default=None, compare=False, repr=False)
    windowed: bool = field(default=False, compare=False, repr=False)

    @property
    def text(self) -> str:
        """The messages joined by line ends: what `Encoding.spans` point into; `str` begins with it."""
        return "\n".join(self.lines)

    def __str__(self) -> str:
        """`text`, a NUL, and what the text does not say; equal strings are equal records.

        After the NUL come "k" for `keys`, "l" with the lengths of the messages where one holds a line end
        (else the text says where each ends), and "t" with the times to the last bit.
        """
        text = self.text
        rest = ["k"] if self.keys else []
        if text.count("\n") + 1 != len(self.lines):
            rest.append("l" + ",".join(str(len(line)) for line in self.lines))
        if self.times is not None:
            rest.append("t" + ",".join(map(repr, self.times)))
        return f"{text}\0{' '.join(rest)}"


# Lines

BATCH = 4096
"""Lines of a batch."""

UNDECODABLE = "bytes that are not text were replaced"


class Lines(NamedTuple):
    """Some lines of a file, one after the other; none at all is a pause of a live input.

    At a pause every later step hands on what it keeps, and then the pause, as an empty value of its own kind.

    numbers: 1-based number of each; a number is left out where a line was refused.
    texts: the lines without their ends.
    """

    numbers: list[int]
    texts: list[str]


def line_batches(source: str, problems: Problems, *, replace: bool, max_bytes: int) -> Iterator[Lines]:
    """Yield the lines of a file (also .gz, .zst, "-") in batches; faults go to `problems` with their line.

    Args:
        source: the file, or a table of Arrow.
        problems: receives lines that cannot be read.
        replace: put U+FFFD for bytes that are no UTF-8 and leave out NUL bytes (what a machine that lost
            power or a log cut off in place leaves), with a note, instead of refusing the line.
        max_bytes: longest line.
    """
    if live_of(source) is not None:
        coming = (
            _replaced(source, problems, max_bytes)
            if replace
            else lines_and_pauses(source, problems, max_bytes=max_bytes)
        )
        yield from (Lines([n for n, _ in some], [text for _, text in some]) for some in batched(coming))
        return
    if is_table(source):  # its rows are the objects of JSON lines
        rows = numbered_rows(source, problems)
        while some := list(islice(rows, BATCH)):
            yield Lines([n for n, _ in some], [json.dumps(row, default=str) for _, row in some])
        return
    numbered = (
        (pair for pair in _replaced(source, problems, max_bytes) if pair is not None)
        if replace
        else lines(source, problems, max_bytes=max_bytes)
    )
    while batch := list(islice(numbered, BATCH)):
        yield Lines(*map(list, zip(*batch, strict=True)))


T = TypeVar("T")


def batched(items: Iterator[T | None]) -> Iterator[list[T]]:
    """What comes, many together; at a pause (None) what has come, and then the pause, an empty list."""
    held: list[T] = []
    for item in items:
        if item is not None:
            held.append(item)
        if held and (item is None or len(held) >= BATCH):
            yield held
            held = []
        if item is None:
            yield []
    if held:
        yield held


def peek(batches: Iterator[Lines]) -> tuple[Lines, Iterator[Lines]]:
    """The first lines, and all of them again."""
    first = next((batch for batch in batches if batch.texts), Lines([], []))
    return first, chain([first] if first.texts else [], batches)


def _replaced(source: str, problems: Problems, max_bytes: int) -> Iterator[tuple[int, str] | None]:
    number, memory = 0, memory_of(source)
    for raw in _raw_lines(source, problems, max_bytes):
        if raw is None:
            number = number if memory is None else memory.numbered(number)
            yield None
            continue
        number += 1
        if isinstance(raw, int):
            problems.bad(too_long(source, number, max_bytes))
            continue
        if b"\0" in raw:
            problems.note("NUL bytes were left out")
            raw = raw.replace(b"\0", b"")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            problems.note(UNDECODABLE)
            text = raw.decode("utf-8", "replace")
        yield number, text.removesuffix("\r")


def _raw_lines(source: str, problems: Problems, max_bytes: int) -> Iterator[bytes | int | None]:
    """Every line as bytes, its length alone where that is beyond the limit; None at a pause."""
    held: list[bytes] = []
    size = number = 0
    try:
        for block in blocks(source, pauses=True):
            if not block:
                yield None
                continue
            first, *rest = block.split(b"\n")
            for part in rest:
                number += 1
                size += len(first)
                yield size if size > max_bytes else b"".join([*held, first])
                held, size, first = [], 0, part
            size += len(first)
            held = [*held, first] if size <= max_bytes else []
    except DataError as error:
        at = number + 1 if number else None
        problems.bad(DataError(error.reason, source=source, line=at, remedy=error.remedy))
        return
    live = live_of(source)
    if size and not (live is not None and live.stopped):  # a line whose end was not waited for is a torso
        yield size if size > max_bytes else b"".join(held)


# Events

CONTINUED_LINES = 2000
"""Physical lines of one message; the next ones begin another (a file of another format would be one)."""

Continues = Callable[[str], bool]


@dataclass(slots=True, kw_only=True)
class Events:
    """Some events of a log, in its order; the columns have equal lengths. No events are a pause (`Lines`).

    Args:
        numbers: 1-based line each begins on.
        messages: what it says, without the header.
        times: seconds since 1970-01-01 UTC, not a number where unknown; None where the format has none.
        sessions: ids of the sessions it belongs to; None where the format names none.
        labels: what the file calls it ("-" and an alert in BGL); None where it does not.
        origins: what it says of where it comes from; None where the format says nothing.
        heads: False where the line has no header and so may continue the one before; None: all have.
        whole: the lines with their headers, for what is searched in them.
    """

    numbers: list[int]
    messages: list[str]
    times: list[float] | None = None
    sessions: list[tuple[str, ...]] | None = None
    labels: list[str] | None = None
    origins: list[Origin] | None = None
    heads: list[bool] | None = None
    whole: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.messages)


def joined(
    batches: Iterator[Events], continues: Continues | None, begins: re.Pattern[str] | None, problems: Problems
) -> Iterator[Events]:
    """Give lines that continue a message to it; the last one of a batch waits for the next, or a pause.

    Args:
        batches: the events, a line each.
        continues: whether a line without header continues the message before; None: none does.
        begins: what a line has to match that begins a message, whatever its header; None: the header tells.
        problems: receives a note for messages without end.
    """
    if continues is None:
        yield from batches
        return
    held: Events | None = None
    for batch in batches:
        if not len(batch):
            yield from [batch] if held is None else [held, batch]
            held = None
            continue
        heads = batch.heads or []
        if begins is not None:
            heads = [begins.match(text) is not None for text in batch.whole]
        starts = _starts(batch, heads, continues, held is not None)
        if held is not None:
            batch, starts = _glue(held, batch), [0, *(row + 1 for row in starts)]
        if len(starts) < len(batch):
            batch = _merged(batch, starts, problems)
        whole, held = _cut(batch, len(batch) - 1)
        if len(whole):
            yield whole
    if held is not None:
        yield held


def _starts(batch: Events, heads: list[bool], continues: Continues, waiting: bool) -> list[int]:
    """Rows that begin a message."""
    if all(heads):
        return list(range(len(heads)))
    first = 0 if waiting else 1  # nothing is there that the very first line could continue
    return [
        row
        for row, (head, message) in enumerate(zip(heads, batch.messages, strict=True))
        if head or row < first or not continues(message)
    ]


def _merged(batch: Events, starts: list[int], problems: Problems) -> Events:
    """Join the rows from one start to the next."""
    cuts: list[int] = []
    for start, end in zip(starts, [*starts[1:], len(batch)], strict=True):
        # A message that waited for this batch has many lines already: its own line ends count.
        rows = max(1, CONTINUED_LINES - batch.messages[start].count("\n"))
        cuts.append(start)
        if end - start > rows:
            problems.note("a message was cut: too many lines without a header")
            cuts += range(start + rows, end, CONTINUED_LINES)
    ends = [*cuts[1:], len(batch)]
    joints = list(zip(cuts, ends, strict=True))
    return replace(
        chosen(batch, cuts),
        messages=[_join(batch.messages, a, b) for a, b in joints],
        whole=[_join(batch.whole, a, b) for a, b in joints],
    )


def _join(texts: list[str], start: int, end: int) -> str:
    return texts[start] if end == start + 1 else "\n".join(t for t in texts[start:end] if t)


def unsplit(batches: Iterator[tuple[Events, list[bool]]]) -> Iterator[Events]:
    """Put together messages that a container runtime has cut; True marks a part that another follows."""
    held: Events | None = None
    for batch, more in batches:
        if not len(batch):
            yield batch  # what follows a part will come, however late
            continue
        flags = more
        if held is not None:
            batch, flags, held = _glue(held, batch), [True, *more], None
        if any(flags):
            # Where a part ends the batch, it waits with all its parts for the rest.
            starts = [row for row in range(len(batch)) if not row or not flags[row - 1]]
            ends = [*starts[1:], len(batch)]
            messages = ["".join(batch.messages[a:b]) for a, b in zip(starts, ends, strict=True)]
            batch = replace(chosen(batch, starts), messages=messages, whole=messages)
        if flags and flags[-1]:
            batch, held = _cut(batch, len(batch) - 1)
        if len(batch):
            yield batch
    if held is not None:
        yield held


def filled(batches: Iterator[Events], problems: Problems) -> Iterator[Events]:
    """Leave out empty messages, and give events without a usable time that of a neighbour, with a note.

    Blank lines are no events and are not counted; lines of a time without a message are.

    The neighbour is the event before; at the beginning of a file the next one of the batch that has a time.
    """
    last = NAN
    for batch in batches:
        if not len(batch):
            yield batch
            continue
        keep = [bool(m) and not m.isspace() for m in batch.messages]
        if not all(keep):
            dated = [not wanted and not isnan(t) for wanted, t in zip(keep, batch.times or (), strict=False)]
            problems.note("a line without a message, left out", sum(dated))
            batch = chosen(batch, [row for row, wanted in enumerate(keep) if wanted])
        times = batch.times
        if times and any(map(isnan, times)):
            unread = sum(map(isnan, times))
            last = next((t for t in times if not isnan(t)), NAN) if isnan(last) else last
            for row, value in enumerate(times):
                times[row] = last = last if isnan(value) else value
            problems.note("an event without a time that can be read has that of its neighbour", unread)
        if times:
            last = times[-1]
        if len(batch):
            yield batch


def chosen(events: Events, rows: list[int]) -> Events:
    """Some of the events."""
    columns = _columns(events)
    return _made({n: None if v is None else [v[r] for r in rows] for n, v in columns.items()})


def _glue(first: Events, second: Events) -> Events:
    ends = _columns(second)
    pairs = {n: (v, ends[n]) for n, v in _columns(first).items()}
    return _made({n: None if a is None or b is None else a + b for n, (a, b) in pairs.items()})


def _cut(events: Events, at: int) -> tuple[Events, Events | None]:
    """The events before `at`, and those from there on, if any."""
    columns = _columns(events)
    before, after = (
        _made({n: None if v is None else v[part] for n, v in columns.items()})
        for part in (slice(0, at), slice(at, None))
    )
    return before, after if len(after) else None


def _columns(events: Events) -> dict[str, Any]:
    return {name: getattr(events, name) for name in _NAMES}


def _made(columns: dict[str, Any]) -> Events:
    return Events(**columns)


_NAMES = tuple(one.name for one in fields(Events))
