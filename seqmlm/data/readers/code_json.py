"""Code in JSON: objects line by line, or one array of them, as CodeSearchNet and its descendants have it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from seqmlm.data.files import MAX_BYTES, lines, source_of, too_long
from seqmlm.data.near_duplicates import NearDuplicates
from seqmlm.data.problems import Problems
from seqmlm.data.readers.fields import missing, record_from
from seqmlm.data.record import Record
from seqmlm.errors import DataError
from seqmlm.tokenizers.lexers.source import LANGUAGES, SourceText

_GAP = re.compile(r"[,\s]*")
_FILL = 1 << 16
_FIELDS = ("code", "original_string", "whole_func_string", "content", "code_tokens", "pl_tokens", "text")
_IDS = ("idx", "id", "func_name", "name")
_DOCUMENTS = ("repo", "repo_name", "repository_name", "nwo")


def read_code_json(
    path: str | Path,
    problems: Problems,
    *,
    field: str | None = None,
    id_field: str | None = None,
    document_field: str | None = None,
    language: str | None = None,
    keep: Sequence[str] = (),
    near_duplicates: float = 0.0,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Record]:
    """Read JSON lines or a JSON array of objects (also .gz, .zst, "-").

    Args:
        path: the file.
        problems: receives what is not an object, or has no code in the field; counts near duplicates.
        field: key of the code, text or a list of tokens (joined by spaces); None takes the first of "code",
            "original_string", "whole_func_string", "content", "code_tokens", "pl_tokens" and "text" there is.
        id_field, document_field: keys of the record's id and of its repository; None looks for the usual
            ones.
        language: of the code; None takes the object's own "language", else what the file is called
            ("go.jsonl").
        keep: further keys that go into `meta`, where present.
        near_duplicates: likeness from which a text counts as a copy of an earlier one and is left out, in
            (0, 1]; 0 keeps all.
        max_bytes: longest line or object.
    """
    source = source_of(path)
    named = Path(source).name.split(".")[0].lower()
    known = NearDuplicates(near_duplicates) if near_duplicates else None
    for number, row in _objects(source, problems, max_bytes):
        name = field or next((one for one in _FIELDS if one in row), _FIELDS[0])
        wanted = [one for one in (name, id_field, document_field) if one is not None]
        absent = next((one for one in wanted if one not in row), None)
        if absent is not None:
            problems.bad(missing(absent, row, source, number, "field", problems), json.dumps(row))
            continue
        if isinstance(row[name], list):
            problems.note("a list of tokens, joined by spaces")
            row = {**row, name: " ".join(map(str, row[name]))}
        own = id_field or next((one for one in _IDS if one in row), None)
        document = document_field or next((one for one in _DOCUMENTS if one in row), None)
        record = record_from(row, name, own, document, keep, source, number, problems)
        if record is None:
            continue
        if known is not None and known.seen(record.raw):
            problems.note("a near duplicate, skipped")
            continue
        spoken = language or str(row.get("language") or (named if named in LANGUAGES else "")).lower()
        yield _with_language(record, spoken)


def _with_language(record: Record, language: str) -> Record:
    return Record(
        id=record.id,
        raw=SourceText(record.raw, language),
        source=record.source,
        line=record.line,
        document=record.document,
        meta={**record.meta, "language": language},
    )


def _objects(source: str, problems: Problems, max_bytes: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(line it begins on, object) of every object of the file."""
    numbered = lines(source, problems, max_bytes=max_bytes)
    first = next(((number, text) for number, text in numbered if text and not text.isspace()), None)
    if first is None:
        return
    if first[1].lstrip().startswith("["):
        found = _of_array(first, numbered, source, max_bytes, problems)
    else:
        found = _of_lines(chain([first], numbered), source, problems)
    for number, row in found:
        if isinstance(row, dict):
            yield number, row
        else:
            problems.bad(_not_an_object(source, number), json.dumps(row))


def _of_lines(
    numbered: Iterator[tuple[int, str]], source: str, problems: Problems
) -> Iterator[tuple[int, Any]]:
    for number, text in numbered:
        if text and not text.isspace():
            try:
                yield number, json.loads(text)
            except (ValueError, RecursionError):
                problems.bad(_not_an_object(source, number), text)


def _between(text: str, at: int) -> int:
    """Where the next item begins: behind commas and white space."""
    found = _GAP.match(text, at)
    return at if found is None else found.end()


def _of_array(
    first: tuple[int, str],
    numbered: Iterator[tuple[int, str]],
    source: str,
    max_bytes: int,
    problems: Problems,
) -> Iterator[tuple[int, Any]]:
    """The items of an array, one in memory at a time.

    Items are decoded from a buffer that is filled up when its first item has no end yet, by as much again as
    it holds, so that a large item costs no more attempts than its size doubles.
    """
    decode = json.JSONDecoder().raw_decode
    begins, held = first[0], [first[1].lstrip()[1:]]
    while True:
        rest, at = "\n".join(held), 0
        while True:
            skipped = _between(rest, at)
            begins += rest.count("\n", at, skipped)
            at = skipped
            if rest[at : at + 1] in ("", "]"):
                break
            try:
                value, end = decode(rest, at)
            except (ValueError, RecursionError):
                break
            yield begins, value
            begins += rest.count("\n", at, end)
            at = end
        if rest[at : at + 1] == "]":
            return
        held, size = [rest[at:]], len(rest) - at
        enough = size + max(size, _FILL)
        if size > max_bytes:
            problems.bad(too_long(source, begins, max_bytes, "object"))
            return
        while size < enough:
            following = next(numbered, None)
            if following is None:
                break
            held.append(following[1])
            size += len(following[1]) + 1
        if len(held) == 1:
            if rest[at:].strip(", \t\r\n"):
                problems.bad(_not_an_object(source, begins), rest[at : at + 1000])
            return


def _not_an_object(source: str, line: int) -> DataError:
    return DataError(
        "not a JSON object",
        source=source,
        line=line,
        remedy="write one object a line, or an array of them, or name the format the file really has",
    )
