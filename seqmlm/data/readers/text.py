"""Plain text: a sequence a line, or a sequence a paragraph."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from seqmlm.data.files import MAX_BYTES, lines, source_of, too_long
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record


def read_txt(
    path: str | Path, problems: Problems, *, paragraphs: bool = False, max_bytes: int = MAX_BYTES
) -> Iterator[Record]:
    """Read a text file (also .gz, .zst, "-"); lines of white space only separate and are no records.

    Args:
        path: the file.
        problems: receives lines that cannot be read.
        paragraphs: a record is a run of lines up to a blank one (its line ends stay in `raw`), not a line.
        max_bytes: longest line or paragraph.
    """
    source, name = source_of(path), Path(path).name
    numbered = lines(source, problems, max_bytes=max_bytes)
    if paragraphs:
        numbered = _paragraphs(numbered, source, problems, max_bytes)
    for number, text in numbered:
        if text and not text.isspace():
            yield Record(id=f"{name}:{number}", raw=text, source=source, line=number)


def _paragraphs(
    numbered: Iterator[tuple[int, str]], source: str, problems: Problems, max_bytes: int
) -> Iterator[tuple[int, str]]:
    held: list[str] = []
    start, size, over = 0, 0, False
    for number, text in chain(numbered, [(0, "")]):
        if text and not text.isspace():
            start = start or number
            size += len(text) + 1
            over = over or size > max_bytes
            if over:
                held = []
            else:
                held.append(text)
            continue
        if over:
            problems.bad(too_long(source, start, max_bytes, "paragraph"))
        elif held:
            yield start, "\n".join(held)
        held, start, size, over = [], 0, 0, False
