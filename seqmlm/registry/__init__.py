"""Our own tables, for what MLflow cannot answer: data sets, tokenizers, models, and what came from what.

MLflow owns runs and metrics; rows here carry its run ids and repeat none of its numbers.
"""

from __future__ import annotations

from seqmlm.registry.database import UnreachableError, patiently, set_aside
from seqmlm.registry.entries import (
    CalibrationEntry,
    DatasetEntry,
    ModelEntry,
    Pruned,
    StreamEntry,
    TokenizerEntry,
)
from seqmlm.registry.incidents import Change, Incident
from seqmlm.registry.notices import Notice, NoticeQueue, Waiting
from seqmlm.registry.rolling import Figures, Owned, RollingChange, RollingEntry
from seqmlm.registry.store import ModelRef, Registry, resolve

__all__ = [
    "CalibrationEntry",
    "Change",
    "DatasetEntry",
    "Figures",
    "Incident",
    "ModelEntry",
    "ModelRef",
    "Notice",
    "NoticeQueue",
    "Owned",
    "Pruned",
    "Registry",
    "RollingChange",
    "RollingEntry",
    "StreamEntry",
    "TokenizerEntry",
    "UnreachableError",
    "Waiting",
    "patiently",
    "resolve",
    "set_aside",
]
