"""The couplings of a linear model as a map of dependence: read from its parameters, without asking it."""

from __future__ import annotations

import numpy as np

from seqmlm.engine.linear import Potts, columns_of, coupling_norms
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import unit_numbers
from seqmlm.structure.maps import DependenceMap, aggregated, apc, symmetrized


def coupling_map(model: Potts, encoding: Encoding, *, corrected: bool = True) -> DependenceMap:
    """The pairs of units of an aligned sequence by the strength of the couplings of their columns.

    Frobenius norms in the zero-sum gauge, as plmDCA and GREMLIN rank contacts. All sequences have the same
    numbers; a sequence has those of the columns where it has no gap.

    Args:
        model: `LinearRows.model`.
        encoding: a sequence of the model's length.
        corrected: by the average product, over all columns of the model.

    Raises:
        UsageError: a sequence of another length.
    """
    norms = coupling_norms(model)
    np.fill_diagonal(norms, np.nan)
    values = apc(norms) if corrected else norms
    units, columns = unit_numbers(encoding), columns_of(model, len(encoding))
    asked = np.flatnonzero((units >= 0) & (columns >= 0))
    own = values[np.ix_(columns[asked], columns[asked])]
    count = int(units.max(initial=-1)) + 1
    if len(asked) != count:
        own = aggregated(own, units[asked], count, rows="max")
    return DependenceMap(values=symmetrized(own), method="couplings", nats=False)
