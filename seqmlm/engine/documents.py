"""Many masked copies of sequences as slices of flat arrays: which are equal, and how they become a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from seqmlm.engine.packing import PackedBatch
from seqmlm.engine.query import Longs
from seqmlm.engine.types import Floats, Ids


@dataclass(frozen=True, slots=True, eq=False)
class Documents:
    """D masked copies of sequences, as slices of flat arrays.

    Args:
        ids: flat token ids; document d has `ids[first_id[d] : first_id[d] + length[d]]`.
        positions: flat position ids beside `ids`, or None where every document counts from 0.
        channels: further inputs beside `ids`.
        asked: flat asked positions; document d has `asked[first_asked[d] : first_asked[d] + count[d]]`.
        group: (D,) index of the set of tokens its softmax is restricted to.
        extra: (D,) number of its (group, positions, channels); documents that differ in those have other
            ones.
    """

    ids: Ids
    positions: Ids | None
    channels: Mapping[str, Floats]
    asked: Ids
    first_id: Longs
    length: Longs
    first_asked: Longs
    count: Longs
    group: Longs
    extra: Longs

    def __len__(self) -> int:
        return len(self.length)

    def take(self, index: Longs) -> Documents:
        """The documents of `index`, over the same flat arrays."""
        return Documents(
            self.ids,
            self.positions,
            self.channels,
            self.asked,
            self.first_id[index],
            self.length[index],
            self.first_asked[index],
            self.count[index],
            self.group[index],
            self.extra[index],
        )

    def batch(self, start: int, stop: int) -> PackedBatch:
        """Documents start..stop-1 laid end to end; what `packing.pack` makes of objects."""
        length, count = self.length[start:stop], self.count[start:stop]
        bounds = running(length)
        token = ranges(self.first_id[start:stop], length)
        asked = self.asked[ranges(self.first_asked[start:stop], count)] + np.repeat(bounds[:-1], count)
        if self.positions is None:
            positions = ranges(np.zeros_like(length), length)
        else:
            positions = self.positions[token].astype(np.int64)
        return PackedBatch(
            input_ids=torch.from_numpy(self.ids[token].astype(np.int64))[None],
            position_ids=torch.from_numpy(positions)[None],
            cu_seq_lens=torch.from_numpy(bounds.astype(np.int32)),
            lengths=tuple(length.tolist()),
            asked=torch.from_numpy(asked),
            targets=None,
            weights=None,
            samples=torch.full((stop - start,), -1),
            channels={name: torch.from_numpy(c[token])[None] for name, c in self.channels.items()},
        )

    def distinct(self) -> tuple[Longs, Longs]:
        """Which documents are different questions.

        Returns:
            Indices of the distinct documents (U,), and for each document its place among them (D,).
        """
        digest = self._digest()
        _, first, place = np.unique(digest, return_index=True, return_inverse=True)
        same = np.flatnonzero(first[place] != np.arange(len(self)))
        different = same[~self._equal(same, first[place[same]])]
        if len(different):  # a collision of digests, about once in 2^64 pairs: computed on its own
            place[different] = len(first) + np.arange(len(different))
            first = np.concatenate([first, different])
        return first, place

    def _digest(self) -> NDArray[np.uint64]:
        """(D,) a multilinear hash of ids, asked positions and extras (Lemire and Kaser 2014), modulo 2^64."""
        width = int(max(self.length.max(), self.count.max()))
        factors = np.random.Generator(np.random.Philox(0)).integers(0, 2**64, (2, width + 2), dtype=np.uint64)
        digest = np.zeros(len(self), dtype=np.uint64)
        digest += self.extra.astype(np.uint64) * factors[0, -1]
        digest += self.length.astype(np.uint64) * factors[0, -2]
        for flat, first, count, factor in (
            (self.ids, self.first_id, self.length, factors[0]),
            (self.asked, self.first_asked, self.count, factors[1]),
        ):
            terms = flat[ranges(first, count)].astype(np.uint64)
            terms *= factor[ranges(np.zeros_like(count), count)]
            digest += np.add.reduceat(terms, np.cumsum(count) - count)
        return digest

    def _equal(self, a: Longs, b: Longs) -> NDArray[np.bool_]:
        """Whether documents a[i] and b[i] are equal, token by token."""
        equal: NDArray[np.bool_] = (self.length[a] == self.length[b]) & (self.count[a] == self.count[b])
        equal &= self.extra[a] == self.extra[b]
        for flat, first, count in (
            (self.ids, self.first_id, self.length),
            (self.asked, self.first_asked, self.count),
        ):
            n = np.where(equal, count[a], 0)
            unlike = flat[ranges(first[a], n)] != flat[ranges(first[b], n)]
            equal &= np.bincount(np.repeat(np.arange(len(a)), n)[unlike], minlength=len(a)) == 0
        return equal


def running(counts: Longs) -> Longs:
    """(N + 1,) 0 and the running totals."""
    totals: Longs = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=totals[1:])
    return totals


def ranges(starts: Longs, counts: Longs) -> Longs:
    """range(start, start + count) for each of N, one after another.

    >>> ranges(np.array([5, 0]), np.array([2, 3]))
    array([5, 6, 0, 1, 2])
    """
    offsets = np.repeat(starts - (np.cumsum(counts) - counts), counts)
    joined: Longs = np.arange(len(offsets), dtype=np.int64) + offsets
    return joined
