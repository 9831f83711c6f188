"""Prepared data on disk: encodings in an Arrow stream, divided into splits, read through a memory map.

`sequences.arrow` has a row per window, and a column per array. The columns ids and groups always exist. The
columns spans (start, end), classes, positions, weights, symbols and `channel:<name>` exist if the tokenizer
provides them. The columns `record` and `window` number the origin of the window.

`datasets` can load the file, and numpy views it without copying, so that memory does not grow with the data.
All batches except the last have the same number of rows, so that a row is found by division. Rows are divided
into splits only when all are on disk, because a chronological split cannot know its parts earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from seqmlm.data.counts import with_things
from seqmlm.data.identity import IDENTITIES, SALT, identity_hash, new_salt, write_trained_on
from seqmlm.data.record import Record, encodable
from seqmlm.data.splits import CALIBRATION, PARTS, TRAIN, Part, Parts, Split
from seqmlm.engine.types import Encoding, Floats, Ids, TokenSpace
from seqmlm.engine.units import Units
from seqmlm.engine.windows import Moving, moved_window
from seqmlm.errors import StateError
from seqmlm.parsing import read_json

SEQUENCES, RECORDS = "sequences.arrow", "records.arrow"
# Plain numbers, until the rows are divided.
LENGTHS, OWNERS, MARKS, MOVES = "lengths.bin", "owners.bin", "marks.bin", "moves.bin"
COLUMNS = ("ids", "groups", "spans", "classes", "positions", "weights", "symbols")
CHANNEL = "channel:"

_BATCH_TOKENS = 1 << 22  # largest number of tokens of a batch in memory
_BATCH_ROWS = 1 << 13
_TWO_NUMBERS, _NUMBER = Struct("<qq"), Struct("<Q")
_RECORD_ROWS = 1 << 12
_RECORD_SCHEMA = pa.schema(
    [("id", pa.string()), ("source", pa.string()), ("line", pa.int64()), ("document", pa.string())]
)


def rows_per_batch(max_length: int) -> int:
    """Rows of a batch: a power of two, fewer for longer windows, so that memory is bounded."""
    rows = max(1, min(_BATCH_ROWS, _BATCH_TOKENS // max(1, max_length)))
    return 1 << (rows.bit_length() - 1)


class _Writer:
    """Files that grow together in batches. One of them is an Arrow stream."""

    def __init__(self, folder: Path, stream: str, *names: str) -> None:
        self.rows = 0
        self._files = ExitStack()
        self._sink = self._files.enter_context(pa.OSFile(str(folder / stream), "wb"))
        self._stream: Any = None  # its schema is that of the first batch
        self._numbers = [self._files.enter_context((folder / name).open("wb")) for name in names]

    def _write(self, batch: Any) -> None:
        if self._stream is None:
            self._stream = self._files.enter_context(pa.ipc.new_stream(self._sink, batch.schema))
        self._stream.write_batch(batch)

    def _flush(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Write buffered data and close all files, even if one of them fails."""
        with self._files:
            self._flush()


class SequenceWriter(_Writer):
    """Appends windows to `sequences.arrow`, and their lengths, records and moves to other files."""

    def __init__(self, folder: Path, max_length: int, units: Units) -> None:
        super().__init__(folder, SEQUENCES, LENGTHS, OWNERS, MOVES)
        self._rule = units
        self.tokens = self.units = 0
        self._limit = rows_per_batch(max_length)
        self._held: list[Encoding] = []
        self._origin: list[tuple[int, int]] = []

    def add(self, encoding: Encoding, record: int, window: int) -> None:
        """Append a window with the number `window` of the record with the number `record`."""
        self._held.append(encoding)
        self._origin.append((record, window))
        if len(self._held) >= self._limit:
            self._flush()

    def add_moving(self, moving: Moving, record: int) -> None:
        """Append the windows of a record whose cuts may move."""
        rows = self.rows + len(self._held) + np.arange(len(moving.windows))
        repeated = np.tile([moving.head, moving.tail], (len(rows), 1))
        self._numbers[2].write(np.column_stack([rows, repeated, moving.moves]).astype("<i8").tobytes())
        for number, window in enumerate(moving.windows):
            self.add(window, record, number)

    def _flush(self) -> None:
        if not self._held:
            return
        lengths = np.fromiter(map(len, self._held), np.int32, len(self._held))
        offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
        origin = np.array(self._origin, dtype=np.int64)
        columns = {name: _lists(offsets, values) for name, values in self._columns().items()}
        columns["record"], columns["window"] = pa.array(origin[:, 0]), pa.array(origin[:, 1].astype(np.int32))
        self._write(pa.record_batch(columns))
        self._numbers[0].write(lengths.tobytes())
        self._numbers[1].write(origin[:, 0].tobytes())
        self.rows += len(lengths)
        self.tokens += int(offsets[-1])
        ids, groups = (np.concatenate([getattr(e, name) for e in self._held]) for name in ("ids", "groups"))
        self.units += self._rule.count(ids, groups, offsets)
        self._held, self._origin = [], []

    def _columns(self) -> dict[str, NDArray[Any]]:
        """Per-token arrays of the buffered encodings, concatenated."""
        first = self._held[0]
        names = [name for name in COLUMNS if getattr(first, name) is not None]
        columns = {name: np.concatenate([getattr(e, name) for e in self._held]) for name in names}
        for name in first.channels:
            columns[CHANNEL + name] = np.concatenate([e.channels[name] for e in self._held])
        return columns


class RecordWriter(_Writer):
    """Appends the origin of each record to `records.arrow`, and a keyed hash of it to another file."""

    def __init__(self, folder: Path, identity: Callable[[Record], str]) -> None:
        super().__init__(folder, RECORDS, MARKS, IDENTITIES)
        self._identity = identity
        salt = new_salt()
        np.save(folder / SALT, salt)
        self._salt = salt.tobytes()
        self._held: list[tuple[str, str, int, str | None]] = []

    def add(self, record: Record, mark: tuple[int, int]) -> int:
        """Append a record with its marks for the split, and return its number."""
        named = encodable([record.id, record.source, record.document])
        self._held.append((named[0], named[1], record.line, named[2]))
        self._numbers[0].write(_TWO_NUMBERS.pack(*mark))
        self._numbers[1].write(_NUMBER.pack(identity_hash(self._identity(record), self._salt)))
        self.rows += 1
        if len(self._held) >= _RECORD_ROWS:
            self._flush()
        return self.rows - 1

    def _flush(self) -> None:
        if self._held:
            columns = list(zip(*self._held, strict=True))
            arrays = [pa.array(c, type=t.type) for c, t in zip(columns, _RECORD_SCHEMA, strict=True)]
            self._write(pa.record_batch(arrays, schema=_RECORD_SCHEMA))
            self._held = []


class ArrowRows:
    """Random access to the rows of a memory-mapped Arrow stream.

    All batches except the last have `size` rows.
    """

    def __init__(self, path: Path) -> None:
        with pa.memory_map(str(path)) as source:
            self.table = pa.ipc.open_stream(source).read_all()
        chunks = self.table.column(0).chunks
        self.size = len(chunks[0]) if chunks else 1
        self.batches = len(chunks)

    def views(self, batch: int) -> dict[str, NDArray[Any]]:
        """The concatenated values of each column in a batch, and "offsets" (rows + 1,), without copying."""
        columns = {}
        for name in self.table.column_names:
            chunk = self.table.column(name).chunk(batch)
            if isinstance(chunk, pa.ListArray):
                columns["offsets"] = chunk.offsets.to_numpy()
                chunk = chunk.values
            if isinstance(chunk, pa.FixedSizeListArray):
                columns[name] = chunk.values.to_numpy().reshape(-1, 2)
            else:
                columns[name] = chunk.to_numpy(zero_copy_only=True)
        return columns


def _lists(offsets: NDArray[np.int32], values: NDArray[Any]) -> Any:
    inner = pa.array(values.reshape(-1))
    if values.ndim == 2:
        inner = pa.FixedSizeListArray.from_arrays(inner, 2)
    return pa.ListArray.from_arrays(pa.array(offsets), inner)


TOKEN_COUNTS = "token_counts.npy"
CALIBRATES = "calibration_records.npy"

_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def divide(folder: Path, split: Split, space: TokenSpace, max_length: int) -> dict[str, Any]:
    """Write the rows and lengths of all splits, and token counts and record hashes of the training split.

    The numbers of the calibration records are kept, so that these records can be read again. The plain files
    of the writers are removed from the folder. No window may be longer than `max_length`.

    Returns:
        Statistics: unknown_tokens, length_quantiles, and for each part records, windows and tokens.
    """
    owners, lengths = _plain(folder / OWNERS, np.int64), _plain(folder / LENGTHS, np.int32)
    parts = split.parts(_plain(folder / MARKS, np.int64).reshape(-1, 2))
    statistics: dict[str, Any] = {}
    for part, called in enumerate(PARTS):
        rows = np.flatnonzero(parts[owners] == part)
        np.save(folder / f"{called}.npy", rows)
        np.save(folder / f"{called}_lengths.npy", lengths[rows])
        statistics[called] = {
            "records": int(np.count_nonzero(parts == part)),
            "windows": len(rows),
            "tokens": int(lengths[rows].sum(dtype=np.int64)),
        }
    np.save(folder / CALIBRATES, np.flatnonzero(parts == CALIBRATION))
    write_trained_on(folder, parts == TRAIN)
    _write_moves(folder)
    by_length = np.bincount(lengths, minlength=max_length + 1)
    counts, statistics["unknown_tokens"] = _count_tokens(folder, owners, lengths, parts, space)
    statistics["length_quantiles"] = _quantiles(by_length)
    np.save(folder / TOKEN_COUNTS, counts)
    for name in (MARKS, OWNERS, LENGTHS, MOVES):
        (folder / name).unlink()
    return statistics


WAYS = 8
"""Number of ways in which a long record may be cut into windows. Epochs use them in turn."""

TRAIN_MOVES = "train_moves.npy"


def _write_moves(folder: Path) -> None:
    """Write an array (3 + `WAYS`, M) about the M training windows whose cuts may move.

    It has their indices, the numbers of tokens that they repeat at both ends, and their moves.
    """
    moves = _plain(folder / MOVES, np.int64).reshape(-1, 3 + WAYS)
    rows = _mapped(folder / "train.npy")
    at = np.searchsorted(rows, moves[:, 0])
    trained = np.flatnonzero(rows[np.minimum(at, len(rows) - 1)] == moves[:, 0]) if len(rows) else at[:0]
    if not len(trained):
        return
    np.save(folder / TRAIN_MOVES, np.concatenate([at[trained][None], moves[trained, 1:].T]))


def _count_tokens(
    folder: Path, owners: NDArray[np.int64], lengths: NDArray[np.int32], parts: Parts, space: TokenSpace
) -> tuple[NDArray[np.int64], int]:
    """The token counts (V,) of the train split, and the number of unknown tokens in all parts."""
    counts = np.zeros((2, space.size), dtype=np.int64)
    start = 0
    # Read, not mapped, because mapped pages would count as memory of this process.
    with pa.OSFile(str(folder / SEQUENCES)) as source, pa.ipc.open_stream(source) as batches:
        for batch in batches:
            rows = slice(start, start + len(batch))
            start += len(batch)
            ids = batch.column("ids").values.to_numpy()
            held_out = np.repeat(parts[owners[rows]] != TRAIN, lengths[rows])
            # Ordinary tokens without a unit are never predicted. A unigram that counted them would look
            # worse.
            counted = (batch.column("groups").values.to_numpy() >= 0) | space.is_special[ids]
            ids, held_out = ids[counted], held_out[counted]
            for part in (0, 1):
                counts[part] += np.bincount(ids[held_out == part], minlength=space.size)
    return counts[0], 0 if space.unk is None else int(counts[:, space.unk].sum())


def _quantiles(by_length: NDArray[np.int64]) -> dict[str, int]:
    """Quantiles of window lengths, from the number of windows with each length."""
    ends = np.cumsum(by_length)
    at = [int(np.searchsorted(ends, max(1, round(q * int(ends[-1]))))) for q in _QUANTILES]
    return dict(zip(map(str, _QUANTILES), at, strict=True))


def _plain(path: Path, kind: type[np.generic]) -> NDArray[Any]:
    """A binary file of numbers as a memory-mapped array."""
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.zeros(0, dtype=kind)
    return np.memmap(path, dtype=kind, mode="r").view(np.ndarray)


MANIFEST = "prepared.json"


class Origin(NamedTuple):
    """The origin of a window. `record` and `window` are numbers."""

    id: str
    source: str
    line: int
    document: str | None
    record: int
    window: int


class Place(NamedTuple):
    """The place of a record: its number in the entry, its id, file and line, and the number of the file."""

    number: int
    id: str
    source: str
    line: int
    file: int


class _Columns(NamedTuple):
    """The concatenated columns of a batch. Channels are separate."""

    offsets: NDArray[np.int32]
    arrays: dict[str, Any]
    channels: dict[str, Floats]

    @classmethod
    def of(cls, views: dict[str, NDArray[Any]]) -> _Columns:
        channels = {n.removeprefix(CHANNEL): v for n, v in views.items() if n.startswith(CHANNEL)}
        return cls(views["offsets"], {name: views[name] for name in COLUMNS if name in views}, channels)


class EncodedDataset:
    """One part of the data in a folder from `prepare` (a `seqmlm.engine.types.MovingWindows`).

    If the data were prepared for it, the windows of long training records are cut at other places in each
    epoch. Other windows, and the windows of other splits, do not change.

    The object has only file handles and numpy views, so that memory does not grow with the data. It is
    pickled as its path, so that loader workers open the same files. The arrays of `[index]` are read-only
    views of the file.
    """

    def __init__(self, folder: Path, part: Part) -> None:
        self.folder, self.part = Path(folder), part
        self._rows = _mapped(self.folder / f"{part}.npy")
        self._lengths = _mapped(self.folder / f"{part}_lengths.npy")
        self._arrow = ArrowRows(self.folder / SEQUENCES)
        self._columns: list[_Columns | None] = [None] * self._arrow.batches
        moves = self.folder / TRAIN_MOVES
        self._moves = (
            _mapped(moves) if part == "train" and moves.exists() else np.zeros((3 + WAYS, 0), np.int64)
        )

    @property
    def lengths(self) -> Ids:
        """(N,) tokens of each window, including special tokens."""
        return self._lengths

    @property
    def rows(self) -> NDArray[np.int64]:
        """(N,) the rows of this split in `sequences.arrow`, ascending."""
        return self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Encoding:
        batch, row = divmod(int(self._rows[index]), self._arrow.size)
        columns = self._columns[batch]
        if columns is None:
            columns = self._columns[batch] = _Columns.of(self._arrow.views(batch))
        part = slice(*columns.offsets[row : row + 2])
        channels = {name: values[part] for name, values in columns.channels.items()}
        return Encoding(**{name: values[part] for name, values in columns.arrays.items()}, channels=channels)

    @cached_property
    def longest(self) -> int:
        """Number of tokens of the longest window in any epoch."""
        moved = self._moves[0]
        lengths = [int(self.lengths_at(epoch, moved).max()) for epoch in range(WAYS)] if len(moved) else []
        return max([int(self._lengths.max(initial=0)), *lengths])

    def lengths_at(self, epoch: int, indices: NDArray[np.int64]) -> Ids:
        """(M,) number of tokens of windows in an epoch."""
        lengths = self._lengths[indices]
        moved, moves = self._moves[0], self._moves[3 + epoch % WAYS]
        at = np.searchsorted(moved, indices)
        here = np.flatnonzero(moved[np.minimum(at, len(moved) - 1)] == indices) if len(moved) else at[:0]
        if not len(here):
            return lengths
        at = at[here]
        # The first window of a record never moves. Therefore the end of the window before it never moves
        # either.
        end = np.where(at + 1 < len(moved), moves[np.minimum(at + 1, len(moved) - 1)], 0)
        lengths_of_epoch = lengths.copy()
        lengths_of_epoch[here] += (end - moves[at]).astype(lengths.dtype)
        return lengths_of_epoch

    def at(self, epoch: int, index: int) -> Encoding:
        """A window as it is cut in an epoch."""
        moved, moves = self._moves[0], self._moves[3 + epoch % WAYS]
        at = int(np.searchsorted(moved, index))
        if at == len(moved) or moved[at] != index:
            return self[index]
        begin, end = int(moves[at]), int(moves[at + 1]) if at + 1 < len(moved) else 0
        if begin == end == 0:
            return self[index]
        head, tail = self._moves[1:3, at].tolist()
        inside = int(self._lengths[index]) - head - tail
        end += inside
        pieces, first, last = [self[index]], index, index
        while begin < 0:
            first -= 1
            length = int(self._lengths[first]) - head - tail
            pieces.insert(0, self[first])
            begin, end, inside = begin + length, end + length, inside + length
        while end > inside:
            last += 1
            pieces.append(self[last])
            inside += len(pieces[-1]) - head - tail
        return moved_window(pieces, head, tail, begin, end)

    def records(self, indices: Sequence[int]) -> NDArray[np.int64]:
        """(M,) the number of the record of each window."""
        owners = self._arrow.table.column("record").take(self._rows[np.asarray(indices, dtype=np.int64)])
        return np.asarray(owners.to_numpy(), dtype=np.int64)

    def origin(self, index: int) -> Origin:
        """The origin of window `index`: its record, file and line."""
        batch, row = divmod(int(self._rows[index]), self._arrow.size)
        record, window = (self._arrow.table.column(n).chunk(batch)[row].as_py() for n in ("record", "window"))
        table = self._records.table
        where, at = divmod(record, self._records.size)
        values = {name: table.column(name).chunk(where)[at].as_py() for name in table.column_names}
        return Origin(**values, record=record, window=window)

    @cached_property
    def _records(self) -> ArrowRows:
        return ArrowRows(self.folder / RECORDS)

    def __reduce__(self) -> tuple[Any, ...]:
        return EncodedDataset, (self.folder, self.part)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A finished cache entry of `prepare`: its folder, parts and statistics.

    `datasets.Dataset.from_file` loads `sequences.arrow` in the folder.

    Args:
        folder: the folder.
        train, validation, calibration: the parts.
        statistics: see `prepare`.
        token_counts: (V,) occurrences of each token id in the train split, including special tokens.
    """

    folder: Path
    train: EncodedDataset
    validation: EncodedDataset
    calibration: EncodedDataset
    statistics: dict[str, Any]
    token_counts: NDArray[np.int64]

    @classmethod
    def open(cls, folder: Path) -> Prepared:
        """Open a finished cache entry.

        Raises:
            StateError: the folder is not a complete cache entry.
        """
        try:
            statistics = read_json(folder / MANIFEST)
            things = statistics.pop("things", ())
            statistics["problems"] = with_things(statistics["problems"], things)
            counts = np.load(folder / TOKEN_COUNTS)
            train, validation, calibration = (EncodedDataset(folder, part) for part in PARTS)
        except (OSError, ValueError) as error:
            raise StateError(
                f"{folder} is not a complete cache entry ({error}); delete it and run again"
            ) from error
        return cls(folder, train, validation, calibration, statistics, counts)

    def places(self, part: Part, limit: int) -> list[Place]:
        """The places of at most `limit` evenly spread records of a part.

        Raises:
            StateError: the part is missing.
        """
        try:
            numbers = np.load(self.folder / CALIBRATES) if part == "calibration" else self._numbers(part)
        except (OSError, ValueError) as error:
            raise StateError(f"{self.folder} is incomplete ({error}); delete it and run again") from error
        if len(numbers) > limit:
            numbers = numbers[np.linspace(0, len(numbers) - 1, limit).astype(np.int64)]
        records = ArrowRows(self.folder / RECORDS)
        rows = records.table.select(["id", "source", "line"]).take(numbers)
        files = {name: number for number, name in enumerate(records.table["source"].unique().to_pylist())}
        places = zip(numbers.tolist(), *(column.to_pylist() for column in rows.columns), strict=True)
        return [Place(number, name, source, line, files[source]) for number, name, source, line in places]

    def _numbers(self, part: Part) -> NDArray[np.int64]:
        """The numbers of the records of a part, ascending."""
        windows: EncodedDataset = getattr(self, part)
        return np.unique(windows.records(range(len(windows))))


def _mapped(path: Path) -> NDArray[Any]:
    """A .npy file as a read-only memory map.

    It is a plain array, because indexing a memmap object is slow.
    """
    try:
        return np.load(path, mmap_mode="r").view(np.ndarray)  # type: ignore[no-any-return]
    except ValueError:  # an empty file cannot be mapped
        return np.load(path)  # type: ignore[no-any-return]
