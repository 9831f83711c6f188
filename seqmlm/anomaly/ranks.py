"""P-values of one statistic, by the rank of a value among normal rows of similar length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.p_values import Bools, Doubles, Longs, fit_tail, rank_p_values

Arrays = dict[str, NDArray[Any]]

MOST_BINS, _SIMILAR = 10, 1.25
"""Maximum number of length bins, and the ratio of lengths that get separate bins if statistics are fused.

For example, bursts of 4 and 5 lines must not share a bin. Bursts of 4 lines miss more lines, and would raise
an alarm twice as often.
"""
_USUAL = 0.99


def at_least(ascending: Doubles, values: Doubles) -> Longs:
    """(M,) for each of M values, the number of ascending values that are at least as large."""
    return np.asarray(len(ascending) - np.searchsorted(ascending, values, side="left"))


@dataclass(frozen=True, eq=False)
class Ranks:
    """The sorted values of a statistic for normal rows, in bins by length.

    Args:
        edges: (B - 1,) lengths at which a new bin begins, ascending.
        bins: for each of B bins, the values in ascending order; minus infinity if the statistic does not
            apply.
        tails: (B, 4) the tail of each bin (`fit_tail`).
    """

    edges: Longs
    bins: tuple[Doubles, ...]
    tails: Doubles

    @classmethod
    def of(cls, values: Doubles, lengths: Longs, edges: Longs) -> Ranks:
        """The ranks of (N,) values and lengths. NaN means that the statistic does not apply."""
        owner = np.searchsorted(edges, lengths, side="right")
        applicable = np.where(np.isnan(values), -np.inf, values)
        bins = tuple(np.sort(applicable[owner == number]) for number in range(len(edges) + 1))
        return cls(edges, bins, np.stack([fit_tail(ascending) for ascending in bins]))

    def _owner(self, lengths: Longs) -> Longs:
        """(M,) the bin of each length."""
        return np.asarray(np.searchsorted(self.edges, lengths, side="right"))

    def p_values(self, values: Doubles, lengths: Longs) -> tuple[Doubles, Bools]:
        """(M,) p-values among normal rows of similar length, and (M,) True where they are extrapolated."""
        owner = self._owner(lengths)
        p_values, beyond = np.ones(len(values)), np.zeros(len(values), dtype=np.bool_)
        for number in np.unique(owner).tolist():
            here, ascending = owner == number, self.bins[number]
            counts = at_least(ascending, values[here])
            tail = self.tails[number]
            p_values[here], beyond[here] = rank_p_values(counts, len(ascending), tail, values[here])
        return p_values, beyond

    def log_ranks(self, values: Doubles, lengths: Longs) -> Doubles:
        """(M,) minus the logarithms of the p-values of finite values, interpolated so that order is kept.

        Beyond the largest normal value, it is the result for that value plus the excess.
        """
        owner = self._owner(lengths)
        logs = np.empty(len(values))
        for number in np.unique(owner).tolist():
            here, ascending = owner == number, self.bins[number]
            distinct = np.unique(ascending)
            heights = -np.log((1.0 + at_least(ascending, distinct)) / (len(ascending) + 1.0))
            over = np.maximum(values[here] - distinct[-1], 0.0)
            logs[here] = np.interp(values[here], distinct, heights) + over
        return logs

    def size(self, length: int) -> int:
        """Number of normal rows that a row of this length is compared with."""
        return len(self.bins[int(self._owner(np.asarray(length)))])

    def finite(self, lengths: Longs) -> Bools:
        """(M,) True where no normal row of similar length has an infinite value."""
        ends = np.array([not np.isposinf(ascending[-1:]).any() for ascending in self.bins])
        return np.asarray(ends[self._owner(lengths)])

    def usual(self, length: int) -> float:
        """The 99th percentile among normal rows of similar length.

        Minus infinity if the statistic applies to none of them.
        """
        ascending = self.bins[int(self._owner(np.asarray(length)))]
        place = min(int(_USUAL * len(ascending)), len(ascending) - 1)
        return float(ascending[place]) if len(ascending) else -np.inf

    def arrays(self, name: str) -> Arrays:
        """The arrays to store, with this prefix of their names; `from_arrays` reads them."""
        sizes = np.array([len(ascending) for ascending in self.bins], np.int64)
        parts: Arrays = {"edges": self.edges, "values": np.concatenate(self.bins), "sizes": sizes}
        # NaN cannot be stored here: a scale of 0 means that there is no tail.
        parts["tails"] = np.nan_to_num(self.tails)
        return {f"{name}/{key}": array for key, array in parts.items()}

    @classmethod
    def from_arrays(cls, name: str, arrays: Mapping[str, NDArray[Any]]) -> Ranks:
        """The ranks that `arrays` stored under a name."""
        edges, values, sizes, tails = (
            arrays[f"{name}/{key}"] for key in ("edges", "values", "sizes", "tails")
        )
        if sizes.sum() != len(values) or tails.shape != (len(sizes), 4) or len(edges) != len(sizes) - 1:
            raise ValueError(f"{name} does not fit")
        bins = tuple(np.split(values.astype(np.float64), np.cumsum(sizes)[:-1]))
        return cls(edges.astype(np.int64), bins, np.where(tails[:, 1:2] > 0, tails, np.nan))


def length_edges(lengths: Longs, fewest: int, most_bins: int = MOST_BINS) -> Longs:
    """(B - 1,) first lengths of all bins except the lowest, ascending.

    Rows are compared with rows in the same bin, so that lengths are similar. Bins are quantiles of the (N,)
    lengths of normal rows. There are at most ten.

    With a larger `most_bins`, a bin can be smaller. It can end before a length that is a quarter larger than
    its first length, if it has at least 1 / `most_bins` of the rows.

    Args:
        lengths: (N,) lengths of normal rows.
        fewest: fewest rows in a bin. A smaller bin is merged with its neighbour.
        most_bins: maximum number of bins.
    """
    sizes, counts = np.unique(lengths, return_counts=True)
    usual_rows, enough_rows = (max(fewest, -(-len(lengths) // number)) for number in (MOST_BINS, most_bins))
    edges: list[int] = []
    first, bin_rows, remaining_rows = 0, 0, len(lengths)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        needed_rows = enough_rows if size >= _SIMILAR * first else usual_rows
        if remaining_rows >= fewest and bin_rows >= needed_rows:
            edges.append(size)
            bin_rows = 0
        first = size if bin_rows == 0 else first
        bin_rows += count
        remaining_rows -= count
    return np.array(edges, dtype=np.int64)
