"""Read tables of named fields (JSON lines, CSV, TSV and parquet) row by row, with the line of each row.

The tables are about sequences, such as scores, labels or minimal pairs. They do not contain the sequences of
a field.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from typing import Any

from seqmlm.data.files import stem_suffix
from seqmlm.data.problems import Problems
from seqmlm.data.readers.arrow import parquet_rows
from seqmlm.data.readers.objects import json_rows
from seqmlm.data.readers.tables import ambiguous, decimal_points, numeric, table_rows, torn_text, torn_value
from seqmlm.errors import DataError, UsageError, nearest

FieldRow = tuple[int, dict[str, Any]]
FLAGS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
"""Truth values in tables, in lower case."""

_DELIMITERS = {".csv": None, ".tsv": "\t"}
_JSON = (".jsonl", ".ndjson", ".json")


def read_rows(
    source: str,
    problems: Problems | None = None,
    *,
    names: Container[str] = (),
) -> Iterator[FieldRow]:
    """Yield (line or row from 1, field -> value) of a .jsonl, .csv, .tsv or .parquet file.

    The file may be compressed (.gz, .zst). "-" is JSON lines on standard input.

    Args:
        source: the file.
        problems: receives lines that cannot be read. None raises their errors.
        names: columns with names of records, in which 1,5 is not a number. The first column and columns named
            id or code are always such columns.

    Raises:
        UsageError: the file has another format.
        DataError: the file cannot be read. The error names the line.
    """
    suffix, problems = stem_suffix(source), problems or Problems()
    if source == "-" or suffix in _JSON:
        yield from _json_lines(source, problems)
    elif suffix in _DELIMITERS:
        yield from _table(source, _DELIMITERS[suffix], names, problems)
    elif suffix == ".parquet":
        yield from parquet_rows(source, problems)
    else:
        raise UsageError(
            f"{source}: rows are read from .jsonl, .csv, .tsv and .parquet files (also .gz, .zst)"
        )


def required(row: Mapping[str, Any], name: str, source: str, line: int) -> Any:
    """The value of a required field.

    Raises:
        DataError: the field is missing. The error lists the existing fields.
    """
    if name in row:
        return row[name]
    remedy = nearest(name, [str(key) for key in row][:30]).removeprefix("; ")
    raise DataError("no such field", source=source, line=line, field=name, remedy=remedy)


def filled(value: Any) -> bool:
    """Whether a cell has content: it is not None, empty, NaN or NA."""
    return value is not None and str(value).strip().lower() not in ("", "nan", "na")


def number(value: Any) -> float:
    """The finite number in a cell. NaN if it is not a finite number.

    >>> number(" 1.5"), number("much")
    (1.5, nan)
    """
    try:
        parsed = float(value)
    except (TypeError, ValueError):
        return math.nan
    return parsed if math.isfinite(parsed) else math.nan


def _json_lines(source: str, problems: Problems) -> Iterator[FieldRow]:
    for number, text, row in json_rows(source, problems):
        if torn_value(text, row):
            problems.bad(torn_text(source, number), text)
        else:
            yield number, row


def _table(
    source: str,
    delimiter: str | None,
    names: Container[str],
    problems: Problems,
) -> Iterator[FieldRow]:
    head, numbers = list[str](), list[int]()
    delimiter, rows = table_rows(source, problems, delimiter)
    for line, fields in rows:
        if not head:
            head = fields
            if twice := next((name for name in head if head.count(name) > 1), None):
                raise ambiguous(twice, source, line)
            first = head[0] if "id" not in head else "id"
            numbers = numeric(head, {name for name in head if name == first or name in names})
        elif len(fields) != len(head):
            reason = f"a row of {len(fields)} fields in a table of {len(head)} columns"
            remedy = "quote fields that contain the delimiter"
            wrong = DataError(reason, source=source, line=line, remedy=remedy)
            problems.bad(wrong, "\t".join(fields))
        else:
            if delimiter == ";":
                decimal_points(fields, numbers, source, line, problems)
            yield line, dict(zip(head, fields, strict=True))
