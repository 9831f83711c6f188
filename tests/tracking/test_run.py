"""A tracked run with MLflow at hand: its status is true, and everything told to it can be read back."""

from __future__ import annotations

import json
import math
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow.tracking import MlflowClient
from tracked_runs import die, steps
from written import written

from seqmlm.engine.durable import FileLock
from seqmlm.errors import StateError, UsageError
from seqmlm.tracking import Ledger, Tracker, read_metrics, store
from seqmlm.tracking.run import TrackedRun
from seqmlm.tracking.store import Point, Store
from seqmlm.workspace import Workspace

Start = Callable[..., TrackedRun]


@pytest.fixture
def client(home: Workspace) -> MlflowClient:
    """A plain client, as other tools read the store."""
    return MlflowClient(tracking_uri=home.tracking_uri, registry_uri=home.tracking_uri)


def _history(client: MlflowClient, run: TrackedRun, key: str = "train/loss") -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in client.get_metric_history(run.run_id, key)]


def _status(client: MlflowClient, run: TrackedRun) -> str:
    return str(client.get_run(run.run_id).info.status)


def test_a_run_is_running_and_then_finished(start: Start, client: MlflowClient) -> None:
    params = {"rate": 0.15, "init": None, "long": "x" * 7000}
    with start(params=params, tags={"domain": "protein"}, spent=100.0) as run:
        assert _status(client, run) == "RUNNING"
    found = client.get_run(run.run_id)
    assert (found.info.status, found.info.run_name) == ("FINISHED", "r")
    assert found.data.params == {"rate": "0.15", "init": "", "long": "x" * 6000}
    assert (found.data.tags["domain"], found.data.tags["seqmlm.name"]) == ("protein", "r")
    assert client.get_experiment(found.info.experiment_id).name == "test"
    # It began when what it is of did.
    assert 100_000 <= found.info.end_time - found.info.start_time < 200_000


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("x"), "FAILED"),
        (SystemExit(1), "FAILED"),
        (SystemExit("gone"), "FAILED"),
        (SystemExit(0), "FINISHED"),
        (SystemExit(None), "FINISHED"),
        (SystemExit(128 + signal.SIGTERM), "KILLED"),
        (KeyboardInterrupt(), "KILLED"),
    ],
)
def test_status_after_an_exception(error: BaseException, status: str, start: Start, client: MlflowClient):
    with pytest.raises(type(error)), start() as run:
        raise error
    found = client.get_run(run.run_id)
    assert found.info.status == status
    assert Ledger.read(run.directory).status == status
    assert ("seqmlm.error" in found.data.tags) == (status == "FAILED")


def test_no_thread_runs_before_there_are_metrics(start: Start) -> None:
    """Reading ahead forks, which it does in a process with one thread."""
    with start() as run:
        run.set_tag("k", "v")
        assert "mlflow" not in {thread.name for thread in threading.enumerate()}
        run.log_metrics(1, {"train/loss": 1.0})
        assert "mlflow" in {thread.name for thread in threading.enumerate()}
    assert "mlflow" not in {thread.name for thread in threading.enumerate()}


def test_metrics_arrive_in_the_background(
    start: Start, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, logged = threading.Event(), Store.log_points

    def told(store: Store, run_id: str, points: Sequence[Point], *rest: Any, **named: Any) -> None:
        logged(store, run_id, points, *rest, **named)
        if points:
            sent.set()

    for name, seconds in (("_PUSH_SECONDS", 0.01), ("_SYSTEM_SECONDS", 0.0)):
        monkeypatch.setattr(f"seqmlm.tracking.run.{name}", seconds)
    monkeypatch.setattr(Store, "log_points", told)
    with start() as run:
        steps(run, range(1, 4))
        assert sent.wait(60)
    assert sorted(_history(client, run)) == [(step, 1 / step) for step in range(1, 4)]
    assert "system/cpu_utilization_percentage" in client.get_run(run.run_id).data.metrics


def test_a_slow_tracker_stops_no_training(
    start: Start, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, go_on, answered = threading.Event(), threading.Event(), []
    logged = Store.log_points

    def slow(*arguments: Any, **named: Any) -> None:
        under_way.set()
        answered.append(go_on.wait(60))
        logged(*arguments, **named)

    monkeypatch.setattr("seqmlm.tracking.run._PUSH_SECONDS", 0.01)
    monkeypatch.setattr(Store, "log_points", slow)
    with start() as run:
        run.log_metrics(1, {"train/loss": 1.0})
        assert under_way.wait(60)
        run.log_metrics(2, {"train/loss": 0.5})  # while MLflow has not answered
        run.set_tag("k", "v")
        run.artifact(run.directory / "metrics.jsonl")
        assert Ledger.read(run.directory).tags["k"] == "v"
        go_on.set()
    assert all(answered)
    assert sorted(_history(client, run)) == [(1, 1.0), (2, 0.5)]
    assert client.get_run(run.run_id).data.tags["k"] == "v"


def test_all_metrics_are_there_at_the_end_and_each_with_its_time(start: Start, client: MlflowClient) -> None:
    with start() as run:
        steps(run, range(1, 131))
    lines = read_metrics(run.directory / "metrics.jsonl")
    assert [(line["step"], line["train/loss"]) for line in lines] == [(n, 1 / n) for n in range(1, 131)]
    points = client.get_metric_history(run.run_id, "train/loss")
    assert {(point.step, point.timestamp) for point in points} == {
        (line["step"], line["time"]) for line in lines
    }
    assert len(points) == 130
    assert Ledger.read(run.directory).offset == (run.directory / "metrics.jsonl").stat().st_size


def test_what_is_not_finite_is_counted_not_logged(start: Start, client: MlflowClient) -> None:
    with start() as run:
        run.log_metrics(1, {"train/loss": math.nan, "grad_norm": 1.0})
        run.log_metrics(2, {"train/loss": math.inf, "grad_norm": -math.inf})
    found = client.get_run(run.run_id)
    assert "train/loss" not in found.data.metrics
    assert found.data.metrics["grad_norm"] == 1.0
    assert found.data.metrics["nonfinite_values"] == 3
    assert "last at step 2" in found.data.tags["seqmlm.nonfinite"]


def test_resume_goes_on_under_the_same_id(start: Start, client: MlflowClient) -> None:
    with start(params={"rate": 0.1, "seed": 1}) as run:
        steps(run, range(1, 11))
        run.end("KILLED")
        run.end("FINISHED")  # what was said first stays
    assert _status(client, run) == "KILLED"
    with start(params={"rate": 0.2, "seed": 1, "new": "x"}, resume=True) as again:
        assert again.run_id == run.run_id
        assert _status(client, again) == "RUNNING"
        # The checkpoint was of step 8: steps 9 and 10 come a second time and are in MLflow once.
        steps(again, range(9, 15))
    found = client.get_run(run.run_id)
    assert found.info.status == "FINISHED"
    assert sorted(_history(client, run)) == [(step, 1 / step) for step in range(1, 15)]
    assert found.data.params == {"rate": "0.1", "seed": "1", "new": "x"}
    assert json.loads(found.data.tags["seqmlm.param_drift"]) == {"rate": ["0.1", "0.2"]}
    with start(params={"rate": 0.3}, resume=True):
        pass
    drift = {"rate": ["0.1", "0.3"]}
    for tags in (client.get_run(run.run_id).data.tags, Ledger.read(run.directory).info(run.directory).tags):
        assert json.loads(tags["seqmlm.param_drift"]) == drift


def test_a_second_value_at_a_step_is_kept_also_across_a_resume(start: Start, client: MlflowClient) -> None:
    """An evaluation during training and the final one, over more data, may fall on one step."""
    with start() as run:
        run.log_metrics(5, {"eval/loss": 3.0})
        run.end("KILLED")
    for own in ([(5, 3.0), (5, 2.0)], [(6, 1.0)]):
        with start(resume=True) as again:
            for step, loss in own:
                again.log_metrics(step, {"eval/loss": loss})
        assert client.get_run(run.run_id).data.metrics["eval/loss"] == own[-1][1]
    assert _history(client, run, "eval/loss") == [(5, 3.0), (5, 2.0), (6, 1.0)]


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("r", {}, StateError, "run 'r' exists"),
        ("s", {"resume": True}, StateError, "no run 's' to resume"),
        ("a/b", {}, UsageError, "cannot name a run"),
        ("t", {"params": {str(index): index for index in range(60)}}, ValueError, "at most 59"),
    ],
)
def test_what_cannot_be_started_leaves_nothing_behind(
    name: str, options: dict[str, Any], error: type[Exception], message: str, start: Start, home: Workspace
) -> None:
    start().end()
    with pytest.raises(error, match=message):
        start(name, **options)
    assert [path.name for path in home.runs.iterdir() if not path.name.startswith(".")] == ["r"]


def test_one_process_at_a_time(start: Start) -> None:
    run = start()
    with pytest.raises(StateError, match="in use by another process"):
        start(resume=True)
    run.end()
    start(resume=True).end()


def test_a_run_deleted_in_mlflow_is_made_anew(start: Start, client: MlflowClient) -> None:
    with start(params={"a": 1}) as run:
        steps(run, range(1, 4))
    client.delete_run(run.run_id)
    with start(resume=True) as again:
        assert again.run_id != run.run_id
        again.flush()
        assert len(_history(client, again)) == 3
        assert client.get_run(again.run_id).data.params == {"a": "1"}


def test_a_deleted_experiment_is_restored(start: Start, client: MlflowClient) -> None:
    with start() as run:
        pass
    client.delete_experiment(client.get_run(run.run_id).info.experiment_id)
    with start("other") as other:
        assert _status(client, other) == "RUNNING"


def test_tags_artifacts_and_data(start: Start, client: MlflowClient, home: Workspace, tmp_path: Path) -> None:
    file, folder = (
        written(tmp_path / "a.txt", "hello"),
        written(tmp_path / "figures" / "b.png", b"png").parent,
    )
    profile = {"records": np.int64(7), "mean": np.float32(1.5), "path": Path("x")}
    with start() as run:
        run.set_tag("k", "v")
        run.artifact(file)
        run.artifact(folder)
        for _ in range(2):
            run.dataset("proteins", "/data/p.fasta", "f" * 64, profile)
    found = client.get_run(run.run_id)
    assert found.data.tags["k"] == "v"
    assert {item.path for item in client.list_artifacts(run.run_id)} == {"a.txt", "b.png"}
    (used,) = found.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("proteins", "f" * 36)
    assert json.loads(used.dataset.source) == {"uri": "/data/p.fasta"}
    assert json.loads(used.dataset.profile) == {"records": 7, "mean": 1.5, "path": "x"}
    assert [(tag.key, tag.value) for tag in used.tags] == [("mlflow.data.context", "training")]
    # They stay in the workspace; a folder mlruns/ would make a plain `mlflow ui` ignore mlflow.db.
    assert len(list(home.artifacts.rglob("a.txt"))) == 1
    assert not (home.root / "mlruns").exists()


def test_a_model_that_a_run_uses(start: Start, client: MlflowClient, tmp_path: Path) -> None:
    """The version of ours, whatever MLflow counts; one that MLflow does not have leaves the run complete."""
    for version in (3, 4):
        folder = written(tmp_path / f"model-{version}" / "config.json", "{}").parent
        with start(f"made-{version}") as made:
            made.register("proteins", folder, version=version, metrics={})
    with start("used") as run:
        for name, version in (("proteins", 4), ("proteins", 4), ("proteins", 9), ("elsewhere", 1)):
            run.uses(name, version)
    [used] = client.get_run(run.run_id).inputs.model_inputs
    [output] = client.get_run(made.run_id).outputs.model_outputs
    assert used.model_id == output.model_id
    client.delete_logged_model(output.model_id)
    with start("late") as late:
        late.uses("proteins", 4)
    assert client.get_run(late.run_id).inputs.model_inputs == []
    assert [Ledger.read(one.directory).complete for one in (run, late)] == [True, True]


def _model_folder(home: Workspace) -> Path:
    written(home.run_dir("r") / "model" / "model.safetensors", b"weights")
    return written(home.run_dir("r") / "model" / "config.json", "{}").parent


def _register(run: TrackedRun, home: Workspace, **options: Any) -> None:
    defaults: dict[str, Any] = {"version": 1, "metrics": {"eval/loss": 2.5}, "params": {"domain": "protein"}}
    run.register("r", _model_folder(home), **{**defaults, **options})


def test_a_registered_model_points_at_the_runs_folder(start: Start, home: Workspace, client: MlflowClient):
    with start() as run:
        run.dataset("proteins", "/data/p.fasta", "f" * 36, {})
        run.log_metrics(7, {"eval/loss": 2.5})
        _register(run, home, dataset="proteins", aliases=["champion"])
    (version,) = client.search_model_versions("name = 'r'")
    assert (version.run_id, version.tags) == (run.run_id, {"seqmlm.version": "1"})
    assert client.get_model_version_by_alias("r", "champion").version == version.version
    uri = client.get_model_version_download_uri("r", version.version)
    assert uri == (home.run_dir("r") / "model").as_uri()
    assert str(home.run_dir("r")) in version.description
    assert "| eval/loss | 2.5 |" in version.description
    (logged,) = client.search_logged_models([client.get_run(run.run_id).info.experiment_id])
    known = (logged.status, logged.params, logged.source_run_id)
    assert known == ("READY", {"domain": "protein"}, run.run_id)
    (output,) = client.get_run(run.run_id).outputs.model_outputs
    assert (output.model_id, output.step) == (logged.model_id, 7)
    assert [(m.key, m.value, m.dataset_name) for m in logged.metrics] == [("eval/loss", 2.5, "proteins")]
    # Small text files are shown in the UI; the weights exist once.
    assert {item.path for item in client.list_logged_model_artifacts(logged.model_id)} == {"config.json"}
    assert len(list(home.root.rglob("model.safetensors"))) == 1


def test_what_is_withheld_goes_to_no_server(
    start: Start, home: Workspace, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_is_small_text", lambda path: True)  # a server gets all files
    (_model_folder(home) / "calibration.safetensors").write_bytes(b"scores of records")
    for version, withheld in enumerate([(), ("calibration.safetensors",)], start=1):
        with start(f"r{version}") as run:
            _register(run, home, version=version, withheld=withheld)
        found = client.search_logged_models([client.get_run(run.run_id).info.experiment_id])
        (logged,) = (one for one in found if one.source_run_id == run.run_id)
        sent = {item.path for item in client.list_logged_model_artifacts(logged.model_id)}
        assert sent == {"config.json", "model.safetensors", "calibration.safetensors"} - set(withheld)


def test_a_models_metrics_add_no_second_point_to_the_run(
    start: Start, home: Workspace, client: MlflowClient
) -> None:
    with start() as run:
        steps(run, range(1, 4))
        _register(run, home, metrics={"train/loss": 1 / 3, "bad": math.nan})
    assert [step for step, _ in sorted(_history(client, run))] == [1, 2, 3]
    (logged,) = client.search_logged_models([client.get_run(run.run_id).info.experiment_id])
    assert [(m.key, m.step) for m in logged.metrics] == [("train/loss", 3)]


def test_a_continued_runs_model_stays_one_version(
    start: Start, home: Workspace, client: MlflowClient, capfd: pytest.CaptureFixture[str]
) -> None:
    with start() as run:
        _register(run, home)
    with start(resume=True) as again:
        _register(again, home, metrics={"eval/loss": 2.0})
    assert capfd.readouterr() == ("", "")
    assert len(client.search_model_versions("name = 'r'")) == 1
    (logged,) = client.search_logged_models([client.get_run(run.run_id).info.experiment_id])
    assert 2.0 in {metric.value for metric in logged.metrics}


def test_runs_are_read_back(start: Start, tracker: Tracker) -> None:
    with start("one", params={"a": 1}) as one:
        steps(one, range(1, 4))
    two = start("two")
    found = tracker.runs()
    assert [run.name for run in found] == ["two", "one"]
    assert [run.status for run in found] == ["RUNNING", "FINISHED"]
    assert found[1].metrics["train/loss"] == pytest.approx(1 / 3)
    assert found[1].params == {"a": "1"}
    assert tracker.find("one") == tracker.find(str(one.run_id)) == tracker.find(str(one.run_id)[:8])
    two.end()


@pytest.mark.parametrize(
    ("reference", "message"), [("ones", "did you mean 'one'"), ("1234567", "known: one")]
)
def test_a_run_that_is_not_there(reference: str, message: str, start: Start, tracker: Tracker) -> None:
    start("one").end()
    with pytest.raises(StateError, match=message):
        tracker.find(reference)


@pytest.mark.parametrize("how", ["mark_killed", "sync"])
def test_a_run_whose_process_died_becomes_killed(
    how: str, start: Start, tracker: Tracker, client: MlflowClient
) -> None:
    dead, alive = start("dead"), start("alive")
    die(dead)
    assert [[*getattr(tracker, how)()] for _ in range(2)] == [["dead"], []]
    assert (_status(client, dead), _status(client, alive)) == ("KILLED", "RUNNING")
    alive.end()
    assert _status(client, alive) == "FINISHED"


def test_a_damaged_ledger_is_named(start: Start, tracker: Tracker, home: Workspace) -> None:
    start().end()
    (home.run_dir("r") / "tracking.json").write_text("{")
    with pytest.raises(StateError, match=r"tracking\.json is damaged"):
        start(resume=True)
    # The lock was given back.
    FileLock(home.run_dir("r") / ".lock", wait=0).acquire()
