"""An alarm while a log has stopped: lines that do not come make no window that could be judged.

How long no line has come is judged as the longest pause of a window that is usual otherwise. It is measured
by a clock that stands while the machine is suspended, and that nobody sets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.anomaly.findings import small
from seqmlm.anomaly.values import Row
from seqmlm.parsing import magnitude
from seqmlm.rows.judge import Normal
from seqmlm.scoring.plan import ScoringPlan
from seqmlm.watch.follower import Follower

FEWEST = 60.0
"""Seconds without a line of which nothing is said, however dense a log is."""

_LONG = 1 << 40  # units: a window that was full


class Silence:
    """Looks, between two turns, how long no line has come; while it lasts there is an alarm again before its
    incident would be over, which `quiet` seconds without one are.
    """

    def __init__(
        self,
        follower: Follower,
        judged: Callable[[], tuple[ScoringPlan, Normal] | None],
        take: Callable[[dict[str, Any]], None],
        quiet: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._follower, self._judged, self._take, self._quiet = follower, judged, take, quiet
        self._clock, self._lines, self._since, self._next = clock, -1, 0.0, FEWEST
        self._last = 0.0  # the time of day of the last line

    def look(self) -> None:
        """Take an alarm where the pause is as long as the asked rate wants."""
        now, place, judged = self._clock(), self._follower.place, self._judged()
        if self._follower.lines != self._lines or place is None or judged is None:
            self._lines, self._since, self._next = self._follower.lines, now, FEWEST
            self._last = time.time()
            return
        waited = now - self._since
        if waited < self._next:
            return
        self._next = 1.1 * waited
        row = stopped(*judged, *place, seconds=waited, last=self._last)
        if row is not None:
            self._take(row)
            self._next = waited + max(FEWEST, self._quiet / 2)


def stopped(
    plan: ScoringPlan, normal: Normal, path: str, line: int, *, seconds: float, last: float
) -> dict[str, Any] | None:
    """The row of a log without a line for some seconds, the last of which came at the time `last`; None where
    that is not unusual, or not known."""
    asked = plan.level.silence(seconds)
    if plan.alpha is None or not asked.keys() <= set(normal.applying) or not asked:
        return None
    values = {name: np.array([asked.get(name, np.nan)]) for name in normal.statistics}
    p_value = float(normal.judge(values, np.array([_LONG])).p_value[0])
    if p_value > plan.alpha:
        return None
    [(name, value)] = asked.items()
    at: dict[str, Any] = {"id": f"{Path(path).name}:{line}", "source": path, "line": line, "score": value}
    none = np.zeros(0, dtype=np.int64)
    row = Row(**at, start=0, end=0, units=none, length=_LONG, statistics=asked)
    text = plan.level.meaning(name, row, normal.usual(name, _LONG))
    times = (datetime.fromtimestamp(one, UTC).isoformat() for one in (last, time.time()))
    return {
        **at,
        "units": 0,
        "silence": seconds,
        **dict(zip(("time", "last_time"), times, strict=True)),
        "p_value": p_value,
        "alarm": True,
        "lines": 0,
        "what": "the log has stopped",
        "scale": magnitude(seconds),
        "reason": f"The log has stopped: {text} (p {small(p_value)}).",
    }
