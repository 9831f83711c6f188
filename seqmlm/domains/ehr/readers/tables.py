"""Read chosen columns from the tables of a medical export: CSV, parquet, or a data set of Hugging Face."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from seqmlm.data.counts import Things
from seqmlm.data.files import source_of, stem_suffix
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.data.readers.arrow import rows_of_batches
from seqmlm.data.readers.huggingface import is_table, open_table
from seqmlm.data.readers.tables import decimal_points, delimiter_of, table_rows, too_few_fields
from seqmlm.domains.ehr.readers.cells import with_points, words
from seqmlm.errors import DataError, UsageError

# Field -> the names its column may have, in lower case, best first.
Columns = Mapping[str, Sequence[str]]

MARKS = frozenset(("\\N", "NULL", "Null", "null", "NA", "N/A", "n/a", "#N/A", "<NA>", "nan", "NaN", "NAN"))
"""Marks that databases and statistics programs write into empty cells."""
EMPTY = "a cell with NULL, NA, \\N or nan, read as empty"

_ROWS = 16_384
_ENDINGS = (".csv", ".tsv", ".parquet")


def table_files(folder: Path) -> dict[str, list[Path]]:
    """The files of each table in a folder, by name in lower case. A table is a file or a folder of parts.

    Raises:
        UsageError: the path is not a folder.
        DataError: the folder cannot be read.
    """
    tables: dict[str, list[Path]] = {}
    if (folder.exists() and not folder.is_dir()) or str(folder) == "-":
        raise UsageError(f"{folder} is not a folder: give the folder that contains the tables")
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise DataError(
            f"the folder cannot be read: {error.strerror}", source=str(folder), remedy="check the path"
        ) from None
    for path in inside:
        if path.name.startswith("."):
            continue
        if path.is_dir():
            parts = [part for part in sorted(path.iterdir()) if part.is_file() and _table_name(part)]
            if parts:
                tables.setdefault(path.name.lower(), []).extend(parts)
        elif name := _table_name(path):
            tables.setdefault(name, []).append(path)
    return tables


def is_value(field: str) -> bool:
    """Whether a field of `Columns` has measured values: "value" or "values NAME"."""
    return field.partition(" ")[0] in ("value", "values")


def _table_name(path: Path) -> str:
    """The name of a table from the name of its file; "" for a file of another format."""
    suffix = stem_suffix(path)
    return path.name.lower().rpartition(suffix)[0] if suffix in _ENDINGS else ""


def scan(
    path: str | Path,
    problems: Problems,
    columns: Columns,
    needed: Sequence[str],
    *,
    delimiter: str | None = None,
    option: str = "",
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield the number of each row and its cells of `columns`, in their order.

    The number is the 1-based line, or the row in a parquet file. A cell is text, or, in a parquet file, text
    or a number (times are seconds since 1970). It is None if the column does not exist. Marks of missing
    values become empty text. In columns of values (`is_value`), decimal commas become points. If columns are
    separated by semicolons, all commas are decimal commas.

    Args:
        path: the table.
        problems: receives a table without a required column, rows with too few fields, and damaged files.
        columns: at least two columns. The columns in `needed` must exist.
        needed: the fields of the required columns.
        delimiter: separator of a CSV file. None infers it from the first line.
        option: prefix of the option that the remedy of an error names. It is "" if users cannot give the
            names of columns.
    """
    source = source_of(path)
    if is_table(source):
        rows = _scan_arrow(source, problems, columns, needed, option)
    else:
        rows = _scan_csv(source, problems, columns, needed, delimiter, option)
    if places := [place for place, field in enumerate(columns) if columns[field] and is_value(field)]:
        rows = with_points(rows, places, problems, source)
    for line, cells in rows:
        if MARKS.isdisjoint(cells):
            yield line, cells
        else:
            empty = sum(cell in MARKS for cell in cells)
            problems.note(EMPTY, empty, source=source, line=line)
            yield line, tuple("" if cell in MARKS else cell for cell in cells)


def code_descriptions(path: Path, problems: Problems) -> Iterator[tuple[str, str]]:
    """The code and description of each row of a table that has both. A missing file has no rows."""
    columns = {"code": ("code",), "description": ("description",)}
    for _, (code, text) in scan(path, problems, columns, list(columns)) if path.exists() else ():
        if code and text:
            yield words(code), words(text)


def column_names(columns: Columns, names: Sequence[str]) -> dict[str, str]:
    """Field -> the name of its column, for the columns that exist. Case does not matter."""
    spelled = {name.strip().lower(): name for name in reversed(names)}
    holders = {}
    for field, choices in columns.items():
        name = next((spelled[choice.lower()] for choice in choices if choice.lower() in spelled), None)
        if name is not None:
            holders[field] = name
    return holders


def header(path: str | Path) -> list[str]:
    """The column names of a table; an empty list if it cannot be read."""
    if is_table(str(path)):
        import pyarrow as pa

        try:
            return open_table(str(path)).names
        except (pa.ArrowException, OSError, DataError):
            return []
    for _, text in lines(path, Problems("skip")):
        return next(csv.reader([text], delimiter=delimiter_of(text)), [])
    return []


def _column_error(
    field: str,
    columns: Columns,
    names: Sequence[str],
    source: str,
    line: int | None,
    option: str,
    shows_names: bool,
) -> DataError:
    """The error for a table without a required column."""
    # If a table has no header, the names are the values of the first row, which must not be shown.
    listed = f"there are: {', '.join(names[:30])}; " if shows_names else ""
    how = f"name it with --option {field}=NAME" if option else "check that the table has the right columns"
    return DataError(
        "no column of this name", source=source, line=line, field=columns[field][0], remedy=listed + how
    )


def _scan_csv(
    source: str,
    problems: Problems,
    columns: Columns,
    needed: Sequence[str],
    delimiter: str | None,
    option: str,
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """The line and the chosen cells of each row of a CSV file."""
    used, rows = table_rows(source, problems, delimiter, quoting=csv.QUOTE_MINIMAL)
    line, names = next(rows, (0, []))
    if not line:
        return
    where = column_names(columns, names)
    lacking = next((field for field in needed if field not in where), None)
    if lacking is not None:
        problems.bad(
            _column_error(lacking, columns, names, source, line, option, bool(problems.quoted(option)))
        )
        return
    if any(names.count(name) > 1 for name in where.values()):
        problems.note(
            "two columns with the same name: the first is read", Things(1), source=source, line=line
        )
    width = len(names)
    values = [names.index(where[field]) for field in where if used == ";" and is_value(field)]
    # The index -1 is the None that is appended to each row.
    pick = itemgetter(*(names.index(where[field]) if field in where else -1 for field in columns))
    for line, fields in rows:
        if len(fields) < width:
            problems.bad(too_few_fields(source, line, width))
            continue
        decimal_points(fields, values, source, line, problems)
        fields.append(None)  # type: ignore[arg-type]
        yield line, pick(fields)


def _scan_arrow(
    source: str, problems: Problems, columns: Columns, needed: Sequence[str], option: str
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """The number and the chosen cells of each row of an Arrow table."""
    where: dict[str, str] = {}

    def chosen(names: list[str]) -> list[str]:
        """The columns of a table to read. It is a DataError if a required column is missing."""
        where.update(column_names(columns, names))
        lacking = next((field for field in needed if field not in where), None)
        if lacking is not None:  # a schema has no data of patients, so its names can be shown
            raise _column_error(lacking, columns, names, source, None, option, True)
        return list(dict.fromkeys(where.values()))

    def rows(batch: Any) -> Iterator[tuple[Any, ...]]:
        """The chosen cells of each row in a batch."""
        cells = {name: as_cells(batch.column(i)) for i, name in enumerate(batch.schema.names)}
        nothing = [None] * batch.num_rows
        return zip(*(cells[where[field]] if field in where else nothing for field in columns), strict=True)

    yield from rows_of_batches(open_table, source, problems, chosen, rows, _ROWS)


def as_cells(column: Any) -> list[Any]:
    """The cells of a column as text, numbers or None. Times and dates become seconds since 1970."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_date(kind):
        column, kind = column.cast(pa.timestamp("s")), pa.timestamp("s")
    if pa.types.is_timestamp(kind):
        per_second = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[kind.unit]
        return list(
            pc.divide(column.cast(pa.int64()).cast(pa.float64(), safe=False), float(per_second)).to_pylist()
        )
    if pa.types.is_float32(kind):  # through text, so that the value is 5.1 and not 5.099999904632568
        column = column.cast(pa.string()).cast(pa.float64())
    if pa.types.is_floating(kind):
        return list(column.to_pylist())
    return list(column.cast(pa.string()).to_pylist())
