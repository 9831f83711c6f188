"""A file of an input, written where a test wants it, and what becomes of one with a fault."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from seqmlm.data import lines
from seqmlm.data.problems import Problems
from seqmlm.errors import DataError


def written(path: Path, content: str | bytes) -> Path:
    """Write a file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def all_written(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files by their names in a folder, and return the folder."""
    for name, content in files.items():
        written(folder / name, content)
    return folder


@contextmanager
def in_blocks(data: bytes, size: int) -> Iterator[None]:
    """While it lasts, every file has these bytes, and is read in blocks of that size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            lines, "blocks", lambda *_, **__: (data[i : i + size] for i in range(0, len(data), size))
        )
        yield


def jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """Write JSON lines."""
    return written(path, "".join(json.dumps(row) + "\n" for row in rows))


def rows(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def refused(
    read: Callable[..., Iterable[Any]],
    path: Path,
    message: str,
    kept: Sequence[Any],
    line: int | None,
    **options: Any,
) -> Problems:
    """A fault is raised with its place and a remedy; where it is skipped, the rest is kept.

    Args:
        read: a reader, or `lines`.
        path: of the file.
        message: the expression that the error matches.
        kept: the raw sequences, or lines, of the rest.
        line: of the fault, None for the file as a whole.
    """
    with pytest.raises(DataError, match=message) as caught:
        list(read(path, Problems(), **options))
    assert (caught.value.source, caught.value.line) == (str(path), line)
    assert caught.value.remedy
    problems = Problems("skip")
    assert [getattr(one, "raw", one) for one in read(path, problems, **options)] == list(kept)
    return problems
