"""P-values by rank among normal values, and their extrapolation beyond the largest normal value.

Beyond the largest normal value, a p-value is extrapolated by peaks over threshold (Pickands 1975; Davison &
Smith 1990) and marked as extrapolated. The excesses over a high quantile are fitted with a generalized Pareto
distribution. Its survival function says how much rarer a value is.

A weak prior on the shape stabilises the fit if there are few excesses (similar to Martins & Stedinger 2000).
A shape below 0 is excluded: the tail would then end, and larger values would be impossible.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]

LEAST_P = 1e-12
"""Smallest p-value. Below it, every model of a tail is a guess. Infinite statistics have this p-value."""

# A tail is an array (4,): threshold, scale (above 0) and shape (in [0, 1]) of a generalized Pareto
# distribution, and the largest value of the fit. P-values beyond this value are extrapolated. If no fit is
# possible, all are NaN.

QUANTILE, FEWEST = 0.98, 25
"""Quantile that is the threshold, and fewest excesses. The threshold is lower if there are fewer excesses."""

_LARGEST_SHARE = 0.25  # maximum fraction of the values in the tail
_SHAPES, _PRIOR_MEAN, _PRIOR_DEVIATION = (0.0, 1.0), 0.1, 0.25
_STRAIGHT = 1e-12  # with a smaller shape, the distribution is exponential
NO_TAIL = np.full(4, np.nan)


def fit_tail(values: Doubles) -> Doubles:
    """(4,) threshold, scale, shape and largest value of the tail of (N,) ascending values.

    `NO_TAIL` if values are too few, equal or infinite.
    """
    count = min(max(round((1 - QUANTILE) * len(values)), FEWEST), int(_LARGEST_SHARE * len(values)))
    if count < 2 or not np.isfinite(values[-count - 1 :]).all():
        return NO_TAIL
    threshold = float(values[-count - 1])
    excesses = values[-count:] - threshold
    excesses = excesses[excesses > 0]
    if len(excesses) < 2 or excesses[0] == excesses[-1]:
        return NO_TAIL
    return np.array([threshold, *_penalised_likelihood(excesses), values[-1]])


def survival_ratio(tail: Doubles, values: Doubles) -> Doubles:
    """(M,) the survival function at values, divided by that at the largest value of the tail; in [0, 1]."""
    threshold, scale, shape, largest = tail.tolist()
    # Logarithms, because both values may be too small for a float. (Importing scipy.stats takes a second.)
    excess = (np.append(values, largest) - threshold) / scale
    log = -np.log1p(shape * excess) / shape if shape > _STRAIGHT else -excess
    return np.asarray(np.exp(np.minimum(log[:-1] - log[-1], 0.0)), dtype=np.float64)


def _penalised_likelihood(excesses: Doubles) -> tuple[float, float]:
    """The scale and shape that maximise likelihood times prior, for (K,) excesses above 0."""
    from scipy.optimize import minimize

    unit = float(excesses.mean())
    scaled = excesses / unit

    def cost(parameters: Doubles) -> tuple[float, Doubles]:
        """Minus the log of likelihood times prior, and its (2,) gradient by log scale and shape."""
        log_scale, shape = float(parameters[0]), float(parameters[1])
        x = scaled * np.exp(-log_scale)
        share = x / (1 + shape * x)
        # log(1 + shape x) / shape tends to x. The series is accurate where the quotient loses digits.
        few = shape < 1e-6
        bent = x - shape * x**2 / 2 if few else np.log1p(shape * x) / shape
        bending = float((shape * x**3 / 1.5 - x**2 / 2 if few else (share - bent) / shape).sum())
        total, away = float(bent.sum()), (shape - _PRIOR_MEAN) / _PRIOR_DEVIATION
        penalty = len(x) * log_scale + (1 + shape) * total + away**2 / 2
        slope = total + (1 + shape) * bending + away / _PRIOR_DEVIATION
        return penalty, np.array([len(x) - (1 + shape) * float(share.sum()), slope])

    starts = [np.array([np.log(max(1e-3, 1 - shape)), shape]) for shape in (0.05, 0.5)]
    bounds = [(-20.0, 20.0), _SHAPES]
    optima = [minimize(cost, start, jac=True, bounds=bounds, method="L-BFGS-B") for start in starts]
    best = min(optima, key=lambda optimum: float(optimum.fun))
    return float(np.exp(best.x[0])) * unit, float(best.x[1])


def rank_p_values(at_least: Longs, total: int, tail: Doubles, values: Doubles) -> tuple[Doubles, Bools]:
    """(M,) p-values of values by their ranks, and (M,) True where they are extrapolated.

    The p-value is (1 + normal values at least as large) / (total + 1). It is valid for a row that is
    exchangeable with the normal rows (Vovk et al. 2005). Beyond the largest normal value, the tail reduces
    it.

    Args:
        at_least: (M,) number of normal values that are at least as large.
        total: number of normal values.
        tail: (4,) their tail.
        values: (M,) the values. NaN gets the p-value 1.
    """
    applies = ~np.isnan(values)
    p_values = np.where(applies, (1.0 + at_least) / (total + 1.0), 1.0)
    beyond = applies & (values > tail[3])
    if beyond.any():
        p_values[beyond] *= survival_ratio(tail, values[beyond])
    return np.maximum(p_values, LEAST_P), beyond
