"""Scales of colours: which of eight steps a value has, and scales that fit some values."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]

STEPS = 8
"""Classes s1 to s8 of the style sheet, steps of equal lightness difference; s0 has no colour."""

SCALE = 12.0
"""Bits from which on the colour is the strongest: an outcome of one in four thousand."""


def steps(bits: Doubles, scale: float = SCALE, signed: bool = False) -> Longs:
    """(N,) the step, 0 to 8, of each surprisal: linear in bits, so that a step is the same factor of p.

    A NaN, which says nothing, has step 0; from `scale` bits on it is the last one. Where they are signed,
    values below 0 have steps down to -8; else they have 0.

    >>> steps(np.array([0.0, 1.0, 6.0, 50.0, np.nan])).tolist()
    [0, 0, 4, 8, 0]
    >>> steps(np.array([-1.0, -6.0, 6.0]), signed=True).tolist()
    [0, -4, 4]
    """
    values = np.nan_to_num(np.asarray(bits, dtype=np.float64), nan=0.0, posinf=scale, neginf=-scale)
    return np.trunc(np.clip(values / scale, -1.0 if signed else 0.0, 1.0) * STEPS).astype(np.int64)


def colour_scale(values: ArrayLike, within: float = 0.98) -> float:
    """A scale of colours that fits some values: eight steps of two digits.

    Args:
        values: of either sign; those that are no finite number are left out.
        within: share of them that is not beyond the strongest colour, about.

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
    """A scale of colours for surprisals: what one unit in two hundred reaches, as 4, 8, 12 or 16 bits.

    >>> surprisal_scale(np.array([0.5, 4.1])), surprisal_scale(np.array([40.0, np.nan]))
    (8.0, 16.0)
    """
    finite = bits[np.isfinite(bits)]
    return float(np.clip(4 * np.ceil(np.quantile(finite, 0.995) / 4), 4, 16)) if len(finite) else 4.0
