"""How well the values of a map rank the known pairs of a sequence, compared with ranking by distance.

The pairs of each sequence are ranked separately, and the figures are means over sequences. Values of
different sequences need not have the same scale. A long sequence has many more pairs, but counts no more than
a short one.

Units that depend on each other are often near. Values are therefore informative only if they rank pairs
better than the distance does. Intervals are percentiles over resamples of sequences.
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
"""The scores that rank pairs: values, and minus the distance. The difference uses the same resamples."""


class Rankings:
    """Collects the figures of sequences. `seed` is the seed of the resamples."""

    def __init__(self, seed: int = 0) -> None:
        self._seed, self._pairs, self._true = seed, 0, 0
        self._sequences: list[list[float]] = []

    def add(self, labels: Bools, values: Doubles, distances: Longs) -> None:
        """Add the pairs of one sequence.

        Args:
            labels: (P,) True for the pairs in the truth.
            values: (P,) values, higher if more likely in the truth; no NaN.
            distances: (P,) the distance between the two units.
        """
        if not labels.any() or labels.all():
            return
        curves = [Detection(labels, scores).curve() for scores in (values, -distances)]
        figures = [figure for curve in curves for figure in (curve.auroc, curve.average_precision)]
        self._sequences.append([*figures, float(labels.mean())])
        self._pairs, self._true = self._pairs + len(labels), self._true + int(labels.sum())

    def ranking(self) -> dict[str, Any]:
        """The ranking figures, as means over the sequences that have both true and other pairs.

        Returns:
            Empty if there is no such sequence. Otherwise these keys:

            `sequences` is their number. Other sequences cannot be ranked. `pairs` and `true` are the numbers
            of their pairs, and of pairs in the truth. `prevalence` is the fraction of true pairs, which is
            the AUPRC of a random ranking. For each key of `RANKED` and each measure, there are `value` (the
            mean), `low` and `high`. For a single sequence, `low` and `high` are None, because the variation
            between sequences is unknown.
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
    """The first value, with bounds computed from the others (the resamples)."""
    interval = percentile_interval(float(values[0]), values[1:])
    return {name: None if np.isnan(bound) else bound for name, bound in interval.bounds().items()}
