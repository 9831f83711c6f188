"""How unusual sentences (or whatever a record is) and words are.

A sentence of rare words is not odd for that, so lifts set surprisals against the words' frequencies, and
these judge: the surprisals themselves find fewer faults, and beside lifts they hide some. The entropy of each
place says nothing beside these (`benchmarks/studies/level_statistics.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from seqmlm.anomaly.judge import HARMONIC
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
from seqmlm.anomaly.statistic_names import Statistics
from seqmlm.anomaly.values import Row, ScoredRecord

_UNKNOWN = {UNKNOWN: "words that training never had"}
_SHARES = {UNKNOWN: "{} of its words were never seen in training"}


FEWEST_NEW, AHEAD = 3, 2
"""An unfamiliar text has at least so many words that training never had, and so many more than known ones.

With the vocabulary of 1,000 to 12,500 sentences of UD English-EWT, 0 to 9.5 % of other English texts are
unfamiliar (UD, STS-B, SST-2, novels), and 90 to 100 % of German and French ones (UD GSD and PUD, STS-B)."""


def _is_unfamiliar(level: Level, scored: ScoredRecord, background: Background | None) -> bool:
    """Whether more words of a text are new to training than not; signs and numbers count for nothing.

    A text of fewer words is unfamiliar if its letters are not in the vocabulary, as those of another
    script: each word then takes more tokens than it has characters.
    """
    starts, unknown = level.unknown(scored, background)
    ends = [*starts[1:].tolist(), len(scored.raw)][: len(starts)]
    texts = [scored.raw[start:end].strip() for start, end in zip(starts.tolist(), ends, strict=True)]
    words = np.array([any(map(str.isalpha, text)) for text in texts], dtype=np.bool_)
    new_words, known_words = int((words & unknown).sum()), int((words & ~unknown).sum())
    if new_words >= max(FEWEST_NEW, known_words + AHEAD):
        return True
    if not new_words or known_words or len(starts) != len(scored.every_size):
        return False
    characters = np.array([*map(len, texts)], dtype=np.int64) + 1  # a space in front may be a token
    return bool((scored.every_size > characters)[words].all())


class SentenceLevel(Level):
    """A whole sentence as one row.

    Statistics:
        bits_per_unit: bits per word, the score, which does not judge.
        slor: bits per word above those of the words' frequencies (Lau et al. 2017, their sign turned): rare
            words do not make a sentence odd.
        lift: the largest lift of a word, its bits above those of its frequency.
        unknown: share of words that training never had: by many of them it is of another kind, whatever the
            model makes of their pieces.
    """

    name = "sentence"
    statistics: ClassVar[Statistics] = Statistics(
        {
            **BITS_PER_UNIT,
            "slor": "surprisal beyond what the frequency of the words explains",
            "lift": "the largest surprisal of a word beyond what its frequency explains",
            **_UNKNOWN,
        },
        descriptive=("bits_per_unit",),
        fusion=HARMONIC,
        shares=_SHARES,
    )
    background: ClassVar[type[Background] | None] = Frequencies
    row_per_record: ClassVar[bool] = True

    def rows(self, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
        statistics = {"bits_per_unit": mean(scored)}
        lifts = lift(scored, background)
        if len(scored) and lifts is not None:
            statistics |= {"slor": float(lifts.mean()), "lift": float(lifts.max())}
        return [record_row(scored, statistics)]

    def unfamiliar(
        self, scored: ScoredRecord, background: Background | None, rows: Sequence[Row]
    ) -> Sequence[bool]:
        return [_is_unfamiliar(self, scored, background)]


class WordLevel(UnitLevel):
    """Each word.

    Statistics:
        surprisal: bits of the word, the score, which does not judge.
        lift: those above the bits of the word's frequency: a common word where none belongs.
        unknown: 1 for a word that training never had.
    """

    statistics: ClassVar[Statistics] = Statistics(
        {**SURPRISAL, **LIFT, **_UNKNOWN}, descriptive=("surprisal",), fusion=HARMONIC
    )
    background: ClassVar[type[Background] | None] = Frequencies

    def unfamiliar(
        self, scored: ScoredRecord, background: Background | None, rows: Sequence[Row]
    ) -> Sequence[bool]:
        return [_is_unfamiliar(self, scored, background)] * len(rows)
