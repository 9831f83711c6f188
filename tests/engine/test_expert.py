"""The mixture of a model with counts: what its weights are learnt from, and what it says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from counted_units import RULE, drawn, encoding, space
from numpy.typing import NDArray

from seqmlm.engine.expert import KINDS, CountExpert, CountProbs, fit_weights
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import Strands, UnitFacts, Units

Doubles = NDArray[np.float64]


def fitted() -> CountExpert:
    train = list(map(encoding, drawn(0, sequences=200, units=20)))
    expert = CountExpert.fit(train, RULE, RULE.frequencies(np.ones(12)))
    return expert.with_best_smoothing(
        expert.hash_units(list(map(encoding, drawn(1, sequences=50, units=20))))
    )


@pytest.fixture(scope="module")
def expert() -> CountExpert:
    return fitted()


def _prices(units: int, seed: int = 0) -> tuple[Doubles, CountProbs]:
    """A model and counts of which each is right at another half of the places, by their kind."""
    random = np.random.default_rng(seed)
    kind = random.integers(0, 2, size=units)
    good, bad = np.log2(random.uniform(0.5, 1, size=units)), np.log2(random.uniform(0, 0.1, size=units))
    counts = np.stack([np.where(kind == 1, good, bad), bad])
    return np.where(kind == 0, good, bad), CountProbs(counts, kind, np.zeros((units, 3), dtype=np.int64))


def test_weights_go_to_who_is_right_at_each_kind_of_place(expert: CountExpert) -> None:
    model, priced = _prices(4000)
    weights = fit_weights(model, priced)
    assert weights.shape == (KINDS, 3)
    assert np.allclose(weights.sum(axis=1), 1)
    assert weights[0].argmax() == 0
    assert weights[1].argmax() == 1
    assert weights.min() > 0
    two = replace(expert, chains=expert.chains[:2], weights={"exact": weights})
    held, prices = _prices(4000, seed=1)
    mixture, share = two.mixture(held, prices, "exact")
    assert mixture.mean() > max(held.mean(), *prices.log2.mean(axis=1)) + 1
    assert share[prices.kind == 1].mean() > 0.9 > 0.1 > share[prices.kind == 0].mean()
    assert np.array_equal(two.mixture(held, prices, "partition:4")[0], mixture)


def test_the_mixture_is_the_weighted_sum(expert: CountExpert) -> None:
    model, priced = _prices(50)
    random = np.random.default_rng(3)
    weights = random.dirichlet(np.ones(3), size=KINDS)
    both = replace(expert, chains=expert.chains[:2], weights={"exact": weights})
    mixture, share = both.mixture(model, priced, "exact")
    own = weights[priced.kind]
    expected = own[:, 0] * 2**model + own[:, 1] * 2 ** priced.log2[0] + own[:, 2] * 2 ** priced.log2[1]
    assert np.allclose(2**mixture, expected)
    assert np.allclose(share, 1 - own[:, 0] * 2**model / expected)


def test_a_mixture_of_counts_alone_gives_the_model_nothing() -> None:
    _, priced = _prices(500)
    assert not fit_weights(None, priced)[:, 0].any()


def test_prices_do_not_depend_on_the_company(expert: CountExpert) -> None:
    some = list(map(encoding, drawn(7, sequences=8, units=20)))
    together = expert.hash_units(some)
    whole = expert.count_log_probs(together)
    for number, one in enumerate(some):
        own, mine = expert.count_log_probs(expert.hash_units([one])), whole.take(together.sequence == number)
        for name in ("log2", "kind", "longest"):
            assert np.array_equal(getattr(own, name), getattr(mine, name))


def test_what_was_seen_is_counted_once_however_often_it_was_drawn() -> None:
    pair, single = encoding([(3,), (4,)], [0, 0]), encoding([(5,)], [0])
    expert = CountExpert.fit([pair] * 6 + [single] * 3, RULE, RULE.frequencies(np.ones(12)))
    priced = expert.count_log_probs(
        expert.hash_units([pair, single, encoding([(3,), (4,), (7,)], [0, 0, 0])])
    )
    # After the other one of a pair nothing is left to draw: the second place is empty in all of them.
    assert priced.longest[:3].tolist() == [[2, 6, 6], [2, 6, 6], [2, 3, 3]]
    assert priced.longest[3:, 1].max() <= priced.longest[3:, 2].max() <= 6


def test_tuning_helps_on_what_it_was_tuned_on() -> None:
    train = list(map(encoding, drawn(0, sequences=200, units=20)))
    held = list(map(encoding, drawn(1, sequences=50, units=20)))
    raw = CountExpert.fit(train, RULE, RULE.frequencies(np.ones(12)))
    units = raw.hash_units(held)
    before, after = (
        raw.count_log_probs(units).log2.mean(axis=1),
        raw.with_best_smoothing(units).count_log_probs(units).log2.mean(axis=1),
    )
    assert (after > before).all()


def test_stored_and_read_again_it_says_the_same(expert: CountExpert) -> None:
    model = np.log2(np.random.default_rng(0).uniform(size=1))
    table = np.full((KINDS, 4), 0.25)
    expert = replace(expert, weights={"exact": table}, facts={"units": 3})
    again = CountExpert.from_arrays(expert.arrays(), expert.description(), RULE)
    units = expert.hash_units([encoding([(3,), (4,), (3, 4)])])
    first, second = expert.count_log_probs(units), again.count_log_probs(units)
    assert np.array_equal(first.log2, second.log2)
    assert np.array_equal(
        expert.mixture(model, first.take([0]), "exact")[0], again.mixture(model, second.take([0]), "exact")[0]
    )
    assert again.facts == {"units": 3}


@pytest.mark.parametrize("spoilt", ["unigram", "0/0/events", "1/2/kept", "weights/exact"])
def test_arrays_that_do_not_fit_are_refused(expert: CountExpert, spoilt: str) -> None:
    expert = replace(expert, weights={"exact": np.full((KINDS, 4), 0.25)})
    arrays = expert.arrays()
    with pytest.raises(ValueError):
        CountExpert.from_arrays({**arrays, spoilt: arrays[spoilt][:-1]}, expert.description(), RULE)
    with pytest.raises(ValueError):
        CountExpert.from_arrays(
            {**arrays, spoilt: arrays[spoilt].astype(np.bool_)}, expert.description(), RULE
        )
    del arrays[spoilt]
    if spoilt != "weights/exact":
        with pytest.raises(LookupError):
            CountExpert.from_arrays(arrays, expert.description(), RULE)


@pytest.mark.parametrize(("key", "value"), [("where", "nowhere"), ("places", [-1, 0])])
def test_a_chain_of_unknown_places_is_refused(expert: CountExpert, key: str, value: object) -> None:
    described = expert.description()
    chains = [{**described["chains"][0], key: value}, *described["chains"][1:]]
    with pytest.raises(ValueError, match="has unknown places"):
        CountExpert.from_arrays(expert.arrays(), {**described, "chains": chains}, RULE)


# Products


_COMPLEMENT = np.array([0, 1, 2, 6, 5, 4, 3], dtype=np.int32)
STRANDS = Units(
    space(4),
    UnitFacts(unfamiliar=(), strands=Strands(complement=_COMPLEMENT, mirrored=lambda encoding: None)),
)


def _two_sided(seed: int, sequences: int) -> list[Encoding]:
    """Symbols of four that follow a chain: both neighbours say something of each."""
    random = np.random.default_rng(seed)
    step = np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.1, 0.1, 0.1, 0.7], [0.1, 0.1, 0.7, 0.1]])
    found = []
    for _ in range(sequences):
        states = [0]
        while len(states) < 30:
            states.append(int(random.choice(4, p=step[states[-1]])))
        found.append(encoding([(3 + state,) for state in states]))
    return found


@pytest.fixture(scope="module")
def product() -> CountExpert:
    expert = CountExpert.fit(_two_sided(0, 300), STRANDS, STRANDS.frequencies(np.ones(7)))
    return expert.with_best_smoothing(expert.hash_units(_two_sided(1, 50)))


def test_each_chain_prices_every_symbol(product: CountExpert) -> None:
    units = product.hash_units(_two_sided(2, 5))
    priced = product.count_log_probs(units)
    assert product.product
    assert priced.log2.shape == (3, 150, 4)
    assert np.allclose(np.exp2(priced.log2).sum(axis=2), 1)
    assert priced.symbol is not None
    # Where the experts were added each chain would give the symbol that stands there the same price.
    added = replace(product, product=False).count_log_probs(units)
    assert np.allclose(priced.log2[:, np.arange(150), priced.symbol], added.log2)
    assert np.array_equal(priced.kind, added.kind)
    assert np.array_equal(priced.longest, added.longest)


def test_exponents_are_those_of_the_smallest_cost(product: CountExpert) -> None:
    priced = product.count_log_probs(product.hash_units(_two_sided(3, 100)))
    model = np.log2(np.random.default_rng(0).dirichlet(np.ones(4), size=len(priced.kind)))
    best = fit_weights(model, priced)

    def bits(weights: Doubles) -> float:
        return -float(replace(product, weights={"exact": weights}).mixture(model, priced, "exact")[0].mean())

    for place in range(4):
        for way in (-0.05, 0.05):
            other = best.copy()
            other[0, place] += way
            assert bits(other) > bits(best)
    # Noise has hardly a say.
    assert abs(best[0, 0]) < 0.1


def test_what_is_no_symbol_has_no_price(product: CountExpert) -> None:
    priced = product.count_log_probs(product.hash_units([encoding([(3,), (2,), (4,)])]))
    assert priced.symbol.tolist() == [0, -1, 1]
    model = np.full((3, 4), -2.0)
    weights = {"exact": fit_weights(model, priced)}
    found, _ = replace(product, weights=weights).mixture(model, priced, "exact")
    assert np.isfinite(found).tolist() == [True, False, True]


def test_a_stored_product_is_read_again(product: CountExpert) -> None:
    expert = replace(product, weights={"exact": np.full((1, 4), 0.25)})
    again = CountExpert.from_arrays(expert.arrays(), expert.description(), STRANDS)
    assert again.product
    with pytest.raises(ValueError, match="do not fit"):
        CountExpert.from_arrays(expert.arrays(), {**expert.description(), "product": False}, STRANDS)
