"""Compare predicted risks with outcomes: ranking, calibration and groups, next to baselines without a model.

If a class has fewer than 11 members, there are no figures (`seqmlm.data.counts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from seqmlm.data.counts import SMALLEST
from seqmlm.evaluation.detection import Detection

BINS = 10
"""Number of points of the calibration curve. Each uses equally many predictions."""


class Outcome(NamedTuple):
    """A prediction with a known outcome.

    Attributes:
        subject: the subject of the prediction.
        label: whether the event happened.
        risk: the predicted risk, 0 to 1.
        ratio: log-ratio of the risk to a prior.
        floors: name -> score of a baseline without a model. All outcomes have the same names.
        groups: the groups of the subject, such as "sex" -> "F".
    """

    subject: str
    label: bool
    risk: float
    ratio: float
    floors: Mapping[str, float]
    groups: Mapping[str, str]


def risk_quality(outcomes: Sequence[Outcome], seed: int) -> dict[str, Any] | None:
    """The figures of predicted risks; None if a class has fewer than 11 members.

    Returns:
        `n` and `positives` are counts. `auroc` and `auprc` are for the risk; `auroc_low` and `auroc_high` are
        bounds from a bootstrap over subjects. `ratio_auroc` is for the log-ratio. `floors` has the AUROC of
        each baseline. `brier` is for the risk, and `brier_constant` for always predicting the prevalence.
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
    """Group, such as "sex=F" -> its `risk_quality`, for groups with 11 members or more in both classes."""
    names = sorted({item for outcome in outcomes for item in outcome.groups.items()})
    members = {
        name: [outcome for outcome in outcomes if outcome.groups.get(name[0]) == name[1]] for name in names
    }
    qualities = {"=".join(name): risk_quality(group, seed) for name, group in members.items()}
    return {name: figures for name, figures in qualities.items() if figures is not None}


def calibration_curve(outcomes: Sequence[Outcome]) -> list[tuple[float, float]]:
    """Mean risk and fraction of events, for equally large parts of at least 11, by ascending risk."""
    ascending = sorted(outcomes, key=lambda outcome: outcome.risk)
    order = np.array([(outcome.risk, outcome.label) for outcome in ascending])
    parts = [part for part in np.array_split(order, BINS) if len(part) >= SMALLEST]
    return [(float(part[:, 0].mean()), float(part[:, 1].mean())) for part in parts]
