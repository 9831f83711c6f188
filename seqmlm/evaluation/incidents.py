"""Alarms that overlap, touch or follow each other soon as one incident; rates from alarms per day."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from seqmlm.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A row with an alarm.

    Args:
        id: of the row.
        place: its file, document or host; only alarms of one place are merged.
        start, end: its extent there, in characters, lines or seconds; start <= end.
        p_value: in (0, 1].
        times: of its first and last unit, in seconds, as the data say; None where they do not.
        seen: when it was raised, in seconds of whoever counts them.
    """

    id: str
    place: str
    start: float
    end: float
    p_value: float
    times: tuple[float, float] | None = None
    seen: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Alarms of one place that overlap, are no further apart than the gap, or follow each other soon.

    Args:
        place, start, end: where it is, from the first alarm's start to the last one's end.
        rows: alarms in it.
        p_value: the smallest of theirs.
        worst: id of the alarm that has it; the first of equal ones.
        times: from the first to the last of its alarms, of those that have times; or None.
        seen: when the last one was raised.
    """

    place: str
    start: float
    end: float
    rows: int
    p_value: float
    worst: str
    times: tuple[float, float] | None = None
    seen: float = 0.0


class Incidents:
    """Merges a stream of alarms into incidents; memory is bounded by the number of open places.

    Alarms of one place come in the order of their starts, as windows over a file or stream do; a
    late one still joins the open incident if it touches it. Places may alternate.

    Args:
        gap: largest distance of alarms of one incident, in the unit of start and end; 0 merges those that
            touch.
        quiet: seconds: alarms that follow an incident of their place so soon belong to it, by their own times
            where both have them, else by when they were raised; None: only those that meet it.
        places: most places with open incidents; beyond that the longest inactive one is closed.

    Raises:
        UsageError: a negative gap or quiet time, or no place.
    """

    def __init__(self, gap: float = 0.0, *, quiet: float | None = None, places: int = 10_000) -> None:
        if gap < 0 or places < 1 or (quiet is not None and quiet < 0):
            raise UsageError("the gap and the quiet time must be at least 0, and places at least 1")
        self._gap, self._quiet, self._limit = gap, quiet, places
        self._open: OrderedDict[str, Incident] = OrderedDict()

    def hold(self, incident: Incident) -> None:
        """Go on with an incident that was open before, the only one of its place."""
        self._open[incident.place] = incident

    def add(self, alarm: Alarm) -> list[Incident]:
        """Add one alarm; returns the incidents that it ends (none, one or two)."""
        over: list[Incident] = []
        found = self._open.pop(alarm.place, None)
        if found is not None and not self._meets(found, alarm):
            over.append(found)
            found = None
        self._open[alarm.place] = _begun(alarm) if found is None else _joined(found, alarm)
        if len(self._open) > self._limit:
            over.append(self._open.popitem(last=False)[1])
        return over

    def close(self) -> list[Incident]:
        """End the stream; returns the open incidents, the longest inactive first."""
        over = list(self._open.values())
        self._open.clear()
        return over

    def _meets(self, incident: Incident, alarm: Alarm) -> bool:
        if alarm.start <= incident.end + self._gap and alarm.end >= incident.start - self._gap:
            return True
        if self._quiet is None:
            return False
        if alarm.times is None or incident.times is None:
            return abs(alarm.seen - incident.seen) < self._quiet
        (first, last), (begun, over) = alarm.times, incident.times
        return first < over + self._quiet and last > begun - self._quiet


def rate_for(alarms_per_day: float, rows_per_day: float) -> float:
    """The false positive rate, in (0, 1], that gives so many alarms per day on normal data.

    Args:
        alarms_per_day: wanted, above 0.
        rows_per_day: scored rows, above 0; from the times of the calibration data or of the input.

    Raises:
        UsageError: one of them is not above 0.
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


def _begun(alarm: Alarm) -> Incident:
    return Incident(
        place=alarm.place,
        start=alarm.start,
        end=alarm.end,
        rows=1,
        p_value=alarm.p_value,
        worst=alarm.id,
        times=alarm.times,
        seen=alarm.seen,
    )


def _joined(incident: Incident, alarm: Alarm) -> Incident:
    worse = alarm.p_value < incident.p_value
    return replace(
        incident,
        start=min(incident.start, alarm.start),
        end=max(incident.end, alarm.end),
        rows=incident.rows + 1,
        p_value=min(incident.p_value, alarm.p_value),
        worst=alarm.id if worse else incident.worst,
        times=_spanned(incident.times, alarm.times),
        seen=alarm.seen,
    )


def _spanned(
    first: tuple[float, float] | None, second: tuple[float, float] | None
) -> tuple[float, float] | None:
    if first is None or second is None:
        return first or second
    return min(first[0], second[0]), max(first[1], second[1])
