"""Rows as CSV (RFC 4180, UTF-8, line feeds): channels are columns, lists and objects are JSON text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from seqmlm.streams.schema import Schema, finite
from seqmlm.streams.sinks import Row


class CsvRows:
    """Rows to lines of a table whose first line names the columns; what is not there is an empty cell."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._kinds = schema.flat_columns
        self.header = self._text([list(self._kinds)])

    def encode(self, rows: Sequence[Row]) -> bytes:
        """The rows as UTF-8 text, every one with its line end."""
        return self._text(
            [
                [_cell(self._kinds[name], value) for name, value in self._schema.flat(row).items()]
                for row in rows
            ]
        )

    @staticmethod
    def _text(rows: Sequence[Sequence[Any]]) -> bytes:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(rows)
        return out.getvalue().encode("utf-8", "backslashreplace")


def _cell(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind in ("units", "json"):
        return json.dumps(finite(value), allow_nan=False)
    if kind == "flag":
        return "true" if value else "false"
    return finite(value)
