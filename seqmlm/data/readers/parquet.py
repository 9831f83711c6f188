"""Parquet: the sequence in one text column, read batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from seqmlm.data.files import source_of
from seqmlm.data.problems import Problems
from seqmlm.data.readers.fields import missing, record_from
from seqmlm.data.record import Record
from seqmlm.errors import DataError

_ROWS = 1024


def read_parquet(
    path: str | Path,
    problems: Problems,
    *,
    column: str = "text",
    id_column: str | None = None,
    document_column: str | None = None,
    keep: Sequence[str] = (),
) -> Iterator[Record]:
    """Read one column of a parquet file; a record's `line` is its 1-based row.

    Args:
        path: the file; standard input cannot be parquet, whose index stands at the end.
        problems: receives a file that is not parquet, a missing column, rows without text.
        column, id_column, document_column, keep: as in `read_csv`.
    """
    import pyarrow as pa

    source, number = source_of(path), 0
    try:
        file = _open(source)
        names = file.schema_arrow.names
        column = names[0] if len(names) == 1 else column
        wanted = [n for n in (column, id_column, document_column, *keep) if n is not None]
        absent = next((n for n in wanted if n not in names), None)
        if absent is not None:
            raise missing(absent, names, source, None, "column", problems)
        for batch in file.iter_batches(batch_size=_ROWS, columns=list(dict.fromkeys(wanted))):
            for row in batch.to_pylist():
                number += 1
                record = record_from(row, column, id_column, document_column, keep, source, number, problems)
                if record is not None:
                    yield record
    except DataError as error:
        problems.bad(error)
    except (pa.ArrowException, OSError) as error:
        broken = DataError(
            "the file is not parquet, or damaged",
            source=source,
            line=number or None,
            remedy="write it again, or name the format it really has",
        )
        broken.__cause__ = error
        problems.bad(broken)


def _open(source: str) -> Any:
    import pyarrow.parquet as pq

    if source == "-":
        raise DataError(
            "parquet cannot be read from standard input", source=source, remedy="give the name of the file"
        )
    if not Path(source).exists():
        raise DataError("no such file", source=source, remedy="check the path")
    if Path(source).stat().st_size == 0:
        raise DataError("the file is empty", source=source, remedy="give a file with sequences in it")
    return pq.ParquetFile(source, memory_map=True)
