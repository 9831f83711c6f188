"""Names of the sources of a run: of one corpus among several, and of all for people."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from seqmlm.data.files import is_reference
from seqmlm.privacy import sensitive_data

UNNAMED = "data"
"""Name of the corpus of all files that the user gives no name."""
KEPT_INPUTS = ".inputs"
"""Folder, among the runs, of standard input as it was kept in files."""


def shown_name(paths: Sequence[str]) -> str:
    """The name of the data in a tracked run: the first file or folder, and how many more there are.

    Args:
        paths: as the user named them; references to data sets and "-" are among them, none is standard input.

    Sensitive data have no name: that of a file may be a person's.

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
    """Corpus name and path of `NAME=PATH`; no name where the whole text is a path that exists."""
    name, equals, path = text.partition("=")
    return (name, path) if equals and name and not os.path.exists(text) else (None, text)
