"""A record: one sequence as it stood in a user's file, with the way back to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One sequence in its field's raw form.

    Args:
        id: the name the file gives it (a FASTA id, a CoNLL-U sent_id), else "<file name>:<line>".
        raw: the sequence itself; a str wherever the field has text (sentence, protein, log line).
        source: the file it came from, "-" for standard input.
        line: 1-based line where it starts.
        document: name of the larger thing it belongs to (article, session, patient), or None.
        meta: whatever else the file says of it; never needed to train.
    """

    id: str
    raw: Any
    source: str
    line: int
    document: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
