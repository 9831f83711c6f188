"""How unusual sentences (or whatever a record is) and words are.

A sentence of rare words is not odd for that, so lifts set surprisals against the words' frequencies, and
these judge: the surprisals themselves find fewer faults, and beside lifts they hide some. The entropy of each
place says nothing beside these (`benchmarks/level_statistics.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from seqmlm.anomaly.levels import (
    BITS_PER_UNIT,
    LIFT,
    SURPRISAL,
    UNKNOWN,
    Background,
    Frequencies,
    Level,
    UnitLevel,
    lift,
    mean,
    record_row,
)
from seqmlm.anomaly.values import Row, Scored
from seqmlm.rows.judge import HARMONIC

_UNKNOWN = {UNKNOWN: "words that training never had"}
_SHARES = {UNKNOWN: "{} of its words were never seen in training"}


class SentenceLevel(Level):
    """A sentence whole.

    Statistics:
        bits_per_unit: bits per word, the score, which does not judge.
        slor: bits per word above those of the words' frequencies (Lau et al. 2017, their sign turned): rare
            words do not make a sentence odd.
        lift: the largest lift of a word, its bits above those of its frequency.
        unknown: share of words that training never had: by many of them it is of another kind, whatever the
            model makes of their pieces.
    """

    name = "sentence"
    statistics: ClassVar[Mapping[str, str]] = {
        **BITS_PER_UNIT,
        "slor": "surprisal beyond what the frequency of the words explains",
        "lift": "the largest surprisal of a word beyond what its frequency explains",
        **_UNKNOWN,
    }
    descriptive, fusion, shares = ("bits_per_unit",), HARMONIC, _SHARES
    background: ClassVar[type[Background] | None] = Frequencies
    whole: ClassVar[bool] = True

    def rows(self, scored: Scored, background: Background | None) -> Sequence[Row]:
        statistics = {"bits_per_unit": mean(scored)}
        lifts = lift(scored, background)
        if len(scored) and lifts is not None:
            statistics |= {"slor": float(lifts.mean()), "lift": float(lifts.max())}
        return [record_row(scored, statistics)]


class WordLevel(UnitLevel):
    """Each word.

    Statistics:
        surprisal: bits of the word, the score, which does not judge.
        lift: those above the bits of the word's frequency: a common word where none belongs.
        unknown: 1 for a word that training never had.
    """

    statistics: ClassVar[Mapping[str, str]] = {**SURPRISAL, **LIFT, **_UNKNOWN}
    descriptive, fusion = ("surprisal",), HARMONIC
    background: ClassVar[type[Background] | None] = Frequencies
