"""Read the rows of Arrow tables from any source, and of Parquet files.

A Parquet file is read only with pyarrow. `datasets` streams it at the same speed, but takes a second to
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
"""Selects columns from the names of a table's columns."""

BATCH_ROWS = 1024


class ArrowTable(NamedTuple):
    """Names of columns, and a function that reads batches of Arrow: (columns, rows per batch) -> batches."""

    names: list[str]
    batches: Callable[[Sequence[str], int], Iterator[Any]]


def parquet_rows(source: str, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number from 1, column name -> value) for every row of a Parquet file. See `rows_of_batches`."""
    return arrow_rows(open_parquet, source, problems, lambda names: names)


def arrow_rows(
    open_table: Callable[[str], ArrowTable], source: str, problems: Problems, columns: Columns
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number from 1, column name -> value) for every row of a table. See `rows_of_batches`."""
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
    """Yield (number from 1, row) for every row of a table. All errors while reading go to `problems`.

    Args:
        open_table: opens the source. Raises a DataError if it is missing, empty or out of reach.
        source: a file, a folder or a reference.
        problems: receives a table that cannot be opened, or cannot be read to its end.
        columns: selects columns from their names.
        rows: returns the rows of a batch of Arrow.
        size: number of rows in a batch.
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
    # Each format has its own errors: those of pyarrow (also for bytes that are not UTF-8, and for numbers
    # that are too large), of pandas, of the decoder, and of the network.
    except Exception as error:
        reason, remedy = (
            "the file is not parquet, or damaged",
            "write it again, or name its actual format",
        )
        if not source.lower().endswith(".parquet"):
            reason, remedy = "the data set is damaged, or out of reach", "check its files and the network"
        bad_row = DataError(reason, source=source, line=number or None, remedy=remedy)
        bad_row.__cause__ = error
        problems.bad(bad_row)


def open_parquet(source: str) -> ArrowTable:
    """Open a Parquet file.

    Raises:
        DataError: the file is missing, empty or standard input.
        ArrowException: it is not a Parquet file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if source == "-":
        raise DataError(
            "parquet cannot be read from standard input", source=source, remedy="name the file instead"
        )
    require_file(source)
    if Path(source).stat().st_size == 0:
        raise DataError("the file is empty", source=source, remedy="give a file with sequences in it")
    file = pq.ParquetFile(pa.memory_map(os.fsencode(source)))  # names may contain bytes that are not UTF-8

    def batches(columns: Sequence[str], size: int) -> Iterator[Any]:
        return iter(file.iter_batches(batch_size=size, columns=list(columns)))

    return ArrowTable(file.schema_arrow.names, batches)
