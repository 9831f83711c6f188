"""A file of an input, written where a test wants it."""

from __future__ import annotations

from pathlib import Path


def written(path: Path, content: str | bytes) -> Path:
    """Write a file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
