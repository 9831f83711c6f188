"""Detection measures against loops over items, against scikit-learn, and on small cases counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from blimp import mean_difference
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from seqmlm.errors import DataError, UsageError
from seqmlm.evaluation.detection import Curve, Detection, compare, confusion, f1_of_alarms
from seqmlm.evaluation.intervals import exact_rate

ITEMS = st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=40).filter(
    lambda items: 0 < sum(label for label, _ in items) < len(items)
)


def _split(items: list[tuple[bool, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([label for label, _ in items]), np.array([float(score) for _, score in items])


@given(ITEMS)
def test_ranking_measures_are_those_of_a_loop(items: list[tuple[bool, int]]) -> None:
    labels, scores = _split(items)
    curve = Detection(labels, scores).curve()
    pairs = [(p, n) for p in scores[labels] for n in scores[~labels]]
    assert curve.auroc == pytest.approx(np.mean([1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs]))
    assert curve.auroc == pytest.approx(roc_auc_score(labels, scores))
    assert curve.average_precision == pytest.approx(average_precision_score(labels, scores))
    best = max(f1_score(labels, scores >= threshold) for threshold in set(scores))
    assert curve.oracle_f1 == pytest.approx(best)


@given(ITEMS, st.sampled_from([0.0, 0.01, 0.1, 0.25, 0.5, 1.0]))
def test_recall_at_a_rate_is_the_best_allowed_threshold(items: list[tuple[bool, int]], rate: float) -> None:
    labels, scores = _split(items)
    curve = Detection(labels, scores).curve()
    allowed = [t for t in [*scores, np.inf] if (scores[~labels] >= t).mean() <= rate]
    assert curve.hits_at(rate) == max((scores[labels] >= t).sum() for t in allowed)
    assert curve.recall_at(rate) == pytest.approx(curve.hits_at(rate) / labels.sum())


@given(ITEMS)
def test_weights_count_items_so_often(items: list[tuple[bool, int]]) -> None:
    labels, scores = _split(items)
    times = np.arange(len(labels)) % 3
    weighted = Detection(labels, scores).curve(times.astype(float))
    repeated_labels, repeated = np.repeat(labels, times), np.repeat(scores, times)
    if repeated_labels.all() or not repeated_labels.any():
        return
    plain = Detection(repeated_labels, repeated).curve()
    assert weighted.auroc == pytest.approx(plain.auroc)
    assert weighted.average_precision == pytest.approx(plain.average_precision)
    assert weighted.recall_at(0.1) == pytest.approx(plain.recall_at(0.1))


def test_scores_of_minus_infinity_are_the_least_unusual() -> None:
    curve = Detection([True, False, False], [1.0, -np.inf, 0.0]).curve()
    assert curve.auroc == 1.0


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [
        ([True, True], [0.0, 1.0], "all items are positive"),
        ([False], [0.0], "all items are negative"),
        ([True, False], [0.0, np.nan], "not a number"),
        ([True, False], [0.0], "1 scores for 2 labels"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(labels: list[bool], scores: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Detection(labels, scores)


def test_confusion_and_reweighting_by_hand() -> None:
    found = confusion([1, 1, 1, 1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 0, 1, 0, 0, 0, 0, 0])
    assert (found.precision.value, found.recall.value) == (0.75, 0.75)
    assert found.f1 == pytest.approx(0.75)
    # Of 1000 items 100 positive: 75 found, 900/6 = 150 wrong alarms.
    precision, f1 = found.precision_and_f1_at(0.1)
    assert precision == pytest.approx(75 / 225)
    assert f1 == pytest.approx(2 * 75 / (2 * 75 + 150 + 25))
    same = found.precision_and_f1_at(0.4)
    assert same == pytest.approx((0.75, 0.75))
    silent = confusion([True, False], [False, False])
    assert silent.f1 == 0.0
    assert np.isnan(silent.precision_and_f1_at(0.5)[0])


@pytest.mark.parametrize(("hits", "trials"), [(0, 7), (3, 10), (10, 10), (1, 500)])
def test_exact_intervals_are_where_the_tails_reach_a_fortieth(hits: int, trials: int) -> None:
    rate = exact_rate(hits, trials)
    if hits:
        assert binom.sf(hits - 1, trials, rate.low) == pytest.approx(0.025)
    else:
        assert rate.low == 0
    if hits < trials:
        assert binom.cdf(hits, trials, rate.high) == pytest.approx(0.025)
    else:
        assert rate.high == 1
    with pytest.raises(UsageError, match="not a rate"):
        exact_rate(trials + 1, trials)


def test_delong_is_the_variance_over_repeated_samples() -> None:
    random = np.random.default_rng(0)
    labels = np.arange(300) < 100
    areas, covered = [], 0
    for _ in range(400):
        scores = np.round(random.normal(labels * 1.0), 1)  # with ties
        found = Detection(labels, scores)
        low, high = found.auroc_interval()
        areas.append(found.curve().auroc)
        covered += low <= 0.7602 <= high  # P(N(1, 1) > N(0, 1))
    assert np.ptp(found.auroc_interval()) / 3.92 == pytest.approx(np.std(areas), rel=0.2)
    assert 0.91 < covered / 400 < 0.99
    assert np.isnan(Detection([True, True, False, False], [3, 2, 1, 0]).auroc_interval()).all()


def test_a_paired_bootstrap_sees_what_is_paired() -> None:
    random = np.random.default_rng(1)
    labels = random.random(400) < 0.3
    scores = random.normal(labels * 1.0)
    worse = scores + random.normal(size=400)
    groups = np.arange(400)
    measures = {"auroc": lambda curve: curve.auroc, "recall": lambda curve: curve.recall_at(0.1)}
    found = compare(Detection(labels, scores), Detection(labels, worse), measures, groups, draws=200)
    assert found["auroc"].value == pytest.approx(roc_auc_score(labels, scores) - roc_auc_score(labels, worse))
    assert 0 < found["auroc"].low < found["auroc"].value < found["auroc"].high
    same = compare(Detection(labels, scores), Detection(labels, scores * 2), measures, groups, draws=50)
    assert same["auroc"] == same["recall"]
    assert (same["auroc"].low, same["auroc"].high) == (0, 0)
    with pytest.raises(DataError, match="same items"):
        compare(Detection(labels, scores), Detection(~labels, scores), measures, groups)


def test_groups_are_resampled_whole() -> None:
    """Twenty copies of every item are no more evidence than one."""
    random = np.random.default_rng(2)
    labels = np.repeat(random.random(50) < 0.4, 20)
    scores = np.repeat(random.normal(size=50), 20) + labels
    measures = {"auroc": lambda curve: curve.auroc}
    found = Detection(labels, scores)
    wide = found.bootstrap(measures, np.repeat(np.arange(50), 20), draws=200)["auroc"]
    narrow = found.bootstrap(measures, np.arange(1000), draws=200)["auroc"]
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)
    assert wide.value == narrow.value == found.curve().auroc
    lone = mean_difference(np.repeat([1.0, 0.0], 50), np.repeat([0, 1], 50), draws=200)
    assert (lone.value, lone.low, lone.high) == (0.5, 0.0, 1.0)
    with pytest.raises(UsageError, match="nothing to compare"):
        mean_difference([], [])


def test_draws_without_positives_are_left_out() -> None:
    found = Detection([True, False, False], [1.0, 0.0, 0.5])
    drawn = found.bootstrap({"auroc": lambda curve: curve.auroc}, [0, 1, 2], draws=100)["auroc"]
    assert 0 < drawn.draws < 100
    assert drawn.low == drawn.high == 1.0


def test_f1_of_alarms_is_f1() -> None:
    labels, alarms = np.array([1, 1, 0, 0, 1]) > 0, np.array([1, 0, 1, 0, 1.0])
    curve = Detection(labels, alarms).curve()
    assert f1_of_alarms(curve) == pytest.approx(f1_score(labels, alarms))
    none = Curve(np.array([0.0]), np.array([3.0]), np.array([2.0]))
    assert f1_of_alarms(none) == 0.0
