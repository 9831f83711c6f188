"""What a report draws beside its table: pictures of all rows together, and of single records.

A domain says which pictures suit a level (`Field.pictures`) and may bring its own. A `Picture` is given
every row once and keeps no more than a summary, since a scoring may have any number of them; when the page is
made it draws that summary, then each of the few records that the report shows whole. Those here suit several
fields.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from seqmlm.anomaly.values import Row, Scored
from seqmlm.errors import span_text
from seqmlm.reports.drawing import MOST_POINTS, thinned
from seqmlm.reports.page import Page

MOST_AXES = 200
"""Longer sequences (chromosomes) whose points are kept, and `DRAWN` of them are drawn."""
DRAWN = 12
MOST_GENES = 500
"""Genes along a sequence that are drawn; of more none is, for they would be a grey line."""

_OPEN_GENES = 20  # newest ones, of which one may go on
_AROUND = 300  # characters shown on either side of a part of a long record
_LONG = 4000
AROUND = 6
"""Lines shown on either side of one that is pointed at, of a record of more than `WHOLE` lines."""
WHOLE = 16  # so many are seen without scrolling
ENTROPY = "entropy"  # of `Scored.values`
_ALARM, _OPEN, LEFT_OUT = "▶", "│", "⋯"
RED = "red: alarms"
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
        rows: those of its rows that are among the most unusual ones of the report.
        heading, note: name of the record, and what was found of its rows.
        unit: what the field counts.
        tell: what is said of a unit (its index) that is pointed at.
        scale: bits of the strongest colour. excess_scale: that of bits above entropy.
    """

    scored: Scored
    rows: Sequence[Marked]
    heading: str
    note: str
    unit: str
    tell: Callable[[int], str]
    scale: float
    excess_scale: float


class Picture:
    """One way to show rows; a new one for every report, so that it may collect what it is given."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in one row that has a score, as it is written."""

    def draw(self, page: Page, unit: str) -> None:
        """Show what was collected of all rows; `unit` is what the field counts."""

    def draw_record(self, page: Page, shown: Shown) -> None:
        """Show one record."""


class Coloured(Picture):
    """The text of a record, each unit on the colour of its surprisal; of a long one what is near its rows."""

    def draw_record(self, page: Page, shown: Shown) -> None:
        scored, note = shown.scored, shown.note
        text = scored.raw
        low, high = 0, len(text)
        if len(text) > _LONG:
            low = max(0, min(one.row.start for one in shown.rows) - _AROUND)
            high = min(len(text), max(one.row.end for one in shown.rows) + _AROUND)
            note = f"characters {span_text(low, high)} of {len(text):,}; {note}"
        spans = scored.spans
        units = np.flatnonzero((spans[:, 0] >= low) & (spans[:, 1] <= high))
        units = units[np.argsort(spans[units, 0], kind="stable")]
        page.coloured(
            shown.heading,
            text[low:high],
            [(start - low, end - low) for start, end in spans[units].tolist()],
            scored.surprisal[units],
            [shown.tell(unit) for unit in units.tolist()],
            scale=shown.scale,
            note=note,
        )


class Line(NamedTuple):
    """A line of a record's text as a picture has it.

    begin, end: characters of the text. gutter: what stands before it. alarm: whether it is marked.
    near: whether it is shown, with the lines around it.
    """

    begin: int
    end: int
    gutter: str
    alarm: bool = False
    near: bool = False


class NumberedLines(Picture, ABC):
    """Lines with a gutter, their units on colours: of a long record those around what is pointed at, as a
    diff has them."""

    excess: ClassVar[bool] = False
    """Whether colours are of surprisal above entropy: what the place does not explain."""
    gutter: ClassVar[str] = ""
    """What stands before the lines, said above them; "" where that is their number alone."""

    @abstractmethod
    def lines(self, shown: Shown) -> Sequence[Line]:
        """All lines of a record."""

    def tell(self, shown: Shown, unit: int) -> str:
        """What is said of a unit that is pointed at."""
        return shown.tell(unit)

    def draw_record(self, page: Page, shown: Shown) -> None:
        scored, lines = shown.scored, self.lines(shown)
        starts, text = scored.spans[:, 0], scored.raw
        pieces, spans, units = list[str](), list[tuple[int, int]](), list[int]()
        at, before = 0, -1
        for number in around(lines):
            begin, end, gutter, alarm, _ = lines[number]
            left_out = f"{LEFT_OUT:>5}\n" if number != before + 1 else ""
            head = f"{left_out}{gutter} {marked(alarm)} "
            inside = np.flatnonzero((starts >= begin) & (starts < end))
            inside = inside[np.argsort(starts[inside], kind="stable")]
            shift = at + len(head) - begin
            spans += [(a + shift, min(b, end) + shift) for a, b in scored.spans[inside].tolist()]
            units += inside.tolist()
            pieces.append(f"{head}{text[begin:end]}\n")
            at, before = at + len(pieces[-1]), number
        excess = self.excess and ENTROPY in scored.values
        bits = scored.surprisal - scored.values[ENTROPY] if excess else scored.surprisal
        page.coloured(
            shown.heading,
            "".join(pieces),
            spans,
            bits[units],
            [self.tell(shown, unit) for unit in units],
            note="; ".join(filter(None, [shown.note, self.gutter])),
            scale=shown.excess_scale if excess else shown.scale,
            signed=excess,
        )


def marked(alarm: bool) -> str:
    """What separates a line from what stands before it."""
    return _ALARM if alarm else _OPEN


def around(lines: Sequence[Line]) -> Sequence[int]:
    """Indices of the lines that are shown: of many those near some, else the first ones."""
    near = [number for number, one in enumerate(lines) if one.near]
    if len(lines) <= WHOLE or not near:
        return range(min(len(lines), WHOLE))
    shown = {line for one in near for line in range(one - AROUND, one + AROUND + 1)}
    return sorted(line for line in shown if 0 <= line < len(lines))


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
            tips = [f"{one.label}: {one.value:.4g}" for one in points]
            note = f"{RED}{f'; {_THINNED}' if self._times.thinned else ''}"
            page.timeline("Over time", starts, values, alarms, tips, y_label="score, bits", note=note)


class Tracks(Picture):
    """Scores along the longer sequences that rows lie in, for those with the highest scores.

    Args:
        kind: what one is called; rows have its name under this, and places as `{kind}_start, {kind}_end`.
        unit: of the axis. size: places that it has.
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
            others = [other for other in self._axes if other != name]
            least = min(others, key=lambda other: self._axes[other].top)
            del self._axes[least], self._genes[least]

    @staticmethod
    def _add_genes(known: list[tuple[int, int, str]], start: int, end: int, names: Sequence[str]) -> None:
        """A gene reaches from its first row to its last one; one that comes again elsewhere is another."""
        for name in names:
            for at in range(len(known) - 1, max(-1, len(known) - _OPEN_GENES), -1):
                first, last, own = known[at]
                if own == name and first <= end and start <= last:
                    known[at] = min(first, start), max(last, end), name
                    break
            else:
                if len(known) <= MOST_GENES:
                    known.append((start, end, name))

    def draw(self, page: Page, unit: str) -> None:
        for name in sorted(self._axes, key=lambda name: -self._axes[name].top)[:DRAWN]:
            points, genes = self._axes[name].points(), self._genes[name]
            below = sorted(genes) if len(genes) <= MOST_GENES else []
            known = "grey: genes, as far as rows with them reach" if below else ""
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
                note="; ".join(filter(None, ["shaded: alarms", known, thin])),
                below=below,
            )
        if len(self._axes) > DRAWN:
            page.section("", f"The {DRAWN} {self._kind}s with the highest scores are drawn.")
