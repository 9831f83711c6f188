"""The files of a run's folder, and `push`, which copies them to MLflow and is safe to repeat.

`metrics.jsonl` has a line for each optimizer step and evaluation, with its time. `tracking.json`, the ledger,
has everything else: params, tags, artifacts, data sets, models and the status. The ledger also stores which
of these MLflow has. For `metrics.jsonl` it stores the offset up to which the file was sent.

MLflow keeps one point per metric, step, time and value, even if the point is sent twice. A push sends
everything after the offset, then stores the new offset. If the process dies in between, the next push sends
the same points again, which changes nothing. Therefore a push does not need to query MLflow.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from seqmlm.engine.durable import replace_file
from seqmlm.errors import StateError
from seqmlm.parsing import parse_json, plain, read_json
from seqmlm.tracking.store import KEY_TAG, Point, RunInfo, Store, now, of_seqmlm

LEDGER = "tracking.json"
METRICS = "metrics.jsonl"
SYSTEM = "system/"

# Points that are read and sent at once.
_POINTS = 10_000
# Keys in a line of metrics.jsonl that are not metrics.
_NOT_METRICS = {"step", "time"}
# Keys whose values differ if a step is run again with the same result.
_WALL_CLOCK = {"time", "seconds", "tokens_per_second"}


# Types of the ledger's fields. A ledger with other types is damaged, and is refused before it is used.
_KINDS: dict[str, type] = {
    **dict.fromkeys(("name", "experiment", "tracking_uri", "status"), str),
    **dict.fromkeys(("params", "tags", "tags_sent"), dict),
    **dict.fromkeys(("datasets", "inputs", "artifacts", "models", "metric_keys"), list),
    **dict.fromkeys(("started", "offset"), int),
}


@dataclass(kw_only=True)
class Ledger:
    """The facts about a run that its folder stores, and which of them MLflow has.

    Times are milliseconds since 1970. Only the owner of the run's lock writes the ledger.
    """

    name: str
    experiment: str
    tracking_uri: str
    run_id: str | None = None
    """MLflow's id; None until MLflow has answered for the first time."""
    key: str | None = None
    """Our own id of the run. It is saved before the run is created in MLflow; None before that."""
    status: str = "RUNNING"
    """RUNNING, FINISHED, FAILED or KILLED."""
    started: int = 0
    ended: int | None = None
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    tags_sent: dict[str, str] = field(default_factory=dict)
    metric_keys: list[str] = field(default_factory=list)
    """The keys in metrics.jsonl that are sent to MLflow."""
    offset: int = 0
    """Number of bytes of metrics.jsonl that were sent to MLflow."""
    datasets: list[dict[str, Any]] = field(default_factory=list)
    inputs: list[dict[str, Any]] = field(default_factory=list)
    """Registered models that the run reads."""
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    models: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False
    """Whether the run has ended and MLflow has everything it recorded."""

    @classmethod
    def read(cls, directory: Path) -> Ledger:
        """Read the ledger of a run folder.

        Raises:
            StateError: there is no ledger, or it is damaged.
        """
        path = directory / LEDGER
        try:
            values = read_json(path)
            for name, kind in _KINDS.items():
                if not isinstance(values.get(name, kind()), kind):
                    raise ValueError(f"{name} is {values[name]!r}")
            return cls(**values)
        except FileNotFoundError:
            raise StateError(f"{directory} is not a run: it has no {LEDGER}") from None
        except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
            raise StateError(f"{path} is damaged ({error}); remove it and start the run again") from None

    def write(self, directory: Path) -> None:
        """Replace the ledger file atomically: a kill leaves the old file or the new one."""
        text = json.dumps(asdict(self), indent=1, default=plain) + "\n"
        with _disk_errors(directory / LEDGER):
            replace_file(directory / LEDGER, text.encode())

    def note(self, entries: list[dict[str, Any]], entry: Mapping[str, Any], *same: str) -> None:
        """Record a data set, artifact or model to be sent. It replaces entries with equal `same` values."""
        added = {"time": now(), **entry, "sent": False}
        for earlier in [earlier for earlier in entries if all(earlier[key] == entry[key] for key in same)]:
            entries.remove(earlier)
            if "model_id" in earlier:
                # A version of a model is registered once. Later, only its metrics are sent again.
                added["model_id"] = earlier["model_id"]
        entries.append(added)

    def forget_sent(self) -> None:
        """Mark everything as unsent, because MLflow no longer has the run."""
        self.run_id, self.key, self.offset, self.tags_sent, self.complete = None, None, 0, {}, False
        for entry in [*self.datasets, *self.inputs, *self.artifacts, *self.models]:
            entry["sent"] = False
        for entry in self.models:
            entry["model_id"] = None

    def points(self, line: Mapping[str, Any]) -> list[Point]:
        """The finite metrics in a line of metrics.jsonl."""
        return [
            Point(key, float(value), int(line["step"]), int(line["time"]))
            for key, value in line.items()
            if key in self.metric_keys
            and isinstance(value, (int, float))
            and not isinstance(value, bool)
            and math.isfinite(value)
        ]

    def info(self, directory: Path) -> RunInfo:
        """The run, as its folder stores it."""
        points = (point for _, line in read_lines(directory / METRICS) for point in self.points(line))
        return RunInfo(
            name=self.name,
            run_id=self.run_id,
            experiment=self.experiment,
            status=self.status,
            started=self.started,
            ended=self.ended,
            params=self.params,
            tags=of_seqmlm(self.tags),
            metrics={point.key: point.value for point in points},
            tracked=self.run_id is not None and (self.complete or self.status == "RUNNING"),
        )


def read_lines(path: Path, offset: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """The undamaged lines of a metrics.jsonl file, each with the offset of its end; see `_lines`."""
    return ((end, line) for end, line in _lines(path, offset) if line is not None)


def _lines(path: Path, offset: int = 0) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """The lines of a metrics.jsonl file after an offset, each with the offset in bytes of its end.

    A missing file has no lines. A last line that was truncated by a kill is left out. Any other damaged line
    is None.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        file.seek(offset)
        for text in file:
            if not text.endswith(b"\n"):
                return
            offset += len(text)
            yield offset, _line(text)


def _line(text: bytes) -> dict[str, Any] | None:
    try:
        line = parse_json(text)
    except ValueError:
        return None
    is_line = isinstance(line, dict) and all(isinstance(line.get(key), int) for key in _NOT_METRICS)
    return line if is_line else None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All undamaged lines of a metrics.jsonl file, in order; empty if the file is missing."""
    return [line for _, line in read_lines(path)]


class MetricsFile:
    """`metrics.jsonl`, with a line for each optimizer step and evaluation, written before anything is sent.

    A resumed training repeats the steps after its checkpoint. If a repeated line has the same values, the
    earlier line is written again with its old time. MLflow then keeps one point. If the values differ, the
    new line gets a new time, and MLflow shows both points.

    The lines after the checkpoint wait in `metrics.cut.jsonl` until their steps are repeated. The process may
    be killed again before that.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.nonfinite = 0
        """Number of values that were NaN or infinite."""
        self._latest = 0
        self._kept: list[dict[str, Any]] = []
        self._cut: dict[int, list[dict[str, Any]]] = {}
        self._cut_path = path.with_suffix(f".cut{path.suffix}")
        for _, line in read_lines(self._cut_path):
            self._cut.setdefault(line["step"], []).append(line)
        self.cut_after(None)

    @property
    def size(self) -> int:
        """The length of the file in bytes."""
        return self.path.stat().st_size if self.path.is_file() else 0

    def cut_after(self, step: int | None) -> None:
        """Cut the file at the first line of a step after `step`, because these steps are run again.

        A last line that was truncated by a kill is removed, too. None removes only that line.
        """
        if not self.path.is_file():
            return
        end, lines_before, later, damaged = 0, list[dict[str, Any]](), False, 0
        for line_end, line in _lines(self.path):
            if line is None:  # it stays in the file, so that a person can still read it
                damaged, end = damaged + 1, end if later else line_end
                continue
            later = later or (step is not None and line["step"] > step)
            if later:
                same_step = self._cut.setdefault(line["step"], [])
                if line not in same_step:  # else it was repeated after an earlier cut
                    same_step.append(line)
            else:
                lines_before.append(line)
                end = line_end
        if damaged:
            logging.getLogger("seqmlm").warning(f"{self.path}: {damaged} damaged line(s) are ignored")
        if later:
            self._keep_cut(lines_before[-1]["step"] if lines_before else 0)
        with _disk_errors(self.path):
            os.truncate(self.path, end)
        # An evaluation at the step of the checkpoint may be repeated, too.
        self._kept = [line for line in lines_before if line["step"] == lines_before[-1]["step"]]
        self._latest = max((line["time"] for line in lines_before), default=0)
        self.nonfinite = max((int(line.get("nonfinite_values", 0)) for line in lines_before), default=0)

    def _keep_cut(self, first: int) -> None:
        """Save the cut lines of steps from `first` on, before they are removed from the file."""
        self._cut = {step: lines for step, lines in self._cut.items() if step >= first}
        text = "".join(json.dumps(line) + "\n" for lines in self._cut.values() for line in lines)
        with _disk_errors(self._cut_path):
            replace_file(self._cut_path, text.encode())

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one line. Values that are not finite become null."""
        # Every line gets a new time: for equal steps and times MLflow shows the larger value as the last one.
        line: dict[str, Any] = {"step": step, "time": max(now(), self._latest + 1)}
        for key, value in values.items():
            line[key] = None if isinstance(value, float) and not math.isfinite(value) else value
        if _take(self._kept, line) is not None:
            return
        line = _take(self._cut.get(step, []), line) or line
        self._latest = max(self._latest, line["time"])
        with _disk_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, default=plain) + "\n")


def _take(lines: list[dict[str, Any]], facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Remove and return the line with the same values as `facts`, apart from durations; None if none has."""
    for number, line in enumerate(lines):
        if _computed(line) == _computed(facts):
            return lines.pop(number)
    return None


def _computed(line: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in line.items() if k not in _WALL_CLOCK and not k.startswith(SYSTEM)}


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateError(
            f"cannot write {path}: {error.strerror}; free space there, then run the command with --resume"
        ) from None


def open_run(store: Store, ledger: Ledger, save: Callable[[], None]) -> None:
    """Create the run in MLflow or reopen it. A run that was deleted in MLflow is created again.

    The process may die, or an answer may be lost, after MLflow created the run and before the ledger has its
    id. Therefore the key of the run is saved first: `save` writes the ledger, and if it raises, no run is
    created. The next attempt then finds the run by its key.
    """
    if ledger.run_id is not None and not store.reopen(ledger.run_id):
        ledger.forget_sent()
    if ledger.run_id is None and ledger.key is not None:
        ledger.run_id = store.find_run(ledger.experiment, ledger.key)
    if ledger.run_id is None:
        ledger.key = ledger.key or uuid4().hex
        save()
        tags = dict(ledger.tags)
        named = {**tags, KEY_TAG: ledger.key}
        ledger.run_id = store.create_run(ledger.experiment, ledger.name, ledger.started, named)
        ledger.tags_sent = tags
    store.set_params(ledger.run_id, ledger.params)


def push(store: Store, ledger: Ledger, directory: Path) -> int:
    """Send everything that MLflow lacks from an opened run, and mark it as sent in the ledger.

    The caller writes the ledger. A push can be interrupted anywhere and repeated. Exceptions of the store are
    not caught. Another thread may record, and write the ledger, at the same time. Therefore this function
    replaces values of the ledger, but never adds keys to its dicts.

    Returns:
        The number of points from metrics.jsonl that were sent.
    """
    # The status is read first. If the run ends during this push, the next push sends the rest.
    status, run_id = ledger.status, ledger.run_id
    assert run_id is not None, "open_run comes first"
    tags = {key: value for key, value in dict(ledger.tags).items() if ledger.tags_sent.get(key) != value}
    store.set_tags(run_id, tags)
    ledger.tags_sent = {**ledger.tags_sent, **tags}
    _push_new(ledger.datasets, lambda entry: store.log_dataset(run_id, entry))
    _push_new(ledger.inputs, lambda entry: store.log_model(run_id, entry["name"], entry["version"]))
    count = _push_points(store, ledger, run_id, directory / METRICS)
    _push_new(ledger.artifacts, lambda entry: store.log_artifact(run_id, entry["path"]))
    _push_new(ledger.models, lambda entry: _push_model(store, ledger, run_id, entry, directory / METRICS))
    if status != "RUNNING":
        store.terminate(run_id, status, ledger.ended)
        ledger.complete = True
    return count


def _push_new(entries: list[dict[str, Any]], send: Callable[[dict[str, Any]], None]) -> None:
    for entry in list(entries):
        if not entry["sent"]:
            send(entry)
            entry["sent"] = True


def _push_points(store: Store, ledger: Ledger, run_id: str, path: Path) -> int:
    count, points, end = 0, list[Point](), ledger.offset
    for end, line in read_lines(path, ledger.offset):
        points += ledger.points(line)
        if len(points) >= _POINTS:
            store.log_points(run_id, points)
            count, points, ledger.offset = count + len(points), [], end
    store.log_points(run_id, points)
    ledger.offset = end
    return count + len(points)


def _push_model(store: Store, ledger: Ledger, run_id: str, entry: dict[str, Any], path: Path) -> None:
    if entry["model_id"] is not None:
        # The run continued after its model was registered: the same version has new weights and metrics.
        points = _model_points(ledger, entry, path)
        store.log_points(run_id, points, entry["model_id"], **entry["dataset"])
    elif store.find_version(entry["name"], entry["version"]) is None and Path(entry["directory"]).is_dir():
        entry["model_id"] = store.register(run_id, entry, _model_points(ledger, entry, path))


def _model_points(ledger: Ledger, entry: Mapping[str, Any], path: Path) -> list[Point]:
    """A model's metrics as points of its run, because MLflow stores them with the run.

    If the run has a point with the same value, that point is sent again, which adds nothing. Any other value
    becomes a point at the last step of its metric.
    """
    last: dict[str, Point] = {}
    same: dict[str, Point] = {}
    for _, line in read_lines(path):
        for point in ledger.points(line):
            last[point.key] = point
            if entry["metrics"].get(point.key) == point.value:
                same[point.key] = point
    return [
        same.get(key) or Point(key, value, last[key].step if key in last else 0, entry["time"])
        for key, value in entry["metrics"].items()
    ]
