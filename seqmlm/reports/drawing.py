"""Drawings for a page: text and cells coloured by surprisal (HTML), and plots with matplotlib (SVG)."""

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

_HALF = 0.5  # offset from a 0-based edge of a unit to its place on an axis: position 1 is centred at 1


def colour(step: int) -> str:
    """The CSS class of a colour step: s1 to s8 above 0, u1 to u8 below 0."""
    return f"s{step}" if step >= 0 else f"u{-step}"


def legend(scale: float = SCALE, unit: str = "bits", signed: bool = False) -> Markup:
    """A legend line that explains the colours, as HTML."""
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
    """A text with coloured spans, as HTML. Letters between spans stay plain.

    Args:
        text: the text.
        spans: (N,) half-open spans of the text, ascending by start. A span that begins inside the previous
            one is cut to begin at its end.
        bits: (N,) surprisals.
        titles: (N,) tooltips of the spans, or empty for no tooltips.
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


# Pictures. Each is an HTML figure with a caption. The page shows tooltips of its parts. A picture without
# data is empty, so that the page adds no section for it.

MOST_POINTS = 1000
"""Maximum points of a picture. From more points, the highest point of each column is drawn."""

WIDTH, HEIGHT = 1000, 220  # size of a picture in points
LEFT, RIGHT, TOP, BOTTOM = 80, 12, 10, 38  # margins around the axes

MARK, _ALARM, _BAND = "#2f5ea8", "#c62a1c", "#f6c4bd"  # in dark mode the style sheet inverts figures
_KINDS = (MARK, "#c62a1c", "#2e8540", "#b8860b", "#7b3fa0", "#008b8b")
_OTHERS, _TOLD = "#9aa0a8", 60  # colour of rare kinds; points of a kind that have a tooltip
_LEAST = 0.01  # minimum height of a bar as a share of the plot, so that single rows are visible
THRESHOLD: dict[str, Any] = {"color": _ALARM, "linestyle": (0, (4, 3)), "linewidth": 1}
_NOTHING = Markup()
_STYLE = {
    "svg.hashsalt": "seqmlm",  # the same ids in every run
    "svg.fonttype": "none",  # use the reader's fonts
    "text.parse_math": False,  # a dollar sign does not begin a formula
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 7,
}


@contextmanager
def page_style() -> Iterator[None]:
    """A context for drawing figures, and converting them with `picture`, in the style of a page."""
    import matplotlib

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph .* missing from font"
        )  # the reader's font may have the glyph
        yield


def picture(figure: Any, label: str, *notes: str) -> Markup:
    """A matplotlib figure as SVG for a page.

    If the gid of an artist begins with "tip:", the rest of it becomes a tooltip.

    Args:
        figure: the figure.
        label: description of the figure for screen readers.
        notes: texts for the caption below the figure.
    """
    file, tips = io.StringIO(), count()
    figure.savefig(
        file, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
    )

    def tip_group(match: re.Match[str]) -> str:
        """The opening tag of an SVG group, with its tooltip if its id has one."""
        name = unescape(match[1][1:-1])
        if not name.startswith("tip:"):
            return "<g>"  # drop the id, because other pictures of the page have the same ones
        return Markup('<g data-tip="{}" tabindex="{}">').format(name[4:], -1 if next(tips) else 0)

    svg = file.getvalue()
    inner = svg[svg.index('<g id="figure_1">') :]  # without the declarations of an SVG file
    body = Markup(re.sub(r"""<g id=("[^"]*"|'[^']*')>""", tip_group, inner))
    width, height = (72 * inches for inches in figure.get_size_inches())
    frame = '<div class="wide" data-walk><svg viewBox="0 0 {:g} {:g}" role="{}" aria-label="{}">{}</div>'
    role = "group" if next(tips) else "img"
    return with_caption(Markup(frame).format(width, height, role, label, body), *notes)


def with_caption(body: Markup, *notes: str) -> Markup:
    """A figure with its notes as a caption, as HTML."""
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
    """A plot of values along a sequence, with alarms shaded. The axis and tooltips count positions from 1.

    Args:
        starts, ends: (N,) half-open places, ascending by start. They may overlap.
        values: (N,) values, NaN for missing ones.
        alarms: (N,) True at places to mark, or None.
        titles: (N,) names of the places for tooltips of marked places, or empty.
        x_unit: number of places per unit of the axis, such as 1000 for kb.
        below: start, end and name of bars below the plot, such as genes, alternating between two lanes.
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
    """A plot of scores as points in time.

    Args:
        times: (N,) seconds since 1970 UTC.
        scores: (N,) scores. NaN is left out.
        alarms: (N,) True at points to mark, or None.
        titles: (N,) tooltips of the marked points, or empty.
        threshold: a value to draw as a line.
        period: first and last time of the axis. None: from the first to the last point.
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
    """A histogram of rows by score.

    Args:
        counts: (B,) numbers of rows.
        edges: (B + 1,) ascending edges of the bins.
        expected: expected rows per bin, drawn as a horizontal line.
    """
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
    """A histogram of rows by p-value on logarithmic scales, with the numbers expected for normal rows.

    Args:
        counts: (B,) numbers of rows by -log10 p, beginning at 0. The last bin has all smaller p-values.
        per_ten: number of bins for a factor of ten.
        alpha: the largest p-value that raises an alarm, drawn as a vertical line.
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
            axes.axvline(-math.log10(alpha), label=f"alarms: p {alpha:.3g} or less", **THRESHOLD)
        axes.set_position((0.08, 0.18, 0.9, 0.68))  # the legend is above, so narrow screens show it
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)
        return picture(axes.figure, "rows by p-value", "rows on the right are more unusual")


def activity(edges: Doubles, rows: Longs, alarms: Longs | None, *, note: str = "") -> Markup:
    """A bar chart of rows in time, and of the alarms among them.

    Args:
        edges: (B + 1,) ascending edges of the bins, in seconds since 1970 UTC.
        rows: (B,) numbers of rows.
        alarms: (B,) numbers of alarms, or None to draw only rows.
    """
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
    """An event with a duration.

    Args:
        begin, end: seconds since 1970 UTC.
        label: text above the bar, shortened if necessary.
        tip: tooltip of the bar.
        over: False if the event may continue after `end`.
    """

    begin: float
    end: float
    label: str
    tip: str
    over: bool = True


_LANE, _LETTERS = 30, 70  # height of a bar with its label; characters of a label


def bars(events: Sequence[Bar], begin: float, end: float, *, note: str = "") -> Markup:
    """A chart of events from `begin` to `end`, one line per event. Bars are cut at the ends of the axis."""
    if not events:
        return _NOTHING
    height = TOP + _LANE * len(events) + BOTTOM
    with page_style():
        axes = _axes((begin, end), (len(events), 0.0), "time, UTC", "", time=True, height=height)
        axes.set_yticks([])
        min_width = 0.004 * (end - begin)  # so that very short events are visible
        for lane, event in enumerate(events):
            start = min(max(event.begin, begin), end - min_width)
            stop = max(min(event.end, end), start + min_width)
            shape = {"color": _ALARM, "alpha": 1 if event.over else 0.55, "gid": f"tip:{event.tip}"}
            axes.barh(lane + 0.75, stop - start, 0.4, start, **shape)
            label = " ".join(event.label.split())
            label = label if len(label) <= _LETTERS else f"{label[: _LETTERS - 1]}…"
            place, side = (start, "left") if start + stop <= begin + end else (stop, "right")
            axes.text(place, lane + 0.5, label, ha=side, va="bottom")
        return picture(axes.figure, "events from begin to end", note)


MOST_COLUMNS = 1000
"""Maximum number of columns of a grid."""

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
    """A grid of cells coloured by loss or gain, in blocks of 50 columns, up to `MOST_COLUMNS` columns.

    Args:
        losses: (C, R) losses in nats. Negative values are gains. NaN cells are shaded.
        letters: names of the R rows.
        columns: labels of the C columns. Every tenth is shown.
        names: C * R tooltips of the cells, column by column.
        scale: value of the strongest colour (`colour_scale`).
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
"""Maximum rows and columns of a matrix. For more units, each cell has the highest value of a block."""

_Cell = tuple[str, str]  # CSS class, tooltip


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
    """A matrix of pairs of N units: values above the diagonal, predicted and true pairs below it.

    Args:
        values: (N, N) values above 0, up to `scale` for the strongest colour. NaN for no value.
        names: names of the N units.
        predicted, truth: pairs of units, the smaller index first. A pair in both has the darkest colour, a
            pair only in `truth` the palest.
        scale: value of the strongest colour.
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
    left_out = (
        f"each cell has the highest value of a block of units; {MOST_BLOCKS} blocks"
        if len(values) > size
        else ""
    )
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
    """Coloured cells with names of rows and columns, as HTML."""
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
    """The indices of at most `MOST_POINTS` points: the highest point of each column of the picture.

    Points without a finite place or value are left out.

    Args:
        places: (N,) places.
        values: (N,) values.
        marked: (N,) True for points that are preferred in their column.
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
    """A note that a picture leaves out points, "" if it shows all."""
    return f"only the highest point of each of {MOST_POINTS:,} columns" if points > MOST_POINTS else ""


def _range(values: Doubles, threshold: float | None = None) -> tuple[float, float]:
    """The lowest (0 or less) and the highest finite value of an axis."""
    finite = [0.0, *values[np.isfinite(values)].tolist(), *([] if threshold is None else [threshold])]
    floor, ceiling = min(finite), max(finite)
    return floor, ceiling if ceiling > floor else floor + 1.0


def _bands(starts: Longs, ends: Longs, min_gap: float) -> list[list[int]]:
    """[start, end] of the bands. Places that overlap or are at most `min_gap` apart are merged."""
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
    """A scatter plot of points, coloured by kind. Rare kinds share one colour.

    Args:
        places: (N, 2) places.
        kinds: (N,) kinds, or empty.
        titles: (N,) tooltips, or empty.
    """
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
            # Put the legend below, so that narrow screens show it.
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
    """The axes of a new figure with the ranges x and y. A time axis has five labels."""
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
    """A number at an axis. matplotlib also passes the place as the second argument."""
    return f"{value:,.0f}" if value == round(value) else f"{value:.4g}"


def _moment(seconds: float, width: float) -> str:
    """A time in UTC, with the precision for an axis of `width` seconds."""
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError):
        return f"{seconds:.4g} s"
    return moment.strftime("%Y-%m-%d" if width > 5 * 86400 else "%m-%d %H:%M" if width > 600 else "%H:%M:%S")
