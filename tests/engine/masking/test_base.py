"""Masking configs name what is wrong with them; the draws that maskers share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.engine.masking.base import MaskingConfig, draw, eligible_tokens, make_masker, number_units
from seqmlm.engine.masking.position import Position
from seqmlm.engine.masking.span import Span
from seqmlm.engine.types import Encoding
from seqmlm.errors import UsageError


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rate": 1.5}, "'rate' must lie in \\[0, 1\\], not 1.5"),
        ({"rate": -0.1}, "'rate'"),
        ({"rate": float("nan")}, "'rate'"),
        ({"mask": 2.0, "random": -1.0, "keep": 0.0}, "'mask'"),
        ({"mask": 0.8, "random": 0.1, "keep": 0.2}, "must add up to 1, not 0.8 \\+ 0.1 \\+ 0.2"),
        ({"replacement": "bigram"}, "'replacement' must be 'uniform' or 'unigram', not 'bigram'"),
    ],
)
def test_a_wrong_config_names_the_key(values, said):
    with pytest.raises(UsageError, match=said):
        MaskingConfig(**values)


def test_thirds_add_up_to_one():
    MaskingConfig(mask=1 / 3, random=1 / 3, keep=1 / 3)


def test_make_masker_passes_rate_and_options(space):
    made = make_masker(Span, MaskingConfig(masker="span.v1", rate=0.3, options={"max_units": 4}), space)
    assert isinstance(made, Span)
    assert made.rate == 0.3


def test_make_masker_names_unknown_and_missing_options(space):
    with pytest.raises(UsageError, match="has no option 'max_unit'; did you mean 'max_units'"):
        make_masker(Span, MaskingConfig(masker="span.v1", options={"max_unit": 4}), space)
    with pytest.raises(UsageError, match="needs the option 'positions'"):
        make_masker(Position, MaskingConfig(masker="position.v1"), space)


@given(groups=st.lists(st.integers(0, 9), max_size=30))
def test_units_are_numbered_in_order_of_appearance(groups):
    numbers, count = number_units(np.array(groups, dtype=np.int32))
    order = list(dict.fromkeys(groups))
    assert numbers.tolist() == [order.index(group) for group in groups]
    assert count == len(order)


@given(n=st.integers(0, 40), rate=st.floats(0, 1), seed=st.integers(0, 99))
def test_a_draw_chooses_at_least_one(n, rate, seed):
    chosen = draw(n, rate, np.random.default_rng(seed))
    assert chosen.shape == (n,)
    assert chosen.any() == (n > 0)


def test_the_one_that_is_always_chosen_is_uniform():
    random = np.random.default_rng(0)
    counts = sum(draw(5, 0.0, random).astype(int) for _ in range(2000))
    assert counts.sum() == 2000
    assert (abs(counts - 400) < 5 * np.sqrt(2000 * 0.2 * 0.8)).all()


def test_special_tokens_and_those_of_weight_zero_are_not_eligible(space):
    encoding = Encoding(
        ids=np.array([2, 7, 1, 8, 9, 3], np.int32),
        groups=np.array([-1, 0, 0, 1, -1, -1], np.int32),
        weights=np.array([1, 0, 1, 0.5, 1, 1], np.float32),
    )
    assert eligible_tokens(encoding, space).tolist() == [False, False, False, True, False, False]
