"""Train masked language models on any kind of sequence, and score and compare sequences with them.

`seqmlm.load` and `seqmlm.train` return a `Model`. The names listed by this module are the public Python API
(docs/reference/python.md). Importing `seqmlm` is fast: heavy dependencies such as torch are imported at first
use.
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
