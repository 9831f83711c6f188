"""Rows as parquet: every commit is a whole file in a folder beside the output; at the end they are joined."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from seqmlm.streams.schema import Schema, finite
from seqmlm.streams.sinks import Mark, Row, Sink, changed, unwritable

_ROW_GROUP = 1 << 16  # rows; the same wherever commits fell, so that the joined file is the same
_NESTED_ROW_GROUP = 1 << 10  # where a row holds lists of units

_EXPECTED = pa.list_(pa.struct([("unit", pa.string()), ("p", pa.float64())]))
_UNIT = pa.struct(
    [
        ("unit", pa.string()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("surprisal", pa.float64()),
        ("entropy", pa.float64()),
        ("rank", pa.int64()),
        ("expected", _EXPECTED),
    ]
)
_TYPES = {
    "text": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "flag": pa.bool_(),
    "units": pa.list_(_UNIT),
    "json": pa.string(),
}


class ParquetSink(Sink):
    """A parquet file: one row a result, channels as columns, units as nested lists, the rest as JSON text.

    Args:
        path: of the joined file; the parts lie in `<path>.parts` until it is finished.
        schema: of all rows; every row group has exactly these columns.
        private: only the owner may read the file and its parts.
        mark: {"parts"}: how many parts were committed.

    Raises:
        StateError: a committed part is not there.
    """

    def __init__(
        self, path: Path, schema: Schema, *, private: bool = False, mark: Mark | None = None
    ) -> None:
        self._path, self._rows_of, self._private = path, schema, private
        self._kinds = schema.flat_columns
        self._schema = pa.schema([(name, _TYPES[kind]) for name, kind in self._kinds.items()])
        nested = "units" in self._kinds.values()
        self._group = _NESTED_ROW_GROUP if nested else _ROW_GROUP
        self._parts = path.with_name(path.name + ".parts")
        self._count = 0
        self._held: list[dict[str, Any]] = []
        self._begun = self._finished = False
        if mark is not None:
            self._reopen(mark["parts"])

    def _reopen(self, parts: int) -> None:
        missing = [n for n in range(1, parts + 1) if not self._part(n).is_file()]
        if missing:
            raise changed(self._parts)
        for file in self._parts.glob("*"):
            if file not in {self._part(n) for n in range(1, parts + 1)}:
                file.unlink()
        self._count, self._begun = parts, True

    def _part(self, number: int) -> Path:
        return self._parts / f"{number:08d}.parquet"

    def _begin(self) -> None:
        if not self._begun:
            shutil.rmtree(self._parts, ignore_errors=True)
            self._parts.mkdir(parents=True, mode=0o700 if self._private else 0o777)
            self._begun = True

    def write(self, rows: Sequence[Row]) -> None:
        self._held += [self._flat(row) for row in rows]
        while len(self._held) >= self._group:
            self._spill(self._held[: self._group])
            del self._held[: self._group]

    def _flat(self, row: Row) -> dict[str, Any]:
        flat = finite(self._rows_of.flat(row))
        return {
            name: json.dumps(value) if self._kinds[name] == "json" and value is not None else value
            for name, value in flat.items()
        }

    def _spill(self, rows: list[dict[str, Any]]) -> None:
        """Write a part: whole under its name, or not there."""
        path, unfinished = self._part(self._count + 1), self._parts / "unfinished"
        try:
            self._begin()
            pq.write_table(pa.Table.from_pylist(rows, schema=self._schema), unfinished)
            _sync(unfinished)
            os.replace(unfinished, path)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise unwritable(self._path, error) from None
        self._count += 1

    def commit(self) -> Mark:
        held, self._held = self._held, []
        if held:
            self._spill(held)
        try:
            self._begin()
            _sync(self._parts)
            _sync(self._parts.parent)
        except OSError as error:
            raise unwritable(self._path, error) from None
        return {"parts": self._count}

    def finish(self) -> None:
        self.commit()
        unfinished = self._parts / "joined"
        try:
            with pq.ParquetWriter(unfinished, self._schema) as writer:
                for table in self._groups():
                    writer.write_table(table, row_group_size=self._group)
            if self._private:
                os.chmod(unfinished, 0o600)
            _sync(unfinished)
            os.replace(unfinished, self._path)
            _sync(self._path.parent)
        except OSError as error:
            raise unwritable(self._path, error) from None
        self._finished = True

    def _groups(self) -> Iterator[pa.Table]:
        """The rows of all parts in order, cut into row groups of one size."""
        held: list[pa.RecordBatch] = []
        rows = 0
        for number in range(1, self._count + 1):
            with pq.ParquetFile(self._part(number)) as part:
                for batch in part.iter_batches(batch_size=self._group):
                    while rows + len(batch) >= self._group:
                        cut = self._group - rows
                        yield self._table([*held, batch.slice(0, cut)])
                        held, rows, batch = [], 0, batch.slice(cut)
                    if len(batch):
                        held.append(batch)
                        rows += len(batch)
        if held:
            yield self._table(held)

    def _table(self, batches: list[pa.RecordBatch]) -> pa.Table:
        return pa.Table.from_batches(batches, schema=self._schema).combine_chunks()

    def close(self) -> None:
        if self._finished:
            shutil.rmtree(self._parts, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
