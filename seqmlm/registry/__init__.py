"""Our own tables, for what MLflow cannot answer: data sets, tokenizers, models, and what came from what.

MLflow owns runs and metrics; rows here carry its run ids and repeat none of its numbers.
"""

from __future__ import annotations

from seqmlm.registry.database import UnreachableError, patiently, set_aside
from seqmlm.registry.entries import (
    CalibrationEntry,
    DatasetEntry,
    ModelEntry,
    TokenizerEntry,
)
from seqmlm.registry.store import ModelRef, Registry, resolve

__all__ = [
    "CalibrationEntry",
    "DatasetEntry",
    "ModelEntry",
    "ModelRef",
    "Registry",
    "TokenizerEntry",
    "UnreachableError",
    "patiently",
    "resolve",
    "set_aside",
]
