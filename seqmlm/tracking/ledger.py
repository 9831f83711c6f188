"""What a run has to tell the tracker, kept in the run's folder: nothing is lost while the tracker is away."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from seqmlm.errors import StateError

LEDGER = "tracking.json"
METRICS = "metrics.jsonl"

# Of a line of metrics.jsonl, what is not a metric.
_NOT_METRICS = {"step", "time"}


@dataclass(frozen=True)
class Point:
    """One value of one metric."""

    key: str
    value: float
    step: int
    time: int
    """Milliseconds since 1970."""


@dataclass(kw_only=True)
class Ledger:
    """One run as its folder knows it; `sent` marks say what MLflow has already taken.

    Times are milliseconds since 1970. The owner of the run's lock is the only writer.
    """

    name: str
    experiment: str
    tracking_uri: str
    run_id: str | None = None
    """MLflow's id; None until MLflow has answered for the first time."""
    status: str = "RUNNING"
    """RUNNING, FINISHED, FAILED or KILLED."""
    status_sent: bool = False
    started: int = 0
    ended: int | None = None
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metric_keys: list[str] = field(default_factory=list)
    gaps: bool = False
    """Whether MLflow may lack points between others that it has; without, only the newest can be missing."""
    nonfinite: int = 0
    """Metric values that were NaN or infinite."""
    datasets: list[dict[str, Any]] = field(default_factory=list)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    models: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False
    """Whether MLflow has everything this run recorded."""

    @classmethod
    def read(cls, directory: Path) -> Ledger:
        """Read the ledger of a run folder.

        Raises:
            StateError: there is none, or it is damaged.
        """
        path = directory / LEDGER
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return cls(**values)
        except FileNotFoundError:
            raise StateError(f"{directory} is not a run: it has no {LEDGER}") from None
        except (ValueError, TypeError, OSError) as error:
            raise StateError(f"{path} is damaged ({error}); remove it and start the run anew") from None

    def write(self, directory: Path) -> None:
        """Replace the ledger file at once, so that a kill leaves the old one or the new one.

        Raises:
            StateError: the disk is full or not writable.
        """
        path = directory / LEDGER
        temporary = path.with_name(f"{LEDGER}.{os.getpid()}.tmp")
        try:
            text = json.dumps(asdict(self), indent=1, default=plain) + "\n"
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise StateError(
                f"cannot write {path}: {error.strerror}; free space there, then --resume"
            ) from None

    def note_artifact(self, path: str, folder: str) -> None:
        """Keep a file or folder to be sent; again where it was sent before, since it may have changed."""
        entry = {"path": path, "folder": folder, "sent": False}
        self.artifacts = [old for old in self.artifacts if (old["path"], old["folder"]) != (path, folder)]
        self.artifacts.append(entry)

    def note_dataset(self, entry: dict[str, Any]) -> None:
        """Keep a data set to be sent, once."""
        if not any({**old, "sent": None} == {**entry, "sent": None} for old in self.datasets):
            self.datasets.append({**entry, "sent": False})

    def note_model(self, entry: dict[str, Any], dataset: str | None) -> None:
        """Keep a model to be sent; the same version again replaces what was kept of it.

        Args:
            entry: name, directory, version, metrics, params, aliases.
            dataset: name of the data set that its metrics were measured on.
        """
        used = next((old for old in self.datasets if old["name"] == dataset), None)
        same = [m for m in self.models if (m["name"], m["version"]) == (entry["name"], entry["version"])]
        self.models = [old for old in self.models if old not in same]
        self.models.append(
            {
                **entry,
                "dataset": {"dataset_name": used["name"], "dataset_digest": used["digest"]} if used else {},
                "tags": {"seqmlm.version": str(entry["version"])},
                "model_id": same[-1]["model_id"] if same else None,
                "sent": False,
            }
        )

    def forget_sent(self) -> None:
        """Mark everything as unsent: the tracker no longer has the run."""
        self.run_id, self.status_sent, self.complete = None, False, False
        for entry in [*self.datasets, *self.artifacts, *self.models]:
            entry["sent"] = False
        for entry in self.models:
            entry["model_id"] = None


def plain(value: Any) -> Any:
    """Numbers of other libraries as plain ones; anything else as text."""
    return value.item() if hasattr(value, "item") else str(value)


def read_points(path: Path, keys: set[str] | None = None) -> Iterator[Point]:
    """The finite values of a metrics.jsonl file, in order; a line torn by a kill is passed over.

    Args:
        path: the file; nothing is yielded where it is missing.
        keys: metrics wanted; all numbers where None.
    """
    if not path.is_file():
        return
    written = int(path.stat().st_mtime * 1000)
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                values = json.loads(line)
                step, time = int(values["step"]), int(values.get("time", written))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
            for key, value in values.items():
                if key in _NOT_METRICS or (keys is not None and key not in keys):
                    continue
                if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
                    yield Point(key, float(value), step, time)
