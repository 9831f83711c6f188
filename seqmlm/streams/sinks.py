"""Where rows of results go: files of JSON lines that survive a crash, streams, and tables made of the lines.

A file of lines can be cut back to its last commit, so that a run that is killed and resumed loses no row and
doubles none. CSV, TSV and Parquet are made, once all rows are there, from such a file beside them,
`OUT.partial.jsonl`. The price is that the rows are on the disk twice for a moment, and that a table is not
there before it is complete.
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
"""A row of results as it is written: its fields by name."""

Mark = Mapping[str, int]
"""Where a sink stands; given back to continue from there."""

Kind = Literal["text", "integer", "number", "flag", "p_values", "units", "vector", "json"]
"""Of a column. "p_values" maps statistics to their p-values, "units" is a list of units with their spans and
surprisals, "vector" numbers of equal count (see `packed`), "json" anything else."""

EXTRA = "extra"
"""The column of a table that holds, as JSON, every field of a row that the schema does not name."""

FORMATS: Mapping[str, tuple[str, ...]] = {
    "jsonl": (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz"),
    "csv": (".csv", ".csv.gz"),
    "tsv": (".tsv", ".tsv.gz"),
    "parquet": (".parquet", ".pq"),
    "npy": (".npy",),
}
"""Format to the endings that mean it, those that are compressed by gzip last; the first format is that of a
name without an ending."""

ROWS = {name: endings for name, endings in FORMATS.items() if name != "npy"}
"""Formats of any rows: an array holds vectors alone."""

_INDEXED = {".bedgraph": "bed", ".bg": "bed", ".bed": "bed", ".vcf": "vcf"}  # ending -> preset of tabix

SPREADSHEETS = (".xlsx", ".xls", ".ods")
ELSEWHERE = {".sarif": "seqmlm review --sarif", ".html": "--report", ".htm": "--report"}
PARTIAL = ".partial.jsonl"
"""Added to the name of a table: the file of JSON lines that it is made from."""

_BUFFER = 1 << 18  # bytes that wait for the next write
_TAIL = 4096  # bytes before a mark by which a file is recognised
_BATCH_BYTES = 4 << 20  # of JSON lines that are converted together: a row group of Parquet


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns of a table of results, declared before the first row comes.

    Args:
        columns: name to kind, in order.
        statistics: their names; in a table the p-value of each has a column, `p_<name>`.
        closed: rows have no other fields, so that a table has no column for them.
        width, half: numbers of a vector, and whether they are float16, else float32.
        facts: what else is said of the rows, where a format has a place for it.

    Raises:
        UsageError: a column and a statistic whose names in a table are the same.
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
        """Name to kind of the columns of a table: p-values are columns of their own."""
        flat: dict[str, Kind] = {}
        for name, kind in self.columns.items():
            if kind == "p_values":
                flat |= {f"p_{name}": "number" for name in self.statistics}
            else:
                flat[name] = kind
        return flat if self.closed else {**flat, EXTRA: "json"}

    def cells(self, row: Fields, *, nested: bool) -> dict[str, Any]:
        """A row, whose numbers are finite, as the cells of a table by column, what the schema does not name
        under "extra"; lists of units and vectors are lists where they may be `nested`, else JSON text."""
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
                elif isinstance(value, str) and not nested:  # spreadsheets open what is no Parquet
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
    """The format of an output: as requested, else by the ending of its name; JSON lines without an ending.

    Args:
        path: the file, or None for standard output.
        requested: name of a format.
        extra_formats: formats of the command beside `FORMATS`, and their endings.
        writable: called for the formats that the message about an unknown ending lists; default: the formats
            of rows and `extra_formats`.

    Raises:
        UsageError: an unknown format or ending, a spreadsheet, or Parquet on standard output.
    """
    all_formats = {**extra_formats, **FORMATS}
    if requested is not None and requested not in all_formats:
        raise UsageError(f"results cannot be written as {requested!r}{nearest(requested, all_formats)}")
    suffix = ending(path) if path is not None else ""
    by_name = next((name for name, suffixes in all_formats.items() if suffix in suffixes), None)
    if requested is None and suffix in SPREADSHEETS:
        raise UsageError(f"{path}: no spreadsheet is written; name a .csv file, which opens as one")
    if requested is None and suffix in ELSEWHERE:
        raise UsageError(
            f"{path}: rows are not written as {suffix}; {ELSEWHERE[suffix]} FILE writes such a file"
        )
    if requested is None and by_name is None and suffix:
        listed = writable() if writable is not None else {**extra_formats, **ROWS}
        endings = dict.fromkeys(suffix for suffixes in listed.values() for suffix in suffixes)
        accepted = ", ".join(name for name in endings if not name.endswith(PACKED)) + "; packed: "
        accepted += ", ".join(name for name in endings if name.endswith(PACKED))
        raise UsageError(
            f"--out {path}: no file that ends in {suffix} is written; known endings are {accepted}; a name "
            "without an ending gets JSON lines"
        )
    chosen = requested or by_name or "jsonl"
    if chosen in ("parquet", "npy") and path is None:
        raise UsageError(f"a {chosen} file cannot go to standard output; name a file with --out")
    return chosen


def index_command(path: Path) -> str | None:
    """The command that makes an index of a file packed by bgzip; None for other files."""
    name = ending(path)
    preset = next(
        (preset for stem, preset in _INDEXED.items() if name in (f"{stem}.gz", f"{stem}.bgz")), None
    )
    return None if preset is None else f"tabix -p {preset} {shlex.quote(str(path))}"


class LinesSink:
    """A file of JSON lines.

    Args:
        path: replaced when the first row or commit comes.
        mark: {"bytes", "tail"}: the length to cut the file back to, and a checksum of what stands before it.

    Raises:
        StateError: the file is not the one of the mark.
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
                    os.fchmod(self._handle, 0o600)  # the umask does not change a file that was there before
            except OSError as error:
                raise write_error(self._path, error) from None
        return self._handle

    def write_lines(self, data: bytes) -> None:
        """Take rows as whole lines of JSON; those since the last commit may be lost when the process dies.
        Here and below StateError: they cannot be written; what was committed is still there."""
        self._open()
        self._held.append(data)
        self._waiting += len(data)
        if self._waiting >= _BUFFER:
            self.flush()

    def flush(self) -> None:
        """Hand what waits to the system; after an error the file ends with the last whole flush."""
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
        """Put everything written so far on the disk, and say where that is."""
        self.flush()
        try:
            DISK.sync(self._path)
        except OSError as error:
            raise write_error(self._path, error) from None
        return {"bytes": self._size, "tail": _tail(self._open(), self._size)}

    def close(self) -> None:
        """Close the file; what was committed stays."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def is_at_mark(path: Path, mark: Mark) -> bool:
    """Whether a file of lines is what it was at a commit, perhaps with more behind that."""
    with path.open("rb") as file:
        handle = file.fileno()
        return os.fstat(handle).st_size >= mark["bytes"] and _tail(handle, mark["bytes"]) == mark["tail"]


def partial_of(path: Path) -> Path:
    """The file of JSON lines that an output is made from."""
    return path.with_name(path.name + PARTIAL)


class StreamSink:
    """A stream of lines, such as standard output: every write is flushed, nothing can be taken back.

    Args:
        stream: written to.
        encode: rows to lines; the first call also gives what a table begins with.
    """

    def __init__(self, stream: TextIO, encode: Callable[[Sequence[Fields]], bytes]) -> None:
        self._stream, self._encode = stream, encode
        self._begun = False

    def write(self, rows: Sequence[Fields]) -> None:
        """Take rows; a reader that is slow is waited for; StateError: they cannot be written."""
        self.write_lines(self._encode(rows))

    def write_lines(self, data: bytes) -> None:
        """Take whole lines; as `write`."""
        self._begun = True
        try:
            self._stream.write(data.decode())
            self._stream.flush()
        except BrokenPipeError:
            raise  # the reader has gone: no error of ours
        except OSError as error:
            raise write_error(None, error) from None

    def commit(self) -> Mark:
        """Nothing: what was written has gone."""
        return {}

    def finish(self) -> None:
        """Nothing more comes: of a table without rows the columns are written."""
        if not self._begun:
            self.write([])

    def close(self) -> None:
        """The stream is whoever opened it's to close."""


def json_lines(rows: Sequence[Fields]) -> bytes:
    """Rows as lines of JSON; numbers that are not finite become null."""
    return "".join(map(_line, rows)).encode()


def _line(row: Fields) -> str:
    try:
        return json.dumps(row, allow_nan=False) + "\n"
    except ValueError:
        return json.dumps(_finite(row), allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """The value with None for every number that is not finite: JSON has none of those."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(element) for key, element in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(element) for element in value]
    return value


def convert(lines: Path, path: Path, schema: Schema, *, format: str) -> None:
    """Make a table from a file of JSON lines; memory holds a few megabytes of them at a time.

    Args:
        lines: an object a line, as `json_lines` writes them.
        path: of the table; the old file is there until the new one is complete.
        schema: its columns. Lists of units are nested lists in Parquet and JSON text in CSV and TSV.
        format: "csv", "tsv", "parquet" or "npy": an array of vectors, which can be mapped to memory, beside
            the other columns as NAME.ids.tsv and the facts as NAME.facts.json.

    Raises:
        OSError: it cannot be written; an old file is still there.
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
    """The files beside an array of vectors: the other columns, and the facts."""
    return path.with_suffix(".ids.tsv"), path.with_suffix(".facts.json")


def _fill_array(lines: Path, file: IO[bytes], schema: Schema) -> None:
    """Write the vectors of rows as numpy has arrays."""
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
    """A vector of float32 as text of JSON lines that a table is made of: a fifth of its numbers' digits."""
    return b64encode(vector.astype("<f4").tobytes()).decode()


def unpacked(value: Any) -> Any:
    """The vector of a row, (H,) float32, whichever way it is written."""
    import numpy as np

    if isinstance(value, str):
        return np.frombuffer(b64decode(value), dtype="<f4")
    return np.array(value, dtype=np.float32)


def committed_rows(lines: Path) -> Iterator[list[dict[str, Any]]]:
    """The rows of JSON lines, in batches cut by bytes: the same lines always give the same table."""
    with lines.open("rb") as file:
        while lines_read := file.readlines(_BATCH_BYTES):
            yield [json.loads(line) for line in lines_read]


def table_lines(schema: Schema, format: str) -> Callable[[Sequence[Fields]], bytes]:
    """An encoder of rows as lines of CSV or TSV; its first lines begin with the names of the columns."""
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
    """An encoder of rows as lines of TSV; without Arrow, which loads pandas: 65 MB."""
    header = "\t".join(schema.flat_columns) + "\n"

    def encode(rows: Sequence[Fields]) -> bytes:
        nonlocal header
        first, header = header, ""
        flat = (encodable(schema.cells(_finite(row), nested=False)) for row in rows)
        return (first + "".join("\t".join(map(_tabbed, cells.values())) + "\n" for cells in flat)).encode()

    return encode


_BREAKS = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def _tabbed(value: Any) -> str:
    """A cell of a TSV file, which nothing quotes: what would end it is an escape."""
    if isinstance(value, str):
        return value.translate(_BREAKS)
    return "" if value is None else json.dumps(value)


class _Table:
    """Rows as record batches of a declared Arrow schema; `nested` as of `Schema.cells`."""

    def __init__(self, schema: Schema, *, nested: bool) -> None:
        import pyarrow as pa  # only where a table is asked for: it takes time to load

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
        """The rows, whose numbers are finite, as a `pyarrow.RecordBatch`; StateError: a value that its column
        cannot hold."""
        flat = list(map(self._cells, rows))
        try:
            try:
                return self._arrow.RecordBatch.from_pylist(flat, schema=self.schema)
            except UnicodeEncodeError:
                return self._arrow.RecordBatch.from_pylist(encodable(flat), schema=self.schema)
        except (self._arrow.ArrowException, OverflowError, TypeError, ValueError):
            raise self._unfit(flat) from None

    def _unfit(self, flat: Sequence[Fields]) -> StateError:
        """The error for rows of which a value does not fit its column; the value is not told."""
        for column in self.schema:
            try:
                self._arrow.array(encodable([row[column.name] for row in flat]), type=column.type)
            except (self._arrow.ArrowException, OverflowError, TypeError, ValueError):
                return StateError(
                    f"a value of the column {column.name!r} is no {column.type}, as the table has it: write "
                    "JSON lines (a name that ends in .jsonl), which take any value"
                )
        return StateError("rows do not fit the table: write JSON lines (a name that ends in .jsonl)")


_FORMULA = re.compile("'*[=+@\\t\\r-].", re.DOTALL)  # "-" alone, as standard input is called, is none


def harmless(text: str) -> str:
    """A text as a cell of a CSV file that no spreadsheet takes for a formula; `unescaped` gives it back.

    >>> harmless("=1+1"), harmless("a=1"), harmless("'-x")
    ("'=1+1", 'a=1', "''-x")
    """
    return "'" + text if _FORMULA.match(text) else text


def unescaped(cell: str) -> str:
    """The text that `harmless` made a cell of."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


class UnwritableError(StateError):
    """Output that the system refuses.

    Attributes:
        reason: what happened, without what to do about it: that depends on the command.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason


FREE_SPACE = "free space there, or make it writable; then run the same command"


def write_error(path: Path | None, error: OSError) -> UnwritableError:
    """The error for output (None: standard output) that the system refuses."""
    why = error.strerror or error
    if path is None:
        return UnwritableError(f"cannot write to standard output: {why}", "name a file for it")
    return UnwritableError(f"cannot write {path}: {why}", f"{FREE_SPACE} again")


def changed_output_error(path: Path) -> StateError:
    """The error for output that is not what the cursor remembers."""
    return StateError(
        f"cannot continue {path}: it is not what the unfinished scoring has written; put it back, or score "
        "again without --resume"
    )


def _tail(handle: int, size: int) -> int:
    """Checksum of the last bytes before `size`."""
    start = max(0, size - _TAIL)
    return zlib.crc32(os.pread(handle, size - start, start))
