"""The formats of logs: one reader with many options. The format is named, or found from the first lines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Any

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.logs.readers.headers import HEADERS
from seqmlm.domains.logs.readers.reading import Reading
from seqmlm.errors import UsageError


@wraps(Reading, assigned=("__doc__",), updated=())  # its fields and their help are the options
def read_logs(kind: str, path: str | Path, problems: Problems, **options: Any) -> Iterator[Record]:
    return Reading(kind, path, problems, **options).records()


KINDS = ("auto", "plain", *HEADERS, "jsonl", "journal", "docker", "csv", "tsv", "sessions")
"""Names of the formats. The fields of JSON lines distinguish "journal" and "docker" from other JSON lines."""

READERS = {kind: partial(read_logs, kind) for kind in KINDS}
"""Format name to its reader."""


def patterns_of(path: str) -> dict[str, str]:
    """Read kinds of values from a file: name to regular expression.

    Empty lines and lines that begin with # are left out.

    Raises:
        UsageError: the file cannot be read, or a line has no name or no expression.
    """
    try:
        texts = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"patterns: {path} cannot be read: {error}") from None
    patterns: dict[str, str] = {}
    for number, text in enumerate(texts, 1):
        if not text.strip() or text.startswith("#"):
            continue
        name, _, expression = text.strip().partition(" ")
        if not expression.strip():
            raise UsageError(
                f"patterns: {path}:{number} has no expression; write a name in capital letters, a space, "
                "and a regular expression: JOB job-[0-9]+"
            )
        patterns[name] = expression.strip()
    return patterns
