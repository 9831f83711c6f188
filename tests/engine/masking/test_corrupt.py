"""Corruption touches what was selected and nothing else, in the shares that were asked for."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.engine.masking.base import Corruptor, MaskingConfig, eligible_tokens, uniform_units
from seqmlm.engine.masking.lexicon import Lexicon
from seqmlm.engine.masking.position import Position
from seqmlm.engine.masking.span import Span
from seqmlm.engine.masking.uniform import Uniform
from seqmlm.engine.masking.whole_unit import WholeUnit
from seqmlm.engine.randomness import rng
from seqmlm.engine.types import Encoding
from seqmlm.errors import UsageError

MASKERS = {
    "uniform": (Uniform, {}),
    "whole_unit": (WholeUnit, {}),
    "span": (Span, {}),
    "mix": (Lexicon, {"ids": [7, 8], "words": [(9, 10)], "mode": "mix", "p": 0.5}),
    "position": (Position, {"positions": [0, -1], "p": 0.5}),
}
shares = st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted).map(lambda c: (c[0], c[1] - c[0], 1 - c[1]))


def corruptor(space, masker="uniform", *, unigram=None, seed=0, rate=0.15, **config) -> Corruptor:
    made, options = MASKERS[masker]
    return Corruptor(
        MaskingConfig(rate=rate, **config), made(rate=rate, space=space, **options), space, unigram, seed
    )


@pytest.mark.parametrize("masker", MASKERS)
@given(
    data=st.data(), rate=st.floats(0, 0.75), parts=shares, seed=st.integers(0, 2**40), unigram=st.booleans()
)
def test_only_selected_tokens_change_and_no_special_one_moves(
    encodings, space, masker, data, rate, parts, seed, unigram
):
    encoding = data.draw(encodings)
    before = copy.deepcopy(encoding)
    mask, random, keep = parts
    corrupt = corruptor(
        space,
        masker,
        rate=rate,
        mask=mask,
        random=random,
        keep=keep,
        replacement="unigram" if unigram else "uniform",
        unigram=np.ones(space.size) if unigram else None,
        seed=seed,
    )
    masked = corrupt(encoding, 3, 5)
    eligible = eligible_tokens(encoding, space)
    assert eligible[masked.positions].all()
    assert (np.diff(masked.positions) > 0).all()
    assert len(masked.positions) > 0 or not eligible.any()
    np.testing.assert_array_equal(masked.targets, encoding.ids[masked.positions])
    untouched = np.ones(len(encoding), bool)
    untouched[masked.positions] = False
    np.testing.assert_array_equal(masked.ids[untouched], encoding.ids[untouched])
    put = masked.ids[masked.positions]
    assert (~space.is_special[put] | (put == space.mask)).all()
    np.testing.assert_array_equal(encoding.ids, before.ids)
    if encoding.weights is None:
        assert masked.weights is None
    else:
        np.testing.assert_array_equal(masked.weights, encoding.weights[masked.positions])


@pytest.mark.parametrize("masker", ["uniform", "whole_unit", "span"])
def test_shares_of_mask_random_and_kept(space, long, masker):
    masked = corruptor(space, masker, rate=0.5)(long, 0, 0)
    put, true = masked.ids[masked.positions], masked.targets
    n = len(put) / 3  # units of up to three tokens share one draw
    hit = 0.1 / len(space.ordinary)  # a random token may be the true one
    for share, expected in (
        ((put == space.mask).mean(), 0.8),
        ((put == true).mean(), 0.1 + hit),
        (((put != true) & (put != space.mask)).mean(), 0.1 - hit),
    ):
        assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / n)


@pytest.mark.parametrize("parts", [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.9, 0.1, 0.0)])
def test_a_share_of_zero_never_happens(space, singles, parts):
    mask, random, keep = parts
    masked = corruptor(space, mask=mask, random=random, keep=keep, rate=0.9)(singles, 0, 0)
    put = masked.ids[masked.positions]
    assert (put == space.mask).any() == (mask > 0)
    assert ((put != space.mask) & (put != masked.targets)).any() == (random > 0)
    kept = (put == masked.targets).mean()
    assert kept < 0.05 if keep == 0 else kept == 1


@pytest.mark.parametrize(("masker", "together"), [("whole_unit", True), ("uniform", False)])
def test_tokens_of_a_unit_share_their_fate_where_the_masker_says_so(space, long, masker, together):
    masked = corruptor(space, masker, rate=0.6, mask=0.5, random=0.0, keep=0.5)(long, 0, 0)
    kept = masked.ids[masked.positions] == masked.targets
    groups = long.groups[masked.positions]
    same_unit = groups[1:] == groups[:-1]
    agree = (kept[1:] == kept[:-1])[same_unit]
    assert len(agree) > 1000
    assert agree.all() if together else abs(agree.mean() - 0.5) < 5 * np.sqrt(0.25 / len(agree))


def test_random_tokens_ignore_the_true_one_and_are_uniform(space):
    encoding = Encoding(ids=np.full(35_000, 7, np.int32), groups=np.arange(35_000, dtype=np.int32))
    masked = corruptor(space, rate=1.0, mask=0.0, random=1.0, keep=0.0)(encoding, 0, 0)
    counts = np.bincount(masked.ids, minlength=space.size)
    assert (counts[:5] == 0).all()
    chi_square = ((counts[5:] - 1000) ** 2 / 1000).sum()
    assert chi_square < 34 + 5 * np.sqrt(2 * 34)


def test_random_tokens_by_frequency(space, singles):
    unigram = np.zeros(space.size)
    unigram[[2, 6, 9, 30]] = [100, 1, 2, 1]  # the special token's mass does not count
    corrupt = corruptor(
        space, rate=1.0, mask=0.0, random=1.0, keep=0.0, replacement="unigram", unigram=unigram
    )
    shares = np.bincount(corrupt(singles, 0, 0).ids, minlength=space.size) / len(singles)
    assert np.flatnonzero(shares).tolist() == [6, 9, 30]
    for token, expected in ((6, 0.25), (9, 0.5), (30, 0.25)):
        assert abs(shares[token] - expected) < 5 * np.sqrt(expected * (1 - expected) / len(singles))


@pytest.mark.parametrize("dynamic", [True, False])
def test_static_masks_repeat_and_dynamic_ones_do_not(space, singles, dynamic):
    corrupt = corruptor(space, dynamic=dynamic)
    first, later = corrupt(singles, 0, 8), corrupt(singles, 5, 8)
    assert (first.ids == later.ids).all() == (not dynamic)
    assert (corrupt(singles, 0, 9).ids != first.ids).any()
    assert (corruptor(space, dynamic=dynamic, seed=1)(singles, 0, 8).ids != first.ids).any()


def test_wrong_unigrams_and_unknown_replacements_are_refused(space):
    for unigram in (
        None,
        np.ones(3),
        -np.ones(space.size),
        np.zeros(space.size),
        np.full(space.size, np.nan),
    ):
        with pytest.raises(UsageError, match="replacement = 'unigram' needs"):
            corruptor(space, replacement="unigram", unigram=unigram)


class NextId(Uniform):
    """Draws its own random tokens: the id after the true one."""

    name = "next_id.v1"
    outcome = "run"

    def replace(self, encoding, swapped, rng):
        assert (np.diff(swapped) > 0).all()
        return encoding.ids[swapped] + 1


@given(data=st.data(), rate=st.floats(0, 1), seed=st.integers(0, 99))
def test_a_masker_may_draw_its_own_random_tokens(encodings, space, data, rate, seed):
    encoding = data.draw(encodings)
    config = MaskingConfig(rate=rate, mask=0.0, random=1.0, keep=0.0)
    masked = Corruptor(config, NextId(rate=rate, space=space), space, None, seed)(encoding, 0, 0)
    assert (masked.ids[masked.positions] == masked.targets + 1).all()
    with pytest.raises(UsageError, match="draws its own random tokens"):
        Corruptor(replace(config, replacement="unigram"), NextId(rate=rate, space=space), space, None, seed)


@given(data=st.data(), rate=st.floats(0, 1), seed=st.integers(0, 99))
def test_neighbouring_positions_share_the_outcome_of_their_run(encodings, space, data, rate, seed):
    encoding = data.draw(encodings)
    config = MaskingConfig(rate=rate, mask=0.5, random=0.0, keep=0.5)
    masked = Corruptor(config, NextId(rate=rate, space=space), space, None, seed)(encoding, 0, 0)
    hidden = masked.ids == space.mask
    for here, there in pairwise(masked.positions.tolist()):
        assert there - here > 1 or hidden[here] == hidden[there]


def test_a_masker_that_selects_special_tokens_is_held_back(space):
    class Everything(Uniform):
        def select(self, encoding, eligible, rng):
            return np.ones(len(encoding), bool)

    encoding = Encoding(ids=np.array([2, 7, 1, 3], np.int32), groups=np.array([-1, 0, 1, -1], np.int32))
    masked = Corruptor(MaskingConfig(), Everything(rate=0.1, space=space), space, None, 0)(encoding, 0, 0)
    assert masked.positions.tolist() == [1]


@given(data=st.data(), rate=st.floats(0, 1), seed=st.integers(0, 99))
def test_evaluation_asks_whole_units_at_least_one(encodings, space, data, rate, seed):
    encoding = data.draw(encodings)
    eligible = eligible_tokens(encoding, space)
    chosen = uniform_units(encoding, space, rate, rng(seed, 0, 0))
    assert not (chosen & ~eligible).any()
    assert chosen.any() == eligible.any()
    for group in set(encoding.groups.tolist()):
        own = chosen[(encoding.groups == group) & eligible]
        assert own.all() or not own.any()


def test_evaluation_keeps_its_rate(space, long):
    units = len(set(long.groups.tolist()) - {-1})
    chosen = len(set(long.groups[uniform_units(long, space, 0.15, rng(0, 0, 0))].tolist()))
    assert abs(chosen / units - 0.15) < 5 * np.sqrt(0.15 * 0.85 / units)
