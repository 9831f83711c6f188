"""What predictions are worth: scikit-learn's, scipy's and seqeval's figures, and a naive resampling loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from scipy.stats import pearsonr, spearmanr
from seqeval import metrics as seqeval
from seqeval.scheme import IOB2
from sklearn import metrics as sklearn

from seqmlm.errors import UsageError
from seqmlm.evaluation.predictions import PRIMARY, difference, measures, temperature

N = 240
RANDOM = np.random.default_rng(3)
GROUPS = RANDOM.integers(40, size=N)
KINDS = ["person", "place"]


def classes(k: int, noise: float = 1.0, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(k)
    truth = random.integers(k, size=n)
    logits = 1.5 * np.eye(k)[truth] + noise * random.normal(size=(n, k))
    return truth, softmax(np.round(logits, 1), axis=1)  # some are tied


def labels() -> tuple[np.ndarray, np.ndarray]:
    truth = (RANDOM.random((N, 4)) < 0.3).astype(int)
    return truth, np.clip(0.35 * truth + RANDOM.random((N, 4)) * 0.6, 0, 1)


def values(width: int = 1) -> tuple[np.ndarray, np.ndarray]:
    truth = RANDOM.normal(3, 2, (N, width))
    return truth.squeeze(), np.round(truth + RANDOM.normal(size=(N, width)), 1).squeeze()


def sentences() -> tuple[list[list[str]], list[list[str]]]:
    tags = ["O", "O", "O", *(f"{part}-{kind}" for part in "BI" for kind in KINDS)]
    truth = [RANDOM.choice(tags, size=RANDOM.integers(1, 9)).tolist() for _ in range(N)]
    return truth, [[RANDOM.choice(tags) if RANDOM.random() < 0.15 else tag for tag in one] for one in truth]


def f1(truth: Any, said: Any, average: str) -> float:
    return float(sklearn.f1_score(truth, said, average=average, zero_division=np.nan))


def ece(truth: np.ndarray, p: np.ndarray) -> float:
    top, found = p.max(axis=1), 0.0
    for low in np.arange(15) / 15:
        own = (top >= low) & ((top < low + 1 / 15) | (low > 0.9))
        if own.any():
            found += own.mean() * abs(top[own].mean() - np.mean(p[own].argmax(axis=1) == truth[own]))
    return float(found)


def of_class(truth: np.ndarray, p: np.ndarray) -> dict[str, float]:
    said, k = p.argmax(axis=1), p.shape[1]
    found = {
        "accuracy": sklearn.accuracy_score(truth, said),
        "macro_f1": f1(truth, said, "macro"),
        "mcc": sklearn.matthews_corrcoef(truth, said),
        "brier": np.mean(np.sum((p - np.eye(k)[truth]) ** 2, axis=1)),
        "ece": ece(truth, p),
    }
    if k == 2:
        return {
            **found,
            "auroc": sklearn.roc_auc_score(truth, p[:, 1]),
            "auprc": sklearn.average_precision_score(truth, p[:, 1]),
        }
    return {**found, "auroc": sklearn.roc_auc_score(truth, p, multi_class="ovr")}


def of_labels(truth: np.ndarray, p: np.ndarray) -> dict[str, float]:
    return {
        "micro_f1": f1(truth, p >= 0.5, "micro"),
        "macro_f1": f1(truth, p >= 0.5, "macro"),
        "auroc": sklearn.roc_auc_score(truth, p),
        "auprc": sklearn.average_precision_score(truth, p),
    }


def of_values(truth: np.ndarray, said: np.ndarray) -> dict[str, float]:
    columns = [*zip(truth.reshape(len(truth), -1).T, said.reshape(len(said), -1).T, strict=True)]
    each: dict[str, Callable[[Any, Any], float]] = {
        "spearman": lambda x, y: spearmanr(x, y)[0],
        "pearson": lambda x, y: pearsonr(x, y)[0],
        "rmse": sklearn.root_mean_squared_error,
        "r2": sklearn.r2_score,
    }
    return {name: float(np.mean([one(x, y) for x, y in columns])) for name, one in each.items()}


def of_entities(truth: list[list[str]], said: list[list[str]]) -> dict[str, float]:
    how: dict[str, Any] = {"mode": "strict", "scheme": IOB2}
    kinds = seqeval.f1_score(truth, said, average=None, **how)
    return {
        "f1": seqeval.f1_score(truth, said, **how),
        "precision": seqeval.precision_score(truth, said, **how),
        "recall": seqeval.recall_score(truth, said, **how),
        **{f"f1_{kind}": value for kind, value in zip(KINDS, kinds, strict=True)},
    }


CASES = {
    "two classes": ("class", *classes(2), ["no", "yes"], of_class),
    "classes": ("class", *classes(4), [*"abcd"], of_class),
    "tags": ("tags", *classes(3), [*"HEC"], of_class),
    "labels": ("multilabel", *labels(), [*"abcd"], of_labels),
    "value": ("value", *values(), ["y"], of_values),
    "values": ("value", *values(3), [*"xyz"], of_values),
    "entities": ("entities", *sentences(), KINDS, of_entities),
}


def taken(data: Any, rows: np.ndarray) -> Any:
    return [data[row] for row in rows] if isinstance(data, list) else data[rows]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Any:
    return CASES[request.param]


def test_measures_are_those_of_the_libraries(case: Any) -> None:
    task, truth, predicted, names, naive = case
    found = measures(task, truth, predicted, groups=np.arange(N), names=names, draws=5)
    assert {name: one.value for name, one in found.items()} == pytest.approx(naive(truth, predicted))
    assert PRIMARY[task] in found


def test_intervals_are_those_of_a_naive_resampling_of_groups(case: Any) -> None:
    """Same groups drawn, their items copied, the libraries called on the copies."""
    task, truth, predicted, names, naive = case
    draws, seed = 15, 7
    found = measures(task, truth, predicted, groups=GROUPS, names=names, seed=seed, draws=draws)
    units = np.unique(GROUPS)
    seeds = np.random.default_rng(seed).integers(2**63, size=draws)
    drawn = []
    for one in seeds:
        chosen = units[np.random.default_rng(one).integers(len(units), size=len(units))]
        rows = np.concatenate([np.flatnonzero(group == GROUPS) for group in chosen])
        drawn.append(naive(taken(truth, rows), taken(predicted, rows)))
    for name, own in found.items():
        expected = np.quantile([one[name] for one in drawn], [0.025, 0.975])
        assert (own.low, own.high) == pytest.approx(tuple(expected)), name


def test_a_difference_is_that_of_naive_draws_and_swaps() -> None:
    """Half of the groups are better predicted by the first: bootstrap and swaps written out."""
    truth, first = classes(3)
    second = classes(3, noise=1.6)[1]
    found = difference("class", "mcc", truth, first, second, groups=GROUPS, names=[*"abc"], draws=60)
    own, random = np.unique(GROUPS), np.random.default_rng(0)

    def between(one: np.ndarray, other: np.ndarray, rows: np.ndarray) -> float:
        mcc = (sklearn.matthews_corrcoef(truth[rows], p[rows].argmax(axis=1)) for p in (one, other))
        return float(next(mcc) - next(mcc))

    everything = np.arange(N)
    assert found.difference == pytest.approx(between(first, second, everything))
    seeds = np.random.default_rng(0).integers(2**63, size=60)
    drawn = []
    for one in seeds:
        chosen = own[np.random.default_rng(one).integers(len(own), size=len(own))]
        rows = np.concatenate([np.flatnonzero(group == GROUPS) for group in chosen])
        drawn.append(between(first, second, rows))
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))
    swaps = []
    for _ in range(60):
        kept = random.integers(2, size=len(own)).astype(bool)[np.searchsorted(own, GROUPS)][:, None]
        swaps.append(between(np.where(kept, first, second), np.where(kept, second, first), everything))
    extreme = np.sum(np.abs(swaps) >= found.difference)
    assert found.p_randomization == pytest.approx((1 + extreme) / 61)
    assert found.p_bootstrap == pytest.approx(2 * (1 + np.sum(np.array(drawn) <= 0)) / 61)


def test_predictions_do_not_differ_from_themselves(case: Any) -> None:
    task, truth, predicted, names, _ = case
    found = difference(task, PRIMARY[task], truth, predicted, predicted, groups=GROUPS, names=names, draws=50)
    assert found == pytest.approx((0, 0, 0, 1, 1))


def test_p_values_of_equal_methods_are_uniform() -> None:
    """Two predictions of equal noise: p below .2 about every fifth time, by both counts."""
    found = []
    for seed in range(100):
        random = np.random.default_rng(seed)
        truth = random.normal(size=60)
        pair = (truth + random.normal(size=60) for _ in range(2))
        found.append(
            difference("value", "pearson", truth, *pair, groups=np.arange(60), names=["y"], draws=100)
        )
    assert 9 <= sum(one.p_randomization < 0.2 for one in found) <= 32
    assert 9 <= sum(one.p_bootstrap < 0.2 for one in found) <= 36


@pytest.mark.parametrize(
    ("task", "truth", "predicted", "names", "absent"),
    [
        ("class", np.zeros(6, int), classes(2, n=6)[1], ["a", "b"], {"auroc", "auprc", "mcc"}),
        ("value", np.ones(6), np.arange(6.0), ["y"], {"spearman", "pearson", "r2"}),
        ("value", np.arange(6.0), np.full(6, 0.1), ["y"], {"spearman", "pearson"}),
        ("entities", [["O"]] * 6, [["B-a"]] * 6, ["a"], {"recall"}),
        ("entities", [["O"]] * 6, [["O"]] * 6, ["a"], {"f1", "recall", "precision"}),
    ],
)
def test_what_cannot_be_had_is_absent(task: str, truth: Any, predicted: Any, names: Any, absent: Any) -> None:
    found = measures(task, truth, predicted, groups=[*"aabbcc"], names=names, draws=20)
    assert not absent & set(found)
    assert not any(np.isnan(one.value) for one in found.values()) if found else task == "entities"


def test_classes_that_never_occur_do_not_count() -> None:
    truth, p = classes(2)
    p = np.round(p, 6)  # equal however they are computed
    wide = np.hstack([p, np.zeros((N, 1))])
    found = measures("class", truth, wide, groups=GROUPS, names=[*"abc"], draws=5)
    assert found["macro_f1"].value == pytest.approx(of_class(truth, p)["macro_f1"])
    assert found["auroc"].value == pytest.approx(of_class(truth, p)["auroc"])


def test_one_group_has_no_interval() -> None:
    truth, p = classes(2)
    found = measures("class", truth, p, groups=np.zeros(N), names=["a", "b"])["accuracy"]
    assert found.value == of_class(truth, p)["accuracy"]
    assert np.isnan([found.low, found.high]).all()


@pytest.mark.parametrize(
    ("task", "groups", "names", "said"),
    [
        ("classes", GROUPS, ["a", "b"], "one of class"),
        ("class", GROUPS, ["a"], "2 columns of predictions for 1 names"),
        ("class", GROUPS[:-1], ["a", "b"], "239 groups for 240 items"),
    ],
)
def test_what_does_not_fit_is_refused(task: str, groups: Any, names: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        measures(task, *classes(2), groups=groups, names=names)


def test_a_prediction_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(UsageError, match="finite"):
        measures("value", [1.0, 2.0], [1.0, np.nan], groups=[0, 1], names=["y"])


def test_an_unknown_measure_is_refused() -> None:
    truth, p = classes(2)
    with pytest.raises(UsageError, match="one of accuracy"):
        difference("class", "f2", truth, p, p, groups=GROUPS, names=["a", "b"])


@pytest.mark.parametrize("true", [0.3, 1.0, 4.0])
def test_the_temperature_of_drawn_classes_is_found(true: float) -> None:
    random = np.random.default_rng(1)
    logits = 3 * random.normal(size=(20_000, 5)) * max(true, 1)
    p = softmax(logits / true, axis=1)
    truth = (p.cumsum(axis=1) < random.random((len(p), 1))).sum(axis=1).clip(0, 4)
    found = temperature(logits, truth)
    assert found == pytest.approx(true, rel=0.05)
    loss = [
        -log_softmax(logits / one, axis=1)[np.arange(len(p)), truth].mean() for one in (found, found * 1.05)
    ]
    assert loss[0] < loss[1]


def test_a_hundred_thousand_units_take_seconds() -> None:
    truth, p = classes(3, n=100_000)
    start = time.process_time()
    measures("class", truth, p, groups=np.arange(100_000) // 20, names=[*"abc"])
    assert time.process_time() - start < 20
