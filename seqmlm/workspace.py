"""The folders of a user's runs, stores and caches.

A workspace is one folder: `$SEQMLM_HOME`, or else the current directory.

    mlflow.db      runs and metrics; MLflow's own default name, so that a plain `mlflow ui` shows them
    mlartifacts/   files of those runs
    seqmlm.db      datasets, tokenizers and models, and how they depend on each other
    runs/<name>/   one folder per run: metrics.jsonl, checkpoints, the model
    runs/.cache/   data sets prepared for training; can be deleted at any time
    runs/.inputs/  training data that were read from standard input

`MLFLOW_TRACKING_URI` and `SEQMLM_DATABASE_URL` select other places for the two databases.
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

# A name is used for a folder, an MLflow run and a registered model, and in references such as NAME@ALIAS.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The location of a workspace. Creating the object creates nothing on disk."""

    root: Path
    tracking_uri: str
    """SQLAlchemy URL of a database, or http(s) address of an MLflow server."""
    database_url: str
    """SQLAlchemy URL of the registry of seqmlm."""

    @classmethod
    def locate(cls, root: str | Path | None = None) -> Workspace:
        """Find the workspace: `root`, or else `$SEQMLM_HOME`, or else the current directory."""
        folder = Path(root or os.environ.get("SEQMLM_HOME") or Path.cwd()).expanduser().resolve()
        return cls(
            root=folder,
            tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or _database(folder),
            database_url=os.environ.get("SEQMLM_DATABASE_URL") or f"sqlite:///{folder / 'seqmlm.db'}",
        )

    @property
    def runs(self) -> Path:
        """The folder that contains all run folders."""
        return self.root / "runs"

    @property
    def cache(self) -> Path:
        """The folder of prepared data sets. It is hidden in runs/, where no run can have its name."""
        return self.runs / ".cache"

    @property
    def artifacts(self) -> Path:
        """The folder of MLflow artifacts.

        It is not named `mlruns`, because `mlflow ui` would then ignore mlflow.db.
        """
        return self.root / "mlartifacts"

    def run_dir(self, name: str) -> Path:
        """The folder of the run with this name.

        Raises:
            UsageError: the name cannot be used for a folder, a run and a model.
        """
        return self.runs / check_name(name)

    @property
    def owns_tracking(self) -> bool:
        """Whether MLflow's store is the database of this workspace."""
        return self.tracking_uri == _database(self.root)

    @property
    def tracks_locally(self) -> bool:
        """Whether MLflow's store is a database that this process opens itself, and not a server."""
        return not self.tracking_uri.startswith(("http://", "https://", "databricks"))


def _database(root: Path) -> str:
    return f"sqlite:///{root / 'mlflow.db'}"


def check_name(name: str, kind: str = "run") -> str:
    """Return `name` if it can be used for a folder, a run and a model.

    Raises:
        UsageError: the name contains other characters, is too long, or does not begin with a letter or digit.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a {kind}: use up to 100 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit"
        )
    return name


@contextmanager
def first_use(path: Path, *, wait: float = 120.0) -> Iterator[None]:
    """Context that holds a lock while a store is created or migrated.

    Two processes can therefore not do so at the same time.
    """
    with FileLock(path, wait=wait, holder=f"the store next to {path}"):
        yield
