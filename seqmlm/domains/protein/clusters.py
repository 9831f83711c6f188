"""Protein identity clusters while the records stream by, so that no near copy stands in both splits.

A greedy leader clustering in the manner of CD-HIT (Li & Godzik 2006) on MinHash sketches (Broder 1997; Mash,
Ondov et al. 2016): a sequence joins the leader that shares most of its sketch, or leads a new cluster.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.record import Record
from seqmlm.data.splits import hash64
from seqmlm.errors import UsageError

K = 5
"""Residues of a k-mer: 3.2 million of them, so that unrelated proteins share next to none."""

SKETCH = 128
"""k-mers kept of a sequence: those with the smallest hashes."""

# The five residues stand apart at all different distances (a Golomb ruler): k-mers shared by chance then come
# one by one, while runs of adjacent ones would come in bunches.
_RULER = (0, 1, 4, 9, 11)
_LETTERS = b"ACDEFGHIKLMNPQRSTVWY"
_LEADERS = 16  # remembered for one k-mer; beyond that the oldest gives way
_FEWEST = 4  # shared k-mers below this are chance
_OTHER = 20  # code of every other letter
_CODES = bytes(_LETTERS.find(c) if c in _LETTERS else _OTHER for c in range(256))


class IdentityClusters:
    """Gives each sequence a cluster number; near copies get the same one.

    The result depends on the order of the sequences and on nothing else. Memory is bounded (205 MB at most,
    as much of it as the data touches): a table of the last 16 leaders seen for each k-mer, good for some
    400,000 clusters; beyond that old ones are forgotten and their late members lead clusters of their own.

    Args:
        identity: share of equal residues from which two sequences of like length should meet, in [0.3, 1].
            The rule is statistical: with 300 residues and 0.5, pairs at 0.6 meet nearly always, at 0.5 half
            of the time.

    Raises:
        UsageError: `identity` out of range.
    """

    def __init__(self, identity: float = 0.5) -> None:
        if not 0.3 <= identity <= 1:
            raise UsageError(f"identity of clusters lies between 0.3 and 1; got {identity}")
        self._share = identity**K  # of its k-mers that a copy keeps
        self._leaders = np.zeros((20**K, _LEADERS), dtype=np.int32)  # cluster + 1; 0 is free
        self._filled = np.zeros(20**K, dtype=np.uint8)  # place the next leader takes
        self._clusters = 0

    def __len__(self) -> int:
        """Clusters so far, those of very short sequences aside."""
        return self._clusters

    def key(self, record: Record) -> str:
        """The cluster of a record, as a split key."""
        return str(self.assign(record.raw))

    def assign(self, sequence: str) -> int:
        """The cluster of a sequence: that of a leader near it, or a new one; below 0 for very short ones."""
        kmers = sketch(sequence)
        if len(kmers) < _FEWEST:  # too short to compare: only exact copies meet
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
    """The up to `SKETCH` distinct k-mers of a protein that have the smallest hashes, as base-20 numbers."""
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
    # A bijection of 32-bit numbers orders k-mers as if at random; sorting it brings equal ones together.
    mixed = (kmers ^ (kmers >> np.uint32(16))) * np.uint32(0x45D9F3B)
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x45D9F3B)
    mixed ^= mixed >> np.uint32(16)
    order = np.argsort(mixed)
    kmers = kmers[order]
    distinct = np.ones(len(kmers), dtype=np.bool_)
    np.not_equal(kmers[1:], kmers[:-1], out=distinct[1:])
    return kmers[distinct][:SKETCH]
