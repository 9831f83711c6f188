"""Pictures in a report next to its table: of all rows together, and of single records.

A domain selects the pictures for a level (`Field.pictures`), and can have its own. This module has the
pictures that several fields share.

A `Picture` receives every row once. It keeps only a summary, because a scoring can have any number of rows.
When the page is made, it draws the summary, and then each of the few records that the report shows
completely.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from seqmlm.anomaly.values import Row, ScoredRecord
from seqmlm.errors import span_text
from seqmlm.reports.drawing import MOST_POINTS, thinned_indices
from seqmlm.reports.page import Page

MOST_AXES = 200
"""Maximum number of sequences (such as chromosomes) whose points are kept. `DRAWN` of them are drawn."""
DRAWN = 12
MOST_GENES = 500
"""Maximum number of genes along a sequence.

With more genes none is drawn, because they would look like a line.
"""

_OPEN_GENES = 20  # number of latest genes that a new row can extend
_AROUND = 300  # characters shown on either side of a part of a long record
_LONG = 4000
AROUND = 6
"""Lines shown on either side of a marked line, in a record with more than `WHOLE` lines."""
WHOLE = 16  # number of lines that are visible without scrolling
ENTROPY = "entropy"  # of `ScoredRecord.values`
_ALARM, _OPEN, LEFT_OUT = "▶", "│", "⋯"
RED = "red: alarms"
_THINNED = "the most unusual rows of each stretch"


class Point(NamedTuple):
    """A value at a place in a longer sequence, or at a time.

    Attributes:
        start, end: the place.
        value: higher is more unusual.
        alarm: whether it raised an alarm.
        label: text for the tooltip.
    """

    start: float
    end: float
    value: float
    alarm: bool
    label: str = ""


class Highest:
    """Collects any number of points and keeps at most `2 * MOST_POINTS` of them.

    The most unusual points of each region are kept. Alarms have priority.
    """

    def __init__(self) -> None:
        self._points: list[Point] = []
        self.top = -math.inf
        self.thinned = False

    def add(self, point: Point) -> None:
        """Add a point. It is kept as long as no nearby point is more unusual. NaN is left out."""
        if math.isnan(point.value):
            return
        self.top = max(self.top, point.value)
        self._points.append(point)
        if len(self._points) > 2 * MOST_POINTS:
            starts, _, values, alarms, _ = (np.array(column) for column in zip(*self._points, strict=True))
            self._points = [self._points[place] for place in thinned_indices(starts, values, alarms)]
            self.thinned = True

    def points(self) -> list[Point]:
        """The kept points in order of place."""
        return sorted(self._points)


class MarkedRow(Protocol):
    """A row and whether it raised an alarm."""

    @property
    def row(self) -> Row: ...
    @property
    def alarm(self) -> bool | None: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class PicturedRecord:
    """A record that a report shows completely.

    Args:
        scored: the scored record.
        rows: the rows of the record that are among the most unusual rows of the report.
        heading: name of the record.
        note: scores of its rows.
        unit: name of the field's unit.
        tip: gives the tooltip of a unit by its index.
        scale: bits of the strongest colour.
        excess_scale: the same for bits above the entropy.
    """

    scored: ScoredRecord
    rows: Sequence[MarkedRow]
    heading: str
    note: str
    unit: str
    tip: Callable[[int], str]
    scale: float
    excess_scale: float


class Picture:
    """One way to show rows. Each report has new pictures, so a picture can collect rows."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one row with a score, as it is written."""

    def draw(self, page: Page, unit: str) -> None:
        """Draw the summary of all rows. `unit` is the name of the field's unit."""

    def draw_record(self, page: Page, pictured: PicturedRecord) -> None:
        """Draw one record."""


class Coloured(Picture):
    """The text of a record with units coloured by surprisal.

    Long records show only the part near their rows.
    """

    def draw_record(self, page: Page, pictured: PicturedRecord) -> None:
        scored, note = pictured.scored, pictured.note
        text = scored.raw
        low, high = 0, len(text)
        if len(text) > _LONG:
            rows = [marked.row for marked in pictured.rows]
            low = max(0, min(row.start for row in rows) - _AROUND)
            high = min(len(text), max(row.end for row in rows) + _AROUND)
            note = f"characters {span_text(low, high)} of {len(text):,}; {note}"
        spans = scored.spans
        units = np.flatnonzero((spans[:, 0] >= low) & (spans[:, 1] <= high))
        units = units[np.argsort(spans[units, 0], kind="stable")]
        page.coloured(
            pictured.heading,
            text[low:high],
            [(start - low, end - low) for start, end in spans[units].tolist()],
            scored.surprisal[units],
            [pictured.tip(unit) for unit in units.tolist()],
            scale=pictured.scale,
            note=note,
        )


class Line(NamedTuple):
    """A line of a record's text in a picture.

    Attributes:
        begin, end: its place in the text, in characters.
        gutter: text before the line.
        alarm: whether the line is marked.
        near: whether the line and the lines around it are shown.
    """

    begin: int
    end: int
    gutter: str
    alarm: bool = False
    near: bool = False


class NumberedLines(Picture, ABC):
    """Lines with a gutter and coloured units. Long records show only the lines around `near` ones."""

    excess: ClassVar[bool] = False
    """Whether colours show the surprisal minus the entropy of the place."""
    gutter: ClassVar[str] = ""
    """Name of the text before each line, shown above the lines. "" if it is only the line number."""

    @abstractmethod
    def lines(self, pictured: PicturedRecord) -> Sequence[Line]:
        """All lines of a record."""

    def tip(self, pictured: PicturedRecord, unit: int) -> str:
        """The tooltip of a unit."""
        return pictured.tip(unit)

    def draw_record(self, page: Page, pictured: PicturedRecord) -> None:
        scored, lines = pictured.scored, self.lines(pictured)
        starts, text = scored.spans[:, 0], scored.raw
        pieces, spans, units = list[str](), list[tuple[int, int]](), list[int]()
        at, previous = 0, -1
        for number in visible_lines(lines):
            begin, end, gutter, alarm, _ = lines[number]
            left_out = f"{LEFT_OUT:>5}\n" if number != previous + 1 else ""
            head = f"{left_out}{gutter} {alarm_mark(alarm)} "
            inside = np.flatnonzero((starts >= begin) & (starts < end))
            inside = inside[np.argsort(starts[inside], kind="stable")]
            shift = at + len(head) - begin
            spans += [(a + shift, min(b, end) + shift) for a, b in scored.spans[inside].tolist()]
            units += inside.tolist()
            pieces.append(f"{head}{text[begin:end]}\n")
            at, previous = at + len(pieces[-1]), number
        excess = self.excess and ENTROPY in scored.values
        bits = scored.surprisal - scored.values[ENTROPY] if excess else scored.surprisal
        page.coloured(
            pictured.heading,
            "".join(pieces),
            spans,
            bits[units],
            [self.tip(pictured, unit) for unit in units],
            note="; ".join(filter(None, [pictured.note, self.gutter])),
            scale=pictured.excess_scale if excess else pictured.scale,
            signed=excess,
        )


def alarm_mark(alarm: bool) -> str:
    """The sign between a line and its gutter: a mark for an alarm, else a vertical bar."""
    return _ALARM if alarm else _OPEN


def visible_lines(lines: Sequence[Line]) -> Sequence[int]:
    """The indices of the lines to show. In a long record, these are the lines around `near` ones."""
    near = [number for number, line in enumerate(lines) if line.near]
    if len(lines) <= WHOLE or not near:
        return range(min(len(lines), WHOLE))
    indices = {line for number in near for line in range(number - AROUND, number + AROUND + 1)}
    return sorted(line for line in indices if 0 <= line < len(lines))


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
        if points := self._times.points():
            starts, _, values, alarms, _ = map(np.array, zip(*points, strict=True))
            tips = [f"{point.label}: {point.value:.4g}" for point in points]
            note = f"{RED}{f'; {_THINNED}' if self._times.thinned else ''}"
            page.timeline("Over time", starts, values, alarms, tips, y_label="score, bits", note=note)


class Tracks(Picture):
    """Scores along the longer sequences that contain the rows, for the sequences with the highest scores.

    Args:
        kind: name of such a sequence. A row has the field `kind` with the id of the sequence, and the fields
            `{kind}_start` and `{kind}_end`.
        unit: name of the unit of the axis.
        size: number of places in this unit.
    """

    def __init__(self, kind: str, unit: str, size: int = 1) -> None:
        self._kind, self._unit, self._size = kind, unit, size
        self._axes: dict[str, Highest] = {}
        self._genes: dict[str, list[tuple[int, int, str]]] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        name = row.get(self._kind)
        if name is None:
            return
        start, end = row[f"{self._kind}_start"], row[f"{self._kind}_end"]
        point = Point(start, end, row["score"], bool(row.get("alarm")), ", ".join(row.get("genes", ())))
        self._axes.setdefault(name, Highest()).add(point)
        self._add_genes(self._genes.setdefault(name, []), start, end, row.get("genes", ()))
        if len(self._axes) > MOST_AXES:
            names = [candidate for candidate in self._axes if candidate != name]
            lowest = min(names, key=lambda candidate: self._axes[candidate].top)
            del self._axes[lowest], self._genes[lowest]

    @staticmethod
    def _add_genes(genes: list[tuple[int, int, str]], start: int, end: int, names: Sequence[str]) -> None:
        """Add the genes of a row, or extend known genes. The same name at a distant place is another gene."""
        for name in names:
            for at in range(len(genes) - 1, max(-1, len(genes) - _OPEN_GENES), -1):
                first, last, gene = genes[at]
                if gene == name and first <= end and start <= last:
                    genes[at] = min(first, start), max(last, end), name
                    break
            else:
                if len(genes) <= MOST_GENES:
                    genes.append((start, end, name))

    def draw(self, page: Page, unit: str) -> None:
        for name in sorted(self._axes, key=lambda name: -self._axes[name].top)[:DRAWN]:
            points, genes = self._axes[name].points(), self._genes[name]
            below = sorted(genes) if len(genes) <= MOST_GENES else []
            genes_note = "grey: genes, as far as rows with them reach" if below else ""
            starts, ends, values, alarms, labels = zip(*points, strict=True) if points else [()] * 5
            thin = _THINNED if self._axes[name].thinned else ""
            page.track(
                f"Along {name}",
                np.array(starts, dtype=np.int64),
                np.array(ends, dtype=np.int64),
                np.array(values),
                np.array(alarms),
                labels,
                x_label=self._unit,
                x_unit=self._size,
                y_label="score, bits",
                note="; ".join(filter(None, ["shaded: alarms", genes_note, thin])),
                below=below,
            )
        if len(self._axes) > DRAWN:
            page.section("", f"The {DRAWN} {self._kind}s with the highest scores are drawn.")
