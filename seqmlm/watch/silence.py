"""Alarms for a log that has stopped. Missing lines form no window that could be scored.

The time without a line is scored like the longest pause of an otherwise normal window. It is measured by a
monotonic clock, which nobody can set, and which stops while the machine is suspended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from seqmlm.watch.follower import Follower

FEWEST = 60.0
"""Shortest time without a line, in seconds, that can raise an alarm, however frequent lines are."""


class Silence:
    """A check for pauses, which is called between turns.

    While a pause lasts, alarms are repeated so often that its incident does not end.

    Args:
        follower: reads the log.
        judge: returns the row of a pause if it raises an alarm, like
            `seqmlm.scoring.live.LiveModel.pause_row`; else None.
        take: receives these rows.
        quiet: seconds without an alarm after which an incident is over.
        clock: returns monotonic time in seconds.
    """

    def __init__(
        self,
        follower: Follower,
        judge: Callable[..., dict[str, Any] | None],
        take: Callable[[dict[str, Any]], None],
        quiet: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._follower, self._judge, self._take, self._quiet = follower, judge, take, quiet
        self._clock, self._lines, self._begin, self._due = clock, -1, 0.0, FEWEST
        self._last_line = 0.0  # time of day

    def look(self) -> None:
        """Score the current pause if it is long enough, and pass its row on if it raises an alarm."""
        now, place = self._clock(), self._follower.place
        if self._follower.lines != self._lines or place is None:
            self._lines, self._begin, self._due = self._follower.lines, now, FEWEST
            self._last_line = time.time()
            return
        seconds = now - self._begin
        if seconds < self._due:
            return
        self._due = 1.1 * seconds
        row = self._judge(*place, seconds=seconds, last=self._last_line)
        if row is not None:
            self._take(row)
            self._due = seconds + max(FEWEST, self._quiet / 2)
