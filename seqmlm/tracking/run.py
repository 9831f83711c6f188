"""A run while it is tracked, and the tracker of a workspace, which starts, synchronises and lists runs."""

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
# A loader worker of a killed run may hold files for a few seconds; the lock itself goes with the process.
_LOCK_SECONDS = 2.0
_PUSH_SECONDS = 5.0
_SYSTEM_SECONDS = 5.0
_RETRY_SECONDS = 60.0
_SIGNAL_EXITS = {128 + signal.SIGINT, 128 + signal.SIGTERM}


def _system_metrics() -> dict[str, float]:
    """CPU, memory and GPU memory in use, under the names MLflow shows in its "System metrics" tab.

    Percentages are of the whole machine since the last call, megabytes of this process.
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
    """A run that is being tracked; a context manager that gives it its true end.

    What happens to it is written to its folder, and a thread sends that to MLflow every few seconds, so that
    a training never waits for MLflow. No method raises because MLflow is unreachable: that is one warning,
    then a new attempt every minute and at the end.

    An exception ends the run as FAILED, Ctrl-C and exits by signal as KILLED, `end("KILLED")` says so
    explicitly, and anything else is FINISHED. Use from one process (rank 0) and one thread.
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
        psutil.cpu_percent()  # the start of the first interval
        self._store: Store | None = None
        self._warned = False
        self._pause = _PUSH_SECONDS
        self._writing, self._pushing, self._stop = threading.Lock(), threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run; None as long as MLflow has never answered."""
        return self._ledger.run_id

    @property
    def offline(self) -> bool:
        """Whether MLflow could not be reached when it was last tried."""
        return self._store is None

    def open(self) -> TrackedRun:
        """Connect to MLflow and set the run RUNNING there; called by `Tracker.start`."""
        self._forget_cut()
        self.flush(connect_only=True)
        return self

    def log_metrics(
        self, step: int, values: Mapping[str, float], details: Mapping[str, Any] | None = None
    ) -> None:
        """Write the metrics of a step (at least 0) to `metrics.jsonl`, from which they are sent to MLflow.

        A value that is not finite is null there and not sent (MLflow would draw infinity as 1.8e308): it
        raises the metric `nonfinite_values` and sets the tag `seqmlm.nonfinite`. `details` stay in the file.

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
            # Before the line is there: a push passes over numbers that it does not know for metrics.
            with self._ledger_changes() as ledger:
                ledger.metric_keys = sorted({*ledger.metric_keys, *values, *extra})
        self._metrics.write(step, {**values, **(details or {}), **extra})
        if self._thread is None:
            # Not before there is something to send in the background: reading ahead forks, which is safe in
            # a process with a single thread.
            self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
            self._thread.start()

    def cut_metrics(self, step: int) -> None:
        """Take the metrics of later steps out of `metrics.jsonl`: a resumed training runs these steps again.

        Where they are computed again with the same values, MLflow shows them once; else it shows both.
        """
        with self._pushing:
            self._metrics.cut_after(step)
            self._forget_cut()

    def flush(self, *, connect_only: bool = False) -> None:
        """Send now what MLflow lacks; whatever goes wrong with that must not end the training."""
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
            # What is not noted as sent is sent again; of a full disk the training hears from its own writing.
            with suppress(StateError):
                self._save()

    def set_tag(self, key: str, value: str) -> None:
        """Set a tag of the run."""
        with self._ledger_changes() as ledger:
            ledger.tags[key] = value

    def set_numbers(self, values: Mapping[str, float]) -> None:
        """Set tags of numbers: as a metric, each would be a chart with one point."""
        with self._ledger_changes() as ledger:
            ledger.tags |= {key: decimal(value) for key, value in values.items()}

    def artifact(self, path: str | Path, *, of_records: bool = False) -> None:
        """Keep a file, or the contents of a folder, with the run.

        It must stay where it is until the run has ended and MLflow has it.

        Args:
            of_records: it is about single records; those of sensitive data stay out of MLflow.
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
        """Record the data the run reads as an MLflow input; nothing is copied.

        Args:
            source: a path or address; MLflow does not get that of sensitive data.
            digest: our fingerprint, of which MLflow keeps 36 characters.
            profile: counts, as JSON can hold.
        """
        source = "withheld" if sensitive_data() else source
        entry = {"name": name, "source": source, "digest": digest[:36], "context": context}
        with self._ledger_changes() as ledger:
            ledger.note(ledger.datasets, {**entry, "profile": dict(profile)}, *entry)

    def uses(self, name: str, version: int) -> None:
        """Link the run to a registered model that it reads, as an MLflow input.

        The version is our registry's; where MLflow does not have it, there is no link.
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
        """Make a model folder, which stays where it is, a version of a registered model in MLflow.

        Args:
            version: our registry's, kept as the tag `seqmlm.version`; MLflow counts its own.
            metrics, dataset: final metrics, and the data set (see `dataset`) they were measured on.
            params: what the model is: domain, tokenizer, masker.
            aliases: that point at it from now on. withheld: names of files that MLflow is not given.
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
        """End the run and send the rest to MLflow; the first call decides, later ones do nothing."""
        if self._ledger.status != "RUNNING":
            return
        try:
            with self._ledger_changes() as ledger:
                ledger.status, ledger.ended = status, now()
        finally:
            # Also on a full disk, where the ledger could not be written, MLflow is told how the run ended.
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
        """The ledger, to be changed here and then written with what the other thread has changed in it."""
        with self._writing:
            yield self._ledger
            self._ledger.write(self.directory)

    def _save(self) -> None:
        with self._ledger_changes():
            pass

    def _forget_cut(self) -> None:
        """Set the offset of MLflow back to the end of a file that was cut; the lines after it come again."""
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
                f"{cause}{first_line(error)}; the run continues, its metrics are kept in "
                f"{self.directory / METRICS}, and MLflow is synchronised once it is reachable"
            )


class Tracker:
    """Tracks the runs of a workspace; `warn` hears when MLflow is away, also from another thread."""

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
        """Start a run, or resume the one of that name.

        Args:
            params: what users compare runs by; flat, at most 59.
            tags: more facts, searchable.
            resume: continue under the same run id; params that changed go to the tag seqmlm.param_drift.
            spent: seconds that a new run has taken already.

        Raises:
            StateError: the name is taken (without `resume`), there is no such run (with it), or another
                process is using it.
            UsageError: the name is not fit for a run.
        """
        if len(params) > MAX_PARAMS:
            raise ValueError(f"{len(params)} params: log at most {MAX_PARAMS}, those that users compare")
        directory = self.workspace.run_dir(name)
        exists = (directory / LEDGER).exists()
        if exists and not resume:
            raise StateError(f"run {name!r} exists; take another --name, or continue it by --resume {name}")
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
        """Open MLflow; TrackerDown where it does not answer."""
        return connect(self.workspace)

    def sync(self, *, dead_only: bool = False) -> dict[str, int]:
        """Complete in MLflow the runs that are not being trained now; returns points uploaded by run name.

        A run whose process is gone without a word (kill -9, power) becomes KILLED; with `dead_only` no other
        is looked at.

        Raises:
            StateError: MLflow does not answer, or no longer; the runs became KILLED nevertheless.
        """
        uploaded: dict[str, int] = {}
        failure: StateError | None = None
        store: Store | None = None
        for directory in self._folders():
            ledger = Ledger.read(directory)
            if ledger.complete or (dead_only and ledger.status != "RUNNING"):
                continue
            with suppress(InUseError), FileLock(directory / LOCK, wait=0):
                # Only now, under the lock, is the ledger ours to change.
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
        """End the runs whose process is gone as KILLED, here and, if it can be, in MLflow; their names."""
        try:
            return list(self.sync(dead_only=True))
        except StateError as error:
            self._warn(str(error))
            return []

    def runs(self) -> list[RunInfo]:
        """All runs, newest first: those of run folders and, of an MLflow that others may share, its own.

        What MLflow has is taken from there. Where it is unreachable, all come from the folders, with a
        warning. The workspace's own database is not opened: what other workspaces, or folders that are
        deleted, have left there is seen in MLflow alone.
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
                self._warn(f"{error}; showing what the run folders know")
            else:
                ids = {run.run_id for run in tracked}
                lost = (run for run in matching if run.run_id is None or run.run_id not in ids)
                matching = [*tracked, *(replace(run, tracked=False) for run in lost)]
        return sorted(matching, key=lambda run: run.started, reverse=True)

    def find(self, reference: str, runs: list[RunInfo] | None = None) -> RunInfo:
        """The run called `reference`, or with that id (or its beginning, at least 6 characters).

        A run of this workspace goes before others of its name in MLflow; `runs` is what `runs()` gave.

        Raises:
            StateError: there is none, naming the nearest, or there are several.
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
            raise StateError(f"{reference!r} names {len(matches)} runs; give one of their ids: {ids}")
        if not matches:
            hint = nearest(reference, (run.name for run in runs[:20]))
            raise StateError(f"no run {reference!r}{hint if runs else '; there are no runs here yet'}")
        return matches[0]

    def ensure(self) -> Store:
        """Open MLflow's store, making it where it is missing; StateError where it does not answer."""
        try:
            return self.connect()
        except TrackerDown as error:
            raise StateError(f"{error}; start it, or correct MLFLOW_TRACKING_URI") from error

    def newest_experiment(self) -> tuple[str, str] | None:
        """MLflow's id of the experiment of the newest run, and its name; None where there are no runs."""
        store = self.ensure()
        with self._explained("MLflow's experiments cannot be listed ({})"):
            return store.newest_experiment()

    def incomplete(self) -> list[str]:
        """Names of ended runs of which MLflow lacks something."""
        ledgers = [Ledger.read(directory) for directory in self._folders()]
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
        with self._explained(f"run {ledger.name} was not sent to MLflow ({{}}); sync it again"):
            open_run(store, ledger, lambda: ledger.write(directory))
            return push(store, ledger, directory)

    @contextmanager
    def _explained(self, sentence: str) -> Iterator[None]:
        """Ask MLflow; whatever goes wrong is a StateError, with its reason in the sentence."""
        try:
            with quiet():
                yield
        except Exception as error:
            reason = hide_password(first_line(error), self.workspace.tracking_uri)
            raise StateError(sentence.format(reason)) from error

    def _say(self, text: str) -> None:
        self._warn(hide_password(text, self.workspace.tracking_uri))


def _set_params(ledger: Ledger, params: Mapping[str, object]) -> None:
    """Put params into a ledger, and those that differ from the first ones, which MLflow keeps, into a tag."""
    texts = {key: "" if value is None else str(value) for key, value in params.items()}
    earlier_drift = json.loads(ledger.tags.pop(DRIFT_TAG, "{}"))
    first = ledger.params | {key: values[0] for key, values in earlier_drift.items()}
    drift = {key: [first[key], text] for key, text in texts.items() if first.get(key, text) != text}
    if drift:
        ledger.tags[DRIFT_TAG] = json.dumps(drift)
    ledger.params |= texts


def _note_death(ledger: Ledger, directory: Path) -> None:
    """A run whose lock is free but whose ledger says RUNNING was killed when it last wrote anything."""
    if ledger.status == "RUNNING":
        last = max(path.stat().st_mtime for path in directory.iterdir())
        ledger.status, ledger.ended = "KILLED", int(last * 1000)


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
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
