"""One HTML file that shows results: no other file, nothing from elsewhere, everything from data escaped."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import jinja2
import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from seqmlm.engine.durable import replace_file
from seqmlm.errors import StateError, printable
from seqmlm.reports import drawing
from seqmlm.reports.drawing import SCALE, coloured_text, legend

Cell = str | int | float | bool | None
"""What stands in a table; None and NaN are shown as a dash."""

MOST_ROWS = 500
"""Rows of a table that are shown."""

MOST_UNITS = 20_000
"""Coloured units of a page that can be pointed at; those after them are plain text."""

MOST_CHARACTERS = 200_000
"""Characters of one coloured text that are shown."""


@dataclass(frozen=True, slots=True)
class _Part:
    number: int
    heading: str
    body: Markup


class Page:
    """A report in the making; parts are shown in the order they are added.

    A page works without a network, without scripts (they only sort, filter and tell what is pointed at), in
    light and dark, on a phone and with the keyboard alone. Its size is bounded: what is left out is said.

    Args:
        title, subtitle: of the page.

    >>> page = Page("Scores", "two records")
    >>> page.section("What it says", "a < b")
    >>> "a &lt; b" in page.html()
    True
    """

    def __init__(self, title: str, subtitle: str = "") -> None:
        self._title, self._subtitle = title, subtitle
        self._parts: list[_Part] = []
        self._units = 0

    def section(self, heading: str, html_or_text: Markup | str) -> None:
        """Add text, a paragraph for each piece between empty lines; `Markup` is taken as HTML."""
        if isinstance(html_or_text, Markup):
            self._add(heading, html_or_text)
        else:
            pieces = (piece.strip() for piece in html_or_text.split("\n\n"))
            self._add(heading, Markup("").join(Markup("<p>{}</p>").format(piece) for piece in pieces))

    def warnings(self, sentences: Sequence[str]) -> None:
        """Add what has to be known before anything else is believed."""
        inner = Markup("").join(Markup("<li>{}</li>").format(one) for one in sentences)
        self._add("", Markup('<ul class="warnings">{}</ul>').format(inner))

    def cards(self, values: Mapping[str, Cell]) -> None:
        """Add the figures that matter most, each with its name."""
        card = Markup('<dl class="card"><dt>{}</dt><dd>{}</dd></dl>')
        inner = Markup("").join(card.format(name, _told(value)) for name, value in values.items())
        self._add("", Markup('<div class="cards">{}</div>').format(inner))

    def table(self, heading: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Add a table that can be sorted and, when long, filtered; the first `MOST_ROWS` rows are shown.

        Args:
            heading: of the part.
            columns: names.
            rows: each as long as `columns`.
        """
        given = [tuple(row) for row in rows]
        shown = given[:MOST_ROWS]
        numeric = [_numeric([row[place] for row in shown]) for place in range(len(columns))]
        name = f"table-{len(self._parts)}"
        body = (
            _environment()
            .from_string(_resource("table.html.jinja"))
            .render(
                name=name,
                columns=list(zip(columns, numeric, strict=True)),
                rows=[[(_told(cell), _sortable(cell)) for cell in row] for row in shown],
                numeric=numeric,
                left_out=len(given) - len(shown),
            )
        )
        self._add(heading, Markup(body))

    def coloured(
        self,
        heading: str,
        text: str,
        spans: Sequence[tuple[int, int]],
        bits: NDArray[np.float64],
        titles: Sequence[str] = (),
        *,
        scale: float = SCALE,
        note: str = "",
    ) -> None:
        """Add a text whose spans lie on the colour of their surprisal.

        Args:
            heading: of the part.
            text: what the spans point into.
            spans: (N,) half-open, ascending by start.
            bits: (N,) surprisals; NaN has no colour.
            titles: (N,) what is told of a span when it is pointed at, or none.
            scale: bits of the strongest colour.
            note: a line above the text.
        """
        room = max(0, MOST_UNITS - self._units)
        kept = min(sum(end <= MOST_CHARACTERS for _, end in spans), room)
        self._units += kept
        shown = coloured_text(text[:MOST_CHARACTERS], spans[:kept], bits[:kept], titles[:kept], scale)
        notes = [note] if note else []
        if kept < len(spans):
            notes.append(f"{kept:,} of {len(spans):,} units are coloured")
        if len(text) > MOST_CHARACTERS:
            notes.append(f"{MOST_CHARACTERS:,} of {len(text):,} characters are shown")
        told = Markup('<p class="note">{}</p>').format("; ".join(notes)) if notes else Markup("")
        held = Markup('<div class="coloured" data-walk tabindex="0" role="group" aria-label="{}">{}</div>')
        self._add(heading, told + legend(scale) + held.format(heading, shown))

    def track(
        self,
        heading: str,
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        values: NDArray[np.float64],
        alarms: NDArray[np.bool_] | None = None,
        *,
        threshold: float | None = None,
        x_label: str = "position",
        y_label: str = "score, bits",
        note: str = "",
        first: int = 0,
    ) -> None:
        """Add a value along a sequence, alarmed stretches shaded; see `drawing.track`."""
        drawn = drawing.track(
            starts, ends, values, alarms, threshold=threshold, x_label=x_label, y_label=y_label, first=first
        )
        self._figure(heading, drawn, note, len(starts))

    def timeline(
        self,
        heading: str,
        times: NDArray[np.float64],
        scores: NDArray[np.float64],
        alarms: NDArray[np.bool_] | None = None,
        titles: Sequence[str] = (),
        *,
        threshold: float | None = None,
        period: tuple[float, float] | None = None,
        y_label: str = "score, bits",
        note: str = "",
    ) -> None:
        """Add scores as points in time (seconds since 1970 UTC); see `drawing.timeline`."""
        drawn = drawing.timeline(
            times, scores, alarms, titles, threshold=threshold, period=period, y_label=y_label
        )
        self._figure(heading, drawn, note, len(times))

    def histogram(
        self,
        heading: str,
        counts: NDArray[np.int64],
        edges: NDArray[np.float64],
        *,
        threshold: float | None = None,
        expected: float | None = None,
        x_label: str = "score, bits",
        note: str = "",
    ) -> None:
        """Add how many rows have which score; see `drawing.histogram`."""
        drawn = drawing.histogram(counts, edges, threshold=threshold, expected=expected, x_label=x_label)
        self._figure(heading, drawn, note)

    def activity(
        self,
        heading: str,
        edges: NDArray[np.float64],
        rows: NDArray[np.int64],
        alarms: NDArray[np.int64] | None,
        *,
        note: str = "",
    ) -> None:
        """Add how many rows, and alarms among them, there were when; see `drawing.activity`."""
        self._figure(heading, drawing.activity(edges, rows, alarms), note)

    def bars(
        self, heading: str, bars: Sequence[drawing.Bar], begin: float, end: float, *, note: str = ""
    ) -> None:
        """Add what lasted from when to when; see `drawing.bars`."""
        self._figure(heading, drawing.bars(bars, begin, end), note)

    def facts(self, heading: str, values: Mapping[str, Cell]) -> None:
        """Add what is known of one thing, a line each; what is None or "" is left out."""
        line = Markup("<dt>{}</dt><dd>{}</dd>")
        told = ((name, value) for name, value in values.items() if value not in (None, ""))
        inner = Markup("").join(line.format(name, _told(value)) for name, value in told)
        self._add(heading, Markup('<dl class="facts">{}</dl>').format(inner))

    def heat(
        self,
        heading: str,
        bits: NDArray[np.float64],
        titles: Sequence[str] = (),
        *,
        scale: float = SCALE,
        note: str = "",
    ) -> None:
        """Add a line of cells coloured by surprisal, one a unit; see `drawing.heat`."""
        drawn = drawing.heat(bits, titles, scale=scale)
        self._figure(heading, legend(scale) + drawn, note, len(bits))

    def grid(
        self,
        heading: str,
        bits: NDArray[np.float64],
        letters: Sequence[str],
        columns: Sequence[str],
        names: Sequence[str],
        *,
        scale: float = SCALE,
        note: str = "",
    ) -> None:
        """Add cells in rows and columns, coloured by bits; see `drawing.grid`."""
        drawn = drawing.grid(bits, letters, columns, names, scale=scale)
        left_out = f"the first {drawing.MOST_COLUMNS:,} of {len(bits):,} columns are drawn"
        told = [part for part in (note, left_out if len(bits) > drawing.MOST_COLUMNS else "") if part]
        self._figure(heading, legend(scale) + drawn, "; ".join(told))

    def matrix(
        self,
        heading: str,
        values: NDArray[np.float64],
        names: Sequence[str],
        found: Set[tuple[int, int]] = frozenset(),
        known: Set[tuple[int, int]] = frozenset(),
        *,
        scale: float,
        unit: str = "bits",
        note: str = "",
    ) -> None:
        """Add values of pairs, and which of them were found and are known; see `drawing.matrix`."""
        drawn = drawing.matrix(values, names, found, known, scale=scale)
        blocks = f"highest of each block of units; {drawing.MOST_BLOCKS} blocks"
        told = [part for part in (note, blocks if len(values) > drawing.MOST_BLOCKS else "") if part]
        self._figure(heading, legend(scale, unit) + drawn, "; ".join(told))

    def html(self) -> str:
        """The whole file; control characters, and what turns the direction of text, are shown as escapes."""
        style, script = _resource("style.css"), _resource("script.js")
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        made = (
            _environment()
            .from_string(_resource("page.html.jinja"))
            .render(
                title=self._title,
                subtitle=self._subtitle,
                parts=self._parts,
                style=Markup(style),
                script=Markup(script),
                script_hash=Markup(f"sha256-{digest}"),
            )
        )
        return printable(made, lines=True)

    def write(self, path: Path, private: bool = False) -> None:
        """Write the file, whole or not at all.

        Args:
            path: replaced if there; its folder is made.
            private: only the owner may read it.

        Raises:
            StateError: it cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, self.html().encode(), mode=0o600 if private else 0o666)
        except OSError as error:
            raise StateError(
                f"cannot write the report {path}: {error.strerror}; free space or name another file"
            ) from None

    def _figure(self, heading: str, drawn: Markup, note: str, points: int = 0) -> None:
        most = drawing.MOST_POINTS
        thinned = f"highest of each of {most:,} columns" if points > most else ""
        caption = "; ".join(part for part in (note, thinned) if part)
        told = Markup("<figcaption>{}</figcaption>").format(caption) if caption else Markup("")
        self._add(heading, Markup("<figure>{}{}</figure>").format(drawn, told))

    def _add(self, heading: str, body: Markup) -> None:
        self._parts.append(_Part(len(self._parts), heading, body))


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)


@cache
def _resource(name: str) -> str:
    return files("seqmlm.reports").joinpath(name).read_text(encoding="utf-8")


def _numeric(cells: Sequence[Cell]) -> bool:
    present = [cell for cell in cells if cell is not None]
    return bool(present) and all(isinstance(c, (int, float)) and not isinstance(c, bool) for c in present)


def _told(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def _sortable(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, float) and math.isinf(cell):
        return "Infinity" if cell > 0 else "-Infinity"
    return str(cell)
