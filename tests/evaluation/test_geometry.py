"""How vectors lie, against all pairs."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import spearmanr

from seqmlm.evaluation.geometry import frequency_correlation, geometry, neighbour_plane, principal_plane


@pytest.fixture
def vectors() -> np.ndarray:
    """(60, 5), dimension 3 large in all."""
    drawn = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    drawn[:, 3] += 4
    return drawn


def cosines(vectors: np.ndarray) -> np.ndarray:
    """(N, N, H) parts of all cosines."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit[:, None] * unit[None]


def test_anisotropy_is_the_mean_cosine_of_pairs(vectors: np.ndarray) -> None:
    others = ~np.eye(60, dtype=bool)
    parts = cosines(vectors)[others]
    found = geometry(vectors)
    assert found is not None
    assert found.anisotropy.low <= found.anisotropy.value <= found.anisotropy.high
    assert found.anisotropy.value == pytest.approx(parts.sum(1).mean(), abs=0.01)
    dimension, share = found.rogues[0]
    assert dimension == 3
    assert share == pytest.approx(parts[:, 3].mean() / parts.sum(1).mean(), abs=0.01)
    centred = geometry(vectors - vectors.mean(0))
    assert centred is not None
    assert abs(centred.anisotropy.value) < 0.05


def test_one_vector_has_no_pair_and_one_of_no_length_no_cosine(vectors: np.ndarray) -> None:
    assert geometry(vectors[:1]) is None
    found = geometry(np.zeros((3, 5), dtype=np.float32))
    assert found is not None
    assert found.anisotropy.value == 0


def test_frequent_words_that_are_like_all_others_correlate(vectors: np.ndarray) -> None:
    words = ["the"] * 40 + ["a"] * 15 + ["cat"] * 5
    every = cosines(vectors).sum(2)
    alike = (every.sum(1) - 1) / 59
    counts = [words.count(one) for one in words]
    assert frequency_correlation(vectors, words) == pytest.approx(
        spearmanr(counts, alike).statistic, abs=1e-3
    )


def test_a_plane_keeps_what_varies_most() -> None:
    rng = np.random.default_rng(1)
    vectors = (rng.normal(size=(40, 6)) * [9, 1e-3, 3, 1e-3, 1e-3, 1e-3]).astype(np.float32)
    found = principal_plane(vectors)
    for column, dimension in ((0, 0), (1, 2)):
        assert abs(np.corrcoef(found[:, column], vectors[:, dimension])[0, 1]) > 0.999


def test_umap_keeps_who_is_near_whom() -> None:
    pytest.importorskip("umap")
    apart = np.repeat(np.eye(2, 5, dtype=np.float32), 20, axis=0)
    vectors = apart + np.random.default_rng(0).normal(size=(40, 5), scale=0.1).astype(np.float32)
    found = neighbour_plane(vectors)
    assert found is not None
    distances = np.linalg.norm(found[:, None] - found[None], axis=2)
    assert distances[:20, :20].max() < distances[:20, 20:].min()


def test_umap_is_asked_where_it_is_installed(vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    class UMAP:
        def __init__(self, neighbours: int, *, metric: str, random_state: int, n_jobs: int) -> None:
            assert (neighbours, metric, n_jobs) == (15, "cosine", 1)

        def fit_transform(self, given: np.ndarray) -> np.ndarray:
            return given[:, :2]

    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=UMAP))
    np.testing.assert_array_equal(neighbour_plane(vectors), vectors[:, :2])
    assert neighbour_plane(vectors[:15]) is None
    monkeypatch.setitem(sys.modules, "umap", None)
    assert neighbour_plane(vectors) is None
