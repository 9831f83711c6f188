"""A tracked run, and the tracker of a workspace, which starts, synchronises and lists runs."""

from __future__ import annotations

import getpass
import json
import logging
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import psutil

from seqmlm.engine.durable import FileLock, InUseError
from seqmlm.errors import StateError, nearest
from seqmlm.privacy import sensitive_data
from seqmlm.tracking.push import LEDGER, METRICS, SYSTEM, Ledger, MetricsFile, open_run, push
from seqmlm.tracking.store import (
    DRIFT_TAG,
    NAME_TAG,
    RunInfo,
    Store,
    TrackerDown,
    connect,
    decimal,
    first_line,
    hide_password,
    now,
    public,
    quiet,
)
from seqmlm.workspace import Workspace

Status = Literal["FINISHED", "FAILED", "KILLED"]

_LOG = logging.getLogger("seqmlm.tracking")
MAX_PARAMS = 59
LOCK = ".lock"
# A loader worker of a killed run may keep files open for a few seconds. The lock ends with the process.
_LOCK_SECONDS = 2.0
_PUSH_SECONDS = 5.0
_SYSTEM_SECONDS = 5.0
_RETRY_SECONDS = 60.0
_SIGNAL_EXITS = {128 + signal.SIGINT, 128 + signal.SIGTERM}


def _system_metrics() -> dict[str, float]:
    """Use of CPU, memory and GPU memory, under the names that MLflow shows in its "System metrics" tab.

    Percentages are for the whole machine since the last call. Megabytes are for this process.
    """
    values = {
        "cpu_utilization_percentage": psutil.cpu_percent(),
        "system_memory_usage_percentage": psutil.virtual_memory().percent,
        "process_memory_megabytes": psutil.Process().memory_info().rss / 2**20,
    }
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        values["gpu_memory_megabytes"] = torch.cuda.memory_allocated() / 2**20
    return {SYSTEM + key: float(value) for key, value in values.items()}


class TrackedRun:
    """A run that is being tracked; a context manager that records how the run ended.

    Everything is written to the run's folder. A thread sends it to MLflow every few seconds, so that a
    training never waits for MLflow. No method raises if MLflow is unreachable. There is one warning, then a
    new attempt every minute and at the end.

    An exception ends the run as FAILED. Ctrl-C, an exit by signal and `end("KILLED")` end it as KILLED. Any
    other end is FINISHED. Use a run from one process (rank 0) and one thread.
    """

    def __init__(
        self,
        ledger: Ledger,
        directory: Path,
        lock: FileLock,
        connect: Callable[[], Store],
        warn: Callable[[str], None],
    ) -> None:
        self.name, self.directory = ledger.name, directory
        self._ledger, self._lock, self._connect, self._warn = ledger, lock, connect, warn
        self._metrics = MetricsFile(directory / METRICS)
        self._sampled = time.monotonic()
        psutil.cpu_percent()  # begins the first interval
        self._store: Store | None = None
        self._warned = False
        self._pause = _PUSH_SECONDS
        self._writing, self._pushing, self._stop = threading.Lock(), threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run; None until MLflow has answered for the first time."""
        return self._ledger.run_id

    @property
    def offline(self) -> bool:
        """Whether MLflow could not be reached at the last attempt."""
        return self._store is None

    def open(self) -> TrackedRun:
        """Connect to MLflow, and set the run to RUNNING there. `Tracker.start` calls this."""
        self._forget_cut()
        self.flush(connect_only=True)
        return self

    def log_metrics(
        self, step: int, values: Mapping[str, float], details: Mapping[str, Any] | None = None
    ) -> None:
        """Write the metrics of a step to `metrics.jsonl`, from which they are sent to MLflow.

        A value that is not finite becomes null, and is not sent: MLflow would draw infinity as 1.8e308. It
        increases the metric `nonfinite_values` and sets the tag `seqmlm.nonfinite`.

        Args:
            step: number of the optimizer step, 0 or more.
            values: metrics by name.
            details: more values for the file, which are not sent to MLflow.

        Raises:
            StateError: the disk is full.
        """
        extra: dict[str, float] = {}
        if time.monotonic() - self._sampled >= _SYSTEM_SECONDS:
            self._sampled, extra = time.monotonic(), _system_metrics()
        bad = {key: value for key, value in values.items() if not math.isfinite(value)}
        if bad:
            extra["nonfinite_values"] = self._count_nonfinite(step, bad)
        if not {*values, *extra} <= set(self._ledger.metric_keys):
            # The ledger is updated before the line is written: a push skips numbers not listed as metrics.
            with self._ledger_changes() as ledger:
                ledger.metric_keys = sorted({*ledger.metric_keys, *values, *extra})
        self._metrics.write(step, {**values, **(details or {}), **extra})
        if self._thread is None:
            # The thread starts only when there is something to send. Before, the process has one thread, so
            # that reading ahead can fork safely.
            self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
            self._thread.start()

    def cut_metrics(self, step: int) -> None:
        """Remove the metrics of later steps from `metrics.jsonl`: a resumed training runs these steps again.

        If a repeated step has the same values, MLflow shows them once. Otherwise it shows both.
        """
        with self._pushing:
            self._metrics.cut_after(step)
            self._forget_cut()

    def flush(self, *, connect_only: bool = False) -> None:
        """Send everything that MLflow lacks. No error in MLflow may end the training.

        Args:
            connect_only: only connect, and create or reopen the run.
        """
        with self._pushing:
            try:
                with quiet():
                    if self._store is None:
                        store = self._connect()
                        open_run(store, self._ledger, self._save)
                        self._store = store
                    if not connect_only:
                        push(self._store, self._ledger, self.directory)
                self._pause = _PUSH_SECONDS
            except Exception as error:
                self._lost(error)
            # If the ledger cannot be saved, the same data are sent again. The training itself reports a full
            # disk when it writes.
            with suppress(StateError):
                self._save()

    def set_tag(self, key: str, value: str) -> None:
        """Set a tag of the run."""
        with self._ledger_changes() as ledger:
            ledger.tags[key] = value

    def set_numbers(self, values: Mapping[str, float]) -> None:
        """Set numbers as tags. As metrics, each would be a chart with one point."""
        with self._ledger_changes() as ledger:
            ledger.tags |= {key: decimal(value) for key, value in values.items()}

    def artifact(self, path: str | Path, *, of_records: bool = False) -> None:
        """Upload a file, or the contents of a folder, to MLflow with the run.

        The file must not be moved until the run has ended and MLflow has the file.

        Args:
            path: the file or folder.
            of_records: whether it is about single records. For sensitive data it is then not uploaded.
        """
        if of_records and sensitive_data():
            return
        with self._ledger_changes() as ledger:
            ledger.note(ledger.artifacts, {"path": str(Path(path).resolve())}, "path")

    def dataset(
        self,
        name: str,
        source: str,
        digest: str,
        profile: Mapping[str, Any],
        *,
        context: Literal["training", "validation", "scoring"] = "training",
    ) -> None:
        """Record the data that the run reads as an MLflow input. No data are copied.

        Args:
            name: a name for the data.
            source: a path or address. It is withheld for sensitive data.
            digest: our fingerprint. MLflow stores its first 36 characters.
            profile: counts, as JSON values.
            context: the purpose of the data.
        """
        source = "withheld" if sensitive_data() else source
        entry = {"name": name, "source": source, "digest": digest[:36], "context": context}
        with self._ledger_changes() as ledger:
            ledger.note(ledger.datasets, {**entry, "profile": dict(profile)}, *entry)

    def uses(self, name: str, version: int) -> None:
        """Link the run to a registered model that it reads, as an MLflow input.

        Args:
            name: name of the model.
            version: version in our registry. If MLflow does not have it, no link is made.
        """
        with self._ledger_changes() as ledger:
            ledger.note(ledger.inputs, {"name": name, "version": version}, "name", "version")

    def register(
        self,
        name: str,
        directory: str | Path,
        *,
        version: int,
        metrics: Mapping[str, float],
        dataset: str | None = None,
        params: Mapping[str, Any] | None = None,
        aliases: Sequence[str] = (),
        withheld: Sequence[str] = (),
    ) -> None:
        """Register a model folder as a version of a model in MLflow. The folder is not moved.

        Args:
            name: name of the registered model.
            directory: the model folder.
            version: version in our registry, stored as the tag `seqmlm.version`. MLflow has its own numbers.
            metrics: final metrics.
            dataset: name of the data set (see `dataset`) that the metrics were measured on.
            params: facts about the model: domain, tokenizer, masker.
            aliases: aliases that the version gets.
            withheld: names of files that are not uploaded.
        """
        with self._ledger_changes() as ledger:
            used = next((entry for entry in ledger.datasets if entry["name"] == dataset), None)
            entry = {
                "name": name,
                "directory": str(Path(directory).resolve()),
                "version": version,
                "metrics": {key: float(value) for key, value in metrics.items() if math.isfinite(value)},
                "params": {key: str(value) for key, value in (params or {}).items()},
                "aliases": list(aliases),
                "withheld": list(withheld),
                "dataset": {"dataset_name": used["name"], "dataset_digest": used["digest"]} if used else {},
                "tags": {"seqmlm.version": str(version)},
                "model_id": None,
            }
            ledger.note(ledger.models, entry, "name", "version")

    def end(self, status: Status = "FINISHED") -> None:
        """End the run, and send the rest to MLflow. Only the first call has an effect."""
        if self._ledger.status != "RUNNING":
            return
        try:
            with self._ledger_changes() as ledger:
                ledger.status, ledger.ended = status, now()
        finally:
            # MLflow gets the status even if the disk is full and the ledger could not be written.
            self._stop.set()
            if self._thread is not None:
                self._thread.join()
            self.flush()
        if not self._ledger.complete:
            self._warn(f"run {self.name} is not complete in MLflow; `seqmlm runs sync` uploads the rest")
        self._lock.release()

    def __enter__(self) -> TrackedRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        killed = isinstance(error, KeyboardInterrupt)
        failed = error is not None
        if isinstance(error, SystemExit):
            killed, failed = error.code in _SIGNAL_EXITS, error.code not in (None, 0)
        try:
            if failed and not killed and self._ledger.status == "RUNNING":
                with suppress(StateError):
                    self.set_tag("seqmlm.error", f"{type(error).__name__}: {error}"[:500])
            self.end("KILLED" if killed else "FAILED" if failed else "FINISHED")
        finally:
            self._lock.release()

    def _count_nonfinite(self, step: int, bad: Mapping[str, float]) -> float:
        self._metrics.nonfinite += len(bad)
        count = self._metrics.nonfinite
        self.set_tag("seqmlm.nonfinite", f"{count} values; last at step {step}: {dict(bad)}"[:500])
        return float(count)

    @contextmanager
    def _ledger_changes(self) -> Iterator[Ledger]:
        """The ledger, to be changed within the context. It is written at the end, under a lock."""
        with self._writing:
            yield self._ledger
            self._ledger.write(self.directory)

    def _save(self) -> None:
        with self._ledger_changes():
            pass

    def _forget_cut(self) -> None:
        """Set MLflow's offset back to the end of a file that was cut, so that later lines are sent again."""
        if self._ledger.offset > self._metrics.size:
            with self._ledger_changes() as ledger:
                ledger.offset = self._metrics.size

    def _work(self) -> None:
        while not self._stop.wait(self._pause):
            self.flush()

    def _lost(self, error: Exception) -> None:
        self._store, self._pause = None, _RETRY_SECONDS
        if not self._warned:
            self._warned = True
            cause = "" if isinstance(error, TrackerDown) else "MLflow failed: "
            self._warn(
                f"{cause}{first_line(error)}; the run continues and stores its metrics in "
                f"{self.directory / METRICS}. MLflow is synchronised once it is reachable"
            )


class Tracker:
    """The tracker of a workspace: starts, resumes, synchronises and lists its runs.

    Args:
        workspace: the workspace.
        warn: receives warnings, such as an unreachable MLflow; also called from another thread.
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
        spent: float = 0.0,
    ) -> TrackedRun:
        """Start a run, or resume the run with this name.

        Args:
            name: name of the run, and of its folder.
            experiment: name of the MLflow experiment.
            params: settings by which users compare runs; flat, at most 59.
            tags: more facts, which can be searched.
            resume: continue with the same run id. Changed params are stored in the tag seqmlm.param_drift.
            spent: seconds that a new run has already taken.

        Raises:
            StateError: the name is taken (without `resume`), there is no such run (with `resume`), or another
                process uses the run.
            UsageError: the name is not allowed.
        """
        if len(params) > MAX_PARAMS:
            raise ValueError(
                f"{len(params)} parameters are too many: log at most {MAX_PARAMS}, namely parameters that "
                "users compare"
            )
        directory = self.workspace.run_dir(name)
        exists = (directory / LEDGER).exists()
        if exists and not resume:
            raise StateError(f"run {name!r} exists; take another --name, or continue it with --resume {name}")
        if resume and not exists:
            raise StateError(f"there is no run {name!r} to resume in {self.workspace.runs}")
        lock = FileLock(directory / LOCK, wait=_LOCK_SECONDS, holder=f"run {name!r}")
        lock.acquire()
        try:
            ledger_of_run = Ledger(name=name, experiment=experiment, tracking_uri=self.public_uri)
            ledger_of_run.started = now() - round(1000 * spent)
            ledger = Ledger.read(directory) if exists else ledger_of_run
            ledger.status, ledger.ended, ledger.complete = "RUNNING", None, False
            if ledger.tracking_uri != self.public_uri:
                ledger.forget_sent()
                ledger.tracking_uri = self.public_uri
            _set_params(ledger, params)
            ledger.tags |= {**(tags or {}), **_standard_tags(name)}
            ledger.write(directory)
            return TrackedRun(ledger, directory, lock, self.connect, self._say).open()
        except BaseException:
            lock.release()
            raise

    def connect(self) -> Store:
        """Connect to MLflow.

        Raises:
            TrackerDown: MLflow does not answer.
        """
        return connect(self.workspace)

    def sync(self, *, dead_only: bool = False) -> dict[str, int]:
        """Upload everything that MLflow lacks, for all runs that are not running now.

        A run whose process died without recording its end (kill -9, power failure) becomes KILLED.

        Args:
            dead_only: only consider runs whose process died.

        Returns:
            The number of uploaded points by run name.

        Raises:
            StateError: MLflow does not answer. The status KILLED is recorded nevertheless.
        """
        uploaded: dict[str, int] = {}
        failure: StateError | None = None
        store: Store | None = None
        for directory in self._folders():
            ledger = Ledger.read(directory)
            if ledger.complete or (dead_only and ledger.status != "RUNNING"):
                continue
            with suppress(InUseError), FileLock(directory / LOCK, wait=0):
                # The ledger may be changed only under the lock, so it is read again here.
                ledger = Ledger.read(directory)
                _note_death(ledger, directory)
                try:
                    if failure is None:
                        store = store or self.ensure()
                        uploaded[ledger.name] = self._send(store, ledger, directory)
                except StateError as error:
                    failure = error
                ledger.write(directory)
        if failure is not None:
            raise failure
        return uploaded

    def mark_killed(self) -> list[str]:
        """Set the runs whose process died to KILLED, in their folders and, if possible, in MLflow.

        Returns:
            The names of these runs; empty, with a warning, if MLflow failed.
        """
        try:
            return list(self.sync(dead_only=True))
        except StateError as error:
            self._warn(str(error))
            return []

    def runs(self) -> list[RunInfo]:
        """All runs, newest first: from the run folders, and from MLflow if it may be shared.

        For runs that a shared MLflow has, its values are used. If it is unreachable, all runs come from the
        folders, with a warning. The workspace's own database is not opened. Runs of deleted folders in it are
        therefore visible only in MLflow.
        """
        matching = list[RunInfo]()
        for ledger in map(Ledger.read, self._folders()):
            run = ledger.info(self.workspace.runs / ledger.name)
            here = ledger.tracking_uri == self.public_uri
            matching.append(run if here else replace(run, tracked=False))
        if self.has_store and not self.workspace.owns_tracking:
            try:
                with quiet():
                    tracked = self.connect().runs()
            except TrackerDown as error:
                self._warn(f"{error}; showing only the run folders")
            else:
                ids = {run.run_id for run in tracked}
                lost = (run for run in matching if run.run_id is None or run.run_id not in ids)
                matching = [*tracked, *(replace(run, tracked=False) for run in lost)]
        return sorted(matching, key=lambda run: run.started, reverse=True)

    def find(self, reference: str, runs: list[RunInfo] | None = None) -> RunInfo:
        """The run with a name or id. A run of this workspace precedes runs with the same name in MLflow.

        Args:
            reference: name, id, or the first 6 or more characters of an id.
            runs: the result of `runs()`; None calls it.

        Raises:
            StateError: there is no such run, and the message names the nearest; or there are several.
        """
        runs = self.runs() if runs is None else runs
        directory = self.workspace.runs / reference
        if "/" not in reference and (directory / LEDGER).is_file():
            local = Ledger.read(directory).info(directory)
            same = (run for run in runs if run.run_id is not None and run.run_id == local.run_id)
            return next(same, local)
        matches = [run for run in runs if reference in (run.name, run.run_id)]
        if not matches and len(reference) >= 6:
            matches = [run for run in runs if run.run_id and run.run_id.startswith(reference)]
        if len(matches) > 1:
            ids = ", ".join(str(run.run_id) for run in matches)
            raise StateError(f"{len(matches)} runs are named {reference!r}; give one of their ids: {ids}")
        if not matches:
            hint = nearest(reference, (run.name for run in runs[:20]))
            raise StateError(f"no run {reference!r}{hint if runs else '; there are no runs here yet'}")
        return matches[0]

    def ensure(self) -> Store:
        """Connect to MLflow's store, which is created if it is missing.

        Raises:
            StateError: MLflow does not answer.
        """
        try:
            return self.connect()
        except TrackerDown as error:
            raise StateError(f"{error}; start it, or correct MLFLOW_TRACKING_URI") from error

    def newest_experiment(self) -> tuple[str, str] | None:
        """MLflow's id of the newest run's experiment, and its name; None if there are no runs."""
        store = self.ensure()
        with self._explained("MLflow's experiments cannot be listed ({})"):
            return store.newest_experiment()

    def incomplete(self) -> list[str]:
        """Names of the ended runs that are not complete in MLflow."""
        ledgers = [Ledger.read(directory) for directory in self._folders()]
        return [ledger.name for ledger in ledgers if ledger.status != "RUNNING" and not ledger.complete]

    @property
    def has_store(self) -> bool:
        """Whether MLflow's store exists. Creating a new database file takes MLflow seconds."""
        path = self.workspace.tracking_uri.removeprefix("sqlite:///")
        return path == self.workspace.tracking_uri or Path(path).exists()

    @property
    def public_uri(self) -> str:
        """The tracking address without a password."""
        return public(self.workspace.tracking_uri)

    def set_alias(self, name: str, version: int, alias: str) -> bool:
        """Set an alias of our registry in MLflow, too; False, with a warning, if that fails."""
        try:
            store = self.connect()
            with quiet():
                registered = store.find_version(name, version)
                if registered is None:
                    raise TrackerDown(f"model {name} version {version} is not in MLflow")
                store.set_alias(name, alias, int(registered.version))
        except Exception as error:
            self._say(f"the alias is not shown in MLflow: {error}")
            return False
        return True

    def _folders(self) -> list[Path]:
        runs = self.workspace.runs
        return [path.parent for path in sorted(runs.glob(f"*/{LEDGER}"))] if runs.is_dir() else []

    def _send(self, store: Store, ledger: Ledger, directory: Path) -> int:
        with self._explained(
            f"run {ledger.name} was not sent to MLflow ({{}}); run `seqmlm runs sync` again"
        ):
            open_run(store, ledger, lambda: ledger.write(directory))
            return push(store, ledger, directory)

    @contextmanager
    def _explained(self, sentence: str) -> Iterator[None]:
        """Convert any error within the context to a StateError: `sentence`, with the reason inserted."""
        try:
            with quiet():
                yield
        except Exception as error:
            reason = hide_password(first_line(error), self.workspace.tracking_uri)
            raise StateError(sentence.format(reason)) from error

    def _say(self, text: str) -> None:
        self._warn(hide_password(text, self.workspace.tracking_uri))


def _set_params(ledger: Ledger, params: Mapping[str, object]) -> None:
    """Set the params of a ledger. MLflow keeps the first values, so changed ones are also stored in a tag."""
    texts = {key: "" if value is None else str(value) for key, value in params.items()}
    earlier_drift = json.loads(ledger.tags.pop(DRIFT_TAG, "{}"))
    first = ledger.params | {key: values[0] for key, values in earlier_drift.items()}
    drift = {key: [first[key], text] for key, text in texts.items() if first.get(key, text) != text}
    if drift:
        ledger.tags[DRIFT_TAG] = json.dumps(drift)
    ledger.params |= texts


def _note_death(ledger: Ledger, directory: Path) -> None:
    """Set a run to KILLED if its ledger has the status RUNNING although nobody has its lock.

    The end time is the last change of a file in its folder.
    """
    if ledger.status == "RUNNING":
        last = max(path.stat().st_mtime for path in directory.iterdir())
        ledger.status, ledger.ended = "KILLED", int(last * 1000)


def _standard_tags(name: str) -> dict[str, str]:
    tags = {NAME_TAG: name, "seqmlm.version": version("seqmlm")}
    tags |= {"mlflow.source.name": "seqmlm", "mlflow.source.type": "LOCAL"}
    # The user of a container may have no name.
    with suppress(KeyError, OSError):
        tags["mlflow.user"] = getpass.getuser()
    commit = _commit()
    return {**tags, "mlflow.source.git.commit": commit} if commit else tags


def _commit() -> str | None:
    """The git commit of the checkout that seqmlm runs from; None if it does not run from one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
