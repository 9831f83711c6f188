"""Score how unusual texts and words are. A text is usually a sentence, but may be any record.

A sentence is not unusual only because its words are rare. Lifts therefore compare surprisals with the words'
frequencies, and the lifts raise alarms. Surprisals without lifts find fewer faults, and next to lifts they
hide some. The entropy of each place adds nothing to these statistics
(`benchmarks/studies/level_statistics.py`).
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

_UNKNOWN = {UNKNOWN: "words that do not occur in the training data"}
_SHARES = {UNKNOWN: "{} of its words do not occur in the training data"}


FEWEST_NEW, AHEAD = 3, 2
"""Least number of new words in an unfamiliar text, and their least lead over the known words.

A word is new if it does not occur in the training data. Measurements used the vocabulary of 1,000 to 12,500
sentences of UD English-EWT. There, 0 to 9.5 % of other English texts are unfamiliar (UD, STS-B, SST-2,
novels). For German and French texts, it is 90 to 100 % (UD GSD and PUD, STS-B).
"""


def _is_unfamiliar(level: Level, scored: ScoredRecord, background: Background | None) -> bool:
    """Whether most words of a text are new to the model. Punctuation and numbers do not count.

    A text with fewer words is unfamiliar if the vocabulary does not have its letters, as in another script.
    Each word then takes more tokens than it has characters.
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
    characters = np.array([*map(len, texts)], dtype=np.int64) + 1  # the space before a word may be a token
    return bool((scored.every_size > characters)[words].all())


class SentenceLevel(Level):
    """A whole sentence as one row.

    Statistics:
        bits_per_unit: bits per word. This is the score, but it raises no alarm.
        slor: bits per word above the bits from the words' frequencies, so that rare words do not make a
            sentence unusual (Lau et al. 2017, with the opposite sign).
        lift: the largest lift of a word, which is its bits above the bits from its frequency.
        unknown: share of words that do not occur in the training data. Many such words make the text another
            kind of text, even if the model predicts their pieces well.
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
    """Each word as one row.

    Statistics:
        surprisal: bits of the word. This is the score, but it raises no alarm.
        lift: these bits above the bits from the word's frequency. It is high for a common word in a wrong
            place.
        unknown: 1 for a word that does not occur in the training data.
    """

    statistics: ClassVar[Statistics] = Statistics(
        {**SURPRISAL, **LIFT, **_UNKNOWN}, descriptive=("surprisal",), fusion=HARMONIC
    )
    background: ClassVar[type[Background] | None] = Frequencies

    def unfamiliar(
        self, scored: ScoredRecord, background: Background | None, rows: Sequence[Row]
    ) -> Sequence[bool]:
        return [_is_unfamiliar(self, scored, background)] * len(rows)
