"""What a page draws: text and cells on the colour of their surprisal (HTML), axes with matplotlib (SVG)."""

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

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]

_HALF = 0.5  # from a 0-based edge of a unit to where its axis has it: position 1 is centred at 1

STEPS = 8
"""Classes s1 to s8 of the style sheet, steps of equal lightness difference; s0 has no colour."""

SCALE = 12.0
"""Bits from which on the colour is the strongest: an outcome of one in four thousand."""


def steps(bits: Doubles, scale: float = SCALE, signed: bool = False) -> Longs:
    """(N,) the step, 0 to 8, of each surprisal: linear in bits, so that a step is the same factor of p.

    A NaN, which says nothing, has step 0; from `scale` bits on it is the last one. Where they are signed,
    values below 0 have steps down to -8; else they have 0.

    >>> steps(np.array([0.0, 1.0, 6.0, 50.0, np.nan])).tolist()
    [0, 0, 4, 8, 0]
    >>> steps(np.array([-1.0, -6.0, 6.0]), signed=True).tolist()
    [0, -4, 4]
    """
    values = np.nan_to_num(np.asarray(bits, dtype=np.float64), nan=0.0, posinf=scale, neginf=-scale)
    return np.trunc(np.clip(values / scale, -1.0 if signed else 0.0, 1.0) * STEPS).astype(np.int64)


def fitted_scale(values: ArrayLike, within: float = 0.98) -> float:
    """A scale of colours that fits some values: eight steps of two digits.

    Args:
        values: of either sign; those that are no finite number are left out.
        within: share of them that is not beyond the strongest colour, about.

    >>> fitted_scale([*range(-99, 100)]), fitted_scale([0.03, -0.01]), fitted_scale([])
    (96.0, 0.0296, 1.0)
    """
    sizes = np.abs(np.asarray(values, dtype=np.float64).ravel())
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    if not len(sizes):
        return 1.0
    step = float(np.quantile(sizes, within)) / STEPS
    return float(f"{STEPS * float(f'{step:.2g}'):.6g}")


def surprisal_scale(bits: Doubles) -> float:
    """A scale of colours for surprisals: what one unit in two hundred reaches, as 4, 8, 12 or 16 bits.

    >>> surprisal_scale(np.array([0.5, 4.1])), surprisal_scale(np.array([40.0, np.nan]))
    (8.0, 16.0)
    """
    finite = bits[np.isfinite(bits)]
    return float(np.clip(4 * np.ceil(np.quantile(finite, 0.995) / 4), 4, 16)) if len(finite) else 4.0


def colour(step: int) -> str:
    """The class of the style sheet of a step: s1 to s8 above 0, u1 to u8 below."""
    return f"s{step}" if step >= 0 else f"u{-step}"


def legend(scale: float = SCALE, unit: str = "bits", signed: bool = False) -> Markup:
    """What each colour means."""
    each = range(2, STEPS + 1, 2) if signed else range(1, STEPS + 1)
    mark = Markup('<i class="{}">{:g}</i>')
    shown = [*(range(-STEPS, 0, 2) if signed else ()), *each]
    marks = Markup("").join(mark.format(colour(step), scale * step / STEPS) for step in shown)
    told = unit if signed else f"{unit} and more"
    return Markup('<p class="legend" aria-label="colour scale">{}:&nbsp;{}</p>').format(told, marks)


def coloured_text(
    text: str,
    spans: Sequence[tuple[int, int]],
    bits: Doubles,
    titles: Sequence[str],
    scale: float = SCALE,
    signed: bool = False,
) -> Markup:
    """The text with each span on its colour; what is between spans stays plain.

    Args:
        text: what the spans point into.
        spans: (N,) half-open, ascending by start; one that begins inside another begins where that ends.
        bits: (N,) surprisals.
        titles: (N,) what is told of a span when it is pointed at, or none for no span.
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
def styled() -> Iterator[None]:
    """What is drawn and made a `picture` inside has the style of a page."""
    import matplotlib

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the reader's font may have it
        yield


def picture(figure: Any, label: str, *notes: str) -> Markup:
    """A matplotlib figure as SVG inside a page.

    What the gid of an artist says behind "tip:" is told where the artist is pointed at; `label` says what the
    figure is to those who do not see it, and notes stand below it.
    """
    file, tips = io.StringIO(), count()
    figure.savefig(
        file, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
    )

    def part(found: re.Match[str]) -> str:
        name = unescape(found[1][1:-1])
        if not name.startswith("tip:"):
            return "<g>"  # a number that other pictures of the page have, too
        return Markup('<g data-tip="{}" tabindex="{}">').format(name[4:], -1 if next(tips) else 0)

    svg = file.getvalue()
    inner = svg[svg.index('<g id="figure_1">') :]  # without the declarations of a file of its own
    drawn = Markup(re.sub(r"""<g id=("[^"]*"|'[^']*')>""", part, inner))
    width, height = (72 * inches for inches in figure.get_size_inches())
    whole = '<div class="wide" data-walk><svg viewBox="0 0 {:g} {:g}" role="{}" aria-label="{}">{}</div>'
    role = "group" if next(tips) else "img"
    return captioned(Markup(whole).format(width, height, role, label, drawn), *notes)


def captioned(drawn: Markup, *notes: str) -> Markup:
    """A figure with what has to be said of it below."""
    caption = "; ".join(note for note in notes if note)
    told = Markup("<figcaption>{}</figcaption>").format(caption) if caption else Markup()
    return Markup("<figure>{}{}</figure>").format(drawn, told)


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
        titles: (N,) what lies there, told of a marked stretch that is pointed at, or none.
        x_unit: places of one number of the axis: 1000 for kb.
        below: start, end and name of what is drawn as bars below, in two lanes by turns: genes.
    """
    if not np.isfinite(values).any():
        return _NOTHING
    with styled():
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
            told = f"tip:alarm {span_text(begin, end)}"
            own = dict.fromkeys(compress(titles, marked & (starts < end) & (ends > begin)) if titles else ())
            told += "".join(f"; {one}" for one in own if one)
            axes.axvspan(begin + _HALF, end + _HALF, color=_BAND, linewidth=2, gid=told)
        middles = (starts + ends) / 2 + _HALF
        kept = thinned(middles, values)
        axes.plot(middles[kept], np.clip(values[kept], floor, ceiling), color=MARK)
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
    """Scores as points in time.

    Args:
        times: (N,) seconds since 1970 UTC.
        scores: (N,) NaN is left out.
        alarms: (N,) True at points to mark, or None.
        titles: (N,) what is told of a marked point when it is pointed at, or none.
        threshold: drawn as a line.
        period: what the picture spans; None: from the first point to the last.
    """
    marked = np.zeros(len(times), dtype=np.bool_) if alarms is None else alarms
    kept = thinned(times, scores, marked)
    if not len(kept):
        return _NOTHING
    with styled():
        floor, ceiling = _range(scores[kept], threshold)
        span = period or (float(times[kept].min()), float(times[kept].max()))
        axes = _axes(span, (floor, ceiling), "time, UTC", y_label, time=True)
        heights, usual = np.clip(scores, floor, ceiling), kept[~marked[kept]]
        axes.plot(times[usual], heights[usual], "o", color=MARK, alpha=0.75, clip_on=False)
        for one in kept[marked[kept]].tolist():
            tip = f"tip:{titles[one]}" if titles else None
            axes.plot(times[one], heights[one], "o", color=_ALARM, clip_on=False, gid=tip)
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
    """How many rows have which score: (B,) counts between (B + 1,) ascending edges; `expected`, rows that
    each bin should have, is a level line."""
    if not counts.any():
        return _NOTHING
    with styled():
        most = max(float(counts.max(initial=1)), expected or 0.0)
        axes = _axes((edges[0], edges[-1]), (0.0, most), x_label, "rows")
        heights = np.where(counts > 0, np.maximum(counts, _LEAST * most), 0)
        axes.stairs(heights, edges, fill=True, color=MARK)
        if expected is not None:
            axes.axhline(expected, **THRESHOLD)
        return picture(axes.figure, "rows by score", note)


def tails(counts: Longs, per_ten: int, alpha: float | None = None) -> Markup:
    """How many rows have which p-value, on scales of logarithms, beside how many would if all were normal.

    Args:
        counts: (B,) rows by -log10 p, from 0 on; the last has all that are smaller.
        per_ten: bins of a factor of ten.
        alpha: the p-value up to which a row raises an alarm, drawn as an upright line.
    """
    if not counts.any():
        return _NOTHING
    last = int(np.flatnonzero(counts).max(initial=0)) + 1
    least = 0 if alpha is None else math.ceil(-math.log10(alpha) * per_ten)
    edges = np.arange(max(last, least + 2, 2 * per_ten) + 1) / per_ten
    shown = np.pad(counts[: len(edges) - 1], (0, max(0, len(edges) - 1 - len(counts))))
    usual = counts.sum() * -np.diff(10.0**-edges)
    most = 2.0 * max(shown.max(), 1.0)
    ticks = np.outer(10.0 ** np.arange(math.floor(math.log10(most)) + 1), (1, 2, 5) if most < 100 else (1,))
    with styled():
        axes = _axes((0.0, edges[-1]), (0.5, most), "p-value", "rows")
        axes.set_yscale("log")
        axes.set_yticks(ticks[ticks <= most])
        axes.yaxis.set_major_formatter(_number)
        axes.minorticks_off()
        axes.stairs(shown, edges, fill=True, color=MARK, label="rows", baseline=0.1)
        axes.stairs(usual, edges, baseline=None, color=_OTHERS, label="if all were normal")
        whole = np.arange(int(edges[-1]) + 1)
        axes.set_xticks(whole, [f"{10.0**-one:.12f}".rstrip("0").rstrip(".") for one in whole])
        if alpha is not None:
            axes.axvline(-math.log10(alpha), label=f"alarm from p {alpha:.3g} on", **THRESHOLD)
        axes.set_position((0.08, 0.18, 0.9, 0.68))  # the legend is above, where a narrow screen shows it
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)
        return picture(axes.figure, "rows by p-value", "further right is more unusual")


def activity(edges: Doubles, rows: Longs, alarms: Longs | None, *, note: str = "") -> Markup:
    """How many rows (B,) there were when, and alarms among them, if these are drawn; between (B + 1,)
    ascending seconds since 1970 UTC."""
    if not rows.any():
        return _NOTHING
    most = float(rows.max(initial=1))
    with styled():
        axes = _axes((edges[0], edges[-1]), (0.0, most), "time, UTC", "rows", time=True)
        for colour, counts in ((MARK, rows), (_ALARM, rows[:0] if alarms is None else alarms)):
            for number in np.flatnonzero(counts).tolist():
                low, width = edges[number], edges[number + 1] - edges[number]
                told = f"tip:{_moment(low, width)} to {_moment(low + width, width)}: "
                told += number_of(int(rows[number]), "row")
                told += "" if alarms is None else f", {number_of(int(alarms[number]), 'alarm')}"
                height = max(counts[number], _LEAST * most)
                axes.bar(low, height, 0.97 * width, align="edge", color=colour, gid=told)
        return picture(axes.figure, "rows in time", note)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """What lasted for a while, in seconds since 1970 UTC.

    Args:
        label: shown above it, cut where there is no room.
        tip: told where it is pointed at.
        over: False: it may go on behind its end.
    """

    begin: float
    end: float
    label: str
    tip: str
    over: bool = True


_LANE, _LETTERS = 30, 70  # height of a bar with its label; characters of a label


def bars(given: Sequence[Bar], begin: float, end: float, *, note: str = "") -> Markup:
    """What lasted from when to when, a line each from the top, cut off at two times."""
    if not given:
        return _NOTHING
    height = TOP + _LANE * len(given) + BOTTOM
    with styled():
        axes = _axes((begin, end), (len(given), 0.0), "time, UTC", "", time=True, height=height)
        axes.set_yticks([])
        least = 0.004 * (end - begin)  # what was over at once is seen, too
        for lane, one in enumerate(given):
            left = min(max(one.begin, begin), end - least)
            right = max(min(one.end, end), left + least)
            shape = {"color": _ALARM, "alpha": 1 if one.over else 0.55, "gid": f"tip:{one.tip}"}
            axes.barh(lane + 0.75, right - left, 0.4, left, **shape)
            label = " ".join(one.label.split())
            label = label if len(label) <= _LETTERS else f"{label[: _LETTERS - 1]}…"
            place, side = (left, "left") if left + right <= begin + end else (right, "right")
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
        names: C * R what is told of a cell when it is pointed at, column after column.
        scale: of the strongest colour (`fitted_scale`).
    """
    if not np.isfinite(losses).any():
        return _NOTHING
    paint = np.array([colour(step) for step in range(-STEPS, STEPS + 1)])
    kinds = np.where(np.isnan(losses), "band", paint[steps(losses, scale, signed=True) + STEPS]).tolist()
    shown, size = min(len(losses), MOST_COLUMNS), len(letters)
    drawn = legend(-scale, "effect, nats", signed=True)
    for begin in range(0, shown, _BLOCK):
        block = range(begin, min(begin + _BLOCK, shown))
        heads = ["", *(columns[column] if column % 10 == 0 else "" for column in block)]
        rows = [
            (letter, [(kinds[column][row], names[column * size + row]) for column in block])
            for row, letter in enumerate(letters)
        ]
        drawn += _cells("grid", f"columns {columns[block[0]]} to {columns[block[-1]]}", heads, rows)
    left_out = f"the first {MOST_COLUMNS:,} of {len(losses):,} columns are drawn"
    return captioned(drawn, note, left_out if len(losses) > shown else "")


MOST_BLOCKS = 64
"""Rows and columns of a matrix; of more units the highest of each block of them is drawn."""

_Cell = tuple[str, str]  # class of the style sheet, what is told of it


def matrix(
    values: Doubles,
    names: Sequence[str],
    found: Set[tuple[int, int]] = frozenset(),
    known: Set[tuple[int, int]] = frozenset(),
    *,
    scale: float,
    unit: str = "bits",
    note: str = "",
) -> Markup:
    """Pairs of N units: values above the diagonal; below it what was found, what is known, and what is both.

    Args:
        values: (N, N) on the scale of the colours, above 0 to `scale`; NaN for no value.
        names: N of them, of the units.
        found, known: pairs of units, the smaller first; darkest where both, palest where known alone.
    """
    if not len(values) or not (found or known or np.nanmax(values, initial=0.0) > 0):
        return _NOTHING
    size = min(len(values), MOST_BLOCKS)
    cuts = np.linspace(0, len(values), size + 1).astype(np.int64)
    owner = np.repeat(np.arange(size), np.diff(cuts))
    blocks = pairwise(cuts.tolist())
    labels = [f"{span_text(a, b)} {names[a]}" if b == a + 1 else span_text(a, b) for a, b in blocks]
    highest = np.fmax.reduceat(np.fmax.reduceat(values, cuts[:-1], axis=0), cuts[:-1], axis=1)
    shades = np.triu(steps(highest, scale))
    told = [[("s0", "")] * size for _ in range(size)]
    for i, j in np.argwhere(shades).tolist():
        told[i][j] = (f"s{shades[i, j]}", f"{labels[i]}, {labels[j]}: {highest[i, j]:.3g}")
    edges = [{(int(owner[j]), int(owner[i])) for i, j in pairs} for pairs in (found, known)]
    for i, j in edges[0] | edges[1]:
        own = [(i, j) in kind for kind in edges]
        told[i][j] = (f"s{5 * own[0] + 3 * own[1]}", " and ".join(compress(("found", "known"), own)))
    left_out = f"highest of each block of units; {MOST_BLOCKS} blocks" if len(values) > size else ""
    rows = [(label[:18], row) for label, row in zip(labels, told, strict=True)]
    heads = ["", *(label.partition(" ")[0] if at % 5 == 0 else "" for at, label in enumerate(labels))]
    kinds = Markup("").join(_PAIRS if known else _PAIRS[:1])
    drawn = legend(scale, f"above the diagonal, {unit}") + kinds + Markup("</p>")
    return captioned(drawn + _cells("matrix", "values of pairs", heads, rows), note, left_out)


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
    whole = '<div class="wide"><div class="cells {}" style="--n:{}" {}>{}</div></div>'
    role = Markup('data-walk role="group" aria-label="{}"').format(label)
    return Markup(whole).format(kind, len(rows[0][1]) if rows else 1, role, Markup().join(parts))


# Where points come to lie.


def thinned(places: ArrayLike, values: Doubles, marked: Bools | None = None) -> Longs:
    """Indices of at most `MOST_POINTS` points: of each column the highest, and a marked one (N,) before
    others.

    What has no finite place or a NaN as value (N,) is left out.
    """
    at = np.asarray(places, dtype=np.float64)
    kept = np.flatnonzero(np.isfinite(at) & ~np.isnan(values))
    if len(kept) <= MOST_POINTS:
        return kept
    share = (at[kept] - at[kept].min()) / (np.ptp(at[kept]) or 1.0)
    column = np.minimum((share * MOST_POINTS).astype(np.int64), MOST_POINTS - 1)
    order = np.lexsort((values[kept], np.zeros(len(kept)) if marked is None else marked[kept], column))
    last = np.append(np.flatnonzero(np.diff(column[order])), len(order) - 1)
    return np.asarray(kept[order][last], dtype=np.int64)


def _left_out(points: int) -> str:
    return f"highest of each of {MOST_POINTS:,} columns" if points > MOST_POINTS else ""


def _range(values: Doubles, threshold: float | None = None) -> tuple[float, float]:
    """Lowest and highest of an axis: 0 or less, and the highest finite value."""
    finite = [0.0, *values[np.isfinite(values)].tolist(), *([] if threshold is None else [threshold])]
    floor, ceiling = min(finite), max(finite)
    return floor, ceiling if ceiling > floor else floor + 1.0


def _bands(starts: Longs, ends: Longs, least: float) -> list[list[int]]:
    """Alarmed stretches; overlapping ones are one, and so are those at most `least` apart."""
    merged: list[list[int]] = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if merged and start <= merged[-1][1] + least:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def scatter(
    places: Doubles, kinds: Sequence[str] = (), titles: Sequence[str] = (), *, label: str, note: str = ""
) -> Markup:
    """Points (N, 2) in a plane, coloured by what they are: the most frequent kinds each, all others alike;
    what is told of each where it is pointed at, or none."""
    if not len(places):
        return _NOTHING
    own = np.array(kinds or [""] * len(places))
    usual = [kind for kind, _ in Counter(own.tolist()).most_common(len(_KINDS))]
    spread = np.ptp(places, axis=0) * 0.04
    with styled():
        limits = np.stack([places.min(0) - spread, places.max(0) + spread], axis=1)
        axes = _axes(tuple(limits[0]), tuple(limits[1]), "", "", height=2 * HEIGHT)
        others = places[~np.isin(own, usual)]
        if len(others):
            axes.plot(*others.T, "o", color=_OTHERS, markersize=4, label="others")
        for colour, kind in zip(_KINDS, usual, strict=False):
            chosen = np.flatnonzero(own == kind)
            axes.plot(*places[chosen].T, "o", color=colour, markersize=4, alpha=0.7, label=kind)
            for one in chosen[: _TOLD if titles else 0].tolist():
                axes.plot(*places[one], "o", color=colour, markersize=4, gid=f"tip:{titles[one]}")
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
    """The axes of a new figure, which spans x and y; times are told at five places."""
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
        axes.set_xticks(moments, [_moment(one, high - low) for one in moments], ha="left")
    return axes


def _number(value: float, _: object) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:.4g}"


def _moment(seconds: float, width: float) -> str:
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError):
        return f"{seconds:.4g} s"
    return moment.strftime("%Y-%m-%d" if width > 5 * 86400 else "%m-%d %H:%M" if width > 600 else "%H:%M:%S")
