"""Fingerprints of the contents of files, and of combinations of settings.

For large files, only samples are hashed. A modified file with the same size and modification time may
therefore not be noticed. In exchange, hundreds of gigabytes are not read twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from seqmlm.data.files import is_reference, require_file
from seqmlm.errors import DataError

WHOLE_BYTES = 64 << 20
"""Files up to this size are hashed as a whole.

For larger files, size, modification time and samples are hashed.
"""

_SAMPLE = 1 << 20
_SAMPLES = 16


def file_fingerprint(paths: Iterable[str | Path]) -> str:
    """SHA-256, in hex, of the contents of files in order. Their names and folders have no effect.

    A file larger than `WHOLE_BYTES` is represented by its size, its modification time and 16 evenly spaced
    samples of 1 MiB. A data set (hf:NAME@COMMIT) is represented by its name.

    Raises:
        DataError: a file is missing or not regular, or is "-".
    """
    digest = hashlib.sha256()
    for path in map(str, paths):
        if path == "-":
            raise DataError("a stream has no fingerprint", source=path, remedy="save it to a file first")
        if is_reference(path):
            digest.update(path.encode())
            continue
        require_file(path)
        try:
            digest.update(_one(Path(path)))
        except OSError as error:
            raise DataError(
                f"cannot be read: {error.strerror}", source=path, remedy="check the path"
            ) from None
    return digest.hexdigest()


def combined(**parts: Any) -> str:
    """A hash (32 hex digits) of a combination of JSON values (file fingerprint, tokenizer hash, options).

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
