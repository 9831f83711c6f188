"""The inverse covariance of an alignment: dependence of columns by counts, the baseline for maps of a model.

Columns are encoded as indicators. Their covariance over the rows is estimated with shrinkage and inverted.
If two columns depend on each other only through other columns, their entry is about zero (Jones et al. 2012,
PSICOV). This code uses the ridge of 4.5 / sqrt(rows) in place of a sparse estimate.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.pseudolikelihood import sequence_weights

Doubles = NDArray[np.float64]
Letters = NDArray[np.integer]

_RIDGE = 4.5
_SAME = 0.8  # share of equal columns from which rows count as one


def inverse_covariance(rows: Letters, letters: int) -> Doubles:
    """(L, L) Frobenius norms of the blocks of the inverse covariance, average product corrected.

    Args:
        rows: (M, L) numbers of letters, 0 to `letters` - 1, and `letters` for a gap. A gap has its own
            indicator in the covariance, but none in the norm.
        letters: A.

    The memory grows with (L x (A + 1)) squared, and the time with its cube.
    """
    count, columns = rows.shape
    size = letters + 1
    weights = sequence_weights(rows, _SAME)
    flat = np.zeros((count, columns * size))
    flat[np.arange(count)[:, None], np.arange(columns) * size + rows] = 1.0
    total = weights.sum()
    centred = flat - (weights @ flat) / total
    covariance = (centred * weights[:, None]).T @ centred / total
    covariance[np.diag_indices_from(covariance)] += _RIDGE / np.sqrt(total)
    inverse = np.linalg.inv(covariance).reshape(columns, size, columns, size)[:, :letters, :, :letters]
    norms = np.sqrt((inverse**2).sum(axis=(1, 3)))
    np.fill_diagonal(norms, 0.0)
    means = norms.mean(axis=1)  # of a diagonal of zeros
    corrected = norms - np.outer(means, means) / norms.mean()
    np.fill_diagonal(corrected, np.nan)
    return corrected
