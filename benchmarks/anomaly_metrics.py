"""Metrics of `alarms.py` for a detector: ranking, alarms at thresholds without labels, and intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqmlm.evaluation.detection import Detection, compare, confusion

Doubles = NDArray[np.float64]
Bools = NDArray[np.bool_]


def ranking(labels: Bools, scores: Doubles) -> dict[str, float]:
    """AUROC, average precision, and recall if at most 1 % and .1 % of the normal rows are alarms."""
    curve = Detection(labels, scores).curve()
    return {
        "auroc": curve.auroc,
        "auprc": curve.average_precision,
        "oracle_f1": curve.oracle_f1,
        "recall_at_1%": curve.recall_at(0.01),
        "recall_at_.1%": curve.recall_at(0.001),
    }


def alarmed(labels: Bools, alarms: Bools, prevalence: float | None = None) -> dict[str, float]:
    """Precision, recall, F1 and false positive rate; F1 also at another share of abnormal rows."""
    found = confusion(labels, alarms)
    numbers = {
        "precision": found.precision.value,
        "recall": found.recall.value,
        "f1": found.f1,
        "fpr": found.false_positive_rate.value,
    }
    if prevalence is not None:
        numbers["f1_natural"] = found.precision_and_f1_at(prevalence)[1]
    return numbers


def threshold_on(calibration: Doubles, rate: float) -> float:
    """The score that at most a share `rate` of calibration rows exceed.

    Ties do not exceed it. Labels are not used.
    With n rows and rate < 1 / (n + 1) it is the largest score.
    """
    values = np.sort(calibration)[::-1]
    return float(values[min(len(values) - 1, int(rate * (len(values) + 1)))])


def gain(
    labels: Bools, first: Doubles, second: Doubles, groups: ArrayLike, draws: int = 1000
) -> dict[str, Any]:
    """The difference in AUROC of two scores, with a paired bootstrap over whole groups."""
    measures = {"auroc": lambda curve: curve.auroc}
    found = compare(Detection(labels, first), Detection(labels, second), measures, groups, draws=draws)[
        "auroc"
    ]
    return {"gain": found.value, "low": found.low, "high": found.high}
