"""Read spans of records from a table with the columns `id`, `start`, `end` and others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from seqmlm.data.problems import Problems
from seqmlm.data.rows import read_rows, required
from seqmlm.errors import DataError


class Span(NamedTuple):
    """A span of a record.

    Attributes:
        start: first character in the record's text.
        end: character after the last.
        fields: other columns of the table.
        line: line in the table.
    """

    start: int
    end: int
    fields: Mapping[str, Any]
    line: int = 0


def span_of(row: Mapping[str, Any], source: str, line: int) -> Span:
    """The span in a row.

    Raises:
        DataError: a column is missing, or the row is not a span.
    """
    bounds = [str(required(row, name, source, line)).strip() for name in ("start", "end")]
    start, end = (int(bound) if bound.isdecimal() else -1 for bound in bounds)
    if not 0 <= start < end:
        remedy = "write whole numbers, with start less than end"
        raise DataError("a span whose end is not after its start", source=source, line=line, remedy=remedy)
    return Span(
        start, end, {key: cell for key, cell in row.items() if key not in ("id", "start", "end")}, line
    )


def read_spans(path: Path, problems: Problems) -> dict[str, list[Span]]:
    """The spans of each record in a table. Rows that are not spans go to `problems`."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for line, row in read_rows(str(path)):
        name = str(required(row, "id", str(path), line))
        try:
            spans[name].append(span_of(row, str(path), line))
        except DataError as error:
            if error.field is not None:
                raise
            problems.bad(error, error.reason)
    return spans
