"""What every log format becomes: events in columns, a message each, and continued ones joined."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from math import isnan
from typing import Any

from seqmlm.data.problems import Problems
from seqmlm.data.timestamps import NAN

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
        heads: False where the line has no header and so may continue the one before; None: all have.
        whole: the lines with their headers, for what is searched in them.
    """

    numbers: list[int]
    messages: list[str]
    times: list[float] | None = None
    sessions: list[tuple[str, ...]] | None = None
    labels: list[str] | None = None
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
        _rows(batch, cuts),
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
            batch = replace(_rows(batch, starts), messages=messages, whole=messages)
        if flags and flags[-1]:
            batch, held = _cut(batch, len(batch) - 1)
        if len(batch):
            yield batch
    if held is not None:
        yield held


def filled(batches: Iterator[Events], problems: Problems) -> Iterator[Events]:
    """Leave out empty messages, and give events without a usable time that of a neighbour, with a note.

    The neighbour is the event before; at the beginning of a file the next one of the batch that has a time.
    """
    last = NAN
    for batch in batches:
        if not len(batch):
            yield batch
            continue
        keep = [bool(m) and not m.isspace() for m in batch.messages]
        if not all(keep):
            batch = _rows(batch, [row for row, wanted in enumerate(keep) if wanted])
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


def _rows(events: Events, rows: list[int]) -> Events:
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
