"""`push` may be interrupted and repeated anywhere, and steps may be run again: MLflow has each point once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import chain, zip_longest
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from tracked_runs import die, steps

from seqmlm.errors import StateError
from seqmlm.tracking import Ledger, MetricsFile, Tracker, read_metrics
from seqmlm.tracking.run import TrackedRun
from seqmlm.tracking.store import Store
from seqmlm.workspace import Workspace

Start = Callable[..., TrackedRun]
Shown = list[tuple[int, float, int]]

# Calls to MLflow that a push makes.
CALLS = (
    *("reopen", "create_run", "set_params", "set_tags", "log_dataset"),
    *("log_points", "log_artifact", "register", "terminate"),
)


class Killed(BaseException):
    """The process is gone."""


def _points(home: Workspace, run_id: str | None, key: str = "train/loss") -> Shown:
    client = MlflowClient(tracking_uri=home.tracking_uri, registry_uri=home.tracking_uri)
    return sorted((p.step, p.value, p.timestamp) for p in client.get_metric_history(run_id, key))


def _recorded(run: TrackedRun, key: str = "train/loss") -> Shown:
    lines = read_metrics(run.directory / "metrics.jsonl")
    return [(line["step"], line[key], line["time"]) for line in lines if key in line]


def _runs(client: MlflowClient) -> list[str]:
    """Ids of all runs there that are not deleted."""
    experiments = [found.experiment_id for found in client.search_experiments()]
    return [run.info.run_id for run in client.search_runs(experiments)]


def _unreachable(*_: object, **__: object) -> str:
    raise ConnectionError("MLflow is away")


def _dying(method: Callable[..., object], dead: list[str], after: int) -> Callable[..., object]:
    """A call that is answered but, where it is the `after`-th, never heard of again; none follows it."""

    def call(*arguments: object, **named: object) -> object:
        answer = method(*arguments, **named)
        dead.append(method.__name__)
        if len(dead) == after:
            raise Killed
        return answer

    return call


@pytest.mark.parametrize("after", range(1, 10))
def test_a_process_may_die_after_any_call(
    after: int, start: Start, home: Workspace, tracker: Tracker, tmp_path: Path
) -> None:
    with start(params={"a": 1}) as run:
        steps(run, range(1, 8))
        run.set_tag("k", "v")
        run.dataset("d", "/x", "f", {})
        (tmp_path / "a.txt").touch()
        run.artifact(tmp_path / "a.txt")
        model = run.directory / "model"
        model.mkdir()
        run.register("r", model, version=1, metrics={"train/loss": 1 / 7}, dataset="d")
        run._store = None
        run._ledger.forget_sent()
        with pytest.MonkeyPatch.context() as process:
            # From here on nothing comes to the disk: neither what was sent nor how the run ended.
            before = Ledger.read(run.directory)
            process.setattr(Ledger, "write", lambda ledger, directory: None)
            dead: list[str] = []
            for name in CALLS:
                process.setattr(Store, name, _dying(getattr(Store, name), dead, after))
            with pytest.raises(Killed):
                run.end()
            assert len(dead) == after
    assert Ledger.read(run.directory) == before
    assert "r" in tracker.sync()
    ended = Ledger.read(run.directory)
    assert (ended.status, ended.complete) == ("KILLED", True)
    assert _points(home, ended.run_id) == _recorded(run)
    client = MlflowClient(tracking_uri=home.tracking_uri, registry_uri=home.tracking_uri)
    found = client.get_run(ended.run_id)
    assert (found.info.status, found.data.tags["k"]) == ("KILLED", "v")
    assert len(found.inputs.dataset_inputs) == 1
    assert [item.path for item in client.list_artifacts(ended.run_id)] == ["a.txt"]
    assert len(client.search_model_versions("name = 'r'")) == 1


@pytest.mark.parametrize("folder", ["new", "deleted in MLflow", "of another MLflow"])
@pytest.mark.parametrize("goes_on", ["resume", "sync"])
def test_a_kill_before_the_id_of_the_run_is_stored_makes_no_second_run(
    folder: str, goes_on: str, start: Start, home: Workspace, tracker: Tracker
) -> None:
    client = MlflowClient(tracking_uri=home.tracking_uri, registry_uri=home.tracking_uri)
    path = home.run_dir("r") / "tracking.json"
    if folder != "new":
        with pytest.MonkeyPatch.context() as offline:
            if folder != "deleted in MLflow":
                offline.setattr(Store, "create_run", _unreachable)
            with start() as run:
                steps(run, range(1, 4))
        values = json.loads(path.read_text())
        if folder == "deleted in MLflow":
            client.delete_run(run.run_id)
        else:
            values |= {"run_id": "there", "tracking_uri": "http://127.0.0.1:1"}
        path.write_text(json.dumps(values))
    with pytest.MonkeyPatch.context() as process:
        created: list[str] = []
        process.setattr(Store, "create_run", _dying(Store.create_run, created, 1))
        with pytest.raises(Killed):
            start(resume=folder != "new")
    (orphan,) = _runs(client)
    assert Ledger.read(path.parent).run_id is None
    with pytest.MonkeyPatch.context() as process:
        process.setattr(Store, "create_run", _unreachable)  # nobody asks for one more
        if goes_on == "sync":
            tracker.sync()
        with start(resume=True) as run:
            steps(run, range(1, 6))
    assert (run.run_id, _runs(client)) == (orphan, [orphan])
    assert [step for step, _, _ in _points(home, run.run_id)] == [1, 2, 3, 4, 5]
    assert _points(home, run.run_id) == _recorded(run)
    assert client.get_run(orphan).info.status == "FINISHED"
    assert Ledger.read(run.directory).complete


def test_a_run_is_looked_for_only_where_it_may_have_been_created(
    start: Start, home: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Store, "find_run", lambda store, experiment, key: asked.append(key))
    with start() as run:
        pass
    with start(resume=True):
        pass
    assert asked == []
    with pytest.MonkeyPatch.context() as offline:
        offline.setattr(Store, "create_run", _unreachable)
        other = start("other")
        other.flush()
    other.end()
    assert asked == [Ledger.read(other.directory).key] * 2
    tags = MlflowClient(tracking_uri=home.tracking_uri).get_run(run.run_id).data.tags
    assert tags["seqmlm.key"] == Ledger.read(run.directory).key


def test_no_run_is_created_where_its_key_cannot_be_stored(
    start: Start, home: Workspace, warnings_given: list[str]
) -> None:
    write = Ledger.write

    def full(ledger: Ledger, directory: Path) -> None:
        if ledger.key is not None:
            raise StateError("the disk is full")
        write(ledger, directory)

    with pytest.MonkeyPatch.context() as process:
        process.setattr(Ledger, "write", full)
        run = start()
    assert run.run_id is None
    assert _runs(MlflowClient(tracking_uri=home.tracking_uri)) == []
    assert "the disk is full" in warnings_given[0]
    run.end()
    assert _runs(MlflowClient(tracking_uri=home.tracking_uri)) == [run.run_id]


def test_a_line_torn_by_a_kill_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "time": 1}\n{"step": 2, "eval/l')
    MetricsFile(path).write(2, {"eval/loss": 1.0})
    assert [line["step"] for line in read_metrics(path)] == [1, 2]


def test_a_damaged_line_in_the_middle_costs_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    odd = (b"\0\0\xff", b"[" * 100_000, b'{"step": "x"}', b"5", b'{"step": 1, "time": "t"}')
    damaged = [line + b"\n" for line in odd]
    lines = [b'{"step": %d, "time": 1}\n' % number for number in range(1, 7)]
    whole = b"".join(chain.from_iterable(zip_longest(lines, damaged, fillvalue=b"")))
    path.write_bytes(whole)
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 3, 4, 5, 6]
    MetricsFile(path).write(7, {"loss": 1.0})
    assert path.read_bytes().startswith(whole), "nothing is deleted"
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 3, 4, 5, 6, 7]
    assert "5 damaged line(s)" in caplog.messages[0]
    file = MetricsFile(path)
    file.cut_after(4)
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"garbage", b"[1]", b"5", b"{}", b"[" * 100_000, b"\0" * 99),
        b'{"name": 1, "experiment": "e", "tracking_uri": "u"}',
        b'{"name": "n", "experiment": "e", "tracking_uri": "u", "params": [1], "offset": "x"}',
    ],
)
def test_a_damaged_ledger_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tracking.json").write_bytes(content)
    with pytest.raises(StateError, match=r"tracking\.json is damaged .* remove it"):
        Ledger.read(tmp_path)


def test_no_two_lines_have_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    ahead = 2 * int(time.time() * 1000)
    path.write_text(json.dumps({"step": 1, "time": ahead}) + "\n")  # the clock was set back since
    metrics = MetricsFile(path)
    metrics.write(2, {"eval/loss": 1.0})
    metrics.write(2, {"eval/loss": 0.5})
    assert [line["time"] for line in read_metrics(path)] == [ahead, ahead + 1, ahead + 2]


def test_a_full_disk_is_one_sentence() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    with pytest.raises(StateError, match="--resume"):
        MetricsFile(full).write(1, {"x": 1.0})


def test_steps_run_again_with_the_same_values_are_shown_once(start: Start, home: Workspace) -> None:
    run = start()
    for step in range(1, 11):
        run.log_metrics(step, {"train/loss": 1 / step, "tokens_per_second": 10.0}, {"seconds": step})
    run.flush()
    before = _recorded(run)
    assert _points(home, run.run_id) == before
    die(run)
    with start(resume=True) as again:
        again.cut_metrics(6)
        assert len(read_metrics(run.directory / "metrics.jsonl")) == 6
        for step in range(7, 13):
            # How fast a step is differs each time.
            again.log_metrics(step, {"train/loss": 1 / step, "tokens_per_second": 20.0}, {"seconds": 1})
    assert _recorded(again)[:10] == before
    assert _points(home, again.run_id) == _recorded(again)
    speeds = _points(home, again.run_id, "tokens_per_second")
    assert [(step, value) for step, value, _ in speeds] == [
        (step, 10.0 if step <= 10 else 20.0) for step in range(1, 13)
    ]


def test_a_second_kill_before_all_steps_are_run_again_doubles_nothing(start: Start, home: Workspace) -> None:
    def steps(run: TrackedRun, last: int) -> None:
        run.cut_metrics(6)
        for step in range(7, last + 1):
            run.log_metrics(step, {"train/loss": 1 / step})
        run.flush()

    run = start()
    for step in range(1, 7):
        run.log_metrics(step, {"train/loss": 1 / step})
    steps(run, 10)
    before = _recorded(run)
    for last in (7, 6, 9):
        die(run)
        run = start(resume=True)
        steps(run, last)
    die(run)
    with start(resume=True) as last_run:
        steps(last_run, 10)
    assert _recorded(last_run) == before
    assert _points(home, last_run.run_id) == before


def test_steps_run_again_with_other_values_are_shown_as_both(start: Start, home: Workspace):
    with start() as run:
        steps(run, range(1, 6))
        run.end("KILLED")
    before = _recorded(run)
    with start(resume=True) as again:
        again.cut_metrics(3)
        again.log_metrics(4, {"train/loss": 7.0})
        again.log_metrics(5, {"train/loss": 8.0})
    # The file is of the training that led to the model; MLflow forgets nothing.
    recorded = [(step, value) for step, value, _ in _recorded(again)]
    assert recorded == [(1, 1), (2, 1 / 2), (3, 1 / 3), (4, 7), (5, 8)]
    assert _points(home, again.run_id) == sorted({*before, *_recorded(again)})
    client = MlflowClient(tracking_uri=home.tracking_uri)
    assert client.get_run(again.run_id).data.metrics["train/loss"] == 8.0


def test_values_that_were_not_finite_are_counted_once(start: Start, home: Workspace) -> None:
    with start() as run:
        run.log_metrics(1, {"train/loss": float("nan")})
        run.log_metrics(2, {"train/loss": float("inf")})
        run.end("KILLED")
    with start(resume=True) as again:
        again.cut_metrics(1)
        again.log_metrics(2, {"train/loss": float("inf")})
    shown = [(step, value) for step, value, _ in _points(home, run.run_id, "nonfinite_values")]
    assert shown == [(1, 1), (2, 2)]


def test_a_kill_between_cutting_and_noting_it_loses_nothing(start: Start, home: Workspace):
    with start() as run:
        steps(run, range(1, 6))
    noted = (run.directory / "tracking.json").read_bytes()
    again = start(resume=True)
    again.cut_metrics(2)
    again.end("KILLED")
    (run.directory / "tracking.json").write_bytes(noted)
    with start(resume=True) as third:
        for step in range(3, 9):
            third.log_metrics(step, {"train/loss": 2 / step})
    assert set(_recorded(third)) <= set(_points(home, third.run_id))
    assert [step for step, _, _ in _recorded(third)] == list(range(1, 9))
