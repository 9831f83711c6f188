"""The curves of the report pass through the operating points they are drawn from."""

from __future__ import annotations

import numpy as np
import pytest

from seqmlm.evaluation.detection import Detection
from seqmlm.evaluation.intervals import Rate
from seqmlm.scoring.evaluate import _precision_recall, _rate_text, _roc


def test_curves_are_those_of_the_points() -> None:
    random = np.random.default_rng(0)
    labels = random.random(3000) < 0.3
    scores = np.round(random.normal(labels * 1.0), 1)
    curve = Detection(labels, scores).curve()
    rates, recalls = _roc(curve)
    assert (rates[0], recalls[0], recalls[-1]) == (0, curve.recall_at(0), 1)
    assert np.trapezoid(recalls, rates) == pytest.approx(curve.auroc, abs=1e-3)
    recall, precision = _precision_recall(curve)
    assert recall[-1] == 1
    assert precision[-1] == pytest.approx(labels.sum() / (scores >= scores[labels].min()).sum())
    assert np.diff(recall) @ precision[1:] == pytest.approx(curve.average_precision, abs=5e-3)


def test_one_threshold_is_a_diagonal() -> None:
    curve = Detection([True, False, False, False], np.zeros(4)).curve()
    rates, recalls = _roc(curve)
    assert recalls == pytest.approx(rates)
    recall, precision = _precision_recall(curve)
    assert (recall.tolist(), precision.tolist()) == ([0.0, 1.0], [0.25, 0.25])


def test_a_rate_of_nothing_is_no_number() -> None:
    assert _rate_text(Rate(hits=0, trials=0, value=float("nan"), low=0.0, high=1.0)) == "-"
    assert _rate_text(Rate(hits=1, trials=2, value=0.5, low=0.1, high=0.9)) == "0.5000 (0.1000 to 0.9000)"
    assert _rate_text(None) == "withheld"
