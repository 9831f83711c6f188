"""`span.v1`: lengths geometric and clipped, the rate the same everywhere, units whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.engine.masking.base import eligible_tokens
from seqmlm.engine.masking.span import Span
from seqmlm.engine.types import Encoding
from seqmlm.errors import UsageError


def runs(selected: np.ndarray) -> np.ndarray:
    """Lengths of the runs of True that touch neither end."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], selected, [False]])))
    starts, ends = edges[::2], edges[1::2]
    return (ends - starts)[(starts > 0) & (ends < len(selected))]


@pytest.mark.parametrize(("p", "longest"), [(0.2, 10), (0.5, 4), (1.0, 3)])
def test_lengths_are_geometric_and_clipped(space, singles, p, longest):
    masker = Span(rate=0.3, space=space, p=p, max_units=longest)
    every = np.ones(len(singles), bool)
    lengths = np.concatenate(
        [runs(masker.select(singles, every, np.random.default_rng(s))) for s in range(3)]
    )
    expected = p * (1 - p) ** np.arange(longest)
    expected *= len(lengths) / expected.sum()
    counts = np.bincount(lengths, minlength=longest + 1)[1:]
    assert lengths.max() <= longest
    sure = expected > 0
    assert (counts[~sure] == 0).all()
    chi_square = ((counts - expected)[sure] ** 2 / expected[sure]).sum()
    assert chi_square < sure.sum() + 5 * np.sqrt(2 * sure.sum())


@pytest.mark.parametrize("rate", [0.05, 0.15, 0.5, 0.79])
def test_the_rate_holds_overall(space, singles, rate):
    selected = Span(rate=rate, space=space).select(
        singles, np.ones(len(singles), bool), np.random.default_rng(3)
    )
    # Selected tokens come in spans: the variance is that of some 4.6 (E[k^2] / E[k]) times as few draws.
    assert abs(selected.mean() - rate) < 5 * np.sqrt(6 * rate * (1 - rate) / len(singles))


def test_the_rate_is_the_same_at_every_place(space):
    n, draws = 200, 3000
    encoding = Encoding(ids=np.full(n, 7, np.int32), groups=np.arange(n, dtype=np.int32))
    masker, random, every = Span(rate=0.15, space=space), np.random.default_rng(4), np.ones(n, bool)
    rates = sum(masker.select(encoding, every, random).astype(int) for _ in range(draws)) / draws
    bound = 5 * np.sqrt(0.15 * 0.85 / draws)
    for place in (0, 1, 2, n // 2, n - 2, n - 1):
        assert abs(rates[place] - 0.15) < bound


def test_a_sequence_begins_in_a_span_as_a_cut_through_an_endless_one_would(space):
    encoding = Encoding(ids=np.full(30, 7, np.int32), groups=np.arange(30, dtype=np.int32))
    masker, random, every = Span(rate=0.5, space=space), np.random.default_rng(6), np.ones(30, bool)
    draws = [masker.select(encoding, every, random) for _ in range(4000)]
    counts = np.bincount([int(own.argmin()) for own in draws if own[0]], minlength=11)[1:]
    at_least = 0.8 ** np.arange(10) - 0.8**10  # P(length >= k), not normalised
    expected = counts.sum() * at_least / at_least.sum()
    assert len(counts) == 10
    assert ((counts - expected) ** 2 / expected).sum() < 10 + 5 * np.sqrt(20)


@given(data=st.data(), rate=st.floats(0, 0.79), seed=st.integers(0, 99))
def test_units_are_whole_and_one_span_is_always_there(encodings, space, data, rate, seed):
    encoding = data.draw(encodings)
    eligible = eligible_tokens(encoding, space)
    selected = Span(rate=rate, space=space).select(encoding, eligible, np.random.default_rng(seed))
    assert selected.any() == eligible.any()
    for group in set(encoding.groups.tolist()):
        own = selected[(encoding.groups == group) & eligible]
        assert own.all() or not own.any()


def test_short_sequences_get_one_span_of_at_most_their_share(space):
    encoding = Encoding(ids=np.full(20, 7, np.int32), groups=np.arange(20, dtype=np.int32))
    masker, random = Span(rate=0.0, space=space), np.random.default_rng(5)
    assert {int(masker.select(encoding, np.ones(20, bool), random).sum()) for _ in range(50)} == {1}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rate": 0.9}, "'rate' = 0.9 leaves no gap between spans of 3.80 units.*use at most 0.79"),
        ({"rate": 0.1, "p": 0.0}, "p in \\(0, 1\\]"),
        ({"rate": 0.1, "p": 1.2}, "'p' must lie in"),
        ({"rate": 0.1, "max_units": 0}, "max_units >= 1"),
    ],
)
def test_impossible_options_are_refused(space, options, said):
    with pytest.raises(UsageError, match=said):
        Span(space=space, **options)
