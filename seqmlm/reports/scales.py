"""Colour scales: the step (1 to 8) of a value, and scales that fit some values."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]

STEPS = 8
"""Number of CSS classes s1 to s8, with equal differences in lightness. s0 has no colour."""

SCALE = 12.0
"""Bits of the strongest colour: an outcome of one in four thousand."""


def steps(bits: Doubles, scale: float = SCALE, signed: bool = False) -> Longs:
    """(N,) the colour step, 0 to 8, of each surprisal. Steps are linear in bits.

    NaN has step 0. Values of at least `scale` bits have step 8. If `signed`, negative values have steps down
    to -8, otherwise 0.

    >>> steps(np.array([0.0, 1.0, 6.0, 50.0, np.nan])).tolist()
    [0, 0, 4, 8, 0]
    >>> steps(np.array([-1.0, -6.0, 6.0]), signed=True).tolist()
    [0, -4, 4]
    """
    values = np.nan_to_num(np.asarray(bits, dtype=np.float64), nan=0.0, posinf=scale, neginf=-scale)
    return np.trunc(np.clip(values / scale, -1.0 if signed else 0.0, 1.0) * STEPS).astype(np.int64)


def colour_scale(values: ArrayLike, within: float = 0.98) -> float:
    """A colour scale that fits some values: eight steps, rounded to two digits.

    Args:
        values: positive or negative values. Values that are not finite are left out.
        within: approximate share of values that do not exceed the scale.

    >>> colour_scale([*range(-99, 100)]), colour_scale([0.03, -0.01]), colour_scale([])
    (96.0, 0.0296, 1.0)
    """
    sizes = np.abs(np.asarray(values, dtype=np.float64).ravel())
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    if not len(sizes):
        return 1.0
    step = float(np.quantile(sizes, within)) / STEPS
    return float(f"{STEPS * float(f'{step:.2g}'):.6g}")


def surprisal_scale(bits: Doubles) -> float:
    """A colour scale for surprisals: 4, 8, 12 or 16 bits, reached by about one unit in two hundred.

    >>> surprisal_scale(np.array([0.5, 4.1])), surprisal_scale(np.array([40.0, np.nan]))
    (8.0, 16.0)
    """
    finite = bits[np.isfinite(bits)]
    return float(np.clip(4 * np.ceil(np.quantile(finite, 0.995) / 4), 4, 16)) if len(finite) else 4.0
