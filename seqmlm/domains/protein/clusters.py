"""Cluster proteins by identity while the records stream by, so that near copies do not get into both splits.

The method is greedy leader clustering, similar to CD-HIT (Li & Godzik 2006), on MinHash sketches (Broder
1997; Mash, Ondov et al. 2016). A sequence joins the leader that shares most of its sketch, or leads a new
cluster.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.record import Record
from seqmlm.data.splits import hash64
from seqmlm.errors import UsageError

K = 5
"""Residues of a k-mer. There are 3.2 million k-mers, so unrelated proteins share almost none."""

SKETCH = 128
"""Number of k-mers that are kept of a sequence: those with the smallest hashes."""

# All distances between the five residues are different (a Golomb ruler), so that k-mers shared by chance come
# one by one. K-mers of adjacent residues would come in bunches.
_RULER = (0, 1, 4, 9, 11)
_LETTERS = b"ACDEFGHIKLMNPQRSTVWY"
_LEADERS = 16  # stored for one k-mer; a new leader then replaces the oldest
_FEWEST = 4  # fewer shared k-mers are chance
_OTHER = 20  # code for every other letter
_CODES = bytes(_LETTERS.find(c) if c in _LETTERS else _OTHER for c in range(256))


class IdentityClusters:
    """Give each sequence a cluster number; near copies get the same number.

    The result depends only on the order of the sequences. Memory is bounded: 205 MB at most, of which only
    the part that the data touch is used. A table has the last 16 leaders for each k-mer, which is enough for
    about 400,000 clusters. Beyond that, old leaders are forgotten, and later members of their clusters lead
    new ones.

    Args:
        identity: share of equal residues from which two sequences of similar length should be in one cluster,
            in [0.3, 1]. The rule is statistical. With 300 residues and 0.5, pairs at 0.6 are nearly always in
            one cluster, and pairs at 0.5 half of the time.

    Raises:
        UsageError: `identity` is out of range.
    """

    def __init__(self, identity: float = 0.5) -> None:
        if not 0.3 <= identity <= 1:
            raise UsageError(f"the identity of clusters must be between 0.3 and 1; got {identity}")
        self._share = identity**K  # share of its k-mers that a copy keeps
        self._leaders = np.zeros((20**K, _LEADERS), dtype=np.int32)  # cluster + 1; 0 is free
        self._filled = np.zeros(20**K, dtype=np.uint8)  # index for the next leader
        self._clusters = 0

    def __len__(self) -> int:
        """Number of clusters so far, without clusters of very short sequences."""
        return self._clusters

    def key(self, record: Record) -> str:
        """The cluster of a record, as a split key."""
        return str(self.assign(record.raw))

    def assign(self, sequence: str) -> int:
        """The cluster of a sequence: the cluster of a similar leader, or a new cluster.

        Very short sequences get negative numbers.
        """
        kmers = sketch(sequence)
        if len(kmers) < _FEWEST:  # too short to compare, so only exact copies share a cluster
            return ~(hash64(sequence) & 0x7FFFFFFFFFFFFFFF)
        entries = self._leaders[kmers]
        leaders, shared = np.unique(entries[entries > 0], return_counts=True)
        if shared.max(initial=0) >= max(_FEWEST, round(self._share * len(kmers))):
            return int(leaders[shared.argmax()]) - 1
        self._leaders[kmers, self._filled[kmers]] = self._clusters + 1
        self._filled[kmers] = (self._filled[kmers] + 1) % _LEADERS
        self._clusters += 1
        return self._clusters - 1


def sketch(sequence: str) -> NDArray[np.uint32]:
    """Up to `SKETCH` distinct k-mers of a protein with the smallest hashes, as base-20 numbers."""
    codes = np.frombuffer(sequence.encode("ascii", "replace").translate(_CODES), dtype=np.uint8)
    count = len(codes) - _RULER[-1]
    if count < 1:
        return np.empty(0, dtype=np.uint32)
    digits = codes.astype(np.uint32)
    kmers = np.zeros(count, dtype=np.uint32)
    for offset in _RULER:
        kmers *= np.uint32(20)
        kmers += digits[offset : offset + count]
    if (codes == _OTHER).any():
        is_residue = codes < _OTHER
        kmers = kmers[np.logical_and.reduce([is_residue[o : o + count] for o in _RULER])]
    # A bijection of 32-bit numbers orders k-mers as if at random. Sorting makes equal k-mers neighbours.
    mixed = (kmers ^ (kmers >> np.uint32(16))) * np.uint32(0x45D9F3B)
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x45D9F3B)
    mixed ^= mixed >> np.uint32(16)
    order = np.argsort(mixed)
    kmers = kmers[order]
    distinct = np.ones(len(kmers), dtype=np.bool_)
    np.not_equal(kmers[1:], kmers[:-1], out=distinct[1:])
    return kmers[distinct][:SKETCH]
