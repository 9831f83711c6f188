"""Arrays in a file of a model folder: safetensors, with facts as JSON in the header.

A file is read whole, or refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from seqmlm.engine.foreign import shapes_of
from seqmlm.errors import StateError

HEADER = "seqmlm"
"""Key of the facts in the header."""

UNFIT = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""Errors of arrays and facts that do not fit together. An intact file may still have any content."""

Arrays = dict[str, NDArray[Any]]


def read_arrays(file: Path, remedy: str) -> tuple[Arrays, dict[str, str]]:
    """All arrays of a file, and its header.

    Args:
        file: the file.
        remedy: advice for the user if the file cannot be read.

    Raises:
        StateError: the file cannot be read, or contains NaN. The message has the remedy.
    """
    try:
        shapes_of(file)
        with safe_open(file, framework="numpy") as opened:
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            header = opened.metadata() or {}
    # The last two errors occur with number formats that numpy does not have.
    except (OSError, ValueError, SafetensorError, TypeError, AttributeError) as error:
        raise damaged_file(file, error, remedy) from None
    for name, values in arrays.items():
        if values.dtype.kind == "f" and np.isnan(values).any():
            raise damaged_file(file, ValueError(f"{name} contains NaN"), remedy)
    return arrays, header


def encode_arrays(arrays: Mapping[str, NDArray[Any]], header: dict[str, str] | None = None) -> bytes:
    """The content of a file with these arrays and this header."""
    return save({name: np.ascontiguousarray(values) for name, values in arrays.items()}, metadata=header)


def damaged_file(file: Path, error: Exception, remedy: str) -> StateError:
    """The error for a file that cannot be read."""
    return StateError(f"{file} cannot be read ({error}); {remedy}")
