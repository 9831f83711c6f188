"""Exact duplicates by 128-bit hashes in one flat table, and near duplicates of texts by MinHash.

Copied files are common in collections of source code (Allamanis 2019, "The adverse effects of code
duplication"): they get too much weight, and when they are on both sides of a split they make a model look
better than it is. Both kinds are found in one pass over a stream in bounded memory. Near duplicates have
signatures that are looked up by bands (Broder 1997; Leskovec et al.). Own code, because the usual library
(datasketch) keeps a Python object for each text and band, where this keeps two flat arrays of bounded size.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.record import Record

_TOGETHER = 512


def hash128(raw: Any) -> bytes:
    """A 16-byte hash of a raw sequence; two that differ collide with probability 2^-128."""
    data = raw if isinstance(raw, bytes) else str(raw).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16).digest()


class SeenHashes:
    """A set of 128-bit hashes: open addressing in one array, 16 bytes a slot, at most 3/4 full.

    Args:
        slots: initial number; doubles when needed.
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
            # Of several keys for one free slot the last one written stays; the others find it occupied.
            self._table[at[free]] = keys[waiting[free]]
            here = (self._table[at] == keys[waiting]).all(axis=1)
            fresh[waiting[here & free]] = True
            waiting = waiting[~here]
            slots[waiting] = (slots[waiting] + 1) & int(mask)
        return fresh


def distinct(records: Iterable[Record]) -> Iterator[Record]:
    """The first of all records with exactly the same raw text."""
    seen, stream = SeenHashes(), iter(records)
    while batch := list(islice(stream, _TOGETHER)):
        fresh = seen.add([hash128(record.raw) for record in batch])
        yield from (record for record, new in zip(batch, fresh.tolist(), strict=True) if new)


_WORD = re.compile(r"\w+|[^\w\s]")
_SEED = 20260101
_BLOCK = 2048
_LARGEST = 1 << 18
_FIRST = 1 << 8

Signature = NDArray[np.uint32]


class NearDuplicates:
    """Whether a similar text occurred earlier in a stream; the first one is kept.

    A text is the set of its runs of `shingle` words; two are similar if the share of runs they have in common
    (Jaccard) is at least `threshold`, estimated from `permutations` hash minima (standard error at most
    .5 / sqrt(permutations)). Texts that share a band of 8 minima are compared; at a similarity of .85 that
    finds 99 in 100.

    Args:
        threshold: in (0, 1].
        permutations: a multiple of 8.
        shingle: words of a run; texts with fewer words are never similar.
        capacity: texts remembered, 512 bytes each; beyond it the oldest are forgotten.
    """

    _rows = 8

    def __init__(
        self,
        threshold: float = 0.85,
        *,
        permutations: int = 128,
        shingle: int = 5,
        capacity: int = _LARGEST,
    ) -> None:
        self.threshold, self._shingle, self._capacity = threshold, shingle, capacity
        random = np.random.Generator(np.random.Philox(_SEED))
        # Multiply-shift hashing (Dietzfelbinger et al. 1997): odd factors, the upper half of 64 bits.
        self._factors = random.integers(0, 1 << 63, permutations, dtype=np.uint64) * np.uint64(2) + np.uint64(
            1
        )
        self._terms = random.integers(0, 1 << 63, permutations, dtype=np.uint64)
        self._bands = permutations // self._rows
        self._kept: NDArray[np.uint32] = np.zeros((min(_FIRST, capacity), permutations), dtype=np.uint32)
        self._slots: NDArray[np.int64] = np.full((self._bands, 4 * len(self._kept)), -1, dtype=np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def seen(self, text: str) -> bool:
        """Whether a similar text was given before; if not, this one is remembered."""
        signature = self.signature(text)
        if signature is None:
            return False
        keys = self._keys(signature[None])[0]
        likeness = self._likeness(signature, keys)
        if likeness >= self.threshold:
            return True
        self._remember(signature)
        return False

    def signature(self, text: str) -> Signature | None:
        """(permutations,) hash minima; None for a text shorter than a shingle."""
        words = _WORD.findall(text)
        runs = len(words) - self._shingle + 1
        if runs < 1:
            return None
        hashes = np.fromiter(
            (crc32(word.encode("utf-8", "replace")) for word in words), np.uint64, len(words)
        )
        combined = np.zeros(runs, dtype=np.uint64)
        for offset in range(self._shingle):
            combined = combined * np.uint64(0x9E3779B97F4A7C15) + hashes[offset : offset + runs]
        combined = np.unique(combined)
        lowest = np.full(len(self._factors), np.iinfo(np.uint32).max, dtype=np.uint32)
        for start in range(0, len(combined), _BLOCK):
            mixed = combined[start : start + _BLOCK, None] * self._factors + self._terms
            np.minimum(lowest, (mixed >> np.uint64(32)).min(axis=0).astype(np.uint32), out=lowest)
        return lowest

    def _keys(self, signatures: NDArray[np.uint32]) -> NDArray[np.int64]:
        """(n, bands) the slot each band of each signature falls into."""
        parts = signatures.reshape(len(signatures), self._bands, self._rows).astype(np.uint64)
        mixed = np.zeros(parts.shape[:2], dtype=np.uint64)
        for row in range(self._rows):
            mixed = (mixed ^ parts[:, :, row]) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
        return (mixed % np.uint64(self._slots.shape[1])).astype(np.int64)

    def _likeness(self, signature: Signature, keys: NDArray[np.int64]) -> float:
        found = self._slots[np.arange(self._bands), keys]
        # The ring has overwritten this text.
        found = found[(found >= 0) & (found > self._count - 1 - len(self._kept))]
        if not len(found):
            return 0.0
        return float((self._kept[np.unique(found) % len(self._kept)] == signature).mean(axis=1).max())

    def _remember(self, signature: Signature) -> None:
        if self._count == len(self._kept) < self._capacity:
            self._grow()
        place = self._count % len(self._kept)
        self._kept[place] = signature
        self._slots[np.arange(self._bands), self._keys(signature[None])[0]] = self._count
        self._count += 1

    def _grow(self) -> None:
        size = min(2 * len(self._kept), self._capacity)
        self._kept = np.concatenate(
            [self._kept, np.zeros((size - len(self._kept), self._kept.shape[1]), np.uint32)]
        )
        self._slots = np.full((self._bands, 4 * size), -1, dtype=np.int64)
        for number, keys in enumerate(self._keys(self._kept[: self._count])):
            self._slots[np.arange(self._bands), keys] = number
