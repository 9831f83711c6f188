"""The p-values of a row's channels as one number; what that number is worth is ranked, not derived.

Which way suits a level was chosen on faults planted in normal records, without labels. Fisher's sum asks that
channels agree: it suits a few that say different things. Ten channels that mostly say the same, of which a
fault moves two or three, dilute it; the harmonic mean is led by the smallest p-values, as their minimum is,
and yet tells one small p-value from several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

Doubles = NDArray[np.float64]
Fusion = Literal["fisher", "harmonic"]


def fisher(p_values: Mapping[str, Doubles]) -> Doubles:
    """(M,) -2 sum log p over channels, all with equal weight (Fisher 1932); higher is more unusual."""
    return np.asarray(-2.0 * np.sum([np.log(one) for one in p_values.values()], axis=0), dtype=np.float64)


def harmonic(p_values: Mapping[str, Doubles]) -> Doubles:
    """(M,) minus the log of the channels' harmonic mean p-value (Wilson 2019); higher is more unusual.

    In its upper tail it is the Cauchy combination of Liu and Xie (2020).
    """
    logs = -np.log(np.stack(list(p_values.values())))
    return np.asarray(logsumexp(logs, axis=0) - np.log(len(logs)), dtype=np.float64)


FUSIONS: Mapping[Fusion, Callable[[Mapping[str, Doubles]], Doubles]] = {
    "fisher": fisher,
    "harmonic": harmonic,
}
