"""MLflow away at the start, in the middle, or for good: the training goes on, and nothing is lost."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from tracked_runs import die, steps
from written import written

from seqmlm.errors import StateError
from seqmlm.tracking import Ledger, Tracker
from seqmlm.tracking.run import TrackedRun
from seqmlm.tracking.store import Store
from seqmlm.workspace import Workspace

Start = Callable[..., TrackedRun]


class Cable:
    """Stands between a tracker and MLflow, and can be pulled out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plugged = True
        calls = ("log_points", "set_tags", "create_run", "terminate", "register", "log_artifact", "reopen")
        for name in calls:
            monkeypatch.setattr(Store, name, self._through(getattr(Store, name)))
        monkeypatch.setattr(Store, "__init__", self._through(Store.__init__))

    def _through(self, method: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            if not self.plugged:
                raise ConnectionError("the cable is out")
            return method(*arguments, **named)

        return call


@pytest.fixture
def cable(monkeypatch: pytest.MonkeyPatch, home: Workspace) -> Cable:
    # Nothing is sent by the clock: the tests say when.
    monkeypatch.setattr("seqmlm.tracking.run._PUSH_SECONDS", 1e6)
    return Cable(monkeypatch)


def _everything(home: Workspace, run: TrackedRun) -> tuple[str, list[tuple[int, float]], set[str], int]:
    client = MlflowClient(tracking_uri=home.tracking_uri, registry_uri=home.tracking_uri)
    found = client.get_run(run.run_id)
    history = sorted((m.step, m.value) for m in client.get_metric_history(run.run_id, "train/loss"))
    artifacts = {item.path for item in client.list_artifacts(run.run_id)}
    return found.info.status, history, artifacts, len(client.search_model_versions("name = 'r'"))


def _expected(last: int) -> tuple[str, list[tuple[int, float]], set[str], int]:
    return "FINISHED", [(step, 1 / step) for step in range(1, last + 1)], {"a.txt"}, 1


def _finish(run: TrackedRun, tmp_path: Path) -> None:
    run.artifact(written(tmp_path / "a.txt", ""))
    model = written(run.directory / "model" / "config.json", "{}").parent
    run.register("r", model, version=1, metrics={"eval/loss": 1.0}, aliases=["champion"])


def test_away_in_the_middle(
    cable: Cable, start: Start, home: Workspace, tmp_path: Path, warnings_given: list[str]
) -> None:
    with start() as run:
        steps(run, range(1, 4))
        run.flush()
        cable.plugged = False
        steps(run, range(4, 8))
        run.flush()
        assert run.offline
        cable.plugged = True
        run.flush()
        assert not run.offline
        assert len(_everything(home, run)[1]) == 7  # before the end
        _finish(run, tmp_path)
    assert _everything(home, run) == _expected(7)
    assert len(warnings_given) == 1
    assert "the cable is out" in warnings_given[0]
    assert Ledger.read(run.directory).complete


def test_away_at_the_start(
    cable: Cable, start: Start, home: Workspace, tmp_path: Path, warnings_given: list[str]
) -> None:
    cable.plugged = False
    with start(params={"a": 1}) as run:
        assert run.run_id is None
        steps(run, range(1, 6))
        run.dataset("d", "/x", "f", {})
        _finish(run, tmp_path)
        cable.plugged = True
    assert _everything(home, run) == _expected(5)
    client = MlflowClient(tracking_uri=home.tracking_uri)
    found = client.get_run(run.run_id)
    assert found.data.params == {"a": "1"}
    assert found.info.start_time == Ledger.read(run.directory).started
    assert len(found.inputs.dataset_inputs) == 1
    assert len(warnings_given) == 1


def test_away_for_good_and_synced_later(cable, start, home, tmp_path, tracker, warnings_given):
    cable.plugged = False
    with start() as run:
        steps(run, range(1, 6))
        _finish(run, tmp_path)
    assert len(warnings_given) == 2
    assert "seqmlm runs sync" in warnings_given[1]
    (found,) = tracker.runs()  # from folders
    assert (found.name, found.status, found.tracked) == ("r", "FINISHED", False)
    assert found.metrics == {"train/loss": 0.2}
    assert tracker.incomplete() == ["r"]
    with pytest.raises(StateError, match="the cable is out"):
        tracker.sync()
    cable.plugged = True
    assert tracker.sync() == {"r": 5}
    assert tracker.sync() == {}
    run._ledger = Ledger.read(run.directory)
    assert _everything(home, run) == _expected(5)
    assert run._ledger.ended is not None


def test_resume_after_an_offline_run(cable: Cable, start: Start, home: Workspace, tmp_path: Path) -> None:
    cable.plugged = False
    with start() as run:
        steps(run, range(1, 4))
        run.end("KILLED")
    cable.plugged = True
    with start(resume=True) as again:
        steps(again, range(4, 6))
        _finish(again, tmp_path)
    assert _everything(home, again) == _expected(5)


def test_a_failure_while_finishing_is_made_up_for(
    cable: Cable, start: Start, home: Workspace, tmp_path: Path, tracker: Tracker
) -> None:
    with start() as run:
        steps(run, range(1, 4))
        _finish(run, tmp_path)
        cable.plugged = False
    assert Ledger.read(run.directory).status == "FINISHED"
    cable.plugged = True
    tracker.sync()
    assert _everything(home, run) == _expected(3)


def test_all_dead_runs_are_marked_where_mlflow_is_away(cable, start, tracker, home, warnings_given):
    dead = [start("a"), start("b")]
    for run in dead:
        die(run)
    cable.plugged = False
    assert tracker.mark_killed() == []
    assert [Ledger.read(run.directory).status for run in dead] == ["KILLED", "KILLED"]
    assert len(warnings_given) == 1
    cable.plugged = True
    assert tracker.sync() == {"a": 0, "b": 0}


@pytest.mark.parametrize(
    "uri",
    [
        "http://127.0.0.1:1",
        "postgresql+psycopg://me:secret@127.0.0.1:1/x",
        "sqlite:////proc/nowhere/mlflow.db",
        "file:///somewhere",
        "nonsense://x",
        "oracle://",
    ],
)
def test_an_address_that_does_not_work_costs_seconds_and_one_warning(
    uri: str, workspace: Path, monkeypatch: pytest.MonkeyPatch, warnings_given: list[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    began = time.monotonic()
    tracker = Tracker(Workspace.locate(), warn=warnings_given.append)
    with tracker.start("r", experiment="e", params={}) as run:
        steps(run, range(1, 3))
    # MLflow itself would try for minutes; the bound is far from what is measured (about 1 s an attempt).
    assert time.monotonic() - began < 60
    assert len(warnings_given) == 2
    assert "does not answer" in warnings_given[0]
    assert "secret" not in "".join(warnings_given)
    assert Ledger.read(run.directory).status == "FINISHED"


def test_another_tracker_gets_the_whole_run(
    start: Start, home: Workspace, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start() as run:
        steps(run, range(1, 4))
    shutil.copyfile(empty_store, home.root / "other.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home.root}/other.db")
    moved = Workspace.locate()
    with Tracker(moved).start("r", experiment="test", params={}, resume=True) as again:
        steps(again, range(4, 6))
    client = MlflowClient(tracking_uri=moved.tracking_uri)
    history = client.get_metric_history(again.run_id, "train/loss")
    assert sorted(metric.step for metric in history) == [1, 2, 3, 4, 5]


def test_the_users_own_settings_for_http_win(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, warnings_given: list[str]
) -> None:
    import os

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    Tracker(Workspace.locate(), warn=warnings_given.append).start("r", experiment="e", params={}).end()
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"
