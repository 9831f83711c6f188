"""Convert the bytes of a log to events: lines in batches, messages with times, and the raw form of a record.

A live input has pauses, which pass through all steps as empty batches. At a pause, every step passes on the
data that it keeps.
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
        lines: the message of each line, without the header (time, level, host, process) of its format. A
            message with several physical lines keeps its line ends. A session file has event ids as text
            ("5", "22").
        times: seconds since 1970-01-01 UTC of each line, or None if they are unknown.
        keys: whether the lines are event ids of a session file, not messages.
        subject: the session, or the file with its rotations, to which the lines belong; None if it is
            unknown. A vocabulary may keep only text that enough subjects have. The subject is not a part of
            the text.
        windowed: whether the log was cut after a number of lines, or at a pause. Such cuts are arbitrary.

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
        """The messages joined by line ends.

        `Encoding.spans` are offsets in this text, and `str` begins with it.
        """
        return "\n".join(self.lines)

    def __str__(self) -> str:
        """`text`, a NUL, and the data that are not in the text. Equal strings are equal records.

        These parts follow the NUL, if they apply:

        * k: the lines are `keys`.
        * l: the lengths of the messages, if one contains a line end.
        * t: the times with all their bits.
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
    """Some consecutive lines of a file. No lines are a pause of a live input.

    At a pause, every later step passes on the data that it keeps, and then the pause, as an empty value of
    its own kind.

    Attributes:
        numbers: 1-based number of each line. The number of a refused line is left out.
        texts: the lines without their ends.
    """

    numbers: list[int]
    texts: list[str]


def line_batches(
    source: str, problems: Problems, *, undecodable: Undecodable, max_bytes: int
) -> Iterator[Lines]:
    """Yield the lines of a file (also .gz, .zst, "-") or of an Arrow table in batches.

    Faults go to `problems` with their line. `undecodable` has the meaning as in `lines_and_pauses`.
    """
    live = live_of(source) is not None
    numbered: Iterator[Any]
    if is_table(source):  # its rows are read as the objects of JSON lines
        numbered = ((n, json.dumps(row, default=str)) for n, row in numbered_rows(source, problems))
    else:
        numbered = lines_and_pauses(
            source, problems, max_bytes=max_bytes, pauses=live, undecodable=undecodable
        )
    for chunk in batched(numbered) if live else iter(lambda: list(islice(numbered, BATCH)), []):
        yield Lines(*map(list, zip(*chunk, strict=True))) if chunk else Lines([], [])


T = TypeVar("T")


def batched(items: Iterator[T | None]) -> Iterator[list[T]]:
    """Yield lists of up to `BATCH` items.

    At a pause (None), yield the items so far, and then an empty list.
    """
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
    """The first lines, and an iterator over all lines."""
    first = next((batch for batch in batches if batch.texts), Lines([], []))
    return first, chain([first] if first.texts else [], batches)


# Events

CONTINUED_LINES = 2000
"""Most physical lines of one message. The next line begins another message.

Without this limit, a file in another format could become a single message.
"""

WAITING = 1000
"""Most messages that wait for the end of an earlier message in another stream.

With more, the earlier one ends.
"""

EMPTY = "(empty)"
"""The text for an event without a message. The event itself and its time are still known."""

TRUNCATED = "(truncated JSON)"
"""The text for an event that is a part of a JSON object."""

STAND_INS = frozenset((BINARY, OVERLONG, TRUNCATED))
"""Texts for unreadable lines. They are separate events, and never continue the message before them."""

Continues = Callable[[str], bool]


class Event(NamedTuple):
    """One event of a log.

    Attributes:
        number: 1-based line where it begins.
        message: its text without the header.
        time: seconds since 1970-01-01 UTC, NaN if unknown; None if the format has no times.
        label: its label in the file ("-" and an alert in BGL); None if the file has none.
        origin: the origin that it names; None if the format names none.
        sessions: ids of the sessions to which it belongs; None if the format names none.
        head: False if the line has no header, so that it may continue the event before it.
        full_line: the line with its header, for searches.
        unfinished: whether its message continues in the next event of its stream, because a container runtime
            cut it.
        stream: the stream of a container to which it was written.
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
"""Some events, in the order of the log. No events are a pause (`Lines`)."""


def join_messages(
    batches: Iterator[Events], continues: Continues | None, begins: re.Pattern[str] | None, problems: Problems
) -> Iterator[Events]:
    """Join lines that continue a message.

    The last message of a batch waits for the next batch, or for a pause.

    Args:
        batches: the events, one per line.
        continues: whether a line without a header continues the message before it; None: no line does.
        begins: a pattern for lines that begin a message, whatever their header; None: the header decides.
        problems: receives a note about messages without an end.
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
            if head or not row or not continues(event.message)  # the first line of a file continues nothing
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
        # A message that waited for this batch already has several lines, so its line ends count.
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
    """Join messages that a container runtime has cut, each within its own stream.

    Messages come in the order in which they began. Messages of the other stream wait until a message ends,
    even if that takes long. After `WAITING` of them, the message ends.
    """
    messages: deque[Events] = deque()  # the parts of each message, from the first that has not ended
    under_way: dict[str, Events] = {}  # stream to the parts so far
    for batch in batches:
        ready: Events = []
        for event in batch:
            if not (event.unfinished or messages):  # the normal case
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
    """Name empty messages, leave out blank lines, and replace unreadable times.

    An event without a usable time gets the time of a neighbour, with a note. The neighbour is the event
    before it. At the beginning of a file, it is the next event of the batch that has a time.
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
            outcome = (
                "stays without one: no event has one" if none_known else "gets the time of its neighbour"
            )
            problems.note(f"an event without a readable time {outcome}", len(unread))
        if events:
            last = NAN if events[-1].time is None else events[-1].time
            yield events


def _has_message(event: Event) -> bool:
    """Whether an event has a message that is not blank."""
    return bool(event.message) and not event.message.isspace()


def _is_blank(event: Event) -> bool:
    """Whether an event has nothing on its line: no message, no header and no time."""
    return not (_has_message(event) or event.head or (event.time is not None and not isnan(event.time)))
