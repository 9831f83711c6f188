"""One tracked run: what happens to it is written to its folder first, then told to MLflow if that answers."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from seqmlm.errors import StateError
from seqmlm.tracking import push
from seqmlm.tracking.connection import TrackerDown, quiet
from seqmlm.tracking.ledger import METRICS, Ledger, Point
from seqmlm.tracking.remote import Remote, now
from seqmlm.tracking.system import SystemSampler
from seqmlm.workspace import FileLock

T = TypeVar("T")
Status = Literal["FINISHED", "FAILED", "KILLED"]

_POINTS = 500
_SECONDS = 5.0
_RETRY_SECONDS = 60.0
_LONGEST_RETRY_SECONDS = 900.0
_SIGNAL_EXITS = {128 + signal.SIGINT, 128 + signal.SIGTERM}


class TrackedRun:
    """A run that is being tracked; a context manager that gives it its true end.

    An exception ends it as FAILED, Ctrl-C and exits by signal as KILLED, `end("KILLED")` says so explicitly,
    and anything else is FINISHED. No method raises because MLflow is away: that is one warning, then a new
    attempt every few minutes and at the end. Use from one process (rank 0) and one thread.
    """

    def __init__(
        self,
        ledger: Ledger,
        directory: Path,
        lock: FileLock,
        connect: Callable[[], Remote],
        warn: Callable[[str], None],
    ) -> None:
        self.name, self.directory = ledger.name, directory
        self._ledger, self._lock, self._connect, self._warn = ledger, lock, connect, warn
        self._remote: Remote | None = None
        self._buffer: list[Point] = []
        self._flushed = time.monotonic()
        self._warned = False
        self._retry_seconds = _RETRY_SECONDS
        self._retry_at = 0.0
        self._last: dict[str, tuple[int, float]] = {}
        self._metric_keys = set(ledger.metric_keys)
        self._system = SystemSampler()

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run; None as long as MLflow has never answered."""
        return self._ledger.run_id

    @property
    def offline(self) -> bool:
        """Whether MLflow is away at the moment."""
        return self._remote is None

    def open(self) -> TrackedRun:
        """Tell MLflow that the run is on; called by `Tracker.start`.

        What an earlier attempt recorded and MLflow lacks is uploaded. Steps that MLflow has and that are run
        again after a kill are not logged twice: a resume repeats them bit by bit.
        """
        self._reconnect(self._catch_up)
        self._save()
        return self

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Tell MLflow the metrics of a step, in batches every few seconds.

        The caller writes the same values to `metrics.jsonl` in the run's folder first: MLflow gets them from
        there where it is away now. Dropped here are steps that MLflow already has from before a resume.

        A value that is not finite is not logged (MLflow would draw infinity as 1.8e308): it raises the metric
        `nonfinite_values` and sets the tag `seqmlm.nonfinite`.
        """
        when = now()
        finite = {key: float(value) for key, value in values.items() if math.isfinite(value)}
        if len(finite) < len(values):
            finite |= self._count_nonfinite(step, {k: v for k, v in values.items() if k not in finite})
        if not self._metric_keys.issuperset(finite):
            self._metric_keys |= set(finite)
            self._ledger.metric_keys = sorted(self._metric_keys)
            self._save()
        self._buffer += [
            Point(key, value, step, when) for key, value in finite.items() if self._is_new(key, step, value)
        ]
        if len(self._buffer) >= _POINTS or time.monotonic() - self._flushed >= _SECONDS:
            self._buffer += self._system.sample(step, when)
            self.flush()

    def flush(self) -> None:
        """Send what is buffered now; while MLflow is away, try it again where that is due."""
        points, self._buffer, self._flushed = self._buffer, [], time.monotonic()
        if self._remote is None:
            if time.monotonic() >= self._retry_at:
                self._reconnect(self._catch_up)
                self._save()
        elif points:
            self._attempt(lambda remote, run_id: remote.log_points(run_id, points))

    def set_tag(self, key: str, value: str) -> None:
        """Set a tag of the run."""
        self._ledger.tags[key] = value
        self._save()
        self._attempt(lambda remote, run_id: remote.set_tags(run_id, {key: value}))

    def artifact(self, path: str | Path, folder: str = "") -> None:
        """Keep a file, or the contents of a folder, with the run.

        Args:
            path: it must stay where it is until the run has ended, in case MLflow is away now.
            folder: where it shows in MLflow; "" is the top.
        """
        self._ledger.note_artifact(str(Path(path).resolve()), folder)
        self._send()

    def dataset(
        self,
        name: str,
        source: str,
        digest: str,
        profile: Mapping[str, Any],
        *,
        context: Literal["training", "validation"] = "training",
    ) -> None:
        """Record the data the run reads as an MLflow input; nothing is copied.

        Args:
            name: what to call it.
            source: where it came from: a path or address.
            digest: our fingerprint, of which MLflow keeps 36 characters.
            profile: counts, as JSON can hold.
            context: what the run uses it for.
        """
        used = {"name": name, "source": source, "digest": digest[:36], "context": context}
        self._ledger.note_dataset({**used, "profile": dict(profile)})
        self._send()

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
        """Make a model folder a version of a registered model in MLflow, without a copy of the weights.

        Args:
            name: the registered model.
            directory: the model folder; it stays where it is.
            version: our registry's version, kept as the tag `seqmlm.version`; MLflow counts its own.
            metrics, dataset: final metrics, and the data set (see `dataset`) they were measured on.
            params: what the model is: domain, tokenizer, masker.
            aliases: that point at it from now on. withheld: names of files that MLflow is not given.
        """
        entry = {
            "name": name,
            "directory": str(Path(directory).resolve()),
            "version": version,
            "metrics": {key: float(value) for key, value in metrics.items() if math.isfinite(value)},
            "params": {key: str(value) for key, value in (params or {}).items()},
            "aliases": list(aliases),
        }
        # The metrics are looked up in MLflow's own history: send what is still buffered first.
        self.flush()
        self._ledger.note_model({**entry, "withheld": list(withheld)}, dataset)
        self._send()

    def replay(self, path: Path | None = None) -> int:
        """Upload what MLflow lacks of a metrics.jsonl file (by default the run's); returns the number."""
        file = path or self.directory / METRICS
        self._ledger.gaps = True
        done = self._attempt(lambda remote, _: push.push_metrics(remote, self._ledger, file))
        return done[0] if done else 0

    def end(self, status: Status = "FINISHED") -> None:
        """End the run; the first call decides, later ones do nothing."""
        if self._ledger.status != "RUNNING":
            return
        self.flush()
        self._ledger.status, self._ledger.ended = status, now()
        try:
            self._save()
        finally:
            # Also on a full disk, where the save failed, MLflow is told how the run ended.
            if self._remote is None:
                self._reconnect(self._finish)
            else:
                self._attempt(lambda remote, _: self._finish(remote))
        self._ledger.complete = self._ledger.status_sent
        self._save()
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

    def _is_new(self, key: str, step: int, value: float) -> bool:
        last = self._last.get(key)
        return last is None or step > last[0] or (step == last[0] and value != last[1])

    def _catch_up(self, remote: Remote) -> None:
        push.open_run(remote, self._ledger)
        path = self.directory / METRICS
        if path.exists():
            _, self._last = push.push_metrics(remote, self._ledger, path)
        push.push_entries(remote, self._ledger)

    def _finish(self, remote: Remote) -> None:
        if self._warned:
            # A batch may have been lost with a failed call; the file knows.
            self._catch_up(remote)
        push.push_entries(remote, self._ledger)
        push.push_status(remote, self._ledger)

    def _count_nonfinite(self, step: int, bad: Mapping[str, float]) -> dict[str, float]:
        self._ledger.nonfinite += len(bad)
        count = self._ledger.nonfinite
        self.set_tag("seqmlm.nonfinite", f"{count} values; last at step {step}: {dict(bad)}"[:500])
        return {"nonfinite_values": float(count)}

    def _send(self) -> None:
        """Keep the ledger, then send what it has that MLflow lacks."""
        self._save()
        self._attempt(lambda remote, _: push.push_entries(remote, self._ledger))
        self._save()

    def _attempt(self, action: Callable[[Remote, str], T]) -> T | None:
        """Do one thing with MLflow, or find that it is away; whatever it raises must not end the training."""
        if self._remote is None or self.run_id is None:
            return None
        try:
            with quiet():
                return action(self._remote, self.run_id)
        except Exception as error:
            self._lost(error)
            return None

    def _reconnect(self, action: Callable[[Remote], None]) -> None:
        try:
            remote = self._connect()
            with quiet():
                action(remote)
            self._remote, self._retry_seconds = remote, _RETRY_SECONDS
        except Exception as error:
            self._lost(error)

    def _lost(self, error: Exception) -> None:
        self._remote = None
        if not self._ledger.gaps:
            self._ledger.gaps = True
            # On a full disk too the training has to hear of that from its own files, not from here.
            with suppress(StateError):
                self._save()
        self._retry_at = time.monotonic() + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, _LONGEST_RETRY_SECONDS)
        if not self._warned:
            reason = str(error) if isinstance(error, TrackerDown) else f"{type(error).__name__}: {error}"
            self._warn(
                f"{reason.strip().splitlines()[0][:300]}; the run goes on, {self.directory / METRICS} keeps "
                "its metrics and MLflow gets them when it is back"
            )
        self._warned = True

    def _save(self) -> None:
        self._ledger.write(self.directory)
