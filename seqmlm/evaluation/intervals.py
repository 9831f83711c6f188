"""Rates with exact intervals, and figures with bootstrap intervals over groups of items."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqmlm.errors import UsageError

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]
Key = TypeVar("Key")

RANKED_DRAWS = 200
"""Maximum number of resamples for measures that rank items. Each resample sorts all items."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A rate (hits of trials) with its interval.

    Args:
        hits, trials: the counts, with 0 <= hits <= trials.
        value: hits / trials; NaN without trials.
        low, high: bounds of the true rate; 0 and 1 without trials.
    """

    hits: int
    trials: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure, such as the difference between two methods on the same items, with its interval.

    Args:
        value: the figure. For a difference, it is first minus second.
        low, high: bounds from bootstrap percentiles; NaN if no resample has a value.
        draws: number of resamples with a value.
    """

    value: float
    low: float
    high: float
    draws: int

    def bounds(self) -> dict[str, float]:
        """The value and its bounds, with their names in JSON."""
        return {"value": self.value, "low": self.low, "high": self.high}


def bounds_text(low: float, high: float, spec: str) -> str:
    """The bounds of an interval in brackets, in a given number format; "" if they are undefined.

    >>> bounds_text(0.1, 0.25, ".2f"), bounds_text(math.nan, math.nan, ".2f")
    (' (0.10 to 0.25)', '')
    """
    return f" ({low:{spec}} to {high:{spec}})" if math.isfinite(low) and math.isfinite(high) else ""


def exact_rate(hits: int, trials: int) -> Rate:
    """A rate with its Clopper-Pearson interval (1934), whose coverage is at least the nominal one.

    >>> rate = exact_rate(0, 10)
    >>> rate.value, rate.low, round(rate.high, 4)
    (0.0, 0.0, 0.3085)

    Raises:
        UsageError: `hits` is outside of 0 to `trials`.
    """
    from scipy.stats import beta

    if not 0 <= hits <= trials:
        raise UsageError(f"{hits} hits of {trials} trials are not a rate")
    tail = (1 - 0.95) / 2
    low = float(beta.ppf(tail, hits, trials - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, trials - hits)) if hits < trials else 1.0
    return Rate(hits=hits, trials=trials, value=hits / trials if trials else float("nan"), low=low, high=high)


def exact_accuracy(right: int, trials: int) -> dict[str, float]:
    """The accuracy with its interval, under the names of figures."""
    rate = exact_rate(right, trials)
    return {"accuracy": rate.value, "low": rate.low, "high": rate.high}


def bootstrap_weights(groups: ArrayLike, draws: int, seed: int) -> Callable[[int], Doubles]:
    """A function that returns the (N,) weights of a resample: how often each item occurs in it.

    Its argument is the number of the resample, 0 to draws - 1. Whole groups are drawn with replacement.

    Args:
        groups: (N,) the group of each item, such as its session, patient or family; of any type.
        draws: number of resamples.
        seed: seed of the resamples.
    """
    distinct, place = np.unique(np.asarray(groups), return_inverse=True)
    random = np.random.default_rng(seed)
    seeds = random.integers(2**63, size=draws)

    def weights(draw: int) -> Doubles:
        picks = np.random.default_rng(seeds[draw]).integers(len(distinct), size=len(distinct))
        counts: Doubles = np.bincount(picks, minlength=len(distinct)).astype(np.float64)[place]
        return counts

    return weights


def percentile_interval(value: float, resamples: Doubles, confidence: float = 0.95) -> Estimate:
    """A value with percentiles of its (B,) resamples. Resamples with NaN (only one class) are excluded."""
    good = resamples[~np.isnan(resamples)]
    low = high = float("nan")
    if len(good):
        low, high = np.quantile(good, [(1 - confidence) / 2, (1 + confidence) / 2]).tolist()
    return Estimate(value=value, low=low, high=high, draws=len(good))


def bootstrap_intervals(
    measure: Callable[[Doubles], Mapping[Key, float]], groups: ArrayLike, *, draws: int = 1000, seed: int = 0
) -> dict[Key, Estimate]:
    """Measures of all items, each with an interval from resamples of whole groups.

    Args:
        measure: computes measures (name -> value) from the (N,) weights of items. NaN means undefined.
        groups: (N,) the group of each item. With a single group, intervals are NaN.
        draws, seed: number and seed of the resamples.
    """
    labels = np.asarray(groups)
    weights = bootstrap_weights(labels, draws, seed)
    resamples = [measure(weights(draw)) for draw in range(draws if len(np.unique(labels)) > 1 else 0)]
    observed = measure(np.ones(len(labels)))
    columns = {name: np.array([resample[name] for resample in resamples]) for name in observed}
    return {name: percentile_interval(value, columns[name]) for name, value in observed.items()}


def ratio(
    numerators: ArrayLike, denominators: ArrayLike | None = None, *, draws: int = 1000, seed: int = 0
) -> Estimate:
    """The sum of numerators divided by the sum of denominators, with a bootstrap interval over items.

    Args:
        numerators: (N,) one for each item, such as a record. With a single item, the interval is NaN.
        denominators: (N,) one for each item. None means ones, so that the result is a mean.
        draws, seed: number and seed of the resamples.

    >>> found = ratio([1, 0, 1, 1], [2, 1, 1, 2])
    >>> found.value, 0 <= found.low <= found.value <= found.high <= 1
    (0.5, True)
    """
    above = np.asarray(numerators, dtype=np.float64)
    below = np.ones_like(above) if denominators is None else np.asarray(denominators, dtype=np.float64)

    def share(weights: Doubles) -> dict[str, float]:
        total = float(weights @ below)
        return {"": float(weights @ above) / total if total else float("nan")}

    return bootstrap_intervals(share, np.arange(len(above)), draws=draws, seed=seed)[""]
