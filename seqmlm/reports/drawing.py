"""Surprisal as a background colour: eight steps of equal lightness difference, from pale to strong."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from seqmlm.errors import number_of

STEPS = 8
"""Classes s1 to s8 of the style sheet; s0 has no colour."""

SCALE = 12.0
"""Bits from which on the colour is the strongest: an outcome of one in four thousand."""


def steps(bits: NDArray[np.float64], scale: float = SCALE) -> NDArray[np.int64]:
    """(N,) the step, 0 to 8, of each surprisal: linear in bits, so that a step is the same factor of p.

    Args:
        bits: (N,) surprisals; a NaN, which says nothing, has step 0, an infinite one has the last.
        scale: bits of the last step, above 0.

    >>> steps(np.array([0.0, 1.0, 6.0, 50.0, np.nan])).tolist()
    [0, 0, 4, 8, 0]
    """
    values = np.nan_to_num(np.asarray(bits, dtype=np.float64), nan=0.0, posinf=scale, neginf=0.0)
    return np.floor(np.clip(values / scale, 0.0, 1.0) * STEPS).astype(np.int64)


def legend(scale: float = SCALE, unit: str = "bits") -> Markup:
    """What each colour means."""
    marks = Markup("").join(
        Markup('<i class="s{}">{:g}</i>').format(step, scale * step / STEPS) for step in range(1, STEPS + 1)
    )
    return Markup('<p class="legend" aria-label="colour scale">{} and more:&nbsp;{}</p>').format(unit, marks)


def coloured_text(
    text: str,
    spans: Sequence[tuple[int, int]],
    bits: NDArray[np.float64],
    titles: Sequence[str],
    scale: float = SCALE,
) -> Markup:
    """The text with each span on its colour; what is between spans stays plain.

    Args:
        text: what the spans point into.
        spans: (N,) half-open, ascending by start; one that begins inside another begins where that ends.
        bits: (N,) surprisals.
        titles: (N,) what is told of a span when it is pointed at, or none for no span.
        scale: see `steps`.
    """
    pieces: list[Markup | str] = []
    done, first = 0, True
    tips = titles or [""] * len(spans)
    for (start, end), step, tip in zip(spans, steps(bits, scale).tolist(), tips, strict=True):
        begin = max(start, done)
        if begin >= end:
            continue
        pieces.append(Markup.escape(text[done:begin]))
        about = Markup(' data-tip="{}" tabindex="{}"').format(tip, 0 if first else -1) if tip else ""
        pieces.append(Markup('<b class="s{}"{}>{}</b>').format(step, about, text[begin:end]))
        done, first = end, first and not tip
    pieces.append(Markup.escape(text[done:]))
    return Markup("").join(pieces)


# Pictures as inline SVG: a track along positions, points in time, a histogram, a line of heat.

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]

WIDTH, HEIGHT = 1000, 220
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 10, 34
MOST_POINTS = 1000
"""Columns of a picture; more points than that are drawn as the highest of each column."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Where values come to lie: x in [low, high], y in [floor, ceiling]."""

    low: float
    high: float
    floor: float
    ceiling: float

    def x(self, value: float) -> float:
        """The horizontal place of a value."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        """The vertical place of a value; what is outside is drawn at the edge."""
        share = (value - self.floor) / ((self.ceiling - self.floor) or 1.0)
        return round(HEIGHT - BOTTOM - min(max(share, 0.0), 1.0) * (HEIGHT - TOP - BOTTOM), 1)


def track(
    starts: Longs,
    ends: Longs,
    values: Doubles,
    alarms: Bools | None = None,
    *,
    threshold: float | None = None,
    x_label: str = "position",
    y_label: str = "score, bits",
    first: int = 0,
) -> Markup:
    """A value along a sequence, alarmed stretches shaded.

    Args:
        starts, ends: (N,) half-open, ascending by start; they may overlap.
        values: (N,) NaN where there is none.
        alarms: (N,) True at what is to be marked, or None for nothing.
        threshold: drawn as a line.
        x_label, y_label: what the axes are.
        first: number of the first place of all, 0 or 1; from 1 on, the last place of a stretch is told.
    """
    if not len(starts):
        return Markup('<p class="note">nothing to draw</p>')
    frame = _frame(float(starts[0]), float(ends.max()), values, threshold)
    bands = [] if alarms is None else _bands(starts[alarms], ends[alarms], frame, first)
    middles, highest = _thinned((starts + ends) / 2, values, frame)
    points = " ".join(f"{frame.x(x)},{frame.y(y)}" for x, y in zip(middles, highest, strict=True))
    curve = Markup('<polyline class="curve" points="{}"/>').format(points)
    return _picture([*bands, *_axes(frame, x_label, y_label), curve, *_line(frame, threshold)], y_label)


def timeline(
    times: Doubles,
    scores: Doubles,
    alarms: Bools | None = None,
    titles: Sequence[str] = (),
    *,
    threshold: float | None = None,
    period: tuple[float, float] | None = None,
    y_label: str = "score, bits",
) -> Markup:
    """Scores as points in time.

    Args:
        times: (N,) seconds since 1970 UTC.
        scores: (N,) NaN is left out.
        alarms: (N,) True at points to mark, or None.
        titles: (N,) what is told of a point when it is pointed at, or none.
        threshold: drawn as a line.
        period: what the picture spans; None: from the first point to the last.
        y_label: what the scores are.
    """
    shown = np.flatnonzero(np.isfinite(times) & ~np.isnan(scores))
    if not len(shown):
        return Markup('<p class="note">nothing to draw</p>')
    span = period or (float(times[shown].min()), float(times[shown].max()))
    frame = _frame(*span, scores[shown], threshold)
    marked = np.zeros(len(times), dtype=np.bool_) if alarms is None else alarms
    if len(shown) > MOST_POINTS:
        shown = _highest(times, scores, marked, shown, frame)
    dots = []
    for number, index in enumerate(shown.tolist()):
        tip = titles[index] if titles else ""
        about = Markup(' data-tip="{}" tabindex="{}"').format(tip, -1 if number else 0) if tip else ""
        kind = "dot alarm" if marked[index] else "dot"
        dot = Markup('<circle class="{}" cx="{}" cy="{}" r="3.5"{}/>')
        dots.append(dot.format(kind, frame.x(times[index]), frame.y(scores[index]), about))
    axes = _axes(frame, "time, UTC", y_label, time=True)
    return _picture([*axes, *_line(frame, threshold), *dots], y_label, walk=True)


def histogram(
    counts: Longs,
    edges: Doubles,
    *,
    threshold: float | None = None,
    expected: float | None = None,
    x_label: str = "score, bits",
) -> Markup:
    """How many rows have which score.

    Args:
        counts: (B,) rows in each bin.
        edges: (B + 1,) ascending.
        threshold: drawn as an upright line where it lies between the edges.
        expected: rows that each bin should have, drawn as a level line.
        x_label: what the score is.
    """
    most = max(float(counts.max(initial=1)), expected or 0.0)
    frame = Frame(low=float(edges[0]), high=float(edges[-1]), floor=0.0, ceiling=most)
    bars = []
    for count, low, high in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if count:
            top = min(frame.y(count), HEIGHT - BOTTOM - 1.5)  # one row among thousands can be seen too
            width = max(frame.x(high) - frame.x(low) - 1, 1)
            bar = Markup('<rect class="bar" x="{}" y="{}" width="{:.1f}" height="{:.1f}"/>')
            bars.append(bar.format(frame.x(low), top, width, HEIGHT - BOTTOM - top))
    line = []
    if threshold is not None and edges[0] <= threshold <= edges[-1]:
        upright = Markup('<line class="threshold" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>')
        line = [upright.format(frame.x(threshold), TOP, HEIGHT - BOTTOM)]
    line += _line(frame, expected)
    return _picture([*_axes(frame, x_label, "rows"), *bars, *line], "rows by score")


def activity(edges: Doubles, rows: Longs, alarms: Longs | None) -> Markup:
    """How many rows there were when, and alarms among them.

    Args:
        edges: (B + 1,) ascending, seconds since 1970 UTC.
        rows: (B,) in each bin of time.
        alarms: (B,) among them, or None for none to draw.
    """
    frame = Frame(low=float(edges[0]), high=float(edges[-1]), floor=0.0, ceiling=float(rows.max(initial=1)))
    red = np.zeros(len(rows), dtype=np.int64) if alarms is None else alarms
    bar = Markup(
        '<rect class="{}" x="{}" y="{:.1f}" width="{:.1f}" height="{:.1f}" data-tip="{}" tabindex="{}"/>'
    )
    drawn: list[Markup] = []
    for number in np.flatnonzero(rows).tolist():
        low, high = float(edges[number]), float(edges[number + 1])
        tip = f"{_moment(low, high - low)} to {_moment(high, high - low)}: "
        tip += number_of(int(rows[number]), "row")
        tip += "" if alarms is None else f", {number_of(int(red[number]), 'alarm')}"
        for kind, count in (("bar", rows[number]), ("bar alarm", red[number])):
            if count:
                height = max(HEIGHT - BOTTOM - frame.y(float(count)), 2.0)  # one among thousands is seen too
                width = max(frame.x(high) - frame.x(low) - 1, 1)
                place = (frame.x(low), HEIGHT - BOTTOM - height, width, height)
                drawn.append(bar.format(kind, *place, tip, -1 if drawn else 0))
    return _picture([*_axes(frame, "time, UTC", "rows", time=True), *drawn], "rows in time", walk=True)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """What lasted for a while.

    Args:
        begin, end: seconds since 1970 UTC.
        label: shown beside it, cut where there is no room.
        tip: told where it is pointed at.
        over: False: it may go on behind its end.
    """

    begin: float
    end: float
    label: str
    tip: str
    over: bool = True


_LANE, _LETTERS = 22, 70  # height of a bar with its label; characters of a label


def bars(given: Sequence[Bar], begin: float, end: float) -> Markup:
    """What lasted from when to when, a line each, cut off at two times.

    Args:
        given: in their order from the top.
        begin, end: seconds since 1970 UTC.
    """
    frame = Frame(low=begin, high=end, floor=0.0, ceiling=1.0)
    bottom = TOP + _LANE * len(given)
    drawn = [Markup('<path class="axis" d="M{} {}V{}H{}"/>').format(LEFT, TOP, bottom, WIDTH - RIGHT)]
    mark = Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>')
    places = np.linspace(begin, end, 6)[:-1].tolist()
    drawn += [mark.format(max(frame.x(v), LEFT + 26), bottom + 14, _moment(v, end - begin)) for v in places]
    shape = Markup(
        '<rect class="{}" x="{}" y="{}" width="{:.1f}" height="{}" rx="2" data-tip="{}" tabindex="{}"/>'
        '<text class="lane" x="{:.1f}" y="{}" text-anchor="{}">{}</text>'
    )
    for lane, one in enumerate(given):
        left, right = (frame.x(min(max(at, begin), end)) for at in (one.begin, one.end))
        width, top = max(right - left, 4.0), TOP + lane * _LANE
        label = one.label if len(one.label) <= _LETTERS else f"{one.label[: _LETTERS - 1]}…"
        needed, right = 6 * len(label), left + width
        if WIDTH - RIGHT - right >= needed:
            place = (right + 5, "start")
        elif left - LEFT >= needed:
            place = (left - 5, "end")
        else:
            place = (left + 5, "start")
        kind = "span" if one.over else "span open"
        drawn.append(
            shape.format(
                kind,
                left,
                top + 4,
                width,
                _LANE - 8,
                one.tip,
                -1 if lane else 0,
                place[0],
                top + 15,
                place[1],
                label,
            )
        )
    return _picture(drawn, "what lasted from when to when", walk=True, height=bottom + 24)


def heat(bits: Doubles, titles: Sequence[str] = (), *, scale: float = SCALE) -> Markup:
    """One cell a unit, coloured by surprisal; up to `MOST_POINTS` cells, then the highest of each column.

    Args:
        bits: (U,) surprisals.
        titles: (U,) what is told of a unit when it is pointed at, or none.
        scale: bits of the strongest colour.
    """
    if not len(bits):
        return Markup('<p class="note">nothing to draw</p>')
    cells = min(len(bits), MOST_POINTS)
    cuts = np.linspace(0, len(bits), cells + 1).astype(np.int64)
    known = np.nan_to_num(bits, nan=-np.inf)
    best = [int(a + known[a:b].argmax()) for a, b in pairwise(cuts.tolist())]
    width = (WIDTH - LEFT - RIGHT) / cells
    rows = []
    for number, (index, step) in enumerate(zip(best, steps(bits[best], scale).tolist(), strict=True)):
        about = ""
        if titles:
            about = Markup(' data-tip="{}" tabindex="{}"').format(titles[index], -1 if number else 0)
        cell = Markup('<rect class="h{}" x="{:.2f}" y="4" width="{:.2f}" height="22"{}/>')
        rows.append(cell.format(step, LEFT + number * width, width + 0.1, about))
    return _picture(rows, "surprisal of each unit", walk=True, height=30)


MOST_COLUMNS = 1000
"""Columns of a grid that are drawn."""

_BLOCK, _CELL, _ROW = 50, (WIDTH - LEFT - RIGHT) / 50, 11


def grid(
    bits: Doubles,
    letters: Sequence[str],
    columns: Sequence[str],
    names: Sequence[str],
    *,
    scale: float = SCALE,
) -> Markup:
    """Cells in rows and columns, coloured by bits; 50 columns in a picture, the first `MOST_COLUMNS` of all.

    Args:
        bits: (C, R); NaN for a cell without a value, which is marked; below 0 is drawn as 0.
        letters: R of them, the rows.
        columns: C labels, of which every tenth is shown.
        names: C * R what is told of a cell when it is pointed at, column after column.
        scale: bits of the strongest colour.
    """
    pictures = []
    for begin in range(0, min(len(bits), MOST_COLUMNS), _BLOCK):
        block = bits[begin : min(begin + _BLOCK, MOST_COLUMNS)]
        shown = steps(block, scale)
        parts = [
            Markup('<text x="{}" y="{}">{}</text>').format(LEFT - 14, 14 + (row + 1) * _ROW - 2, letter)
            for row, letter in enumerate(letters)
        ]
        for column in range(len(block)):
            x = LEFT + column * _CELL
            if column % 10 == 0:
                parts.append(Markup('<text x="{:.1f}" y="11">{}</text>').format(x, columns[begin + column]))
            for row in range(len(letters)):
                name = names[(begin + column) * len(letters) + row]
                tip = Markup(' data-tip="{}" tabindex="{}"').format(name, 0 if column == row == 0 else -1)
                mark = "band" if np.isnan(block[column, row]) else f"h{shown[column, row]}"
                cell = Markup('<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"{}/>')
                parts.append(cell.format(mark, x, 14 + row * _ROW, _CELL, _ROW, tip))
        label = f"columns {columns[begin]} to {columns[begin + len(block) - 1]}"
        pictures.append(_picture(parts, label, walk=True, height=18 + len(letters) * _ROW))
    return Markup("").join(pictures)


MOST_BLOCKS = 64
"""Rows and columns of a matrix; of more units the highest of each block of them is drawn."""

_MARGIN, _SIDE = 130, 560
_NAMED = 40  # rows beside which there is room for a name


def matrix(
    values: Doubles,
    names: Sequence[str],
    found: Set[tuple[int, int]],
    known: Set[tuple[int, int]],
    *,
    scale: float,
) -> Markup:
    """Pairs of N units: values above the diagonal; below it what was found, what is known, and what is both.

    Args:
        values: (N, N) on the scale of the colours; NaN for no value.
        names: N of them, of the units.
        found, known: pairs of units, the smaller first; darkest where both, palest where known alone.
        scale: the value of the strongest colour, above 0.
    """
    cuts = np.linspace(0, len(values), min(len(values), MOST_BLOCKS) + 1).astype(np.int64).tolist()
    blocks = list(pairwise(cuts))
    side = min(22.0, _SIDE / max(len(blocks), 1))
    owner = np.repeat(np.arange(len(blocks)), np.diff(cuts))
    ground = Markup('<rect class="h0" x="{}" y="0" width="{:.1f}" height="{:.1f}"/>')
    parts = [ground.format(_MARGIN, side * len(blocks), side * len(blocks))]
    for row, (first, _) in enumerate(blocks):
        if len(blocks) <= _NAMED or row % 8 == 0:
            label, named = Markup('<text x="0" y="{:.1f}">{}</text>'), f"{first} {names[first]}"[:18]
            parts.append(label.format(row * side + min(side, 11), named))
    cell = Markup('<rect class="h{}" x="{:.1f}" y="{:.1f}" width="{:.2f}" height="{:.2f}"{}/>')
    marked = _below(owner, found, known) + _above(values, names, blocks, scale)
    for number, (row, column, step, told) in enumerate(marked):
        tip = Markup(' data-tip="{}" tabindex="{}"').format(told, -1 if number else 0)
        parts.append(cell.format(step, _MARGIN + column * side, row * side, side + 0.1, side + 0.1, tip))
    return _picture(parts, "values of pairs", walk=True, height=round(side * len(blocks)) + 4)


_Cell = tuple[int, int, int, str]  # row, column, step of the colour, what is told of it


def _below(owner: Longs, found: Set[tuple[int, int]], known: Set[tuple[int, int]]) -> list[_Cell]:
    """The cells below the diagonal of a matrix; `owner` is the block of each unit."""
    kinds: dict[tuple[int, int], set[str]] = {}
    for name, pairs in (("found", found), ("known", known)):
        for i, j in pairs:
            kinds.setdefault((int(owner[j]), int(owner[i])), set()).add(name)
    step = {"found": 5, "known": 3}
    return [
        (row, column, sum(step[name] for name in own), " and ".join(sorted(own)))
        for (row, column), own in sorted(kinds.items())
    ]


def _above(
    values: Doubles, names: Sequence[str], blocks: Sequence[tuple[int, int]], scale: float
) -> list[_Cell]:
    """The cells on and above the diagonal of a matrix that have a colour: the highest value of each block."""
    found = []
    for row, (first, last) in enumerate(blocks):
        for column, (begin, end) in enumerate(blocks[row:], row):
            block = np.nan_to_num(values[first:last, begin:end], nan=-np.inf)
            i, j = (int(place) for place in np.unravel_index(block.argmax(), block.shape))
            if step := int(steps(block[i, j], scale)):
                one, other = (f"{place} {names[place]}" for place in (first + i, begin + j))
                found.append((row, column, step, f"{one}, {other}: {block[i, j]:.3g}"))
    return found


def _frame(low: float, high: float, values: Doubles, threshold: float | None) -> Frame:
    finite = values[np.isfinite(values)].tolist() + ([] if threshold is None else [threshold])
    floor, ceiling = min(finite, default=0.0), max(finite, default=1.0)
    floor = min(floor, 0.0)
    return Frame(low=low, high=high, floor=floor, ceiling=ceiling if ceiling > floor else floor + 1.0)


def _thinned(places: Doubles, values: Doubles, frame: Frame) -> tuple[list[float], list[float]]:
    """At most `MOST_POINTS` points, the highest of each column."""
    kept = np.flatnonzero(~np.isnan(values))
    if len(kept) > MOST_POINTS:
        kept = _highest(places, values, np.zeros(len(values), dtype=np.bool_), kept, frame)
    return places[kept].tolist(), values[kept].tolist()


def _highest(places: Doubles, values: Doubles, marked: Bools, kept: Longs, frame: Frame) -> Longs:
    """Of each column the marked point with the highest value, or the highest where none is marked."""
    share = (places[kept] - frame.low) / ((frame.high - frame.low) or 1.0)
    column = np.minimum((share * MOST_POINTS).astype(np.int64), MOST_POINTS - 1)
    order = np.lexsort((values[kept], marked[kept], column))
    last = np.append(np.flatnonzero(np.diff(column[order])), len(order) - 1)
    return np.asarray(kept[order][last], dtype=np.int64)


def _bands(starts: Longs, ends: Longs, frame: Frame, first: int) -> list[Markup]:
    """A shade behind each alarmed stretch; overlapping ones are one, and so are those a column apart."""
    least = (frame.high - frame.low) / MOST_POINTS
    merged: list[list[int]] = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if merged and start <= merged[-1][1] + least:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    shade = Markup('<rect class="band" x="{}" y="{}" width="{:.1f}" height="{}" data-tip="alarm {:,}-{:,}"/>')
    height = HEIGHT - TOP - BOTTOM
    return [
        shade.format(frame.x(a), TOP, max(frame.x(b) - frame.x(a), 2.0), height, a, b - first)
        for a, b in merged
    ]


def _line(frame: Frame, threshold: float | None) -> list[Markup]:
    if threshold is None:
        return []
    line = Markup('<line class="threshold" x1="{}" x2="{}" y1="{y}" y2="{y}"/>')
    return [line.format(LEFT, WIDTH - RIGHT, y=frame.y(threshold))]


def _axes(frame: Frame, x_label: str, y_label: str, *, time: bool = False) -> list[Markup]:
    bottom = HEIGHT - BOTTOM
    drawn = [
        Markup('<path class="axis" d="M{} {}V{}H{}"/>').format(LEFT, TOP, bottom, WIDTH - RIGHT),
        Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(WIDTH - RIGHT, HEIGHT - 4, x_label),
        Markup('<text x="12" y="{}" transform="rotate(-90 12 {})">{}</text>').format(bottom, bottom, y_label),
    ]
    mark = Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>')
    width = frame.high - frame.low
    if time:
        places = np.linspace(frame.low, frame.high, 6)[:-1].tolist()
        drawn += [mark.format(max(frame.x(v), LEFT + 26), bottom + 14, _moment(v, width)) for v in places]
    else:
        drawn += [mark.format(frame.x(v), bottom + 14, _number(v)) for v in _ticks(frame.low, frame.high)]
    side = Markup('<text x="{}" y="{}" text-anchor="end">{}</text>')
    drawn += [side.format(LEFT - 5, frame.y(v) + 4, _number(v)) for v in _ticks(frame.floor, frame.ceiling)]
    return drawn


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:.4g}"


def _ticks(low: float, high: float) -> list[float]:
    """Round values between two ends, about four."""
    if high <= low:
        return [low]
    raw = (high - low) / 4
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [number * step for number in range(first, last + 1)]


def _moment(seconds: float, width: float) -> str:
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError):
        return f"{seconds:.4g} s"
    return moment.strftime("%Y-%m-%d" if width > 5 * 86400 else "%m-%d %H:%M" if width > 600 else "%H:%M:%S")


def _picture(parts: Sequence[Markup], label: str, *, walk: bool = False, height: int = HEIGHT) -> Markup:
    holder = Markup('<div class="wide"{}><svg viewBox="0 0 {} {}" role="{}" aria-label="{}">{}</svg></div>')
    walking = Markup(" data-walk") if walk else ""
    return holder.format(walking, WIDTH, height, "group" if walk else "img", label, Markup("").join(parts))
