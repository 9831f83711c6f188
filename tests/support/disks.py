"""A disk that notes what is done to it, and may fail."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from seqmlm.engine.durable import Disk


class Recording(Disk):
    """Notes each operation as "kind name [new name]", in order, and fails at one kind of them.

    Args:
        fail: "write", "sync" or "rename"; a full disk is what it says.
    """

    def __init__(self, fail: str = "") -> None:
        self.log: list[str] = []
        self._fail = fail

    def _note(self, kind: str, *names: str) -> None:
        self.log.append(" ".join((kind, *names)))
        if kind == self._fail:
            raise OSError(28, os.strerror(28))

    def write(self, handle: IO[bytes], data: bytes | memoryview) -> None:
        self._note("write", str(handle.name).rpartition("/")[2])  # a number where a file has no name yet
        super().write(handle, data)

    def sync(self, path: Path) -> None:
        self._note("sync", path.name)
        super().sync(path)

    def rename(self, source: Path, target: Path) -> None:
        self._note("rename", source.name, target.name)
        super().rename(source, target)

    def remove(self, folder: Path) -> None:
        self._note("remove", folder.name)
        super().remove(folder)
