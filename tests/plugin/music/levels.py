"""Bars of a tune, judged by the model's surprisal and by their largest leap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from music.formats import pitch
from seqmlm.anomaly.levels import Background, Level, part_row
from seqmlm.anomaly.statistic_names import Statistics
from seqmlm.anomaly.values import Longs, Row, ScoredRecord

BAR = 4
"""Notes of a bar."""


class BarLevel(Level):
    """Four notes; the last bar may be shorter."""

    name = "bar"
    statistics: ClassVar[Statistics] = Statistics(
        {
            "surprisal": "mean surprisal of the bar's notes",
            "leap": "the largest step in semitones to or within the bar",
        }
    )

    def rows(self, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
        heights = pitches(scored)
        found = []
        for start in range(0, len(scored), BAR):
            units = np.arange(start, min(start + BAR, len(scored)))
            steps = np.abs(np.diff(heights[max(start - 1, 0) : units[-1] + 1]))
            statistics = {
                "surprisal": float(scored.surprisal[units].mean()),
                "leap": float(steps.max(initial=0)),
            }
            found.append(part_row(scored, units, str(start // BAR + 1), statistics))
        return found


def pitches(scored: ScoredRecord) -> Longs:
    """(U,) semitones of each note."""
    return np.array([pitch(scored.text(unit)) or 0 for unit in range(len(scored))], dtype=np.int64)
