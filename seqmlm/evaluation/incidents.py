"""Count incidents (alarms that overlap or touch), and convert alarms per day into false positive rates."""

from __future__ import annotations

from seqmlm.errors import UsageError


class Incidents:
    """Counts the incidents in a stream of alarms, in bounded memory.

    The alarms of a place must be in the order of their starts, like windows over a file or stream. A late
    alarm still joins the open incident if it touches it. Alarms of several places may alternate.

    Args:
        places: maximum number of places with an open incident. If there are more, the incident that has been
            inactive for longest ends.
    """

    def __init__(self, *, places: int = 10_000) -> None:
        self._over, self._places = 0, places
        self._open: dict[str, tuple[float, float]] = {}

    @property
    def count(self) -> int:
        """The number of all incidents, including open ones."""
        return self._over + len(self._open)

    def add(self, place: str, start: float, end: float) -> None:
        """Add an alarm at a place.

        Args:
            place: a file, document or host.
            start, end: the range of the alarm there, in characters, lines or seconds.
        """
        first, last = self._open.pop(place, (start, end))
        if start <= last and end >= first:
            self._open[place] = (min(first, start), max(last, end))
        else:
            self._open[place] = (start, end)
            self._over += 1
        if len(self._open) > self._places:
            del self._open[next(iter(self._open))]
            self._over += 1


def rate_for(alarms_per_day: float, rows_per_day: float) -> float:
    """The false positive rate, in (0, 1], that gives this number of alarms per day on normal data.

    Raises:
        UsageError: one of the arguments is not above 0.
    """
    if not alarms_per_day > 0:
        raise UsageError(f"alarms per day must be above 0, not {alarms_per_day:g}")
    if not rows_per_day > 0:
        raise UsageError(
            "the rows have no times, so rows per day are unknown; use a false positive rate (--fpr)"
        )
    return min(1.0, alarms_per_day / rows_per_day)


def rows_per_day(rows: int, first: float, last: float) -> float | None:
    """Rows per day, for `rows` rows between two times in seconds; None if the times do not differ."""
    return (rows - 1) * 86_400.0 / (last - first) if rows > 1 and last > first else None
