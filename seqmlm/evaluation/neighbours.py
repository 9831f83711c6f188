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
    """Nearest neighbours of N vectors: (N, K) numbers in the set, the nearest first, and cosines; and the
    share of the true ones that a graph found, None where all are."""

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
    limit = len(among) - itself
    if k > limit:
        raise DataError(f"{k} neighbours in a set of {limit} vectors", remedy="ask for fewer")
    graph = _graph(among) if len(among) > MOST_EXACT else None
    parts, recalls = list[tuple[Floats, Longs]](), list[float]()
    for start, block in _blocks(vectors):
        if graph is None:
            part = _exact_neighbours(block, among, k + itself)
        else:
            part = graph.search(block, k + itself)
            if not recalls:
                _, true = _exact_neighbours(block[:_MEASURED], among, k + itself)
                rows = zip(true.tolist(), part[1].tolist(), strict=False)
                recall = np.mean([len({*exact} & {*approximate}) / len(exact) for exact, approximate in rows])
                recalls.append(float(recall))
        parts.append(_drop_itself(*part, np.arange(start, start + len(block))) if itself else part)
    cosines, numbers = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Neighbours(numbers, cosines, recalls[0] if recalls else None)


def _blocks(vectors: Floats) -> Iterator[tuple[int, Floats]]:
    """Vectors of length 1, some at a time, with the number of the first."""
    for start in range(0, len(vectors), _BLOCK):
        yield start, directions(np.asarray(vectors[start : start + _BLOCK], dtype=np.float32))


def _exact_neighbours(block: Floats, among: Floats, k: int) -> tuple[Floats, Longs]:
    """(N, k) cosines and numbers of the nearest neighbours, by comparing every pair."""
    import faiss

    cosines: Floats = np.zeros((len(block), 0), dtype=np.float32)
    numbers: Longs = np.zeros((len(block), 0), dtype=np.int64)
    for start, part in _blocks(among):
        part_cosines, places = faiss.knn(block, part, min(k, len(part)), metric=faiss.METRIC_INNER_PRODUCT)
        pooled_cosines = np.hstack([cosines, part_cosines])
        pooled_numbers = np.hstack([numbers, places + start])
        order = np.argsort(-pooled_cosines, axis=1, kind="stable")[:, :k]
        cosines = np.take_along_axis(pooled_cosines, order, axis=1)
        numbers = np.take_along_axis(pooled_numbers, order, axis=1)
    return cosines, numbers


def _graph(among: Floats) -> Any:
    """The graph of a set, in which `search` finds nearly all neighbours."""
    import faiss

    graph = faiss.IndexHNSWFlat(among.shape[1], _LINKS, faiss.METRIC_INNER_PRODUCT)
    for _, block in _blocks(among):
        graph.add(block)
    graph.hnsw.efSearch = _EFFORT
    return graph


def _drop_itself(cosines: Floats, numbers: Longs, row_numbers: Longs) -> tuple[Floats, Longs]:
    """The neighbours without the vector itself, or without the last one if equal vectors have its place."""
    same = numbers == row_numbers[:, None]
    same[~same.any(1), -1] = True
    shape = (len(row_numbers), numbers.shape[1] - 1)
    return cosines[~same].reshape(shape), numbers[~same].reshape(shape)


def majority_labels(numbers: Longs, labels: Sequence[str]) -> list[tuple[str, float]]:
    """The label that most neighbours of each vector have (of equals the nearest one's), and its share."""
    winners = []
    for row in numbers.tolist():
        # A counter is in the order in which labels are met: of equal counts the first is the nearest.
        label, count = Counter(labels[number] for number in row).most_common(1)[0]
        winners.append((label, count / len(row)))
    return winners


class Index(NamedTuple):
    """A set of vectors to search. array: (M, H). ids: M. labels: M, where it has some."""

    array: Floats
    ids: Sequence[str]
    labels: Sequence[str] | None


Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class RowNeighbours:
    """The neighbours of rows.

    Args:
        places: columns of each row, without its vector.
        neighbours: of the rows. ids: of the set.
        truth: labels of the rows, or None. votes: the label that most neighbours of each row have, and their
            share; or None.
    """

    places: Sequence[Row]
    neighbours: Neighbours
    ids: Sequence[str]
    truth: Sequence[str] | None = None
    votes: Sequence[tuple[str, float]] | None = None

    @classmethod
    def search(
        cls, rows: Iterable[tuple[Row, Floats]], width: int, k: int, index: Index | None, label: str | None
    ) -> RowNeighbours:
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
            vectors = np.memmap(file, dtype=np.float32, mode="r", shape=(len(places), width))
            neighbours = nearest(vectors, vectors if index is None else index.array, k, itself=index is None)
        ids = [str(place["id"]) for place in places] if index is None else index.ids
        if label is None:
            return cls(places=places, neighbours=neighbours, ids=ids)
        truth = [str(place.get(label)) for place in places]
        labels = truth if index is None or index.labels is None else index.labels
        votes = majority_labels(neighbours.numbers, labels)
        return cls(places=places, neighbours=neighbours, ids=ids, truth=truth, votes=votes)

    def figures(self) -> dict[str, Any]:
        """Numbers of vectors and neighbours; with labels the accuracy of their votes, beside the majority."""
        figures: dict[str, Any] = {
            "vectors": len(self.places),
            "neighbours": self.neighbours.numbers.shape[1],
        }
        if self.neighbours.recall is not None:
            figures["recall"] = self.neighbours.recall
        if self.truth is not None and self.votes is not None:
            right = sum(label == vote for label, (vote, _) in zip(self.truth, self.votes, strict=True))
            figures |= exact_accuracy(right, len(self.truth))
            figures["majority"] = max(Counter(self.truth).values()) / len(self.truth)
        return figures

    def rows(self) -> Iterator[Row]:
        """A row for each neighbour, or for each label that they agree on."""
        for number, place in enumerate(self.places):
            if self.votes is not None:
                label, share = self.votes[number]
                yield {**place, "label": label, "share": share}
                continue
            numbers, cosines = (table[number].tolist() for table in self.neighbours[:2])
            for rank, (neighbour, cosine) in enumerate(zip(numbers, cosines, strict=True), 1):
                yield {**place, "neighbour": self.ids[neighbour], "cosine": cosine, "rank": rank}
