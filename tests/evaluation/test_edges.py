"""Rankings of pairs: means over sequences, against scikit-learn, with intervals that cover."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from seqmlm.evaluation.edges import Rankings


def test_each_sequence_counts_once_whatever_its_length() -> None:
    random = np.random.default_rng(0)
    rankings, found = Rankings(), []
    for size in (10, 40, 900):
        labels = random.random(size) < 0.3
        values, distances = random.normal(size=size) + labels, random.integers(1, 20, size)
        rankings.add(labels, values, distances)
        scores = (values, -distances)
        own = [measure(labels, x) for x in scores for measure in (roc_auc_score, average_precision_score)]
        found.append([*own, labels.mean()])
    told = rankings.ranking()
    means = [told[by][name]["value"] for by in ("model", "distance") for name in ("auroc", "auprc")]
    assert means == pytest.approx(np.mean(found, axis=0)[:4].tolist())
    assert told["prevalence"] == pytest.approx(np.mean(found, axis=0)[4])
    assert told["gain"]["auroc"]["value"] == pytest.approx(means[0] - means[2])
    assert (told["sequences"], told["pairs"]) == (3, 950)


def test_the_gain_is_paired() -> None:
    """Both rank the same sequences: what is hard for one is hard for the other."""
    rankings = Rankings()
    for number in range(20):
        labels = np.arange(10) < 3
        scores = np.where(labels, 1.0, 0.0)
        scores[: number % 3] = -1
        rankings.add(labels, scores, (-2 * scores).astype(np.int64))
    told = rankings.ranking()
    assert told["model"]["auroc"]["high"] - told["model"]["auroc"]["low"] > 0.05
    assert told["gain"]["auroc"] == {"value": 0.0, "low": 0.0, "high": 0.0}


def test_what_has_pairs_of_one_kind_says_nothing_and_one_sequence_has_no_interval() -> None:
    rankings = Rankings()
    rankings.add(np.zeros(3, dtype=np.bool_), np.arange(3.0), np.ones(3, dtype=np.int64))
    rankings.add(np.ones(3, dtype=np.bool_), np.arange(3.0), np.ones(3, dtype=np.int64))
    assert rankings.ranking() == {}
    rankings.add(np.array([True, False]), np.array([2.0, 1.0]), np.array([1, 1]))
    told = rankings.ranking()
    assert told["model"]["auroc"] == {"value": 1.0, "low": None, "high": None}
