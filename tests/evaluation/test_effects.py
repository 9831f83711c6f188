"""Figures of predicted effects: those of scipy, scikit-learn and ProteinGym's own formulas."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import matthews_corrcoef, roc_auc_score

from seqmlm.evaluation.effects import agreement, agreement_metrics, ndcg


def proteingym_ndcg(measured: np.ndarray, predicted: np.ndarray) -> float:
    """NDCG of the best tenth as ProteinGym's `calc_ndcg` has it."""
    k = int(np.floor(len(measured) * 0.1))
    gains = (measured - measured.min()) / (measured.max() - measured.min())

    def gained(values: np.ndarray) -> float:
        ranks = np.argsort(np.argsort(-values)) + 1
        return float(np.sum(gains[ranks <= k] / np.log2(ranks[ranks <= k] + 1)))

    return gained(predicted) / gained(gains)


def drawn(n: int = 137) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    measured = random.normal(size=n)
    return measured, measured + random.normal(size=n)


def test_figures_are_those_of_the_libraries():
    measured, predicted = drawn()
    predicted = np.round(predicted, 1)  # ties have average ranks
    fit = measured >= np.median(measured)
    found = agreement_metrics(measured, predicted, fit)
    assert found["spearman"] == pytest.approx(spearmanr(measured, predicted)[0])
    assert found["auc"] == pytest.approx(roc_auc_score(fit, predicted))
    assert found["mcc"] == pytest.approx(matthews_corrcoef(fit, predicted >= np.median(predicted)))


def test_ndcg_is_that_of_proteingym():
    measured, predicted = drawn()
    assert ndcg(measured, predicted) == pytest.approx(proteingym_ndcg(measured, predicted))
    assert ndcg(measured, measured) == pytest.approx(1)


def test_what_is_predicted_alike_shares_its_gains():
    """The order of a file must not decide: a constant prediction is worth the mean gain of every rank."""
    measured = np.arange(100.0)
    assert ndcg(measured, np.zeros(100)) == pytest.approx(ndcg(measured[::-1].copy(), np.zeros(100)))
    assert ndcg(measured, np.zeros(100)) < 0.6


@pytest.mark.parametrize("measured", [np.ones(50), np.arange(5.0), np.zeros(0)])
def test_undefined_figures_are_nan(measured: np.ndarray):
    assert np.isnan(ndcg(measured, np.arange(len(measured)) * 1.0))
    found = agreement_metrics(measured, np.ones(len(measured)), np.ones(len(measured), dtype=bool))
    assert np.isnan(found["auc"])
    assert np.isnan(found["spearman"])


def test_only_variants_with_all_predictions_count():
    measured, predicted = drawn()
    other = -predicted
    other[:20], measured[20:30] = np.nan, np.nan
    found = agreement(measured, {"model": predicted, "other": other}, measured > 0, range(137), draws=20)
    assert found.n == 107
    assert found.positive == int((measured[30:] > 0).sum())
    assert found.metrics["model"]["spearman"].value == pytest.approx(
        spearmanr(measured[30:], predicted[30:])[0]
    )
    assert found.rival == "other"
    assert found.gain.low > 0


def test_intervals_resample_whole_places():
    """Copies of one place add no evidence: twenty of each give the interval of the places themselves."""
    measured, predicted = drawn(60)
    places = np.arange(60)
    once = agreement(measured, {"model": predicted}, measured > 0, places.tolist())
    often = agreement(
        np.repeat(measured, 20), {"model": np.repeat(predicted, 20)}, np.repeat(measured > 0, 20),
        np.repeat(places, 20).tolist(),
    )  # fmt: skip
    one, many = once.metrics["model"]["spearman"], often.metrics["model"]["spearman"]
    assert many.high - many.low == pytest.approx(one.high - one.low, rel=0.2)
    assert one.low < one.value < one.high


def test_intervals_are_as_wide_as_the_correlation_varies():
    """Of 400 places: 2 * 1.96 standard errors of a correlation, (1 - rho^2) / sqrt(n), by and large."""
    measured, predicted = drawn(400)
    found = agreement(measured, {"model": predicted}, measured > 0, range(400)).metrics["model"]["spearman"]
    width = 2 * 1.96 * (1 - found.value**2) / np.sqrt(400)
    assert found.high - found.low == pytest.approx(width, rel=0.25)
