"""A name for everything that decides what prepared data holds: an entry is reused only where it fits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from seqmlm.data.files import is_reference
from seqmlm.errors import DataError

WHOLE_BYTES = 64 << 20
"""Files up to this size are hashed whole; of larger ones, size, time of change and samples count."""

_SAMPLE = 1 << 20
_SAMPLES = 16


def file_fingerprint(paths: Iterable[str | Path]) -> str:
    """SHA-256, in hex, of the contents of some files in their order; names and folders do not count.

    A file above `WHOLE_BYTES` counts by its size, the time of its last change and 16 samples of 1 MiB spread
    evenly over it, so that any size takes a moment. A data set (hf:NAME@COMMIT) counts by its name.

    Raises:
        DataError: a file is missing, or is "-": a stream has no fingerprint before it has been read.
    """
    digest = hashlib.sha256()
    for path in map(str, paths):
        if path == "-":
            raise DataError("a stream has no fingerprint", source=path, remedy="save it to a file first")
        if is_reference(path):
            digest.update(path.encode())
            continue
        try:
            digest.update(_one(Path(path)))
        except OSError as error:
            raise DataError(
                f"cannot be read: {error.strerror}", source=path, remedy="check the path"
            ) from None
    return digest.hexdigest()


def combined(**parts: Any) -> str:
    """32 hex digits that name a combination of JSON values (file fingerprint, tokenizer hash, options).

    >>> combined(a=1, b="x") == combined(b="x", a=1) != combined(a=2, b="x")
    True
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _one(path: Path) -> bytes:
    stat = path.stat()
    digest = hashlib.sha256(stat.st_size.to_bytes(8, "little"))
    with path.open("rb") as handle:
        if stat.st_size <= WHOLE_BYTES:
            while block := handle.read(_SAMPLE):
                digest.update(block)
        else:
            digest.update(stat.st_mtime_ns.to_bytes(16, "little", signed=True))
            last = stat.st_size - _SAMPLE
            for i in range(_SAMPLES):
                handle.seek(last * i // (_SAMPLES - 1))
                digest.update(handle.read(_SAMPLE))
    return digest.digest()
