"""Where a user's runs, stores and caches are.

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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from seqmlm.engine.durable import FileLock
from seqmlm.errors import UsageError

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
            tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or _database(folder),
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
    def owns_tracking(self) -> bool:
        """Whether MLflow's store is the workspace's own database."""
        return self.tracking_uri == _database(self.root)

    @property
    def tracks_locally(self) -> bool:
        """Whether MLflow's store is a database that this process opens itself, not a server it talks to."""
        return not self.tracking_uri.startswith(("http://", "https://", "databricks"))


def _database(root: Path) -> str:
    return f"sqlite:///{root / 'mlflow.db'}"


def check_name(name: str, kind: str = "run") -> str:
    """Return `name` where it can name a folder, a run and a model.

    Raises:
        UsageError: otherwise.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a {kind}: use up to 100 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit"
        )
    return name


@contextmanager
def first_use(path: Path, *, wait: float = 120.0) -> Iterator[None]:
    """Hold the lock that keeps two processes from creating or migrating the same store at once."""
    with FileLock(path, wait=wait, holder=f"the store beside {path}"):
        yield
