"""The geometry of vectors: how alike any two are, by which dimensions, and their places in a plane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from seqmlm.engine.types import Floats
from seqmlm.evaluation.correlations import rank_correlation
from seqmlm.evaluation.intervals import Estimate, ratio

PAIRS = 10_000
ROGUES = 3
NEAR = 15
"""Number of neighbours that a plane keeps; it needs more vectors than that."""


class Geometry(NamedTuple):
    """The likeness of N vectors, and the dimensions that cause it.

    anisotropy: mean cosine of random pairs (Ethayarajh 2019), with its interval.
    rogues: the dimensions that most of it is of, and the share of each (Timkey and van Schijndel 2021).
    """

    anisotropy: Estimate
    rogues: Sequence[tuple[int, float]]


def geometry(vectors: Floats, *, seed: int = 0) -> Geometry | None:
    """The `Geometry` of (N, H) vectors by random pairs; None of fewer than two."""
    if len(vectors) < 2:
        return None
    unit = directions(vectors)
    random = np.random.default_rng(seed)
    first = random.integers(len(unit), size=PAIRS)
    second = (first + random.integers(1, len(unit), size=PAIRS)) % len(unit)  # never the same one twice
    products = unit[first] * unit[second]
    cosines, shares = products.sum(1), products.mean(0)
    mean = float(cosines.mean())
    largest = np.argsort(-np.abs(shares), kind="stable")[:ROGUES]
    rogues = [(int(dimension), float(shares[dimension]) / mean if mean else 0.0) for dimension in largest]
    return Geometry(ratio(cosines, draws=200), rogues)


def directions(vectors: Floats) -> Floats:
    """(N, H) the vectors scaled to length 1; those of no length stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Floats = np.divide(vectors, np.where(lengths > 0, lengths, 1), dtype=np.float32)
    return unit


def frequency_correlation(vectors: Floats, words: Sequence[str]) -> float:
    """Spearman of how frequent a word is among all, and how like all others its vectors are (mean cosine).

    Args:
        vectors: (N, H). words: N.
    """
    counts, unit = Counter(words), directions(vectors)
    alike = (unit @ unit.sum(0) - 1) / max(1, len(unit) - 1)
    return rank_correlation([counts[word] for word in words], alike)


def principal_plane(vectors: Floats) -> Floats:
    """(N, 2) the first two principal components of vectors (N, H)."""
    from sklearn.decomposition import PCA

    coordinates: Floats = PCA(n_components=2, random_state=0).fit_transform(vectors)
    return coordinates


def neighbour_plane(vectors: Floats) -> Floats | None:
    """(N, 2) places in a plane that keeps neighbours (UMAP, cosine); None of few, or without umap-learn."""
    try:
        from umap import UMAP
    except ImportError:
        return None
    if len(vectors) <= NEAR:
        return None
    coordinates: Floats = UMAP(NEAR, metric="cosine", random_state=0, n_jobs=1).fit_transform(vectors)
    return coordinates
