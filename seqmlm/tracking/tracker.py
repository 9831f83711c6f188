"""The way into MLflow for one workspace: start or resume runs, catch up on lost ones, read them back."""

from __future__ import annotations

import getpass
import logging
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from seqmlm.errors import StateError
from seqmlm.tracking import push, query
from seqmlm.tracking.connection import TrackerDown, connect, hide_password, public, quiet
from seqmlm.tracking.ledger import LEDGER, Ledger
from seqmlm.tracking.query import NAME_TAG, RunInfo
from seqmlm.tracking.remote import Remote, now
from seqmlm.tracking.run import TrackedRun
from seqmlm.workspace import FileLock, InUseError, Workspace

_LOG = logging.getLogger("seqmlm.tracking")
MAX_PARAMS = 59
LOCK = ".lock"
# A loader worker of a killed run may hold files for a few seconds; the lock itself goes with the process.
_LOCK_SECONDS = 2.0


class Tracker:
    """Tracks the runs of a workspace.

    Args:
        workspace: where runs are and which MLflow is theirs.
        warn: told in one sentence when MLflow is away; logging by default.
    """

    def __init__(self, workspace: Workspace, warn: Callable[[str], None] = _LOG.warning) -> None:
        self.workspace, self._warn = workspace, warn

    def start(
        self,
        name: str,
        *,
        experiment: str,
        params: Mapping[str, object],
        tags: Mapping[str, str] | None = None,
        resume: bool = False,
    ) -> TrackedRun:
        """Start a run, or go on with the one of that name.

        Args:
            name: the run's name and folder.
            experiment: MLflow's experiment, made where missing.
            params: what users compare runs by; flat, at most 59.
            tags: more facts, searchable.
            resume: go on under the same run id; params that changed since go to the tag seqmlm.param_drift.

        Raises:
            StateError: the name is taken (without `resume`), there is no such run (with it), or another
                process is at it.
            UsageError: the name is not fit for a run.
        """
        if len(params) > MAX_PARAMS:
            raise ValueError(f"{len(params)} params: log at most {MAX_PARAMS}, those that users compare")
        directory = self.workspace.run_dir(name)
        taken = (directory / LEDGER).exists()
        if taken and not resume:
            raise StateError(f"run {name!r} exists; take another --name, or go on with it by --resume {name}")
        if resume and not taken:
            raise StateError(f"there is no run {name!r} to resume in {self.workspace.runs}")
        lock = FileLock(directory / LOCK, wait=_LOCK_SECONDS, holder=f"run {name!r}")
        lock.acquire()
        try:
            ledger = Ledger.read(directory) if taken else self._new(name, experiment)
            ledger.status, ledger.ended, ledger.complete, ledger.status_sent = "RUNNING", None, False, False
            if ledger.tracking_uri != self.public_uri:
                ledger.forget_sent()
                ledger.tracking_uri = self.public_uri
            ledger.params |= {key: _text(value) for key, value in params.items()}
            ledger.tags |= {**(tags or {}), **_standard_tags(name)}
            ledger.write(directory)
            return TrackedRun(ledger, directory, lock, self.connect, self._say).open()
        except BaseException:
            lock.release()
            raise

    def connect(self) -> Remote:
        """Open MLflow.

        Raises:
            TrackerDown: it does not answer.
        """
        return connect(self.workspace)

    def sync(self) -> dict[str, int]:
        """Complete in MLflow every run that is not being trained now; returns points uploaded by run name.

        A run whose process is gone without a word (kill -9, power) becomes KILLED.

        Raises:
            StateError: MLflow does not answer.
        """
        uploaded: dict[str, int] = {}
        remote: Remote | None = None
        for directory in query.folders(self.workspace.runs):
            if Ledger.read(directory).complete:
                continue
            try:
                with FileLock(directory / LOCK, wait=0):
                    # Only now, under the lock, is the ledger ours to change.
                    ledger = Ledger.read(directory)
                    if ledger.status == "RUNNING":
                        ledger.status, ledger.ended = "KILLED", _last_sign(directory)
                    remote = remote or self._connect_or_explain()
                    with quiet():
                        uploaded[ledger.name] = push.push_all(remote, ledger, directory)
                    ledger.write(directory)
            except InUseError:
                continue
        return uploaded

    def bury_dead(self) -> list[str]:
        """End as KILLED the runs whose process is gone, as far as MLflow can be told; returns their names."""
        buried = []
        for directory in query.folders(self.workspace.runs):
            if Ledger.read(directory).status != "RUNNING":
                continue
            try:
                with FileLock(directory / LOCK, wait=0):
                    ledger = Ledger.read(directory)
                    ledger.status, ledger.ended = "KILLED", _last_sign(directory)
                    self._tell_status(ledger)
                    ledger.write(directory)
                    buried.append(ledger.name)
            except InUseError:
                continue
        return buried

    def runs(self) -> list[RunInfo]:
        """All runs, newest first: MLflow's, and those of run folders that it does not have.

        Where MLflow is away, all come from the folders, with a warning.
        """
        tracked: list[RunInfo] = []
        try:
            if self.has_store:
                with quiet():
                    tracked = query.from_mlflow(self.connect())
        except TrackerDown as error:
            self._warn(f"{error}; showing what the run folders know")
        ids = {run.run_id for run in tracked}
        local = [query.from_folder(folder) for folder in query.folders(self.workspace.runs)]
        lost = [run for run in local if run.run_id is None or run.run_id not in ids]
        return sorted([*tracked, *lost], key=lambda run: run.started, reverse=True)

    def find(self, reference: str, runs: list[RunInfo] | None = None) -> RunInfo:
        """The run called `reference`, or with that id (or its beginning).

        Args:
            reference: name or id. A run of this workspace goes before others of its name in MLflow.
            runs: what `runs()` gave, where it was asked already.

        Raises:
            StateError: there is none, naming the nearest, or there are several.
        """
        runs = self.runs() if runs is None else runs
        directory = self.workspace.runs / reference
        if "/" not in reference and (directory / LEDGER).is_file():
            local = query.from_folder(directory)
            same = (run for run in runs if run.run_id is not None and run.run_id == local.run_id)
            return next(same, local)
        return query.pick(runs, reference)

    def ensure(self) -> None:
        """Open MLflow's store, making it where it is missing.

        Raises:
            StateError: it does not answer.
        """
        self._connect_or_explain()

    def incomplete(self) -> list[str]:
        """Names of ended runs of which MLflow lacks something."""
        ledgers = [Ledger.read(directory) for directory in query.folders(self.workspace.runs)]
        return [ledger.name for ledger in ledgers if ledger.status != "RUNNING" and not ledger.complete]

    @property
    def has_store(self) -> bool:
        """False where MLflow's store is a database file yet to be made, which takes MLflow seconds."""
        path = self.workspace.tracking_uri.removeprefix("sqlite:///")
        return path == self.workspace.tracking_uri or Path(path).exists()

    @property
    def public_uri(self) -> str:
        """The tracking address without a password."""
        return public(self.workspace.tracking_uri)

    def set_alias(self, name: str, version: int, alias: str) -> bool:
        """Show an alias of our registry in MLflow too; False (and a warning) where that was not possible."""
        try:
            remote = self.connect()
            with quiet():
                found = remote.find_version(name, version)
                if found is None:
                    raise TrackerDown(f"model {name} version {version} is not in MLflow")
                remote.set_alias(name, alias, found)
        except Exception as error:
            self._say(f"the alias is not shown in MLflow: {error}")
            return False
        return True

    def _tell_status(self, ledger: Ledger) -> None:
        if ledger.run_id is None:
            return
        try:
            remote = self.connect()
            with quiet():
                push.push_status(remote, ledger)
        except Exception as error:
            self._say(f"run {ledger.name} could not be marked {ledger.status} in MLflow: {error}")

    def _say(self, text: str) -> None:
        self._warn(hide_password(text, self.workspace.tracking_uri))

    def _connect_or_explain(self) -> Remote:
        try:
            return self.connect()
        except TrackerDown as error:
            raise StateError(f"{error}; start it, or correct MLFLOW_TRACKING_URI") from error

    def _new(self, name: str, experiment: str) -> Ledger:
        return Ledger(name=name, experiment=experiment, tracking_uri=self.public_uri, started=now())


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _last_sign(directory: Path) -> int:
    """When a dead run last wrote anything, in milliseconds since 1970."""
    return int(max(path.stat().st_mtime for path in directory.iterdir()) * 1000)


def _standard_tags(name: str) -> dict[str, str]:
    tags = {NAME_TAG: name, "seqmlm.version": version("seqmlm")}
    tags |= {"mlflow.source.name": "seqmlm", "mlflow.source.type": "LOCAL"}
    # A container's user may have no name.
    with suppress(KeyError, OSError):
        tags["mlflow.user"] = getpass.getuser()
    commit = _commit()
    return {**tags, "mlflow.source.git.commit": commit} if commit else tags


def _commit() -> str | None:
    """The git commit seqmlm runs from, where it runs from a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
