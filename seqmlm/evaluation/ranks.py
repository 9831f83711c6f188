"""P-values of statistics by their ranks among normal rows, alone or by length, and by a fitted tail beyond
them.

A rank is a valid p-value for any distribution, but none is smaller than 1 / (n + 1). What lies beyond the
largest normal value is therefore extrapolated by peaks over threshold (Pickands 1975; Davison & Smith 1990):
excesses over a high quantile are fitted by a generalized Pareto distribution, whose survival function says
how much rarer a value is. A weak prior on the shape (in the manner of Martins & Stedinger 2000) stabilises
the fit where there are few excesses, and a shape below 0 is excluded: it would give the tail an end and call
larger values impossible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import genpareto

from seqmlm.errors import StateError

Doubles = NDArray[np.float64]

QUANTILE = 0.98
"""Threshold of the excesses; lower if that would leave fewer than `FEWEST` of them."""

FEWEST = 25

LEAST_P = 1e-12
"""Smallest p-value: further out, every model of a tail is a guess. That of infinite statistics."""

_LARGEST_SHARE = 0.25  # of the values that may count as tail
_SHAPES = (0.0, 1.0)
_PRIOR_MEAN, _PRIOR_DEVIATION = 0.1, 0.25


@dataclass(frozen=True, kw_only=True)
class Tail:
    """A generalized Pareto tail.

    Args:
        threshold: where it begins.
        scale: of the excesses over it, above 0, in the statistic's unit.
        shape: in [0, 1]; 0 is an exponential tail.
        largest: of the values it was fitted to; p-values are extrapolated from here on.
    """

    threshold: float
    scale: float
    shape: float
    largest: float

    @classmethod
    def fit(cls, values: Doubles) -> Tail | None:
        """Fit the tail of a sample.

        Args:
            values: (N,) ascending.

        Returns:
            The tail; None if it cannot be fitted: too few values, equal ones, or infinite ones.
        """
        count = min(max(round((1 - QUANTILE) * len(values)), FEWEST), int(_LARGEST_SHARE * len(values)))
        if count < 2 or not np.isfinite(values[-count - 1 :]).all():
            return None
        threshold = float(values[-count - 1])
        excesses = values[-count:] - threshold
        excesses = excesses[excesses > 0]
        if len(excesses) < 2 or excesses[0] == excesses[-1]:
            return None
        scale, shape = _penalised_likelihood(excesses)
        return cls(threshold=threshold, scale=scale, shape=shape, largest=float(values[-1]))

    def beyond_largest(self, values: Doubles) -> Doubles:
        """(M,) values at or above the largest one to the ratio of their survival to its own, in [0, 1]."""
        # Logarithms: both survivals may be too small for a number.
        log = genpareto.logsf([*values, self.largest], self.shape, loc=self.threshold, scale=self.scale)
        return np.asarray(np.exp(np.minimum(log[:-1] - log[-1], 0.0)), dtype=np.float64)


def _penalised_likelihood(excesses: Doubles) -> tuple[float, float]:
    """Scale and shape that maximise likelihood times prior; (K,) excesses above 0."""
    unit = float(excesses.mean())
    scaled = excesses / unit

    def cost(parameters: Doubles) -> float:
        log_scale, shape = float(parameters[0]), float(parameters[1])
        x = scaled * np.exp(-log_scale)
        # log(1 + shape x) / shape tends to x; the series keeps it smooth where the quotient loses its digits.
        bent = x - shape * x**2 / 2 if shape < 1e-6 else np.log1p(shape * x) / shape
        likelihood = len(x) * log_scale + (1 + shape) * float(bent.sum())
        return likelihood + ((shape - _PRIOR_MEAN) / _PRIOR_DEVIATION) ** 2 / 2

    starts = [np.array([np.log(max(1e-3, 1 - shape)), shape]) for shape in (0.05, 0.5)]
    found = [minimize(cost, start, bounds=[(-20.0, 20.0), _SHAPES], method="L-BFGS-B") for start in starts]
    best = min(found, key=lambda one: float(one.fun))
    return float(np.exp(best.x[0])) * unit, float(best.x[1])


Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]
Arrays = dict[str, NDArray[Any]]

MOST_BINS = 10


@dataclass(frozen=True, eq=False)
class Ranks:
    """Sorted values of a statistic for normal rows, and the p-value of a new one.

    Args:
        values: (K,) ascending; minus infinity where the statistic does not apply.
        tail: beyond the largest value; None if it cannot be fitted.
    """

    values: Doubles
    tail: Tail | None

    @classmethod
    def of(cls, values: Doubles) -> Ranks:
        """From (K,) values in any order; NaN where the statistic does not apply."""
        ordered = np.sort(np.where(np.isnan(values), -np.inf, values))
        return cls(ordered, Tail.fit(ordered))

    @property
    def total(self) -> int:
        """Rows."""
        return len(self.values)

    def p_values(self, values: Doubles) -> tuple[Doubles, Bools]:
        """(M,) values to (M,) p-values and (M,) True where they are extrapolated.

        (1 + values as large or larger) / (total + 1), which is a valid p-value of a row exchangeable with the
        normal ones (Vovk et al. 2005). Beyond the largest value that is 1 / (total + 1), which the tail
        reduces further; NaN has p-value 1.
        """
        return _p_values(self.at_least(values), self.total, self.tail, values)

    def levelled(self, values: Doubles) -> Doubles:
        """(M,) finite values to minus the log of p-values by rank, interpolated, so that their order is kept.

        Beyond the largest value it is that of the largest, and by how much it is exceeded.
        """
        known = np.unique(self.values)
        heights = -np.log((1.0 + self.at_least(known)) / (self.total + 1.0))
        return np.asarray(np.interp(values, known, heights) + np.maximum(values - known[-1], 0.0))

    def at_least(self, values: Doubles) -> Longs:
        """(M,) how many of the K are as large as each of (M,) values, or larger."""
        return np.asarray(len(self.values) - np.searchsorted(self.values, values, side="left"))

    def to_state(self, name: str, arrays: Arrays) -> dict[str, Any]:
        """Plain values; the normal values go into `arrays` under the name."""
        arrays[name] = self.values
        return {"tail": None if self.tail is None else astuple(self.tail)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], name: str, arrays: Mapping[str, NDArray[Any]]) -> Ranks:
        """Restore what `to_state` wrote."""
        return cls(np.asarray(arrays[name], dtype=np.float64), _tail(state))


def _tail(state: Mapping[str, Any]) -> Tail | None:
    if state["tail"] is None:
        return None
    threshold, scale, shape, largest = map(float, state["tail"])
    return Tail(threshold=threshold, scale=scale, shape=shape, largest=largest)


def _p_values(at_least: Longs, total: int, tail: Tail | None, values: Doubles) -> tuple[Doubles, Bools]:
    """(M,) p-values of values that so many of a total reach, and (M,) True where they are extrapolated."""
    applies = ~np.isnan(values)
    found = np.where(applies, (1.0 + at_least) / (total + 1.0), 1.0)
    beyond = np.zeros(len(values), dtype=np.bool_)
    if tail is not None:
        beyond = applies & (values > tail.largest)
        found[beyond] *= tail.beyond_largest(values[beyond])
    return np.maximum(found, LEAST_P), beyond


@dataclass(frozen=True, eq=False)
class CrossRanks:
    """Values of a statistic for normal rows in folds, each fold's made without its own rows, and p-values.

    A new row has a value by each of the folds' ways and is compared with the rows of that fold only (Vovk
    2015). Of one fold it is `Ranks`.

    Args:
        folds: the ranks of each, without tails.
        tail: beyond the largest value of all folds, where the least of a row's values lies; None if it cannot
            be fitted.
    """

    folds: tuple[Ranks, ...]
    tail: Tail | None

    @classmethod
    def of(cls, folds: Sequence[Doubles]) -> CrossRanks:
        """From the (K,) values of each fold, in any order."""
        together = np.sort(np.concatenate(folds))
        return cls(tuple(Ranks(np.sort(own), None) for own in folds), Tail.fit(together))

    @property
    def total(self) -> int:
        """Rows of all folds."""
        return sum(own.total for own in self.folds)

    def p_values(self, values: Sequence[Doubles]) -> tuple[Doubles, Bools]:
        """(M,) values by the way of each fold to (M,) p-values, and (M,) True where they are extrapolated.

        (1 + values as large or larger in their fold, added over folds) / (total + 1).
        """
        counts = sum(own.at_least(value) for own, value in zip(self.folds, values, strict=True))
        return _p_values(np.asarray(counts), self.total, self.tail, np.min(np.stack(values), axis=0))

    def to_state(self, name: str, arrays: Arrays) -> dict[str, Any]:
        """Plain values; the normal values go into `arrays` under names that begin with this one."""
        folds = [own.to_state(f"{name}/{fold}", arrays) for fold, own in enumerate(self.folds)]
        return {"folds": folds, "tail": None if self.tail is None else astuple(self.tail)}

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], name: str, arrays: Mapping[str, NDArray[Any]]
    ) -> CrossRanks:
        """Restore what `to_state` wrote."""
        folds = [Ranks.from_state(own, f"{name}/{fold}", arrays) for fold, own in enumerate(state["folds"])]
        return cls(tuple(folds), _tail(state))


@dataclass(frozen=True, eq=False)
class RanksByLength:
    """Ranks among normal rows of similar length.

    Args:
        edges: (B - 1,) lengths at which a new bin begins, ascending.
        bins: B of them.
    """

    edges: Longs
    bins: tuple[Ranks, ...]

    @classmethod
    def of(cls, values: Doubles, lengths: Longs, edges: Longs) -> RanksByLength:
        """From (N,) values and their (N,) lengths; `edges` from `length_edges`."""
        owner = np.searchsorted(edges, lengths, side="right")
        return cls(edges, tuple(Ranks.of(values[owner == bin]) for bin in range(len(edges) + 1)))

    def p_values(self, values: Doubles, lengths: Longs) -> tuple[Doubles, Bools]:
        """(M,) values and (M,) lengths to (M,) p-values and (M,) True where they are extrapolated."""
        owner = np.searchsorted(self.edges, lengths, side="right")
        p_values, beyond = np.ones(len(values)), np.zeros(len(values), dtype=np.bool_)
        for number in np.unique(owner).tolist():
            here = owner == number
            p_values[here], beyond[here] = self.bins[number].p_values(values[here])
        return p_values, beyond

    def levelled(self, values: Doubles, lengths: Longs) -> Doubles:
        """(M,) values, each `Ranks.levelled` among those of about the same of (M,) lengths."""
        owner = np.searchsorted(self.edges, lengths, side="right")
        found = np.empty(len(values))
        for number in np.unique(owner).tolist():
            here = owner == number
            found[here] = self.bins[number].levelled(values[here])
        return found

    def finite(self, lengths: Longs) -> Bools:
        """(M,) True where no normal row of about this length has an infinite value."""
        ends = np.array([not np.isposinf(one.values[-1:]).any() for one in self.bins])
        return np.asarray(ends[np.searchsorted(self.edges, lengths, side="right")])

    def to_state(self, name: str, arrays: Arrays) -> dict[str, Any]:
        """Plain values; arrays go into `arrays` under names that begin with this one."""
        arrays[f"{name}/edges"] = self.edges
        return {"bins": [one.to_state(f"{name}/{number}", arrays) for number, one in enumerate(self.bins)]}

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], name: str, arrays: Mapping[str, NDArray[Any]]
    ) -> RanksByLength:
        """Restore what `to_state` wrote."""
        bins = [Ranks.from_state(one, f"{name}/{number}", arrays) for number, one in enumerate(state["bins"])]
        return cls(np.asarray(arrays[f"{name}/edges"], dtype=np.int64), tuple(bins))


@dataclass(frozen=True, eq=False)
class Marginals:
    """The statistics' own ranks by length.

    Args:
        by_statistic: name -> its ranks.
    """

    by_statistic: dict[str, RanksByLength]

    @classmethod
    def fit(cls, statistics: Mapping[str, Doubles], lengths: Longs, edges: Longs) -> Marginals:
        """Estimate from (N,) statistics and lengths of normal rows; bins as `length_edges` gives them."""
        return cls({name: RanksByLength.of(values, lengths, edges) for name, values in statistics.items()})

    def p_values(
        self, statistics: Mapping[str, Doubles], lengths: Longs
    ) -> tuple[dict[str, Doubles], dict[str, Doubles], Bools]:
        """Name -> (M,) p-values, the same as they are fused, and (M,) True where any of them is extrapolated.

        Where one of K statistics is infinite, and of no normal row of about that length, a Kth of its
        p-value is fused: among few rows its rank is that of the largest finite one, which one row or another
        has in each statistic. What is fused is ranked again, so this is valid.

        Raises:
            StateError: the statistics are not those of the calibration.
        """
        if set(statistics) != set(self.by_statistic):
            raise StateError(
                f"calibrated for the statistics {', '.join(self.by_statistic)}, not {', '.join(statistics)}; "
                "calibrate the model again"
            )
        found, beyond = {}, np.zeros(len(lengths), dtype=np.bool_)
        for name, ranks in self.by_statistic.items():
            found[name], here = ranks.p_values(statistics[name], lengths)
            beyond |= here
        fused = dict(found)
        for name, ranks in self.by_statistic.items():
            if (endless := np.isposinf(statistics[name])).any():
                share = np.where(endless & ranks.finite(lengths), len(self.by_statistic), 1)
                fused[name] = np.maximum(found[name] / share, LEAST_P)
        return found, fused, beyond

    def to_state(self, name: str, arrays: Arrays) -> dict[str, Any]:
        """Plain values by name; arrays go into `arrays`."""
        return {c: ranks.to_state(f"{name}/{c}", arrays) for c, ranks in self.by_statistic.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], name: str, arrays: Mapping[str, NDArray[Any]]) -> Marginals:
        """Restore what `to_state` wrote."""
        found = {c: RanksByLength.from_state(one, f"{name}/{c}", arrays) for c, one in state.items()}
        return cls(found)


def length_edges(lengths: Longs, fewest: int) -> Longs:
    """Lengths at which bins begin, so that rows are compared with rows of similar length.

    Bins are quantiles of length, ten at most. A bin with too few rows is merged with its
    neighbour.

    Args:
        lengths: (N,) of the normal rows.
        fewest: rows that a bin must have, if there are as many.

    Returns:
        (B - 1,) first lengths of all bins but the lowest, ascending.
    """
    sizes, counts = np.unique(lengths, return_counts=True)
    wanted = max(fewest, -(-len(lengths) // MOST_BINS))
    edges: list[int] = []
    held, left = 0, len(lengths)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        if held >= wanted and left >= fewest:
            edges.append(size)
            held = 0
        held += count
        left -= count
    return np.array(edges, dtype=np.int64)
