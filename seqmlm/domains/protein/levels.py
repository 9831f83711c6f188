"""Score how unusual proteins and residues are, by surprisal and by its excess over the expected surprisal.

Some chains are harder to predict than others, even if nothing is wrong with them. Surprisal minus entropy is
near 0 wherever the model is right about its own uncertainty. It therefore finds foreign pieces that bits per
residue hide. A field `z` compares the bits per residue with normal proteins of the same length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.judge import HARMONIC
from seqmlm.anomaly.levels import (
    BITS_PER_UNIT,
    LIFT,
    SURPRISAL,
    UNEXPECTED,
    UNKNOWN,
    Background,
    Frequencies,
    Level,
    UnitLevel,
    excess,
    highest_stretch,
    mean,
    record_row,
)
from seqmlm.anomaly.reasons import Reasons
from seqmlm.anomaly.statistic_names import Statistics
from seqmlm.anomaly.values import Doubles, Row, ScoredRecord
from seqmlm.engine.reductions import Entropy
from seqmlm.engine.types import Sequences
from seqmlm.errors import span_text
from seqmlm.tokenizers.base import Tokenizer

SEGMENT = 20
"""Residues of the stretch whose highest mean is a statistic: a few turns of a helix, or a short exon."""

_BINS, _FEWEST = 10, 30
_CONTEXT = 2  # least number of scored residues; with fewer, no residue has a known neighbour


class LengthReference(Background):
    """Mean and spread of the bits per residue of normal proteins, in bins (B,) by ascending mean length."""

    needs_scores: ClassVar[bool] = True
    judges: ClassVar[bool] = False

    def __init__(self, lengths: Doubles, means: Doubles, deviations: Doubles) -> None:
        self.lengths, self.means, self.deviations = lengths, means, deviations

    @classmethod
    def fit(cls, train: Sequences, tokenizer: Tokenizer, *, seed: int) -> Self:
        """An empty reference, because the bits of normal proteins are learned from scores."""
        nothing = np.zeros(0)
        return cls(nothing, nothing, nothing)

    def learn(self, normal: Iterable[ScoredRecord]) -> Self:
        """A reference from normal proteins: up to ten bins of equal size, each with at least 30 proteins."""
        pairs = np.array([(len(scored), mean(scored)) for scored in normal if len(scored)], dtype=np.float64)
        if len(pairs) < 2:
            return self
        ordered = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
        bins = np.array_split(ordered, min(_BINS, max(1, len(ordered) // _FEWEST)))
        return type(self)(
            np.array([part[:, 0].mean() for part in bins]),
            np.array([part[:, 1].mean() for part in bins]),
            np.array([part[:, 1].std(ddof=1) for part in bins]),
        )

    def z(self, length: int, bits: float) -> float | None:
        """Standard deviations above the mean for this length, interpolated between bins; None if unknown."""
        if not len(self.lengths):
            return None
        expected = np.interp(length, self.lengths, self.means)
        deviation = float(np.interp(length, self.lengths, self.deviations))
        return (bits - float(expected)) / deviation if deviation > 0 else None

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"lengths": self.lengths, "means": self.means, "deviations": self.deviations}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], tokenizer: Tokenizer) -> Self:
        return cls(arrays["lengths"], arrays["means"], arrays["deviations"])


class ProteinLevel(Level):
    """A whole protein as one row.

    Statistics:
        bits_per_unit: bits per residue, the score. The field `z` compares it with normal proteins of this
            length.
        unexpected: mean surprisal above entropy. It is high for a chain that does not fit the model's
            predictions.
        segment: highest mean of this excess over `SEGMENT` neighbours. It finds a foreign piece in a normal
            chain.
        unknown: share of residues outside the 20 standard ones, which no other statistic measures.

    A protein with fewer than two residues that can be scored has no statistics. Without context, a model
    knows only frequencies.
    """

    name = "protein"
    statistics: ClassVar[Statistics] = Statistics(
        {
            **BITS_PER_UNIT,
            **UNEXPECTED,
            "segment": "the most unexpected stretch",
            UNKNOWN: "residues that are unknown, ambiguous or rare (X, B, Z, J, U, O)",
        },
        fusion=HARMONIC,
        of_rows=("segment",),
        shares={UNKNOWN: "{} of its residues are unknown, ambiguous or rare (X, B, Z, J, U, O)"},
    )
    want = (Entropy(),)
    background: ClassVar[type[Background] | None] = LengthReference
    row_per_record: ClassVar[bool] = True
    counted_from = 1  # as usual for proteins

    def rows(self, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
        statistics, extra = {"bits_per_unit": mean(scored)}, dict[str, Any]()
        above = excess(scored)
        if above is not None and len(above):
            highest, first = highest_stretch(above, SEGMENT)
            statistics |= {"unexpected": float(above.mean()), "segment": highest}
            last = min(first + SEGMENT, len(above)) - 1
            extra["segment"] = [int(scored.spans[first, 0]) + 1, int(scored.spans[last, 1])]
        if len(scored) < _CONTEXT:
            statistics = dict.fromkeys(statistics, math.nan)
        row = record_row(scored, statistics)
        if isinstance(background, LengthReference) and row.score is not None:
            extra["z"] = background.z(len(scored), row.score)
        return [replace(row, extra=extra if row.score is not None else {})]

    @property
    def reasons(self) -> Reasons:
        return ProteinReasons(self.name, self.statistics)


class ProteinReasons(Reasons):
    """Describe alarms about proteins. An alarm from a segment names its residues."""

    def meaning(self, name: str, row: Row, usual: float | None = None) -> str:
        text = super().meaning(name, row, usual)
        if name != "segment" or "segment" not in row.extra:
            return text
        first, last = row.extra["segment"]
        return f"{text}, {'residue' if first == last else 'residues'} {span_text(first - 1, last)}"


class ResidueLevel(UnitLevel):
    """Each residue of a protein as one row.

    The score, `unexpected`, raises no alarm, and neither does the surprisal. The lift does: the surprisal
    above the surprisal from the residue's frequency.
    """

    statistics: ClassVar[Statistics] = Statistics(
        {**UNEXPECTED, **SURPRISAL, **LIFT}, descriptive=("unexpected", "surprisal")
    )
    counted_from = 1
    want = (Entropy(),)
    background: ClassVar[type[Background] | None] = Frequencies

    def rows(self, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
        rows = super().rows(scored, background)
        if len(scored) >= _CONTEXT:
            return rows
        return [replace(row, score=None, statistics=dict.fromkeys(row.statistics, math.nan)) for row in rows]
