"""The geometry of vectors: their similarity, the dimensions that cause it, and places in a plane."""

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
"""Number of neighbours for UMAP, which needs more vectors than this."""


class Geometry(NamedTuple):
    """The similarity of N vectors, and the dimensions that cause it.

    Attributes:
        anisotropy: mean cosine of random pairs, with its interval (Ethayarajh 2019).
        rogues: the dimensions that contribute most to it, with the fraction from each (Timkey and van
            Schijndel 2021).
    """

    anisotropy: Estimate
    rogues: Sequence[tuple[int, float]]


def geometry(vectors: Floats, *, seed: int = 0) -> Geometry | None:
    """The `Geometry` of (N, H) vectors, from random pairs; None for fewer than two vectors."""
    if len(vectors) < 2:
        return None
    unit = directions(vectors)
    random = np.random.default_rng(seed)
    first = random.integers(len(unit), size=PAIRS)
    second = (first + random.integers(1, len(unit), size=PAIRS)) % len(unit)  # never a vector with itself
    products = unit[first] * unit[second]
    cosines, shares = products.sum(1), products.mean(0)
    mean = float(cosines.mean())
    largest = np.argsort(-np.abs(shares), kind="stable")[:ROGUES]
    rogues = [(int(dimension), float(shares[dimension]) / mean if mean else 0.0) for dimension in largest]
    return Geometry(ratio(cosines, draws=200), rogues)


def directions(vectors: Floats) -> Floats:
    """(N, H) the vectors scaled to length 1; zero vectors are unchanged."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Floats = np.divide(vectors, np.where(lengths > 0, lengths, 1), dtype=np.float32)
    return unit


def frequency_correlation(vectors: Floats, words: Sequence[str]) -> float:
    """Spearman's correlation of the frequency of a word with its mean cosine to all other vectors.

    Args:
        vectors: (N, H) vectors.
        words: the N words of the vectors.
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
    """(N, 2) UMAP coordinates by cosine; None for too few vectors, or without umap-learn."""
    try:
        from umap import UMAP
    except ImportError:
        return None
    if len(vectors) <= NEAR:
        return None
    coordinates: Floats = UMAP(NEAR, metric="cosine", random_state=0, n_jobs=1).fit_transform(vectors)
    return coordinates
