"""Result rows as a DataFrame, which notebooks show with coloured sequences and pictures of maps."""

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
"""Input of a task: a path, several `Path`s, strings, a Series of strings, or a DataFrame."""

ITEM = "data"
"""The source of rows whose data did not come from a file. Their `line` is the position in the data, from 1.
"""

PICTURED = 3
"""How many sequences or maps are shown above a table in a notebook: the first 3."""


class RowFrame(pd.DataFrame):  # type: ignore[misc]
    """The rows of a task as a DataFrame, with the columns that `seqmlm TASK --out` writes.

    `attrs` has the keys `task`, `answer` (the results in a sentence), `figures` (the results as numbers) and
    `sensitive`.
    """

    @property
    def _constructor(self) -> type[RowFrame]:
        return RowFrame

    def matrix(self, id: str | None = None) -> NDArray[np.float64]:
        """Return the map of a sequence: a symmetric array (N, N) with the value of each pair of units.

        The rows must come from `seqmlm.Model.structure`. Pairs without a value are NaN.

        Args:
            id: id of the sequence. None selects the first sequence.

        Raises:
            UsageError: the rows are not pairs of units, or do not contain this sequence.
        """
        if not {"i", "j", "value"} <= {*self.columns}:
            raise UsageError("these rows are not pairs of units: Model.structure returns such rows")
        record_rows = self[self["id"] == (self["id"].iloc[0] if id is None else id)]
        if not len(record_rows):
            raise UsageError(f"no rows of {id!r}")
        size = int(record_rows["j"].max()) + 1
        table = np.full((size, size), np.nan)
        at = record_rows["i"].to_numpy(int), record_rows["j"].to_numpy(int)
        table[at] = table[at[::-1]] = record_rows["value"].to_numpy(float)
        return table

    def vectors(self) -> NDArray[np.float32]:
        """Return the vectors of the rows from `seqmlm.Model.embed`, as an array (N, D).

        Raises:
            UsageError: the rows have no vectors.
        """
        if "vector" not in self.columns:
            raise UsageError("these rows have no vectors: Model.embed returns rows with vectors")
        return np.array(self["vector"].tolist(), dtype=np.float32)

    def _repr_html_(self) -> str | None:
        if self.attrs.get("sensitive"):
            return f"<p>{len(self):,} rows of sensitive data: not shown, since notebooks are saved.</p>"
        table = super()._repr_html_()
        page = self._pictures()
        if page is None:
            return table  # type: ignore[no-any-return]
        frame = (
            '<iframe srcdoc="{}" style="width:100%;height:24em;border:0" sandbox="allow-scripts"></iframe>'
        )
        return frame.format(escape(page)) + str(table)

    def _pictures(self) -> str | None:
        """Return a page with the first sequences in colour or the first maps; None without either."""
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
    """The text of units, and the range of each unit in it. Gaps between units become a space."""
    text, spans, end = "", list[tuple[int, int]](), None
    for unit in units:
        if end is not None and unit["start"] > end:
            text += " "
        spans.append((len(text), len(text) + len(unit["unit"])))
        text, end = text + unit["unit"], unit["end"]
    return text, spans


def sources(data: Data, folder: Path, column: str = "text") -> list[str]:
    """The paths of data. Data that are not paths are first written to a Parquet file named after its content.

    Args:
        data: see `Data`.
        folder: folder for the Parquet file. It is created if missing.
        column: column name for strings that are not in a DataFrame.

    Raises:
        DataError: there are no data.
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
    """The rows as a `RowFrame`. Rows from a file in `folder` get `ITEM` as their source."""
    caller_rows = []
    for row in rows:
        source = Path(str(row.get("source", "")))
        if source.parent == folder:
            row = {**row, "source": ITEM, "id": str(row["id"]).replace(source.name, ITEM)}
        caller_rows.append(row)
    return RowFrame(caller_rows)


@contextmanager
def blame_caller(folder: Path, data: Data | None, method: str) -> Iterator[None]:
    """Context in which errors about a file in `folder` name the caller's data instead.

    If a path does not exist, it may have been meant as a sequence. The remedy then mentions this.

    Args:
        folder: folder of the temporary files.
        data: the data that the caller passed.
        method: name of the method that the caller used.
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
