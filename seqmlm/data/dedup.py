"""Exact duplicates among any number of records, by 128-bit hashes in one flat table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.record import Record

_TOGETHER = 512


def hash128(raw: Any) -> bytes:
    """16 bytes that stand for a raw sequence; two that differ share them with probability 2^-128."""
    if isinstance(raw, str):
        data = raw.encode("utf-8", "surrogatepass")
    elif isinstance(raw, bytes):
        data = raw
    else:
        data = str(raw).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16).digest()


class SeenHashes:
    """A set of 128-bit hashes: open addressing in one array, 16 bytes a slot, at most 3/4 full.

    Args:
        slots: to begin with; doubles when needed.
    """

    def __init__(self, slots: int = 1 << 12) -> None:
        self._table: NDArray[np.uint64] = np.zeros((slots, 2), dtype=np.uint64)  # (0, 0) marks a free slot
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def add(self, digests: list[bytes]) -> NDArray[np.bool_]:
        """Add hashes; (n,) True where one had not been seen, not even earlier in the same list."""
        keys = np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, 2)
        fresh = np.zeros(len(keys), dtype=np.bool_)
        first = np.fromiter({d: i for i, d in reversed(list(enumerate(digests)))}.values(), np.int64)
        while (self._used + len(first)) * 4 > len(self._table) * 3:
            old = self._table[self._table.any(axis=1)]
            self._table = np.zeros((2 * len(self._table), 2), dtype=np.uint64)
            self._place(old)
        fresh[first] = self._place(keys[first])
        self._used += int(fresh.sum())
        return fresh

    def _place(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Put distinct keys into the table; (n,) True where one was not there."""
        fresh = np.zeros(len(keys), dtype=np.bool_)
        mask = np.uint64(len(self._table) - 1)
        slots = (keys[:, 0] & mask).astype(np.int64)
        waiting = np.arange(len(keys))
        while len(waiting):
            at = slots[waiting]
            free = ~self._table[at].any(axis=1)
            # Of several keys that want one free slot, the last one written stays; the others see it taken.
            self._table[at[free]] = keys[waiting[free]]
            here = (self._table[at] == keys[waiting]).all(axis=1)
            fresh[waiting[here & free]] = True
            waiting = waiting[~here]
            slots[waiting] = (slots[waiting] + 1) & int(mask)
        return fresh


def distinct(records: Iterable[Record]) -> Iterator[Record]:
    """The first of records whose raw text is exactly the same."""
    seen, stream = SeenHashes(), iter(records)
    while batch := list(islice(stream, _TOGETHER)):
        fresh = seen.add([hash128(record.raw) for record in batch])
        yield from (record for record, new in zip(batch, fresh.tolist(), strict=True) if new)
