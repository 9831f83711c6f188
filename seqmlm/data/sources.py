"""Names for the sources of a run: of a corpus among several, and of all data for display."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from seqmlm.data.files import is_reference
from seqmlm.privacy import sensitive_data

UNNAMED = "data"
"""Name of the corpus of all files without a name from the user."""
KEPT_INPUTS = ".inputs"
"""Folder, among the runs, with saved standard input."""


def shown_name(paths: Sequence[str]) -> str:
    """The name of the data in a tracked run: the first file or folder, and the number of others.

    Sensitive data have no name, because a file may have the name of a person.

    Args:
        paths: paths as the user wrote them, including references to data sets and "-". Empty is standard
            input.

    >>> shown_name(["/data/a.fasta", "/data/b.fasta"]), shown_name(["-"])
    ('a.fasta and 1 more', 'standard input')
    """
    if sensitive_data():
        return UNNAMED
    first = paths[0] if paths else "-"
    name = first if is_reference(first) else Path(first).resolve().name or UNNAMED
    if first == "-" or Path(first).parent.name == KEPT_INPUTS:
        name = "standard input"
    return f"{name} and {len(paths) - 1} more" if len(paths) > 1 else name


def split_source(text: str) -> tuple[str | None, str]:
    """The corpus name and path of `NAME=PATH`. If the whole text is an existing path, there is no name."""
    name, equals, path = text.partition("=")
    return (name, path) if equals and name and not os.path.exists(text) else (None, text)
