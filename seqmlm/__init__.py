"""Masked language models on any kind of sequence: train, score and compare.

`seqmlm.load` and `seqmlm.train` give a `Model`; what this module lists is the public surface of Python
(docs/reference/python.md). It loads nothing heavy before it is used.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PLACES = {
    **dict.fromkeys(("Model", "load", "train"), "seqmlm.api"),
    "RowFrame": "seqmlm.frames",
    "Scorer": "seqmlm.scorer",
    **dict.fromkeys(("Detector", "Embedder"), "seqmlm.estimators"),
    **dict.fromkeys(
        ("SeqmlmError", "UsageError", "DataError", "StateError", "NotFiniteError", "TrainingError"),
        "seqmlm.errors",
    ),
}

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'seqmlm' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
