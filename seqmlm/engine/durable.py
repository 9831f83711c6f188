"""Writing that survives a kill or a power failure, in one place, so that tests can stop at each operation.

All files that must never be half-written are written here: checkpoints, run records, cursors, reports. Only
a regular file is ever replaced. A link, a pipe or a device with the same name stays unchanged. This module
also has the locks that prevent two processes from writing the same file. It imports nothing heavy, so that
every part of the package can use it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from seqmlm.errors import StateError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Disk:
    """The operations that durable files use.

    Tests replace it by a version that fails, or kills the process, at the n-th operation.
    """

    def write(self, handle: IO[bytes], data: bytes | memoryview) -> None:
        """Write all of `data` to an unbuffered file; the system accepts at most 2 GiB per call."""
        unwritten = memoryview(data)
        while unwritten:
            unwritten = unwritten[handle.write(unwritten) :]

    def sync(self, path: Path) -> None:
        """Force a closed file, or the entries of a folder, onto the disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or folder; a regular file with the new name is replaced."""
        os.rename(source, target)

    def remove(self, folder: Path) -> None:
        """Remove a folder with its contents."""
        shutil.rmtree(folder)


DISK = Disk()
"""The `Disk` that all functions here use; tests replace it."""


def is_full(error: OSError) -> bool:
    """Whether an operation failed because of a full disk, a quota or a limit on the file size."""
    return error.errno in _FULL


def replace_file(path: Path, data: bytes | Callable[[IO[bytes]], object], *, mode: int = 0o666) -> None:
    """Replace the contents of a file at once.

    If the process dies at any moment, the file has either its old or its new contents. They are first
    written to a file next to it, which is synced and renamed. Then the folder is synced. A kill may leave
    the temporary file `<name>.<8 hexadecimal digits>.tmp` behind. The next process that writes the same file
    removes it.

    Args:
        path: the file, in a folder that exists; absent or a regular file.
        data: the contents, or a function that writes them to an open binary file.
        mode: permissions of the file from its first byte on, reduced by the umask of the process.

    Raises:
        OSError: the disk is full or cannot be written, or the path is a link, a pipe, a device or a folder.
            The old contents are intact.
    """
    refuse_irregular(path)
    _remove_left_behind(path)
    with _temporary_file(path, mode) as (descriptor, unfinished):
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


def refuse_irregular(path: Path) -> None:
    """Raise an error if the path exists and is not a regular file.

    Raises:
        FileExistsError: the path is a link (whatever its target), a pipe, a socket, a device or a folder.
    """
    kind = irregular_kind(path)
    if kind is not None:
        raise FileExistsError(errno.EEXIST, f"there is {kind} of this name, not a regular file", str(path))


def irregular_kind(path: Path) -> str | None:
    """The kind of a path, such as "a symbolic link", or None for a regular file or a missing path.

    Raises:
        OSError: the path cannot be examined.
    """
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    return None if stat.S_ISREG(mode) else next(name for is_kind, name in _KINDS if is_kind(mode))


_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (lambda mode: True, "a device"),
)


@contextmanager
def _temporary_file(path: Path, mode: int) -> Iterator[tuple[int, Path]]:
    """A new, open file next to `path`; while the context lasts, other processes see that it is in use."""
    while True:
        unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        _hold(descriptor, wait=True)
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # before it was locked, another process removed it as left behind
    lock_descriptor = os.dup(descriptor)  # keeps the lock when the file is closed
    try:
        yield descriptor, unfinished
    finally:
        os.close(lock_descriptor)


_LOOKED_AFTER: set[str] = set()  # files whose temporary files this process has already removed


def _remove_left_behind(path: Path) -> None:
    """Remove temporary files of this name that no process uses.

    It runs once per process and name, because the folder may be long.
    """
    if str(path) in _LOOKED_AFTER:
        return
    _LOOKED_AFTER.add(str(path))
    name = re.compile(re.escape(path.name) + r"\.[0-9a-f]{8}\.tmp")
    with suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if name.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with suppress(OSError):
                    _remove_unheld(entry.path)


def _remove_unheld(file: str) -> None:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if _hold(descriptor):
            os.unlink(file)
    finally:
        os.close(descriptor)


def _hold(descriptor: int, *, wait: bool = False) -> bool:
    """Lock an open file until all its descriptors are closed.

    Returns:
        False if another process has the lock, or if the file cannot be locked.
    """
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def move_into_place(finished: Path, target: Path) -> None:
    """Give a finished file or folder its name, after everything in it is on the disk.

    Args:
        finished: the file or folder, under another name in the same file system.
        target: its new name. A file may replace a regular file, a folder may replace an empty folder.

    Raises:
        OSError: the disk refuses, or something else has the name. `finished` still exists, unless only the
            last sync was refused.
    """
    if not finished.is_dir():  # the system itself lets a folder replace only an empty folder
        refuse_irregular(target)
    for path in finished.rglob("*"):
        DISK.sync(path)
    DISK.sync(finished)
    DISK.rename(finished, target)
    DISK.sync(target.parent)


class HashingFile:
    """A file that is being written, with the size and SHA-256 of everything written so far."""

    def __init__(self, handle: IO[bytes]) -> None:
        self._handle = handle
        self.size, self._hash = 0, hashlib.sha256()

    def write(self, data: bytes | memoryview) -> None:
        """Write all of `data`."""
        DISK.write(self._handle, data)
        self._hash.update(data)
        self.size += len(data)

    def entry(self) -> dict[str, int | str]:
        """The entry of the file in a manifest: {size, sha256}."""
        return {"size": self.size, "sha256": self._hash.hexdigest()}


def write_bytes(path: Path, data: bytes) -> dict[str, int | str]:
    """Write and sync a small file; returns its manifest entry {size, sha256}.

    It is for files in a folder that is later renamed as a whole.
    """
    with open(path, "wb", buffering=0) as handle:
        file = HashingFile(handle)
        file.write(data)
    DISK.sync(path)
    return file.entry()


def entry_of(path: Path) -> dict[str, int | str]:
    """The manifest entry {size, sha256} of an existing file.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
        return {"size": os.fstat(handle.fileno()).st_size, "sha256": digest}


def matches(path: Path, entry: Mapping[str, int | str]) -> bool:
    """Whether a file has the size and SHA-256 of its manifest entry."""
    return path.is_file() and path.stat().st_size == entry["size"] and entry_of(path) == dict(entry)


_owner_only_lock = threading.Lock()
_owner_only_umasks: list[int] = []  # the umask before each active `owner_only`, the outermost first


@contextmanager
def owner_only() -> Iterator[None]:
    """Context in which only the owner may read files and folders that this process creates.

    It sets the umask of the process. It therefore also applies to files that libraries create, to other
    threads, and to processes that are started in the context.
    """
    with _owner_only_lock:
        _owner_only_umasks.append(os.umask(0o077))
    try:
        yield
    finally:
        with _owner_only_lock:
            outermost = _owner_only_umasks[0]
            _owner_only_umasks.pop()
            if not _owner_only_umasks:  # threads may leave in a different order than they entered
                os.umask(outermost)


def is_owner_only() -> bool:
    """Whether only the owner may read the files that this process creates now (see `owner_only`)."""
    return bool(_owner_only_umasks)


# Locks


class InUseError(StateError):
    """Another process holds the requested lock."""


class FileLock:
    """An exclusive lock on a file, held by one process (and one thread of it) at a time.

    It is a POSIX record lock. The kernel releases it when the process dies, for whatever reason. Forked
    loader workers do not inherit it. A run that was killed while its workers still live can therefore be
    resumed at once.

    Args:
        path: the lock file, created if missing.
        wait: longest time to wait, in seconds; None for no limit.
        holder: name of the protected thing, for the message.
        remedy: advice for the message if the file cannot be created.
        passing: whether to remove the file when the lock is released. A file with content is kept, because
            lock files have no content.
    """

    _held_names: set[str] = set()  # noqa: RUF012 - one set for the process: record locks do not exclude threads
    _guard = threading.Lock()

    def __init__(
        self,
        path: Path,
        *,
        wait: float | None = None,
        holder: str = "",
        remedy: str = "point SEQMLM_HOME at a writable folder",
        passing: bool = False,
    ) -> None:
        self.path, self.wait, self.holder = path, wait, holder or str(path)
        self._remedy, self._passing, self._name = remedy, passing, os.path.realpath(path)
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            InUseError: another process holds it for longer than `wait`.
            StateError: the file cannot be created.
        """
        deadline = None if self.wait is None else time.monotonic() + self.wait
        while not self._try():
            if deadline is not None and time.monotonic() >= deadline:
                raise InUseError(f"{self.holder} is in use by another process; wait for it or stop it")
            time.sleep(0.05)

    def release(self) -> None:
        """Release the lock; does nothing if it is not held."""
        if self._descriptor is not None:
            with self._guard:
                # A file with content belongs to another program (poetry.lock). The lock file is removed
                # before it is unlocked, so that waiting processes see that it is gone.
                if self._passing and not os.fstat(self._descriptor).st_size:
                    with suppress(OSError):
                        os.unlink(self.path)
                os.close(self._descriptor)
                self._held_names.discard(self._name)
            self._descriptor = None

    @property
    def is_held(self) -> bool | None:
        """Whether a process on this machine holds the lock now; None if this cannot be determined.

        It creates no file.
        """
        with self._guard:
            if self._name in self._held_names:
                return True  # opening and closing the file again would release the lock
            if sys.platform != "linux":
                return None
            import fcntl

            try:
                descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                return False
            except OSError:
                return None
            try:
                request = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                kind = struct.unpack("hhqqi", fcntl.fcntl(descriptor, fcntl.F_GETLK, request))[0]
                return bool(kind != fcntl.F_UNLCK)
            except OSError:
                return None
            finally:
                os.close(descriptor)

    def _try(self) -> bool:
        with self._guard:
            if self._name in self._held_names:
                return False
            while True:
                descriptor = self._open()
                if not _try_lock(descriptor):
                    os.close(descriptor)
                    return False
                if os.fstat(descriptor).st_nlink:
                    break
                os.close(descriptor)  # its holder has removed it in the meantime
            self._descriptor = descriptor
            self._held_names.add(self._name)
            return True

    def _open(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise StateError(f"cannot write {self.path}: {error.strerror}; {self._remedy}") from None

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _try_lock(descriptor: int) -> bool:
    """Lock without waiting; False if another process has the lock."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
