"""A small vocabulary and sequences of any shape for the maskers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from seqmlm.engine.types import Encoding, TokenSpace

SPECIAL = (0, 1, 2, 3, 4)


@pytest.fixture(scope="session")
def space() -> TokenSpace:
    """40 ids, the first five of them special."""
    return TokenSpace(size=40, pad=0, mask=4, unk=1, start=2, end=3, special=SPECIAL)


@st.composite
def _encodings(draw: st.DrawFn) -> Encoding:
    sizes = draw(st.lists(st.integers(1, 4), max_size=25))
    groups = np.repeat(np.arange(len(sizes)), sizes) + draw(st.integers(0, 50))
    if draw(st.booleans()):  # units need not lie in one piece, nor in ascending order
        groups = np.array(draw(st.permutations(groups.tolist())), dtype=int)
    ids = np.array(draw(st.lists(st.integers(5, 39), min_size=len(groups), max_size=len(groups))), dtype=int)
    for unknown in draw(st.lists(st.integers(0, max(len(ids) - 1, 0)), max_size=2)):
        ids[unknown : unknown + 1] = 1
    ids, groups = np.concatenate([[2], ids, [3]]), np.concatenate([[-1], groups, [-1]])
    weights = draw(st.sampled_from([None, np.arange(len(ids), dtype=np.float32) % 3]))
    return Encoding(ids=ids.astype(np.int32), groups=groups.astype(np.int32), weights=weights)


@pytest.fixture(scope="session")
def encodings() -> st.SearchStrategy[Encoding]:
    """Sequences of 0 to 100 tokens in units, some unknown tokens, some loss weights of 0."""
    return _encodings()


@pytest.fixture(scope="session")
def long(space: TokenSpace) -> Encoding:
    """30,000 tokens in units of 1 to 3."""
    random = np.random.default_rng(0)
    groups = np.repeat(np.arange(30_000), random.integers(1, 4, 30_000))[:30_000]
    ids = random.choice(space.ordinary, 30_000)
    return Encoding(
        ids=np.concatenate([[2], ids, [3]]).astype(np.int32),
        groups=np.concatenate([[-1], groups, [-1]]).astype(np.int32),
    )


@pytest.fixture(scope="session")
def singles(space: TokenSpace) -> Encoding:
    """30,000 units of one token each."""
    ids = np.random.default_rng(1).choice(space.ordinary, 30_000).astype(np.int32)
    return Encoding(ids=ids, groups=np.arange(30_000, dtype=np.int32))
