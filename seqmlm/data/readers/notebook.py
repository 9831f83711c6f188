"""Jupyter notebooks: the code of all cells as one record, because names live across cells."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seqmlm.data.files import MAX_BYTES, blocks, source_of, too_long
from seqmlm.data.problems import Problems
from seqmlm.data.readers.fields import torn, torn_text
from seqmlm.data.readers.source import broken_line
from seqmlm.data.readers.source_rules import package_of_file
from seqmlm.data.record import Record
from seqmlm.errors import DataError
from seqmlm.tokenizers.lexers.source import SourceText

_MAGIC = ("%", "!", "?")


def read_notebook(path: str | Path, problems: Problems, *, max_bytes: int = MAX_BYTES) -> Iterator[Record]:
    """Read an .ipynb file (format 3 and 4; also .gz, .zst): its code cells, a blank line between them.

    Lines for IPython (`%matplotlib inline`, `!pip`) become comments and are counted, so that the rest parses.
    `meta["cells"]` is the number of code cells.

    Args:
        path: the file.
        problems: receives a file that is no notebook; counts those without code.
        max_bytes: of the largest file.
    """
    source = source_of(path)
    try:
        notebook = _loaded(source, max_bytes)
        cells = [text for text in _cells(notebook) if text.strip()]
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
        cells = [_without_magic(text, problems) for text in cells]
    text = SourceText("\n\n".join(cells) + "\n", language)
    meta: dict[str, Any] = {"language": language, "cells": len(cells)}
    line = broken_line(text)
    if line is not None:
        problems.note("does not parse as Python 3: read without a syntax tree", source=source)
        meta["unparsed_line"] = line
    document = package_of_file(Path(source)) if source != "-" else None
    yield Record(id=Path(source).name, raw=text, source=source, line=1, document=document, meta=meta)


def _loaded(source: str, max_bytes: int) -> Mapping[str, Any]:
    parts: list[bytes] = []
    for block in blocks(source):
        parts.append(block)
        if sum(map(len, parts)) > max_bytes:
            raise too_long(source, 1, max_bytes, "notebook")
    try:
        notebook = json.loads(b"".join(parts))
        if isinstance(notebook, dict) and ("cells" in notebook or "worksheets" in notebook):
            return notebook
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise DataError("not JSON", source=source, line=line, remedy="save the notebook again") from None
    raise DataError("not a notebook", source=source, remedy="name the format it really has")


def _cells(notebook: Mapping[str, Any]) -> Iterator[str]:
    sheets = notebook.get("worksheets") or [notebook]
    for sheet in sheets:
        for cell in sheet.get("cells", ()) if isinstance(sheet, dict) else ():
            if isinstance(cell, dict) and cell.get("cell_type") == "code":
                text = cell.get("source", cell.get("input", ""))
                yield "".join(map(str, text)) if isinstance(text, list) else str(text)


def _language(notebook: Mapping[str, Any]) -> str:
    meta = notebook.get("metadata")
    if isinstance(meta, dict):
        for key, name in (("language_info", "name"), ("kernelspec", "language")):
            part = meta.get(key)
            if isinstance(part, dict) and isinstance(part.get(name), str):
                return str(part[name]).lower()
    return "python"


def _without_magic(text: str, problems: Problems) -> str:
    if text.lstrip().startswith("%%"):
        problems.note("a notebook cell in another language, kept as comments")
        return "\n".join("# " + line for line in text.split("\n"))
    lines = text.split("\n")
    changed = ["# " + line if line.lstrip().startswith(_MAGIC) else line for line in lines]
    problems.note(
        "an IPython line, kept as a comment", sum(a != b for a, b in zip(lines, changed, strict=True))
    )
    return "\n".join(changed)
