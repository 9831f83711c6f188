"""A record read from both ends: the scores of DNA's two strands as one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from seqmlm.anomaly.values import Bools, Doubles, Scored
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import Units


def both_ways(one: Scored, mirrored: Scored) -> Scored:
    """`one` with surprisals, and the values that `mirrored` has, averaged over it and its mirror image.

    Place i of the raw text is place length - 1 - i of the mirrored one. A unit of several letters which the
    mirrored record divides otherwise gets the sum of their shares; one that the mirrored record does not
    score in full keeps its own. All other values stay those of `one`.

    Args:
        one: a record's scores, of some or all units.
        mirrored: those of the same record read from its other end, of the same stretch at least; with values
            that can be divided among letters, such as entropies.
    """
    length = len(str(one.record.raw))

    def averaged(own: Doubles, other: Doubles) -> Doubles:
        sums = _sums(_spread(mirrored, other, length)[::-1], one)
        return np.where(np.isnan(sums), own, (own + sums) / 2)

    values = {
        name: averaged(one.values[name], other)
        for name, other in mirrored.values.items()
        if name in one.values
    }
    surprisal = averaged(one.surprisal, mirrored.surprisal)
    return replace(one, surprisal=surprisal, values={**one.values, **values})


def wanted_in_mirror(
    encoding: Encoding, wanted: Bools, mirrored: Encoding, rule: Units, length: int
) -> Bools:
    """Which tokens of the mirrored record show the units that are wanted of a record.

    Args:
        encoding, mirrored: both ways of a record.
        wanted: (L,) True at tokens of `encoding` whose units are wanted.
        rule: how units are read.
        length: characters of the raw text.
    """
    letters = np.zeros(length + 1, dtype=np.int64)
    chosen = rule.spans(encoding)[wanted[rule.places(encoding)]]
    np.add.at(letters, length - chosen[:, 1], 1)
    np.add.at(letters, length - chosen[:, 0], -1)
    covered = np.concatenate([[0], np.cumsum(np.cumsum(letters)[:-1] > 0)])
    spans = rule.spans(mirrored)
    units = covered[spans[:, 1]] > covered[spans[:, 0]]
    groups = mirrored.groups[rule.places(mirrored)[units]]
    return np.isin(mirrored.groups, groups) & (mirrored.groups >= 0)


def _spread(scored: Scored, values: Doubles, length: int) -> Doubles:
    """(length,) each unit's value in equal parts on its letters, NaN between units."""
    found = np.full(length, np.nan)
    starts, ends = scored.spans.T
    sizes = ends - starts
    for offset in range(int(sizes.max(initial=0))):
        inside = sizes > offset
        found[starts[inside] + offset] = values[inside] / sizes[inside]
    return found


def _sums(letters: Doubles, scored: Scored) -> Doubles:
    """(U,) the sum over the letters of each unit, NaN where one of them has no value."""
    total = np.concatenate([[0.0], np.cumsum(np.nan_to_num(letters))])
    holes = np.concatenate([[0], np.cumsum(np.isnan(letters))])
    starts, ends = scored.spans.T
    return np.where(holes[ends] == holes[starts], total[ends] - total[starts], np.nan)
