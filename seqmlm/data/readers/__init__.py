"""One module a format; `read` picks by suffix, below .gz or .zst."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from seqmlm.data.files import expand, stem_suffix
from seqmlm.data.problems import Problems
from seqmlm.data.readers.fasta import read_a3m, read_fasta
from seqmlm.data.readers.text import read_txt
from seqmlm.data.record import Record
from seqmlm.errors import UsageError, nearest

Reader = Callable[..., Iterator[Record]]
"""`reader(path, problems, **options) -> Iterator[Record]`."""

READERS: Mapping[str, Reader] = {
    "txt": read_txt,
    "fasta": read_fasta,
    "a3m": read_a3m,
    "a2m": read_a3m,
}
"""Format name to the reader of one file."""

SUFFIXES: Mapping[str, str] = {
    ".txt": "txt",
    ".text": "txt",
    ".fasta": "fasta",
    ".fa": "fasta",
    ".faa": "fasta",
    ".fna": "fasta",
    ".ffn": "fasta",
    ".fas": "fasta",
    ".mfa": "fasta",
    ".afa": "fasta",
    ".a3m": "a3m",
    ".a2m": "a2m",
}
"""File suffix to format name."""


def read(
    paths: Iterable[str | Path],
    problems: Problems,
    *,
    format: str | None = None,
    default: str = "txt",
    readers: Mapping[str, Reader] = READERS,
    **options: Any,
) -> Iterator[Record]:
    """Read files and folders one after the other, as one stream.

    Args:
        paths: files, folders (walked in sorted order) and "-".
        problems: receives whatever cannot be read.
        format: name of the format of all of them; None goes by each file's suffix.
        default: format where the suffix says nothing ("-", unknown suffixes).
        readers: formats that are known here.
        options: passed to the readers.

    Raises:
        UsageError: an unknown format, or an option the reader does not have.
        DataError: a path that does not exist; whatever `problems` raises.
    """
    if format is not None and format not in readers:
        raise UsageError(f"unknown format {format!r}{nearest(format, readers)}")
    for path in expand(paths):
        name = format or SUFFIXES.get(stem_suffix(path), default)
        yield from readers.get(name, readers[default])(path, problems, **options)
