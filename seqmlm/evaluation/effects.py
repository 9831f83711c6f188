"""How well predictions of variants' effects agree with measurements: ProteinGym's figures, with intervals.

Positions are the natural unit: variants of one place share what is hard about it, so whole places are
resampled, the same ones for all predictions.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqmlm.evaluation.intervals import Difference, resampled

Doubles = NDArray[np.float64]
Bools = NDArray[np.bool_]

METRICS = ("spearman", "ndcg", "auc", "mcc")
TOP = 0.1
DRAWS = 200


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How predictions agree with measurements.

    Args:
        n: variants with a measurement and every prediction.
        positive: of them, those that count as fit.
        metrics: prediction -> metric -> value with its interval.
        gain: Spearman of the first prediction minus that of the best other one, paired; None for one alone.
        against: the name of that one.
        undefined: metric -> why no prediction has it.
    """

    n: int
    positive: int
    metrics: Mapping[str, Mapping[str, Difference]]
    gain: Difference | None = None
    against: str | None = None
    undefined: Mapping[str, str] = field(default_factory=dict)


def undefined_metrics(measured: Doubles, fit: Bools) -> dict[str, str]:
    """The metrics that no prediction of (N,) measurements can have, and why.

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
    """NDCG of the tenth that is predicted best, gains the measured values scaled to [0, 1] (as ProteinGym).

    What is predicted alike shares the gains of its ranks. NaN for fewer than 10 values or one value alone.
    """
    from sklearn.metrics import ndcg_score

    spread = np.ptp(measured) if len(measured) else 0.0
    top = int(len(measured) * TOP)
    if not top or not spread:
        return float("nan")
    gains = (measured - measured.min()) / spread
    return float(ndcg_score(gains[None], predicted[None], k=top))


def agreement_of(measured: Doubles, predicted: Doubles, fit: Bools) -> dict[str, float]:
    """Spearman (average ranks), NDCG, AUC and MCC (predicted fit: at least the median) of (N,) values, higher
    = fitter, and (N,) True for variants that count as fit; NaN where undefined."""
    from scipy.stats import rankdata

    ranks, hits = rankdata(predicted), int(fit.sum())
    auc = mcc = float("nan")
    if 0 < hits < len(fit):
        auc = (ranks[fit].sum() - hits * (hits + 1) / 2) / (hits * (len(fit) - hits))
        called = predicted >= np.median(predicted)
        mcc = 0.0 if called.all() else correlation(called, fit)
    rho = correlation(ranks, rankdata(measured))
    return {"spearman": rho, "ndcg": ndcg(measured, predicted), "auc": float(auc), "mcc": mcc}


def correlation(one: ArrayLike, other: ArrayLike) -> float:
    """Pearson's, of two arrays (N,); NaN where one of them does not vary."""
    first, second = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if not (len(first) and np.ptp(first) and np.ptp(second)):
        return float("nan")
    return float(np.asarray(np.corrcoef(first, second))[0, 1])


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
        measured: (N,) higher = fitter; NaN where there is none.
        predictions: by name (N,), higher = fitter, NaN where there is none; the first is the one to judge.
        fit: (N,) True for variants that count as fit.
        places: (N,) what a variant shares with its siblings: the bootstrap draws them together.
    """
    kept = np.isfinite(measured) & np.all([np.isfinite(one) for one in predictions.values()], axis=0)
    truth, good = measured[kept], fit[kept]
    chosen = {name: one[kept] for name, one in predictions.items()}
    numbers: dict[Hashable, int] = {}
    groups = [numbers.setdefault(one, len(numbers)) for one, keep in zip(places, kept, strict=True) if keep]
    first, *others = chosen

    def compared(weights: Doubles) -> dict[tuple[str, str], float]:
        """Each metric of each prediction, and the gain over each other one."""
        taken = np.repeat(np.arange(len(truth)), weights.astype(np.int64))
        each = {name: agreement_of(truth[taken], one[taken], good[taken]) for name, one in chosen.items()}
        gains = {("gain", name): each[first]["spearman"] - each[name]["spearman"] for name in others}
        return {(name, metric): value for name, own in each.items() for metric, value in own.items()} | gains

    found = resampled(compared, groups, draws=draws)
    rivals = [name for name in others if np.isfinite(found[name, "spearman"].value)]
    best = max(rivals, key=lambda name: found[name, "spearman"].value, default=None)
    return Agreement(
        n=len(truth),
        positive=int(good.sum()),
        metrics={name: {metric: found[name, metric] for metric in METRICS} for name in chosen},
        gain=None if best is None else found["gain", best],
        against=best,
        undefined=undefined_metrics(truth, good),
    )
