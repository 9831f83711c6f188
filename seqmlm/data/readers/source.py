"""One file of source code is a record: decoded as it says, skipped where there is nothing to learn."""

from __future__ import annotations

import ast
import codecs
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from seqmlm.data.files import blocks, source_of
from seqmlm.data.problems import Problems
from seqmlm.data.readers.source_rules import is_generated, is_minified, package_of_file
from seqmlm.data.record import Record
from seqmlm.errors import DataError
from seqmlm.tokenizers.lexers.source import SourceText, language_of

LARGEST = 1 << 20
"""Bytes of the largest file that somebody wrote by hand."""

Unparsed = Literal["keep", "refuse"]

_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")  # PEP 263, in one of the first two lines
_BLANK = re.compile(rb"^[ \t\f]*(?:#.*)?\r?$")
_SYNTAX = "does not parse as Python 3: read without a syntax tree"


def read_source(
    path: str | Path,
    problems: Problems,
    *,
    language: str | None = None,
    generated: bool = False,
    unparsed: Unparsed = "keep",
    max_bytes: int = LARGEST,
) -> Iterator[Record]:
    """Read a source file (also .gz, .zst, "-") as one record; `document` is its package.

    Args:
        path: the file.
        problems: receives what cannot be decoded, with its line; counts what is skipped: empty, generated,
            minified, binary and very large files; counts Python that does not parse.
        language: of the file; None goes by its name.
        generated: keep generated and minified files.
        unparsed: "refuse" hands Python that does not parse to `problems`, with its line.
        max_bytes: of the largest file.
    """
    source = source_of(path)
    text = text_of(source, problems, language=language, generated=generated, max_bytes=max_bytes)
    if text is None:
        return
    line = broken_line(text)
    if line is not None:
        problems.note(_SYNTAX, source=source, line=line)
        if unparsed == "refuse":
            remedy = "port it, or keep such files with --option unparsed=keep"
            problems.bad(
                DataError("does not parse as Python 3", source=source, line=line, remedy=remedy), text
            )
            return
    meta = {"language": text.language} | ({} if line is None else {"unparsed_line": line})
    package = package_of_file(Path(source)) if source != "-" else None
    yield Record(id=Path(source).name, raw=text, source=source, line=1, document=package, meta=meta)


def text_of(
    source: str, problems: Problems, *, language: str | None, generated: bool, max_bytes: int
) -> SourceText | None:
    """A file's text, or None after telling `problems` why there is none."""
    named = language_of(source.removesuffix(".gz").removesuffix(".zst")) if language is None else language
    try:
        data = _bytes(source, problems, max_bytes)
    except DataError as error:
        if error.reason == "the file is empty":
            problems.note("an empty file, skipped", source=source)
        else:
            problems.bad(error)
        return None
    return (
        None if data is None else text_of_bytes(data, source, problems, language=named, generated=generated)
    )


def text_of_bytes(
    data: bytes, source: str, problems: Problems, *, language: str, generated: bool
) -> SourceText | None:
    """The text of a file's bytes, or None after telling `problems` why there is none; see `text_of`."""
    try:
        text = decoded(data, source, python=language == "python")
    except DataError as error:
        problems.bad(error)
        return None
    reason = None
    if not text or text.isspace():
        reason = "an empty file, skipped"
    elif not generated and is_generated(text):
        reason = "a generated file, skipped"
    elif not generated and is_minified(text):
        reason = "a minified file, skipped"
    if reason is not None:
        problems.note(reason, source=source)
        return None
    return SourceText(text, language)


def broken_line(text: SourceText) -> int | None:
    """Line at which Python stops being Python 3; None where it parses, and for other languages."""
    if text.language != "python":
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the parsed text: invalid escapes, `is` with a literal
        try:
            ast.parse(text)
        except SyntaxError as error:
            return min(error.lineno or 1, text.count("\n") + 1)
        except (ValueError, RecursionError, MemoryError):
            return 1
    return None


def decoded(data: bytes, source: str, *, python: bool) -> str:
    """Text of the bytes of a file.

    Args:
        data: the bytes.
        source: their file.
        python: whether a coding cookie counts (PEP 263).

    Raises:
        DataError: bytes that are not in the file's encoding, with their line; an encoding nobody knows.
    """
    bom = data.startswith(codecs.BOM_UTF8)
    data = data.removeprefix(codecs.BOM_UTF8)
    encoding, line = (_cookie(data) if python and not bom else None) or ("utf-8", 1)
    try:
        text = data.decode(encoding)
        text.encode("utf-8")  # an escape such as raw_unicode_escape's can make half a character
        return text
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        reason = (
            "bytes that are not UTF-8"
            if encoding == "utf-8"
            else "bytes that are not in the declared encoding"
        )
    except (LookupError, UnicodeError):
        reason = "an encoding nobody knows"
    raise DataError(reason, source=source, line=line, remedy="convert it to UTF-8, for example with iconv")


def _cookie(data: bytes) -> tuple[str, int] | None:
    for number, line in enumerate(data[:1000].split(b"\n", 2)[:2], start=1):
        match = _COOKIE.match(line)
        if match:
            return match.group(1).decode("ascii"), number
        if not _BLANK.match(line):
            return None
    return None


def _bytes(source: str, problems: Problems, max_bytes: int) -> bytes | None:
    parts: list[bytes] = []
    size = 0
    for block in blocks(source):
        parts.append(block)
        size += len(block)
        if b"\0" in block:
            problems.note("a binary file, skipped", source=source)
            return None
        if size > max_bytes:
            problems.note("a file larger than the limit, skipped", source=source)
            return None
    return b"".join(parts)
