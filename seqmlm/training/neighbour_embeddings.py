"""Initial token embeddings from the co-occurrence of tokens in the training split.

The vectors come from a truncated singular value decomposition of the pointwise mutual information between
tokens and their neighbours (Levy and Goldberg 2014). The training then changes them like all weights.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.extmath import randomized_svd
from torch import Tensor

from seqmlm.engine.types import TokenSpace, Windows

MAX_TOKENS = 2_000_000
"""Training tokens that are counted at most, from records spread evenly over the training split."""

NEAR = 1
"""Offset at which the left and the right neighbour are counted separately."""

FAR = (2, 3, 4)
"""Offsets at which the neighbours on both sides are counted together."""

CONTEXT_POWER = 0.75
"""Exponent of the frequencies of neighbours, which makes rare neighbours weigh less (Levy et al. 2015)."""

FEWEST_OCCURRENCES = 5
"""Occurrences from which on a token gets a vector; rarer tokens keep their random one."""

STANDARD_DEVIATION = 0.15
"""Standard deviation of the components of all vectors together."""


def set_neighbour_embeddings(embeddings: Tensor, train: Windows, space: TokenSpace) -> int:
    """Replace the embeddings of frequent tokens by vectors from their neighbours in the training split.

    Args:
        embeddings: (V or more, H) weights, changed in place.
        train: windows of token ids.
        space: ids of the vocabulary; special tokens keep their vectors.

    Returns:
        The number of tokens that have a new vector; 0 if no two tokens have enough occurrences.
    """
    ids = _token_stream(train, space)
    counts = np.bincount(ids[ids >= 0], minlength=space.size)
    frequent = np.flatnonzero(counts >= FEWEST_OCCURRENCES)
    if len(frequent) < 2:
        return 0
    vectors = neighbour_vectors(neighbour_information(ids, space.size)[frequent], embeddings.shape[1])
    with torch.no_grad():
        embeddings[torch.from_numpy(frequent)] = torch.from_numpy(vectors).to(embeddings)
    return len(frequent)


def neighbour_information(ids: NDArray[np.int64], size: int) -> sparse.csr_matrix:
    """Positive pointwise mutual information of tokens and their neighbours.

    Args:
        ids: (N,) tokens in order; negative numbers separate records and hide special tokens.
        size: V, the number of ids.

    Returns:
        (V, 3 V) in nats, in three blocks of V columns: left neighbours, right neighbours, and tokens at the
        offsets in `FAR` on both sides.
    """
    right = _pairs(ids, NEAR, size)
    far = sum(_pairs(ids, offset, size) for offset in FAR)
    return sparse.hstack([_positive_information(block) for block in (right.T, right, far + far.T)], "csr")


def _token_stream(train: Windows, space: TokenSpace) -> NDArray[np.int64]:
    """(N,) at most about `MAX_TOKENS` ids, from windows spread evenly over the training split.

    Gaps between windows and special tokens are -1.
    """
    windows = max(1, min(len(train), int(MAX_TOKENS / np.mean(train.lengths))))
    gap = np.full(max(FAR), -1)
    chosen = np.unique(np.linspace(0, len(train) - 1, windows).astype(int))
    ids = np.concatenate([part for index in chosen for part in (train[int(index)].ids, gap)]).astype(np.int64)
    return np.where((ids < 0) | np.asarray(space.is_special)[np.maximum(ids, 0)], -1, ids)


def _pairs(ids: NDArray[np.int64], offset: int, size: int) -> sparse.csr_matrix:
    """(V, V) how often the token of a column follows the token of a row at an offset."""
    first, second = ids[:-offset], ids[offset:]
    valid = (first >= 0) & (second >= 0)
    ones = np.ones(int(valid.sum()), dtype=np.float32)
    places = (first[valid].astype(np.int32), second[valid].astype(np.int32))
    return sparse.coo_matrix((ones, places), (size, size)).tocsr()


def _positive_information(counts: sparse.csr_matrix) -> sparse.csr_matrix:
    """Logarithm of observed over expected counts where it is above 0; 0 elsewhere."""
    pairs = counts.tocoo()
    rows = np.asarray(counts.sum(1), dtype=np.float64).ravel()
    columns = np.asarray(counts.sum(0), dtype=np.float64).ravel() ** CONTEXT_POWER
    expected = rows[pairs.row] * columns[pairs.col] / columns.sum()
    information = np.log(pairs.data / expected)
    positive = information > 0
    places = pairs.row[positive], pairs.col[positive]
    return sparse.csr_matrix((information[positive].astype(np.float32), places), counts.shape)


def neighbour_vectors(information: sparse.csr_matrix, width: int) -> NDArray[np.float32]:
    """(N, H) centred vectors of rows.

    The orientation is random: otherwise each attention head would read one slice of the singular values.
    """
    components = min(width, min(information.shape))
    left, values, _ = randomized_svd(information, components, n_iter=2, random_state=0)
    rotation = np.linalg.qr(np.random.default_rng(1).standard_normal((width, width)))[0][:components]
    vectors = (left * np.sqrt(values)) @ rotation
    vectors -= vectors.mean(0)
    scaled: NDArray[np.float32] = (vectors * (STANDARD_DEVIATION / max(vectors.std(), 1e-12))).astype(
        np.float32
    )
    return scaled
