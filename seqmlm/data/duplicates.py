"""Find exact duplicates with 128-bit hashes, and near duplicates of texts with MinHash.

Copied files are common in collections of source code (Allamanis 2019, "The adverse effects of code
duplication"). They get too much weight. If they are on both sides of a split, a model seems better than it
is. Both kinds are found in one pass over a stream, in bounded memory.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any
from zlib import crc32

from seqmlm.data.record import Record


def hash128(raw: Any) -> bytes:
    """A 16-byte hash of a raw sequence. Two different sequences collide with probability 2^-128."""
    data = raw if isinstance(raw, bytes) else str(raw).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16).digest()


class SeenHashes:
    """A set of any number of 128-bit hashes: an SQLite table in a temporary file."""

    def __init__(self) -> None:
        self._file = sqlite3.connect("", check_same_thread=False)
        for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -65536"):
            self._file.execute(f"PRAGMA {setting}")
        self._file.execute("CREATE TABLE seen (hash BLOB PRIMARY KEY) WITHOUT ROWID")

    def __del__(self) -> None:
        self._file.close()

    def add(self, digest: bytes) -> bool:
        """Add a hash, and return whether it is new."""
        return self._file.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,)).rowcount > 0


def distinct(records: Iterable[Record]) -> Iterator[Record]:
    """The records without exact duplicates. The first of records with the same raw text is kept."""
    hashes = SeenHashes()
    return (record for record in records if hashes.add(hash128(record.raw)))


_WORD = re.compile(r"\w+|[^\w\s]")
_ROWS = 8  # minima per band


class NearDuplicates:
    """Detects whether a similar text occurred earlier in a stream. The first of similar texts is kept.

    A text is represented by the set of its runs of `shingle` words. Two texts are similar if the share of
    common runs (Jaccard) is at least `threshold`. This share is estimated from `permutations` hash minima,
    with a standard error of at most .5 / sqrt(permutations). Only texts that share a band of 8 minima are
    compared (Broder 1997). At a similarity of .85, this finds 99 of 100 pairs.

    Args:
        threshold: smallest similarity, in (0, 1].
        permutations: number of hash minima, a multiple of 8.
        shingle: number of words in a run. Texts with fewer words are never similar.
        capacity: number of remembered texts, about 3 KB each. Beyond it, the oldest are forgotten.
    """

    def __init__(
        self, threshold: float = 0.85, *, permutations: int = 128, shingle: int = 5, capacity: int = 1 << 17
    ) -> None:
        from datasketch import MinHash, MinHashLSH

        self.threshold, self._shingle, self._capacity = threshold, shingle, capacity
        self._nothing = MinHash(permutations, hashfunc=crc32)
        self._bands = MinHashLSH(num_perm=permutations, params=(permutations // _ROWS, _ROWS))
        self._kept: dict[int, Any] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def is_repeat(self, text: str) -> bool:
        """Whether a similar text occurred before. If not, this text is remembered."""
        signature = self.signature(text)
        if signature is None:
            return False
        if any(
            self._kept[near].jaccard(signature) >= self.threshold for near in self._bands.query(signature)
        ):
            return True
        self._bands.insert(self._count, signature)
        self._kept[self._count] = signature
        self._count += 1
        if len(self._kept) > self._capacity:
            oldest = next(iter(self._kept))
            self._bands.remove(oldest)
            del self._kept[oldest]
        return False

    def signature(self, text: str) -> Any:
        """The hash minima (a `LeanMinHash`). None for a text shorter than a shingle."""
        from datasketch import LeanMinHash

        words, n = _WORD.findall(text), self._shingle
        runs = {" ".join(words[i : i + n]).encode("utf-8", "replace") for i in range(len(words) - n + 1)}
        if not runs:
            return None
        minima = self._nothing.copy()
        minima.update_batch(runs)
        return LeanMinHash(minima)
