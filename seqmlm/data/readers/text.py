"""Read plain text with a sequence per line, or per paragraph."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from seqmlm.data.files import MAX_BYTES, source_of, too_long
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.errors import DataError

_SEQUENCE = re.compile(r"[A-Za-z*.-]+\s*")
_LOOKED_AT = 20  # number of lines by which FASTA is recognised
_WRAPPED_LINES, _WRAPPED_SHARE, _WIDEST = 400, 0.6, 120
_WRAPPED = (
    "each line is a record, but they look like those of wrapped paragraphs: --option paragraphs=true makes a "
    "record of a paragraph"
)


def read_txt(
    path: str | Path,
    problems: Problems,
    *,
    paragraphs: bool = False,
    encoding: str = "utf-8",
    max_bytes: int = MAX_BYTES,
) -> Iterator[Record]:
    """Read a text file (also .gz, .zst, "-"). Lines of only white space are separators, not records.

    Args:
        path: the file.
        problems: receives lines that cannot be read, and files that are FASTA.
        paragraphs: whether a record is a paragraph: the lines up to a blank line, with line ends in `raw`.
            Otherwise a record is a line.
        encoding: encoding of the file, by a name that Python knows (latin-1, cp1252, utf-16).
        max_bytes: largest size of a line or paragraph.
    """
    source, name = source_of(path), Path(path).name
    numbered = _texts(lines(source, problems, max_bytes=max_bytes, encoding=str(encoding)), source, problems)
    if not paragraphs:
        for number, text in _wrapped(numbered, source, problems):
            if text and not text.isspace():
                yield Record(id=f"{name}:{number}", raw=text, source=source, line=number)
        return
    for number, block in runs(numbered, max_bytes):
        if block:
            raw = "\n".join(text for _, text in block)
            yield Record(id=f"{name}:{number}", raw=raw, source=source, line=number)
        else:
            problems.bad(too_long(source, number, max_bytes, "paragraph"))


def _texts(numbered: Iterator[tuple[int, str]], source: str, problems: Problems) -> Iterator[tuple[int, str]]:
    """The lines, but none of a FASTA file, because its headers and pieces of sequences are not texts."""
    head = list(islice(numbered, 1))
    if head and head[0][1].startswith(">"):
        head += islice(numbered, _LOOKED_AT)
        texts = [text for _, text in head if text.strip() and not text.startswith(">")]
        if texts and all(map(_SEQUENCE.fullmatch, texts)):
            remedy = "use a model of such sequences, or write one sequence per line without headers"
            problems.bad(DataError("FASTA where text was expected", source=source, line=1, remedy=remedy))
            return
    yield from chain(head, numbered)


def _wrapped(
    numbered: Iterator[tuple[int, str]], source: str, problems: Problems
) -> Iterator[tuple[int, str]]:
    """The lines, with a note if the first lines look wrapped: the next word would not have fitted on them."""
    lengths: list[tuple[int, int]] = []  # of a line, and of the first word below it
    last_text = ""
    for number, text in numbered:
        yield number, text
        if len(lengths) < _WRAPPED_LINES:
            if last_text.strip() and text.strip():
                lengths.append((len(last_text.rstrip()), len(text.split(maxsplit=1)[0])))
                if len(lengths) == _WRAPPED_LINES:
                    width = sorted(length for length, _ in lengths)[-_WRAPPED_LINES // 20]
                    full = sum(length + 1 + word > width for length, word in lengths)
                    looks_so = width <= _WIDEST and full >= _WRAPPED_SHARE * _WRAPPED_LINES
                    problems.note(_WRAPPED, looks_so, source=source)
            last_text = text


def runs(
    numbered: Iterator[tuple[int, str]], max_bytes: int | None = None
) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """Yield (number of the first line, numbered lines) for every run of lines up to a blank line.

    If a line of a run was refused, so that its number is missing, the run is left out with it. For a run of
    more than `max_bytes`, the list of lines is empty.
    """
    lines_held: list[tuple[int, str]] = []
    start, size, due, unbroken = 0, 0, 1, True
    for number, text in chain(numbered, [(0, "")]):
        unbroken = unbroken and number in (due, 0)
        due = number + 1
        if text and not text.isspace():
            start = start or number
            size += len(text) + 1
            if max_bytes is not None and size > max_bytes:
                lines_held = []
            else:
                lines_held.append((number, text))
            continue
        if start and unbroken:
            yield start, lines_held
        lines_held, start, size, unbroken = [], 0, 0, True
