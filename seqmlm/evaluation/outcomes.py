"""Predicted risks against what came true: ranking, calibration and groups, beside what needs no model.

Classes of fewer than 11 have no figures (`seqmlm.data.counts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from seqmlm.data.counts import SMALLEST
from seqmlm.evaluation.detection import Detection

BINS = 10
"""Number of parts of the calibration curve, with equally many predictions each."""


class Outcome(NamedTuple):
    """A prediction whose truth is known.

    subject: whose risk it is. label: whether it came true. risk: predicted, 0 to 1. ratio: log-ratio to a
    prior. floors: scores that need no model, by name; the same names in all.
    groups: of the subject, as "sex" to "F".
    """

    subject: str
    label: bool
    risk: float
    ratio: float
    floors: Mapping[str, float]
    groups: Mapping[str, str]


def risk_quality(outcomes: Sequence[Outcome], seed: int) -> dict[str, Any] | None:
    """Figures of how good predicted risks are; None where there are fewer than 11 of a class.

    `n` and `positives`; `auroc` with its bounds `auroc_low` and `auroc_high`, of a bootstrap over subjects,
    and `auprc`, of the risk; `ratio_auroc`; `floors`, AUROC of each; `brier`, and `brier_constant` of always
    predicting the prevalence.
    """
    labels = np.array([outcome.label for outcome in outcomes], dtype=np.bool_)
    if min(labels.sum(), (~labels).sum()) < SMALLEST:
        return None
    risk = np.array([outcome.risk for outcome in outcomes])
    measures = {"auroc": lambda curve: curve.auroc, "auprc": lambda curve: curve.average_precision}
    intervals = Detection(labels, risk).bootstrap(
        measures, [outcome.subject for outcome in outcomes], seed=seed
    )
    floors = {name: [outcome.floors[name] for outcome in outcomes] for name in outcomes[0].floors}
    return {
        "n": len(labels),
        "positives": int(labels.sum()),
        "auroc": intervals["auroc"].value,
        "auroc_low": intervals["auroc"].low,
        "auroc_high": intervals["auroc"].high,
        "auprc": intervals["auprc"].value,
        "ratio_auroc": Detection(labels, [outcome.ratio for outcome in outcomes]).curve().auroc,
        "floors": {name: Detection(labels, values).curve().auroc for name, values in floors.items()},
        "brier": float(np.mean((risk - labels) ** 2)),
        "brier_constant": float(labels.mean() * (1 - labels.mean())),
    }


def group_qualities(outcomes: Sequence[Outcome], seed: int) -> dict[str, dict[str, Any]]:
    """The `risk_quality` in each group ("sex=F") that has 11 of either class."""
    names = sorted({item for outcome in outcomes for item in outcome.groups.items()})
    members = {
        name: [outcome for outcome in outcomes if outcome.groups.get(name[0]) == name[1]] for name in names
    }
    qualities = {"=".join(name): risk_quality(group, seed) for name, group in members.items()}
    return {name: figures for name, figures in qualities.items() if figures is not None}


def calibration_curve(outcomes: Sequence[Outcome]) -> list[tuple[float, float]]:
    """Mean risk and share that came true, of equally large parts of 11 or more, from the lowest risk up."""
    ascending = sorted(outcomes, key=lambda outcome: outcome.risk)
    order = np.array([(outcome.risk, outcome.label) for outcome in ascending])
    parts = [part for part in np.array_split(order, BINS) if len(part) >= SMALLEST]
    return [(float(part[:, 0].mean()), float(part[:, 1].mean())) for part in parts]
