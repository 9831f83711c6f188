"""Encodings on disk: an Arrow stream that `datasets` can load and that numpy views without copying.

`sequences.arrow` has a row per window and a list per column: ids, groups, spans (start, end), and classes,
positions, weights, symbols, `channel:<name>` where the tokenizer gives them; `record` and `window` number its
origin.
All batches but the last have the same number of rows, so that row i is found by division.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from seqmlm.data.identity import IDENTITIES, SALT, identity_hash, new_salt
from seqmlm.data.record import Record
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import Units

SEQUENCES, RECORDS = "sequences.arrow", "records.arrow"
LENGTHS, OWNERS, MARKS = "lengths.bin", "owners.bin", "marks.bin"  # plain numbers, until the rows are divided
CHANNEL = "channel:"

_BATCH_TOKENS = 1 << 22  # what one batch may hold in memory while it is gathered
_BATCH_ROWS = 1 << 13
_TWO_NUMBERS, _NUMBER = Struct("<qq"), Struct("<Q")
_RECORD_ROWS = 1 << 12
_RECORD_SCHEMA = pa.schema(
    [("id", pa.string()), ("source", pa.string()), ("line", pa.int64()), ("document", pa.string())]
)


def rows_per_batch(max_length: int) -> int:
    """Rows of one batch: a power of two, fewer for longer windows, so that memory has a bound."""
    rows = max(1, min(_BATCH_ROWS, _BATCH_TOKENS // max(1, max_length)))
    return 1 << (rows.bit_length() - 1)


class _ArrowStream:
    """An Arrow stream file whose schema is that of its first batch."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sink: Any = pa.OSFile(str(path), "wb")
        self._writer: Any = None

    def write(self, batch: Any) -> None:
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._sink, batch.schema)
        self._writer.write_batch(batch)

    def close(self) -> None:
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            self._sink.close()


class SequenceWriter:
    """Appends windows to `sequences.arrow` and keeps beside it, as plain numbers, their lengths and records.

    Args:
        folder: an existing folder.
        max_length: of a window, in tokens.
        units: counts the units of the windows.
    """

    def __init__(self, folder: Path, max_length: int, units: Units) -> None:
        self._rule = units
        self.rows = self.tokens = self.units = 0
        self._limit = rows_per_batch(max_length)
        self._stream = _ArrowStream(folder / SEQUENCES)
        self._lengths = (folder / LENGTHS).open("wb")
        self._owners = (folder / OWNERS).open("wb")
        self._files = ExitStack()
        for file in (self._stream, self._lengths, self._owners):
            self._files.callback(file.close)
        self._held: list[Encoding] = []
        self._origin: list[tuple[int, int]] = []

    def add(self, encoding: Encoding, record: int, window: int) -> None:
        """Append one window: number `window` of record number `record`."""
        self._held.append(encoding)
        self._origin.append((record, window))
        if len(self._held) >= self._limit:
            self._flush()

    def _flush(self) -> None:
        if not self._held:
            return
        lengths = np.fromiter(map(len, self._held), np.int32, len(self._held))
        offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
        origin = np.array(self._origin, dtype=np.int64)
        columns = {name: _lists(offsets, values) for name, values in self._columns().items()}
        columns["record"], columns["window"] = pa.array(origin[:, 0]), pa.array(origin[:, 1].astype(np.int32))
        self._stream.write(pa.record_batch(columns))
        self._lengths.write(lengths.tobytes())
        self._owners.write(origin[:, 0].tobytes())
        self.rows += len(lengths)
        self.tokens += int(offsets[-1])
        ids, groups = (np.concatenate([getattr(e, name) for e in self._held]) for name in ("ids", "groups"))
        self.units += self._rule.count(ids, groups, offsets)
        self._held, self._origin = [], []

    def _columns(self) -> dict[str, NDArray[Any]]:
        """Per-token arrays of the held encodings, end to end."""
        first = self._held[0]
        found = {name: np.concatenate([getattr(e, name) for e in self._held]) for name in ("ids", "groups")}
        if first.spans is not None:
            found["spans"] = np.concatenate([e.spans for e in self._held if e.spans is not None])
        for name in ("classes", "positions", "weights", "symbols"):
            if getattr(first, name) is not None:
                found[name] = np.concatenate([getattr(e, name) for e in self._held])
        for name in first.channels:
            found[CHANNEL + name] = np.concatenate([e.channels[name] for e in self._held])
        return found

    def close(self) -> None:
        """Write what is held and close the files, all of them even if one fails."""
        with self._files:
            self._flush()


class RecordWriter:
    """Appends to `records.arrow` where each record came from, and beside it a keyed hash of what it is.

    Args:
        folder: an existing folder.
        identity: what makes two records the same one (`Domain.identity`).
    """

    def __init__(self, folder: Path, identity: Callable[[Record], str]) -> None:
        self.rows = 0
        self._identity = identity
        salt = new_salt()
        np.save(folder / SALT, salt)
        self._salt = salt.tobytes()
        self._identities = (folder / IDENTITIES).open("wb")
        self._stream = _ArrowStream(folder / RECORDS)
        self._marks = (folder / MARKS).open("wb")
        self._files = ExitStack()
        self._files.callback(self._stream.close)
        self._files.callback(self._marks.close)
        self._files.callback(self._identities.close)
        self._held: list[tuple[str, str, int, str | None]] = []

    def add(self, record: Record, mark: tuple[int, int]) -> int:
        """Append one record with the marks its split needs; returns its number."""
        self._held.append((record.id, record.source, record.line, record.document))
        self._marks.write(_TWO_NUMBERS.pack(*mark))
        self._identities.write(_NUMBER.pack(identity_hash(self._identity(record), self._salt)))
        self.rows += 1
        if len(self._held) >= _RECORD_ROWS:
            self._flush()
        return self.rows - 1

    def _flush(self) -> None:
        if self._held:
            columns = list(zip(*self._held, strict=True))
            arrays = [pa.array(c, type=t.type) for c, t in zip(columns, _RECORD_SCHEMA, strict=True)]
            self._stream.write(pa.record_batch(arrays, schema=_RECORD_SCHEMA))
            self._held = []

    def close(self) -> None:
        """Write what is held and close the files, all of them even if one fails."""
        with self._files:
            self._flush()


class ArrowRows:
    """Random access to the rows of an Arrow stream on disk, through a memory map.

    Attributes:
        table: all of it.
        batches: how many there are.
        size: rows of each of them but the last.
    """

    def __init__(self, path: Path) -> None:
        with pa.memory_map(str(path)) as source:
            self.table = pa.ipc.open_stream(source).read_all()
        chunks = self.table.column(0).chunks
        self.size = len(chunks[0]) if chunks else 1
        self.batches = len(chunks)

    def views(self, batch: int) -> dict[str, NDArray[Any]]:
        """Column name to its values in one batch, end to end, and "offsets" (rows + 1,); without copying."""
        found = {}
        for name in self.table.column_names:
            chunk = self.table.column(name).chunk(batch)
            if isinstance(chunk, pa.ListArray):
                found["offsets"] = chunk.offsets.to_numpy()
                chunk = chunk.values
            if isinstance(chunk, pa.FixedSizeListArray):
                found[name] = chunk.values.to_numpy().reshape(-1, 2)
            else:
                found[name] = chunk.to_numpy(zero_copy_only=True)
        return found


def _lists(offsets: NDArray[np.int32], values: NDArray[Any]) -> Any:
    inner = pa.array(values.reshape(-1))
    if values.ndim == 2:
        inner = pa.FixedSizeListArray.from_arrays(inner, 2)
    return pa.ListArray.from_arrays(pa.array(offsets), inner)
