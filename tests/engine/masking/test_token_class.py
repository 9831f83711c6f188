"""`token_class.v1`: rates by class within one budget, names hidden everywhere, honest declarations."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqmlm.engine.masking.base import Corruptor, MaskingConfig, eligible_tokens
from seqmlm.engine.masking.token_class import TokenClass
from seqmlm.engine.types import Encoding
from seqmlm.errors import UsageError

CLASSES = ("comma", "name", "operator", "never")
RATES = {"comma": 0.03, "name": 0.25, "operator": 0.5, "never": 0.0}


def masker(space, *, rate: float = 0.15, **options) -> TokenClass:
    return TokenClass(rate=rate, space=space, classes=CLASSES, **({"class_rates": RATES} | options))


@st.composite
def sequences(draw: st.DrawFn) -> Encoding:
    """Units of 1 to 3 tokens with a class each; names have symbols; some units belong to nothing."""
    units = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(-1, 3)), max_size=30))
    ids, groups, classes, symbols = [2], [-1], [-1], [-1]
    for number, (size, kind, symbol) in enumerate(units):
        ids += draw(st.lists(st.integers(5, 39), min_size=size, max_size=size))
        groups += [number if draw(st.integers(0, 9)) else -1] * size
        classes += [kind] * size
        symbols += [symbol if kind == 1 else -1] * size
    return encoding([*ids, 3], [*groups, -1], [*classes, -1], [*symbols, -1])


def encoding(ids, groups, classes, symbols) -> Encoding:
    return Encoding(
        ids=np.array(ids, np.int32),
        groups=np.array(groups, np.int32),
        classes=np.array(classes, np.int16),
        symbols=np.array(symbols, np.int32),
    )


def text(units: int = 400, names: int = 20) -> Encoding:
    """A long sequence: commas, names of one or two tokens that recur, operators, units never selected."""
    random = np.random.default_rng(0)
    kinds = random.choice(4, units, p=[0.4, 0.4, 0.15, 0.05])
    symbols = np.where(kinds == 1, random.integers(0, names, units), -1)
    sizes = np.where(kinds == 1, 1 + symbols % 2, 1)
    each = np.repeat(np.arange(units), sizes)
    ids = 5 + (np.where(symbols[each] >= 0, symbols[each], 20 + 3 * kinds[each])) % 35
    return encoding(ids, each, kinds[each], symbols[each])


def drawn(made: TokenClass, one: Encoding, space, times: int) -> np.ndarray:
    """(times, L) selections."""
    eligible = eligible_tokens(one, space)
    return np.array([made.select(one, eligible, np.random.default_rng(seed)) for seed in range(times)])


@given(one=sequences(), rate=st.floats(0, 1), together=st.floats(0, 1), seed=st.integers(0, 999))
@settings(max_examples=150)
def test_whole_units_nothing_special_and_at_least_one(space, one, rate, together, seed):
    before = copy.deepcopy(one)
    eligible = eligible_tokens(one, space)
    made = masker(space, rate=rate, together=together)
    selected = made.select(one, eligible, np.random.default_rng(seed))
    assert not (selected & ~eligible).any()
    assert not selected[one.classes == CLASSES.index("never")].any()
    assert selected.any() == (eligible & (one.classes < 3)).any()
    for group in set(one.groups[selected].tolist()):
        assert selected[one.groups == group].all()
    np.testing.assert_array_equal(one.ids, before.ids)


@given(one=sequences(), rate=st.floats(0, 1), seed=st.integers(0, 999))
@settings(max_examples=100)
def test_a_tied_name_is_hidden_everywhere(space, one, rate, seed):
    selected = masker(space, rate=rate, together=1.0).select(
        one, eligible := eligible_tokens(one, space), np.random.default_rng(seed)
    )
    tied = [s for s in set(one.symbols.tolist()) - {-1} if (selected & (one.symbols == s)).any()]
    partly = [s for s in tied if not selected[(one.symbols == s) & eligible].all()]
    # Where the draw came out empty a single unit is chosen, which is no tied draw.
    assert not partly or len(set(one.groups[selected].tolist())) == 1


@pytest.mark.parametrize("together", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("rate", [0.15, 0.4])
def test_the_budget_is_met_whatever_the_classes(space, rate, together):
    one = text()
    shares = drawn(masker(space, rate=rate, together=together), one, space, 1500).mean(axis=1)
    assert abs(shares.mean() - rate) < 5 * shares.std() / np.sqrt(len(shares))
    assert shares.std() / np.sqrt(len(shares)) < 0.005


def test_classes_keep_their_proportions(space):
    one = text()
    often = drawn(masker(space), one, space, 1500).mean(axis=0)
    by_class = [often[one.classes == number].mean() for number in range(4)]
    assert by_class[1] / by_class[0] == pytest.approx(0.25 / 0.03, rel=0.1)
    assert by_class[2] / by_class[1] == pytest.approx(2, rel=0.1)
    assert by_class[3] == 0


def test_half_of_the_chosen_names_are_hidden_everywhere(space):
    one = text(names=8)
    selections = drawn(masker(space, together=0.5), one, space, 800)
    occurrences = [one.symbols == s for s in range(8)]
    chosen = [(s[own].any(), s[own].all()) for s in selections for own in occurrences]
    # Tied symbols are chosen as often as one occurrence, untied ones hardly ever as a whole.
    p = selections[:, one.classes == 1].mean()
    assert np.mean([whole for _, whole in chosen]) == pytest.approx(0.5 * p, rel=0.25)


def test_one_outcome_a_symbol(space):
    one = text()
    corrupt = Corruptor(
        MaskingConfig(masker="token_class.v1", rate=0.3, mask=0.4, random=0.0, keep=0.6),
        masker(space, rate=0.3, together=1.0),
        space,
        None,
        3,
    )
    kinds = set()
    for sample in range(20):
        masked = corrupt(one, 0, sample)
        hidden = masked.ids[masked.positions] == space.mask
        symbols = one.symbols[masked.positions]
        for symbol in set(symbols.tolist()) - {-1}:
            assert len(set(hidden[symbols == symbol].tolist())) == 1
        kinds |= set(hidden[symbols >= 0].tolist())
    assert kinds == {True, False}


def test_random_tokens_come_from_the_class_half_of_the_time(space):
    one = text()
    made = masker(space, rate=0.5)
    commas = np.flatnonzero(one.classes == 0)
    ids = np.concatenate([made.replace(one, commas, np.random.default_rng(s)) for s in range(40)])
    own = (ids == one.ids[commas[0]]).mean()  # there is one comma
    assert own == pytest.approx(0.5 + 0.5 / len(space.ordinary), abs=0.03)
    assert not space.is_special[ids].any()
    assert len(set(ids.tolist())) == len(space.ordinary)


def test_sequences_without_classes_are_masked_by_units(space, long):
    selected = TokenClass(rate=0.2, space=space).select(
        long, eligible_tokens(long, space), np.random.default_rng(0)
    )
    assert selected.mean() == pytest.approx(0.2, abs=0.01)
    replaced = TokenClass(rate=0.2, space=space).replace(long, np.arange(1, 500), np.random.default_rng(0))
    assert not space.is_special[replaced].any()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rates": {"operater": 1.0}}, "no class 'operater'; did you mean 'operator'"),
        ({"rates": {"name": -1.0}}, "name must be a number from 0 on"),
        ({"rates": {"name": float("nan")}}, "name must be a number"),
        ({"rates": dict.fromkeys(CLASSES, 0.0)}, "every class has rate 0"),
        ({"together": 1.5}, "'together' must lie in"),
    ],
)
def test_wrong_options_are_named(space, options, said):
    with pytest.raises(UsageError, match=said):
        masker(space, **options)
