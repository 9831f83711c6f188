"""Read files with several pieces of code: notebooks, and JSON with code in a field (such as CodeSearchNet).

A notebook is one record, because names are shared between its cells. Each JSON object is one record. Memory
holds one record at a time, even if the file is an array of objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from seqmlm.data.duplicates import NearDuplicates
from seqmlm.data.files import MAX_BYTES, read_whole, source_of
from seqmlm.data.problems import Problems
from seqmlm.data.readers.huggingface import is_table, numbered_rows
from seqmlm.data.readers.objects import json_rows, json_value
from seqmlm.data.readers.tables import Fields, missing, torn, torn_text
from seqmlm.data.record import Record
from seqmlm.domains.code.lexers.source import LANGUAGES, SourceText
from seqmlm.domains.code.source import SYNTAX, broken_line, package_of_file, reason_to_skip
from seqmlm.errors import DataError
from seqmlm.parsing import Share, word_list

_COMMENTED = "an IPython line, kept as a comment"
_MAGIC = re.compile(r"\s*(?:[%!?]|[\w., *]+=\s*[!%]|[\w.*]+\?\??\s*$)")
_OF_PYTHON = [[name] for name in ("time", "timeit", "capture", "prun", "memit", "python", "python3")]


def read_notebook(path: str | Path, problems: Problems, *, max_bytes: int = MAX_BYTES) -> Iterator[Record]:
    """Read an .ipynb file (format 3 and 4; also .gz, .zst) as one record.

    The text consists of the code cells, with a blank line between cells. Lines for IPython (`%matplotlib
    inline`, `!pip`) become comments and are counted, so that the other lines parse. `meta["cells"]` is the
    number of code cells.

    Args:
        path: the file.
        problems: receives files that are not notebooks. It counts notebooks without code, and notebooks with
            more than 1 MiB of code.
        max_bytes: largest file.
    """
    source = source_of(path)
    try:
        notebook = _notebook_json(source, max_bytes)
        cells = [text for text in _cells(notebook, source) if text.strip()]
        if any(map(torn, cells)):
            raise torn_text(source)
    except DataError as error:
        problems.bad(error)
        return
    if not cells:
        problems.note("a notebook without code, skipped", source=source)
        return
    language = _language(notebook)
    if language == "python":
        cells = [_comment_magic(text, problems) for text in cells]
    text = SourceText("\n\n".join(cells) + "\n", language)
    if (reason := reason_to_skip(text)) is not None:
        problems.note(reason, source=source)
        return
    meta: dict[str, Any] = {"language": language, "cells": len(cells)}
    line = broken_line(text)
    if line is not None:
        problems.note(SYNTAX, source=source, line=line)
        meta["unparsed_line"] = line
    document = package_of_file(Path(source)) if source != "-" else None
    yield Record(id=Path(source).name, raw=text, source=source, line=1, document=document, meta=meta)


def _notebook_json(source: str, max_bytes: int) -> Mapping[str, Any]:
    """The JSON object of a notebook file.

    Raises:
        DataError: the file is not JSON, or not a notebook.
    """
    notebook = json_value(read_whole(source, max_bytes, "notebook"), source, 1, "save the notebook again")
    if isinstance(notebook, dict) and ("cells" in notebook or "worksheets" in notebook):
        return notebook
    raise DataError("not a notebook", source=source, remedy="give the format of the file with --format")


def _cells(notebook: Mapping[str, Any], source: str) -> Iterator[str]:
    """The text of each code cell.

    Raises:
        DataError: the cells are not a list of objects, or the source of a cell is not text.
    """
    for sheet in _dicts(notebook.get("worksheets") or [notebook], source):
        for cell in _dicts(sheet.get("cells", []), source):
            if cell.get("cell_type") == "code":
                text = cell.get("source", cell.get("input", ""))
                pieces = text if isinstance(text, list) else [text]
                if not all(isinstance(piece, str) for piece in pieces):
                    raise _no_notebook("the source of a cell is not text", source)
                yield "".join(pieces)


def _dicts(parts: Any, source: str) -> list[Mapping[str, Any]]:
    """A value of a notebook as a list of objects. It is a DataError if it is not a list of objects."""
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise _no_notebook("the cells are not a list of objects", source)
    return parts


def _no_notebook(why: str, source: str) -> DataError:
    return DataError(f"not a notebook: {why}", source=source, remedy="save the notebook again")


def _language(notebook: Mapping[str, Any]) -> str:
    """The language in the metadata of a notebook, in lower case; "python" if it has none."""
    meta = notebook.get("metadata")
    if isinstance(meta, dict):
        for key, name in (("language_info", "name"), ("kernelspec", "language")):
            part = meta.get(key)
            if isinstance(part, dict) and isinstance(part.get(name), str):
                return str(part[name]).lower()
    return "python"


def _comment_magic(text: str, problems: Problems) -> str:
    """The text of a cell in which lines for IPython are comments. Pure Python is not changed."""
    first, line_end, body = text.lstrip().partition("\n")
    if first.startswith("%%"):
        if first[2:].split(maxsplit=1)[:1] not in _OF_PYTHON:
            problems.note("a notebook cell in another language, kept as comments")
            return "\n".join("# " + line for line in text.split("\n"))
        problems.note(_COMMENTED)
        return f"# {first}{line_end}{_comment_magic(body, problems)}"
    if broken_line(SourceText(text, "python")) is None:
        return text  # lines that begin with these signs are then inside of strings
    lines = text.split("\n")
    changed = ["# " + line if _MAGIC.match(line) else line for line in lines]
    problems.note(_COMMENTED, sum(a != b for a, b in zip(lines, changed, strict=True)))
    return "\n".join(changed)


# Code in JSON

_FIELDS = word_list("code func original_string whole_func_string content code_tokens pl_tokens text")
_IDS = ("idx", "id", "func_name", "name")
_DOCUMENTS = ("repo", "repo_name", "repository_name", "nwo")


def read_code_json(
    path: str | Path,
    problems: Problems,
    *,
    text: str | None = None,
    field: str | None = None,
    id_field: str | None = None,
    document_field: str | None = None,
    language: str | None = None,
    keep: Sequence[str] = (),
    near_duplicates: Share = 0.0,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Record]:
    """Read JSON lines or a JSON array of objects (also .gz, .zst, "-"), or the rows of a data set.

    Args:
        path: the file, a Parquet file, a folder that `datasets` saved, or hf:NAME[:SPLIT].
        problems: receives rows that are not objects, and objects without code. It counts near duplicates and
            code of more than 1 MiB. Both are left out.
        text: another name of `field`, which the data sets of all fields have.
        field: key of the code, which is text or a list of tokens (joined with spaces). None uses the first of
            "code", "func", "original_string", "whole_func_string", "content", "code_tokens", "pl_tokens" and
            "text" that exists.
        id_field, document_field: keys of the id and of the repository. None searches for common names.
        language: language of the code. None uses the key "language" of the object, or else the name of the
            file ("go.jsonl").
        keep: additional keys that are copied to `meta`, if they exist.
        near_duplicates: similarity in (0, 1] from which a text is a copy of an earlier text and is left out.
            0 keeps all texts.
        max_bytes: longest line or object.
    """
    source = source_of(path)
    file_stem = Path(source).name.split(".")[0].lower()
    near_copies = NearDuplicates(near_duplicates) if near_duplicates else None
    rows = numbered_rows(source, problems) if is_table(source) else None
    if rows is None:
        rows = ((number, row) for number, _, row in json_rows(source, problems, max_bytes=max_bytes))
    for number, row in rows:
        code_key = text or field or next((key for key in _FIELDS if key in row), _FIELDS[0])
        needed = [key for key in (code_key, id_field, document_field) if key is not None]
        absent_key = next((key for key in needed if key not in row), None)
        if absent_key is not None:
            problems.bad(
                missing(absent_key, row, source, number, "field", problems), json.dumps(row, default=str)
            )
            continue
        if isinstance(row[code_key], list):
            problems.note("a list of tokens, joined by spaces")
            row = {**row, code_key: " ".join(map(str, row[code_key]))}
        id_key = id_field or next((key for key in _IDS if key in row), None)
        document_key = document_field or next((key for key in _DOCUMENTS if key in row), None)
        record = Fields(code_key, id_key, document_key, keep).record(row, source, number, problems)
        if record is None:
            continue
        if (reason := reason_to_skip(record.raw)) is not None:
            problems.note(reason, source=source, line=number)
            continue
        if near_copies is not None and near_copies.is_repeat(record.raw):
            problems.note("a near duplicate, skipped")
            continue
        spoken = language or str(row.get("language") or (file_stem if file_stem in LANGUAGES else "")).lower()
        meta = {**record.meta, "language": spoken}
        yield replace(record, raw=SourceText(record.raw, spoken), meta=meta)
