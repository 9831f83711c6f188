"""What a run's folder holds, and `push`, which brings MLflow up to it and may be repeated at any time.

`metrics.jsonl` has a line for each optimizer step and evaluation, with its time; `tracking.json`, the ledger,
has everything else: params, tags, artifacts, data sets, models, the status, and what MLflow has of them. Of
`metrics.jsonl` that is a single number, the offset up to which it was sent.

MLflow keeps one point for the same metric, step, time and value, however often it is sent. So nothing has to
be looked up there and nothing is sent live: a push sends what is behind the offset, and a process that dies
between sending and storing the offset sends the same points again, which changes nothing.
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

# Points that are sent at once and taken off the file before the next are read.
_POINTS = 10_000
# Of a line of metrics.jsonl, what is not a metric.
_NOT_METRICS = {"step", "time"}
# What differs when a step is run again and computes the same.
_WALL_CLOCK = {"time", "seconds", "tokens_per_second"}


# What a ledger's fields hold at their top; a damaged one is refused before it is used.
_KINDS: dict[str, type] = {
    **dict.fromkeys(("name", "experiment", "tracking_uri", "status"), str),
    **dict.fromkeys(("params", "tags", "tags_sent"), dict),
    **dict.fromkeys(("datasets", "inputs", "artifacts", "models", "metric_keys"), list),
    **dict.fromkeys(("started", "offset"), int),
}


@dataclass(kw_only=True)
class Ledger:
    """One run as its folder knows it, and what MLflow has of it.

    Times are milliseconds since 1970. The owner of the run's lock is the only writer.
    """

    name: str
    experiment: str
    tracking_uri: str
    run_id: str | None = None
    """MLflow's id; None until MLflow has answered for the first time."""
    key: str | None = None
    """Our own id of the run, there before MLflow is asked to create it; None as long as it was not asked."""
    status: str = "RUNNING"
    """RUNNING, FINISHED, FAILED or KILLED."""
    started: int = 0
    ended: int | None = None
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    tags_sent: dict[str, str] = field(default_factory=dict)
    metric_keys: list[str] = field(default_factory=list)
    """Which numbers of metrics.jsonl go to MLflow."""
    offset: int = 0
    """Bytes of metrics.jsonl that MLflow has."""
    datasets: list[dict[str, Any]] = field(default_factory=list)
    inputs: list[dict[str, Any]] = field(default_factory=list)
    """Registered models that the run reads."""
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    models: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False
    """Whether the run has ended and MLflow has everything it recorded."""

    @classmethod
    def read(cls, directory: Path) -> Ledger:
        """Read the ledger of a run folder; StateError where there is none or it is damaged."""
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
        """Replace the ledger file, so that a kill leaves the old one or the new one."""
        text = json.dumps(asdict(self), indent=1, default=plain) + "\n"
        with _disk_errors(directory / LEDGER):
            replace_file(directory / LEDGER, text.encode())

    def note(self, entries: list[dict[str, Any]], entry: Mapping[str, Any], *same: str) -> None:
        """Keep a data set, an artifact or a model to be sent, in place of one with the same keys `same`."""
        added = {"time": now(), **entry, "sent": False}
        for earlier in [earlier for earlier in entries if all(earlier[key] == entry[key] for key in same)]:
            entries.remove(earlier)
            if "model_id" in earlier:
                # A version of a model is registered once; after that only its numbers are sent again.
                added["model_id"] = earlier["model_id"]
        entries.append(added)

    def forget_sent(self) -> None:
        """Mark everything as unsent: the tracker no longer has the run."""
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
        """The run as its folder knows it."""
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
    """The lines of a metrics.jsonl file that are whole; see `_lines`."""
    return ((end, line) for end, line in _lines(path, offset) if line is not None)


def _lines(path: Path, offset: int = 0) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """The lines of a metrics.jsonl file from an offset on, each with the offset in bytes where it ends.

    Nothing where the file is missing; it ends before a line torn by a kill, and a line that was damaged
    otherwise is None.
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
    """All lines of a metrics.jsonl file, in order; none where it is missing."""
    return [line for _, line in read_lines(path)]


class MetricsFile:
    """`metrics.jsonl`: a line for each optimizer step and evaluation, on disk before anything is sent.

    A resumed training repeats the steps behind its checkpoint. A line that comes again with the same values
    stays as it was, time included, so that MLflow, which may have it, keeps one point; with other values it
    is a new line with a new time, and MLflow shows both. Lines that wait for that are in a file beside it,
    `metrics.cut.jsonl`: the process may be killed once more before it has come to them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.nonfinite = 0
        """Values in it that were NaN or infinite."""
        self._latest = 0
        self._kept: list[dict[str, Any]] = []
        self._cut: dict[int, list[dict[str, Any]]] = {}
        self._cut_path = path.with_suffix(f".cut{path.suffix}")
        for _, line in read_lines(self._cut_path):
            self._cut.setdefault(line["step"], []).append(line)
        self.cut_after(None)

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self.path.stat().st_size if self.path.is_file() else 0

    def cut_after(self, step: int | None) -> None:
        """Drop the lines from the first of a later step on (they are run again), and one torn by a kill."""
        if not self.path.is_file():
            return
        end, lines_before, later, damaged = 0, list[dict[str, Any]](), False, 0
        for line_end, line in _lines(self.path):
            if line is None:  # it stays in the file, where a person may still read it
                damaged, end = damaged + 1, end if later else line_end
                continue
            later = later or (step is not None and line["step"] > step)
            if later:
                same_step = self._cut.setdefault(line["step"], [])
                if line not in same_step:  # one that came again after an earlier cut
                    same_step.append(line)
            else:
                lines_before.append(line)
                end = line_end
        if damaged:
            logging.getLogger("seqmlm").warning(f"{self.path}: {damaged} damaged line(s) are not read")
        if later:
            self._keep_cut(lines_before[-1]["step"] if lines_before else 0)
        with _disk_errors(self.path):
            os.truncate(self.path, end)
        # An evaluation at the step of the checkpoint may be repeated too.
        self._kept = [line for line in lines_before if line["step"] == lines_before[-1]["step"]]
        self._latest = max((line["time"] for line in lines_before), default=0)
        self.nonfinite = max((int(line.get("nonfinite_values", 0)) for line in lines_before), default=0)

    def _keep_cut(self, first: int) -> None:
        """Write what was cut, of steps from `first` on, before it leaves the file."""
        self._cut = {step: lines for step, lines in self._cut.items() if step >= first}
        text = "".join(json.dumps(line) + "\n" for lines in self._cut.values() for line in lines)
        with _disk_errors(self._cut_path):
            replace_file(self._cut_path, text.encode())

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one line; numbers that are not finite become null."""
        # Of two values at one step and time MLflow would take the larger for the last: no time comes twice.
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
    """Remove and return the line that says the same as `wanted`, apart from how long it took."""
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
        raise StateError(f"cannot write {path}: {error.strerror}; free space there, then --resume") from None


def open_run(store: Store, ledger: Ledger, save: Callable[[], None]) -> None:
    """Create the run in MLflow, or reopen it, or create it anew where it was deleted there.

    A process may die, or an answer be lost, after MLflow has created the run and before the ledger knows its
    id. So our own key is on the disk first (`save` writes the ledger; where it raises nothing is created),
    and the run that has it is looked for before one is created.
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
    """Send MLflow what it lacks of an opened run, and note that in the ledger, which the caller writes.

    It may be interrupted anywhere and repeated; what the store raises passes through. Another thread may go
    on recording, and writing the ledger: here no dict of it grows, only values are exchanged.

    Returns:
        How many points of metrics.jsonl were sent.
    """
    # Read first: a run that ends while this sends may have recorded more, which the next push sends.
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
        # The run went on after its model was registered: the same version, with other weights and numbers.
        points = _model_points(ledger, entry, path)
        store.log_points(run_id, points, entry["model_id"], **entry["dataset"])
    elif store.find_version(entry["name"], entry["version"]) is None and Path(entry["directory"]).is_dir():
        entry["model_id"] = store.register(run_id, entry, _model_points(ledger, entry, path))


def _model_points(ledger: Ledger, entry: Mapping[str, Any], path: Path) -> list[Point]:
    """A model's metrics as points of its run, which MLflow keeps them among.

    A value the run has is the same point again, which adds none there; another one is a point at the last
    step of its metric.
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
