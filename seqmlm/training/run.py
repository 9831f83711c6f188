"""The run of a training or fine-tuning: its folder, its run in MLflow, and the resulting model."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from safetensors import SafetensorError

from seqmlm import plugins
from seqmlm.data.counts import released
from seqmlm.engine.durable import move_into_place, replace_file
from seqmlm.errors import StateError
from seqmlm.inference.model_folder import LoadedModel, read_card
from seqmlm.parsing import read_json
from seqmlm.registry.database import UnreachableError
from seqmlm.registry.entries import ModelEntry
from seqmlm.tasks.register import origin_of, register_model, track_model
from seqmlm.tracking import LEDGER, TrackedRun, Tracker
from seqmlm.training.resume import FINISHED, MODEL_FOLDER, REQUESTS, TrainingTask, resume_command
from seqmlm.workspace import Workspace

QUARANTINE = "quarantine.jsonl"
"""The file with the bad records of all corpora."""
PYFUNC = {
    "flavors": {
        "python_function": {
            "loader_module": "seqmlm.pyfunc",
            "python_version": platform.python_version(),
            "config": {"fpr": None, "level": None, "mode": None},
        }
    }
}
"""How MLflow loads the folder (`seqmlm.pyfunc`). It contains no path and no pickled objects."""
TEXTS = {"text": "string"}
EXAMPLE = {
    "artifact_path": "input_example.json",
    "serving_input_path": "serving_input_example.json",
    "type": "dataframe",
    "pandas_orient": "split",
}
"""The description of the example input for MLflow. The example belongs to the field, not to the user's data.
"""
SIGNATURE = {
    "inputs": json.dumps(
        [{"name": name, "type": "string", "required": name in TEXTS} for name in ("id", *TEXTS)]
    ),
    "outputs": None,
    "params": None,
}
"""The table that MLflow requires if records are texts. Other fields have other columns."""


R = TypeVar("R")
Numbers = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A run of `train` or `finetune`: its folder, its run in MLflow and its registered model share one name.

    Args:
        workspace: the workspace.
        name: name of the run, of its folder and of its model.
        task: kind of training.
        domain: name of the domain.
        resume: whether it continues an existing run.
    """

    workspace: Workspace
    name: str
    task: TrainingTask
    domain: str
    resume: bool

    @property
    def directory(self) -> Path:
        """The folder of the run."""
        return self.workspace.run_dir(self.name)

    @property
    def remedy(self) -> str:
        """The command that continues the run."""
        return resume_command(self.name, self.task)

    def begin(self, settings: Mapping[str, Any]) -> Path:
        """Write the settings of the run before anything else, so that a killed run can always be resumed."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / REQUESTS[self.task]
        replace_file(path, yaml.safe_dump(dict(settings), sort_keys=False).encode())
        return path

    def start(
        self, params: Mapping[str, Any], warn: Callable[[str], None], *, parent: str | None = None
    ) -> TrackedRun:
        """Open the run in MLflow. It becomes a child of the run with the id `parent`."""
        tags = {"domain": self.domain, "task": self.task, "kind": "training"}
        return Tracker(self.workspace, warn=warn).start(
            self.name,
            experiment=f"seqmlm-{self.domain}",
            params=params,
            tags=tags if parent is None else {**tags, "mlflow.parentRunId": parent},
            resume=self.resume and (self.directory / LEDGER).exists(),
        )

    def result(self, parse: Callable[[Any], R]) -> R | None:
        """The saved result of a finished training, converted by `parse`. None if it is unfinished.

        Raises:
            StateError: the file cannot be read.
        """
        path = self.directory / FINISHED
        if not path.exists():
            return None
        try:
            return parse(read_json(path))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{path} is not the result of a training ({error}); remove it, then `{self.remedy}` writes "
                "it again from the last checkpoint"
            ) from None

    def finish(self, result: Mapping[str, Any]) -> None:
        """Save the result, which marks the training as finished."""
        replace_file(self.directory / FINISHED, (json.dumps(result, indent=2) + "\n").encode())

    def stop(self, tracked: TrackedRun, steps: int) -> str:
        """Mark the run in MLflow as killed. Returns a sentence that says how to continue."""
        tracked.end("KILLED")
        return f"stopped at step {steps} and saved; to continue: {self.remedy}"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Context that turns disk errors into a StateError with the command that continues the run."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            raise StateError(
                f"cannot write {self.directory}: {error}; free space, then run `{self.remedy}`"
            ) from None

    @contextmanager
    def registering(self, folder: Path) -> Iterator[None]:
        """Context that turns an unreachable registry into a StateError with a remedy.

        The remedy is the command that registers the model.
        """
        try:
            yield
        except UnreachableError as error:
            raise StateError(
                f"{error}; the model is safe in {folder}: once the registry is reachable, run `{self.remedy}`"
            ) from None

    def version_folder(self, steps: int) -> Path:
        """The folder of the model. If the run was extended, the earlier version keeps its folder."""
        first = self.directory / MODEL_FOLDER
        card = read_card(first)
        return first if card is None or card.steps == steps else self.directory / f"{MODEL_FOLDER}-{steps}"

    @contextmanager
    def building(self, folder: Path) -> Iterator[Path]:
        """Context with a draft folder that replaces the folder of the model when it is complete."""
        draft = self.directory / f"{MODEL_FOLDER}.tmp"
        shutil.rmtree(draft, ignore_errors=True)
        yield draft
        self._describe(draft)
        shutil.rmtree(folder, ignore_errors=True)
        move_into_place(draft, folder)

    def _describe(self, draft: Path) -> None:
        """Write the files that MLflow reads: how to load the model, and an example input for texts."""
        domain, description = plugins.domain(self.domain), dict[str, Any](PYFUNC)
        if domain.text.columns == TEXTS:
            description["signature"] = SIGNATURE
            if domain.text.example:
                description["saved_input_example_info"] = EXAMPLE
                table = {"columns": [*TEXTS], "data": [[domain.text.example]]}
                for name, value in {"": table, "serving_": {"dataframe_split": table}}.items():
                    replace_file(draft / f"{name}input_example.json", json.dumps(value).encode())
        replace_file(draft / "MLmodel", yaml.safe_dump(description, sort_keys=False).encode())

    def register(
        self, model: LoadedModel, *, sources: Sequence[str], counts: Mapping[str, Any]
    ) -> ModelEntry:
        """Register a model as a new version of the registered model with the name of the run.

        Args:
            model: the model, with the card of its folder.
            sources: the training files.
            counts: counts of the records in them.
        """
        counts = released(counts)
        origin = origin_of(model.card, model.tokenizer, sources=sources, counts=counts)
        return register_model(Path(model.path), self.name, origin)


def track_version(
    run: TrackedRun, entry: ModelEntry, steps: int, metrics: Numbers, tags: Numbers, data: str | None = None
) -> None:
    """Record a registered version in MLflow.

    Args:
        run: the tracked run.
        entry: the registered version.
        steps: number of steps of the training.
        metrics: metrics of the version, measured on `data`.
        tags: other numbers, recorded as tags.
        data: name of the data.
    """
    run.log_metrics(steps, metrics, tags)
    run.set_numbers(tags)
    track_model(run, entry, metrics, dataset=data)
