"""Group events into the pieces that become records: windows by count or time, or the sessions of an id.

The lines of a session are between lines of others, and its end is rarely marked. Sessions wait in bounded
memory. Sessions that had to end early are counted.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from math import inf, isnan
from operator import lt
from typing import NamedTuple

from seqmlm.data.clock import NAN
from seqmlm.data.files import Memory
from seqmlm.data.problems import Problems
from seqmlm.data.splits import hash64
from seqmlm.domains.logs.readers.events import Event, Events
from seqmlm.domains.logs.readers.origins import Origin
from seqmlm.errors import DataError, UsageError
from seqmlm.parsing import duration

STRETCH = 16
"""Number of windows in one stretch. Windows of different stretches share no line."""

WINDOW_LINES = 1 << 17
"""Most lines of one window by time. If a window has more, the rest become another window."""


Line = tuple[int, str, float | None, str | None, Origin | None]
"""Number, message, time, label and origin of an event: the data that wait until its piece is complete."""


class Piece(NamedTuple):
    """Some lines of a log, in their order, that become one record.

    Attributes:
        lines: the lines.
        session: the id of its session, or None for a window.
        group: a number for records that may share lines. Records with different numbers never do.
    """

    lines: Sequence[Line]
    session: str | None
    group: int

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(line[0] for line in self.lines)

    @property
    def times(self) -> tuple[float, ...] | None:
        """Seconds since 1970-01-01 UTC, or None."""
        seconds = tuple(NAN if line[2] is None else line[2] for line in self.lines)
        return None if isnan(seconds[0]) else seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The length of a window and the step to the next one, in lines, or in seconds if `by_time`."""

    length: float
    step: float
    by_time: bool = False


def window_of(length: int | str, step: int | str | None) -> Window:
    """The window for the options `window` and `step`: 64, or "5m".

    Raises:
        UsageError: a value is not a positive number of lines or a duration, or the step has another kind or
            is longer than the window.
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
    """(length, whether it is in seconds) of a window or a step."""
    lines = int(value) if isinstance(value, int) or value.isdecimal() else None
    seconds = duration(str(value)) if lines is None else None
    measure = lines if lines is not None else seconds
    if measure is None or measure <= 0:
        raise UsageError(f"{name} is a number of lines, or a duration such as 90s, 5m, 1h; got {value!r}")
    return float(measure), lines is None


def windows(
    events: Iterator[Events], window: Window, source: str, problems: Problems, memory: Memory | None = None
) -> Iterator[Piece]:
    """Cut a stream of events into windows. Every line is in at least one window.

    Windows are made stretch by stretch. A stretch ends with its 16th window, and the next one begins with the
    line after it. Overlapping windows are therefore in the same stretch, and a split has no line on both
    sides.

    A pause ends the stretch after the window in progress. For windows by time, it ends before the first
    window whose time is not over by our own clock. `memory` receives the lines that wait.

    Raises:
        DataError: windows by time for a log without times.
    """
    waiting = _WaitingLines()
    if memory is not None:
        memory.held = lambda: {REST: [line[0] for line in waiting.lines]} if waiting.lines else {}
    for batch in events:
        if not batch:
            number, last, begin = waiting.complete_windows(window, time.monotonic())
            yield from waiting.pieces(window, last, number)
            waiting.drop(begin)
            continue
        time_known = batch and batch[0].time is not None and not isnan(batch[0].time)
        if window.by_time and not time_known:
            reason = "windows by time need lines with times"
            remedy = "give the window as a number of lines, or name the format or field of the time"
            raise DataError(reason, source=source, line=batch[0].number, remedy=remedy)
        waiting.add(batch)
        end = waiting.stretch_end(window)
        while end is not None:
            yield from waiting.pieces(window, end)
            waiting.drop(end)
            end = waiting.stretch_end(window)
    if waiting.lines:
        yield from waiting.pieces(window, len(waiting.lines))
    place = problems.quoted(source) or None
    problems.note(
        "a line out of time order, left in its place", waiting.late, source=place, line=waiting.first_late
    )


class _WaitingLines:
    """Lines that wait until their stretch is complete."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._order: list[float] = []  # running maximum of the times
        self._came = 0.0  # arrival of the last line, by our clock
        self.late = 0  # lines with an earlier time than the line before
        self.first_late: int | None = None  # the number of the first of these lines

    def add(self, batch: Events) -> None:
        timed = [(event.number, event.time) for event in batch if event.time is not None]
        times = [time for _, time in timed]
        if times:
            last = [line[2] or 0.0 for line in self.lines[-1:]] or times[:1]
            late = list(map(lt, times, [*last, *times]))
            if self.first_late is None and any(late):
                self.first_late = timed[late.index(True)][0]
            self.late += sum(late)
            previous = self._order[-1:]
            self._order += list(accumulate([*previous, *times], max))[len(previous) :]
            self._came = time.monotonic()
        self.lines += [event[:5] for event in batch]

    def stretch_end(self, window: Window) -> int | None:
        """The number of lines in the first stretch if it is complete, otherwise None."""
        stretch = window.length + (STRETCH - 1) * window.step
        if not window.by_time:
            return int(stretch) if len(self.lines) >= stretch else None
        if self._order and self._order[-1] >= self._order[0] + stretch:
            return bisect_left(self._order, self._order[0] + stretch)
        return WINDOW_LINES if len(self.lines) >= WINDOW_LINES else None

    def drop(self, end: int) -> None:
        del self.lines[:end], self._order[:end]

    def complete_windows(self, window: Window, now: float) -> tuple[float, int, int]:
        """At a pause: the numbers of complete windows, of their lines, and of lines no longer needed.

        Windows by count are complete at a pause. For windows by time, the time in the log continues from the
        last line at the rate of our clock.
        """
        if not window.by_time or not self.lines:
            return inf, len(self.lines), len(self.lines)
        first = self._order[0]
        passed = self._order[-1] + now - self._came - first
        number = max(0, int((passed - window.length) // window.step) + 1)
        last = bisect_left(self._order, first + (number - 1) * window.step + window.length)
        return number, last if number else 0, bisect_left(self._order, first + number * window.step)

    def pieces(self, window: Window, end: int, limit: float = inf) -> Iterator[Piece]:
        """Yield the windows of the first `end` lines, at most `limit` of them."""
        covered = number = 0
        while covered < end and number < limit:
            if window.by_time:
                # Windows without lines are skipped at once.
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
            if last > covered:  # otherwise an earlier window has all its lines
                first = min(first, covered)
                group = self.lines[0 if window.step < window.length else first][0]
                yield Piece(self.lines[first:last], None, group)
                covered = last


# Sessions

Ids = Callable[[Event], Sequence[str]]

REST = ""
"""The key for lines of no session among the waiting lines. No session has this id."""

_REST_LINES = 1 << 16  # most lines without an id that wait for their windows

_USUAL = (
    r"blk_-?\d+",
    r"req-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    r"\b(?:request|req|trace|session|transaction|correlation|job)[-_]?id\"?[=:] ?\"?([\w.-]+)",
    r"\b(?:request|req|trace|session|job|txn)=([\w.-]+)",
)
_LOOKED_AT = 4096
_SHARE, _LINES_EACH = 0.75, 4


def pattern_of(session: str) -> re.Pattern[str]:
    """The user's expression for session ids. The id is group 1, or the whole match.

    Raises:
        UsageError: it is not a regular expression, or has more than one group.
    """
    try:
        pattern = re.compile(session)
    except re.error as error:
        raise UsageError(f"session is not a regular expression: {error}") from None
    if pattern.groups > 1:
        raise UsageError("session has more than one group; write the others as (?:...)")
    return pattern


def usual_pattern(first: Events) -> re.Pattern[str] | None:
    """The first common form of ids that fits these lines; None if none fits.

    A form fits if three quarters of the lines have such ids, with at least four lines per id on average.
    """
    texts = [event.full_line for event in first[:_LOOKED_AT]]
    for expression in _USUAL:
        pattern = re.compile(expression)
        if ids_recur([set(pattern.findall(text)) for text in texts], _LINES_EACH):
            return pattern
    return None


def ids_recur(line_ids: Sequence[Collection[str]], lines_each: int = 2) -> bool:
    """Whether three quarters of some lines have ids that recur.

    Ids recur if they occur in `lines_each` lines or more on average.
    """
    ids = Counter(chain.from_iterable(line_ids))
    with_id = sum(map(bool, line_ids))
    return bool(ids) and with_id >= _SHARE * len(line_ids) and ids.total() >= lines_each * len(ids)


def id_finder(pattern: re.Pattern[str]) -> Ids:
    """A function that finds the ids in the whole line of an event, each id once."""
    find = pattern.findall

    def ids(event: Event) -> Sequence[str]:
        matches = find(event.full_line)
        return matches if len(matches) < 2 else list(dict.fromkeys(matches))

    return ids


def key_of(session: str) -> str:
    """A session's name among the waiting lines. It does not reveal the id, which may identify a person."""
    return f"{hash64(session) & (1 << 64) - 1:016x}"


def unread_events(events: Iterator[Events], memory: Memory) -> Iterator[Events]:
    """Leave out events if an earlier reader has passed on all their records."""
    for batch in events:
        if batch:
            memory.last_line = max(memory.last_line, batch[-1].number)
            if batch[0].number <= memory.last_line_before:
                batch = [event for event in batch if not memory.is_past(event.number)]
                if not batch:
                    continue  # an empty batch would be a pause
        yield batch


def open_id_finder(ids: Ids, memory: Memory) -> Ids:
    """A function that finds the ids of events, without sessions that an earlier reader has passed on."""

    def open_ids(event: Event) -> Sequence[str]:
        names = ids(event)
        if event.number > memory.last_line_before:
            return names
        return [session for session in names if event.number in memory.held_before.get(key_of(session), ())]

    return open_ids


@dataclass(slots=True)
class _OpenSession:
    """A session with some of its lines."""

    lines: list[Line] = field(default_factory=list)
    came: float = 0.0  # arrival of the last line of a live input, by our clock
    elapsed: float = 0.0  # seconds of the log at the last line


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits at which a session ends.

    Args:
        gap: seconds without a line after which it ends; None: only the end of the file ends it.
        idle: the same by our own clock for a live input, checked when it pauses; None for files.
        max_open: maximum number of open sessions. If there are more, the session that was idle longest ends,
            with a note.
        max_held: most lines of all open sessions together; the same rule applies.
        max_lines: most lines of one session. More lines make another record with the same id.
    """

    gap: float | None = None
    idle: float | None = None
    max_open: int = 50_000
    max_held: int = 1_000_000
    max_lines: int = 10_000


class Sessions:
    """Gather the lines of each session id.

    A session ends with the file, after a gap, or when memory is full. An event with several ids belongs to
    each of their sessions. Lines without an id make windows (`rest_window`).
    """

    def __init__(
        self, ids: Ids, limits: Limits, rest_window: Window, source: str, problems: Problems
    ) -> None:
        self._ids, self._limits, self._rest_window = ids, limits, rest_window
        self._source, self._problems = source, problems
        self._open: dict[str, _OpenSession] = {}  # the session that was idle longest comes first
        self._lines = 0
        self._events_without_id: Events = []
        self._elapsed = _LogClock(limits.gap or inf)

    def __call__(self, events: Iterator[Events]) -> Iterator[Piece]:
        """Yield the sessions as they end.

        The sessions that are open at the end of the file follow in the order in which they began. Lines
        without an id come last, in windows.
        """
        for batch in events:
            if batch:
                yield from self._add(batch)
            else:
                yield from self._end_at_pause(time.monotonic())
        unended = sorted(self._open.items(), key=lambda pair: pair[1].lines[0][0])
        self._open = {}
        yield from (Piece(session.lines, name, session.lines[0][0]) for name, session in unended)
        yield from self._flush_rest()

    def waiting_lines(self) -> dict[str, list[int]]:
        """The waiting lines, by the key of their session."""
        lines_by_key = {
            key_of(name): [line[0] for line in session.lines] for name, session in self._open.items()
        }
        rest_lines = [event.number for event in self._events_without_id]
        return {**lines_by_key, REST: rest_lines} if rest_lines else lines_by_key

    def _add(self, batch: Events) -> Iterator[Piece]:
        """Add a batch of events, and yield the sessions that end."""
        sessions, gap, idle = self._open, self._limits.gap, self._limits.idle
        came = 0.0 if idle is None else time.monotonic()
        if gap is not None and batch[0].time is None and idle is None:
            reason = "sessions that end after a pause need lines with times"
            remedy = "leave session_gap out, or name the format or field of the time"
            raise DataError(reason, source=self._source, line=batch[0].number, remedy=remedy)
        for event in batch:
            line, names = event[:5], self._ids(event)
            self._elapsed.add(event.time)
            if not names:
                self._events_without_id.append(event)
            for name in names:
                session = sessions.pop(name, None)
                if session is None:
                    session = _OpenSession()
                elif gap is not None and self._elapsed.seconds - session.elapsed > gap:
                    sessions[name] = session
                    yield self._end_session(name)
                    session = _OpenSession()
                sessions[name] = session  # now the last in the order
                session.came, session.elapsed = came, self._elapsed.seconds
                session.lines.append(line)
                self._lines += 1
                if len(session.lines) >= self._limits.max_lines:
                    self._problems.note("a session was cut: it has more lines than max_session")
                    yield self._end_session(name)
            if gap is not None:
                yield from self._close_idle()
        yield from self._close_idle()
        if len(self._events_without_id) >= _REST_LINES:
            yield from self._flush_rest()

    def _close_idle(self) -> Iterator[Piece]:
        """End sessions that are over.

        It is called for each line if there is a gap, so that the result does not depend on the batches.
        """
        limits = self._limits
        while self._open:
            name, session = next(iter(self._open.items()))
            full = len(self._open) > limits.max_open or self._lines > limits.max_held
            idle = limits.gap is not None and self._elapsed.seconds - session.elapsed > limits.gap
            if not (full or idle):
                return
            if full and not idle:
                self._problems.note("a session was ended early: too many were open (max_open, max_held)")
            yield self._end_session(name)

    def _end_at_pause(self, now: float) -> Iterator[Piece]:
        """At a pause of a live input, end the sessions that are over, and the windows of the other lines."""
        idle = inf if self._limits.idle is None else self._limits.idle
        while self._open and now - next(iter(self._open.values())).came >= idle:
            yield self._end_session(next(iter(self._open)))
        yield from self._flush_rest()

    def _end_session(self, name: str) -> Piece:
        """Close a session, and return the piece of its lines."""
        session = self._open.pop(name)
        self._lines -= len(session.lines)
        return Piece(session.lines, name, session.lines[0][0])

    def _flush_rest(self) -> Iterator[Piece]:
        """Yield the windows of the events without an id."""
        events, self._events_without_id = self._events_without_id, []
        self._problems.note("a line without a session id went into a window", len(events))
        yield from windows(iter([events] if events else []), self._rest_window, self._source, self._problems)


class _LogClock:
    """Measure how many seconds of a log have passed, by the times of its lines.

    The result is the increase of their running maximum. Late lines therefore do not advance time. The same is
    true for a clock that steps back and is corrected later. After a step back of more than a gap, time
    continues from there.
    """

    def __init__(self, gap: float) -> None:
        self._gap, self.seconds = gap, 0.0
        self._latest, self._behind = -inf, inf  # the latest time, and the latest since a step back

    def add(self, time: float | None) -> None:
        """Process the time of the next line, if it has one."""
        if time is None or isnan(time):
            return
        self._latest = time if self._latest == -inf else self._latest
        if self._latest - time <= self._gap:
            self.seconds += max(0.0, time - self._latest)
            self._latest = max(self._latest, time)
        elif self._behind - time <= self._gap:
            self.seconds += max(0.0, time - self._behind)
            self._behind = max(self._behind, time)
        else:
            self._behind = time
