"""Values of pairs against known pairs: how well those of a sequence are ranked, beside their distance alone.

Every sequence is ranked by itself, and the figures are means over sequences: values of different sequences
need not be on one scale, and a long sequence, which has far more pairs, counts no more than a short one.
What depends on each other is often near, so that a value tells something only where it ranks pairs better
than minus their distance does. Intervals are percentiles over resamples of sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqmlm.evaluation.detection import Detection
from seqmlm.evaluation.intervals import Difference, summarized

Bools = NDArray[np.bool_]
Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]

DRAWS = 1000
MEASURES = ("auroc", "auprc")


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """How the pairs of sequences with a truth are ranked, as means over the sequences.

    Args:
        sequences: that have pairs of both kinds; others say nothing of a ranking.
        pairs, true: judged pairs of these, and those that the truth has.
        prevalence: share of the pairs that are true, which is the AUPRC of chance.
        values: "auroc" and "auprc" of the values. distance: of minus the distance.
        gain: the values' less the distance's, on the same resamples.
    """

    sequences: int
    pairs: int
    true: int
    prevalence: float
    values: Mapping[str, Difference]
    distance: Mapping[str, Difference]
    gain: Mapping[str, Difference]


class Rankings:
    """Collects sequences, of each a few figures.

    Args:
        seed: of the resamples.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed, self._pairs, self._true = seed, 0, 0
        self._found: list[list[float]] = []

    def add(self, labels: Bools, values: Doubles, distances: Longs) -> None:
        """Take in the judged pairs of one sequence.

        Args:
            labels: (P,) True for the pairs that the truth has.
            values: (P,) higher = more likely to be one; no NaN.
            distances: (P,) between the two.
        """
        if not labels.any() or labels.all():
            return
        own = [Detection(labels, scores).curve() for scores in (values, -distances)]
        figures = [figure for one in own for figure in (one.auroc, one.average_precision)]
        self._found.append([*figures, float(labels.mean())])
        self._pairs, self._true = self._pairs + len(labels), self._true + int(labels.sum())

    def ranking(self) -> Ranking | None:
        """The means over all sequences; None where none has pairs of both kinds.

        Of a single sequence the intervals are NaN: how much another one differs is not known.
        """
        if not self._found:
            return None
        table = np.array(self._found)
        random = np.random.default_rng(self._seed)
        count = len(table) if len(table) > 1 else 0
        drawn = [table[random.integers(count, size=count)].mean(axis=0) for _ in range(DRAWS if count else 0)]
        means, resampled = table.mean(axis=0), np.array(drawn).reshape(-1, table.shape[1])
        both = {name: (n, n + len(MEASURES)) for n, name in enumerate(MEASURES)}

        def told(value: float, draws: Doubles) -> Difference:
            return summarized(float(value), draws)

        return Ranking(
            sequences=len(table),
            pairs=self._pairs,
            true=self._true,
            prevalence=float(means[-1]),
            values={name: told(means[own], resampled[:, own]) for name, (own, _) in both.items()},
            distance={name: told(means[floor], resampled[:, floor]) for name, (_, floor) in both.items()},
            gain={
                name: told(means[own] - means[floor], resampled[:, own] - resampled[:, floor])
                for name, (own, floor) in both.items()
            },
        )
