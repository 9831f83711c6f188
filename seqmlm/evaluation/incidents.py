"""Incidents: alarms that overlap or touch count as one; and false positive rates from alarms per day."""

from __future__ import annotations

from seqmlm.errors import UsageError


class Incidents:
    """Counts a stream of alarms as incidents; memory is bounded by the number of open places.

    Alarms of one place come in the order of their starts, as windows over a file or stream do; a
    late one still joins the open incident if it touches it. Places may alternate.

    Args:
        places: most places with open incidents; beyond that the longest inactive one has ended.
    """

    def __init__(self, *, places: int = 10_000) -> None:
        self._over, self._places = 0, places
        self._open: dict[str, tuple[float, float]] = {}

    @property
    def count(self) -> int:
        """All incidents, those that go on included."""
        return self._over + len(self._open)

    def add(self, place: str, start: float, end: float) -> None:
        """Take an alarm of a file, document or host, with its extent there: characters, lines or seconds."""
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
    """The false positive rate, in (0, 1], that gives so many alarms a day on normal data.

    Raises:
        UsageError: one of the two is not above 0.
    """
    if not alarms_per_day > 0:
        raise UsageError(f"alarms per day must be above 0, not {alarms_per_day:g}")
    if not rows_per_day > 0:
        raise UsageError(
            "the rows have no times, so rows per day are unknown; use a false positive rate (--fpr)"
        )
    return min(1.0, alarms_per_day / rows_per_day)


def rows_per_day(rows: int, first: float, last: float) -> float | None:
    """Rows a day, of `rows` rows between two times in seconds; None if they span no time."""
    return (rows - 1) * 86_400.0 / (last - first) if rows > 1 and last > first else None
