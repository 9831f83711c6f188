"""Events to the pieces that become records: windows by count, windows by time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import isnan
from operator import lt

from seqmlm.data.problems import Problems
from seqmlm.data.readers.logs.events import Events
from seqmlm.data.timestamps import duration
from seqmlm.errors import DataError, UsageError

STRETCH = 16
"""Windows of one stretch; windows of different stretches share no line."""

WINDOW_LINES = 1 << 17
"""Most lines of one window by time; the rest of a fuller one makes another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some lines of a log that become one record.

    Args:
        numbers: 1-based line of each.
        messages: what each says.
        times: seconds since 1970-01-01 UTC, or None.
        labels: what the file calls each, or None.
        session: id of the session, or None for a window.
        group: number that records share which may share lines; those of two groups never do.
    """

    numbers: tuple[int, ...]
    messages: tuple[str, ...]
    times: tuple[float, ...] | None
    labels: tuple[str, ...] | None
    session: str | None
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How long a window is and how far the next one begins, in lines, or in seconds if `by_time`."""

    length: float
    step: float
    by_time: bool = False


def window_of(length: int | str, step: int | str | None) -> Window:
    """The window that the options `window` and `step` ask for: 64, or "5m".

    Raises:
        UsageError: not a positive number of lines, or duration; a step of another kind or beyond the window.
    """
    kinds = [
        _measure(value, name) for value, name in ((length, "window"), (step, "step")) if value is not None
    ]
    lengths, by_time = [value for value, _ in kinds], [timed for _, timed in kinds]
    if by_time[0] != by_time[-1]:
        raise UsageError("window and step are both numbers of lines, or both durations such as 5m")
    if lengths[-1] > lengths[0]:
        raise UsageError("the step is longer than the window: lines in between would be lost")
    return Window(length=lengths[0], step=lengths[-1], by_time=by_time[0])


def _measure(value: int | str, name: str) -> tuple[float, bool]:
    lines = int(value) if isinstance(value, int) or value.isdecimal() else None
    seconds = duration(str(value)) if lines is None else None
    measure = lines if lines is not None else seconds
    if measure is None or measure <= 0:
        raise UsageError(f"{name} is a number of lines, or a duration such as 90s, 5m, 1h; got {value!r}")
    return float(measure), lines is None


def windows(events: Iterator[Events], window: Window, source: str, problems: Problems) -> Iterator[Piece]:
    """Cut a stream of events into windows; every line is in one at least, and in overlapping ones in each.

    Windows are made stretch by stretch: a stretch ends with its 16th window, and the next one begins with
    the line behind it. So windows that overlap are of one stretch; a split has no line on both sides. A pause
    ends the stretch, and the window under way.

    Raises:
        DataError: windows by time of a log without times.
    """
    held = _Held()
    for batch in events:
        if not len(batch):
            yield from held.cut(window, len(held.numbers))
            held.drop(len(held.numbers))
            continue
        if window.by_time and (batch.times is None or isnan(batch.times[0])):
            raise DataError(
                "windows by time need lines with times",
                source=source,
                line=batch.numbers[0],
                remedy="give the window as a number of lines, or name the format or field of the time",
            )
        held.add(batch)
        end = held.end(window)
        while end is not None:
            yield from held.cut(window, end)
            held.drop(end)
            end = held.end(window)
    if held.numbers:
        yield from held.cut(window, len(held.numbers))
    problems.note("a line earlier than the one before it", held.late)


class _Held:
    """Lines that are waiting for their stretch to be whole."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._messages: list[str] = []
        self._times: list[float] | None = None
        self._labels: list[str] | None = None
        self._order: list[float] = []  # times that never go back
        self.late = 0

    def add(self, batch: Events) -> None:
        self.numbers += batch.numbers
        self._messages += batch.messages
        if batch.times is not None:
            self._times = self._times or []
            self.late += sum(map(lt, batch.times, [*(self._times[-1:] or batch.times[:1]), *batch.times]))
            self._times += batch.times
            before = self._order[-1:]
            ordered = list(accumulate([*before, *batch.times], max))[len(before) :]
            self._order += ordered
        if batch.labels is not None:
            self._labels = (self._labels or []) + batch.labels

    def end(self, window: Window) -> int | None:
        """Lines of the first stretch, if it is whole."""
        stretch = window.length + (STRETCH - 1) * window.step
        if not window.by_time:
            return int(stretch) if len(self.numbers) >= stretch else None
        if self._order and self._order[-1] >= self._order[0] + stretch:
            return bisect_left(self._order, self._order[0] + stretch)
        return WINDOW_LINES if len(self.numbers) >= WINDOW_LINES else None

    def drop(self, end: int) -> None:
        for column in (self.numbers, self._messages, self._times, self._labels, self._order):
            if column:
                del column[:end]

    def cut(self, window: Window, end: int) -> Iterator[Piece]:
        """The windows of the first `end` lines."""
        covered = number = 0
        while covered < end:
            if window.by_time:
                # Where nothing happened, windows are passed over at once.
                begin = self._order[0] + number * window.step
                ahead = self._order[covered] - begin - window.length
                if ahead >= 0:
                    number += int(ahead // window.step) + 1
                    begin = self._order[0] + number * window.step
                first = bisect_left(self._order, begin, 0, end)
                last = bisect_left(self._order, begin + window.length, 0, end)
            else:
                first = int(number * window.step)
                last = min(end, first + int(window.length))
            number += 1
            if last > covered:  # else an earlier window has all its lines
                first = min(first, covered)
                yield self._piece(first, last, 0 if window.step < window.length else first)
                covered = last

    def _piece(self, first: int, last: int, group: int) -> Piece:
        times = self._times
        known = times is not None and not isnan(times[first])
        return Piece(
            numbers=tuple(self.numbers[first:last]),
            messages=tuple(self._messages[first:last]),
            times=tuple(times[first:last]) if times is not None and known else None,
            labels=None if self._labels is None else tuple(self._labels[first:last]),
            session=None,
            group=self.numbers[group],
        )
