"""Dependence maps between the units of one sequence, and operations on maps from any method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.engine.units import unit_numbers
from seqmlm.errors import UsageError

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]
Over = Literal["max", "mean"]
Null = Literal["shuffled", "dinucleotide", "mirrored"]

_BORDERS = (1, 2, 3, 4, 5, 6, 9, 13, 17, 25, 49, 97)
"""Distances in units that separate the classes of pairs in a null model: near pairs depend more."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DependenceMap:
    """A map of how strongly the units of one sequence depend on each other.

    N is the number of units of the whole sequence (`seqmlm.engine.units.Units.numbers`).

    Args:
        values: (N, N) float64, symmetric. NaN for pairs that were not computed: the diagonal, and pairs
            farther apart than allowed. The values are in nats if `nats` is True, else on the scale of the
            method.
        method: name of the method that made the map, such as "cmi/exact".
        nats: whether values are in nats.
        error: (N, N) standard errors of the values, or None if the method is deterministic.
        passes: number of masked or changed copies of the sequence that the model computed (the cost).
        z, p: (N, N) z-score and p-value of each pair under a null model, or None.
        details: figures of the method for the whole map, such as the probability of the symbols that were
            tried, or the incompatibility of the two conditionals.
    """

    values: Doubles
    method: str
    nats: bool = True
    error: Doubles | None = None
    passes: int = 0
    z: Doubles | None = None
    p: Doubles | None = None
    details: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values)

    def finite_pairs(self, separation: int) -> tuple[Longs, Longs]:
        """(P,) and (P,) the units of all pairs with a value that are at least `separation` units apart.

        The pairs are in order.
        """
        first, second = np.triu_indices(len(self), separation)
        finite = np.isfinite(self.values[first, second])
        return first[finite], second[finite]


def symmetric_values(values: Doubles, over: Over = "mean") -> Doubles:
    """The mean, or the larger, of the two directions of each pair; the diagonal is NaN.

    If only one direction has a value, that value is used.

    >>> symmetric_values(np.array([[0.0, 1.0], [3.0, 0.0]]))[0, 1]
    np.float64(2.0)
    """
    directions = np.stack([values, values.T])
    missing = np.isnan(directions)
    filled = np.where(missing, -np.inf if over == "max" else 0.0, directions)
    count = (~missing).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        merged = filled.max(axis=0) if over == "max" else filled.sum(axis=0) / count
    symmetric: Doubles = np.where(count > 0, merged, np.nan)
    np.fill_diagonal(symmetric, np.nan)
    return symmetric


def apc(values: Doubles) -> Doubles:
    """The average product correction: M - M_i. M_.j / M_.., with means over known pairs (Dunn et al. 2008).

    Args:
        values: (N, N) symmetric, NaN for unknown pairs; the diagonal is not part of the means.
    """
    finite = ~np.isnan(values)
    np.fill_diagonal(finite, False)
    counts = finite.sum(axis=1)
    sums = np.where(finite, values, 0.0).sum(axis=1)
    means = np.divide(sums, counts, out=np.zeros(len(sums)), where=counts > 0)
    overall = sums.sum() / max(1, counts.sum())
    if not overall:
        return values.copy()
    corrected: Doubles = values - np.outer(means, means) / overall
    return corrected


def unit_values(
    values: Doubles, unit: Longs, count: int, *, columns: Over = "max", rows: Over = "mean"
) -> Doubles:
    """The map of N units from a map of tokens, combined first over the columns of a unit, then over its rows.

    Exponentials are averaged, as in Zhang and Hashimoto (2021), so that the values belong to pairs of
    nats. Both maps have one direction of each pair in each triangle, and NaN if no pair of tokens is known.

    Args:
        values: (M, M) values of tokens.
        unit: (M,) unit of each token, ascending.
        count: N, the number of units.
        columns, rows: how values are combined over columns and over rows.
    """
    matrix = np.full((count, count), np.nan)
    if not len(unit):
        return matrix
    starts = np.flatnonzero(np.r_[True, unit[1:] != unit[:-1]])
    place = np.ix_(unit[starts], unit[starts])
    by_column = _reduce_groups(np.exp(values), starts, columns, axis=1)
    matrix[place] = np.log(_reduce_groups(by_column, starts, rows, axis=0))
    np.fill_diagonal(matrix, np.nan)
    return matrix


def _reduce_groups(values: Doubles, starts: Longs, how: Over, *, axis: int) -> Doubles:
    """The largest value, or the mean, of each group of rows or columns; NaN for a group without values."""
    missing = np.isnan(values)
    finite = (~missing).astype(np.float64)
    count = np.add.reduceat(finite, starts, axis=axis)
    if how == "max":
        reduced = np.maximum.reduceat(np.where(missing, -np.inf, values), starts, axis=axis)
    else:
        reduced = np.add.reduceat(np.where(missing, 0.0, values), starts, axis=axis) / np.maximum(count, 1)
    filled: Doubles = np.where(count > 0, reduced, np.nan)
    return filled


# Null models


def null_sequences(
    encoding: Encoding, space: TokenSpace, count: int, *, kind: Null = "shuffled", seed: int = 0
) -> Iterator[Encoding]:
    """Sequences without dependence between units, made from the units of one sequence.

    Args:
        encoding: the sequence, without its own positions or channels.
        space: the vocabulary.
        count: number of sequences; "mirrored" gives only one.
        kind: "shuffled" shuffles the units, "mirrored" reads them backwards. The kind "dinucleotide"
            shuffles them so that each pair of neighbours is as frequent as before (Altschul and Erickson
            1985).
        seed: seed of the shuffles, which differ between sequences.

    Raises:
        UsageError: a unit has several tokens that are not adjacent, or the tokens of the sequence have their
            own positions.
    """
    numbers = unit_numbers(encoding)
    movable = np.where(space.is_special[encoding.ids], -1, numbers)
    inside = np.flatnonzero(movable >= 0)
    starts = inside[np.r_[True, np.diff(movable[inside]) != 0]] if len(inside) else inside
    if len(starts) != len(np.unique(movable[inside])) or encoding.positions is not None or encoding.channels:
        raise UsageError(
            "a null model moves single units, which is not possible in these sequences; leave out --set null"
        )
    blocks = np.split(inside, np.searchsorted(inside, starts[1:]))
    units = [tuple(encoding.ids[block].tolist()) for block in blocks]
    for number in range(1 if kind == "mirrored" else count):
        rng = np.random.default_rng([seed, number, crc32(encoding.ids.tobytes())])
        if kind == "mirrored":
            order = np.arange(len(units))[::-1]
        elif kind == "shuffled":
            order = rng.permutation(len(units))
        else:
            order = _dinucleotide_order(units, rng)
        yield _reorder(encoding, inside, [blocks[place] for place in order.tolist()])


def _reorder(encoding: Encoding, inside: Longs, blocks: Sequence[Longs]) -> Encoding:
    """The sequence with blocks of positions, one for each unit, in this order at the positions `inside`."""
    sources = np.concatenate(blocks) if blocks else inside
    ids, groups, symbols = encoding.ids.copy(), encoding.groups.copy(), encoding.symbols
    ids[inside] = encoding.ids[sources]
    if symbols is not None:
        symbols = symbols.copy()
        symbols[inside] = symbols[sources]
    groups[inside] = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
    return Encoding(ids=ids, groups=groups, symbols=symbols)


def _dinucleotide_order(units: Sequence[tuple[int, ...]], rng: np.random.Generator) -> Longs:
    """A random order of the units that keeps the count of each pair of neighbours, and both end units.

    It is a random Eulerian path. The last edge out of each kind of unit is drawn so that these edges lead to
    the last unit. The other edges follow in random order.
    """
    kinds = {unit: number for number, unit in enumerate(dict.fromkeys(units))}
    path = [kinds[unit] for unit in units]
    if len(path) < 3:
        return np.arange(len(path))
    edges: dict[int, list[int]] = {kind: [] for kind in kinds.values()}
    for source, target in pairwise(path):
        edges[source].append(target)
    end = path[-1]
    while True:
        last = {
            kind: successors[int(rng.integers(len(successors)))]
            for kind, successors in edges.items()
            if successors and kind != end
        }
        if all(_leads(kind, last, end) for kind in last):
            break
    for kind, successors in edges.items():
        free = list(successors)
        if kind in last:
            free.remove(last[kind])
        mixed = [free[place] for place in rng.permutation(len(free)).tolist()]
        edges[kind] = mixed + ([last[kind]] if kind in last else [])
    at, walk, used = path[0], [path[0]], dict.fromkeys(edges, 0)
    for _ in range(len(path) - 1):
        used[at] += 1
        at = edges[at][used[at] - 1]
        walk.append(at)
    waiting: dict[int, list[int]] = {}
    for place, kind in enumerate(path):
        waiting.setdefault(kind, []).append(place)
    unused = {kind: iter(places) for kind, places in waiting.items()}
    return np.array([next(unused[kind]) for kind in walk], dtype=np.int64)


def _leads(kind: int, last: Mapping[int, int], end: int) -> bool:
    """Whether the last edges lead from a kind of unit to the end."""
    visited = set[int]()
    while kind != end:
        if kind in visited or kind not in last:
            return False
        visited.add(kind)
        kind = last[kind]
    return True


def with_null_scores(dependence: DependenceMap, null_maps: Sequence[DependenceMap]) -> DependenceMap:
    """The map with z and p of each pair, compared with pairs of null maps at about the same distance.

    The value z is the distance from the mean of the null pairs, in their standard deviations. The value p is
    the fraction of all pairs, in the null maps and in this map, that are at least as dependent.

    Pairs of one map rise and fall together. If p counted only the pairs of the null maps, a shuffled
    sequence could have more than a fraction alpha of pairs with p <= alpha. Together with the pairs of this
    map they are exchangeable, and on average no more than a fraction alpha have p <= alpha. With M null
    maps, at most a fraction alpha (M + 1) of the pairs can have it.

    Args:
        dependence: a map.
        null_maps: maps of the `null_sequences` of its sequence.
    """
    size = len(dependence)
    place = np.arange(size)
    distance_class = np.searchsorted(_BORDERS, np.abs(place[:, None] - place), side="right")
    upper = np.triu(np.ones((size, size), dtype=np.bool_), 1)
    z, p = np.full((size, size), np.nan), np.full((size, size), np.nan)
    for number in np.unique(distance_class[upper]):
        here = upper & (distance_class == number)
        null = np.concatenate([null_map.values[here] for null_map in null_maps] or [np.zeros(0)])
        null = null[np.isfinite(null)]
        if not len(null):
            continue
        values = dependence.values[here]
        spread = float(null.std())
        z[here] = (values - null.mean()) / spread if spread else np.nan
        pooled = np.sort(np.concatenate([null, values[np.isfinite(values)]]))
        above = len(pooled) - np.searchsorted(pooled, values, side="left")
        p[here] = np.where(np.isnan(values), np.nan, above / len(pooled))
    z, p = (np.where(upper, table, table.T) for table in (z, p))
    passes = dependence.passes + sum(null_map.passes for null_map in null_maps)
    return replace(dependence, z=z, p=p, passes=passes)
