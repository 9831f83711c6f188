"""`lexicon.v1`: only, or never, or for a share of the sequences, the words of a list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.engine.masking.base import eligible_tokens
from seqmlm.engine.masking.lexicon import Lexicon
from seqmlm.engine.types import Encoding
from seqmlm.errors import UsageError

WORDS = [(7,), (8,), (9, 10), (7, 11, 12)]


def is_word(encoding: Encoding) -> np.ndarray:
    """(L,) tokens of units that are a word of the lexicon, the slow way."""
    found = np.zeros(len(encoding), bool)
    for group in set(encoding.groups.tolist()) - {-1}:
        own = encoding.groups == group
        found |= own & (tuple(encoding.ids[own].tolist()) in WORDS)
    return found


def spelled(words: list[tuple[int, ...]]) -> Encoding:
    groups = np.repeat(np.arange(len(words)), [len(word) for word in words])
    ids = [token for word in words for token in word]
    return Encoding(
        ids=np.array([2, *ids, 3], np.int32), groups=np.concatenate([[-1], groups, [-1]]).astype(np.int32)
    )


texts = st.lists(st.sampled_from([*WORDS, (10,), (9,), (7, 8), (20, 21), (22,)]), max_size=20).map(spelled)


@given(data=st.data(), seed=st.integers(0, 99), rate=st.floats(0, 1))
@pytest.mark.parametrize("mode", ["cloze", "nocloze"])
def test_only_admitted_units_are_selected_and_whole(encodings, space, mode, data, seed, rate):
    encoding = data.draw(texts | encodings)
    eligible = eligible_tokens(encoding, space)
    masker = Lexicon(rate=rate, space=space, words=WORDS, mode=mode)
    selected = masker.select(encoding, eligible, np.random.default_rng(seed))
    admitted = eligible & (is_word(encoding) if mode == "cloze" else ~is_word(encoding))
    assert not (selected & ~admitted).any()
    assert selected.any() == admitted.any()
    for group in set(encoding.groups.tolist()):
        own = selected[(encoding.groups == group) & eligible]
        assert own.all() or not own.any()


@pytest.mark.parametrize("mode", ["cloze", "nocloze"])
def test_as_many_units_as_uniform_masking_would_select(space, singles, mode):
    eligible = eligible_tokens(singles, space)
    ids = list(range(7, 20))  # 13 of 35 tokens: more than the rate
    masker = Lexicon(rate=0.15, space=space, ids=ids, mode=mode)
    selected = masker.select(singles, eligible, np.random.default_rng(0))
    assert abs(selected.mean() - 0.15) < 5 * np.sqrt(0.15 * 0.85 / len(singles))
    assert (np.isin(singles.ids[selected], ids) == (mode == "cloze")).all()


def test_a_small_lexicon_is_selected_completely(space):
    encoding = spelled([(7,)] + [(22,)] * 19)
    masker = Lexicon(rate=0.15, space=space, ids=[7])
    for seed in range(20):
        selected = masker.select(encoding, eligible_tokens(encoding, space), np.random.default_rng(seed))
        assert selected.nonzero()[0].tolist() == [1]


def test_mix_treats_its_share_of_sequences_as_cloze(space):
    encoding = spelled([(7,)] + [(22,)] * 99)
    masker, random = Lexicon(rate=0.2, space=space, ids=[7], mode="mix", p=0.3), np.random.default_rng(1)
    eligible, n = eligible_tokens(encoding, space), 3000
    selected = np.stack([masker.select(encoding, eligible, random) for _ in range(n)])
    cloze = selected[:, 1] & (selected.sum(axis=1) == 1)
    assert abs(cloze.mean() - 0.3) < 5 * np.sqrt(0.3 * 0.7 / n)
    others = selected[~cloze, 1:-1].mean(axis=0)
    assert (abs(others - 0.2) < 5 * np.sqrt(0.2 * 0.8 / (~cloze).sum())).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "need words"),
        ({"words": [()]}, "need words"),
        ({"ids": [3]}, "special token or one outside"),
        ({"ids": [40]}, "special token or one outside"),
        ({"ids": [7], "mode": "closed"}, "'mode' must be one of cloze, nocloze, mix, not 'closed'"),
        ({"ids": [7], "mode": "mix"}, "'p' is needed for mode 'mix'"),
        ({"ids": [7], "mode": "cloze", "p": 0.5}, "'p' is needed for mode 'mix'"),
        ({"ids": [7], "mode": "mix", "p": 1.5}, "'p' must lie in"),
    ],
)
def test_wrong_options_are_refused(space, options, said):
    with pytest.raises(UsageError, match=said):
        Lexicon(rate=0.15, space=space, **options)
