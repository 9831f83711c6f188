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

    def display_name(self, record: Record, name: str) -> str:
        """A name as people read it, by default unchanged; asked once all records are read, one is given."""
        return name

    @abstractmethod
    def times(self, record: Record, names: Sequence[str]) -> Mapping[str, float]:
        """When each name first occurs, in the unit of `lag`, where that is known."""

    @abstractmethod
    def near_pairs(self, record: Record, names: Sequence[str]) -> NDArray[np.bool_]:
        """(N, N) whether two units are near each other."""

    def decode(self, record: Record, units: Sequence[str], dependence: DependenceMap) -> frozenset[Pair]:
        """Pairs of different names that stand out of the map, and are not indirect in it."""
        names, values = self.names(record, units), dependence.values
        _, number = np.unique(np.array(names, dtype=np.object_), return_inverse=True)
        judged = np.triu(number[:, None] != number[None, :], self.separation)
        if dependence.z is not None:
            strong = dependence.z >= Z
        else:
            strong = values > outlier_threshold(values, judged)
        edges = np.argwhere(judged & strong & (values > 0) & ~indirect_pairs(values))
        return frozenset((i, j) for i, j in edges.tolist())

    def measures(self, decoded: Iterable[Decoded]) -> dict[str, float]:
        """AUPRC and AUROC of the network's links, beside those of PMI and of nearness by counting."""
        return ranking_figures(self._links(decoded))

    def files(self, decoded: Iterable[Decoded]) -> Mapping[str, Iterator[str]]:
        """`network.graphml` and `network.tsv`."""
        links = cache(lambda: self._links(decoded))

        def text_of_links(form: Callable[[Sequence[Link], str], Iterator[str]]) -> Iterator[str]:
            yield from form(links(), self.lag)

        return {"network.graphml": text_of_links(graphml), "network.tsv": text_of_links(tsv_lines)}

    def _links(self, decoded: Iterable[Decoded]) -> list[Link]:
        """The links between names over all records, with names as people read them."""
        pool, last = Pool(), None
        for sequence in decoded:
            last = sequence.record
            names = self.names(sequence.record, sequence.units)
            pool.add(
                names,
                sequence.dependence.values,
                near=self.near_pairs(sequence.record, names),
                times=self.times(sequence.record, names),
                truth=None if sequence.truth is None else _marks(sequence.truth, len(names)),
            )
        links = pool.links(self.fewest)
        if last is None:
            return links
        display_names = {
            name: self.display_name(last, name) for link in links for name in (link.first, link.second)
        }
        return [
            replace(link, first=display_names[link.first], second=display_names[link.second])
            for link in links
        ]


def _marks(truth: Truth, size: int) -> NDArray[np.int8]:
    """(N, N) mark of every pair by a truth: untold, apart, indirect or linked."""
    marks = np.full((size, size), UNKNOWN, dtype=np.int8)
    first, second = np.triu_indices(size, 1)
    is_told, _ = truth.labels(first, second)
    marks[first[is_told], second[is_told]] = marks[second[is_told], first[is_told]] = UNLINKED
    for (i, j), kind in truth.kinds.items():
        if kind == "indirect":
            marks[i, j] = marks[j, i] = INDIRECT
    for i, j in truth.edges:
        marks[i, j] = marks[j, i] = LINKED
    return marks
