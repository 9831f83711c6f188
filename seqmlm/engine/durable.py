"""Writing that survives a kill or a power cut, in one place, so that a test can stop at each operation; and
reading JSON that may be damaged or hostile.

Every file that must never be seen half-written goes through here: checkpoints, run records, cursors, reports.
Nothing heavy is imported, so that any part of the package can use it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

LARGEST_JSON = 256 << 20
"""Bytes of a JSON file of a model, a run or a workspace; a vocabulary of a million words has about 50 MiB."""
DEEPEST_JSON = 64
_LONGEST_NUMBER = 300  # digits: the largest float has 309


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


def replace_file(path: Path, data: bytes | Callable[[IO[bytes]], object], *, mode: int = 0o666) -> None:
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


def entry_of(path: Path) -> dict[str, int | str]:
    """The manifest entry {size, sha256} of a file that is there.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
        return {"size": os.fstat(handle.fileno()).st_size, "sha256": digest}


def matches(path: Path, entry: Mapping[str, int | str]) -> bool:
    """Whether a file has the size and SHA-256 of its manifest entry."""
    return path.is_file() and path.stat().st_size == entry["size"] and entry_of(path) == dict(entry)


@contextmanager
def owner_only(private: bool = True) -> Iterator[None]:
    """Within it, files and folders that this process makes are readable by their owner alone.

    The process's umask: it also holds for files that libraries make, for other threads, and for processes
    that are started within it.

    Args:
        private: False changes nothing.
    """
    if not private:
        yield
        return
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def read_json(path: Path, *, largest: int = LARGEST_JSON, finite: bool = False) -> Any:
    """Read a JSON file that may be damaged, or made to do harm, in bounded memory.

    Args:
        path: the file.
        largest: bytes; a larger file is not read.
        finite: refuse NaN and infinity, which Python reads and JSON does not have.

    Raises:
        ValueError: it is not UTF-8, not JSON, too large, nested more than `DEEPEST_JSON` deep, or holds a
            number that is none; the message says which.
        OSError: it cannot be read, or is no regular file.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with open(path, "rb") as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise ValueError(f"it has more than {largest} bytes")
    return parse_json(data, finite=finite)


def parse_json(data: bytes | str, *, finite: bool = False) -> Any:
    """Parse JSON as `read_json` does.

    Raises:
        ValueError: as `read_json`.
    """

    def constant(name: str) -> float:
        if finite:
            raise ValueError(f"it holds {name}, which is no number")
        return float(name)

    def real(text: str) -> float:
        value = float(text)
        return value if math.isfinite(value) else constant(text[:20])

    def integer(text: str) -> int:
        if len(text) > _LONGEST_NUMBER:
            raise ValueError(f"it holds a number of {len(text)} digits")
        return int(text)

    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        value = json.loads(text, parse_constant=constant, parse_float=real, parse_int=integer)
    except RecursionError:
        raise ValueError(f"it is nested more than {DEEPEST_JSON} deep") from None
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(DEEPEST_JSON + 1):
        if not level:
            return value
        inner = (one for outer in level for one in (outer.values() if isinstance(outer, dict) else outer))
        level = [one for one in inner if isinstance(one, (dict, list))]
    raise ValueError(f"it is nested more than {DEEPEST_JSON} deep")
