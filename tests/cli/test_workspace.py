"""`seqmlm ui`: the right server on the right store; and a run tracked through such a server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from fork_server import Run

from seqmlm.errors import StateError
from seqmlm.management.doctor import plan_ui
from seqmlm.tracking import Tracker, read_metrics
from seqmlm.workspace import Workspace


def test_the_store_is_the_workspaces_and_no_secret_is_an_argument(tracked_workspace: Path) -> None:
    plan = plan_ui(0)
    assert plan.command[:4] == (sys.executable, "-P", "-m", "mlflow")
    assert plan.environment["MLFLOW_BACKEND_STORE_URI"] == Workspace.locate().tracking_uri
    assert not any(Workspace.locate().tracking_uri in argument for argument in plan.command)
    assert f"http://127.0.0.1:{plan.command[plan.command.index('--port') + 1]}" == plan.address
    assert plan.experiment is None


def test_the_page_is_that_of_the_newest_run(tracked_workspace: Path) -> None:
    """Not MLflow's first one, which is of prompts and agents, and not that of runs of other programs."""
    tracker = Tracker(Workspace.locate())
    client = tracker.connect().client
    for experiment in ("seqmlm-text", "seqmlm-dna", "seqmlm-text"):
        with tracker.start(f"in-{experiment}-{len(tracker.runs())}", experiment=experiment, params={}):
            time.sleep(0.01)  # MLflow counts milliseconds
    client.create_run(client.create_experiment("other"))
    plan = plan_ui(0)
    port = plan.command[plan.command.index("--port") + 1]
    [text] = [one for one in client.search_experiments() if one.name == "seqmlm-text"]
    page = f"/#/experiments/{text.experiment_id}/runs?workflowType=machine_learning"
    assert (plan.address, plan.experiment) == (f"http://127.0.0.1:{port}{page}", "seqmlm-text")


def test_without_a_run_it_says_so(seqmlm: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqmlm.management.doctor.become", lambda plan: None)
    empty = seqmlm("ui", "--port", 0)
    assert empty.out.startswith("http://127.0.0.1:")
    assert "#" not in empty.out
    assert "no run is in MLflow yet" in empty.err
    Tracker(Workspace.locate()).start("one", experiment="seqmlm-text", params={}).end()
    shown = seqmlm("ui", "--port", 0)
    assert shown.out.endswith("/runs?workflowType=machine_learning\n")
    assert "experiment seqmlm-text" in shown.err
    assert "no run" not in shown.err


def test_the_page_is_a_route_of_the_installed_ui() -> None:
    """MLflow's UI is a program of its own, which only answers to paths that it knows."""
    import mlflow

    scripts = Path(mlflow.__file__).parent / "server/js/build/static/js"
    [program] = scripts.glob("main.*.js")
    text = program.read_text(encoding="utf-8")
    for part in ('"/experiments/:experimentId/runs"', '"workflowType"', '"machine_learning"', "HashRouter"):
        assert part in text, part


def test_a_taken_port(tracked_workspace: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StateError, match="choose another --port"):
            plan_ui(taken.getsockname()[1])


def test_a_server_has_a_ui_already(seqmlm: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    assert seqmlm("ui").out == "http://tracker:5000\n"


@pytest.fixture
def server(tracked_workspace: Path) -> Iterator[str]:
    """Address of the UI of a workspace, started by the command itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", "seqmlm", "ui", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    try:
        address = process.stdout.readline().strip().partition("/#")[0]
        _wait(address, process)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        process.stdout.close()


def _wait(address: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server has ended"
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
                assert answer.read() == b"OK"
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    raise AssertionError(f"{address} never answered")


@pytest.mark.slow
def test_a_run_tracked_through_a_server(
    server: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv("SEQMLM_HOME", str(tmp_path_factory.mktemp("client")))
    warnings: list[str] = []
    tracker = Tracker(Workspace.locate(), warn=warnings.append)
    with tracker.start("far", experiment="e", params={"a": 1}) as run:
        for step in range(20):
            run.log_metrics(step, {"train/loss": 3.0 - step})
        run.flush()
        # As after a kill between sending and storing the offset: all are sent again, with one that is new.
        run._ledger.offset = 0
        run.log_metrics(20, {"train/loss": 2.0})
        run.flush()
        model = run.directory / "model"
        model.mkdir()
        (model / "config.json").write_text("{}")
        (model / "model.safetensors").write_bytes(b"weights")
        run.dataset("d", "/x", "f", {})
        run.artifact(model / "config.json")
        run.register("far", model, version=1, metrics={"train/loss": 2.0}, dataset="d", aliases=["champion"])
    assert warnings == []
    (found,) = tracker.runs()
    assert (found.name, found.status, found.metrics["train/loss"]) == ("far", "FINISHED", 2.0)
    client = tracker.connect().client
    points = client.get_metric_history(run.run_id, "train/loss")
    lines = read_metrics(run.directory / "metrics.jsonl")
    assert sorted((point.step, point.timestamp) for point in points) == [
        (n["step"], n["time"]) for n in lines
    ]
    assert len(points) == 21
    page = plan_ui(0)
    experiment = client.get_run(run.run_id).info.experiment_id
    assert page.address == f"{server}/#/experiments/{experiment}/runs?workflowType=machine_learning"
    assert (page.command, page.experiment) == (None, "e")
    # A server cannot see our disk: it was given the model.
    version = client.get_model_version_by_alias("far", "champion")
    (logged,) = client.search_logged_models([client.get_run(run.run_id).info.experiment_id])
    assert version.source == f"models:/{logged.model_id}"
    names = {item.path for item in client.list_logged_model_artifacts(logged.model_id)}
    assert names == {"config.json", "model.safetensors"}
