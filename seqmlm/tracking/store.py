"""The connection to MLflow, quiet and quick to fail, and the calls that are made to it."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from seqmlm.parsing import plain
from seqmlm.workspace import Workspace, first_use

NAME_TAG = "seqmlm.name"
KEY_TAG = "seqmlm.key"
DRIFT_TAG = "seqmlm.param_drift"
DESCRIPTION = "mlflow.note.content"
"""Tag that the UI shows as the description of a run, in Markdown."""
_OURS = f"tags.`{NAME_TAG}` != ''"

# MLflow retries HTTP for minutes and databases for 100 s; a run waits for neither. Users' settings win.
_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
}
_CONNECT_SECONDS = 5
_EXACT = 2**53  # up to which floats are whole numbers one by one
_LOUD = ("mlflow", "alembic", "urllib3", "sqlalchemy")
# Without this the UI takes every experiment for one of prompts and agents, and hides curves and models.
_EXPERIMENT_TAGS = {
    "mlflow.experimentKind": "custom_model_development",
    "mlflow.note.content": "Trainings alone: `tags.kind = 'training'`. Scorings: `tags.task = 'score'`.",
}
# The UI finds the versions of a logged model through this tag.
_VERSIONS_TAG = "mlflow.modelVersions"
_BATCH = 1000
_PARAM_CHARACTERS = 6000
_TEXT_LIMIT = 4 * 2**20

# Levels of loggers belong to the whole process: two threads would restore each other's.
_SILENCE = threading.RLock()


class TrackerDown(Exception):
    """MLflow cannot be reached; the message says why."""


class Point(NamedTuple):
    """One value of one metric; `time` is in milliseconds since 1970."""

    key: str
    value: float
    step: int
    time: int


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """One run as it stands; times are milliseconds since 1970, metrics the last value of each."""

    name: str
    run_id: str | None
    experiment: str
    status: str
    started: int
    ended: int | None
    params: dict[str, str]
    tags: dict[str, str]
    metrics: dict[str, float]
    tracked: bool
    """Whether MLflow has it, as far as it has come."""


@contextmanager
def quiet() -> Iterator[None]:
    """Silence MLflow and what it uses: what goes wrong arrives as an exception. One thread at a time."""
    with _SILENCE:
        # Its import sets the levels of its loggers, so it must come before ours.
        import mlflow  # noqa: F401

        loggers = [logging.getLogger(name) for name in _LOUD]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            # Not `catch_warnings`: in the background it could undo filters that the main thread sets.
            warnings.filterwarnings("ignore", module=logger.name)
            logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def connect(workspace: Workspace) -> Store:
    """Open MLflow's store, creating the workspace's own database on first use.

    Raises:
        TrackerDown: it does not answer within seconds.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    uri = workspace.tracking_uri
    try:
        with quiet():
            if not workspace.tracks_locally:
                return Store(uri, None)
            _probe(uri)
            with first_use(workspace.runs / ".mlflow.lock"):
                return Store(uri, workspace.artifacts)
    except Exception as error:
        reason = hide_password(first_line(error), uri)
        raise TrackerDown(f"MLflow at {public(uri)} does not answer: {reason}") from error


def _probe(uri: str) -> None:
    """Open the database once with a short timeout, since MLflow would retry a dead one for 100 seconds."""
    import sqlalchemy

    if uri.startswith("file:") or "://" not in uri:
        raise ValueError("MLflow no longer supports a folder as its store; use sqlite:///<file> or a server")
    url = sqlalchemy.make_url(uri)
    arguments: dict[str, Any] = {}
    if url.get_backend_name() == "sqlite":
        if url.database and url.database != ":memory:":
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    elif url.get_backend_name() in ("postgresql", "mysql"):
        arguments["connect_timeout"] = _CONNECT_SECONDS
    engine = sqlalchemy.create_engine(url, connect_args=arguments, poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1")


def public(uri: str) -> str:
    """The address without its password."""
    return hide_password(uri, uri)


def hide_password(text: str, uri: str) -> str:
    """Some text that may quote an address, without the password of that address."""
    try:
        secret = urlsplit(uri).password
    except ValueError:
        secret = None
    return text.replace(secret, "***") if secret else text


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


class Store:
    """An MLflow store that answered when it was opened; any call may raise when it no longer does.

    `artifacts` is the folder for files of new experiments; None where a server keeps them.
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

        stored = self.client.get_experiment_by_name(name)
        if stored is None:
            location = (self.artifacts / name).as_uri() if self.artifacts else None
            try:
                new_id = self.client.create_experiment(
                    name, artifact_location=location, tags=_EXPERIMENT_TAGS
                )
                return str(new_id)
            except MlflowException:
                stored = self.client.get_experiment_by_name(name)
                if stored is None:
                    raise
        if stored.lifecycle_stage == "deleted":
            self.client.restore_experiment(stored.experiment_id)
        return str(stored.experiment_id)

    def create_run(self, experiment: str, name: str, started: int, tags: Mapping[str, str]) -> str:
        """Start a run and return its id."""
        run = self.client.create_run(
            self.experiment(experiment), start_time=started, tags=dict(tags), run_name=name
        )
        return str(run.info.run_id)

    def find_run(self, experiment: str, key: str) -> str | None:
        """Id of the run of an experiment that was created with our key; None where there is none."""
        matches = self.client.search_runs([self.experiment(experiment)], f"tags.`{KEY_TAG}` = '{key}'")
        # One that was closed by hand meanwhile goes on like any other.
        return next((str(run.info.run_id) for run in matches if self.reopen(run.info.run_id)), None)

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

    def terminate(self, run_id: str, status: str, ended: int | None) -> None:
        """End a run as FINISHED, FAILED or KILLED."""
        self.client.set_terminated(run_id, status=status, end_time=ended or now())

    def set_params(self, run_id: str, params: Mapping[str, str]) -> None:
        """Log the params the run does not have yet; those that changed go to the tag seqmlm.param_drift.

        MLflow's params are fixed once written, so a changed value cannot be shown there.
        """
        from mlflow.entities import Param

        short = {key: _encodable(value)[:_PARAM_CHARACTERS] for key, value in params.items()}
        stored = self.client.get_run(run_id).data.params
        added = [Param(key, value) for key, value in short.items() if key not in stored]
        if added:
            self.client.log_batch(run_id, params=added)
        drift = {
            key: [stored[key], value]
            for key, value in short.items()
            if key in stored and stored[key] != value
        }
        if drift:
            self.client.set_tag(run_id, DRIFT_TAG, json.dumps(drift))

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set or replace tags."""
        from mlflow.entities import RunTag

        if tags:
            self.client.log_batch(
                run_id, tags=[RunTag(key, _encodable(value)) for key, value in tags.items()]
            )

    def log_points(
        self, run_id: str, points: Sequence[Point], model_id: str | None = None, **dataset: str
    ) -> None:
        """Log any number of metric values; the same one at the same step and time is kept once.

        Args:
            model_id, dataset: the logged model they are of, and `dataset_name` and `dataset_digest` of the
                data they were measured on.
        """
        from mlflow.entities import Metric

        for start in range(0, len(points), _BATCH):
            chunk = [
                Metric(p.key, p.value, p.time, p.step, model_id=model_id, **dataset)
                for p in points[start : start + _BATCH]
            ]
            self.client.log_batch(run_id, metrics=chunk)

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

    def log_model(self, run_id: str, name: str, version: int) -> None:
        """Record that a run reads our version of a model; nothing where MLflow does not have it."""
        from mlflow.entities import LoggedModelInput

        logged = self._logged_model(name, version)
        if logged is not None:
            self.client.log_inputs(run_id, models=[LoggedModelInput(logged)])

    def _logged_model(self, name: str, version: int) -> str | None:
        """Id of the logged model behind our version of a model; None where either is not in MLflow.

        A version that points at a folder does not keep its logged model; that one keeps its versions.
        """
        from mlflow.exceptions import MlflowException

        registered = self.find_version(name, version)
        if registered is None or not registered.run_id:
            return None
        try:
            for output in self.client.get_run(registered.run_id).outputs.model_outputs:
                tags = self.client.get_logged_model(output.model_id).tags
                if {"name": name, "version": registered.version} in json.loads(tags.get(_VERSIONS_TAG, "[]")):
                    return str(output.model_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # it was deleted there
                raise
        return None

    def log_artifact(self, run_id: str, path: str) -> None:
        """Upload a file, or the contents of a folder, if it is still there."""
        if Path(path).is_dir():
            self.client.log_artifacts(run_id, path)
        elif Path(path).exists():
            self.client.log_artifact(run_id, path)

    def register(self, run_id: str, entry: Mapping[str, Any], points: Sequence[Point]) -> str:
        """Make a logged model with its metrics, and a version of a registered model; MLflow's model id.

        Where MLflow's store is a local database the version points at the model's own folder, and only its
        small text files are copied, to be seen in the UI. A server cannot see our disk: it gets the folder,
        without what the entry withholds.
        """
        from mlflow.entities import LoggedModelOutput

        model_id = self._log_model(run_id, entry)
        self.log_points(run_id, points, model_id, **entry["dataset"])
        step = max((point.step for point in points), default=0)
        self.client.log_outputs(run_id, [LoggedModelOutput(model_id, step)])
        self._ensure_registered(entry["name"])
        version = self.client.create_model_version(
            entry["name"],
            Path(entry["directory"]).as_uri() if self.artifacts else f"models:/{model_id}",
            run_id=run_id,
            tags=entry["tags"],
            description=_description(entry),
            model_id=model_id,
        )
        link = json.dumps([{"name": entry["name"], "version": version.version}])
        self.client.set_logged_model_tags(model_id, {_VERSIONS_TAG: link})
        for alias in entry["aliases"]:
            self.set_alias(entry["name"], alias, int(version.version))
        return model_id

    def _log_model(self, run_id: str, entry: Mapping[str, Any]) -> str:
        directory = Path(entry["directory"])
        model = self.client.create_logged_model(
            self.client.get_run(run_id).info.experiment_id,
            name=entry["name"].replace(".", "-"),  # MLflow takes dots in names of registered models alone
            source_run_id=run_id,
            tags={"seqmlm.path": str(directory), **entry["tags"]},
            params=entry["params"],
            model_type="masked-lm",
        )
        for path in sorted(directory.iterdir()):
            withheld = path.name in entry.get("withheld", ()) or path.name.startswith(".")  # a lock file
            if path.is_file() and not withheld and (self.artifacts is None or _is_small_text(path)):
                self.client.log_model_artifact(model.model_id, str(path))
        self.client.finalize_logged_model(model.model_id, "READY")
        return str(model.model_id)

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

    def find_version(self, name: str, version: int) -> Any:
        """MLflow's entry of our version of a model, or None; numbers differ where that was offline."""
        from mlflow.exceptions import MlflowException

        try:
            versions = self.client.search_model_versions(f"name = '{name}'")
        except MlflowException:
            return None
        ours = (entry for entry in versions if entry.tags.get("seqmlm.version") == str(version))
        return next(ours, None)

    def _experiments(self) -> dict[str, str]:
        """Ids of all experiments to their names."""
        return {
            experiment.experiment_id: experiment.name for experiment in _pages(self.client.search_experiments)
        }

    def newest_experiment(self) -> tuple[str, str] | None:
        """Id and name of the experiment of our newest run; None where there is no run of ours."""
        experiments = self._experiments()
        if not experiments:
            return None
        newest = ["attributes.start_time DESC"]
        newest_runs = self.client.search_runs(list(experiments), _OURS, max_results=1, order_by=newest)
        ids = [run.info.experiment_id for run in newest_runs]
        return (ids[0], experiments[ids[0]]) if ids else None

    def runs(self) -> list[RunInfo]:
        """All runs of ours, newest first."""
        experiments = self._experiments()
        runs = _pages(partial(self.client.search_runs, list(experiments), _OURS))
        infos = [_info(run, experiments[run.info.experiment_id]) for run in runs]
        return sorted(infos, key=lambda run: run.started, reverse=True)


def _pages(search: Callable[..., Any]) -> Iterator[Any]:
    """All that a search of MLflow's client finds, page after page."""
    token: str | None = None
    while True:
        page = search(max_results=1000, page_token=token)
        yield from page
        if not (token := page.token):
            return


def _info(run: Any, experiment: str) -> RunInfo:
    info, data = run.info, run.data
    return RunInfo(
        name=info.run_name,
        run_id=info.run_id,
        experiment=experiment,
        status=info.status,
        started=info.start_time,
        ended=info.end_time,
        params=dict(data.params),
        tags=of_seqmlm(data.tags),
        metrics=dict(data.metrics),
        tracked=True,
    )


def of_seqmlm(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags but those that MLflow's UI is told by."""
    return {key: value for key, value in tags.items() if not key.startswith("mlflow.")}


def _description(entry: Mapping[str, Any]) -> str:
    """The text of the UI's page of a version: MLflow shows neither metrics nor folder there."""
    metrics = "\n".join(f"| {key} | {value:.6g} |" for key, value in sorted(entry["metrics"].items()))
    facts = ", ".join(f"{key} {value}" for key, value in entry["params"].items())
    table = f"\n\n| metric | value |\n| --- | --- |\n{metrics}" if metrics else ""
    return f"{facts}\n\n`{entry['directory']}`{table}"


def _is_small_text(path: Path) -> bool:
    return path.suffix in (".json", ".txt", ".md") and path.stat().st_size <= _TEXT_LIMIT


def decimal(value: float) -> str:
    """A number as params and tags have it: a count whole, others to six digits.

    >>> decimal(1234567), decimal(1234567.0), decimal(2 / 3), decimal(float("inf"))
    ('1234567', '1234567', '0.666667', 'inf')
    """
    return f"{value:.0f}" if abs(value) < _EXACT and float(value).is_integer() else f"{value:.6g}"


def now() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)


def _encodable(text: str) -> str:
    """The text with escapes for bytes of a file name that are not UTF-8, which no database takes."""
    return text.encode("utf-8", "backslashreplace").decode()
