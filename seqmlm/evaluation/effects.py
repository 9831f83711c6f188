"""Agreement of predicted effects of variants with measurements: the figures of ProteinGym, with intervals.

Variants at one position are similarly hard to predict. Therefore whole positions are resampled, the same for
all predictions.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from seqmlm.evaluation.correlations import correlation
from seqmlm.evaluation.intervals import Estimate, bootstrap_intervals

Doubles = NDArray[np.float64]
Bools = NDArray[np.bool_]

METRICS = ("spearman", "ndcg", "auc", "mcc")
TOP = 0.1
DRAWS = 200


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Agreement of predictions with measurements, by metric.

    Args:
        n: number of variants with a measurement and all predictions.
        positive: number of these variants that count as fit.
        metrics: prediction -> metric -> value with its interval.
        gain: Spearman's correlation of the first prediction minus the best correlation of the others, paired;
            None if there is no other prediction.
        rival: name of the best other prediction, or None.
        undefined: metric -> reason why no prediction has it.
    """

    n: int
    positive: int
    metrics: Mapping[str, Mapping[str, Estimate]]
    gain: Estimate | None = None
    rival: str | None = None
    undefined: Mapping[str, str] = field(default_factory=dict)


def undefined_metrics(measured: Doubles, fit: Bools) -> dict[str, str]:
    """The metrics that are undefined for (N,) measurements -> the reason.

    >>> values = np.arange(20.0)
    >>> undefined_metrics(values, values >= 0)
    {'auc': 'all variants count as fit', 'mcc': 'all variants count as fit'}
    """
    reasons = dict[str, str]()
    if not len(measured):
        return dict.fromkeys(METRICS, "no variant has a measurement and every prediction")
    if not np.ptp(measured):
        reasons |= dict.fromkeys(("spearman", "ndcg"), "all measurements are equal")
    elif not int(len(measured) * TOP):
        reasons["ndcg"] = f"there are fewer than {round(1 / TOP)} variants"
    if fit.all() or not fit.any():
        which = "all variants count" if fit.all() else "no variant counts"
        reasons |= dict.fromkeys(("auc", "mcc"), f"{which} as fit")
    return reasons


def ndcg(measured: Doubles, predicted: Doubles) -> float:
    """NDCG of the tenth with the highest predictions, as in ProteinGym.

    Gains are the measurements scaled to [0, 1].
    Variants with equal predictions share the gains of their ranks. NaN if there are fewer than 10
    measurements, or all are equal.
    """
    from sklearn.metrics import ndcg_score

    spread = np.ptp(measured) if len(measured) else 0.0
    top = int(len(measured) * TOP)
    if not top or not spread:
        return float("nan")
    gains = (measured - measured.min()) / spread
    return float(ndcg_score(gains[None], predicted[None], k=top))


def agreement_metrics(measured: Doubles, predicted: Doubles, fit: Bools) -> dict[str, float]:
    """Spearman's correlation (average ranks), NDCG, AUC and MCC; NaN where undefined.

    For MCC, predictions of at least the median count as fit.

    Args:
        measured, predicted: (N,) values; higher is fitter.
        fit: (N,) True for variants that count as fit.
    """
    from scipy.stats import rankdata

    ranks, hits = rankdata(predicted), int(fit.sum())
    auc = mcc = float("nan")
    if 0 < hits < len(fit):
        auc = (ranks[fit].sum() - hits * (hits + 1) / 2) / (hits * (len(fit) - hits))
        called = predicted >= np.median(predicted)
        mcc = 0.0 if called.all() else correlation(called, fit)
    rho = correlation(ranks, rankdata(measured))
    return {"spearman": rho, "ndcg": ndcg(measured, predicted), "auc": float(auc), "mcc": mcc}


def agreement(
    measured: Doubles,
    predictions: Mapping[str, Doubles],
    fit: Bools,
    places: Sequence[Hashable],
    *,
    draws: int = DRAWS,
) -> Agreement:
    """Compare predictions with measurements on the variants that have all of them.

    Args:
        measured: (N,) measurements, higher is fitter; NaN if there is none.
        predictions: name -> (N,) values, higher is fitter, NaN if there is none. The first is compared with
            the others.
        fit: (N,) True for variants that count as fit.
        places: (N,) the position of each variant. The bootstrap draws variants at a position together.
        draws: number of resamples.
    """
    complete: Bools = np.all(np.isfinite([measured, *predictions.values()]), axis=0)
    truth, good = measured[complete], fit[complete]
    chosen = {name: predicted[complete] for name, predicted in predictions.items()}
    numbers: dict[Hashable, int] = {}
    judged = [place for place, keep in zip(places, complete, strict=True) if keep]
    groups = [numbers.setdefault(place, len(numbers)) for place in judged]
    first, *rest_names = chosen

    def measure_resample(weights: Doubles) -> dict[tuple[str, str], float]:
        """Each metric of each prediction, and the gain of the first over each other prediction."""
        rows = np.repeat(np.arange(len(truth)), weights.astype(np.int64))
        figures = dict[tuple[str, str], float]()
        for name, predicted in chosen.items():
            metrics = agreement_metrics(truth[rows], predicted[rows], good[rows])
            figures |= {(name, metric): figure for metric, figure in metrics.items()}
        for name in rest_names:
            figures["gain", name] = figures[first, "spearman"] - figures[name, "spearman"]
        return figures

    intervals = bootstrap_intervals(measure_resample, groups, draws=draws)
    rivals = [name for name in rest_names if np.isfinite(intervals[name, "spearman"].value)]
    best = max(rivals, key=lambda name: intervals[name, "spearman"].value, default=None)
    return Agreement(
        n=len(truth),
        positive=int(good.sum()),
        metrics={name: {metric: intervals[name, metric] for metric in METRICS} for name in chosen},
        gain=None if best is None else intervals["gain", best],
        rival=best,
        undefined=undefined_metrics(truth, good),
    )
