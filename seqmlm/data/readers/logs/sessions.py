"""Events to sessions: the lines of one id, gathered from between the others in bounded memory."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import isnan

from seqmlm.data.problems import Problems
from seqmlm.data.readers.logs.events import Events
from seqmlm.data.readers.logs.pieces import Piece, Window, windows
from seqmlm.errors import DataError, UsageError

Ids = Callable[[Events], Sequence[Sequence[str]]]

_REST_LINES = 1 << 16  # lines without an id that wait to be made into windows

_USUAL = (
    r"blk_-?\d+",
    r"req-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    r"\b(?:request|req|trace|session|transaction|correlation|job)[-_]?id\"?[=:] ?\"?([\w.-]+)",
    r"\b(?:request|req|trace|session|job|txn)=([\w.-]+)",
)
_LOOKED_AT = 4096
_SHARE, _LINES_EACH = 0.75, 4


def pattern_of(session: str) -> re.Pattern[str]:
    """The expression a user gave for session ids: group 1 is the id, else the whole match.

    Raises:
        UsageError: it is no regular expression, or has more than one group.
    """
    try:
        pattern = re.compile(session)
    except re.error as error:
        raise UsageError(f"session is not a regular expression: {error}") from None
    if pattern.groups > 1:
        raise UsageError("session has more than one group; make the others (?:...)")
    return pattern


def usual_pattern(first: Events) -> re.Pattern[str] | None:
    """The usual form of ids that three quarters of these lines have, if any, with four lines an id."""
    texts = first.whole[:_LOOKED_AT]
    for expression in _USUAL:
        pattern = re.compile(expression)
        if recurring([set(pattern.findall(text)) for text in texts], _LINES_EACH):
            return pattern
    return None


def recurring(found: Sequence[Collection[str]], lines_each: int = 2) -> bool:
    """Whether three quarters of some lines have ids, and an id comes in so many lines on average."""
    ids = Counter(chain.from_iterable(found))
    with_id = sum(map(bool, found))
    return bool(ids) and with_id >= _SHARE * len(found) and ids.total() >= lines_each * len(ids)


def ids_by(pattern: re.Pattern[str]) -> Ids:
    """The ids of events by an expression, searched in the whole lines; an id counts once a line."""
    find = pattern.findall

    def ids(events: Events) -> list[Sequence[str]]:
        found = [find(text) for text in events.whole]
        return [one if len(one) < 2 else list(dict.fromkeys(one)) for one in found]

    return ids


def named_ids(events: Events) -> Sequence[Sequence[str]]:
    """The ids that a field of the file names."""
    return events.sessions or ((),) * len(events)


@dataclass(slots=True)
class _Open:
    """A session some of whose lines have come."""

    numbers: list[int] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    came: float = 0.0  # by our clock, the last of them, of a live input


class Sessions:
    """Gathers the lines of each id; a session ends with the file, after a gap, or when memory is full.

    Args:
        ids: of events; an event with several belongs to each session.
        gap: seconds without a line after which a session is over; None: only the end of the file ends it.
        max_open: most sessions open at a time; beyond it the one idle longest ends, with a note.
        max_held: most lines of open sessions together, in the same way.
        max_lines: of one session; the next ones make a further record of the same id.
        rest: the windows that lines without an id make.
        idle: of a live input, seconds by our own clock without a line after which a session is over; looked
            at when the input pauses. None for files.
        source, problems: of the file.
    """

    def __init__(
        self,
        ids: Ids,
        *,
        gap: float | None,
        max_open: int,
        max_held: int,
        max_lines: int,
        rest: Window,
        idle: float | None = None,
        source: str,
        problems: Problems,
    ) -> None:
        self._ids, self._gap, self._idle = ids, gap, idle
        self._max_open, self._max_held, self._max_lines = max_open, max_held, max_lines
        self._rest, self._source, self._problems = rest, source, problems
        self._open: dict[str, _Open] = {}  # the one idle longest first
        self._lines = 0
        self._without: list[Events] = []

    def __call__(self, events: Iterator[Events]) -> Iterator[Piece]:
        """The sessions as they end; those open at the end of the file in the order they began.

        Lines without an id come after them, in windows.
        """
        for batch in events:
            if len(batch):
                yield from self._add(batch)
            else:
                yield from self._pause(time.monotonic())
        left = sorted(self._open.items(), key=lambda item: item[1].numbers[0])
        self._open = {}
        yield from (_piece(name, one) for name, one in left)
        yield from self._flush_rest()

    def _add(self, batch: Events) -> Iterator[Piece]:
        ids = self._ids(batch)
        times, labels, sessions, gap = batch.times, batch.labels, self._open, self._gap
        came = 0.0 if self._idle is None else time.monotonic()
        if gap is not None and times is None and self._idle is None:
            raise DataError(
                "sessions that end after a pause need lines with times",
                source=self._source,
                line=batch.numbers[0],
                remedy="leave session_gap out, or name the format or field of the time",
            )
        for row, names in enumerate(ids):
            for name in names:
                one = sessions.pop(name, None)
                if one is None:
                    one = _Open()
                elif gap is not None and times is not None and times[row] - one.times[-1] > gap:
                    yield self._ended(name, one)
                    one = _Open()
                sessions[name] = one  # again the last in the order
                one.came = came
                one.numbers.append(batch.numbers[row])
                one.messages.append(batch.messages[row])
                if times is not None:
                    one.times.append(times[row])
                if labels is not None:
                    one.labels.append(labels[row])
                self._lines += 1
                if len(one.numbers) >= self._max_lines:
                    self._problems.note("a session was cut: it has more lines than max_session")
                    yield self._ended(name, sessions.pop(name))
        yield from self._close_idle(times[-1] if times else None)
        if without := [row for row, names in enumerate(ids) if not names]:
            self._without.append(_rows(batch, without))
            if sum(map(len, self._without)) >= _REST_LINES:
                yield from self._flush_rest()

    def _close_idle(self, now: float | None) -> Iterator[Piece]:
        while self._open:
            name = next(iter(self._open))
            one = self._open[name]
            full = len(self._open) > self._max_open or self._lines > self._max_held
            idle = self._gap is not None and now is not None and now - one.times[-1] > self._gap
            if not (full or idle):
                return
            if full and not idle:
                self._problems.note("a session was ended early: too many were open (max_open, max_held)")
            yield self._ended(name, self._open.pop(name))

    def _pause(self, now: float) -> Iterator[Piece]:
        """At a pause of a live input: end the sessions that are over, and the windows of the other lines."""
        while self._open:
            name = next(iter(self._open))
            if self._idle is None or now - self._open[name].came < self._idle:
                break
            yield self._ended(name, self._open.pop(name))
        yield from self._flush_rest()

    def _ended(self, name: str, one: _Open) -> Piece:
        self._lines -= len(one.numbers)
        return _piece(name, one)

    def _flush_rest(self) -> Iterator[Piece]:
        rest, self._without = self._without, []
        self._problems.note("a line without a session id went into a window", sum(map(len, rest)))
        yield from windows(iter(rest), self._rest, self._source, self._problems)


def _piece(name: str, one: _Open) -> Piece:
    return Piece(
        numbers=tuple(one.numbers),
        messages=tuple(one.messages),
        times=tuple(one.times) if one.times and not isnan(one.times[0]) else None,
        labels=tuple(one.labels) or None,
        session=name,
        group=one.numbers[0],
    )


def _rows(events: Events, rows: Sequence[int]) -> Events:
    return Events(
        numbers=[events.numbers[r] for r in rows],
        messages=[events.messages[r] for r in rows],
        times=None if events.times is None else [events.times[r] for r in rows],
        labels=None if events.labels is None else [events.labels[r] for r in rows],
    )
