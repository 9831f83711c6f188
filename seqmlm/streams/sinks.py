"""Sinks for rows: files of JSON lines that survive a crash, streams, and tables made from the lines.

A file of lines can be cut back to its last commit. A run that is killed and resumed therefore loses no row
and repeats none. CSV, TSV and Parquet are made from such a file, `OUT.partial.jsonl`, when all rows are
written. The price: the rows are on disk twice for a moment, and a table does not exist before it is complete.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import shlex
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Literal, TextIO

from seqmlm.data.compressed import PACKED, ending, packing
from seqmlm.data.record import encodable
from seqmlm.engine.durable import DISK, is_owner_only, refuse_irregular, replace_file
from seqmlm.errors import StateError, UsageError, nearest

Fields = Mapping[str, Any]
"""A row of results: the values of its fields by name."""

Mark = Mapping[str, int]
"""A position in a sink, from which writing can continue."""

Kind = Literal["text", "integer", "number", "flag", "p_values", "units", "vector", "json"]
"""The kind of a column.

* `p_values` maps statistics to their p-values.
* `units` is a list of units with their spans and surprisals.
* `vector` is a list of numbers with the same length in every row (see `packed`).
* `json` is anything else.
"""

EXTRA = "extra"
"""The column of a table with all fields of a row that the schema does not list, as JSON."""

FORMATS: Mapping[str, tuple[str, ...]] = {
    "jsonl": (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz"),
    "csv": (".csv", ".csv.gz"),
    "tsv": (".tsv", ".tsv.gz"),
    "parquet": (".parquet", ".pq"),
    "npy": (".npy",),
}
"""The endings of each format, with endings for gzip last. The first format is used without an ending."""

ROWS = {name: endings for name, endings in FORMATS.items() if name != "npy"}
"""The formats for all kinds of rows. An array (npy) can store only vectors."""

_INDEXED = {".bedgraph": "bed", ".bg": "bed", ".bed": "bed", ".vcf": "vcf"}  # tabix preset by ending

SPREADSHEETS = (".xlsx", ".xls", ".ods")
ELSEWHERE = {".sarif": "seqmlm review --sarif", ".html": "--report", ".htm": "--report"}
PARTIAL = ".partial.jsonl"
"""The suffix, after the name of a table, of the file of JSON lines from which the table is made."""

_BUFFER = 1 << 18  # bytes that are collected before a write
_TAIL = 4096  # bytes before a mark whose checksum identifies the file
_BATCH_BYTES = 4 << 20  # bytes of JSON lines that are converted together, as one row group of Parquet


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns of a table of results, declared before the first row.

    Args:
        columns: the kind of each column by name, in order.
        statistics: names of the statistics. The p-value of each becomes a column `p_<name>`.
        closed: whether rows have no other fields. The table then has no column "extra".
        width: length of the vectors.
        half: whether vectors are float16; otherwise they are float32.
        facts: more facts about the rows, for formats that can store them.

    Raises:
        UsageError: a column and the p-value of a statistic have the same name.
    """

    columns: Mapping[str, Kind]
    statistics: tuple[str, ...] = ()
    closed: bool = False
    width: int = 0
    half: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spread = {f"p_{name}" for name in self.statistics} | {EXTRA}
        if twice := spread & self.columns.keys():
            raise UsageError(f"two columns of the results are called {min(twice)!r}; rename the statistic")

    @cached_property
    def flat_columns(self) -> dict[str, Kind]:
        """The kind of each column of a table by name. Each p-value has its own column."""
        flat: dict[str, Kind] = {}
        for name, kind in self.columns.items():
            if kind == "p_values":
                flat |= {f"p_{name}": "number" for name in self.statistics}
            else:
                flat[name] = kind
        return flat if self.closed else {**flat, EXTRA: "json"}

    def cells(self, row: Fields, *, nested: bool) -> dict[str, Any]:
        """The cells of a row by column.

        Fields that the schema does not list are in "extra".

        Args:
            row: a row whose numbers are finite.
            nested: whether cells can be lists. Otherwise lists of units and vectors become JSON text.
        """
        deep = ("json",) if nested else ("json", "units", "vector")
        extras = {name: value for name, value in row.items() if name not in self.columns}
        fields = {**row, EXTRA: extras or None}
        for name in (name for name, kind in self.columns.items() if kind == "p_values"):
            fields |= {f"p_{key}": (row.get(name) or {}).get(key) for key in self.statistics}
        cells: dict[str, Any] = {}
        for name, kind in self.flat_columns.items():
            if (value := fields.get(name)) is not None:
                if kind == "vector":
                    vector = unpacked(value)
                    value = vector.astype("<f2" if self.half else "<f4") if nested else vector.tolist()
                if kind in deep:
                    value = json.dumps(value)
                elif kind == "number" and isinstance(value, int):
                    value = float(value)
                elif isinstance(value, str) and not nested:  # spreadsheets open CSV and TSV files
                    value = harmless(value)
            cells[name] = value
        return cells


def format_of(
    path: Path | None,
    requested: str | None = None,
    *,
    extra_formats: Mapping[str, Sequence[str]] = MappingProxyType({}),
    writable: Callable[[], Mapping[str, Sequence[str]]] | None = None,
) -> str:
    """The format of an output: the requested one, else by the ending of its name, else JSON lines.

    Args:
        path: the file, or None for standard output.
        requested: name of a format.
        extra_formats: endings of the command's own formats, in addition to `FORMATS`.
        writable: returns the formats that the message about an unknown ending lists. The default is the
            formats of rows and `extra_formats`.

    Raises:
        UsageError: the format or ending is unknown, the file is a spreadsheet, or the format cannot be
            written to standard output.
    """
    all_formats = {**extra_formats, **FORMATS}
    if requested is not None and requested not in all_formats:
        raise UsageError(f"results cannot be written as {requested!r}{nearest(requested, all_formats)}")
    suffix = ending(path) if path is not None else ""
    by_name = next((name for name, suffixes in all_formats.items() if suffix in suffixes), None)
    if requested is None and suffix in SPREADSHEETS:
        raise UsageError(f"{path}: spreadsheets cannot be written; name a .csv file, which opens as one")
    if requested is None and suffix in ELSEWHERE:
        raise UsageError(
            f"{path}: rows cannot be written as {suffix}; {ELSEWHERE[suffix]} FILE writes this format"
        )
    if requested is None and by_name is None and suffix:
        listed = writable() if writable is not None else {**extra_formats, **ROWS}
        endings = dict.fromkeys(suffix for suffixes in listed.values() for suffix in suffixes)
        accepted = ", ".join(name for name in endings if not name.endswith(PACKED)) + "; packed: "
        accepted += ", ".join(name for name in endings if name.endswith(PACKED))
        raise UsageError(
            f"--out {path}: the ending {suffix} is unknown; known endings are {accepted}; a name without an "
            "ending means JSON lines"
        )
    chosen = requested or by_name or "jsonl"
    if chosen in ("parquet", "npy") and path is None:
        raise UsageError(f"{chosen} cannot go to standard output; name a file with --out")
    return chosen


def index_command(path: Path) -> str | None:
    """The shell command that indexes a file packed by bgzip; None for other files."""
    name = ending(path)
    preset = next(
        (preset for stem, preset in _INDEXED.items() if name in (f"{stem}.gz", f"{stem}.bgz")), None
    )
    return None if preset is None else f"tabix -p {preset} {shlex.quote(str(path))}"


class LinesSink:
    """A file of JSON lines.

    Args:
        path: the file. It is replaced by the first row or commit.
        mark: continue from here: the length to which the file is cut ("bytes"), and a checksum of the bytes
            before that ("tail").

    Raises:
        StateError: the file does not match the mark.
    """

    def __init__(self, path: Path, *, mark: Mark | None = None) -> None:
        self._path = path
        self._handle: int | None = None
        self._held: list[bytes] = []
        self._waiting = self._size = 0
        if mark is not None:
            self._reopen(mark)

    def _reopen(self, mark: Mark) -> None:
        try:
            refuse_irregular(self._path)
            handle = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise changed_output_error(self._path) from None
        except OSError as error:
            raise write_error(self._path, error) from None
        size = mark["bytes"]
        if os.fstat(handle).st_size < size or _tail(handle, size) != mark["tail"]:
            os.close(handle)
            raise changed_output_error(self._path)
        os.ftruncate(handle, size)
        os.lseek(handle, size, os.SEEK_SET)
        self._handle, self._size = handle, size

    def _open(self) -> int:
        if self._handle is None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                refuse_irregular(self._path)
                flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
                self._handle = os.open(self._path, flags, 0o666)
                if is_owner_only():
                    os.fchmod(self._handle, 0o600)  # the umask does not apply to a file that existed before
            except OSError as error:
                raise write_error(self._path, error) from None
        return self._handle

    def write_lines(self, data: bytes) -> None:
        """Add rows as whole lines of JSON. If the process dies, rows since the last commit may be lost.

        Raises:
            StateError: the rows cannot be written. The committed rows are unchanged.
        """
        self._open()
        self._held.append(data)
        self._waiting += len(data)
        if self._waiting >= _BUFFER:
            self.flush()

    def flush(self) -> None:
        """Write the collected rows to the file.

        Raises:
            StateError: they cannot be written. The file then ends with the last complete flush.
        """
        handle = self._open()
        data, self._held, self._waiting = b"".join(self._held), [], 0
        unwritten = memoryview(data)
        try:
            while unwritten:
                unwritten = unwritten[os.write(handle, unwritten) :]
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(handle, self._size)
            raise write_error(self._path, error) from None
        self._size += len(data)

    def commit(self) -> Mark:
        """Sync all rows to disk, and return the mark of this position.

        Raises:
            StateError: they cannot be written. The rows of earlier commits are unchanged.
        """
        self.flush()
        try:
            DISK.sync(self._path)
        except OSError as error:
            raise write_error(self._path, error) from None
        return {"bytes": self._size, "tail": _tail(self._open(), self._size)}

    def close(self) -> None:
        """Close the file. Committed rows stay."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def is_at_mark(path: Path, mark: Mark) -> bool:
    """Whether a file of lines has its content from a commit, perhaps followed by more lines."""
    with path.open("rb") as file:
        handle = file.fileno()
        return os.fstat(handle).st_size >= mark["bytes"] and _tail(handle, mark["bytes"]) == mark["tail"]


def partial_of(path: Path) -> Path:
    """The path of the file of JSON lines from which an output is made."""
    return path.with_name(path.name + PARTIAL)


class StreamSink:
    """A stream of lines, such as standard output. Every write is flushed and cannot be undone.

    Args:
        stream: the stream.
        encode: converts rows to lines. The first call also returns the header of a table.
    """

    def __init__(self, stream: TextIO, encode: Callable[[Sequence[Fields]], bytes]) -> None:
        self._stream, self._encode = stream, encode
        self._begun = False

    def write(self, rows: Sequence[Fields]) -> None:
        """Write rows. This waits for a slow reader.

        Raises:
            StateError: the rows cannot be written.
            BrokenPipeError: the reader has closed the stream.
        """
        self.write_lines(self._encode(rows))

    def write_lines(self, data: bytes) -> None:
        """Write whole lines, like `write`."""
        self._begun = True
        try:
            self._stream.write(data.decode())
            self._stream.flush()
        except BrokenPipeError:
            raise  # the reader has closed the stream, which is not an error
        except OSError as error:
            raise write_error(None, error) from None

    def commit(self) -> Mark:
        """Do nothing: the rows have already been sent."""
        return {}

    def finish(self) -> None:
        """End the output. For a table without rows, this writes the header."""
        if not self._begun:
            self.write([])

    def close(self) -> None:
        """Do nothing: the code that opened the stream closes it."""


def json_lines(rows: Sequence[Fields]) -> bytes:
    """Rows as lines of JSON. Numbers that are not finite become null."""
    return "".join(map(_line, rows)).encode()


def _line(row: Fields) -> str:
    try:
        return json.dumps(row, allow_nan=False) + "\n"
    except ValueError:
        return json.dumps(_finite(row), allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """The value with None for every number that is not finite, which JSON cannot represent."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(element) for key, element in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(element) for element in value]
    return value


def convert(lines: Path, path: Path, schema: Schema, *, format: str) -> None:
    """Make a table from a file of JSON lines, with a few megabytes in memory at a time.

    Args:
        lines: a file with one object per line, as written by `json_lines`.
        path: the table. An old file is kept until the new one is complete.
        schema: the columns. Lists of units are nested lists in Parquet, and JSON text in CSV and TSV.
        format: "csv", "tsv", "parquet" or "npy". The last is an array of vectors that can be memory-mapped.
            The other columns are written to NAME.ids.tsv, and the facts to NAME.facts.json.

    Raises:
        OSError: the table cannot be written. An old file is unchanged.
        StateError: a line does not fit the schema.
    """

    def fill(file: IO[bytes]) -> None:
        if format == "npy":
            _fill_array(lines, file, schema)
        elif format == "parquet":
            import pyarrow.parquet as pa_parquet

            table = _Table(schema, nested=True)
            with pa_parquet.ParquetWriter(file, table.schema) as out:
                for rows in committed_rows(lines):
                    out.write_batch(table.batch(rows))
        else:
            encode = table_lines(schema, format)
            file.writelines(encode(rows) for rows in chain([[]], committed_rows(lines)))

    if format == "npy":
        columns = {name: kind for name, kind in schema.columns.items() if kind != "vector"}
        ids, facts = companion_files(path)
        convert(lines, ids, replace(schema, columns=columns, closed=True), format="tsv")
        replace_file(facts, json.dumps({**schema.facts}).encode())
    replace_file(path, packing(path, fill, blocks=False))


def companion_files(path: Path) -> tuple[Path, Path]:
    """The paths of the two files next to an array of vectors: the other columns, and the facts."""
    return path.with_suffix(".ids.tsv"), path.with_suffix(".facts.json")


def _fill_array(lines: Path, file: IO[bytes], schema: Schema) -> None:
    """Write the vectors of rows to a file in numpy's format."""
    import numpy as np

    with lines.open("rb") as opened:
        count = sum(1 for _ in opened)
    kind = np.dtype("<f2" if schema.half else "<f4")
    header = {"descr": kind.str, "fortran_order": False, "shape": (count, schema.width)}
    np.lib.format.write_array_header_1_0(file, header)
    name = next(name for name, kind in schema.columns.items() if kind == "vector")
    for rows in committed_rows(lines):
        file.writelines(unpacked(row[name]).astype(kind).tobytes() for row in rows)


def packed(vector: Any) -> str:
    """A float32 vector as base64 text for JSON lines. It takes a fifth of the space of decimal numbers."""
    return b64encode(vector.astype("<f4").tobytes()).decode()


def unpacked(value: Any) -> Any:
    """The vector of a row, (H,) float32, from base64 text or a list of numbers."""
    import numpy as np

    if isinstance(value, str):
        return np.frombuffer(b64decode(value), dtype="<f4")
    return np.array(value, dtype=np.float32)


def committed_rows(lines: Path) -> Iterator[list[dict[str, Any]]]:
    """The rows of a file of JSON lines, in batches of about 4 MiB. The same lines give the same batches."""
    with lines.open("rb") as file:
        while lines_read := file.readlines(_BATCH_BYTES):
            yield [json.loads(line) for line in lines_read]


def table_lines(schema: Schema, format: str) -> Callable[[Sequence[Fields]], bytes]:
    """A function that encodes rows as lines of CSV or TSV. Its first result begins with the header."""
    if format == "tsv":
        return _tsv_encoder(schema)
    import pyarrow.csv as pa_csv

    table, begun = _Table(schema, nested=False), False

    def encode(rows: Sequence[Fields]) -> bytes:
        nonlocal begun
        first, begun = not begun, True
        batch, out = table.batch([_finite(row) for row in rows]), io.BytesIO()
        pa_csv.write_csv(batch, out, pa_csv.WriteOptions(include_header=first))
        return out.getvalue()

    return encode


def _tsv_encoder(schema: Schema) -> Callable[[Sequence[Fields]], bytes]:
    """A function that encodes rows as lines of TSV, without Arrow: that loads pandas, which takes 65 MB."""
    header = "\t".join(schema.flat_columns) + "\n"

    def encode(rows: Sequence[Fields]) -> bytes:
        nonlocal header
        first, header = header, ""
        flat = (encodable(schema.cells(_finite(row), nested=False)) for row in rows)
        return (first + "".join("\t".join(map(_tabbed, cells.values())) + "\n" for cells in flat)).encode()

    return encode


_BREAKS = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def _tabbed(value: Any) -> str:
    """A cell of a TSV file. Cells are not quoted, so tabs and line ends are escaped."""
    if isinstance(value, str):
        return value.translate(_BREAKS)
    return "" if value is None else json.dumps(value)


class _Table:
    """A converter of rows to record batches with a declared Arrow schema.

    Args:
        schema: the columns.
        nested: see `Schema.cells`.
    """

    def __init__(self, schema: Schema, *, nested: bool) -> None:
        import pyarrow as pa  # imported only for tables: it takes time to load

        self._cells, self._arrow = partial(schema.cells, nested=nested), pa
        text, integer, number = pa.string(), pa.int64(), pa.float64()
        types = {"integer": integer, "number": number, "flag": pa.bool_()}
        types |= dict.fromkeys(("text", "json", "units", "vector"), text)
        if nested:
            alternative = pa.struct([("unit", text), ("p", number)])
            unit = {"unit": text, "start": integer, "end": integer, "surprisal": number, "entropy": number}
            unit |= {"rank": integer, "expected": pa.list_(alternative)}
            types["units"] = pa.list_(pa.struct(list(unit.items())))
            types["vector"] = pa.list_(pa.float16() if schema.half else pa.float32(), schema.width)
        facts = {"seqmlm": json.dumps({**schema.facts})} if schema.facts else None
        columns = [(name, types[kind]) for name, kind in schema.flat_columns.items()]
        self.schema = pa.schema(columns, metadata=facts)

    def batch(self, rows: Sequence[Fields]) -> Any:
        """Rows with finite numbers as a `pyarrow.RecordBatch`.

        Raises:
            StateError: a value does not fit the type of its column.
        """
        flat = list(map(self._cells, rows))
        try:
            try:
                return self._arrow.RecordBatch.from_pylist(flat, schema=self.schema)
            except UnicodeEncodeError:
                return self._arrow.RecordBatch.from_pylist(encodable(flat), schema=self.schema)
        except (self._arrow.ArrowException, OverflowError, TypeError, ValueError):
            raise self._unfit(flat) from None

    def _unfit(self, flat: Sequence[Fields]) -> StateError:
        """The error for rows with a value that does not fit its column. The message omits the value."""
        for column in self.schema:
            try:
                self._arrow.array(encodable([row[column.name] for row in flat]), type=column.type)
            except (self._arrow.ArrowException, OverflowError, TypeError, ValueError):
                return StateError(
                    f"a value in the column {column.name!r} does not have its type, {column.type}: write "
                    "JSON lines instead (a name that ends in .jsonl)"
                )
        return StateError("rows do not fit the table: write JSON lines (a name that ends in .jsonl)")


_FORMULA = re.compile("'*[=+@\\t\\r-].", re.DOTALL)  # a single "-", the name of standard input, is allowed


def harmless(text: str) -> str:
    """A text as a cell of a CSV file that no spreadsheet treats as a formula. `unescaped` reverses it.

    >>> harmless("=1+1"), harmless("a=1"), harmless("'-x")
    ("'=1+1", 'a=1', "''-x")
    """
    return "'" + text if _FORMULA.match(text) else text


def unescaped(cell: str) -> str:
    """The original text of a cell that `harmless` made."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


class UnwritableError(StateError):
    """The system refuses to write an output.

    Attributes:
        reason: the first part of the message, without the remedy, which depends on the command.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason


FREE_SPACE = "free space there, or make it writable; then run the same command"


def write_error(path: Path | None, error: OSError) -> UnwritableError:
    """The exception for an output that the system refuses; None means standard output."""
    why = error.strerror or error
    if path is None:
        return UnwritableError(f"cannot write to standard output: {why}", "name a file for it")
    return UnwritableError(f"cannot write {path}: {why}", f"{FREE_SPACE} again")


def changed_output_error(path: Path) -> StateError:
    """The exception for an output that does not match its cursor."""
    return StateError(
        f"cannot continue {path}: it has changed since the interrupted run; restore it, or run the command "
        "again without --resume"
    )


def _tail(handle: int, size: int) -> int:
    """The checksum of the last bytes before `size`."""
    start = max(0, size - _TAIL)
    return zlib.crc32(os.pread(handle, size - start, start))
