"""What readers of named fields share: picking the sequence, id and document out of a row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.errors import DataError

_LISTED = 30  # names shown of a table with very many columns


def missing(
    name: str, present: Iterable[str], source: str, line: int | None, option: str, problems: Problems
) -> DataError:
    """The error for a row or table without a wanted field.

    It lists those there are, except for sensitive data: a header that is missing would make them values.
    """
    there = [str(p) for p in present]
    more = f" and {len(there) - _LISTED} more" if len(there) > _LISTED else ""
    listed = "" if problems.sensitive else f"there are: {', '.join(there[:_LISTED])}{more}; "
    return DataError(
        f"no {option} of this name",
        source=source,
        line=line,
        field=name,
        remedy=f"{listed}choose one with --option {option}=NAME",
    )


def torn(text: str) -> bool:
    """Whether a text holds half a character: JSON may escape one (`\\ud800`), UTF-8 cannot write it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def torn_text(source: str, line: int | None = None, name: str | None = None) -> DataError:
    """The error for a text that is `torn`."""
    return DataError(
        "half a character (a lone surrogate)",
        source=source,
        line=line,
        field=name,
        remedy="write the text again as UTF-8, or leave it out",
    )


def record_from(
    row: Mapping[str, Any],
    name: str,
    id_field: str | None,
    document_field: str | None,
    keep: Sequence[str],
    source: str,
    line: int,
    problems: Problems,
) -> Record | None:
    """The record of one row, or None after handing a row without text to `problems`."""
    raw = row[name]
    if not isinstance(raw, str) or not raw or raw.isspace():
        reason = "no text in the field" if raw is None or isinstance(raw, str) else "the field holds no text"
        error = DataError(
            reason, source=source, line=line, field=name, remedy="fill it in, or name another field"
        )
        problems.bad(error, None)
        return None
    if torn(raw):
        problems.bad(torn_text(source, line, name), json.dumps(row, default=str))
        return None
    document = None if document_field is None or row[document_field] is None else str(row[document_field])
    return Record(
        id=f"{Path(source).name}:{line}" if id_field is None else str(row[id_field]),
        raw=raw,
        source=source,
        line=line,
        document=document,
        meta={key: row[key] for key in keep if key in row},
    )
