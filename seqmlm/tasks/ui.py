"""Running the MLflow UI on the workspace's own store."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass

from seqmlm.errors import StateError
from seqmlm.tracking import Tracker
from seqmlm.workspace import Workspace

HOST = "127.0.0.1"
# Its job workers are seven more processes that do nothing for us; its messages at the start help nobody.
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "PYTHONWARNINGS": "ignore",
}


@dataclass(frozen=True, kw_only=True)
class UiPlan:
    """How the UI is reached, and what to run for it (nothing where a server runs already)."""

    address: str
    command: tuple[str, ...] | None
    environment: dict[str, str]
    folder: str


def plan_ui(port: int, workspace: Workspace | None = None) -> UiPlan:
    """Decide how to show the workspace's runs; makes MLflow's database where it is missing.

    Args:
        port: to listen on at 127.0.0.1; 0 takes any free one.

    Raises:
        StateError: the port is taken, or the store cannot be opened.
    """
    home = workspace or Workspace.locate()
    if not home.tracks_locally:
        return UiPlan(address=home.tracking_uri, command=None, environment={}, folder=str(home.root))
    port = _free(port)
    tracker = Tracker(home)
    tracker.ensure()
    tracker.mark_killed()
    command = (
        *(sys.executable, "-m", "mlflow", "ui"),
        *("--artifacts-destination", home.artifacts.as_uri()),
        *("--host", HOST, "--port", str(port), "--workers", "1", "--uvicorn-opts", "--log-level warning"),
    )
    # Not an argument: the address may hold a password, and arguments are for all to see.
    environment = {"MLFLOW_BACKEND_STORE_URI": home.tracking_uri}
    environment |= {key: value for key, value in _DEFAULTS.items() if key not in os.environ}
    return UiPlan(
        address=f"http://{HOST}:{port}", command=command, environment=environment, folder=str(home.root)
    )


def become(plan: UiPlan) -> None:
    """Replace this process by the UI, so that its signals and its end are the UI's; does not return."""
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
