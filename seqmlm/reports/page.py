"""A self-contained HTML page with results. It loads nothing from elsewhere, and all data are escaped."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec

import jinja2
import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from seqmlm.engine.durable import replace_file
from seqmlm.errors import StateError, printable
from seqmlm.privacy import handling_sensitive_data, sensitive_data
from seqmlm.reports import drawing
from seqmlm.reports.drawing import legend, text_on_colours
from seqmlm.reports.scales import SCALE

Options = ParamSpec("Options")

Cell = str | int | float | bool | None
"""A value in a table. None and NaN are shown as a dash."""

MOST_ROWS = 500
"""Maximum number of rows of a table."""

EXPLAINED = "bits above the entropy of the place; below 0: more expected than average"

LONG = 40
"""A column with a longer cell, in letters, is wide."""

MOST_UNITS = 20_000
"""Maximum number of coloured units of a page. Later units are plain text."""

MOST_CHARACTERS = 200_000
"""Maximum number of characters of one coloured text."""


class _Part(NamedTuple):
    number: int
    heading: str
    body: Markup


def _picture_method(draw: Callable[Options, Markup]) -> Callable[Concatenate[Page, str, Options], None]:
    """A method of `Page` that adds a picture under a heading."""

    def add(page: Page, heading: str, /, *args: Options.args, **options: Options.kwargs) -> None:
        page.section(heading, draw(*args, **options))

    add.__doc__ = draw.__doc__
    return add


class Page:
    """Builds a report. Parts are shown in the order in which they are added.

    A page works without a network and without scripts, which only sort, filter and show tooltips. It supports
    light and dark mode, phones, and use with only the keyboard. Its size is limited, and it tells what it
    leaves out.

    Args:
        title: title of the page.
        lead: main result in a sentence.
        sensitive: whether the page is about sensitive data. None: whether the process handles such data now.

    >>> page = Page("Scores", "two records")
    >>> page.section("What it says", "a < b")
    >>> "a &lt; b" in page.html()
    True
    """

    def __init__(self, title: str, lead: str = "", *, sensitive: bool | None = None) -> None:
        self._title, self._lead = title, lead
        self._sensitive = sensitive_data() if sensitive is None else sensitive
        self._warnings: list[str] = []
        self._head: dict[str, Cell] = {}
        self._parts: list[_Part] = []
        self._units = 0

    def section(self, heading: str, html_or_text: Markup | str) -> None:
        """Add a section with text, in which empty lines separate paragraphs, or with HTML (`Markup`).

        If the content is empty, neither the heading nor a section is added.
        """
        if not html_or_text:
            return
        body = html_or_text
        if not isinstance(body, Markup):
            pieces = (piece.strip() for piece in body.split("\n\n"))
            body = Markup("").join(Markup("<p>{}</p>").format(piece) for piece in pieces)
        self._parts.append(_Part(len(self._parts), heading, body))

    def warnings(self, sentences: Iterable[str]) -> None:
        """Add warnings to the head of the page."""
        self._warnings += sentences

    @property
    def draws_records(self) -> bool:
        """Whether the page may draw single records. It may not if the data are sensitive."""
        return not self._sensitive

    def head(self, values: Mapping[str, Cell], *, personal: Collection[str] = ()) -> None:
        """Add facts about the whole page to its head. Values that are None or "" are left out.

        Args:
            values: the facts by name.
            personal: names of facts that can contain names of people (files, commands). They are left out for
                sensitive data, and a note on privacy is added.
        """
        if personal and self._sensitive:
            values = {name: value for name, value in values.items() if name not in personal}
            values |= {"privacy": "has rows of single subjects: keep it private; it is not in MLflow"}
        self._head |= values

    def table(self, heading: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Add a table that can be sorted, and filtered if it is long. It shows the first `MOST_ROWS` rows."""
        all_rows = [tuple(row) for row in rows]
        visible_rows = all_rows[:MOST_ROWS]
        kinds = [_kind([row[place] for row in visible_rows]) for place in range(len(columns))]
        body = _render(
            "table.html.jinja",
            name=f"table-{len(self._parts)}",
            columns=list(zip(columns, kinds, strict=True)),
            rows=[[(_cell_text(cell), _sort_key(cell)) for cell in row] for row in visible_rows],
            left_out=len(all_rows) - len(visible_rows),
        )
        self.section(heading, Markup(body))

    def coloured(
        self,
        heading: str,
        text: str,
        spans: Sequence[tuple[int, int]],
        bits: NDArray[np.float64],
        titles: Sequence[str] = (),
        *,
        scale: float = SCALE,
        signed: bool = False,
        note: str = "",
    ) -> None:
        """Add a text with spans coloured by surprisal.

        Args:
            heading: heading of the section.
            text: the text.
            spans: (N,) half-open spans, ascending by start.
            bits: (N,) surprisals. NaN has no colour.
            titles: (N,) tooltips of the spans, or empty.
            scale: bits of the strongest colour.
            signed: whether bits are relative to the entropy. Positive and negative values have different
                colours.
            note: a line above the text.
        """
        room = max(0, MOST_UNITS - self._units)
        unit_count = min(sum(end <= MOST_CHARACTERS for _, end in spans), room)
        self._units += unit_count
        body = text_on_colours(
            text[:MOST_CHARACTERS], spans[:unit_count], bits[:unit_count], titles[:unit_count], scale, signed
        )
        notes = [note] if note else []
        if unit_count < len(spans):
            notes.append(f"{unit_count:,} of {len(spans):,} units are coloured")
        if len(text) > MOST_CHARACTERS:
            notes.append(f"{MOST_CHARACTERS:,} of {len(text):,} characters are shown")
        head = Markup('<p class="note">{}</p>').format("; ".join(notes)) if notes else Markup("")
        head += legend(scale, EXPLAINED if signed else "bits", signed)
        frame = Markup('<div class="coloured" data-walk tabindex="0" role="group" aria-label="{}">{}</div>')
        self.section(heading, head + frame.format(heading, body))

    def facts(self, heading: str, values: Mapping[str, Cell]) -> None:
        """Add facts about one thing, one line each. Facts that are None or "" are left out."""
        self.section(heading, _facts(values))

    track = _picture_method(drawing.track)
    timeline = _picture_method(drawing.timeline)
    histogram = _picture_method(drawing.histogram)
    tails = _picture_method(drawing.tails)
    activity = _picture_method(drawing.activity)
    bars = _picture_method(drawing.bars)
    Bar = drawing.Bar  # an event for `bars`
    grid = _picture_method(drawing.grid)
    matrix = _picture_method(drawing.matrix)
    scatter = _picture_method(drawing.scatter)

    def html(self) -> str:
        """The whole page. Control characters and text direction marks are shown as escapes."""
        style, script = _resource("style.css"), _resource("script.js")
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        document = _render(
            "page.html.jinja",
            title=self._title,
            lead=self._lead,
            warnings=self._warnings,
            head=_facts(self._head) if self._head else "",
            parts=self._parts,
            style=Markup(style),
            script=Markup(script),
            script_hash=Markup(f"sha256-{digest}"),
        )
        return printable(document, lines=True)

    def write(self, path: Path) -> None:
        """Write the file atomically, and create its folder. With sensitive data, only its owner can read it.

        Raises:
            StateError: the file cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with handling_sensitive_data(self._sensitive):
                replace_file(path, self.html().encode())
        except OSError as error:
            raise StateError(
                f"cannot write the report {path}: {error.strerror}; free space or use another file name"
            ) from None


def _facts(values: Mapping[str, Cell]) -> Markup:
    """A list of facts as HTML, without facts that are None or ""."""
    line = Markup("<dt>{}</dt><dd>{}</dd>")
    present = ((name, value) for name, value in values.items() if value not in (None, ""))
    return Markup('<dl class="facts">{}</dl>').format(
        Markup("").join(line.format(name, _cell_text(value)) for name, value in present)
    )


def _render(template: str, **values: Any) -> str:
    """The HTML of a template in this package."""
    return _environment().from_string(_resource(template)).render(values)


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)


@cache
def _resource(name: str) -> str:
    """The text of a file in this package."""
    return files("seqmlm.reports").joinpath(name).read_text(encoding="utf-8")


def _kind(cells: Sequence[Cell]) -> str:
    """The CSS class of a column: "number", "long" for long texts, or ""."""
    present = [cell for cell in cells if cell is not None]
    if present and all(isinstance(c, (int, float)) and not isinstance(c, bool) for c in present):
        return "number"
    return "long" if any(len(str(cell)) > LONG for cell in present) else ""


def _cell_text(cell: Cell) -> str:
    """The text of a cell for readers. `Markup` stays as it is."""
    match cell:
        case Markup():
            return cell
        case bool():
            return "yes" if cell else "no"
        case int():
            return f"{cell:,}"
        case float():
            return "–" if math.isnan(cell) else f"{cell:.4g}"
    return "–" if cell is None else str(cell)


def _sort_key(cell: Cell) -> str:
    """The text of a cell that scripts use for sorting."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, float) and math.isinf(cell):
        return "Infinity" if cell > 0 else "-Infinity"
    return str(cell)
