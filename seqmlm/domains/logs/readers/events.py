"""From the bytes of a log to events: lines in batches, messages with times, and what a record is.

A live input has pauses, which pass through all steps as empty batches: then every step hands on what it
keeps.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from math import isnan
from typing import Any, NamedTuple, TypeVar

from seqmlm.data.clock import NAN
from seqmlm.data.files import live_of
from seqmlm.data.lines import BINARY, OVERLONG, Undecodable, lines_and_pauses
from seqmlm.data.problems import Problems
from seqmlm.data.readers.huggingface import is_table, numbered_rows
from seqmlm.domains.logs.readers.origins import Origin


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
            A vocabulary may keep only what enough subjects have. No part of what the lines say.
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
        parts = ["k"] if self.keys else []
        if text.count("\n") + 1 != len(self.lines):
            parts.append("l" + ",".join(str(len(line)) for line in self.lines))
        if self.times is not None:
            parts.append("t" + ",".join(map(repr, self.times)))
        return f"{text}\0{' '.join(parts)}"


# Lines

BATCH = 4096
"""Lines of a batch."""


class Lines(NamedTuple):
    """Some lines of a file, one after the other; none at all is a pause of a live input.

    At a pause every later step hands on what it keeps, and then the pause, as an empty value of its own kind.

    numbers: 1-based number of each; a number is left out where a line was refused.
    texts: the lines without their ends.
    """

    numbers: list[int]
    texts: list[str]


def line_batches(
    source: str, problems: Problems, *, undecodable: Undecodable, max_bytes: int
) -> Iterator[Lines]:
    """Yield the lines of a file (also .gz, .zst, "-") or a table of Arrow in batches; faults go to `problems`
    with their line; `undecodable` as in `lines_and_pauses`."""
    live = live_of(source) is not None
    numbered: Iterator[Any]
    if is_table(source):  # its rows are the objects of JSON lines
        numbered = ((n, json.dumps(row, default=str)) for n, row in numbered_rows(source, problems))
    else:
        numbered = lines_and_pauses(
            source, problems, max_bytes=max_bytes, pauses=live, undecodable=undecodable
        )
    for chunk in batched(numbered) if live else iter(lambda: list(islice(numbered, BATCH)), []):
        yield Lines(*map(list, zip(*chunk, strict=True))) if chunk else Lines([], [])


T = TypeVar("T")


def batched(items: Iterator[T | None]) -> Iterator[list[T]]:
    """Lists of up to `BATCH` items; at a pause (None) the items that have come, and then an empty list."""
    waiting: list[T] = []
    for item in items:
        if item is not None:
            waiting.append(item)
        if waiting and (item is None or len(waiting) >= BATCH):
            yield waiting
            waiting = []
        if item is None:
            yield []
    if waiting:
        yield waiting


def peek(batches: Iterator[Lines]) -> tuple[Lines, Iterator[Lines]]:
    """The first lines, and all of them again."""
    first = next((batch for batch in batches if batch.texts), Lines([], []))
    return first, chain([first] if first.texts else [], batches)


# Events

CONTINUED_LINES = 2000
"""Physical lines of one message; the next ones begin another (a file of another format would be one)."""

WAITING = 1000
"""Messages that wait for the end of an earlier one of another stream; more of them, and it ends."""

EMPTY = "(empty)"
"""What an event without a message says: that it came, and when, is known of it."""

TRUNCATED = "(truncated JSON)"
"""What an event says that is a part of a JSON object."""

STAND_INS = frozenset((BINARY, OVERLONG, TRUNCATED))
"""Texts that stand for what cannot be read: events of their own, and no part of the message before."""

Continues = Callable[[str], bool]


class Event(NamedTuple):
    """One event of a log.

    number: 1-based line it begins on.
    message: what it says, without the header.
    time: seconds since 1970-01-01 UTC, not a number where unknown; None where the format has none.
    label: what the file calls it ("-" and an alert in BGL); None where it does not.
    origin: what it says of where it comes from; None where the format says nothing.
    sessions: ids of the sessions it belongs to; None where the format names none.
    head: False where the line has no header and so may continue the one before.
    full_line: the line with its header, for what is searched in it.
    unfinished: its message goes on in that of the next event of its stream, as a container runtime cuts it.
    stream: of a container that it was written to.
    """

    number: int
    message: str
    time: float | None = None
    label: str | None = None
    origin: Origin | None = None
    sessions: tuple[str, ...] | None = None
    head: bool = True
    full_line: str = ""
    unfinished: bool = False
    stream: str = ""


Events = list[Event]
"""Some events, in the order of the log; none at all are a pause (`Lines`)."""


def join_messages(
    batches: Iterator[Events], continues: Continues | None, begins: re.Pattern[str] | None, problems: Problems
) -> Iterator[Events]:
    """Join lines that continue a message to it; the last one of a batch waits for the next, or a pause.

    Args:
        batches: the events, a line each.
        continues: whether a line without header continues the message before; None: none does.
        begins: what a line has to match that begins a message, whatever its header; None: the header tells.
        problems: receives a note for messages without end.
    """
    if continues is None:
        yield from batches
        return
    waiting: Events = []
    for batch in batches:
        if not batch:
            yield from [waiting, batch] if waiting else [batch]
            waiting = []
            continue
        heads = [
            event.full_line in STAND_INS
            or (event.head if begins is None else begins.match(event.full_line) is not None)
            for event in batch
        ]
        starts = [
            row
            for row, (head, event) in enumerate(zip(heads, batch, strict=True), len(waiting))
            if head or not row or not continues(event.message)  # the very first line continues nothing
        ]
        if waiting:
            batch, starts = waiting + batch, [0, *starts]
        if len(starts) < len(batch):
            batch = _merge(batch, starts, problems)
        waiting = batch[-1:]
        if len(batch) > 1:
            yield batch[:-1]
    if waiting:
        yield waiting


def _merge(batch: Events, starts: list[int], problems: Problems) -> Events:
    """Join the rows from one start to the next."""
    cuts: list[int] = []
    for start, end in zip(starts, [*starts[1:], len(batch)], strict=True):
        # A message that waited for this batch has many lines already: its own line ends count.
        rows = max(1, CONTINUED_LINES - batch[start].message.count("\n"))
        cuts.append(start)
        if end - start > rows:
            problems.note("a message was cut: too many lines without a header")
            cuts += range(start + rows, end, CONTINUED_LINES)
    return [_message_event(batch[a:b]) for a, b in zip(cuts, [*cuts[1:], len(batch)], strict=True)]


def _message_event(lines: Events) -> Event:
    """The lines of one message as one event."""
    if len(lines) == 1:
        return lines[0]
    message = "\n".join(line.message for line in lines if line.message)
    full_line = "\n".join(line.full_line for line in lines if line.full_line)
    return lines[0]._replace(message=message, full_line=full_line)


def join_parts(batches: Iterator[Events]) -> Iterator[Events]:
    """Put together messages that a container runtime has cut, each within its own stream.

    Messages come in the order in which they began: those of the other stream wait for the end of one, which
    comes however late, but `WAITING` of them end it.
    """
    messages: deque[Events] = deque()  # the parts of each, from the first one that has not ended
    under_way: dict[str, Events] = {}  # stream to the parts that have come
    for batch in batches:
        ready: Events = []
        for event in batch:
            if not (event.unfinished or messages):  # nearly always
                ready.append(event)
                continue
            parts = under_way.pop(event.stream, None)
            if parts is None:
                messages.append(parts := [])
            parts.append(event)
            if event.unfinished:
                under_way[event.stream] = parts
            while messages and (len(messages) > WAITING or not messages[0][-1].unfinished):
                ended = messages.popleft()
                if ended[-1].unfinished:
                    del under_way[ended[-1].stream]
                ready.append(_joined_message(ended))
        if ready or not batch:
            yield ready
    if messages:
        yield list(map(_joined_message, messages))


def _joined_message(parts: Events) -> Event:
    """The event of a message that came in parts."""
    if len(parts) == 1:
        return parts[0]
    message = "".join(part.message for part in parts)
    return parts[0]._replace(message=message, full_line=message)


def clean_events(batches: Iterator[Events], problems: Problems) -> Iterator[Events]:
    """Name empty messages, leave out blank lines, and give events without a usable time that of a neighbour,
    with a note.

    The neighbour is the event before; at the beginning of a file the next one of the batch that has a time.
    """
    last = NAN
    for batch in batches:
        if not batch:
            yield batch
            continue
        events = [event for event in batch if _has_message(event)]
        if len(events) < len(batch):
            non_blank = (event for event in batch if not _is_blank(event))
            events = [event if _has_message(event) else event._replace(message=EMPTY) for event in non_blank]
        unread = [row for row, event in enumerate(events) if event.time is not None and isnan(event.time)]
        if unread:
            if isnan(last):
                times = (event.time for event in events if event.time is not None and not isnan(event.time))
                last = next(times, NAN)
            for row in unread:
                neighbour_time = events[row - 1].time if row else last
                events[row] = events[row]._replace(time=neighbour_time)
            none_known = isnan(last) and len(unread) == len(events)
            outcome = "is without one: no other has one" if none_known else "has that of its neighbour"
            problems.note(f"an event without a time that can be read {outcome}", len(unread))
        if events:
            last = NAN if events[-1].time is None else events[-1].time
            yield events


def _has_message(event: Event) -> bool:
    """Whether an event has a message that is not blank."""
    return bool(event.message) and not event.message.isspace()


def _is_blank(event: Event) -> bool:
    """Whether an event has nothing on its line: no message, no header, no time."""
    return not (_has_message(event) or event.head or (event.time is not None and not isnan(event.time)))
