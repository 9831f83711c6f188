"""Normalizations against a naive computation over all vectors at once; what models keep of vectors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqmlm.errors import DataError, StateError, UsageError
from seqmlm.inference import normalization
from seqmlm.inference.arrays import HEADER, encode_arrays, read_arrays
from seqmlm.inference.normalization import Normalization
from seqmlm.inference.senses import Senses
from seqmlm.privacy import handling_sensitive_data

FACTS = {"layers": "last", "of": "record", "pool": "mean"}


@pytest.fixture
def vectors() -> np.ndarray:
    """(100, 6) with a mean, dimensions that go together, and one without variance."""
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(100, 6)) @ rng.normal(size=(6, 6)) + np.arange(6)
    drawn[:, 4] = 3.0
    return drawn.astype(np.float32)


@pytest.fixture(params=[8, 4096])
def fitted(
    vectors: np.ndarray, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Normalization:
    monkeypatch.setattr(normalization, "_BLOCK", request.param)
    return Normalization.fit(iter(vectors), FACTS)


def test_centred_and_z_are_those_of_the_corpus(vectors: np.ndarray, fitted: Normalization) -> None:
    exact = vectors.astype(np.float64)
    np.testing.assert_allclose(fitted.applied("centred", vectors), exact - exact.mean(0), atol=1e-5)
    kept = [0, 1, 2, 3, 5]
    z = (exact - exact.mean(0))[:, kept] / exact.std(0)[kept]
    np.testing.assert_allclose(fitted.applied("z", vectors), z, atol=1e-4)
    assert (fitted.dropped, fitted.width("z"), fitted.width("centred")) == (1, 5, 6)


def test_whitened_has_no_covariance_left(vectors: np.ndarray, fitted: Normalization) -> None:
    white = fitted.applied("whitened", vectors).astype(np.float64)
    assert white.shape == (100, fitted.width("whitened")) == (100, 5)
    np.testing.assert_allclose(np.cov(white.T), np.eye(5), atol=1e-3)


def test_what_is_kept_comes_back(fitted: Normalization, tmp_path: Path) -> None:
    with handling_sensitive_data():
        fitted.keep(tmp_path)
    (file,) = [one for one in tmp_path.iterdir() if one.suffix == ".safetensors"]
    assert file.stat().st_mode & 0o777 == 0o600
    again = Normalization.stored(tmp_path, FACTS)
    assert again.digest == fitted.digest
    np.testing.assert_array_equal(again.components, fitted.components)


Keep = Callable[[Path], None]


@pytest.fixture(params=["normalization", "senses"])
def kept(request: pytest.FixtureRequest, vectors: np.ndarray) -> tuple[type[Any], Keep]:
    """What is kept of vectors, and how."""
    if request.param == "normalization":
        fitted = Normalization.fit(iter(vectors), FACTS)
        return Normalization, fitted.keep
    return Senses, Senses.of((("dog", str(n % 2), one) for n, one in enumerate(vectors)), FACTS).keep


def test_what_is_damaged_does_not_come_back(kept: tuple[type[Any], Keep], tmp_path: Path) -> None:
    kind, keep = kept
    with pytest.raises(UsageError, match=r"yet: .*--set"):
        kind.stored(tmp_path, FACTS)
    keep(tmp_path)
    with pytest.raises(UsageError, match=r"with layers last, but these have -2: .*--set"):
        kind.stored(tmp_path, {**FACTS, "layers": "-2"})
    (file,) = [one for one in tmp_path.iterdir() if one.suffix == ".safetensors"]
    whole = file.read_bytes()
    arrays, header = read_arrays(file, "")
    told = json.loads(header[HEADER])
    shorter = {name: one[:-1] for name, one in arrays.items()}
    shorter |= {name: one for name, one in arrays.items() if name in ("mean", "components")}
    for content in (
        whole[:-3],
        encode_arrays(arrays),
        encode_arrays(shorter, header),
        encode_arrays(arrays, {HEADER: "[]"}),
    ):
        file.write_bytes(content)
        with pytest.raises(StateError, match=f"{file.name} cannot be read .*--set"):
            kind.stored(tmp_path, FACTS)
    file.write_bytes(encode_arrays(arrays, {HEADER: json.dumps(told)}))
    assert kind.stored(tmp_path, FACTS).facts.items() >= FACTS.items()


def test_a_mean_of_few_vectors_would_tell_what_they_are(vectors: np.ndarray) -> None:
    with pytest.raises(DataError, match="10 vectors are too few for a normalization: 11 are needed"):
        Normalization.fit(iter(vectors[:10]), FACTS)
