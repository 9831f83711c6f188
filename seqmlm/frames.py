"""Rows as a notebook has them: a DataFrame that shows sequences in colour and maps as pictures."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from seqmlm.engine.durable import replace_file
from seqmlm.errors import DataError, UsageError
from seqmlm.reports.scales import colour_scale, surprisal_scale

Data: TypeAlias = str | Path | Sequence[Any] | pd.Series | pd.DataFrame
"""What is asked about: a path (or several `Path`s), strings, a Series of them, or a table."""

ITEM = "data"
"""Source of rows of data that were no file; their `line` is the place among the data, from 1 on."""

PICTURED = 3
"""Sequences, or maps, that are pictured above a table: the first ones."""


class RowFrame(pd.DataFrame):  # type: ignore[misc]
    """The rows of a task as a DataFrame, with what `seqmlm TASK --out` writes.

    `attrs` has `task`, `answer` (the figures in a sentence), `figures` and `sensitive`.
    """

    @property
    def _constructor(self) -> type[RowFrame]:
        return RowFrame

    def matrix(self, id: str | None = None) -> NDArray[np.float64]:
        """The map of a sequence: (N, N) values of pairs of units, symmetric; NaN where a pair has none.

        Args:
            id: of the sequence; None for the first one.

        Raises:
            UsageError: the rows are no pairs of units, or of other sequences.
        """
        if not {"i", "j", "value"} <= {*self.columns}:
            raise UsageError("these rows are no pairs of units: a map is what Model.structure gives")
        record_rows = self[self["id"] == (self["id"].iloc[0] if id is None else id)]
        if not len(record_rows):
            raise UsageError(f"no rows of {id!r}")
        size = int(record_rows["j"].max()) + 1
        table = np.full((size, size), np.nan)
        at = record_rows["i"].to_numpy(int), record_rows["j"].to_numpy(int)
        table[at] = table[at[::-1]] = record_rows["value"].to_numpy(float)
        return table

    def vectors(self) -> NDArray[np.float32]:
        """(N, D) the vectors of the rows.

        Raises:
            UsageError: the rows have none.
        """
        if "vector" not in self.columns:
            raise UsageError("these rows have no vectors: Model.embed gives them")
        return np.array(self["vector"].tolist(), dtype=np.float32)

    def _repr_html_(self) -> str | None:
        if self.attrs.get("sensitive"):
            return f"<p>{len(self):,} rows of sensitive data: not shown, for a notebook is a file.</p>"
        table = super()._repr_html_()
        page = self._pictures()
        if page is None:
            return table  # type: ignore[no-any-return]
        frame = (
            '<iframe srcdoc="{}" style="width:100%;height:24em;border:0" sandbox="allow-scripts"></iframe>'
        )
        return frame.format(escape(page)) + str(table)

    def _pictures(self) -> str | None:
        """A page with the first sequences in colour, or the first maps; None where rows have neither."""
        from seqmlm.reports.page import Page

        page = Page(str(self.attrs.get("answer", "")))
        columns = {*self.columns}
        if {"id", "per_unit"} <= columns:
            for row in self.head(PICTURED).to_dict("records"):
                units = row["per_unit"]
                text, spans = _text_of_units(units)
                bits = np.array([unit_row["surprisal"] for unit_row in units], dtype=float)
                labels = [f"{unit_row['unit']}: {unit_row['surprisal']:.1f} bits" for unit_row in units]
                page.coloured(str(row["id"]), text, spans, bits, labels, scale=surprisal_scale(bits))
        elif {"id", "i", "j", "value", "unit_i", "unit_j"} <= columns and len(self):
            for id in self["id"].unique()[:PICTURED]:
                table = self[self["id"] == id]
                names = {
                    n: unit for end in "ij" for n, unit in zip(table[end], table[f"unit_{end}"], strict=True)
                }
                values = self.matrix(id)
                edges = table[table["predicted"].astype(bool)] if "predicted" in columns else table.head(0)
                pairs = set(zip(edges["i"].astype(int), edges["j"].astype(int), strict=True))
                listed = [str(names.get(n, "")) for n in range(len(values))]
                page.matrix(str(id), values, listed, pairs, scale=colour_scale(values, 0.995), unit="value")
        else:
            return None
        return page.html()


def _text_of_units(units: Sequence[Mapping[str, Any]]) -> tuple[str, list[tuple[int, int]]]:
    """The text of units, with a space where the sequence had something else, and where each stands in it."""
    text, spans, end = "", list[tuple[int, int]](), None
    for unit in units:
        if end is not None and unit["start"] > end:
            text += " "
        spans.append((len(text), len(text) + len(unit["unit"])))
        text, end = text + unit["unit"], unit["end"]
    return text, spans


def sources(data: Data, folder: Path, column: str = "text") -> list[str]:
    """Paths of some data; what is no path is written to a Parquet file, named by its content.

    Args:
        data: see `Data`.
        folder: for that file; made if missing.
        column: of strings that are no table.

    Raises:
        DataError: no data.
    """
    if isinstance(data, (str, Path)):
        return [str(data)]
    if isinstance(data, Sequence) and data and all(isinstance(path, Path) for path in data):
        return [str(path) for path in data]
    table = data if isinstance(data, pd.DataFrame) else pd.Series(data)
    if isinstance(table, pd.Series):
        table = pd.DataFrame({"id": table.index.astype(str), column: table.to_numpy()})
    if not len(table):
        raise DataError("no sequences given: the list is empty", source=ITEM)
    file = io.BytesIO()
    table.to_parquet(file, index=False)
    content = file.getvalue()
    path = folder / f"{ITEM}-{hashlib.sha256(content).hexdigest()[:32]}.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, content, mode=0o600)
    return [str(path)]


def frame(rows: Iterable[Mapping[str, Any]], folder: Path) -> RowFrame:
    """The rows as a frame; what came from a file in `folder` came from the caller."""
    caller_rows = []
    for row in rows:
        source = Path(str(row.get("source", "")))
        if source.parent == folder:
            row = {**row, "source": ITEM, "id": str(row["id"]).replace(source.name, ITEM)}
        caller_rows.append(row)
    return RowFrame(caller_rows)


@contextmanager
def blame_caller(folder: Path, data: Data | None, method: str) -> Iterator[None]:
    """Context in which an error about a file in `folder` names the data that the caller gave.

    A path that does not exist may be a sequence: the remedy says so.
    """
    try:
        yield
    except DataError as error:
        if isinstance(data, str) and error.source == data and error.remedy == "check the path":
            remedy = f"{error.remedy}; a sequence goes into a list: {method}([...])"
            raise DataError(error.reason, source=data, remedy=remedy) from None
        if error.source is None or Path(error.source).parent != folder:
            raise
        place = {name: getattr(error, name) for name in ("line", "field", "remedy")}
        raise DataError(error.reason, source=ITEM, **place) from None
