"""What a report draws beside its table: pictures of all rows together, and of single records.

A domain says which pictures suit a level (`Domain.pictures`) and may bring its own. A `Picture` is given
every row once and keeps no more than a summary, since a scoring may have any number of them; when the page is
made it draws that summary, then each of the few records that the report shows whole. Those here suit several
fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import numpy as np

from seqmlm.anomaly.values import Row, Scored
from seqmlm.reports.drawing import MOST_POINTS, thinned
from seqmlm.reports.page import Page

MOST_AXES = 200
"""Longer sequences (chromosomes) whose points are kept, and `DRAWN` of them are drawn."""
DRAWN = 12

_AROUND = 300  # characters shown on either side of a part of a long record
_LONG = 4000
_THINNED = "the most unusual rows of each stretch"


class Point(NamedTuple):
    """Something at a place: a stretch of a longer sequence, a moment.

    start, end: where. value: higher is more unusual. alarm: whether one was raised.
    label: what is told of it.
    """

    start: float
    end: float
    value: float
    alarm: bool
    label: str = ""


class Highest:
    """The most unusual points of every stretch, alarms first: of any number at most `2 * MOST_POINTS`."""

    def __init__(self) -> None:
        self._points: list[Point] = []
        self.top = -math.inf
        self.thinned = False

    def add(self, point: Point) -> None:
        """Keep a point for as long as none near it is more unusual; NaN is left out."""
        if math.isnan(point.value):
            return
        self.top = max(self.top, point.value)
        self._points.append(point)
        if len(self._points) > 2 * MOST_POINTS:
            starts, _, values, alarms, _ = (np.array(column) for column in zip(*self._points, strict=True))
            self._points = [self._points[place] for place in thinned(starts, values, alarms)]
            self.thinned = True

    def points(self) -> list[Point]:
        """What was kept, in order of place."""
        return sorted(self._points)


class Marked(Protocol):
    """A row and whether it raised an alarm."""

    @property
    def row(self) -> Row: ...
    @property
    def alarm(self) -> bool | None: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Shown:
    """A record that a report shows whole.

    Args:
        scored: the record.
        rows: those of its rows that are among the most unusual ones of the report.
        heading, note: name of the record, and what was found of its rows.
        unit: what the field counts.
        tell: what is said of a unit (its index) that is pointed at.
        scale: bits of the strongest colour.
    """

    scored: Scored
    rows: Sequence[Marked]
    heading: str
    note: str
    unit: str
    tell: Callable[[int], str]
    scale: float


class Picture:
    """One way to show rows; a new one for every report, so that it may collect what it is given."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in one row that has a score, as it is written."""

    def draw(self, page: Page, unit: str) -> None:
        """Show what was collected of all rows; `unit` is what the field counts."""

    def draw_record(self, page: Page, shown: Shown) -> None:
        """Show one record."""


class Coloured(Picture):
    """The text of a record, each unit on the colour of its surprisal; of a long one what is near its rows.

    Args:
        numbered: units are told with their number, from 1 on.
    """

    def __init__(self, numbered: bool = False) -> None:
        self._numbered = numbered

    def draw_record(self, page: Page, shown: Shown) -> None:
        scored, note = shown.scored, shown.note
        text = scored.raw
        low, high = 0, len(text)
        if len(text) > _LONG:
            low = max(0, min(one.row.start for one in shown.rows) - _AROUND)
            high = min(len(text), max(one.row.end for one in shown.rows) + _AROUND)
            note = f"characters {low + 1:,} to {high:,} of {len(text):,}; {note}"
        spans = scored.spans
        units = np.flatnonzero((spans[:, 0] >= low) & (spans[:, 1] <= high))
        units = units[np.argsort(spans[units, 0], kind="stable")]
        page.coloured(
            shown.heading,
            text[low:high],
            [(start - low, end - low) for start, end in spans[units].tolist()],
            scored.surprisal[units],
            [self._told(shown, unit) for unit in units.tolist()],
            scale=shown.scale,
            note=note,
        )

    def _told(self, shown: Shown, unit: int) -> str:
        number = f"{shown.scored.places[unit] + 1}: " if self._numbered else ""
        return f"{number}{shown.tell(unit)}"


class UnitTrack(Picture):
    """The surprisal of every unit of a record as a curve; units count from 1."""

    def draw_record(self, page: Page, shown: Shown) -> None:
        scored = shown.scored
        if not len(scored):
            return
        places = scored.places + 1
        alarms = np.zeros(len(scored), dtype=np.bool_)
        for one in shown.rows:
            if one.alarm and len(one.row.units) < len(scored):
                alarms[one.row.units] = True
        ends, bits = places + 1, scored.surprisal
        page.track("", places, ends, bits, alarms, x_label=shown.unit, y_label="bits", first=1)


class Timeline(Picture):
    """Scores of rows with a time, or a date, over time."""

    def __init__(self) -> None:
        self._times = Highest()

    def add(self, row: Mapping[str, Any]) -> None:
        moment = row.get("time") or row.get("date")
        if moment is not None:
            at = datetime.fromisoformat(moment)
            seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
            self._times.add(Point(seconds, seconds, row["score"], bool(row.get("alarm")), row["id"]))

    def draw(self, page: Page, unit: str) -> None:
        points = self._times.points()
        if not points:
            return
        page.timeline(
            "Over time",
            np.array([one.start for one in points]),
            np.array([one.value for one in points]),
            np.array([one.alarm for one in points]),
            [f"{one.label}: {one.value:.4g}" for one in points],
            y_label="score",
            note=_THINNED if self._times.thinned else "",
        )


class Tracks(Picture):
    """Scores along the longer sequences that rows lie in, for those with the highest scores.

    Args:
        kind: what one is called; rows have its name under this, and places as `{kind}_start, {kind}_end`.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._axes: dict[str, Highest] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        name = row.get(self._kind)
        if name is None:
            return
        start, end = row[f"{self._kind}_start"], row[f"{self._kind}_end"]
        point = Point(start, end, row["score"], bool(row.get("alarm")))
        self._axes.setdefault(name, Highest()).add(point)
        if len(self._axes) > MOST_AXES:
            others = [other for other in self._axes if other != name]
            del self._axes[min(others, key=lambda other: self._axes[other].top)]

    def draw(self, page: Page, unit: str) -> None:
        for name in sorted(self._axes, key=lambda name: -self._axes[name].top)[:DRAWN]:
            track = self._axes[name]
            points = track.points()
            page.track(
                f"Along {name}",
                np.array([one.start for one in points], dtype=np.int64),
                np.array([one.end for one in points], dtype=np.int64),
                np.array([one.value for one in points]),
                np.array([one.alarm for one in points]),
                y_label="score",
                x_label=unit,
                note=_THINNED if track.thinned else "",
            )
        if len(self._axes) > DRAWN:
            page.section("", f"The {DRAWN} {self._kind}s with the highest scores are drawn.")
