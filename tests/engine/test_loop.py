"""The loop: the numbers of a plain training, and what happens when things go wrong."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_training as tiny
import torch
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from transformers import AttentionInterface

from seqmlm.engine import attention, checkpoint, loop, schedule
from seqmlm.engine.optimizer import adamw
from seqmlm.engine.packing import PackedBatch, RowPlanner, rows_per_epoch
from seqmlm.errors import StateError, TrainingError, UsageError


def weights_of(rows: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in rows.parameters()]


# -- the numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("micro_tokens", [None, 30])
def test_equals_a_plain_training(tmp_path: Path, weighted: bool, micro_tokens: int | None) -> None:
    """Sum of losses / sum of weights of the whole batch, clipped, AdamW: written down without the engine."""
    data = tiny.dataset(tiny.Periodic(weighted=weighted))
    _, seen = tiny.trained(tmp_path, tiny.TinyRows(dropout=0.0), dataset=data, micro_tokens=micro_tokens)

    rows = tiny.TinyRows(dropout=0.0)
    planner = RowPlanner(tiny.Periodic().lengths, tokens_per_row=64, seed=7, lookahead=4)
    decayed = [p for name, p in rows.named_parameters() if name.endswith("mix.weight")]
    spared = [p for name, p in rows.named_parameters() if not name.endswith("mix.weight")]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": spared, "weight_decay": 0.0}]
    plain = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-6)
    for step in range(12):
        batches = [data[planner.next_row()] for _ in range(3)]
        total = sum(float(len(b.asked) if b.weights is None else b.weights.sum()) for b in batches)
        loss = sum(rows(batch) for batch in batches) / total
        plain.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(rows.parameters(), 1.0)
        for group in plain.param_groups:
            group["lr"] = 3e-2 * schedule.learning_rate_factor(step, 12, kind="cosine", warmup=0.06)
        plain.step()
        report = seen.reports[step]
        assert report.loss == pytest.approx(loss.item(), rel=1e-4)
        assert report.grad_norm == pytest.approx(norm.item(), rel=1e-4)
        assert report.masked == sum(len(batch.asked) for batch in batches)
        assert report.fill == pytest.approx(sum(batch.tokens for batch in batches) / (3 * 64))
    assert seen.reports[-1].tokens == sum(r.fill * 192 for r in seen.reports)


def test_norms_biases_and_embeddings_are_not_decayed() -> None:
    rows = tiny.TinyRows()
    optimizer = adamw(rows, learning_rate=1.0, weight_decay=0.5, betas=(0.9, 0.9), epsilon=1e-8)
    names = {id(parameter): name for name, parameter in rows.named_parameters()}
    decay = {names[id(p)]: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decay.keys() == set(names.values())
    assert {name for name, value in decay.items() if value} == {"layers.0.mix.weight", "layers.1.mix.weight"}


def test_a_batch_without_a_masked_token_changes_nothing_but_the_count(tmp_path: Path) -> None:
    class Unmasked:
        def __getitem__(self, row: Any) -> PackedBatch:
            batch = tiny.dataset()[row]
            none = torch.zeros(0, dtype=torch.int64)
            return PackedBatch(**{**vars(batch), "asked": none, "targets": none})

    rows = tiny.TinyRows()
    before = weights_of(rows)
    _, seen = tiny.trained(tmp_path, rows, dataset=Unmasked(), max_steps=2, weight_decay=0.0)
    assert seen.losses == [0.0, 0.0]
    assert [report.skipped for report in seen.reports] == [False, False]
    assert all(map(torch.equal, weights_of(rows), before))


def test_bf16_is_close_to_fp32(tmp_path: Path) -> None:
    exact, rough = (tiny.make_loop(tmp_path / p, precision=p) for p in ("fp32", "bf16"))
    for training, _ in (exact, rough):
        training.run()
    assert exact[1].losses != rough[1].losses
    assert rough[1].losses == pytest.approx(exact[1].losses, rel=0.1)


def test_evaluation_leaves_no_trace_in_training(tmp_path: Path) -> None:
    _, expected = tiny.trained(tmp_path / "plain")

    def evaluate(rows: nn.Module) -> dict[str, float]:
        rows.eval()
        return {"draw": torch.rand(()).item()}

    _, seen = tiny.trained(tmp_path / "evaluated", evaluate=evaluate, evaluate_every=5)
    assert [step for step, _ in seen.evaluations] == [5, 10]
    assert seen.losses == expected.losses


def scripted(*values: float) -> Any:
    """An evaluation with these results, one after the other."""
    left = iter(values)
    return lambda rows: {"f1": next(left)}


def stopping(directory: Path, *values: float, **settings: Any) -> Any:
    often = {"evaluate_every": 2, "patience": 2, "goal": loop.Goal("f1", higher_is_better=True)}
    return tiny.make_loop(directory, evaluate=scripted(*values), **often, **settings)


def test_evaluations_that_get_no_better_end_training(tmp_path: Path) -> None:
    training, seen = stopping(tmp_path, 0.1, 0.3, 0.2, 0.3)
    assert training.run().steps == 8
    assert (training.progress.best, training.progress.stale) == (0.3, 2)
    assert [step for step, _ in seen.evaluations] == [2, 4, 6, 8]


@pytest.mark.parametrize("step", [4, 5])
def test_a_resumed_training_stops_at_the_same_step(tmp_path: Path, step: int) -> None:
    """A signal at the step of an evaluation leaves it to be done."""
    training, _ = stopping(tmp_path, 0.1, 0.3, observer=Signalling(step - 1, signal.SIGTERM))
    assert training.run().steps == step
    again, _ = stopping(tmp_path, *((0.3,) if step == 4 else ()), 0.2, 0.3)
    assert again.run(resume=True).steps == 8
    assert (again.progress.best, again.progress.stale) == (0.3, 2)


def test_epochs_end_after_their_rows(tmp_path: Path) -> None:
    planner = RowPlanner(tiny.Periodic().lengths, tokens_per_row=64, seed=7, lookahead=4)
    rows = rows_per_epoch(planner)
    assert planner.state_dict()["emitted"] == 0
    counted = 0
    while planner.epoch == 0:
        planner.next_row()
        counted += 1
    assert rows == counted
    training, seen = tiny.make_loop(tmp_path, max_steps=None, epochs=2)
    assert training.run().steps == math.ceil(2 * rows / 3)
    assert {report.epoch for report in seen.reports} == {0, 1}


def test_long_epochs_are_extrapolated() -> None:
    planner = RowPlanner(tiny.Periodic(3000).lengths, tokens_per_row=64, seed=7)
    whole = rows_per_epoch(planner)
    assert rows_per_epoch(planner, max_rows=100) == pytest.approx(whole, rel=0.02)
    assert planner.epoch == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_layers_give_the_same_and_are_not_compiled_again_for_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced as for real, then run by the eager backend, which spares the test a C++ compiler."""
    compile_module = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda module, **options: compile_module(module, backend="eager", **options)
    )
    registered = AttentionInterface()[attention.NAME]
    torch._dynamo.reset()
    graphs = torch._dynamo.utils.counters["stats"]
    graphs.clear()
    compiled: list[int] = []

    class Counting(tiny.Memory):  # type: ignore[misc, name-defined]
        def on_step(self, report: loop.StepReport) -> None:
            super().on_step(report)
            compiled.append(graphs["unique_graphs"])

    _, expected = tiny.trained(tmp_path / "plain", tiny.modernbert(0.0))
    training, seen = tiny.make_loop(
        tmp_path / "compiled", tiny.modernbert(0.0), compile=True, observer=Counting()
    )
    try:
        training.run()
    finally:
        AttentionInterface.register(attention.NAME, registered)
    assert seen.losses == pytest.approx(expected.losses, rel=1e-5)
    assert compiled[0] > 0
    assert compiled[3] == compiled[-1]


# -- memory ------------------------------------------------------------------------------------------------


class Limited(tiny.TinyRows):  # type: ignore[misc, name-defined]
    """Has memory for so many tokens only; `where` says whether the forward or the backward fails."""

    def __init__(self, tokens: int, error: type[BaseException], where: str) -> None:
        super().__init__(dropout=0.0)
        self.limit, self.error, self.where = tokens, error, where

    def forward(self, batch: PackedBatch) -> Tensor:
        loss: Tensor = super().forward(batch)
        if batch.tokens > self.limit:
            if self.where == "forward":
                raise self.error("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte")
            loss.register_hook(self._fail)
        return loss

    def _fail(self, gradient: Tensor) -> None:
        raise self.error("CUDA out of memory. Tried to allocate 20.00 MiB")


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError, MemoryError])
def test_out_of_memory_halves_the_micro_batch_and_nothing_else(
    tmp_path: Path, error: type[BaseException], where: str
) -> None:
    _, expected = tiny.trained(tmp_path / "plain", tiny.TinyRows(dropout=0.0))
    _, seen = tiny.trained(tmp_path / "limited", Limited(25, error, where))
    assert seen.losses == pytest.approx(expected.losses, rel=1e-4)
    assert [r.masked for r in seen.reports] == [r.masked for r in expected.reports]
    halvings = [detail for kind, detail in seen.events if kind == "out_of_memory"]
    assert len(halvings) == 2
    assert all(detail["micro_tokens"] == detail["before"] // 2 for detail in halvings)
    assert all("memory" in detail["reason"] for detail in halvings)
    assert 2 * halvings[0]["micro_tokens"] <= tiny.TOKENS_PER_ROW
    # The budget is part of the checkpoint: a resumed run need not find it again.
    _, resumed = tiny.trained(tmp_path / "limited", Limited(25, error, where), max_steps=14, resume=True)
    assert "out_of_memory" not in resumed.kinds()


def test_out_of_memory_redoes_the_batch_from_the_same_random_state(tmp_path: Path) -> None:
    """A failure that does not come back (another program's memory) leaves the losses as they would be."""

    class Once(tiny.TinyRows):  # type: ignore[misc, name-defined]
        failed = False

        def forward(self, batch: PackedBatch) -> Tensor:
            loss: Tensor = super().forward(batch)
            if len(self.drawn) == 4 and not self.failed:
                self.failed = True
                raise torch.OutOfMemoryError("CUDA out of memory")
            self.drawn.append(torch.get_rng_state())
            return loss

    rows = Once()
    rows.drawn = []
    tiny.trained(tmp_path, rows, max_steps=2)
    # The second batch began twice at the state in which the first one had ended.
    plain = Once()
    plain.drawn, plain.failed = [], True
    tiny.trained(tmp_path / "plain", plain, max_steps=2)
    assert all(map(torch.equal, rows.drawn[:4], plain.drawn[:4]))


def test_out_of_memory_with_single_documents_says_so(tmp_path: Path) -> None:
    training, seen = tiny.make_loop(tmp_path, Limited(2, RuntimeError, "forward"))
    with pytest.raises(TrainingError, match=r"single documents of up to .* smaller max_length"):
        training.run()
    assert seen.reports == []


def test_other_errors_are_not_taken_for_memory(tmp_path: Path) -> None:
    class Broken(tiny.TinyRows):  # type: ignore[misc, name-defined]
        def forward(self, batch: PackedBatch) -> Tensor:
            raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="multiplied"):
        tiny.trained(tmp_path, Broken())


# -- numbers that are not finite ---------------------------------------------------------------------------


class Bad(tiny.TinyRows):  # type: ignore[misc, name-defined]
    """Yields a loss, or a gradient, that is not finite in the given steps (of three rows each)."""

    def __init__(self, steps: set[int], value: float = math.nan, gradient: bool = False) -> None:
        super().__init__(dropout=0.0)
        self.steps, self.value, self.gradient, self.calls = steps, value, gradient, 0

    def forward(self, batch: PackedBatch) -> Tensor:
        loss: Tensor = super().forward(batch)
        self.calls += 1
        if (self.calls + 2) // 3 in self.steps:
            if not self.gradient:
                return loss * self.value
            loss.register_hook(lambda gradient: gradient * self.value)
        return loss


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_step_that_is_not_finite_is_skipped(tmp_path: Path, value: float, gradient: bool) -> None:
    rows = Bad({3, 4, 9}, value, gradient)
    before: dict[int, list[Tensor]] = {}

    class Watch(tiny.Memory):  # type: ignore[misc, name-defined]
        def on_step(self, report: loop.StepReport) -> None:
            super().on_step(report)
            before[report.step] = weights_of(rows)

    result, seen = tiny.trained(tmp_path, rows, observer=Watch())
    assert [r.step for r in seen.reports if r.skipped] == [3, 4, 9]
    assert [r.bad_steps for r in seen.reports[1:5]] == [0, 1, 2, 0]
    for step in (3, 4, 9):
        assert all(map(torch.equal, before[step], before[step - 1]))
    assert not all(map(torch.equal, before[5], before[4]))
    assert math.isfinite(sum(float(p.sum()) for p in before[12]))
    assert result.loss == seen.losses[-1]
    assert [d["step"] for kind, d in seen.events if kind == "bad_step"] == [3, 4, 9]
    assert seen.events[-1][1]["skipped"] == 3
    # step 4 was due to be saved, but is not to be gone back to
    assert [step for step, _ in seen.checkpoints] == [5, 10, 12]


def test_too_many_in_a_row_end_training_and_name_the_way_back(tmp_path: Path) -> None:
    rows = Bad({2, 6, 7, 8, 9})
    training, seen = tiny.make_loop(tmp_path, rows, max_bad_steps=3)
    with pytest.raises(TrainingError, match="3 steps in a row, up to step 8") as raised:
        training.run()
    assert str(tmp_path / "step-00000004") in str(raised.value)
    assert [step for step, _ in seen.checkpoints] == [4]
    assert len(seen.reports) == 8


# -- signals -----------------------------------------------------------------------------------------------


class Signalling(tiny.Memory):  # type: ignore[misc, name-defined]
    """Sends signals to this process when a step is reported."""

    def __init__(self, step: int, *numbers: int) -> None:
        super().__init__()
        self.step, self.numbers = step, numbers

    def on_step(self, report: loop.StepReport) -> None:
        super().on_step(report)
        if report.step == self.step:
            for number in self.numbers:
                os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_after_the_running_step_and_training_goes_on_exactly(tmp_path: Path, number: int):
    _, expected = tiny.trained(tmp_path / "plain")
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    result, seen = tiny.trained(tmp_path / "run", observer=Signalling(5, number))
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers
    assert (result.status, result.signal, result.steps) == ("killed", number, 6)
    assert seen.events == [("stopping", {"step": 6, "signal": number})]
    assert (
        result.checkpoint == checkpoint.newest_valid(tmp_path / "run") == tmp_path / "run" / "step-00000006"
    )
    again, rest = tiny.make_loop(tmp_path / "run")
    assert again.run(resume=True).resumed_from == 6
    assert seen.losses + rest.losses == expected.losses


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_second_signal_ends_at_once(tmp_path: Path, number: int, error: type[BaseException]) -> None:
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    training, seen = tiny.make_loop(tmp_path, observer=Signalling(5, number, number))
    with pytest.raises(error) as raised:
        training.run()
    assert len(seen.reports) == 5
    if error is SystemExit:
        assert raised.value.code == 143  # type: ignore[attr-defined]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers


def test_trains_outside_the_main_thread_where_no_handler_can_be_set(tmp_path: Path) -> None:
    results = []
    thread = threading.Thread(target=lambda: results.append(tiny.trained(tmp_path)[0]))
    thread.start()
    thread.join()
    assert results[0].status == "finished"


# -- a time limit ------------------------------------------------------------------------------------------


class Clock:
    """Advances by a second each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[loop.Loop, Any]:
    monkeypatch.setattr(loop.time, "perf_counter", Clock())
    values = {"max_steps": None, "max_seconds": 120.0, "checkpoint_every_steps": 10_000, **changes}
    return tiny.make_loop(tmp_path, **values)


def test_a_time_limit_decays_over_its_last_fifth_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    training, seen = timed(tmp_path, monkeypatch)
    result = training.run()
    assert seen.kinds() == ["pace", "decay"]
    plan = seen.events[1][1]
    rates = [report.learning_rate for report in seen.reports]
    assert result.status == "finished"
    assert result.steps == len(rates) == plan["end"]
    assert 0.8 * 120 <= seen.reports[plan["decay_start"] - 1].seconds <= 0.8 * 120 + 5
    assert rates[plan["decay_start"] - 1] == rates[plan["decay_start"]] == 3e-2
    assert 0 < rates[-1] < 0.2 * 3e-2
    assert rates[plan["decay_start"] :] == sorted(rates[plan["decay_start"] :], reverse=True)


def test_the_decision_survives_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training, expected = timed(tmp_path / "plain", monkeypatch)
    training.run()
    end = expected.events[1][1]["end"]
    training, seen = timed(tmp_path / "run", monkeypatch, observer=Signalling(end - 4, signal.SIGTERM))
    training.run()
    again, rest = timed(tmp_path / "run", monkeypatch)
    result = again.run(resume=True)
    assert result.steps == end
    assert "decay" not in rest.kinds()
    reports = seen.reports + rest.reports
    assert [r.learning_rate for r in reports] == [r.learning_rate for r in expected.reports]
    assert [r.loss for r in reports] == expected.losses
    assert again.run(resume=True).steps == end


def test_more_time_is_a_new_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training, _ = timed(tmp_path, monkeypatch)
    end = training.run().steps
    again, seen = timed(tmp_path, monkeypatch, max_seconds=200.0)
    assert again.run(resume=True).steps > end
    assert "decay" in seen.kinds()


@pytest.mark.parametrize(("seconds", "steps"), [(0.0, 1), (1.0, 1), (1.5, 2), (4.0, 4)])
def test_speed_is_that_of_the_steps_after_the_first(seconds: float, steps: int) -> None:
    """Each step takes a second; the rows made of 64 tokens hold what the planner put in them."""
    rows, planner, data = tiny.TinyRows(), tiny.make_planner(), tiny.dataset()
    before, tokens, documents = weights_of(rows), [], list[int]()
    rows.register_forward_pre_hook(lambda _, given: documents.append(len(given[0].lengths)))

    def batches() -> Iterator[PackedBatch]:
        while True:
            batch = data[planner.next_row()]
            tokens.append(batch.tokens)
            yield batch

    speed = loop.measured_speed(
        rows, batches(), tiny.settings(), torch.device("cpu"), seconds=seconds, clock=Clock()
    )
    assert len(tokens) == steps
    assert speed == (sum(tokens[1:]) / (steps - 1) if steps > 1 else tokens[0])
    assert all(map(torch.equal, weights_of(rows), before))
    assert len(documents) == 1 + steps, "one is not counted"
    assert documents[0] == 1 < documents[1]


# -- starting and resuming ---------------------------------------------------------------------------------


def test_checkpoints_are_not_mixed_with_those_of_another_training(tmp_path: Path) -> None:
    tiny.trained(tmp_path)
    with pytest.raises(StateError, match="already has step-00000012"):
        tiny.trained(tmp_path)


def test_resuming_nothing_starts_anew(tmp_path: Path) -> None:
    assert tiny.trained(tmp_path, resume=True)[0].resumed_from is None


def test_resuming_what_is_finished_does_nothing(tmp_path: Path) -> None:
    first = tiny.trained(tmp_path)[0]
    result, seen = tiny.trained(tmp_path, resume=True)
    assert (result.steps, result.checkpoint, result.loss) == (12, first.checkpoint, first.loss)
    assert seen.reports == []
    assert seen.checkpoints == []


def test_a_torn_checkpoint_is_reported_and_the_one_before_is_taken(tmp_path: Path) -> None:
    _, expected = tiny.trained(tmp_path)
    (tmp_path / "step-00000012" / "manifest.json").unlink()
    again, seen = tiny.make_loop(tmp_path)
    assert again.run(resume=True).resumed_from == 8
    assert seen.kinds() == ["checkpoint_skipped", "resumed"]
    assert seen.losses == expected.losses[8:]


def test_only_torn_checkpoints_are_not_silently_started_over(tmp_path: Path) -> None:
    tiny.trained(tmp_path)
    for path in tmp_path.iterdir():
        (path / "manifest.json").unlink()
    with pytest.raises(StateError, match="no checkpoint can be resumed"):
        tiny.trained(tmp_path, resume=True)


def test_another_model_is_refused(tmp_path: Path) -> None:
    tiny.trained(tmp_path)
    with pytest.raises(StateError, match="another model"):
        tiny.trained(tmp_path, tiny.TinyRows(layers=3), resume=True)
    with pytest.raises(StateError, match="another model"):
        tiny.trained(tmp_path, tiny.TinyRows(width=8), resume=True)


def test_changed_settings_are_told(tmp_path: Path) -> None:
    tiny.trained(tmp_path)
    _, seen = tiny.trained(tmp_path, max_steps=13, clip=2.0, keep_last=5, resume=True)
    assert dict(seen.events)["settings_changed"] == {"max_steps": [12, 13], "clip": [1.0, 2.0]}


def test_checkpoints_come_by_steps_or_by_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop.time, "perf_counter", Clock())
    _, seen = tiny.trained(
        tmp_path, checkpoint_every_steps=10_000, checkpoint_every_seconds=10.0, keep_last=1, keep_every=None
    )
    steps = [step for step, _ in seen.checkpoints]
    assert steps == [4, 8, 12]  # a step reads the clock three times
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000012"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_steps": None}, "training needs a limit"),
        ({"max_steps": 0}, "max_steps = 0 must be above 0"),
        ({"learning_rate": math.nan}, "learning_rate = nan must be above 0"),
        ({"warmup": -1.0}, "warmup = -1.0 must not be negative"),
        ({"schedule": "lineal"}, "schedule = 'lineal' must be one of cosine, linear, wsd"),
        ({"device": "gpu"}, "device = 'gpu'"),
    ],
)
def test_settings_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tiny.settings(**changes)


def test_processes_that_do_not_see_each_other_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tiny.make_loop(tmp_path)  # Accelerate has settled for one process
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="WORLD_SIZE is 2, but Accelerate sees a single process"):
        tiny.make_loop(tmp_path)


# -- on a GPU ----------------------------------------------------------------------------------------------


@pytest.fixture
def gpu() -> Iterator[None]:
    """Accelerate settles for a device once a process: let it look again."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_a_gpu_trains_as_the_cpu_does_and_resumes(tmp_path: Path, precision: str) -> None:
    options = {"device": "auto", "precision": precision, "loader_workers": 2}
    training, seen = tiny.make_loop(tmp_path / "gpu", tiny.modernbert(0.0), **options)
    assert training.processes.device.type == "cuda"
    training.run()
    stopped, first = tiny.make_loop(
        tmp_path / "stopped", tiny.modernbert(0.0), observer=Signalling(5, signal.SIGTERM), **options
    )
    stopped.run()
    again, rest = tiny.make_loop(tmp_path / "stopped", tiny.modernbert(0.0), **options)
    assert again.run(resume=True).resumed_from == 6
    AcceleratorState._reset_state(reset_partial_state=True)
    _, expected = tiny.trained(tmp_path / "cpu", tiny.modernbert(0.0))
    close = {"rel": 3e-2} if precision == "auto" else {"rel": 1e-2}
    assert seen.losses == pytest.approx(expected.losses, **close)
    assert first.losses + rest.losses == pytest.approx(seen.losses, **close)
