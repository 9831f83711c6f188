"""The far tail of a statistic: how much rarer than the largest value seen is one beyond it?

Peaks over threshold (Pickands 1975; Davison & Smith 1990): excesses over a high quantile are fitted by a
generalized Pareto distribution, and what lies beyond the largest value is priced by its survival function.
The fit leans on a weak prior of the shape (in the manner of Martins & Stedinger 2000), which keeps it sober
where there are few excesses, and never gives the tail an end: a shape below 0 would call the unseen
impossible.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import genpareto

Doubles = NDArray[np.float64]

QUANTILE = 0.98
"""Excesses are counted from this quantile, or from lower where that would leave fewer than `FEWEST`."""

FEWEST = 25

LEAST_P = 1e-12
"""No p-value is smaller: so far out, every model of a tail is a guess. Infinite statistics have this one."""

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
            The tail; None where the sample shows none: too few values, equal ones, or infinite ones.
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

    def survival(self, values: Doubles) -> Doubles:
        """(M,) values above the threshold to the share of the tail that lies beyond each."""
        found: Doubles = genpareto.sf(values, self.shape, loc=self.threshold, scale=self.scale)
        return found

    def beyond_largest(self, values: Doubles) -> Doubles:
        """(M,) values at or above the largest one to how much rarer each is, in [0, 1]; 1 at the largest."""
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
