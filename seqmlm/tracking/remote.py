"""The calls to MLflow, to the address they are given whatever the global one is; any of them may raise."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqmlm.tracking.ledger import Point, plain

# Without this the UI takes every experiment for one of prompts and agents, and hides curves and models.
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
_BATCH = 1000
_PARAM_CHARACTERS = 6000
_TEXT_LIMIT = 4 * 2**20


class Remote:
    """An MLflow store that answered when it was opened; any call may raise when it no longer does.

    Args:
        uri: tracking and registry address.
        artifacts: folder for the files of new experiments; None where a server keeps them.
    """

    def __init__(self, uri: str, artifacts: Path | None) -> None:
        from mlflow.tracking import MlflowClient

        self.uri, self.artifacts = uri, artifacts
        self.client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        # The client is lazy about servers: ask something small, so that a dead one is known here.
        self.client.search_experiments(max_results=1)

    def experiment(self, name: str) -> str:
        """Id of the experiment, made or restored where needed; two processes may ask at once."""
        from mlflow.exceptions import MlflowException

        found = self.client.get_experiment_by_name(name)
        if found is None:
            location = (self.artifacts / name).as_uri() if self.artifacts else None
            try:
                made = self.client.create_experiment(name, artifact_location=location, tags=_EXPERIMENT_TAGS)
                return str(made)
            except MlflowException:
                found = self.client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def create_run(self, experiment: str, name: str, started: int, tags: Mapping[str, str]) -> str:
        """Start a run and return its id."""
        run = self.client.create_run(
            self.experiment(experiment), start_time=started, tags=dict(tags), run_name=name
        )
        return str(run.info.run_id)

    def reopen(self, run_id: str) -> bool:
        """Set a run RUNNING again; False where it is gone or was deleted."""
        from mlflow.exceptions import MlflowException

        try:
            run = self.client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise
        if run.info.lifecycle_stage == "deleted":
            return False
        if run.info.status != "RUNNING":
            self.client.update_run(run_id, status="RUNNING")
        return True

    def set_params(self, run_id: str, params: Mapping[str, str]) -> None:
        """Log the params the run does not have yet; those that changed go to the tag seqmlm.param_drift.

        MLflow's params are fixed once written, so a changed value cannot be shown there.
        """
        from mlflow.entities import Param

        short = {key: value[:_PARAM_CHARACTERS] for key, value in params.items()}
        old = self.client.get_run(run_id).data.params
        new = [Param(key, value) for key, value in short.items() if key not in old]
        if new:
            self.client.log_batch(run_id, params=new)
        drift = {key: [old[key], value] for key, value in short.items() if key in old and old[key] != value}
        if drift:
            self.client.set_tag(run_id, "seqmlm.param_drift", json.dumps(drift))

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set or replace tags."""
        from mlflow.entities import RunTag

        if tags:
            self.client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def log_points(self, run_id: str, points: Sequence[Point]) -> None:
        """Append metric values; the same value at the same step and time is taken once."""
        from mlflow.entities import Metric

        for start in range(0, len(points), _BATCH):
            chunk = [Metric(p.key, p.value, p.time, p.step) for p in points[start : start + _BATCH]]
            self.client.log_batch(run_id, metrics=chunk)

    def last_points(self, run_id: str) -> dict[str, tuple[int, float]]:
        """The last step of each metric of a run, and its value there."""
        data = self.client.get_run(run_id).data
        # MLflow has the steps here and uses them itself, but the public way to them is the whole history.
        latest = getattr(data, "_metric_objs", None)
        if latest is None:
            found = self.history(run_id, data.metrics)
            return {key: (max(found[key])[0], value) for key, value in data.metrics.items()}
        return {metric.key: (metric.step, metric.value) for metric in latest}

    def history(self, run_id: str, keys: Iterable[str]) -> dict[str, set[tuple[int, float]]]:
        """All steps and values of some metrics."""
        return {
            key: {(metric.step, metric.value) for metric in self.client.get_metric_history(run_id, key)}
            for key in keys
        }

    def log_dataset(self, run_id: str, entry: Mapping[str, Any]) -> None:
        """Record what a run read: name, digest, source and profile; no data is copied."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(
            name=entry["name"],
            digest=entry["digest"],
            source_type="local",
            source=json.dumps({"uri": entry["source"]}),
            profile=json.dumps(entry["profile"], default=plain),
        )
        tags = [InputTag("mlflow.data.context", entry["context"])]
        self.client.log_inputs(run_id, datasets=[DatasetInput(dataset, tags)])

    def log_artifact(self, run_id: str, path: str, folder: str) -> None:
        """Upload a file, or the contents of a folder, under `folder` ("" is the top)."""
        if Path(path).is_dir():
            self.client.log_artifacts(run_id, path, folder or None)
        else:
            self.client.log_artifact(run_id, path, folder or None)

    def register(self, run_id: str, entry: Mapping[str, Any]) -> str:
        """Make a logged model with its metrics and a version of a registered model.

        Where MLflow's store is a local database the version points at the model's own folder, and only its
        small text files are copied, to be seen in the UI. A server cannot see our disk: it gets the folder,
        without what the entry withholds.

        Returns:
            MLflow's model id.
        """
        from mlflow.entities import LoggedModelOutput

        run = self.client.get_run(run_id)
        directory = Path(entry["directory"])
        model = self.client.create_logged_model(
            run.info.experiment_id,
            name=entry["name"].replace(".", "-"),  # MLflow takes dots in names of registered models alone
            source_run_id=run_id,
            tags={"seqmlm.path": str(directory), **entry["tags"]},
            params=entry["params"],
            model_type="masked-lm",
        )
        local = self.artifacts is not None
        for path in sorted(directory.iterdir()):
            withheld = path.name in entry.get("withheld", ())
            if path.is_file() and not withheld and (not local or _is_small_text(path)):
                self.client.log_model_artifact(model.model_id, str(path))
        self.client.finalize_logged_model(model.model_id, "READY")
        step = self.log_model_metrics(run_id, {**entry, "model_id": model.model_id})
        self.client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step)])
        self._ensure_registered(entry["name"])
        source = directory.as_uri() if local else f"models:/{model.model_id}"
        version = self.client.create_model_version(
            entry["name"],
            source,
            run_id=run_id,
            tags=entry["tags"],
            description=_description(entry),
            model_id=model.model_id,
        )
        # The UI finds the versions of a logged model through this tag.
        link = json.dumps([{"name": entry["name"], "version": version.version}])
        self.client.set_logged_model_tags(model.model_id, {"mlflow.modelVersions": link})
        for alias in entry["aliases"]:
            self.set_alias(entry["name"], alias, int(version.version))
        return str(model.model_id)

    def log_model_metrics(self, run_id: str, entry: Mapping[str, Any]) -> int:
        """Log metrics of a logged model, measured on the data set its entry names; returns their last step.

        MLflow keeps them among the run's metrics too: a value the run has already is logged as the same point
        again, which adds nothing there; as another point it would be a second value at its step.
        """
        from mlflow.entities import Metric

        metrics = []
        for key, value in entry["metrics"].items():
            history = sorted(self.client.get_metric_history(run_id, key), key=lambda metric: metric.step)
            same = [metric for metric in history if metric.value == value]
            step = same[-1].step if same else history[-1].step if history else 0
            time_ = same[-1].timestamp if same else now()
            metrics.append(Metric(key, value, time_, step, model_id=entry["model_id"], **entry["dataset"]))
        if metrics:
            self.client.log_batch(run_id, metrics=metrics)
        return max((metric.step for metric in metrics), default=0)

    def _ensure_registered(self, name: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self.client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def set_alias(self, name: str, alias: str, version: int) -> None:
        """Point an alias of a registered model at one of its versions."""
        self.client.set_registered_model_alias(name, alias, str(version))

    def find_version(self, name: str, version: int) -> int | None:
        """MLflow's number of our version of a model: they differ where models were registered offline."""
        from mlflow.exceptions import MlflowException

        try:
            found = self.client.search_model_versions(f"name = '{name}'")
        except MlflowException:
            return None
        for candidate in found:
            if candidate.tags.get("seqmlm.version") == str(version):
                return int(candidate.version)
        return None

    def terminate(self, run_id: str, status: str, ended: int | None) -> None:
        """End a run as FINISHED, FAILED or KILLED."""
        self.client.set_terminated(run_id, status=status, end_time=ended or now())


def _description(entry: Mapping[str, Any]) -> str:
    """What the UI's page of a version says: MLflow shows neither metrics nor folder there."""
    metrics = "\n".join(f"| {key} | {value:.6g} |" for key, value in sorted(entry["metrics"].items()))
    facts = ", ".join(f"{key} {value}" for key, value in entry["params"].items())
    table = f"\n\n| metric | value |\n| --- | --- |\n{metrics}" if metrics else ""
    return f"{facts}\n\n`{entry['directory']}`{table}"


def _is_small_text(path: Path) -> bool:
    return path.suffix in (".json", ".txt", ".md") and path.stat().st_size <= _TEXT_LIMIT


def now() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)
