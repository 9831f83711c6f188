"""Writing that survives a kill or a power cut, in one place, so that a test can stop at each operation.

Every file that must never be seen half-written goes through here: checkpoints, run records, cursors, reports.
Nothing heavy is imported, so that any part of the package can use it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Disk:
    """The operations durable files are made of. Tests replace it by one that fails, or kills, at the n-th."""

    def write(self, handle: IO[bytes], data: bytes | memoryview) -> None:
        """Write all of `data` to an unbuffered file; the system takes at most 2 GiB at a time."""
        rest = memoryview(data)
        while rest:
            rest = rest[handle.write(rest) :]

    def sync(self, path: Path) -> None:
        """Force a closed file, or the entries of a folder, onto the disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def remove(self, folder: Path) -> None:
        shutil.rmtree(folder)


DISK = Disk()
"""What everything here writes with; tests replace it."""


def is_full(error: OSError) -> bool:
    """Whether an operation failed because no more can be stored: full disk, quota or file size limit."""
    return error.errno in _FULL


def replace_file(path: Path, data: bytes | Callable[[IO[bytes]], object], *, mode: int = 0o644) -> None:
    """Give a file new contents at once: whenever the process dies, the old file or the new one is there.

    The contents go to a file beside it, which is synced and renamed; then the folder is synced. A kill may
    leave that file, `<name>.<8 hexadecimal digits>.tmp`, behind.

    Args:
        path: the file, in a folder that exists.
        data: its contents, or a function that writes them to the open binary file it is given.
        mode: permissions of the file from its first byte on; the process's umask takes away from them.

    Raises:
        OSError: the disk is full or cannot be written; the old file is intact.
    """
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        if callable(data):
            with open(descriptor, "wb") as file:
                data(file)
        else:
            with open(descriptor, "wb", buffering=0) as file:
                DISK.write(file, data)
        DISK.sync(unfinished)
        DISK.rename(unfinished, path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
    DISK.sync(path.parent)


def move_into_place(finished: Path, target: Path) -> None:
    """Give a finished file, or folder, its name once everything in it is on the disk.

    Args:
        finished: it, under another name of the same file system.
        target: its name. A file there is replaced; a folder there must be empty.

    Raises:
        OSError: the disk refuses it; `finished` is still there, unless only the last sync was refused.
    """
    for path in finished.rglob("*"):
        DISK.sync(path)
    DISK.sync(finished)
    DISK.rename(finished, target)
    DISK.sync(target.parent)


class Hashed:
    """A file being written, with the size and SHA-256 of what has gone into it."""

    def __init__(self, handle: IO[bytes]) -> None:
        self._handle = handle
        self.size, self._hash = 0, hashlib.sha256()

    def write(self, data: bytes | memoryview) -> None:
        """Write all of `data`."""
        DISK.write(self._handle, data)
        self._hash.update(data)
        self.size += len(data)

    def entry(self) -> dict[str, int | str]:
        """What a manifest says of the file: {size, sha256}."""
        return {"size": self.size, "sha256": self._hash.hexdigest()}


def write_bytes(path: Path, data: bytes) -> dict[str, int | str]:
    """Write and sync a small file of a folder that is renamed as a whole; returns its manifest entry."""
    with open(path, "wb", buffering=0) as handle:
        file = Hashed(handle)
        file.write(data)
    DISK.sync(path)
    return file.entry()


def matches(path: Path, entry: Mapping[str, int | str]) -> bool:
    """Whether a file has the size and SHA-256 of its manifest entry."""
    if not path.is_file() or path.stat().st_size != entry["size"]:
        return False
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest() == entry["sha256"]
