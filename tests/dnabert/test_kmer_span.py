"""k-mer spans: no token left visible shows a hidden letter, random ones agree with their neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from dnabert import KmerSpan
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.engine.masking.base import Corruptor, MaskingConfig, eligible_tokens
from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.errors import UsageError

FIRST = 5


def space(k: int) -> TokenSpace:
    return TokenSpace(size=FIRST + 4**k, pad=0, mask=4, unk=1, start=2, end=3, special=(0, 1, 2, 3, 4))


def encoding(letters: list[int], k: int, weights: np.ndarray | None = None) -> Encoding:
    """Letters 0..3 as overlapping k-mers; a k-mer with a letter 4 in it is special."""
    numbers = [letters[i : i + k] for i in range(len(letters) - k + 1)]
    ids = [1 if 4 in n else FIRST + int("".join(map(str, n)), 4) for n in numbers]
    groups = [-1 if 4 in n else i for i, n in enumerate(numbers)]
    return Encoding(
        ids=np.array([2, *ids, 3], dtype=np.int32),
        groups=np.array([-1, *groups, -1], dtype=np.int32),
        weights=None if weights is None else weights[: len(ids) + 2].astype(np.float32),
    )


def letters_of(token: int, k: int) -> list[int]:
    return [(token - FIRST) // 4 ** (k - 1 - i) % 4 for i in range(k)]


def masker(k: int, rate: float = 0.15, **options: float) -> KmerSpan:
    return KmerSpan(rate=rate, space=space(k), k=k, first=FIRST, **options)


def hidden_letters(selected: np.ndarray, one: Encoding, k: int) -> set[int]:
    """Letters that only selected tokens show."""

    def cover(flags: np.ndarray) -> set[int]:
        return {i for p in np.flatnonzero(flags) for i in range(one.groups[p], one.groups[p] + k)}

    inside = one.groups >= 0
    return cover(selected & inside) - cover(~selected & inside)


cases = st.tuples(
    st.sampled_from([1, 2, 3, 6]), st.lists(st.sampled_from([0, 1, 2, 3] * 6 + [4]), min_size=6, max_size=80)
)


@given(case=cases, seed=st.integers(0, 999), weighted=st.booleans())
def test_what_is_selected_is_what_hides_letters(case, seed, weighted):
    k, letters = case
    weights = np.random.default_rng(seed).integers(0, 4, len(letters) + 3) if weighted else None
    one = encoding(letters, k, weights)
    eligible = eligible_tokens(one, space(k))
    selected = masker(k).select(one, eligible, np.random.default_rng(seed))
    assert not (selected & ~eligible).any()
    hidden = hidden_letters(selected, one, k)
    # Every selected token shows a letter that no visible one does: none is masked in vain, and none leaks.
    for position in np.flatnonzero(selected):
        assert hidden & set(range(one.groups[position], one.groups[position] + k))
    if weights is None:
        assert selected.any() == eligible.any()


@given(case=cases, seed=st.integers(0, 999))
def test_random_letters_agree_in_all_tokens_and_with_what_stays_visible(case, seed):
    k, letters = case
    one = encoding(letters, k)
    config = MaskingConfig(masker="kmer_span.v1", mask=0.0, random=1.0, keep=0.0)
    masked = Corruptor(config, masker(k), space(k), None, seed)(one, 0, 0)
    spelled: dict[int, set[int]] = {}
    for position in np.flatnonzero(one.groups >= 0):
        assert masked.ids[position] >= FIRST
        for offset, letter in enumerate(letters_of(int(masked.ids[position]), k)):
            spelled.setdefault(int(one.groups[position]) + offset, set()).add(letter)
    assert all(len(found) == 1 for found in spelled.values())
    selected = np.zeros(len(one), dtype=bool)
    selected[masked.positions] = True
    hidden = hidden_letters(selected, one, k)
    assert all(found == {letters[i]} for i, found in spelled.items() if i not in hidden)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_letters_are_hidden_at_the_rate_wherever_they_stand(k):
    letters = np.random.default_rng(0).integers(0, 4, 400).tolist()
    one, rng = encoding(letters, k), np.random.default_rng(1)
    eligible, made = eligible_tokens(one, space(k)), masker(k)
    times = np.zeros(400)
    for _ in range(400):
        times[list(hidden_letters(made.select(one, eligible, rng), one, k))] += 1
    # Between two spans fewer than k letters apart no whole token stays, so those are hidden with them.
    more = times.mean() / 400
    assert more >= 0.15 - 0.01
    assert more < 0.15 + 0.01 + 0.02 * (k - 1)
    assert abs(times[:10].mean() - times.mean()) < 5 * np.sqrt(400 * 0.15 * 0.85 / 10 * 4)
    assert abs(times[-10:].mean() - times.mean()) < 5 * np.sqrt(400 * 0.15 * 0.85 / 10 * 4)


def test_random_letters_are_uniform():
    one = encoding([0] * 300, 3)
    config = MaskingConfig(masker="kmer_span.v1", mask=0.0, random=1.0, keep=0.0)
    corrupt = Corruptor(config, masker(3), space(3), None, 0)
    drawn: list[int] = []
    for sample in range(60):
        masked = corrupt(one, 0, sample)
        selected = np.zeros(len(one), dtype=bool)
        selected[masked.positions] = True
        hidden = sorted(hidden_letters(selected, one, 3))
        drawn += [letters_of(int(masked.ids[i + 1]), 3)[0] for i in hidden if i < 298]
    counts = np.bincount(drawn, minlength=4)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 25


def test_a_span_shares_its_outcome():
    one = encoding(np.random.default_rng(0).integers(0, 4, 2000).tolist(), 4)
    config = MaskingConfig(masker="kmer_span.v1", mask=0.5, random=0.0, keep=0.5)
    masked = Corruptor(config, masker(4), space(4), None, 0)(one, 0, 0)
    hidden = masked.ids[masked.positions] == 4
    neighbours = np.diff(masked.positions) == 1
    assert (hidden[1:] == hidden[:-1])[neighbours].all()
    assert 0.2 < hidden.mean() < 0.8


def test_options_are_checked():
    for options in ({"p": 0.0}, {"longest": 0}):
        with pytest.raises(UsageError, match="need p in"):
            masker(3, **options)
    with pytest.raises(UsageError, match="do not fit"):
        KmerSpan(rate=0.15, space=space(2), k=3, first=FIRST)
