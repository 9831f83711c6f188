"""JSON lines: one object a line, the sequence in one of its fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from seqmlm.data.files import MAX_BYTES, lines, source_of
from seqmlm.data.problems import Problems
from seqmlm.data.readers.fields import missing, record_from
from seqmlm.data.record import Record
from seqmlm.errors import DataError


def read_jsonl(
    path: str | Path,
    problems: Problems,
    *,
    field: str = "text",
    id_field: str | None = None,
    document_field: str | None = None,
    keep: Sequence[str] = (),
    max_bytes: int = MAX_BYTES,
) -> Iterator[Record]:
    """Read a file of JSON objects, one a line (also .gz, .zst, "-"); blank lines are passed over.

    Args:
        path: the file.
        problems: receives lines that are not a JSON object, and objects without text in the field.
        field: key of the sequence.
        id_field: key of the record's id; None names it by its line.
        document_field: key of what the record belongs to.
        keep: further keys that go into `meta`, where present.
        max_bytes: longest line.
    """
    source = source_of(path)
    for number, text in lines(source, problems, max_bytes=max_bytes):
        if not text or text.isspace():
            continue
        try:
            row = json.loads(text)
            if not isinstance(row, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError):
            error = DataError(
                "not a JSON object",
                source=source,
                line=number,
                remedy="write one object a line, or name the format the file really has",
            )
            problems.bad(error, text)
            continue
        wanted = [name for name in (field, id_field, document_field) if name is not None]
        absent = next((name for name in wanted if name not in row), None)
        if absent is not None:
            problems.bad(missing(absent, row, source, number, "field", problems), text)
            continue
        record = record_from(row, field, id_field, document_field, keep, source, number, problems)
        if record is not None:
            yield record
