"""An alarm while a log has stopped: lines that do not come make no window that could be judged.

The time without a line is judged as the longest pause of a window that is usual otherwise. It is measured
by a clock that stands while the machine is suspended, and that nobody sets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from seqmlm.watch.follower import Follower

FEWEST = 60.0
"""Seconds without a line of which nothing is said, however dense a log is."""


class Silence:
    """Looks, between two turns, how long no line has come.

    While a pause lasts there is another alarm before its incident would be over, which `quiet` seconds
    without one are. The `judge` makes the row of a pause, as `seqmlm.scoring.live.LiveModel.pause_row`.
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
        """Take an alarm where the pause is as long as the rate of alarms allows."""
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
