"""Neighbours against all cosines at once, and votes against counting by hand."""

from __future__ import annotations

import numpy as np
import pytest

from seqmlm.errors import DataError
from seqmlm.evaluation import neighbours
from seqmlm.evaluation.neighbours import majority_labels, nearest


@pytest.fixture(params=[7, 1 << 15])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_BLOCK", request.param)


def drawn(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32) * (seed + 1)


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(one, axis=1)[:, None] * np.linalg.norm(other, axis=1)
    return one.astype(float) @ other.T.astype(float) / lengths


@pytest.mark.usefixtures("blocks")
def test_neighbours_have_the_largest_cosines() -> None:
    vectors, among = drawn(20, 0), drawn(50, 1)
    every = cosines(vectors, among)
    found = nearest(vectors, among, 5)
    np.testing.assert_array_equal(found.numbers, np.argsort(-every, axis=1)[:, :5])
    np.testing.assert_allclose(found.cosines, -np.sort(-every, axis=1)[:, :5], atol=1e-6)
    assert found.recall is None


@pytest.mark.usefixtures("blocks")
def test_no_vector_is_its_own_neighbour() -> None:
    vectors = np.concatenate([drawn(20, 0), np.ones((9, 8), np.float32), np.zeros((1, 8), np.float32)])
    found = nearest(vectors, vectors, 3, itself=True)
    assert not (found.numbers == np.arange(30)[:, None]).any()
    np.testing.assert_allclose(found.cosines[20:29], 1, atol=1e-6)  # of equal vectors some other ones
    every = cosines(vectors[:20], vectors[:29])
    np.fill_diagonal(every, -2)
    np.testing.assert_allclose(found.cosines[:20], -np.sort(-every, axis=1)[:, :3], atol=1e-6)


def test_a_large_set_is_a_graph_whose_recall_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, among = drawn(40, 0), drawn(2000, 1)
    exact = nearest(vectors, among, 5)
    monkeypatch.setattr(neighbours, "MOST_EXACT", 100)
    found = nearest(vectors, among, 5)
    shares = [
        len({*a} & {*b}) / 5 for a, b in zip(exact.numbers.tolist(), found.numbers.tolist(), strict=True)
    ]
    assert found.recall == pytest.approx(np.mean(shares))
    assert found.recall > 0.9


def test_a_set_that_is_too_small_is_refused() -> None:
    with pytest.raises(DataError, match="5 neighbours were requested, but there are only 4"):
        nearest(drawn(5, 0), drawn(5, 0), 5, itself=True)


def test_of_equally_many_votes_the_nearest_one_counts() -> None:
    labels = ["a", "b", "b", "c"]
    assert majority_labels(np.array([[3, 0, 1, 2], [0, 1, 3, 3], [0, 1, 2, 0]]), labels) == [
        ("b", 0.5),
        ("c", 0.5),
        ("a", 0.5),
    ]
