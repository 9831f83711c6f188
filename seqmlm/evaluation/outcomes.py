"""Predicted risks against what came true: ranking, calibration and groups, beside what needs no model.

Of fewer than 11 of a class nothing is said (`seqmlm.data.counts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from seqmlm.data.counts import SMALLEST
from seqmlm.evaluation.detection import Detection

BINS = 10
"""Of the calibration curve, with equally many predictions each."""


class Outcome(NamedTuple):
    """A prediction whose truth is known.

    subject: of whom. label: whether it came true. risk: predicted, 0 to 1. ratio: log-ratio to a prior.
    floors: what needs no model, by name; the same names in all.
    groups: that the subject is in, as "sex" to "F".
    """

    subject: str
    label: bool
    risk: float
    ratio: float
    floors: Mapping[str, float]
    groups: Mapping[str, str]


def quality(told: Sequence[Outcome], seed: int) -> dict[str, Any] | None:
    """How good some predictions are; None where there are fewer than 11 of a class.

    `n` and `positives`; `auroc` with its bounds `auroc_low` and `auroc_high`, of a bootstrap over subjects,
    and `auprc`, of the risk; `ratio_auroc`; `floors`, AUROC of each; `brier`, and `brier_constant` of always
    predicting the prevalence.
    """
    labels = np.array([one.label for one in told], dtype=np.bool_)
    if min(labels.sum(), (~labels).sum()) < SMALLEST:
        return None
    risk = np.array([one.risk for one in told])
    measures = {"auroc": lambda curve: curve.auroc, "auprc": lambda curve: curve.average_precision}
    found = Detection(labels, risk).bootstrap(measures, [one.subject for one in told], seed=seed)
    floors = {name: [one.floors[name] for one in told] for name in told[0].floors}
    return {
        "n": len(labels),
        "positives": int(labels.sum()),
        "auroc": found["auroc"].value,
        "auroc_low": found["auroc"].low,
        "auroc_high": found["auroc"].high,
        "auprc": found["auprc"].value,
        "ratio_auroc": Detection(labels, [one.ratio for one in told]).curve().auroc,
        "floors": {name: Detection(labels, values).curve().auroc for name, values in floors.items()},
        "brier": float(np.mean((risk - labels) ** 2)),
        "brier_constant": float(labels.mean() * (1 - labels.mean())),
    }


def quality_of_groups(told: Sequence[Outcome], seed: int) -> dict[str, dict[str, Any]]:
    """The quality in each group ("sex=F") of which something can be said."""
    names = sorted({item for one in told for item in one.groups.items()})
    own = {name: [one for one in told if one.groups.get(name[0]) == name[1]] for name in names}
    found = {"=".join(name): quality(some, seed) for name, some in own.items()}
    return {name: one for name, one in found.items() if one is not None}


def calibration_curve(told: Sequence[Outcome]) -> list[tuple[float, float]]:
    """Mean risk and share that came true, of equally large parts of 11 or more, from the lowest risk up."""
    order = np.array([(one.risk, one.label) for one in sorted(told, key=lambda one: one.risk)])
    parts = [part for part in np.array_split(order, BINS) if len(part) >= SMALLEST]
    return [(float(part[:, 0].mean()), float(part[:, 1].mean())) for part in parts]
