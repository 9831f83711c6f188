"""Rows as JSON lines: an object each, nested as it is."""

from __future__ import annotations

import json
from collections.abc import Sequence

from seqmlm.streams.schema import finite
from seqmlm.streams.sinks import Row


class JsonRows:
    """Rows to lines of JSON; numbers that are not finite become null."""

    header = b""

    def encode(self, rows: Sequence[Row]) -> bytes:
        """The rows as UTF-8 text, every one with its line end."""
        return "".join(map(_line, rows)).encode("utf-8", "surrogatepass")


def _line(row: Row) -> str:
    try:
        return json.dumps(row, allow_nan=False) + "\n"
    except ValueError:
        return json.dumps(finite(row), allow_nan=False) + "\n"
