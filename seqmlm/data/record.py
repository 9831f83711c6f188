"""A record: one sequence of a user's file, with its file and line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Record:
    """A sequence in the raw form of its field.

    Args:
        id: the name in the file (a FASTA id, a CoNLL-U sent_id), or else "<file name>:<line>".
        raw: the sequence. It is a str if the field has text (sentence, protein, log line).
        source: the file. "-" is standard input.
        line: the line where it starts, from 1.
        document: name of the document it belongs to (article, session, patient), or None.
        meta: other fields of the file. They are not needed for training.
    """

    id: str
    raw: Any
    source: str
    line: int
    document: str | None
    meta: Mapping[str, Any]

    # Written by hand, because the generated method takes twice the time, which is most of the cost of reading
    # a line.
    def __init__(
        self,
        *,
        id: str,
        raw: Any,
        source: str,
        line: int,
        document: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        _set_id(self, id)
        _set_raw(self, raw)
        _set_source(self, source)
        _set_line(self, line)
        _set_document(self, document)
        _set_meta(self, {} if meta is None else meta)


_set_id, _set_raw, _set_source, _set_line, _set_document, _set_meta = (
    Record.__dict__[name].__set__ for name in ("id", "raw", "source", "line", "document", "meta")
)


def encodable(value: Any) -> Any:
    r"""The value with escapes for lone surrogates. JSON can contain them, but UTF-8 and databases cannot.

    Lone surrogates represent bytes in a file name that are not UTF-8.

    >>> encodable({"source": "lat\udce9in.py"})
    {'source': 'lat\\udce9in.py'}
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: encodable(part) for key, part in value.items()}
    return [encodable(part) for part in value] if isinstance(value, list) else value
