"""Cheap rivals learn a planted rule, say nothing of noise, and take what real examples are like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from seqmlm.evaluation import rivals
from seqmlm.evaluation.predictions import measures
from seqmlm.evaluation.rivals import (
    UnfittedError,
    bag_predictions,
    boosting_predictions,
    majority_predictions,
    place_predictions,
    window_predictions,
)

WORDS = [*["the", "a", "cat", "dog", "saw", "barked", "quickly", "Anna", "12", "of"]]


def examples(alphabet: list[str], n: int, seed: int = 0) -> list[list[str]]:
    random = np.random.default_rng(seed)
    return [random.choice(alphabet, size=random.integers(6, 14)).tolist() for _ in range(n)]


def has(one: list[str], run: list[str]) -> bool:
    return any(one[at : at + len(run)] == run for at in range(len(one)))


def score(task: str, truth: Any, predicted: Any, names: list[str], metric: str) -> float:
    return measures(task, truth, predicted, groups=np.arange(len(truth)), names=names, draws=2)[metric].value


@pytest.mark.parametrize(("alphabet", "run"), [([*"ACGT"], [*"TATA"]), (WORDS, ["cat", "saw"])])
def test_a_bag_learns_runs_of_units(alphabet: list[str], run: list[str]) -> None:
    """A run in half of the examples, backwards in the others: single units do not tell."""
    train, test = examples(alphabet, 400), examples(alphabet, 200, seed=1)
    for one in (*train[::2], *test[::2]):
        one[2 : 2 + len(run)] = run
    for one in (*train[1::2], *test[1::2]):
        one[2 : 2 + len(run)] = run[::-1]
    truth, true = ([int(has(one, run)) for one in part] for part in (train, test))
    names = ["without", "with"]
    assert (
        score("class", true, bag_predictions("class", train, truth, test, names=names), names, "auroc") > 0.95
    )
    random = np.random.default_rng(2)
    noise = bag_predictions("class", train, random.integers(2, size=400), test, names=names)
    assert abs(score("class", random.integers(2, size=200), noise, names, "auroc") - 0.5) < 0.12


def test_a_bag_learns_labels_and_values() -> None:
    train, test = examples(WORDS, 300), examples(WORDS, 200, seed=1)
    truth, true = (
        np.array([[int("cat" in one), int("dog" in one), 0] for one in part]) for part in (train, test)
    )
    labels = bag_predictions("multilabel", train, truth, test, names=["cat", "dog", "never"])
    assert labels.shape == (200, 3)
    assert score("multilabel", true, labels, ["cat", "dog", "never"], "auroc") > 0.95
    assert (labels[:, 2] == 0).all()
    values = bag_predictions("value", train, truth[:, :2] - 0.5 * truth[:, :1], test, names=["x", "y"])
    assert score("value", true[:, :2] - 0.5 * true[:, :1], values, ["x", "y"], "spearman") > 0.8
    assert bag_predictions("value", train, truth[:, 0], test, names=["x"]) == pytest.approx(values[:, 0] * 2)


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        ([[], []], "no example has a unit"),
        ([[str(at)] for at in range(200)], "no unit occurs in two examples"),
    ],
)
def test_a_bag_that_cannot_be_fitted_is_no_majority(train: Any, reason: str) -> None:
    truth = [at % 2 for at in range(len(train))]
    with pytest.raises(UnfittedError, match=reason):
        bag_predictions("class", train, truth, [["c"], ["a", "b"]], names=["no", "yes"])


def test_a_bag_of_one_class_is_certain_of_it() -> None:
    found = bag_predictions("class", [["a"], ["b"]], [1, 1], [["c"], ["a", "b"]], names=[*"xyz"])
    assert found == pytest.approx(np.array([[0, 1, 0]] * 2))


@pytest.mark.parametrize("value", [None, "", float("nan")])
def test_boosting_without_a_value_cannot_be_fitted(value: Any) -> None:
    with pytest.raises(UnfittedError, match="no column has a value"):
        boosting_predictions("class", {"a": [value] * 4}, [0, 1, 0, 1], {"a": [1, 2]}, names=["no", "yes"])


def test_a_bag_of_four_examples() -> None:
    found = bag_predictions(
        "class", [["a"], ["b"], ["a"], ["b"]], [0, 1, 0, 2], [["a"], ["zzz"]], names=[*"xyz"]
    )
    assert found.sum(axis=1) == pytest.approx(1)
    assert found[0].argmax() == 0


def neighbours(one: list[str]) -> list[int]:
    """A unit's class is whether the unit two before it is the first of the alphabet; the last has none."""
    return [int(at >= 2 and one[at - 2] in ("A", "the")) for at in range(len(one) - 1)] + [-1]


@pytest.mark.parametrize("alphabet", [[*"ACGT"], WORDS])
def test_windows_learn_from_neighbours(alphabet: list[str]) -> None:
    train, test = examples(alphabet, 150), [*examples(alphabet, 60, seed=1), []]
    found = window_predictions("tags", train, [neighbours(one) for one in train], test, names=["no", "yes"])
    assert [one.shape for one in found] == [(len(one), 2) for one in test]
    truth, p = np.concatenate([neighbours(one) for one in test if one]), np.concatenate(found)
    assert score("tags", truth[truth >= 0], p[truth >= 0], ["no", "yes"], "accuracy") > 0.97
    random = np.random.default_rng(1)
    drawn = [random.integers(2, size=len(one)) for one in train]
    noise = np.concatenate(window_predictions("tags", train, drawn, test, names=[*"ab"]))
    assert abs(score("tags", random.integers(2, size=len(noise)), noise, [*"ab"], "auroc") - 0.5) < 0.08


def test_windows_read_suffix_and_shape_of_new_words() -> None:
    """Words that training never had: told by their ends, and by capitals."""
    random = np.random.default_rng(0)

    def word(end: str) -> str:
        return "".join(random.choice([*"abcdefgh"], size=4)) + end

    train, test = (
        [[word("ing"), word("ly"), word("").title(), word("ly")] for _ in range(100)] for _ in range(2)
    )
    for one in (*train, *test):
        random.shuffle(one)

    def tag(word: str) -> str:
        return "B-V" if word.endswith("ing") else "B-N" if word.istitle() else "O"

    truth, true = ([[tag(word) for word in one] for one in part] for part in (train, test))
    found = window_predictions("entities", train, truth, test)
    assert score("entities", true, found, ["N", "V"], "f1") > 0.97


def test_windows_train_on_some_of_many_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draw is the seed's: same predictions with the same one, others with another."""
    monkeypatch.setattr(rivals, "MOST_UNITS", 300)
    train, test = examples([*"ACGT"], 150), examples([*"ACGT"], 5, seed=1)
    truth = [neighbours(one) for one in train]
    found = [
        window_predictions("tags", train, truth, test, names=["n", "y"], seed=seed) for seed in (0, 0, 1)
    ]
    one, same, other = found
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not np.allclose(one[0], other[0])


@pytest.mark.parametrize("task", ["class", "multilabel", "value"])
def test_boosting_learns_columns_of_numbers_texts_and_holes(task: str) -> None:
    random = np.random.default_rng(0)
    kinds, sizes = random.choice([*"abc"], size=600), random.normal(size=600)
    truth = ((kinds == "b") ^ (sizes > 0)).astype(int)
    table: dict[str, list[Any]] = {
        "kind": [None if at % 50 == 0 else one for at, one in enumerate(kinds)],
        "size": [(str(one) if at % 3 else one) if at % 97 else float("nan") for at, one in enumerate(sizes)],
        "hole": [None] * 600,
        "id": [f"id{at}" for at in range(600)],
    }
    parts = [{name: own[a:b] for name, own in table.items()} for a, b in ((0, 400), (400, 600))]
    parts[1]["kind"][1] = "never seen"
    shaped = np.column_stack([truth, 1 - truth]) if task == "multilabel" else truth
    names = ["y"] if task == "value" else ["x", "y"]
    found = boosting_predictions(task, parts[0], shaped[:400], parts[1], names=names)
    metric = "spearman" if task == "value" else "auroc"
    assert score(task, shaped[400:], found, names, metric) > (0.8 if task == "value" else 0.95)
    noise = boosting_predictions(task, parts[0], random.permutation(shaped[:400]), parts[1], names=names)
    assert score(task, shaped[400:], noise, names, metric) < 0.65


@pytest.mark.parametrize(
    ("task", "truth", "n_test", "expected"),
    [
        ("class", [0, 1, 1, 1], 2, [[0.25, 0.75, 0]] * 2),
        ("multilabel", [[0, 1, 0], [1, 1, 0]], 1, [[0.5, 1, 0]]),
        ("value", [1.0, 4.0], 2, [2.5, 2.5]),
        ("entities", [["O", "O", "B-a"]], [2, 1], [["O", "O"], ["O"]]),
    ],
)
def test_the_majority(task: str, truth: Any, n_test: Any, expected: Any) -> None:
    found = majority_predictions(task, truth, n_test, names=[*"xyz"])
    assert found == expected if task == "entities" else found == pytest.approx(np.array(expected))


def test_a_unit_at_its_place_is_learnt_where_lengths_are_equal() -> None:
    rng = np.random.default_rng(0)
    train, test = ([list(one) for one in rng.choice([*"ACGT"], (n, 8))] for n in (300, 100))
    truth, expected = (np.array([one[3] == "G" for one in own]).astype(int) for own in (train, test))
    found = place_predictions("class", train, truth, test, names=["no", "yes"])
    assert ((found[:, 1] > 0.5) == expected).mean() > 0.95
    values = place_predictions("value", train, truth + 0.5, test, names=["y"])
    assert np.corrcoef(np.ravel(values), expected)[0, 1] > 0.95
    with pytest.raises(UnfittedError, match="differ in length"):
        place_predictions("class", [*train, ["A"]], [*truth, 0], test, names=["no", "yes"])
    with pytest.raises(UnfittedError, match="no example has a unit"):
        place_predictions("class", [[], []], [0, 1], [[]], names=["no", "yes"])
