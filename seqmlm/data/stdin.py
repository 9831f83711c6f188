"""Standard input as a file: what has to be read twice, or named by its content, is written down first."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path

from seqmlm.engine.durable import move_into_place
from seqmlm.errors import DataError


def save_stdin(folder: Path, suffix: str = "") -> Path:
    """Write standard input, as it is, into a file named by its content, and return its path.

    The same input gives the same file; only the owner may read it.

    Args:
        folder: made if missing.
        suffix: of the file, such as ".fasta.gz".

    Raises:
        DataError: nothing came.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    handle, name = tempfile.mkstemp(dir=folder, prefix=".stdin-")
    try:
        with os.fdopen(handle, "wb") as out:
            while block := sys.stdin.buffer.read(1 << 20):
                digest.update(block)
                out.write(block)
            if not out.tell():
                raise DataError("nothing came in", source="-", remedy="pipe sequences in, or name a file")
        path = folder / f"stdin-{digest.hexdigest()[:32]}{suffix}"
        move_into_place(Path(name), path)
    except BaseException:
        os.unlink(name)
        raise
    return path
