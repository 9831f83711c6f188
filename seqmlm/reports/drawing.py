"""Drawings of a page: text and cells on the colour of their surprisal (HTML), axes with matplotlib (SVG)."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from html import unescape
from itertools import compress, count, pairwise
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike, NDArray

from seqmlm.errors import number_of, span_text
from seqmlm.reports.scales import SCALE, STEPS, steps

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]

_HALF = 0.5  # from a 0-based edge of a unit to where its axis has it: position 1 is centred at 1


def colour(step: int) -> str:
    """The class of the style sheet of a step: s1 to s8 above 0, u1 to u8 below."""
    return f"s{step}" if step >= 0 else f"u{-step}"


def legend(scale: float = SCALE, unit: str = "bits", signed: bool = False) -> Markup:
    """A line that says what each colour means, as HTML."""
    rising = range(2, STEPS + 1, 2) if signed else range(1, STEPS + 1)
    mark = Markup('<i class="{}">{:g}</i>')
    all_steps = [*(range(-STEPS, 0, 2) if signed else ()), *rising]
    marks = Markup("").join(mark.format(colour(step), scale * step / STEPS) for step in all_steps)
    caption = unit if signed else f"{unit} and more"
    return Markup('<p class="legend" aria-label="colour scale">{}:&nbsp;{}</p>').format(caption, marks)


def text_on_colours(
    text: str,
    spans: Sequence[tuple[int, int]],
    bits: Doubles,
    titles: Sequence[str],
    scale: float = SCALE,
    signed: bool = False,
) -> Markup:
    """A text with each span on its colour, as HTML; letters between spans stay plain.

    Args:
        text: that the spans point into.
        spans: (N,) half-open, ascending by start; one that begins inside another begins where that ends.
        bits: (N,) surprisals.
        titles: (N,) tip of each span, shown where it is pointed at, or none for no span.
        scale, signed: see `steps`.
    """
    pieces: list[Markup | str] = []
    done, first = 0, True
    tips = titles or [""] * len(spans)
    for (start, end), step, tip in zip(spans, steps(bits, scale, signed).tolist(), tips, strict=True):
        begin = max(start, done)
        if begin >= end:
            continue
        pieces.append(Markup.escape(text[done:begin]))
        about = Markup(' data-tip="{}" tabindex="{}"').format(tip, 0 if first else -1) if tip else ""
        pieces.append(Markup('<b class="{}"{}>{}</b>').format(colour(step), about, text[begin:end]))
        done, first = end, first and not tip
    pieces.append(Markup.escape(text[done:]))
    return Markup("").join(pieces)


# Pictures. Each is a figure of HTML with its caption; what is told of a part of one is shown by the page. A
# picture of nothing is empty, so that the page has no section for it.

MOST_POINTS = 1000
"""Points of a picture; of more than that the highest of each column are drawn."""

WIDTH, HEIGHT = 1000, 220  # of a picture, in points of its text
LEFT, RIGHT, TOP, BOTTOM = 80, 12, 10, 38  # margins around its axes

MARK, _ALARM, _BAND = "#2f5ea8", "#c62a1c", "#f6c4bd"  # in the dark the style sheet inverts a figure
_KINDS = (MARK, "#c62a1c", "#2e8540", "#b8860b", "#7b3fa0", "#008b8b")
_OTHERS, _TOLD = "#9aa0a8", 60  # points of a kind that can be pointed at
_LEAST = 0.01  # share of the height that a bar has: one row among thousands is seen, too
THRESHOLD: dict[str, Any] = {"color": _ALARM, "linestyle": (0, (4, 3)), "linewidth": 1}
_NOTHING = Markup()
_STYLE = {
    "svg.hashsalt": "seqmlm",  # the same ids in every run
    "svg.fonttype": "none",  # letters are those of the reader's fonts
    "text.parse_math": False,  # a dollar sign is one
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 7,
}


@contextmanager
def page_style() -> Iterator[None]:
    """A context in which figures are drawn, and made a `picture`, in the style of a page."""
    import matplotlib

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the reader's font may have it
        yield


def picture(figure: Any, label: str, *notes: str) -> Markup:
    """A matplotlib figure as SVG inside a page.

    The gid of an artist behind "tip:" is shown where the artist is pointed at; `label` describes the figure
    to readers who do not see it, and notes stand below it.
    """
    file, tips = io.StringIO(), count()
    figure.savefig(
        file, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
    )

    def tip_group(match: re.Match[str]) -> str:
        """The begin of a group of SVG, with its tip where its id has one."""
        name = unescape(match[1][1:-1])
        if not name.startswith("tip:"):
            return "<g>"  # a number that other pictures of the page have, too
        return Markup('<g data-tip="{}" tabindex="{}">').format(name[4:], -1 if next(tips) else 0)

    svg = file.getvalue()
    inner = svg[svg.index('<g id="figure_1">') :]  # without the declarations of a file of its own
    body = Markup(re.sub(r"""<g id=("[^"]*"|'[^']*')>""", tip_group, inner))
    width, height = (72 * inches for inches in figure.get_size_inches())
    frame = '<div class="wide" data-walk><svg viewBox="0 0 {:g} {:g}" role="{}" aria-label="{}">{}</div>'
    role = "group" if next(tips) else "img"
    return with_caption(Markup(frame).format(width, height, role, label, body), *notes)


def with_caption(body: Markup, *notes: str) -> Markup:
    """A figure with its notes below, as HTML."""
    caption = "; ".join(note for note in notes if note)
    below = Markup("<figcaption>{}</figcaption>").format(caption) if caption else Markup()
    return Markup("<figure>{}{}</figure>").format(body, below)


def track(
    starts: Longs,
    ends: Longs,
    values: Doubles,
    alarms: Bools | None = None,
    titles: Sequence[str] = (),
    *,
    x_label: str = "position",
    x_unit: int = 1,
    y_label: str = "score, bits",
    note: str = "",
    below: Sequence[tuple[int, int, str]] = (),
) -> Markup:
    """A value along a sequence, alarmed stretches shaded. The axis and tips count positions from 1.

    Args:
        starts, ends: (N,) half-open, ascending by start; they may overlap.
        values: (N,) NaN where there is none.
        alarms: (N,) True at what is to be marked, or None for nothing.
        titles: (N,) names of the places, shown where a marked stretch is pointed at, or none.
        x_unit: places of one number of the axis: 1000 for kb.
        below: start, end and name of bars below, such as genes, in two lanes by turns.
    """
    if not np.isfinite(values).any():
        return _NOTHING
    with page_style():
        low, high, (floor, ceiling) = int(starts[0]), int(ends.max()), _range(values)
        lane = 0.08 * (ceiling - floor) if below else 0.0
        axes = _axes((low + _HALF, high + _HALF), (floor - 2.6 * lane, ceiling), x_label, y_label)
        for number, (begin, end, name) in enumerate(below):
            at, wide = floor - (1.2 + number % 2 * 0.8) * lane, max(end - begin, (high - low) / MOST_POINTS)
            tip = f"tip:{name} {span_text(begin, end)}"
            axes.barh(at, wide, 0.6 * lane, begin + _HALF, color=_OTHERS, gid=tip)
        axes.xaxis.set_major_formatter(lambda value, place: _number(value / x_unit, place))
        marked = np.zeros(len(starts), dtype=np.bool_) if alarms is None else alarms
        for begin, end in _bands(starts[marked], ends[marked], (high - low) / MOST_POINTS):
            inside = marked & (starts < end) & (ends > begin)
            band_titles = dict.fromkeys(compress(titles, inside) if titles else ())
            tip = "; ".join([f"tip:alarm {span_text(begin, end)}", *filter(None, band_titles)])
            axes.axvspan(begin + _HALF, end + _HALF, color=_BAND, linewidth=2, gid=tip)
        middles = (starts + ends) / 2 + _HALF
        points = thinned_indices(middles, values)
        axes.plot(middles[points], np.clip(values[points], floor, ceiling), color=MARK)
        return picture(axes.figure, y_label, note, _left_out(len(values)))


def timeline(
    times: Doubles,
    scores: Doubles,
    alarms: Bools | None = None,
    titles: Sequence[str] = (),
    *,
    threshold: float | None = None,
    period: tuple[float, float] | None = None,
    y_label: str = "score, bits",
    note: str = "",
) -> Markup:
    """A picture of scores as points in time.

    Args:
        times: (N,) seconds since 1970 UTC.
        scores: (N,) NaN is left out.
        alarms: (N,) True at points to mark, or None.
        titles: (N,) tip of each marked point, or none.
        threshold: drawn as a line.
        period: two times from which and to which it goes; None: from the first point to the last.
    """
    marked = np.zeros(len(times), dtype=np.bool_) if alarms is None else alarms
    points = thinned_indices(times, scores, marked)
    if not len(points):
        return _NOTHING
    with page_style():
        floor, ceiling = _range(scores[points], threshold)
        span = period or (float(times[points].min()), float(times[points].max()))
        axes = _axes(span, (floor, ceiling), "time, UTC", y_label, time=True)
        heights, usual = np.clip(scores, floor, ceiling), points[~marked[points]]
        axes.plot(times[usual], heights[usual], "o", color=MARK, alpha=0.75, clip_on=False)
        for point in points[marked[points]].tolist():
            tip = f"tip:{titles[point]}" if titles else None
            axes.plot(times[point], heights[point], "o", color=_ALARM, clip_on=False, gid=tip)
        if threshold is not None:
            axes.axhline(threshold, **THRESHOLD)
        return picture(axes.figure, y_label, note, _left_out(len(times)))


def histogram(
    counts: Longs,
    edges: Doubles,
    *,
    expected: float | None = None,
    x_label: str = "score, bits",
    note: str = "",
) -> Markup:
    """Numbers of rows by score: (B,) counts between (B + 1,) ascending edges; `expected`, rows that each bin
    should have, is a level line."""
    if not counts.any():
        return _NOTHING
    with page_style():
        highest = max(float(counts.max(initial=1)), expected or 0.0)
        axes = _axes((edges[0], edges[-1]), (0.0, highest), x_label, "rows")
        heights = np.where(counts > 0, np.maximum(counts, _LEAST * highest), 0)
        axes.stairs(heights, edges, fill=True, color=MARK)
        if expected is not None:
            axes.axhline(expected, **THRESHOLD)
        return picture(axes.figure, "rows by score", note)


def tails(counts: Longs, per_ten: int, alpha: float | None = None) -> Markup:
    """Numbers of rows by p-value, on scales of logarithms, beside those to expect if all were normal.

    Args:
        counts: (B,) rows by -log10 p, from 0 on; the last has all that are smaller.
        per_ten: bins of a factor of ten.
        alpha: the p-value up to which a row raises an alarm, drawn as an upright line.
    """
    if not counts.any():
        return _NOTHING
    last = int(np.flatnonzero(counts).max(initial=0)) + 1
    alarm_bin = 0 if alpha is None else math.ceil(-math.log10(alpha) * per_ten)
    edges = np.arange(max(last, alarm_bin + 2, 2 * per_ten) + 1) / per_ten
    heights = np.pad(counts[: len(edges) - 1], (0, max(0, len(edges) - 1 - len(counts))))
    usual = counts.sum() * -np.diff(10.0**-edges)
    highest = 2.0 * max(heights.max(), 1.0)
    powers = 10.0 ** np.arange(math.floor(math.log10(highest)) + 1)
    ticks = np.outer(powers, (1, 2, 5) if highest < 100 else (1,))
    with page_style():
        axes = _axes((0.0, edges[-1]), (0.5, highest), "p-value", "rows")
        axes.set_yscale("log")
        axes.set_yticks(ticks[ticks <= highest])
        axes.yaxis.set_major_formatter(_number)
        axes.minorticks_off()
        axes.stairs(heights, edges, fill=True, color=MARK, label="rows", baseline=0.1)
        axes.stairs(usual, edges, baseline=None, color=_OTHERS, label="if all were normal")
        decades = np.arange(int(edges[-1]) + 1)
        axes.set_xticks(decades, [f"{10.0**-decade:.12f}".rstrip("0").rstrip(".") for decade in decades])
        if alpha is not None:
            axes.axvline(-math.log10(alpha), label=f"alarm from p {alpha:.3g} on", **THRESHOLD)
        axes.set_position((0.08, 0.18, 0.9, 0.68))  # the legend is above, where a narrow screen shows it
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)
        return picture(axes.figure, "rows by p-value", "further right is more unusual")


def activity(edges: Doubles, rows: Longs, alarms: Longs | None, *, note: str = "") -> Markup:
    """Numbers of rows (B,) in time, and of alarms among them, if these are drawn; between (B + 1,) ascending
    seconds since 1970 UTC."""
    if not rows.any():
        return _NOTHING
    highest = float(rows.max(initial=1))
    with page_style():
        axes = _axes((edges[0], edges[-1]), (0.0, highest), "time, UTC", "rows", time=True)
        for colour, counts in ((MARK, rows), (_ALARM, rows[:0] if alarms is None else alarms)):
            for number in np.flatnonzero(counts).tolist():
                low, width = edges[number], edges[number + 1] - edges[number]
                tip = f"tip:{_moment(low, width)} to {_moment(low + width, width)}: "
                tip += number_of(int(rows[number]), "row")
                tip += "" if alarms is None else f", {number_of(int(alarms[number]), 'alarm')}"
                height = max(counts[number], _LEAST * highest)
                axes.bar(low, height, 0.97 * width, align="edge", color=colour, gid=tip)
        return picture(axes.figure, "rows in time", note)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """An event that lasted for a while, in seconds since 1970 UTC.

    Args:
        label: shown above it, cut where there is no room.
        tip: shown where it is pointed at.
        over: False: it may go on behind its end.
    """

    begin: float
    end: float
    label: str
    tip: str
    over: bool = True


_LANE, _LETTERS = 30, 70  # height of a bar with its label; characters of a label


def bars(events: Sequence[Bar], begin: float, end: float, *, note: str = "") -> Markup:
    """Events from their begin to their end, a line each from the top, cut off at two times."""
    if not events:
        return _NOTHING
    height = TOP + _LANE * len(events) + BOTTOM
    with page_style():
        axes = _axes((begin, end), (len(events), 0.0), "time, UTC", "", time=True, height=height)
        axes.set_yticks([])
        min_width = 0.004 * (end - begin)  # what was over at once is seen, too
        for lane, event in enumerate(events):
            start = min(max(event.begin, begin), end - min_width)
            stop = max(min(event.end, end), start + min_width)
            shape = {"color": _ALARM, "alpha": 1 if event.over else 0.55, "gid": f"tip:{event.tip}"}
            axes.barh(lane + 0.75, stop - start, 0.4, start, **shape)
            label = " ".join(event.label.split())
            label = label if len(label) <= _LETTERS else f"{label[: _LETTERS - 1]}…"
            place, side = (start, "left") if start + stop <= begin + end else (stop, "right")
            axes.text(place, lane + 0.5, label, ha=side, va="bottom")
        return picture(axes.figure, "what lasted from when to when", note)


MOST_COLUMNS = 1000
"""Columns of a grid that are drawn."""

_BLOCK = 50  # columns of a grid side by side


def grid(
    losses: Doubles,
    letters: Sequence[str],
    columns: Sequence[str],
    names: Sequence[str],
    *,
    scale: float,
    note: str = "",
) -> Markup:
    """Cells in rows and columns, coloured by loss or gain; 50 columns in a picture, the first `MOST_COLUMNS`
    of all.

    Args:
        losses: (C, R) in nats, below 0 a gain; NaN for a cell without a value, which is marked.
        letters, columns: names of R rows, and labels of C columns, of which every tenth is shown.
        names: C * R tips of the cells, column after column.
        scale: of the strongest colour (`colour_scale`).
    """
    if not np.isfinite(losses).any():
        return _NOTHING
    paint = np.array([colour(step) for step in range(-STEPS, STEPS + 1)])
    kinds = np.where(np.isnan(losses), "band", paint[steps(losses, scale, signed=True) + STEPS]).tolist()
    drawn_columns, size = min(len(losses), MOST_COLUMNS), len(letters)
    body = legend(-scale, "effect, nats", signed=True)
    for begin in range(0, drawn_columns, _BLOCK):
        block = range(begin, min(begin + _BLOCK, drawn_columns))
        heads = ["", *(columns[column] if column % 10 == 0 else "" for column in block)]
        rows = [
            (letter, [(kinds[column][row], names[column * size + row]) for column in block])
            for row, letter in enumerate(letters)
        ]
        body += _cells("grid", f"columns {columns[block[0]]} to {columns[block[-1]]}", heads, rows)
    left_out = f"the first {MOST_COLUMNS:,} of {len(losses):,} columns are drawn"
    return with_caption(body, note, left_out if len(losses) > drawn_columns else "")


MOST_BLOCKS = 64
"""Rows and columns of a matrix; of more units the highest of each block of them is drawn."""

_Cell = tuple[str, str]  # class of the style sheet, tip


def matrix(
    values: Doubles,
    names: Sequence[str],
    predicted: Set[tuple[int, int]] = frozenset(),
    truth: Set[tuple[int, int]] = frozenset(),
    *,
    scale: float,
    unit: str = "bits",
    note: str = "",
) -> Markup:
    """Pairs of N units: values above the diagonal; below it the predicted pairs, the true ones, and both.

    Args:
        values: (N, N) on the scale of the colours, above 0 to `scale`; NaN for no value.
        names: N of them, of the units.
        predicted, truth: pairs of units, the smaller first; darkest where both, palest where true alone.
    """
    if not len(values) or not (predicted or truth or np.nanmax(values, initial=0.0) > 0):
        return _NOTHING
    size = min(len(values), MOST_BLOCKS)
    cuts = np.linspace(0, len(values), size + 1).astype(np.int64)
    owner = np.repeat(np.arange(size), np.diff(cuts))
    blocks = pairwise(cuts.tolist())
    labels = [f"{span_text(a, b)} {names[a]}" if b == a + 1 else span_text(a, b) for a, b in blocks]
    highest = np.fmax.reduceat(np.fmax.reduceat(values, cuts[:-1], axis=0), cuts[:-1], axis=1)
    shades = np.triu(steps(highest, scale))
    cells = [[("s0", "")] * size for _ in range(size)]
    for i, j in np.argwhere(shades).tolist():
        cells[i][j] = (f"s{shades[i, j]}", f"{labels[i]}, {labels[j]}: {highest[i, j]:.3g}")
    edges = [{(int(owner[j]), int(owner[i])) for i, j in pairs} for pairs in (predicted, truth)]
    for i, j in edges[0] | edges[1]:
        kinds = [(i, j) in pairs for pairs in edges]
        cells[i][j] = (f"s{5 * kinds[0] + 3 * kinds[1]}", " and ".join(compress(("found", "known"), kinds)))
    left_out = f"highest of each block of units; {MOST_BLOCKS} blocks" if len(values) > size else ""
    rows = [(label[:18], row) for label, row in zip(labels, cells, strict=True)]
    heads = ["", *(label.partition(" ")[0] if at % 5 == 0 else "" for at, label in enumerate(labels))]
    marks = Markup("").join(_PAIRS if truth else _PAIRS[:1])
    head = legend(scale, f"above the diagonal, {unit}") + marks + Markup("</p>")
    return with_caption(head + _cells("matrix", "values of pairs", heads, rows), note, left_out)


_PAIRS = (
    Markup('<p class="legend">below it:&nbsp;<i class="s5">found</i>'),
    Markup('<i class="s3">known, not found</i><i class="s8">both</i>'),
)


def _cells(
    kind: str, label: str, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[_Cell]]]
) -> Markup:
    """Coloured cells with the names of their rows and columns, as HTML."""
    name, cell = Markup("<b>{}</b>"), Markup('<i class="{}" data-tip="{}" tabindex="{}"></i>')
    parts, stop = [name.format(head) for head in heads], 0
    for row, cells in rows:
        parts.append(name.format(row))
        for mark, tip in cells:
            parts.append(cell.format(mark, tip, stop) if tip else Markup('<i class="s0"></i>'))
            stop = -1 if tip else stop
    frame = '<div class="wide"><div class="cells {}" style="--n:{}" {}>{}</div></div>'
    role = Markup('data-walk role="group" aria-label="{}"').format(label)
    return Markup(frame).format(kind, len(rows[0][1]) if rows else 1, role, Markup().join(parts))


# Places of points


def thinned_indices(places: ArrayLike, values: Doubles, marked: Bools | None = None) -> Longs:
    """Indices of at most `MOST_POINTS` points: the highest of each column, a marked one (N,) before others.

    A point without a finite place, or with a NaN as value (N,), is left out.
    """
    at = np.asarray(places, dtype=np.float64)
    finite = np.flatnonzero(np.isfinite(at) & ~np.isnan(values))
    if len(finite) <= MOST_POINTS:
        return finite
    share = (at[finite] - at[finite].min()) / (np.ptp(at[finite]) or 1.0)
    column = np.minimum((share * MOST_POINTS).astype(np.int64), MOST_POINTS - 1)
    order = np.lexsort((values[finite], np.zeros(len(finite)) if marked is None else marked[finite], column))
    last = np.append(np.flatnonzero(np.diff(column[order])), len(order) - 1)
    return np.asarray(finite[order][last], dtype=np.int64)


def _left_out(points: int) -> str:
    """A note that a picture leaves points out; "" where it has all."""
    return f"highest of each of {MOST_POINTS:,} columns" if points > MOST_POINTS else ""


def _range(values: Doubles, threshold: float | None = None) -> tuple[float, float]:
    """The lowest and the highest value of an axis: 0 or less, and the highest finite value."""
    finite = [0.0, *values[np.isfinite(values)].tolist(), *([] if threshold is None else [threshold])]
    floor, ceiling = min(finite), max(finite)
    return floor, ceiling if ceiling > floor else floor + 1.0


def _bands(starts: Longs, ends: Longs, min_gap: float) -> list[list[int]]:
    """[start, end] of the stretches, where those that overlap or are at most `min_gap` apart are one."""
    merged: list[list[int]] = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if merged and start <= merged[-1][1] + min_gap:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def scatter(
    places: Doubles, kinds: Sequence[str] = (), titles: Sequence[str] = (), *, label: str, note: str = ""
) -> Markup:
    """Points (N, 2) in a plane, coloured by kind: the most frequent kinds each, all others alike; with a
    title each, which is shown where it is pointed at, or none."""
    if not len(places):
        return _NOTHING
    labels = np.array(kinds or [""] * len(places))
    usual = [kind for kind, _ in Counter(labels.tolist()).most_common(len(_KINDS))]
    spread = np.ptp(places, axis=0) * 0.04
    with page_style():
        limits = np.stack([places.min(0) - spread, places.max(0) + spread], axis=1)
        axes = _axes(tuple(limits[0]), tuple(limits[1]), "", "", height=2 * HEIGHT)
        rare = places[~np.isin(labels, usual)]
        if len(rare):
            axes.plot(*rare.T, "o", color=_OTHERS, markersize=4, label="others")
        for colour, kind in zip(_KINDS, usual, strict=False):
            chosen = np.flatnonzero(labels == kind)
            axes.plot(*places[chosen].T, "o", color=colour, markersize=4, alpha=0.7, label=kind)
            for point in chosen[: _TOLD if titles else 0].tolist():
                axes.plot(*places[point], "o", color=colour, markersize=4, gid=f"tip:{titles[point]}")
        if kinds:
            # Below, where a narrow screen shows it.
            axes.legend(loc="upper left", bbox_to_anchor=(0, -0.08), ncols=3, frameon=False, markerscale=1.5)
            axes.set_position((0.06, 0.22, 0.93, 0.76))
        return picture(axes.figure, label, note)


def _axes(
    x: tuple[float, float],
    y: tuple[float, float],
    x_label: str,
    y_label: str,
    *,
    time: bool = False,
    height: int = HEIGHT,
) -> Any:
    """The axes of a new figure, which spans x and y; times are written at five places."""
    from matplotlib.figure import Figure

    low, high = x[0], x[1] if x[1] > x[0] else x[0] + 1.0
    figure = Figure(figsize=(WIDTH / 72, height / 72))
    inner = (LEFT, BOTTOM, WIDTH - LEFT - RIGHT, height - TOP - BOTTOM)
    axes = figure.add_axes(tuple(np.divide(inner, (WIDTH, height, WIDTH, height))))
    axes.set(xlim=(low, high), ylim=y)
    axes.set_xlabel(x_label, loc="right")
    axes.set_ylabel(y_label, loc="bottom")
    axes.locator_params(nbins=5)
    axes.xaxis.set_major_formatter(_number)
    axes.yaxis.set_major_formatter(_number)
    if time:
        moments = np.linspace(low, high, 6)[:-1]
        axes.set_xticks(moments, [_moment(moment, high - low) for moment in moments], ha="left")
    return axes


def _number(value: float, _: object) -> str:
    """A number at an axis; the second argument is the place, which matplotlib passes, too."""
    return f"{value:,.0f}" if value == round(value) else f"{value:.4g}"


def _moment(seconds: float, width: float) -> str:
    """A time in UTC, as finely as an axis of `width` seconds needs it."""
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError):
        return f"{seconds:.4g} s"
    return moment.strftime("%Y-%m-%d" if width > 5 * 86400 else "%m-%d %H:%M" if width > 600 else "%H:%M:%S")
