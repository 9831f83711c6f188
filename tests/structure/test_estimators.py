"""Every estimator is what its formula says, by a naive computation with one forward pass for each copy."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from text_models import text_model
from tiny_models import dna_model, protein_model, residues

from seqmlm.domains.dna.kmer_block import KmerBlockTokenizer
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.types import Encoding
from seqmlm.errors import UsageError
from seqmlm.inference import model_folder
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.structure.base import Estimator
from seqmlm.structure.cmi import Gibbs
from seqmlm.structure.estimators import PairCounts, StructureSettings, estimator
from seqmlm.structure.maps import symmetric_values

Doubles = NDArray[np.float64]


def made(model: LoadedModel, **settings: Any) -> Estimator:
    conditionals = Conditionals(model.rows, tokens_per_batch=256)
    return estimator(StructureSettings(**settings), conditionals, model.tokenizer.units)


class Naive:
    """Log-probabilities by separate calls of the model itself.

    Args:
        allowed: what answers are about.
    """

    def __init__(self, model: LoadedModel, allowed: NDArray[np.int32]) -> None:
        self.model, self.allowed = deepcopy(model.rows.model).eval(), allowed
        self.model.set_attn_implementation("sdpa")

    def __call__(self, ids: NDArray[np.int32], at: int) -> Doubles:
        with torch.no_grad():
            found = self.model(input_ids=torch.tensor(ids[None].astype(np.int64)))
        logits = found.logits[0, at, self.allowed.astype(np.int64)].double()
        return np.asarray(torch.log_softmax(logits, -1))


def changed(encoding: Encoding, *pairs: tuple[int, int]) -> NDArray[np.int32]:
    ids = encoding.ids.copy()
    for place, token in pairs:
        ids[place] = token
    return ids


def entropy(p: Doubles) -> Any:
    return -(p * np.log(p)).sum(-1)


def mutual(joint: Doubles) -> float:
    return float(entropy(joint.sum(0)) + entropy(joint.sum(1)) - entropy(joint.ravel()))


def _stronger(model: LoadedModel) -> LoadedModel:
    """Fresh weights are so small that everything is as probable as anything else."""
    with torch.no_grad():
        for weights in model.rows.parameters():
            weights *= 6
    return model


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return model_folder.load(text_model(tmp_path_factory.mktemp("text")))


DNA = _stronger(dna_model())
SEQUENCE = DNA.tokenizer.encode("ACGTTGA")
ALPHABET = DNA.rows.space.ordinary[:4]
MASK = DNA.rows.space.mask
PLACES = range(1, 8)


def four(**settings: Any) -> dict[str, Any]:
    return {"candidates": tuple(ALPHABET.tolist()), **settings}


# "ACGTTGA" by its letters: A at 1 and 7, C at 2, G at 3 and 6, T at 4 and 5.
NAMED = replace(SEQUENCE, symbols=np.array([-1, 0, 1, 2, 3, 3, 2, 0, -1], dtype=np.int32))
LETTERS = ((1, 7), (2,), (3, 6), (4, 5))
APART = tuple((place,) for place in PLACES)


Names = tuple[tuple[int, ...], ...]


def everywhere(places: tuple[int, ...], token: int) -> list[tuple[int, int]]:
    return [(place, token) for place in places]


def conditionals_of(one: tuple[int, ...], two: tuple[int, ...]) -> tuple[Doubles, Doubles, Doubles, Doubles]:
    """p of each unit of a pair where both are hidden, and where the other one shows each symbol."""
    ask, both = Naive(DNA, ALPHABET), changed(SEQUENCE, *everywhere(one + two, MASK))
    given_one, given_two = (
        np.stack(
            [ask(changed(SEQUENCE, *everywhere(x, a), *everywhere(y, MASK)), y[0]) for a in ALPHABET.tolist()]
        )
        for x, y in ((one, two), (two, one))
    )
    return tuple(np.exp(x) for x in (ask(both, one[0]), ask(both, two[0]), given_one, given_two))  # type: ignore[return-value]


NAMES = pytest.mark.parametrize("names", [APART, LETTERS], ids=["apart", "together"])


@NAMES
def test_exact_is_the_information_of_the_mean_of_both_joints(names: Names) -> None:
    exact = made(DNA, **four(estimator="exact", together=names is LETTERS))
    [found] = exact.maps([NAMED])
    apart = []
    for one, two in combinations(names, 2):
        of_one, of_two, given_one, given_two = conditionals_of(one, two)
        joints = of_one[:, None] * given_one, (of_two[:, None] * given_two).T
        expected = mutual((joints[0] + joints[1]) / 2)
        assert found.values[one[0] - 1, two[0] - 1] == pytest.approx(expected, abs=1e-6)
        apart.append(np.abs(joints[0] - joints[1]).sum() / 2)
    assert found.details["incompatibility"] == pytest.approx(np.mean(apart), abs=1e-6)
    known = np.isfinite(found.values)
    assert known.sum() == len(names) * (len(names) - 1), "one value for each pair of names"
    np.testing.assert_array_equal(found.values, found.values.T)
    if names is APART:
        assert found.passes == 21 * 9 == exact.passes(7, 9)
    assert found.method == "cmi/exact"


@NAMES
def test_topk_and_gibbs_come_to_the_stationary_law(names: Names) -> None:
    together = names is LETTERS
    [found] = made(DNA, **four(estimator="topk", k=4, together=together)).maps([NAMED])
    [sampled] = made(DNA, **four(estimator="gibbs", steps=400, together=together)).maps([NAMED])
    apart, errors = [], []
    for one, two in combinations(names, 2):
        _, _, given_i, given_j = conditionals_of(one, two)
        # The eigenvectors of the full kernel.
        values, vectors = np.linalg.eig((given_j @ given_i).T)
        of_j = np.abs(np.real(vectors[:, np.argmax(np.real(values))]))
        of_j /= of_j.sum()
        of_i = of_j @ given_j
        sides = [
            entropy(of_j @ given_j) - of_j @ entropy(given_j),
            entropy(of_i @ given_i) - of_i @ entropy(given_i),
        ]
        at = one[0] - 1, two[0] - 1
        assert found.values[at] == pytest.approx(np.mean(sides), abs=1e-6)
        apart.append(sampled.values[at] - found.values[at])
        errors.append(sampled.error[at])
    assert min(errors) > 0
    assert np.sqrt(np.mean(np.square(apart))) < 3 * np.sqrt(np.mean(np.square(errors))) + 1e-4
    assert np.nanmin(sampled.values) >= 0
    assert found.details["covered"] == pytest.approx(1.0)
    if not together:
        assert 21 < sampled.passes <= 21 * 2 * 5
    [fewer] = made(DNA, **four(estimator="topk", k=2, together=together)).maps([NAMED])
    assert 0.4 < fewer.details["covered"] < 1
    assert fewer.passes < found.passes


@NAMES
def test_cpmi_is_the_difference_of_two_log_probabilities(names: Names) -> None:
    ordinary = DNA.rows.space.ordinary
    [found] = made(DNA, method="cpmi", together=names is LETTERS).maps([NAMED])
    ask = Naive(DNA, ordinary)

    def own(unit: tuple[int, ...], *hidden: int) -> float:
        log_probs = ask(changed(SEQUENCE, *everywhere(hidden, MASK)), unit[0])
        return float(log_probs[np.flatnonzero(ordinary == SEQUENCE.ids[unit[0]])[0]])

    for one, two in combinations(names, 2):
        expected = (own(one, *one) - own(one, *one, *two) + own(two, *two) - own(two, *one, *two)) / 2
        assert found.values[one[0] - 1, two[0] - 1] == pytest.approx(expected, abs=1e-5)
    assert np.isfinite(found.values).sum() == len(names) * (len(names) - 1)
    assert found.passes == len(names) + len(names) * (len(names) - 1) / 2


def test_fast_computes_all_pairs_of_names_exactly_if_it_may() -> None:
    [found], [exact] = (
        made(DNA, **four(estimator=name, exact_pairs=9.0, together=True)).maps([NAMED])
        for name in ("fast", "exact")
    )
    np.testing.assert_allclose(found.values, exact.values, atol=1e-6)
    [fewer] = made(DNA, **four(estimator="fast", exact_pairs=0.5, together=True)).maps([NAMED])
    assert fewer.details["exact_pairs"] == 2, "half of four names"
    assert fewer.passes == made(DNA, **four(estimator="fast", exact_pairs=0.5)).passes(4, 9)


@pytest.mark.parametrize(
    "settings", [{"estimator": "exact"}, {"estimator": "topk", "k": 2}, {"method": "cpmi"}], ids=str
)
def test_names_of_units_of_several_tokens_have_one_value_a_pair(settings: dict[str, Any]) -> None:
    two_each = replace(
        DNA.tokenizer.encode("ACGTACGT"),
        groups=np.array([-1, 0, 0, 1, 1, 2, 2, 3, 3, -1], np.int32),
        symbols=np.array([-1, 0, 0, 1, 1, 0, 0, 1, 1, -1], np.int32),
    )
    [found] = made(DNA, **four(together=True, **settings)).maps([two_each])
    assert np.argwhere(np.isfinite(found.values)).tolist() == [[0, 1], [1, 0]]


def test_units_that_name_different_things_are_as_if_they_named_nothing() -> None:
    apart = replace(SEQUENCE, symbols=np.arange(-1, 8, dtype=np.int32))
    for own in ({"estimator": "topk", "k": 3}, {"method": "cpmi"}, {"method": "jacobian"}, {"method": "pmi"}):
        [one], [other] = (made(DNA, **four(**own, together=x)).maps([apart]) for x in (True, False))
        np.testing.assert_array_equal(one.values, other.values)


@pytest.mark.parametrize("plain", [False, True])
def test_remembering_conditionals_changes_no_sample(plain: bool) -> None:
    def sampled(cached: bool) -> Any:
        one = made(DNA, **four(estimator="gibbs", steps=15, distance=2))
        assert isinstance(one, Gibbs)
        one.plain, one.cached = plain, cached
        return one.maps([SEQUENCE])[0]

    remembered, asked = sampled(True), sampled(False)
    np.testing.assert_allclose(remembered.values, asked.values, atol=1e-6)
    assert asked.passes == 11 * 2 * 15
    assert remembered.passes < asked.passes


def test_gibbs_draws_what_its_numbers_say() -> None:
    """The first draws of one chain, by hand, and the estimates of its steps."""
    from seqmlm.engine.randomness import uniform

    steps, pair = 30, SEQUENCE
    one = made(DNA, **four(estimator="gibbs", steps=steps, distance=1))
    [found] = one.maps([pair])
    ask, now, met = Naive(DNA, ALPHABET), [MASK, MASK], ([], [])  # type: ignore[var-annotated]
    for step in range(steps):
        for side in (0, 1):
            own, other = (1, 2) if side == 0 else (2, 1)
            p = np.exp(ask(changed(pair, (own, MASK), (other, now[1 - side])), own))
            number = uniform(0, np.array([0]), np.array([2 * step + side]))[0]
            now[side] = int(ALPHABET[np.searchsorted(p.cumsum(), number * p.sum(), side="right")])
            met[side].append(p)
    sides = []
    for own in met:
        kept = np.stack(own[steps // 5 :])
        sides.append(entropy(kept.mean(0)) - entropy(kept).mean())
    assert found.values[0, 1] == pytest.approx(np.mean(sides), abs=1e-6)


def test_fast_ranks_by_the_sequence_as_it_is_and_computes_the_strongest() -> None:
    fast = made(DNA, **four(estimator="fast", exact_pairs=0))
    [ranked] = fast.maps([SEQUENCE])
    ask = Naive(DNA, ALPHABET)
    directed = np.full((7, 7), np.nan)
    for i in PLACES:
        alone = np.exp(ask(changed(SEQUENCE, (i, MASK)), i))
        for j in PLACES:
            if i != j:
                rows = np.exp([ask(changed(SEQUENCE, (i, a)), j) for a in ALPHABET.tolist()])
                mean = alone @ rows
                directed[i - 1, j - 1] = alone @ (rows * np.log(rows / mean)).sum(1)
    np.testing.assert_allclose(ranked.values, symmetric_values(directed), atol=1e-6)
    [exact] = made(DNA, **four(estimator="exact")).maps([SEQUENCE])
    [both] = made(DNA, **four(estimator="fast", exact_pairs=1)).maps([SEQUENCE])
    again = both.values != ranked.values
    assert int((again & ~np.isnan(both.values)).sum()) == 2 * 7
    order = np.argsort(-ranked.values[np.triu_indices(7, 1)])[:7]
    chosen = tuple(axis[order] for axis in np.triu_indices(7, 1))
    np.testing.assert_allclose(both.values[chosen], exact.values[chosen], atol=1e-6)
    assert both.passes == 7 * 5 + 7 * 9 == made(DNA, **four(estimator="fast", exact_pairs=1)).passes(7, 9)


def test_cpmi_hides_words_whole(words: LoadedModel) -> None:
    encoding = words.tokenizer.encode("the enormous committee reconsidered.")
    [found] = made(words, method="cpmi").maps([encoding])
    numbers = words.tokenizer.units.numbers(encoding)
    assert found.values.shape == (len(numbers), len(numbers))
    sizes = np.bincount(encoding.groups[encoding.groups >= 0])
    assert sizes.max() > 1, "a word of several tokens"
    ordinary, mask = words.rows.space.ordinary, words.rows.space.mask
    ask = Naive(words, ordinary)

    def own(unit: int, *hidden: int) -> float:
        at = [(int(place), mask) for one in hidden for place in np.flatnonzero(encoding.groups == one)]
        return sum(
            float(ask(changed(encoding, *at), place)[np.flatnonzero(ordinary == encoding.ids[place])[0]])
            for place in np.flatnonzero(encoding.groups == unit).tolist()
        )

    expected = (own(0, 0) - own(0, 0, 1) + own(1, 1) - own(1, 0, 1)) / 2
    assert found.values[0, 1] == pytest.approx(expected, abs=1e-4)


def test_words_have_the_largest_column_and_the_mean_row_of_their_tokens(words: LoadedModel) -> None:
    encoding = words.tokenizer.encode("old words")
    tokens = tuple(words.rows.space.ordinary[:6].tolist())
    [found] = made(words, estimator="exact", candidates=tokens, symmetric="mean").maps([encoding])
    parts = Encoding(ids=encoding.ids, groups=np.where(encoding.groups >= 0, np.arange(len(encoding)), -1))
    [of_tokens] = made(words, estimator="exact", candidates=tokens).maps([parts])
    one, two = (np.flatnonzero(encoding.groups[1:-1] == unit) for unit in (0, 1))
    assert min(len(one), len(two)) > 1
    block = np.exp(of_tokens.values[np.ix_(one, two)])
    forth, back = np.log(block.max(axis=1).mean()), np.log(block.max(axis=0).mean())
    assert found.values[0, 1] == pytest.approx((forth + back) / 2, abs=1e-6)
    assert found.error is None


@NAMES
def test_jacobian_is_that_of_its_authors(names: Names) -> None:
    [found] = made(DNA, **four(method="jacobian", together=names is LETTERS)).maps([NAMED])
    ask, firsts = Naive(DNA, ALPHABET), [own[0] for own in names]
    moved = np.zeros((len(names), 4, len(names), 4))
    for i, own in enumerate(names):
        for n, a in enumerate(ALPHABET.tolist()):
            for j, other in enumerate(firsts):
                moved[i, n, j] = ask(changed(SEQUENCE, *everywhere(own, a)), other) - ask(SEQUENCE.ids, other)
    for axis in range(4):
        moved -= moved.mean(axis, keepdims=True)
    moved = (moved + moved.transpose(2, 3, 0, 1)) / 2
    norms = np.sqrt((moved**2).sum((1, 3)))
    np.testing.assert_allclose(found.values, of_names(norms, firsts), atol=1e-5)
    assert not found.nats


def of_names(values: Doubles, firsts: list[int]) -> Doubles:
    """The map of all units, which is about the first ones of names alone."""
    made = np.full((7, 7), np.nan)
    np.fill_diagonal(values, np.nan)
    made[np.ix_([at - 1 for at in firsts], [at - 1 for at in firsts])] = values
    return made


@NAMES
def test_dependency_is_the_largest_change_of_log_odds(names: Names) -> None:
    [found] = made(DNA, **four(method="dependency", together=names is LETTERS)).maps([NAMED])
    ask, firsts = Naive(DNA, ALPHABET), [own[0] for own in names]

    def odds(ids: NDArray[np.int32], at: int) -> Doubles:
        p = np.exp(ask(ids, at))
        return np.asarray(np.log2(p / (1 - p)))

    directed = np.full((len(names), len(names)), np.nan)
    for i, own in enumerate(names):
        for j, other in enumerate(firsts):
            if i != j:
                base = odds(SEQUENCE.ids, other)
                moves = [
                    np.abs(odds(changed(SEQUENCE, *everywhere(own, a)), other) - base)
                    for a in ALPHABET.tolist()
                ]
                directed[i, j] = np.max(moves)
    expected = of_names(symmetric_values(directed, "max"), firsts)
    np.testing.assert_allclose(found.values, expected, atol=1e-4)


def test_pmi_counts_units_that_are_near() -> None:
    counts = PairCounts(2)
    for word in ("abc", "abd"):
        counts.add([(ord(letter),) for letter in word])
    a, b, c = ((ord(letter),) for letter in "abc")
    assert counts.together == 12
    expected = np.log((2 + 0.1) / 12.1) - np.log(2.1 * 2.1 / 6.1**2)
    assert counts.information(a, b) == pytest.approx(expected)
    assert counts.information(b, a) == counts.information(a, b)
    assert counts.information(c, (ord("d"),)) < counts.information(a, c)
    [found] = made(DNA, method="pmi").maps([SEQUENCE])
    assert found.passes == 0
    assert np.isfinite(found.values[~np.eye(7, dtype=bool)]).all()


@pytest.mark.parametrize(
    "settings",
    [{"estimator": name} for name in ("exact", "topk", "gibbs", "fast")]
    + [{"method": name} for name in ("cpmi", "pmi", "jacobian", "dependency")],
    ids=str,
)
def test_pairs_that_are_too_far_apart_are_not_asked_about(settings: dict[str, Any]) -> None:
    everything = made(DNA, **four(steps=20, **settings)).maps([SEQUENCE])[0]
    [found] = made(DNA, **four(steps=20, distance=2, **settings)).maps([SEQUENCE])
    near = np.abs(np.subtract.outer(np.arange(7), np.arange(7))) <= 2
    np.fill_diagonal(near, False)
    assert (np.isfinite(found.values) == near).all()
    if settings.get("estimator") not in ("gibbs", "fast") and settings.get("method") != "pmi":
        np.testing.assert_allclose(found.values[near], everything.values[near], atol=1e-5)
    assert found.passes <= everything.passes


@pytest.mark.parametrize("settings", [{"estimator": "exact"}, {"method": "cpmi"}, {}], ids=str)
def test_maps_do_not_depend_on_what_is_asked_together(settings: dict[str, Any]) -> None:
    model = protein_model()
    sequences = [model.tokenizer.encode(residues(length)) for length in (5, 1, 8, 2)]
    settings = {"candidates": tuple(model.rows.space.ordinary[:5].tolist()), **settings}
    for sequence, found in zip(sequences, made(model, **settings).maps(sequences), strict=True):
        np.testing.assert_allclose(
            found.values, made(model, **settings).maps([sequence])[0].values, atol=1e-6
        )
        assert len(found) == len(sequence) - 2


def test_auto_says_what_it_chooses(words: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    from seqmlm.structure import estimators

    monkeypatch.setattr(estimators, "CHEAP", 100)  # 5 places have 10 pairs of 9 passes
    both = made(DNA, **four())
    assert both.name == "cmi/exact up to 5 units, cmi/fast beyond"
    short, long = DNA.tokenizer.encode("ACGTA"), SEQUENCE
    assert [one.method for one in both.maps([short, long])] == ["cmi/exact", "cmi/fast"]
    assert both.passes(7, 9) == made(DNA, **four(estimator="fast")).passes(7, 9)
    assert made(words, k=4).name.startswith("cmi/topk up to ")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"estimator": "best"}, "estimator must be one of"),
        ({"distance": 0}, "distance must be at least 1 unit"),
        ({"steps": 3}, "steps must be at least 10"),
    ],
)
def test_settings_without_sense(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        StructureSettings(**settings)


def test_what_is_not_possible_is_said(words: LoadedModel) -> None:
    with pytest.raises(UsageError, match="--method must be one of"):
        made(words, method="cmo")
    with pytest.raises(UsageError, match="tries every symbol"):
        made(words, method="jacobian")

    with pytest.raises(UsageError, match="--method cpmi"):
        estimator(StructureSettings(), Conditionals(DNA.rows), KmerBlockTokenizer(k=3).units)
