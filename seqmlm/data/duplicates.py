"""Exact duplicates by 128-bit hashes, and near duplicates of texts by MinHash.

Copied files are common in collections of source code (Allamanis 2019, "The adverse effects of code
duplication"): they get too much weight, and when they are on both sides of a split they make a model look
better than it is. Both kinds are found in one pass over a stream in bounded memory. Near duplicates have
signatures that are looked up by bands (Broder 1997; Leskovec et al.). Own code, because the usual library
(datasketch) keeps a Python object for each text and band, where this keeps two flat arrays of bounded size.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.record import Record


def hash128(raw: Any) -> bytes:
    """A 16-byte hash of a raw sequence; two that differ collide with probability 2^-128."""
    data = raw if isinstance(raw, bytes) else str(raw).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16).digest()


class SeenHashes:
    """A set of 128-bit hashes, as many as there may be: a table of SQLite in a temporary file."""

    def __init__(self) -> None:
        self._file = sqlite3.connect("", check_same_thread=False)
        for one in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -65536"):
            self._file.execute(f"PRAGMA {one}")
        self._file.execute("CREATE TABLE seen (hash BLOB PRIMARY KEY) WITHOUT ROWID")

    def __del__(self) -> None:
        self._file.close()

    def add(self, digest: bytes) -> bool:
        """Add a hash; whether it had not been seen."""
        return self._file.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,)).rowcount > 0


def distinct(records: Iterable[Record]) -> Iterator[Record]:
    """The first of all records with exactly the same raw text."""
    seen = SeenHashes()
    return (record for record in records if seen.add(hash128(record.raw)))


_WORD = re.compile(r"\w+|[^\w\s]")
_SEED = 20260101
_BLOCK = 2048
_LARGEST = 1 << 18

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
        self.threshold, self._shingle = threshold, shingle
        random = np.random.Generator(np.random.Philox(_SEED))
        # Multiply-shift hashing (Dietzfelbinger et al. 1997): odd factors, the upper half of 64 bits.
        self._factors = random.integers(0, 1 << 63, permutations, dtype=np.uint64) * np.uint64(2) + np.uint64(
            1
        )
        self._terms = random.integers(0, 1 << 63, permutations, dtype=np.uint64)
        self._bands = permutations // self._rows
        # Of zeros, so that the system gives memory only where texts are.
        self._kept: NDArray[np.uint32] = np.zeros((capacity, permutations), dtype=np.uint32)
        self._slots: NDArray[np.int32] = np.zeros((self._bands, 4 * capacity), dtype=np.int32)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def seen(self, text: str) -> bool:
        """Whether a similar text was given before; if not, this one is remembered."""
        signature = self.signature(text)
        if signature is None:
            return False
        keys = self._keys(signature)
        if self._likeness(signature, keys) >= self.threshold:
            return True
        self._remember(signature, keys)
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

    def _keys(self, signature: Signature) -> NDArray[np.int64]:
        """(bands,) the slot each band of a signature falls into."""
        parts = signature.reshape(self._bands, self._rows).astype(np.uint64)
        mixed = np.zeros(self._bands, dtype=np.uint64)
        for row in range(self._rows):
            mixed = (mixed ^ parts[:, row]) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
        return (mixed % np.uint64(self._slots.shape[1])).astype(np.int64)

    def _likeness(self, signature: Signature, keys: NDArray[np.int64]) -> float:
        found = self._slots[np.arange(self._bands), keys] - 1
        # The ring has overwritten this text.
        found = found[(found >= 0) & (found > self._count - 1 - len(self._kept))]
        if not len(found):
            return 0.0
        return float((self._kept[np.unique(found) % len(self._kept)] == signature).mean(axis=1).max())

    def _remember(self, signature: Signature, keys: NDArray[np.int64]) -> None:
        self._kept[self._count % len(self._kept)] = signature
        self._count += 1
        self._slots[np.arange(self._bands), keys] = self._count
