"""Where a user's runs, stores and caches are, and the file locks that keep processes apart there.

A workspace is one folder: `$SEQMLM_HOME`, else the current directory.

    mlflow.db      runs and metrics; MLflow's own default name, so a plain `mlflow ui` here shows them
    mlartifacts/   files of those runs
    seqmlm.db      datasets, tokenizers, models and what came from what
    runs/<name>/   one folder a run: metrics.jsonl, checkpoints, the model
    runs/.cache/   data sets prepared for training; may be deleted at any time
    runs/.inputs/  what came in on standard input and was trained on

`MLFLOW_TRACKING_URI` and `SEQMLM_DATABASE_URL` put the two databases elsewhere.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from seqmlm.errors import StateError, UsageError

# A name is a folder, an MLflow run and a registered model at once, and part of references such as NAME@ALIAS.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """One workspace; making the object creates nothing on disk."""

    root: Path
    tracking_uri: str
    """SQLAlchemy URL of a database, or http(s) address of an MLflow server."""
    database_url: str
    """SQLAlchemy URL of our own registry."""

    @classmethod
    def locate(cls, root: str | Path | None = None) -> Workspace:
        """Find the workspace: `root`, else `$SEQMLM_HOME`, else the current directory."""
        folder = Path(root or os.environ.get("SEQMLM_HOME") or Path.cwd()).expanduser().resolve()
        return cls(
            root=folder,
            tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / 'mlflow.db'}",
            database_url=os.environ.get("SEQMLM_DATABASE_URL") or f"sqlite:///{folder / 'seqmlm.db'}",
        )

    @property
    def runs(self) -> Path:
        """Folder of all run folders."""
        return self.root / "runs"

    @property
    def cache(self) -> Path:
        """Folder of prepared data sets. Hidden under runs/, where no run can have its name."""
        return self.runs / ".cache"

    @property
    def artifacts(self) -> Path:
        """Files of runs tracked in a database. Not `mlruns`: seeing that, `mlflow ui` ignores mlflow.db."""
        return self.root / "mlartifacts"

    def run_dir(self, name: str) -> Path:
        """Folder of the run called `name`.

        Raises:
            UsageError: the name cannot be that of a folder, a run and a model at once.
        """
        return self.runs / check_name(name)

    @property
    def tracks_locally(self) -> bool:
        """Whether MLflow's store is a database that this process opens itself, not a server it talks to."""
        return not self.tracking_uri.startswith(("http://", "https://", "databricks"))


def check_name(name: str, what: str = "run") -> str:
    """Return `name` where it can name a folder, a run and a model.

    Raises:
        UsageError: otherwise.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a {what}: use up to 100 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit"
        )
    return name


class InUseError(StateError):
    """Another process holds the lock of what was asked for."""


class FileLock:
    """An exclusive lock on a file, held by one process (and one thread of it) at a time.

    A POSIX record lock: the kernel drops it when the process dies, however it dies, and forked loader workers
    do not inherit it, so a run killed with its workers still alive can be resumed at once.

    Args:
        path: the lock file; made where missing, never removed (or two processes could lock two files).
        wait: seconds to try for; None means for ever.
        holder: what the file stands for, for the message.
    """

    _held: set[str] = set()  # noqa: RUF012 - one set for the process: record locks do not exclude threads
    _guard = threading.Lock()

    def __init__(self, path: Path, *, wait: float | None = None, holder: str = "") -> None:
        self.path, self.wait, self.holder = path, wait, holder or str(path)
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            InUseError: another process holds it for longer than `wait`.
            StateError: the file cannot be made.
        """
        deadline = None if self.wait is None else time.monotonic() + self.wait
        while not self._try():
            if deadline is not None and time.monotonic() >= deadline:
                raise InUseError(f"{self.holder} is in use by another process; wait for it or stop it")
            time.sleep(0.05)

    def release(self) -> None:
        """Give the lock back; nothing happens where it is not held."""
        if self._descriptor is not None:
            with self._guard:
                os.close(self._descriptor)
                self._held.discard(str(self.path))
            self._descriptor = None

    def _try(self) -> bool:
        with self._guard:
            if str(self.path) in self._held:
                return False
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise StateError(
                    f"cannot write {self.path}: {error.strerror}; point SEQMLM_HOME at a writable folder"
                ) from None
            if not _lock(descriptor):
                os.close(descriptor)
                return False
            self._descriptor = descriptor
            self._held.add(str(self.path))
            return True

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _lock(descriptor: int) -> bool:
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


@contextmanager
def first_use(path: Path, *, wait: float = 120.0) -> Iterator[None]:
    """Hold the lock that keeps two processes from creating or migrating the same store at once."""
    with FileLock(path, wait=wait, holder=f"the store beside {path}"):
        yield
