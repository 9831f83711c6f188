"""`seqmlm doctor`, `db` and `ui`: check an installation, migrate the registry, start MLflow's UI.

The checks change nothing, and create no file and no database. If a check fails with an error, the error is
reported as a problem. A broken installation can therefore always be examined.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any, NamedTuple

from packaging.requirements import Requirement

from seqmlm import plugins
from seqmlm.errors import SeqmlmError, StateError
from seqmlm.registry import database
from seqmlm.registry.schema import Schema
from seqmlm.registry.tables import REGISTRY
from seqmlm.tracking import Tracker, TrackerDown, public
from seqmlm.workspace import Workspace

_PACKAGES = (
    *("seqmlm", "torch", "transformers", "tokenizers", "accelerate", "datasets", "safetensors"),
    *("mlflow", "sqlalchemy", "alembic", "psycopg", "numpy", "pyarrow"),
)
EXTRAS = {
    "bigwig": "write tracks as bigWig files (--out TRACK.bw)",
    "postgres": "keep the registry in PostgreSQL (SEQMLM_DATABASE_URL)",
    "ray": "distribute tasks over a Ray cluster (seqmlm ray)",
    "tree-sitter": "parse Java, JavaScript and Go as trees",
    "umap": "draw embeddings in a plane with UMAP (embed --report)",
    "dev": "run the tests and build the documentation",
}
"""Optional dependencies, as `pip install 'seqmlm[NAME]'` installs them: what each of them makes possible."""
_LITTLE_DISK = 2 * 2**30
_NOT_YET = "created when first needed"
_VARIABLES = ("SEQMLM_HOME", "MLFLOW_TRACKING_URI", "SEQMLM_DATABASE_URL", "CUDA_VISIBLE_DEVICES", "HF_HOME")


@dataclass(kw_only=True)
class Examination:
    """Facts by topic, and the problems that were found."""

    versions: dict[str, str | None] = field(default_factory=dict)
    extras: dict[str, dict[str, Any]] = field(default_factory=dict)
    devices: dict[str, Any] = field(default_factory=dict)
    workspace: dict[str, Any] = field(default_factory=dict)
    tracking: dict[str, Any] = field(default_factory=dict)
    registry: dict[str, Any] = field(default_factory=dict)
    plugins: dict[str, list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def examine() -> Examination:
    """Run every check. No file is created, and nothing is repaired."""
    home = Workspace.locate()
    examination = Examination()
    examination.versions = {
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
    }
    examination.extras = {
        name: {"installed": _has_extra(name), "enables": use} for name, use in EXTRAS.items()
    }
    for check in (_devices, _workspace, _tracking, _registry, _plugins):
        try:
            check(examination, home)
        except Exception as error:
            # A check must report a problem, not raise it.
            examination.problems.append(f"{check.__name__[1:]}: {type(error).__name__}: {error}")
    return examination


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _has_extra(name: str) -> bool:
    """Whether all packages of an extra are installed."""
    try:
        requirements = map(Requirement, requires("seqmlm") or ())
    except PackageNotFoundError:  # run from a checkout that is not installed
        return False
    return all(
        _version(requirement.name) is not None
        for requirement in requirements
        if requirement.marker is not None and requirement.marker.evaluate({"extra": name})
    )


def _devices(examination: Examination, _: Workspace) -> None:
    import torch

    from seqmlm.engine.attention import attention_path
    from seqmlm.engine.device import compute_dtype

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = compute_dtype("auto", device := torch.device(kind))
    examination.devices = {
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": kind,
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "precision": str(dtype).removeprefix("torch."),
        "bf16": bool(dtype == torch.bfloat16),
        "attention": attention_path(device, dtype),
    }
    if torch.version.cuda and kind == "cpu" and shutil.which("nvidia-smi"):
        examination.problems.append(
            "torch finds no GPU although nvidia-smi is installed; check that the driver supports torch's CUDA"
        )


def _workspace(examination: Examination, home: Workspace) -> None:
    existing = next(folder for folder in (home.root, *home.root.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    examination.workspace = {
        "root": str(home.root),
        "writable": os.access(existing, os.W_OK),
        "free_gib": round(free / 2**30, 1),
        "environment": {name: public(os.environ[name]) for name in _VARIABLES if name in os.environ},
    }
    if not examination.workspace["writable"]:
        examination.problems.append(f"{home.root} is not writable; point SEQMLM_HOME at a folder that is")
    if free < _LITTLE_DISK:
        examination.problems.append(
            f"only {free / 2**30:.1f} GiB are free at {home.root}; checkpoints may not fit"
        )


def _tracking(examination: Examination, home: Workspace) -> None:
    tracker = Tracker(home)
    examination.tracking = {"uri": tracker.public_uri}
    if not tracker.has_store:
        examination.tracking["state"] = _NOT_YET
        return
    try:
        tracker.connect()
    except TrackerDown as error:
        examination.tracking |= {"reachable": False, "state": str(error)}
        examination.problems.append(
            f"{error}; training continues without it; run `seqmlm runs sync` once it is reachable"
        )
        return
    incomplete = tracker.incomplete()
    examination.tracking |= {"reachable": True, "incomplete_runs": incomplete}
    if incomplete:
        examination.problems.append(
            f"MLflow is missing parts of {', '.join(incomplete)}; run `seqmlm runs sync`"
        )


def _registry(examination: Examination, home: Workspace) -> None:
    try:
        engine = database.engine(home.database_url)
    except SeqmlmError as error:
        examination.problems.append(str(error))
        return
    examination.registry = {"url": engine.url.render_as_string(hide_password=True)}
    if not database.exists(engine.url):
        examination.registry["state"] = _NOT_YET
        return
    try:
        current, needed = database.revisions(engine)
        examination.registry |= {"revision": current, "needed": needed}
        if current != needed:
            examination.problems.append(
                f"the registry is at schema {current}, not {needed}; run `seqmlm db upgrade`"
            )
    except SeqmlmError as error:
        examination.problems.append(str(error))
    finally:
        engine.dispose()


def _plugins(examination: Examination, _: Workspace) -> None:
    kinds: tuple[plugins.Kind, ...] = ("domains", "tokenizers", "maskers")
    for kind in kinds:
        examination.plugins[kind] = plugins.names(kind)
        for name in examination.plugins[kind]:
            try:
                plugins.load(kind, name)
            except SeqmlmError as error:
                examination.problems.append(str(error))


def schema(*, upgrade: bool = False, of: Schema = REGISTRY) -> tuple[str, str | None, str]:
    """The state of a schema in the registry's database.

    Args:
        upgrade: run all pending migrations.
        of: the schema.

    Returns:
        The address without password, the revision before any upgrade (None if the database is empty), and the
        revision that this version needs.

    Raises:
        StateError: the database cannot be reached.
    """
    engine = database.engine(Workspace.locate().database_url)
    try:
        current, needed = database.revisions(engine, of)
        if upgrade:
            database.upgrade(engine, of)
        return engine.url.render_as_string(hide_password=True), current, needed
    finally:
        engine.dispose()


HOST = "127.0.0.1"
# MLflow's job workers are seven processes that seqmlm does not use. Its start-up messages are not useful.
_DEFAULTS = {
    "PYTHONSAFEPATH": "1",  # for its child processes: no module is imported from the current folder
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "PYTHONWARNINGS": "ignore",
}


class UiCommand(NamedTuple):
    """The address to open, and the command that starts the UI.

    Args:
        address: the page with the runs of the newest run's experiment, else MLflow's first page.
        experiment: name of that experiment; None if there is no run yet or a server does not answer.
        command: the command that starts the UI; None if a server is already configured.
        environment: more environment variables for the command.
        folder: the folder in which the command runs.
    """

    address: str
    experiment: str | None
    command: tuple[str, ...] | None
    environment: dict[str, str]
    folder: str


def plan_ui(port: int) -> UiCommand:
    """Plan how to show the workspace's runs. MLflow's database is created if it is missing.

    Args:
        port: the port to listen on; 0 selects a free port.

    Raises:
        StateError: the port is in use, or the store cannot be opened.
    """
    home = Workspace.locate()
    tracker, folder = Tracker(home), str(home.root)
    if not home.tracks_locally:
        address, experiment = home.tracking_uri, None
        with suppress(StateError):
            address, experiment = _page(address, tracker)
        return UiCommand(address, experiment, None, {}, folder)
    port = _free(port)
    address, experiment = _page(f"http://{HOST}:{port}", tracker)
    tracker.mark_killed()
    # At lower levels, the server logs an interruption as an error with a traceback.
    command = (
        *(sys.executable, "-P", "-m", "mlflow", "ui"),
        *("--artifacts-destination", home.artifacts.as_uri()),
        *("--host", HOST, "--port", str(port), "--workers", "1", "--uvicorn-opts", "--log-level critical"),
    )
    # The address may contain a password, and other users can see arguments. So it is a variable.
    environment = {"MLFLOW_BACKEND_STORE_URI": home.tracking_uri}
    environment |= {key: value for key, value in _DEFAULTS.items() if key not in os.environ}
    return UiCommand(address, experiment, command, environment, folder)


def _page(server: str, tracker: Tracker) -> tuple[str, str | None]:
    """The address and name of the newest run's experiment; the server's address and None without runs.

    MLflow 3 opens with a page for prompts and agents. The workflow type in the address selects the page with
    runs, curves and models.
    """
    experiment = tracker.newest_experiment()
    if experiment is None or not server.startswith("http"):
        return server, None
    return (
        f"{server.rstrip('/')}/#/experiments/{experiment[0]}/runs?workflowType=machine_learning",
        experiment[1],
    )


def become(plan: UiCommand) -> None:
    """Replace this process by the UI, which then gets all signals. This function does not return."""
    assert plan.command is not None
    os.chdir(plan.folder)
    os.execve(plan.command[0], plan.command, {**os.environ, **plan.environment})


def _free(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise StateError(f"cannot listen on {HOST}:{port} ({error}); choose another --port") from None
        return int(probe.getsockname()[1])
