"""Nearest neighbours by cosine, and the labels they agree on: exact by faiss, or by a graph of a large set.

Up to `MOST_EXACT` vectors every pair is compared, a block of the set in memory at a time: it may be an array
that is mapped from a file. A larger set becomes a graph (HNSW, Malkov and Yashunin 2018), which finds
nearly all neighbours in a fraction of the time; how many, is measured.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from seqmlm.engine.types import Floats, Longs
from seqmlm.errors import DataError
from seqmlm.evaluation.geometry import directions
from seqmlm.evaluation.intervals import exact_accuracy

MOST_EXACT = 1_000_000
_BLOCK = 1 << 15  # vectors in memory at a time
_LINKS, _EFFORT = 32, 128  # of each vector in the graph, and candidates while it is searched
_MEASURED = 1000  # vectors that the recall of a graph is measured on


class Neighbours(NamedTuple):
    """Of N vectors: (N, K) numbers in the set, the nearest first, and cosines; and the share of the true ones
    that a graph found, None where all are."""

    numbers: Longs
    cosines: Floats
    recall: float | None = None


def nearest(vectors: Floats, among: Floats, k: int, *, itself: bool = False) -> Neighbours:
    """The k vectors of a set (M, H) with the largest cosines to vectors (N, H); both may be mapped from
    files.

    `itself`: the set is these vectors, and none is its own neighbour.

    Raises:
        DataError: the set is too small.
    """
    most = len(among) - itself
    if k > most:
        raise DataError(f"{k} neighbours in a set of {most} vectors", remedy="ask for fewer")
    graph = _graph(among) if len(among) > MOST_EXACT else None
    parts, recalls = list[tuple[Floats, Longs]](), list[float]()
    for start, block in _blocks(vectors):
        if graph is None:
            found = _exact(block, among, k + itself)
        else:
            found = graph.search(block, k + itself)
            if not recalls:
                _, true = _exact(block[:_MEASURED], among, k + itself)
                both = zip(true.tolist(), found[1].tolist(), strict=False)
                recalls.append(float(np.mean([len({*one} & {*own}) / len(one) for one, own in both])))
        parts.append(_others(*found, np.arange(start, start + len(block))) if itself else found)
    cosines, numbers = (np.concatenate(one) for one in zip(*parts, strict=True))
    return Neighbours(numbers, cosines, recalls[0] if recalls else None)


def _blocks(vectors: Floats) -> Iterator[tuple[int, Floats]]:
    """Vectors of length 1, some at a time, with the number of the first."""
    for start in range(0, len(vectors), _BLOCK):
        yield start, directions(np.asarray(vectors[start : start + _BLOCK], dtype=np.float32))


def _exact(block: Floats, among: Floats, k: int) -> tuple[Floats, Longs]:
    """(N, k) cosines and numbers."""
    import faiss

    cosines: Floats = np.zeros((len(block), 0), dtype=np.float32)
    numbers: Longs = np.zeros((len(block), 0), dtype=np.int64)
    for start, some in _blocks(among):
        near, own = faiss.knn(block, some, min(k, len(some)), metric=faiss.METRIC_INNER_PRODUCT)
        both, named = np.hstack([cosines, near]), np.hstack([numbers, own + start])
        kept = np.argsort(-both, axis=1, kind="stable")[:, :k]
        cosines, numbers = np.take_along_axis(both, kept, axis=1), np.take_along_axis(named, kept, axis=1)
    return cosines, numbers


def _graph(among: Floats) -> Any:
    import faiss

    graph = faiss.IndexHNSWFlat(among.shape[1], _LINKS, faiss.METRIC_INNER_PRODUCT)
    for _, block in _blocks(among):
        graph.add(block)
    graph.hnsw.efSearch = _EFFORT
    return graph


def _others(cosines: Floats, numbers: Longs, own: Longs) -> tuple[Floats, Longs]:
    """Without the vector itself; without the last one where equal vectors have taken its place."""
    same = numbers == own[:, None]
    same[~same.any(1), -1] = True
    shape = (len(own), numbers.shape[1] - 1)
    return cosines[~same].reshape(shape), numbers[~same].reshape(shape)


def votes(numbers: Longs, labels: Sequence[str]) -> list[tuple[str, float]]:
    """The label that most neighbours of each vector have (of equals the nearest one's), and its share."""
    found = []
    for own in numbers.tolist():
        # A counter is in the order in which labels are met: of equal counts the first is the nearest.
        label, count = Counter(labels[one] for one in own).most_common(1)[0]
        found.append((label, count / len(own)))
    return found


class Index(NamedTuple):
    """A set that is searched. array: (M, H). ids: M. labels: M, where it has some."""

    array: Floats
    ids: Sequence[str]
    labels: Sequence[str] | None


Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Near:
    """The neighbours of rows.

    Args:
        places: what a row says beside its vector.
        found: the neighbours. ids: of the set.
        truth, told: labels of the rows, and what their neighbours say, with the share that says so; or None.
    """

    places: Sequence[Row]
    found: Neighbours
    ids: Sequence[str]
    truth: Sequence[str] | None = None
    told: Sequence[tuple[str, float]] | None = None

    @classmethod
    def of(
        cls, rows: Iterable[tuple[Row, Floats]], width: int, k: int, index: Index | None, label: str | None
    ) -> Near:
        """Neighbours of rows with their (H,) vectors, among the rows themselves or in an index; the vectors
        lie in a file meanwhile. On labels of a column, if one is named, neighbours vote.

        Raises:
            DataError: the set is too small.
        """
        places = list[Row]()
        with tempfile.TemporaryFile() as file:
            for place, vector in rows:
                file.write(vector.tobytes())
                places.append(place)
            file.flush()
            own = np.memmap(file, dtype=np.float32, mode="r", shape=(len(places), width))
            found = nearest(own, own if index is None else index.array, k, itself=index is None)
        ids = [str(one["id"]) for one in places] if index is None else index.ids
        if label is None:
            return cls(places=places, found=found, ids=ids)
        truth = [str(one.get(label)) for one in places]
        labels = truth if index is None or index.labels is None else index.labels
        return cls(places=places, found=found, ids=ids, truth=truth, told=votes(found.numbers, labels))

    def figures(self) -> dict[str, Any]:
        """How many there are, and of labels how many are right, beside the majority."""
        found: dict[str, Any] = {"vectors": len(self.places), "neighbours": self.found.numbers.shape[1]}
        if self.found.recall is not None:
            found["recall"] = self.found.recall
        if self.truth is not None and self.told is not None:
            right = sum(one == told for one, (told, _) in zip(self.truth, self.told, strict=True))
            found |= exact_accuracy(right, len(self.truth))
            found["majority"] = max(Counter(self.truth).values()) / len(self.truth)
        return found

    def rows(self) -> Iterator[Row]:
        """A row for each neighbour, or for each label that they agree on."""
        for number, place in enumerate(self.places):
            if self.told is not None:
                label, share = self.told[number]
                yield {**place, "label": label, "share": share}
                continue
            own = zip(self.found.numbers[number].tolist(), self.found.cosines[number].tolist(), strict=True)
            for rank, (other, cosine) in enumerate(own, 1):
                yield {**place, "neighbour": self.ids[other], "cosine": cosine, "rank": rank}
