"""The connection to MLflow, which is quiet and fails fast, and all calls to MLflow."""

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
"""The tag that the UI shows as the description of a run, in Markdown."""
_OURS = f"tags.`{NAME_TAG}` != ''"

# By default MLflow retries HTTP for minutes and databases for 100 s. These values shorten that. The user's
# own environment variables take precedence.
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
_EXACT = 2**53  # up to this number, floats represent every integer
_LOUD = ("mlflow", "alembic", "urllib3", "sqlalchemy")
# Without this tag the UI treats every experiment as one for prompts and agents, and hides curves and models.
_EXPERIMENT_TAGS = {
    "mlflow.experimentKind": "custom_model_development",
    "mlflow.note.content": "Only trainings: `tags.kind = 'training'`. Only scoring: `tags.task = 'score'`.",
}
# The UI finds the versions of a logged model through this tag.
_VERSIONS_TAG = "mlflow.modelVersions"
_BATCH = 1000
_PARAM_CHARACTERS = 6000
_TEXT_LIMIT = 4 * 2**20

# The levels of loggers apply to the whole process. Without a lock, two threads would restore each other's.
_SILENCE = threading.RLock()


class TrackerDown(Exception):
    """MLflow cannot be reached. The message contains the reason."""


class Point(NamedTuple):
    """One value of a metric at a step. `time` is in milliseconds since 1970."""

    key: str
    value: float
    step: int
    time: int


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """The current state of a run. Times are milliseconds since 1970. Metrics are their last values."""

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
    """Whether MLflow has everything that the run has recorded so far."""


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the loggers of MLflow and its libraries within the context. Errors still raise.

    Only one thread at a time can be in the context.
    """
    with _SILENCE:
        # The import sets the levels of MLflow's loggers, so it must precede the change below.
        import mlflow  # noqa: F401

        loggers = [logging.getLogger(name) for name in _LOUD]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            # `catch_warnings` in a background thread could undo filters that the main thread sets.
            warnings.filterwarnings("ignore", module=logger.name)
            logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def connect(workspace: Workspace) -> Store:
    """Connect to MLflow's store. The workspace's own database is created on first use.

    Raises:
        TrackerDown: MLflow does not answer within seconds.
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
    """Connect to the database once with a short timeout. MLflow would retry a dead one for 100 seconds."""
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
    """An address without its password."""
    return hide_password(uri, uri)


def hide_password(text: str, uri: str) -> str:
    """A text in which the password of an address is replaced by asterisks."""
    try:
        secret = urlsplit(uri).password
    except ValueError:
        secret = None
    return text.replace(secret, "***") if secret else text


def first_line(error: BaseException) -> str:
    """The first line of an error's message, at most 300 characters; the type's name if it is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


class Store:
    """An MLflow store that answered when it was opened. Any call raises if it no longer answers.

    Args:
        uri: the tracking address.
        artifacts: folder for the files of new experiments; None if a server stores them.
    """

    def __init__(self, uri: str, artifacts: Path | None) -> None:
        from mlflow.tracking import MlflowClient

        self.uri, self.artifacts = uri, artifacts
        self.client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        # The client connects lazily. This small query fails here if the server is down.
        self.client.search_experiments(max_results=1)

    def experiment(self, name: str) -> str:
        """The id of an experiment. It is created or restored if needed.

        Two processes may call this at the same time.
        """
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
        """The id of the run with our key in an experiment; None if there is none. The run is reopened."""
        matches = self.client.search_runs([self.experiment(experiment)], f"tags.`{KEY_TAG}` = '{key}'")
        # A run that a user has closed in the meantime is reopened like any other.
        return next((str(run.info.run_id) for run in matches if self.reopen(run.info.run_id)), None)

    def reopen(self, run_id: str) -> bool:
        """Set a run to RUNNING again; False if it does not exist or was deleted."""
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
        """Log the params that the run does not have yet. Changed params go to the tag seqmlm.param_drift.

        MLflow's params cannot be changed once they are written.
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
        """Log any number of metric values. Equal values at the same step and time are stored once.

        Args:
            run_id: the run.
            points: the values.
            model_id: the logged model that the values belong to, if any.
            dataset: `dataset_name` and `dataset_digest` of the data that the values were measured on.
        """
        from mlflow.entities import Metric

        for start in range(0, len(points), _BATCH):
            chunk = [
                Metric(p.key, p.value, p.time, p.step, model_id=model_id, **dataset)
                for p in points[start : start + _BATCH]
            ]
            self.client.log_batch(run_id, metrics=chunk)

    def log_dataset(self, run_id: str, entry: Mapping[str, Any]) -> None:
        """Record the name, digest, source and profile of data that a run read. No data are copied."""
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
        """Record that a run reads a version of a model. Nothing happens if MLflow does not have it."""
        from mlflow.entities import LoggedModelInput

        logged = self._logged_model(name, version)
        if logged is not None:
            self.client.log_inputs(run_id, models=[LoggedModelInput(logged)])

    def _logged_model(self, name: str, version: int) -> str | None:
        """The id of the logged model of a version in our registry; None if MLflow does not have both.

        A version that points at a folder does not store its logged model. The logged model stores its
        versions.
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
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # this code: it was deleted in MLflow
                raise
        return None

    def log_artifact(self, run_id: str, path: str) -> None:
        """Upload a file, or the contents of a folder, if it still exists."""
        if Path(path).is_dir():
            self.client.log_artifacts(run_id, path)
        elif Path(path).exists():
            self.client.log_artifact(run_id, path)

    def register(self, run_id: str, entry: Mapping[str, Any], points: Sequence[Point]) -> str:
        """Create a logged model with its metrics, and a version of a registered model.

        If MLflow's store is a local database, the version points at the model's folder. Only its small text
        files are copied, so that the UI shows them. A server cannot read our disk. It gets all files of the
        folder except the withheld ones.

        Returns:
            MLflow's id of the logged model.
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
            name=entry["name"].replace(".", "-"),  # MLflow allows dots only in names of registered models
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
        """Give one version of a registered model an alias."""
        self.client.set_registered_model_alias(name, alias, str(version))

    def find_version(self, name: str, version: int) -> Any:
        """MLflow's entry for a version in our registry, or None.

        MLflow's version numbers differ from ours if it was unreachable at some time.
        """
        from mlflow.exceptions import MlflowException

        try:
            versions = self.client.search_model_versions(f"name = '{name}'")
        except MlflowException:
            return None
        ours = (entry for entry in versions if entry.tags.get("seqmlm.version") == str(version))
        return next(ours, None)

    def _experiments(self) -> dict[str, str]:
        """The names of all experiments, by id."""
        return {
            experiment.experiment_id: experiment.name for experiment in _pages(self.client.search_experiments)
        }

    def newest_experiment(self) -> tuple[str, str] | None:
        """The id and name of the experiment with the newest run of seqmlm; None if there is no such run."""
        experiments = self._experiments()
        if not experiments:
            return None
        newest = ["attributes.start_time DESC"]
        newest_runs = self.client.search_runs(list(experiments), _OURS, max_results=1, order_by=newest)
        ids = [run.info.experiment_id for run in newest_runs]
        return (ids[0], experiments[ids[0]]) if ids else None

    def runs(self) -> list[RunInfo]:
        """All runs of seqmlm, newest first."""
        experiments = self._experiments()
        runs = _pages(partial(self.client.search_runs, list(experiments), _OURS))
        infos = [_info(run, experiments[run.info.experiment_id]) for run in runs]
        return sorted(infos, key=lambda run: run.started, reverse=True)


def _pages(search: Callable[..., Any]) -> Iterator[Any]:
    """All results of a search with MLflow's client, page after page."""
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
    """The tags, except those for MLflow's UI."""
    return {key: value for key, value in tags.items() if not key.startswith("mlflow.")}


def _description(entry: Mapping[str, Any]) -> str:
    """The description of a version in the UI, with the metrics and the folder that MLflow does not show."""
    metrics = "\n".join(f"| {key} | {value:.6g} |" for key, value in sorted(entry["metrics"].items()))
    facts = ", ".join(f"{key} {value}" for key, value in entry["params"].items())
    table = f"\n\n| metric | value |\n| --- | --- |\n{metrics}" if metrics else ""
    return f"{facts}\n\n`{entry['directory']}`{table}"


def _is_small_text(path: Path) -> bool:
    return path.suffix in (".json", ".txt", ".md") and path.stat().st_size <= _TEXT_LIMIT


def decimal(value: float) -> str:
    """A number as text for params and tags: integers in full, other numbers with six digits.

    >>> decimal(1234567), decimal(1234567.0), decimal(2 / 3), decimal(float("inf"))
    ('1234567', '1234567', '0.666667', 'inf')
    """
    return f"{value:.0f}" if abs(value) < _EXACT and float(value).is_integer() else f"{value:.6g}"


def now() -> int:
    """The current time in milliseconds since 1970."""
    return int(time.time() * 1000)


def _encodable(text: str) -> str:
    """The text with escapes for bytes that are not UTF-8. File names may have them; databases refuse them."""
    return text.encode("utf-8", "backslashreplace").decode()
