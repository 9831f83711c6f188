"""Find nearest neighbours by cosine, and the labels that most neighbours have.

In a set of up to `MOST_EXACT` vectors, faiss compares every pair. Only a block of the set is in memory at a
time, so that it can be mapped from a file. For a larger set, a graph is built (HNSW, Malkov and Yashunin
2018). It finds nearly all neighbours in a fraction of the time. Its recall is measured.
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
_LINKS, _EFFORT = 32, 128  # links of each vector in the graph, and candidates in a search
_MEASURED = 1000  # vectors that the recall of a graph is measured on


class Neighbours(NamedTuple):
    """The K nearest neighbours of N vectors.

    Attributes:
        numbers: (N, K) indices in the set, the nearest first.
        cosines: (N, K) cosines.
        recall: fraction of the true neighbours that a graph found; None if the search was exact.
    """

    numbers: Longs
    cosines: Floats
    recall: float | None = None


def nearest(vectors: Floats, among: Floats, k: int, *, itself: bool = False) -> Neighbours:
    """The k vectors in a set with the largest cosines to each vector.

    Args:
        vectors: (N, H) vectors; they can be mapped from a file.
        among: (M, H) the set; it can be mapped from a file.
        k: number of neighbours.
        itself: whether the set consists of `vectors`. If so, no vector is its own neighbour.

    Raises:
        DataError: the set is too small.
    """
    limit = len(among) - itself
    if k > limit:
        reason = f"{k} neighbours were requested, but there are only {limit} vectors"
        raise DataError(reason, remedy="request fewer neighbours")
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
    """Blocks of vectors, scaled to length 1, each with the index of its first vector."""
    for start in range(0, len(vectors), _BLOCK):
        yield start, directions(np.asarray(vectors[start : start + _BLOCK], dtype=np.float32))


def _exact_neighbours(block: Floats, among: Floats, k: int) -> tuple[Floats, Longs]:
    """(N, k) cosines and indices of the nearest neighbours, from comparing every pair."""
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
    """The graph of a set. Its `search` finds nearly all neighbours."""
    import faiss

    graph = faiss.IndexHNSWFlat(among.shape[1], _LINKS, faiss.METRIC_INNER_PRODUCT)
    for _, block in _blocks(among):
        graph.add(block)
    graph.hnsw.efSearch = _EFFORT
    return graph


def _drop_itself(cosines: Floats, numbers: Longs, row_numbers: Longs) -> tuple[Floats, Longs]:
    """The neighbours without the vector itself, or without the last one if equal vectors replace it."""
    same = numbers == row_numbers[:, None]
    same[~same.any(1), -1] = True
    shape = (len(row_numbers), numbers.shape[1] - 1)
    return cosines[~same].reshape(shape), numbers[~same].reshape(shape)


def majority_labels(numbers: Longs, labels: Sequence[str]) -> list[tuple[str, float]]:
    """The most frequent label among the neighbours of each vector, and its fraction.

    If several labels are equally frequent, it is the label of the nearest neighbour.
    """
    winners = []
    for row in numbers.tolist():
        # A counter keeps the order of insertion. With equal counts, the first label is the nearest.
        label, count = Counter(labels[number] for number in row).most_common(1)[0]
        winners.append((label, count / len(row)))
    return winners


class Index(NamedTuple):
    """A set of vectors to search.

    Attributes:
        array: (M, H) the vectors.
        ids: their M ids.
        labels: their M labels, or None.
    """

    array: Floats
    ids: Sequence[str]
    labels: Sequence[str] | None


Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class RowNeighbours:
    """The neighbours of rows.

    Args:
        places: the columns of each row, without its vector.
        neighbours: the neighbours of the rows.
        ids: the ids of the set.
        truth: the labels of the rows, or None.
        votes: for each row, the most frequent label among its neighbours and its fraction; or None.
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
        """Find the neighbours of rows. During the search, the vectors of the rows are in a temporary file.

        Args:
            rows: rows with their (width,) vectors.
            width: length of a vector.
            k: number of neighbours.
            index: the set to search; None for the rows themselves.
            label: the column with labels, on which neighbours vote; None for no vote.

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
        """Numbers of vectors and neighbours; with labels, the accuracies of the votes and of the majority."""
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
        """One row for each neighbour, or one row with the label for each vector if neighbours voted."""
        for number, place in enumerate(self.places):
            if self.votes is not None:
                label, share = self.votes[number]
                yield {**place, "label": label, "share": share}
                continue
            numbers, cosines = (table[number].tolist() for table in self.neighbours[:2])
            for rank, (neighbour, cosine) in enumerate(zip(numbers, cosines, strict=True), 1):
                yield {**place, "neighbour": self.ids[neighbour], "cosine": cosine, "rank": rank}
