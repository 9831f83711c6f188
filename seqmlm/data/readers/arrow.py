"""Rows of tables of Arrow, whoever opens the table, and of Parquet files.

A Parquet file is read with pyarrow alone: `datasets` streams it at the same speed, but takes a second to
import.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from seqmlm.data.files import MAX_BYTES, require_file, too_long
from seqmlm.data.problems import Problems
from seqmlm.errors import DataError

T = TypeVar("T")
Columns = Callable[[list[str]], Sequence[str]]
"""Chooses among the names of a table's columns."""

BATCH_ROWS = 1024


class ArrowTable(NamedTuple):
    """Names of columns, and how (columns, rows of a batch) -> batches of Arrow are read."""

    names: list[str]
    batches: Callable[[Sequence[str], int], Iterator[Any]]


def parquet_rows(source: str, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """(1-based number, column name to value) of every row of a Parquet file; see `rows_of_batches`."""
    return arrow_rows(open_parquet, source, problems, lambda names: names)


def arrow_rows(
    open_table: Callable[[str], ArrowTable], source: str, problems: Problems, columns: Columns
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(1-based number, column name to value) of every row of a table; see `rows_of_batches`."""
    for number, row in rows_of_batches(
        open_table, source, problems, columns, lambda batch: batch.to_pylist()
    ):
        if any(isinstance(cell, str) and len(cell) > MAX_BYTES for cell in row.values()):
            problems.bad(too_long(source, number, MAX_BYTES, "cell", "break it up"))
        else:
            yield number, row


def rows_of_batches(
    open_table: Callable[[str], ArrowTable],
    source: str,
    problems: Problems,
    columns: Columns,
    rows: Callable[[Any], Iterable[T]],
    size: int = BATCH_ROWS,
) -> Iterator[tuple[int, T]]:
    """(1-based number, row) of every row of a table; whatever is raised meanwhile goes to `problems`.

    Args:
        open_table: opens the source; raises a DataError where it is not there, empty, or out of reach.
        source: a file, a folder or a reference.
        problems: receives a table that cannot be opened, or not be read to its end.
        columns: chooses among the names of the columns.
        rows: those of a batch of Arrow.
        size: rows of a batch.
    """
    number = 0
    try:
        table = open_table(source)
        for batch in table.batches(columns(table.names), size):
            for row in rows(batch):
                number += 1
                yield number, row
    except DataError as error:
        problems.bad(error)
    # Each format has errors of its own: pyarrow's (also of bytes that are no UTF-8, of numbers beyond what
    # fits), those of pandas, of the decoder, of the network.
    except Exception as error:
        reason, remedy = (
            "the file is not parquet, or damaged",
            "write it again, or name the format it really has",
        )
        if not source.lower().endswith(".parquet"):
            reason, remedy = "the data set is damaged, or out of reach", "check its files and the network"
        bad_row = DataError(reason, source=source, line=number or None, remedy=remedy)
        bad_row.__cause__ = error
        problems.bad(bad_row)


def open_parquet(source: str) -> ArrowTable:
    """Open a Parquet file; an ArrowException where it is none, else as `rows_of_batches` says."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if source == "-":
        raise DataError(
            "parquet cannot be read from standard input", source=source, remedy="give the name of the file"
        )
    require_file(source)
    if Path(source).stat().st_size == 0:
        raise DataError("the file is empty", source=source, remedy="give a file with sequences in it")
    file = pq.ParquetFile(pa.memory_map(os.fsencode(source)))  # names need not be UTF-8

    def batches(columns: Sequence[str], size: int) -> Iterator[Any]:
        return iter(file.iter_batches(batch_size=size, columns=list(columns)))

    return ArrowTable(file.schema_arrow.names, batches)
