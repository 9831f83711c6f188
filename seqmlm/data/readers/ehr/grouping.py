"""Rows of many tables, in any order, brought together by subject; what memory cannot hold waits on disk.

A Grace hash partition (Kitsuregawa et al. 1983): rows go to one of 256 parts by a hash of the subject, all
parts in one unnamed temporary file that nobody else can open; then each part is grouped by itself.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import IO, Any

# subject, time or None, code, value or None, text or None, visit or None, kind, number of the source, line
# in it. A plain tuple, because there are hundreds of millions of them.
Row = tuple[Any, ...]

SUBJECT, TIME, CODE, VALUE, TEXT, VISIT, KIND, SOURCE, LINE = range(9)

ROWS_IN_MEMORY = 100_000
_PARTS = 256
_DEPTH = 3  # of parts of parts; a subject of its own cannot be divided


def grouped(
    rows: Iterable[Row], *, limit: int = ROWS_IN_MEMORY, _depth: int = 0
) -> Iterator[tuple[str, list[Row]]]:
    """Yield (subject, its rows in their order) for rows in any order.

    Subjects come in order of first appearance where all rows fit in memory, else in a fixed order of parts.

    Args:
        rows: in any order, any number.
        limit: rows kept in memory.
    """
    held: list[Row] = []
    with closing(_Parts(_depth)) as parts:
        for row in rows:
            held.append(row)
            if len(held) >= limit:
                parts.put(held)
                held = []
        if not parts.sizes:
            yield from _groups(held)
            return
        parts.put(held)
        held = []
        for part, size in sorted(parts.sizes.items()):
            if size > limit and _depth < _DEPTH:
                yield from grouped(parts.get(part), limit=limit, _depth=_depth + 1)
            else:
                yield from _groups(parts.get(part))


def _groups(rows: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row[SUBJECT], []).append(row)
    while found:
        subject = next(iter(found))
        yield subject, found.pop(subject)


class _Parts:
    """The temporary file: batches of Arrow, and where those of each part stand."""

    def __init__(self, salt: int) -> None:
        self._salt = salt
        self._file: IO[bytes] | None = None
        self._places: dict[int, list[tuple[int, int]]] = {}
        self.sizes: dict[int, int] = {}

    def put(self, rows: list[Row]) -> None:
        """Divide rows among the parts and write them."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="seqmlm-")  # noqa: SIM115 - closed with this object
        divided: dict[int, list[Row]] = {}
        for row in rows:
            part = zlib.crc32(row[SUBJECT].encode("utf-8", "surrogatepass"), self._salt) % _PARTS
            divided.setdefault(part, []).append(row)
        for part, members in divided.items():
            data = _packed(members)
            self._places.setdefault(part, []).append((self._file.tell(), len(data)))
            self._file.write(data)
            self.sizes[part] = self.sizes.get(part, 0) + len(members)

    def get(self, part: int) -> Iterator[Row]:
        """The rows of a part, in the order they were put."""
        import pyarrow as pa

        assert self._file is not None
        for start, length in self._places[part]:
            self._file.seek(start)
            batch = pa.ipc.read_record_batch(pa.py_buffer(self._file.read(length)), _schema())
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _packed(rows: list[Row]) -> Any:
    import pyarrow as pa

    schema = _schema()
    columns = [
        pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), schema.types, strict=True)
    ]
    return pa.record_batch(columns, schema=schema).serialize()


def _schema() -> Any:
    import pyarrow as pa

    text, real, whole = pa.string(), pa.float64(), pa.int64()
    types = (text, real, text, real, text, text, text, whole, whole)
    return pa.schema([(str(i), kind) for i, kind in enumerate(types)])
