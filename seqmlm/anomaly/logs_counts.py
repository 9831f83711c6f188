"""What counting says of normal logs: events, pairs of events, count vectors, lengths; and how far records
are from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from seqmlm.anomaly.logs_lines import Doubles, Lines, Longs

_USUAL = 0.9
_CELLS = 1 << 22  # of the table of distances held at a time
_REMEMBERED = 1 << 16


@dataclass(frozen=True, kw_only=True, eq=False)
class LogCounts:
    """Counts of the training records. E events are known; E itself stands for any other, E + 1 for a
    record's ends.

    Args:
        keys: (E,) what the known lines say, ascending.
        lines: (E,) training lines of each event.
        records: (E,) training records with each event.
        total: number of training records.
        pairs: (P,) first event * (E + 2) + second event of the neighbours seen, ascending.
        pair_lines: (P,) how often each was seen.
        indptr, indices, values: rows of the distinct count vectors (K, E), as in `scipy.sparse.csr_matrix`.
        lengths: (3,) lines of a record: the first percent, the median, the last percent.
        candidates: g of LogBERT's rule: so many followers of an event make up 99 % of what followed it.
        new: key of lines without a template, -1 where there is no such.
    """

    keys: Longs
    lines: Longs
    records: Longs
    total: int
    pairs: Longs
    pair_lines: Longs
    indptr: Longs
    indices: Longs
    values: Longs
    lengths: Doubles
    candidates: int
    new: int
    _vectors: Any = field(init=False, repr=False)
    _norms: Doubles = field(init=False, repr=False)
    _known: dict[bytes, tuple[float, int]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        shape = (len(self.indptr) - 1, self.size + 1)
        data = np.log1p(self.values.astype(np.float64))
        vectors = sparse.csr_array((data, self.indices, self.indptr), shape=shape)
        object.__setattr__(self, "_vectors", vectors)
        object.__setattr__(self, "_norms", np.asarray(vectors.multiply(vectors).sum(axis=1)).ravel())

    @property
    def size(self) -> int:
        """E, and the number of any event that was not seen."""
        return len(self.keys)

    def events(self, keys: Longs) -> Longs:
        """(N,) the event of each line; E for one never seen."""
        place = np.searchsorted(self.keys, keys)
        inside = np.minimum(place, max(self.size - 1, 0))
        known = self.keys[inside] == keys if self.size else np.zeros(len(keys), dtype=np.bool_)
        return np.where(known, inside, self.size).astype(np.int64)

    def bigrams(self, lines: Lines, events: Longs) -> tuple[Doubles, Longs]:
        """Surprisal of each line after the one before it, and of each record's end after its last line.

        Witten and Bell's smoothing: what follows an event for the first time has as much probability as
        there were different followers.

        Args:
            lines: N of R records.
            events: (N,) of the lines.

        Returns:
            (N + R,) bits, each record's lines and then its end; (N + R,) the record of each.
        """
        edge = self.size + 1
        record = np.repeat(np.arange(len(lines)), lines.counts + 1)
        last = lines.offsets[1:] + np.arange(len(lines))
        second = np.full(len(record), edge)
        second[np.delete(np.arange(len(record)), last)] = events
        first = np.concatenate([[edge], second[:-1]])  # the end of a record is the edge before the next
        seen, follows, kinds = self._pair_counts(first, second)
        ends = np.append(self.lines, [0, self.total])
        unigram = (ends[second] + 1) / (ends.sum() + self.size + 2)
        backed = np.where(follows > 0, (seen + kinds * unigram) / np.maximum(follows + kinds, 1), unigram)
        return -np.log2(backed), record

    def _pair_counts(self, first: Longs, second: Longs) -> tuple[Longs, Longs, Longs]:
        """Of each pair: times seen, times anything followed the first, different events that did."""
        base = self.size + 2
        code = first * base + second
        place = np.searchsorted(self.pairs, code)
        inside = np.minimum(place, max(len(self.pairs) - 1, 0))
        seen = (
            np.where(self.pairs[inside] == code, self.pair_lines[inside], 0) if len(self.pairs) else 0 * code
        )
        low, high = np.searchsorted(self.pairs, [first * base, (first + 1) * base])
        upto = np.concatenate([[0], np.cumsum(self.pair_lines)])
        return seen, upto[high] - upto[low], high - low

    def usual(self) -> Longs:
        """Events that at least nine in ten training records have."""
        return np.flatnonzero(self.records >= _USUAL * self.total)

    def absence(self, lines: Lines, events: Longs) -> Doubles:
        """(R, W) bits of surprise that each of the W usual events is not in a record; 0 where it is."""
        usual = self.usual()
        surprise = -np.log2((self.total - self.records[usual] + 1) / (self.total + 2))
        there = np.zeros((len(lines), self.size + 1), dtype=np.bool_)
        there[lines.record, events] = True
        return np.where(there[:, usual], 0.0, surprise)

    def length_distance(self, count: Longs) -> Doubles:
        """(R,) how far a number of lines is from the median; 1 at the first and last percent of training."""
        low, middle, high = np.log1p(self.lengths)
        away = np.log1p(count.astype(np.float64)) - middle
        least = np.log1p(0.1)  # where nearly all training records have one length
        below, above = max(middle - low, least), max(high - middle, least)
        distance: Doubles = np.where(away < 0, -away / below, away / above)
        return distance

    def nearest(self, lines: Lines, events: Longs) -> tuple[Doubles, Longs]:
        """The training record with the most similar event counts, and how far it is.

        The Euclidean distance of the log1p counts. Exact: the squared distances are products of matrices, and
        that of the nearest is worked out again, so that it does not depend on rounding. Found once for each
        multiset of events.

        Returns:
            (R,) the distance; (R,) the neighbour's row among the training vectors.
        """
        counts = multisets(lines, events, self.size + 1)
        names = [row_name(counts, row) for row in range(len(lines))]
        fresh = {name: row for row, name in enumerate(names) if name not in self._known}
        if len(self._known) + len(fresh) > _REMEMBERED:
            self._known.clear()
            fresh = {name: row for row, name in enumerate(names)}
        rows = np.fromiter(fresh.values(), dtype=np.int64, count=len(fresh))
        self._known.update(zip(fresh, self._searched(np.log1p(counts[rows].toarray())), strict=True))
        found = [self._known[name] for name in names]
        return np.array([one[0] for one in found]), np.array([one[1] for one in found], dtype=np.int64)

    def _searched(self, wanted: Doubles) -> list[tuple[float, int]]:
        """Distance and row of the nearest vector to each of (M, E + 1)."""
        found: list[tuple[float, int]] = []
        step = max(1, _CELLS // max(1, self._vectors.shape[0]))
        for at in range(0, len(wanted), step):
            some = wanted[at : at + step]
            rows = np.argmin(self._norms[:, None] - 2 * (self._vectors @ some.T), axis=0)
            apart = some - self._vectors[rows].toarray()
            away = np.sqrt((apart * apart).sum(axis=1))
            found += zip(away.tolist(), rows.tolist(), strict=True)
        return found

    def difference(self, counts: Mapping[int, int], row: int) -> dict[int, int]:
        """Event -> lines more (or, negative, fewer) than training vector `row` has; equal ones left out."""
        a, b = int(self.indptr[row]), int(self.indptr[row + 1])
        usual = dict(zip(self.indices[a:b].tolist(), self.values[a:b].tolist(), strict=True))
        either = sorted(counts.keys() | usual.keys())
        return {e: d for e in either if (d := counts.get(e, 0) - usual.get(e, 0))}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything, to be stored; `of` takes it back."""
        fields = (
            "keys", "lines", "records", "pairs", "pair_lines",
            "indptr", "indices", "values", "lengths",
        )  # fmt: skip
        scalars = np.array([self.total, self.candidates, self.new], dtype=np.int64)
        return {**{name: getattr(self, name) for name in fields}, "scalars": scalars}

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> LogCounts:
        """From `arrays`."""
        total, candidates, new = arrays["scalars"].tolist()
        rest = {name: array for name, array in arrays.items() if name != "scalars"}
        return cls(**rest, total=total, candidates=candidates, new=new)


def multisets(lines: Lines, events: Longs, width: int) -> Any:
    """How often each event is in each record, (R, width) `scipy.sparse.csr_array` with sorted columns."""
    code, number = np.unique(lines.record * width + events, return_counts=True)
    indptr = np.searchsorted(code, np.arange(len(lines) + 1) * width)
    return sparse.csr_array((number, code % width, indptr), shape=(len(lines), width))


def row_name(counts: Any, row: int) -> bytes:
    """A row of `multisets` as bytes; equal for equal multisets."""
    a, b = counts.indptr[row], counts.indptr[row + 1]
    columns, values = counts.indices[a:b], counts.data[a:b]
    return bytes(columns.astype(np.int64).tobytes() + values.astype(np.int64).tobytes())
