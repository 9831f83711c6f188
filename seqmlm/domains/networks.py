"""Decoders of fields whose units have names that many records share: one network over all records.

The map of one record gives its own edges; what is asked is mostly which names depend on each other in all of
them, directly or through others (`seqmlm.structure.network`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.record import Record
from seqmlm.domains.structure import Decoded, Decoder, Pair, Truth
from seqmlm.structure.maps import DependenceMap
from seqmlm.structure.network import (
    INDIRECT,
    LINKED,
    UNKNOWN,
    UNLINKED,
    Link,
    Pool,
    graphml,
    indirect_pairs,
    outlier_threshold,
    ranking_figures,
    tsv_lines,
)

Z = 3.0
"""Where a null model was drawn, an edge is so many of its standard deviations above it."""


class NetworkDecoder(Decoder):
    """Edges of records, and the network of names over all of them.

    lag: name of the time between two names, with its unit. fewest: records that a pair must be in.
    """

    measure: str = "auprc"
    lag: ClassVar[str]
    fewest: ClassVar[int] = 1

    def shown(self, record: Record, name: str) -> str:
        """A name as people read it, once all records (of which one is given) are known; by default as it
        is."""
        return name

    @abstractmethod
    def times(self, record: Record, names: Sequence[str]) -> Mapping[str, float]:
        """When each name first occurs, in the unit of `lag`, where that is known."""

    @abstractmethod
    def near(self, record: Record, names: Sequence[str]) -> NDArray[np.bool_]:
        """(N, N) which units are near each other."""

    def decode(self, record: Record, units: Sequence[str], dependence: DependenceMap) -> frozenset[Pair]:
        """Pairs of different names that stand out of the map, and are not indirect in it."""
        names, values = self.names(record, units), dependence.values
        _, number = np.unique(np.array(names, dtype=np.object_), return_inverse=True)
        judged = np.triu(number[:, None] != number[None, :], self.separation)
        if dependence.z is not None:
            strong = dependence.z >= Z
        else:
            strong = values > outlier_threshold(values, judged)
        found = np.argwhere(judged & strong & (values > 0) & ~indirect_pairs(values))
        return frozenset((i, j) for i, j in found.tolist())

    def measures(self, decoded: Iterable[Decoded]) -> dict[str, float]:
        """AUPRC and AUROC of the network's links, beside those of PMI and of nearness by counting."""
        return ranking_figures(self._links(decoded))

    def files(self, decoded: Iterable[Decoded]) -> Mapping[str, Iterator[str]]:
        """`network.graphml` and `network.tsv`."""
        links = cache(lambda: self._links(decoded))

        def written(form: Callable[[Sequence[Link], str], Iterator[str]]) -> Iterator[str]:
            yield from form(links(), self.lag)

        return {"network.graphml": written(graphml), "network.tsv": written(tsv_lines)}

    def _links(self, decoded: Iterable[Decoded]) -> list[Link]:
        pool, last = Pool(), None
        for one in decoded:
            last = one.record
            names = self.names(one.record, one.units)
            pool.add(
                names,
                one.dependence.values,
                near=self.near(one.record, names),
                times=self.times(one.record, names),
                truth=None if one.truth is None else _marks(one.truth, len(names)),
            )
        links = pool.links(self.fewest)
        if last is None:
            return links
        spelled = {name: self.shown(last, name) for own in links for name in (own.first, own.second)}
        return [replace(own, first=spelled[own.first], second=spelled[own.second]) for own in links]


def _marks(truth: Truth, size: int) -> NDArray[np.int8]:
    """(N, N) what a truth says of every pair."""
    marks = np.full((size, size), UNKNOWN, dtype=np.int8)
    first, second = np.triu_indices(size, 1)
    known, _ = truth.of(first, second)
    marks[first[known], second[known]] = marks[second[known], first[known]] = UNLINKED
    for (i, j), kind in truth.kinds.items():
        if kind == "indirect":
            marks[i, j] = marks[j, i] = INDIRECT
    for i, j in truth.edges:
        marks[i, j] = marks[j, i] = LINKED
    return marks
