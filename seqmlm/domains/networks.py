"""Decoders for fields whose unit names occur in many records: one network over all records.

The map of one record gives the edges of that record. Usually, the question is which names depend on each
other in all records, directly or through others (`seqmlm.structure.network`).
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
"""Least number of standard deviations of an edge above the null model, if one was drawn."""


class NetworkDecoder(Decoder):
    """Find the edges of records, and the network of names over all records.

    Attributes:
        lag: name of the time between two names, with its unit.
        fewest: least number of records that contain a pair.
    """

    measure: str = "auprc"
    lag: ClassVar[str]
    fewest: ClassVar[int] = 1

    def display_name(self, record: Record, name: str) -> str:
        """A name as people read it, by default unchanged.

        It is called after all records are read, with one of them.
        """
        return name

    @abstractmethod
    def times(self, record: Record, names: Sequence[str]) -> Mapping[str, float]:
        """The time when each name first occurs, in the unit of `lag`, if it is known."""

    @abstractmethod
    def near_pairs(self, record: Record, names: Sequence[str]) -> NDArray[np.bool_]:
        """(N, N) whether two units are near each other."""

    def decode(self, record: Record, units: Sequence[str], dependence: DependenceMap) -> frozenset[Pair]:
        """Pairs of different names that stand out in the map and are not indirect in it."""
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
        """AUPRC and AUROC of the network's links, compared with PMI and with counts of nearness."""
        return ranking_figures(self._links(decoded))

    def files(self, decoded: Iterable[Decoded]) -> Mapping[str, Iterator[str]]:
        """The files `network.graphml` and `network.tsv`."""
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
    """(N, N) mark of every pair according to a truth: unknown, unlinked, indirect or linked."""
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
