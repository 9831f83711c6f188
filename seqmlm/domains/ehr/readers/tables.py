"""Tables of a medical export, CSV, parquet or a data set alike: chosen columns of each row, with its line."""

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
"""What databases and statistics programs write into cells that hold nothing."""
EMPTY = "a cell of NULL, NA, \\N or nan, taken as empty"

_ROWS = 16_384
_ENDINGS = (".csv", ".tsv", ".parquet")


def table_files(folder: Path) -> dict[str, list[Path]]:
    """The tables of a folder by name in lower case; a table may be a file or a folder of parts. A UsageError
    for what is no folder, a DataError for what cannot be looked into.
    """
    tables: dict[str, list[Path]] = {}
    if (folder.exists() and not folder.is_dir()) or str(folder) == "-":
        raise UsageError(f"{folder} is no folder, and this format is a folder of tables: name that")
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
    """Whether a field of `Columns` holds what was measured: "value", or "values NAME" of several."""
    return field.partition(" ")[0] in ("value", "values")


def _table_name(path: Path) -> str:
    """The name of a table by its file; "" for a file of another format."""
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
    """Yield (1-based line, or row of a parquet file, and the cells of `columns` in their order).

    A cell is text as it stands, or of a parquet file a number (times as seconds since 1970), or None: also
    for a column that is not there. Marks of missing values are empty text. In columns of values (`is_value`)
    decimal commas become points: between semicolons all commas are such.

    Args:
        path: the table.
        problems: receives a table without a needed column, rows with too few fields, damage.
        columns: at least two; of them `needed` must be there.
        delimiter: of a CSV file; None looks at its first line.
        option: prefix of what the remedy names, for formats whose column names the user can give.
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
    """(code, description) of a table that has both; nothing of one that is not there."""
    columns = {"code": ("code",), "description": ("description",)}
    for _, (code, text) in scan(path, problems, columns, list(columns)) if path.exists() else ():
        if code and text:
            yield words(code), words(text)


def column_names(columns: Columns, names: Sequence[str]) -> dict[str, str]:
    """Field -> the column that holds it, for those there are; capitals do not matter."""
    spelled = {name.strip().lower(): name for name in reversed(names)}
    holders = {}
    for field, choices in columns.items():
        name = next((spelled[choice.lower()] for choice in choices if choice.lower() in spelled), None)
        if name is not None:
            holders[field] = name
    return holders


def header(path: str | Path) -> list[str]:
    """The column names of a table; none where it cannot be read."""
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
    """The error for a table without a needed column."""
    # A header that is missing would make the first row's values look like names.
    listed = f"there are: {', '.join(names[:30])}; " if shows_names else ""
    how = f"name it with --option {field}=NAME" if option else "check that this is the table it claims to be"
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
    """The chosen cells of each row of a CSV file, with its line."""
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
        problems.note("two columns of one name: the first is read", Things(1), source=source, line=line)
    width = len(names)
    values = [names.index(where[field]) for field in where if used == ";" and is_value(field)]
    # The place -1 is that of a None put behind each row.
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
    """The chosen cells of each row of a table of Arrow, with its number."""
    where: dict[str, str] = {}

    def chosen(names: list[str]) -> list[str]:
        """The columns to read among the names of a table; a DataError where a needed one is missing."""
        where.update(column_names(columns, names))
        lacking = next((field for field in needed if field not in where), None)
        if lacking is not None:  # a schema holds no patient's data: its names may be shown
            raise _column_error(lacking, columns, names, source, None, option, True)
        return list(dict.fromkeys(where.values()))

    def rows(batch: Any) -> Iterator[tuple[Any, ...]]:
        """The chosen cells of each row of a batch."""
        cells = {name: as_cells(batch.column(i)) for i, name in enumerate(batch.schema.names)}
        nothing = [None] * batch.num_rows
        return zip(*(cells[where[field]] if field in where else nothing for field in columns), strict=True)

    yield from rows_of_batches(open_table, source, problems, chosen, rows, _ROWS)


def as_cells(column: Any) -> list[Any]:
    """A column as text, numbers or None; times and dates as seconds since 1970."""
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
    if pa.types.is_float32(kind):  # 5.1, not 5.099999904632568: the shortest decimal that means the same
        column = column.cast(pa.string()).cast(pa.float64())
    if pa.types.is_floating(kind):
        return list(column.to_pylist())
    return list(column.cast(pa.string()).to_pylist())
