"""Values of pairs against known pairs: how well those of a sequence are ranked, beside their distance alone.

Every sequence is ranked by itself, and the figures are means over sequences: values of different sequences
need not be on one scale, and a long sequence, which has far more pairs, counts no more than a short one.
What depends on each other is often near, so that a value tells something only where it ranks pairs better
than minus their distance does. Intervals are percentiles over resamples of sequences.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.evaluation.detection import Detection
from seqmlm.evaluation.intervals import percentile_interval

Bools = NDArray[np.bool_]
Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]

DRAWS = 1000
MEASURES = ("auroc", "auprc")
RANKED = {"model": "the model", "distance": "minus the distance", "gain": "difference"}
"""Scores that rank pairs: values, and nearness; the difference is on the same resamples."""


class Rankings:
    """Collects sequences, of each a few figures; `seed` is of the resamples."""

    def __init__(self, seed: int = 0) -> None:
        self._seed, self._pairs, self._true = seed, 0, 0
        self._sequences: list[list[float]] = []

    def add(self, labels: Bools, values: Doubles, distances: Longs) -> None:
        """Take in the judged pairs of one sequence.

        Args:
            labels: (P,) True for the pairs that the truth has.
            values: (P,) higher = more likely to be one; no NaN.
            distances: (P,) between the two.
        """
        if not labels.any() or labels.all():
            return
        curves = [Detection(labels, scores).curve() for scores in (values, -distances)]
        figures = [figure for curve in curves for figure in (curve.auroc, curve.average_precision)]
        self._sequences.append([*figures, float(labels.mean())])
        self._pairs, self._true = self._pairs + len(labels), self._true + int(labels.sum())

    def ranking(self) -> dict[str, Any]:
        """Figures of how the pairs are ranked, as means over the sequences that have pairs of both kinds.

        Returns:
            sequences: that have; others say nothing of a ranking. pairs, true: judged pairs of these, and
            those that the truth has. prevalence: share of the pairs that are true, which is the AUPRC of
            chance. Then by `RANKED` and measure the mean `value`, `low` and `high`, which are None for a
            single sequence: how much another one differs is not known. Nothing where no sequence has both.
        """
        if not self._sequences:
            return {}
        table = np.array(self._sequences)
        random = np.random.default_rng(self._seed)
        count = len(table) if len(table) > 1 else 0
        draws = [random.integers(count, size=count) for _ in range(DRAWS if count else 0)]
        means = np.stack([table.mean(axis=0), *(table[rows].mean(axis=0) for rows in draws)])
        size = len(MEASURES)
        model, floor = means[:, :size], means[:, size : 2 * size]
        kinds = dict(zip(RANKED, (model, floor, model - floor), strict=True))
        return {
            "sequences": len(table),
            "pairs": self._pairs,
            "true": self._true,
            "prevalence": float(means[0, -1]),
            **{kind: dict(zip(MEASURES, map(_bounds, x.T), strict=True)) for kind, x in kinds.items()},
        }


def _bounds(values: Doubles) -> dict[str, float | None]:
    """The first value, with bounds by the others."""
    interval = percentile_interval(float(values[0]), values[1:])
    return {name: None if np.isnan(bound) else bound for name, bound in interval.bounds().items()}
