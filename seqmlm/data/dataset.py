"""Prepared data as the engine reads it: encodings by number, straight out of a memory map."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.division import CALIBRATES, TOKEN_COUNTS
from seqmlm.data.splits import PARTS, Part
from seqmlm.data.store import CHANNEL, RECORDS, SEQUENCES, ArrowRows
from seqmlm.engine.types import Encoding, Floats, Ids
from seqmlm.errors import StateError

MANIFEST = "prepared.json"


class Origin(NamedTuple):
    """Where a window came from."""

    id: str
    source: str
    line: int
    document: str | None
    record: int
    window: int


class _Columns(NamedTuple):
    """The columns of one batch, end to end; a tuple, for looking names up costs more than slicing."""

    offsets: NDArray[np.int32]
    ids: Ids
    groups: Ids
    spans: Ids | None
    classes: NDArray[np.int16] | None
    positions: Ids | None
    weights: Floats | None
    symbols: Ids | None
    channels: dict[str, Floats]

    @classmethod
    def of(cls, views: dict[str, NDArray[Any]]) -> _Columns:
        return cls(
            offsets=views["offsets"],
            ids=views["ids"],
            groups=views["groups"],
            spans=views.get("spans"),
            classes=views.get("classes"),
            positions=views.get("positions"),
            weights=views.get("weights"),
            symbols=views.get("symbols"),
            channels={n.removeprefix(CHANNEL): v for n, v in views.items() if n.startswith(CHANNEL)},
        )


class EncodedDataset:
    """One split of prepared data (a `seqmlm.engine.types.Sequences`).

    Holds file handles and numpy views only, so memory does not grow with the data; pickles as its path, so
    that loader workers open the same files. The arrays it gives out are read-only views of the file.

    Args:
        folder: what `prepare` wrote.
        part: "train", "validation" or "calibration".
    """

    def __init__(self, folder: Path, part: Part) -> None:
        self.folder, self.part = Path(folder), part
        self._rows = _mapped(self.folder / f"{part}.npy")
        self._lengths = _mapped(self.folder / f"{part}_lengths.npy")
        self._arrow = ArrowRows(self.folder / SEQUENCES)
        self._columns: list[_Columns | None] = [None] * self._arrow.batches

    @property
    def lengths(self) -> Ids:
        """(N,) tokens of each window, special tokens included."""
        return self._lengths

    @property
    def rows(self) -> NDArray[np.int64]:
        """(N,) this split's rows of `sequences.arrow`, ascending."""
        return self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Encoding:
        batch, row = divmod(int(self._rows[index]), self._arrow.size)
        columns = self._columns[batch]
        if columns is None:
            columns = self._columns[batch] = _Columns.of(self._arrow.views(batch))
        offsets, ids, groups, spans, classes, positions, weights, symbols, channels = columns
        part = slice(offsets[row], offsets[row + 1])
        return Encoding(
            ids=ids[part],
            groups=groups[part],
            spans=None if spans is None else spans[part],
            classes=None if classes is None else classes[part],
            positions=None if positions is None else positions[part],
            weights=None if weights is None else weights[part],
            symbols=None if symbols is None else symbols[part],
            channels={name: values[part] for name, values in channels.items()} if channels else {},
        )

    def origin(self, index: int) -> Origin:
        """The record, file and line that window `index` came from."""
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
    """What `prepare` made.

    Args:
        folder: the cache entry; `sequences.arrow` in it is loadable as `datasets.Dataset.from_file`.
        train, validation, calibration: the parts.
        statistics: counts (see `prepare`).
        token_counts: (V,) occurrences of each token id in the train split, special tokens included.
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
            StateError: the folder holds none, or a part of it is missing.
        """
        try:
            statistics = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            counts = np.load(folder / TOKEN_COUNTS)
            train, validation, calibration = (EncodedDataset(folder, part) for part in PARTS)
        except (OSError, ValueError) as error:
            raise StateError(f"{folder} holds no prepared data ({error}); delete it and run again") from error
        return cls(folder, train, validation, calibration, statistics, counts)

    def calibrating(self, limit: int) -> list[tuple[str, str, int]]:
        """Id, file and line of the records that calibrate, in order; at most `limit`, spread evenly.

        Raises:
            StateError: a part of the entry is missing.
        """
        try:
            numbers = np.load(self.folder / CALIBRATES)
        except (OSError, ValueError) as error:
            raise StateError(f"{self.folder} is incomplete ({error}); delete it and run again") from error
        if len(numbers) > limit:
            numbers = numbers[np.linspace(0, len(numbers) - 1, limit).astype(np.int64)]
        records = ArrowRows(self.folder / RECORDS)
        rows = records.table.select(["id", "source", "line"]).take(numbers)
        return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def _mapped(path: Path) -> NDArray[Any]:
    """A .npy file as a read-only array in a memory map (plain, for indexing a memmap object is slow)."""
    try:
        return np.load(path, mmap_mode="r").view(np.ndarray)  # type: ignore[no-any-return]
    except ValueError:  # nothing in it to map
        return np.load(path)  # type: ignore[no-any-return]
