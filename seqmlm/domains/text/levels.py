"""How unusual sentences (or whatever a record is) and words are.

A sentence of rare words is not odd for that, so `slor` sets its surprisal against the words' frequencies,
and `unexpected` against the entropy of each place; the plain mean stays the score, as it needs nothing but
the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.levels import (
    BITS_PER_UNIT,
    SURPRISAL,
    UNEXPECTED,
    Background,
    Level,
    UnitLevel,
    excess,
    mean,
    record_row,
)
from seqmlm.anomaly.values import Doubles, Row, Scored
from seqmlm.engine.reductions import Entropy
from seqmlm.engine.types import Sequences
from seqmlm.tokenizers.base import Tokenizer

_TOKENS_COUNTED = 4_000_000


class Frequencies(Background):
    """How frequent each token is in the training split.

    Args:
        log_probs: (K,) natural logarithm of the add-one unigram of the symbols units are spelled in.
    """

    def __init__(self, log_probs: Doubles) -> None:
        self.log_probs = log_probs

    @classmethod
    def fit(cls, train: Sequences, tokenizer: Tokenizer, *, seed: int) -> Self:
        """Count tokens of sequences in a drawn order, until there are four million."""
        counts = np.zeros(tokenizer.space.size, dtype=np.int64)
        for index in np.random.default_rng(seed).permutation(len(train)).tolist():
            counts += np.bincount(train[index].ids, minlength=len(counts))
            if counts.sum() >= _TOKENS_COUNTED:
                break
        with np.errstate(divide="ignore"):
            return cls(np.log(tokenizer.units.frequencies(counts)))

    def bits(self, scored: Scored) -> Doubles:
        """(U,) surprisal of each unit by its tokens' frequencies alone."""
        rule = scored.rule
        spelled = rule.spelled(scored.encoding)
        at = np.searchsorted(rule.numbers(scored.encoding), scored.number).tolist()
        nats = [-sum(self.log_probs[token] for token in spelled[unit]) for unit in at]
        return np.asarray(np.array(nats, dtype=np.float64) / np.log(2))

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"log_probs": self.log_probs}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], tokenizer: Tokenizer) -> Self:
        return cls(arrays["log_probs"])


class SentenceLevel(Level):
    """A sentence whole.

    Statistics:
        bits_per_unit: bits per word, the score.
        slor: bits per word above those of the words' frequencies (Lau et al. 2017, their sign turned): rare
            words do not make a sentence odd.
        unexpected: surprisal of the worst word above what its place lets expect.
    """

    name = "sentence"
    statistics: ClassVar[Mapping[str, str]] = {
        **BITS_PER_UNIT,
        "slor": "surprisal beyond what the frequency of the words explains",
        **UNEXPECTED,
    }
    want = (Entropy(),)
    background: ClassVar[type[Background] | None] = Frequencies

    def rows(self, scored: Scored, background: Background | None) -> Sequence[Row]:
        statistics = {"bits_per_unit": mean(scored)}
        above = excess(scored)
        if len(scored) and isinstance(background, Frequencies):
            statistics["slor"] = float((scored.surprisal - background.bits(scored)).mean())
        if len(scored) and above is not None:
            statistics["unexpected"] = float(above.max())
        return [record_row(scored, statistics)]


class WordLevel(UnitLevel):
    """Each word.

    Statistics:
        surprisal: bits of the word, the score.
        unexpected: that above the entropy of its place.
    """

    statistics: ClassVar[Mapping[str, str]] = {**SURPRISAL, **UNEXPECTED}
    want = (Entropy(),)
