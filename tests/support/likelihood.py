"""The pseudo-log-likelihood of whole sequences, as most tests of the engine want it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.scoring import Scorer, SequenceScore
from seqmlm.engine.types import Encoding


def pseudo_log_likelihood(ask: Conditionals, encodings: Iterable[Encoding]) -> Iterator[SequenceScore]:
    """Score sequences exactly, lazily and in order."""
    return Scorer(ask).windows((encoding, None) for encoding in encodings)
