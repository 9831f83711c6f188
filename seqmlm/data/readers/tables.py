"""CSV and TSV: the sequence in one named column."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqmlm.data.files import MAX_BYTES, lines, source_of
from seqmlm.data.problems import Problems
from seqmlm.data.readers.fields import missing, record_from
from seqmlm.data.record import Record
from seqmlm.errors import DataError


def read_csv(
    path: str | Path,
    problems: Problems,
    *,
    column: str = "text",
    id_column: str | None = None,
    document_column: str | None = None,
    keep: Sequence[str] = (),
    delimiter: str = ",",
    header: bool = True,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Record]:
    """Read a CSV file (also .gz, .zst, "-"); fields may be quoted and span lines.

    Args:
        path: the file.
        problems: receives a missing column, rows with too few fields, rows without text.
        column: name of the sequence's column; a table with a single column needs no name.
        id_column: column of the record's id; None names it by its line.
        document_column: column of what the record belongs to.
        keep: further columns that go into `meta`.
        delimiter: one character.
        header: False when the first line is data; the columns are then called "1", "2", ...
        max_bytes: longest line and longest field.
    """
    names = (column, id_column, document_column)
    style = {"delimiter": delimiter}
    yield from _read(source_of(path), problems, names, keep, style, header, max_bytes)


def read_tsv(
    path: str | Path,
    problems: Problems,
    *,
    column: str = "text",
    id_column: str | None = None,
    document_column: str | None = None,
    keep: Sequence[str] = (),
    header: bool = True,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Record]:
    """Read a TSV file: as `read_csv`, with tabs between fields; quotation marks are ordinary characters.

    Args:
        path, problems: as of `read_csv`.
        column, id_column, document_column, keep, header, max_bytes: as of the format csv.
    """
    names = (column, id_column, document_column)
    style = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    yield from _read(source_of(path), problems, names, keep, style, header, max_bytes)


class _Feed:
    """Hands lines to the csv module and remembers where the row under way began."""

    def __init__(self, numbered: Iterator[tuple[int, str]]) -> None:
        self._numbered = numbered
        self.start = 0  # 0 between rows

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        number, text = next(self._numbered)
        self.start = self.start or number
        return text + "\n"


def table_rows(
    source: str, problems: Problems, style: Mapping[str, Any], max_bytes: int
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line the row begins on, its fields); blank lines are passed over.

    Args:
        source: the file.
        problems: receives rows that cannot be cut into fields.
        style: what the csv module is told: delimiter, quoting.
        max_bytes: longest line and longest field.
    """
    feed = _Feed(lines(source, problems, max_bytes=max_bytes))
    rows = csv.reader(feed, **style)
    while True:
        csv.field_size_limit(max_bytes)  # of the module as a whole, so set anew before each row
        feed.start = 0
        try:
            fields = next(rows)
        except StopIteration:
            return
        except csv.Error:
            error = DataError(
                "a field without end",
                source=source,
                line=feed.start,
                remedy="close the quotation mark, or raise the limit with --option max_bytes=N",
            )
            problems.bad(error, None)
            continue
        if fields and fields != [""]:
            yield feed.start, fields


def _read(
    source: str,
    problems: Problems,
    names: tuple[str, str | None, str | None],
    keep: Sequence[str],
    style: Mapping[str, Any],
    header: bool,
    max_bytes: int,
) -> Iterator[Record]:
    columns: list[str] = []
    column, id_column, document_column = names
    for line, fields in table_rows(source, problems, style, max_bytes):
        if not columns:
            columns = fields if header else [str(i) for i in range(1, len(fields) + 1)]
            column = columns[0] if len(columns) == 1 else column
            wanted = [n for n in (column, id_column, document_column, *keep) if n is not None]
            absent = next((n for n in wanted if n not in columns), None)
            if absent is not None:
                problems.bad(missing(absent, columns, source, line, "column", problems))
                return
            if header:
                continue
        if len(fields) < len(columns):
            error = DataError(
                "a row with too few fields",
                source=source,
                line=line,
                remedy=f"the table has {len(columns)} columns; quote fields that hold the delimiter",
            )
            problems.bad(error, style["delimiter"].join(fields))
            continue
        if len(fields) > len(columns):
            problems.note("a row with more fields than the table has columns")
        row = dict(zip(columns, fields, strict=False))
        record = record_from(row, column, id_column, document_column, keep, source, line, problems)
        if record is not None:
            yield record
