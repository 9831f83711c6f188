"""Records scored and judged by a model, without a command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seqmlm.anomaly.levels import Level
from seqmlm.anomaly.values import ScoredRecord
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.units import EXACT, Mode
from seqmlm.inference.detector import Detector
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session


def scored(
    model: LoadedModel, records: Sequence[Record], mode: Mode = EXACT, **asked: Any
) -> list[ScoredRecord]:
    """What a model says of records; what is `asked` are options of `RecordScorer.unit_scores`."""
    scorer = RecordScorer(Session(model))
    return scorer.unit_scores(scorer.encoded(records, Problems()), mode, **asked)


def detector(model: LoadedModel, level: Level, background: Any = None) -> Detector:
    """Judges records at a level."""
    return Detector(RecordScorer(Session(model)), level, background=background)
