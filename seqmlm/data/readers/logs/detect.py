"""What kind of log a file is, by its first lines: names say little (app.log may be anything)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from seqmlm.data.readers.logs.fields import Fields
from seqmlm.data.readers.logs.headers import fitting
from seqmlm.data.readers.logs.tables import delimiter_of

LOOKED_AT = 500
"""Lines that decide."""

KEYS = re.compile(r"\s*(?:([^,\s]+)[,\t]\s*)?(\d+(?:\s+\d+)*)\s*", re.ASCII)
"""A line of a session file: event ids, before them perhaps the session's id and a comma."""


def kind_of(texts: Sequence[str], wanted: Fields) -> str:
    """ "sessions", "jsonl", "csv", "tsv", the name of a header, or "plain".

    Args:
        texts: the first lines.
        wanted: columns asked for, which make a table of a file whose own names are unusual.
    """
    lines = [text for text in texts[:LOOKED_AT] if text and not text.isspace()]
    if not lines:
        return "plain"
    if all(KEYS.fullmatch(line) for line in lines):
        return "sessions"
    if sum(map(_is_object, lines[:20])) * 2 >= len(lines[:20]):  # a banner may come before
        return "jsonl"
    delimiter = delimiter_of(lines[0], wanted)
    if delimiter is not None:
        return "tsv" if delimiter == "\t" else "csv"
    return fitting(lines) or "plain"


def _is_object(line: str) -> bool:
    if not line.lstrip().startswith("{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
