"""The training loop: from planned rows to a trained model. It can stop and resume between any two steps.

One step takes a global batch, accumulates its gradient, clips it, reads the numbers, updates or skips, and
reports. Reading the numbers is the only time when the host waits for the device. From time to time the loop
evaluates or saves. The gradient of a batch does not depend on how it is divided into micro-batches and
processes.

The loop prints nothing and writes only checkpoints. Everything else is the task of an `Observer`. The
Trainer of transformers is not used: this loop resumes bit for bit, and it skips and reports a step with a
non-finite loss.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from seqmlm.engine import checkpoint
from seqmlm.engine.attention import compile_layers
from seqmlm.engine.checkpoint import Progress, changed_settings
from seqmlm.engine.device import (
    autocast,
    compute_dtype,
    is_out_of_memory,
    random_state,
    random_state_kept,
    release_memory,
    set_random_state,
)
from seqmlm.engine.distributed import Processes, clip_gradients
from seqmlm.engine.optimizer import adamw, set_learning_rate
from seqmlm.engine.packing import (
    GlobalBatch,
    PackedBatch,
    RowPlanner,
    Rows,
    global_batches,
    rows_per_epoch,
    split,
)
from seqmlm.engine.schedule import LoopConfig, StopRule
from seqmlm.engine.signals import StopSignals
from seqmlm.errors import TrainingError


class Loop:
    """Trains a masked language model.

    Args:
        rows: `MaskedRows`, which returns the summed loss of a packed batch in nats. It is moved to the
            device and trained in place.
        dataset: planned row -> packed batch with targets; masks depend on epoch and sample.
        planner: the row planner, at the start of the data.
        config: settings of the loop.
        directory: folder for the checkpoints.
        observer: receives reports and events, in the main process only.
        evaluate: function from `rows` to metrics. Every process calls it with the model that is being
            trained.
        goal: the metric that measures how good the model is, for `config.patience`; None for none.

    Raises:
        UsageError: see `Processes`.
    """

    def __init__(
        self,
        rows: nn.Module,
        dataset: Rows,
        planner: RowPlanner,
        config: LoopConfig,
        *,
        directory: Path,
        observer: Observer | None = None,
        evaluate: Callable[[Any], Mapping[str, float]] | None = None,
        goal: Goal | None = None,
    ) -> None:
        self.rows, self.dataset, self.planner, self.config = rows, dataset, planner, config
        self.goal = goal
        self.directory, self.evaluate = directory, evaluate
        self.processes = Processes(config.device, config.sharding)
        self.observer = observer if observer is not None and self.processes.is_main else Observer()
        self.dtype = compute_dtype(config.precision, self.processes.device)
        self.progress = Progress(micro_tokens=config.micro_tokens)
        self.settings = {**config.settings(), "processes": self.processes.world}
        self._resumed_from: int | None = None
        self._saved: tuple[int, float, Path] | None = None  # last checkpoint: its step, seconds and folder

    def run(self, resume: bool = False) -> LoopResult:
        """Train until a limit is reached or a stop signal arrives; the last state is always saved.

        Args:
            resume: continue from the newest valid checkpoint of `directory`, if there is one.

        Raises:
            StateError: see `checkpoint.find_checkpoint`, `checkpoint.save`.
            TrainingError: too many non-finite steps in a row, or not enough memory for a single document.
        """
        with StopSignals(patience=2.0 if self.processes.world > 1 else 0.0) as signals:
            self._start(resume)
            stopped_by = None
            batches = global_batches(
                self.dataset,
                self.planner,
                rows_per_batch=self.config.rows_per_batch,
                rank=self.processes.rank,
                world=self.processes.world,
                workers=self.config.loader_workers,
                pin_memory=self.processes.device.type == "cuda",
            )
            with closing(batches):
                self._evaluate_if_due()  # a stop signal may have prevented the evaluation at this step
                while stopped_by is None and not self.course.is_over(self.progress):
                    stopped_by = self._step(next(batches), signals)
                    if stopped_by is None:
                        self._evaluate_if_due()
                        self._save_if_due()
            if stopped_by is not None:
                self.observer.on_event("stopping", {"step": self.progress.step, "signal": stopped_by})
            path = self._save()
        return LoopResult.from_progress(self.progress, stopped_by, self._resumed_from, path)

    # -- before the first step ---------------------------------------------------------------------------

    def _start(self, resume: bool) -> None:
        """Place the model, plan the steps, and restore the state of an earlier run."""
        saved = checkpoint.find_checkpoint(self.directory, resume, self.processes, self.observer.on_event)
        rows = rows_per_epoch(self.planner) if self.config.epochs is not None else 0
        self._prepare_model()
        torch.manual_seed(self.config.seed + self.processes.rank)  # dropout must differ between processes
        if saved is not None:
            progress = checkpoint.restore_progress(saved, self.rows, self.optimizer, self.processes)
            self.progress, self._resumed_from = progress, progress.step
            if progress.position is not None:
                self.planner.load_state_dict(progress.position)
            self._saved = (progress.step, progress.seconds, saved.path)
            self.observer.on_event("resumed", {"step": progress.step, "path": str(saved.path)})
            if changed := changed_settings(progress.settings, self.settings):
                self.observer.on_event("settings_changed", changed)
        self.progress.settings = self.settings
        self.course = StopRule(self.config, rows, self.progress.time_plan)
        self.gradient_step = GradientStep(
            self.module,
            self.processes,
            dtype=self.dtype,
            micro_tokens=self.progress.micro_tokens,
            on_event=self.observer.on_event,
        )
        self._started = time.perf_counter() - self.progress.seconds

    def _prepare_model(self) -> None:
        config, device = self.config, self.processes.device
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        self.rows.to(device).train()
        if config.compile:
            compile_layers(self.rows)
        self.module = self.processes.wrap(self.rows)
        self.parameters = [p for p in self.rows.parameters() if p.requires_grad]
        self.optimizer = adamw(
            self.rows,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            betas=config.betas,
            epsilon=config.epsilon,
        )

    # -- one step ----------------------------------------------------------------------------------------

    def _step(self, batch: GlobalBatch, signals: StopSignals) -> int | None:
        """Train on one global batch; returns the stop signal that any process received, or None."""
        began, progress = time.perf_counter(), self.progress
        rate = self.course.learning_rate(progress.step)
        set_learning_rate(self.optimizer, rate)
        sums = self.gradient_step(batch)
        norm = clip_gradients(self.parameters, self.config.clip)
        numbers = self._step_numbers(sums, norm, signals)
        skipped = not (math.isfinite(numbers["loss"]) and math.isfinite(numbers["norm"]))
        if not skipped:
            self.optimizer.step()
            progress.loss = numbers["loss"]
        progress.step += 1
        progress.tokens += batch.tokens
        progress.seconds = numbers["seconds"]
        progress.bad_steps = progress.bad_steps + 1 if skipped else 0
        progress.skipped += skipped
        progress.position = batch.position
        progress.micro_tokens = self.gradient_step.micro_tokens
        self._report(batch, numbers, rate, time.perf_counter() - began)
        decision = self.course.observe(progress)
        if decision is not None:
            self.observer.on_event(decision, progress.time_plan or {})
        return int(numbers["signal"]) or None

    def _step_numbers(self, sums: Sums, norm: Tensor, signals: StopSignals) -> dict[str, float]:
        """The numbers of a step, summed over processes, in a single transfer from the device."""
        elapsed = time.perf_counter() - self._started if self.processes.is_main else 0.0
        numbers = [elapsed, signals.received == signal.SIGTERM, signals.received == signal.SIGINT]
        local = torch.tensor(numbers, dtype=sums.loss.dtype).to(sums.loss.device, non_blocking=True)
        total = self.processes.sum(torch.cat([sums.loss[None], local]))
        values = torch.cat([total, torch.stack([sums.weight, sums.masked, norm.to(total.dtype)])])
        loss, seconds, terminated, interrupted, weight, masked, grad_norm = values.tolist()
        received = signal.SIGTERM if terminated else signal.SIGINT if interrupted else 0
        return {
            "loss": loss / weight if weight > 0 else loss,
            "norm": grad_norm,
            "masked": masked,
            "seconds": seconds,
            "signal": received,
        }

    def _report(self, batch: GlobalBatch, numbers: Mapping[str, float], rate: float, duration: float) -> None:
        progress = self.progress
        report = StepReport(
            step=progress.step,
            loss=numbers["loss"],
            grad_norm=numbers["norm"],
            learning_rate=rate,
            tokens=progress.tokens,
            masked=int(numbers["masked"]),
            fill=batch.tokens / (len(batch.rows) * self.planner.tokens_per_row),
            tokens_per_second=batch.tokens / max(duration, 1e-9),
            seconds=progress.seconds,
            epoch=batch.rows[-1].epoch,
            skipped=progress.bad_steps > 0,
            bad_steps=progress.bad_steps,
        )
        self.observer.on_step(report)
        if report.skipped:
            self._check_bad_steps(report)

    def _check_bad_steps(self, report: StepReport) -> None:
        """Report a step with a non-finite number, and raise an error after too many in a row."""
        detail = {"step": report.step, "loss": report.loss, "grad_norm": report.grad_norm}
        detail |= {"in_a_row": report.bad_steps, "skipped": self.progress.skipped}
        self.observer.on_event("bad_step", detail)
        if report.bad_steps >= self.config.max_bad_steps:
            good = (
                f"the last good checkpoint is {self._saved[2]}" if self._saved else "there is no checkpoint"
            )
            raise TrainingError(
                f"loss {report.loss} or gradient norm {report.grad_norm} was not finite for "
                f"{report.bad_steps} steps in a row, up to step {report.step}; {good}. "
                "Lower the learning rate or lengthen the warm-up"
            )

    # -- between steps -----------------------------------------------------------------------------------

    def _evaluate_if_due(self) -> None:
        interval, progress = self.config.evaluate_every, self.progress
        if (
            self.evaluate is None
            or interval is None
            or progress.step % interval
            or progress.evaluated == progress.step
        ):
            return
        device = self.processes.device
        with random_state_kept(device), autocast(device, self.dtype):
            metrics = self.evaluate(self.rows)
        self.rows.train()
        self.processes.forget_forward(self.rows)
        progress.evaluated = progress.step
        if self.goal is not None:
            value = float(metrics.get(self.goal.metric, math.nan))
            better = self.goal.better(value, progress.best)
            progress.best, progress.stale = (value, 0) if better else (progress.best, progress.stale + 1)
        self.observer.on_evaluation(progress.step, metrics)

    def _save_if_due(self) -> None:
        """Save if a checkpoint is due and no bad steps are in progress, so that the last one is good."""
        step, seconds = (0, 0.0) if self._saved is None else self._saved[:2]
        steps_due = self.progress.step - step >= self.config.checkpoint_every_steps
        seconds_due = self.progress.seconds - seconds >= self.config.checkpoint_every_seconds
        if (steps_due or seconds_due) and not self.progress.bad_steps:
            self._save()

    def _save(self) -> Path:
        """Save, unless this state is already saved; returns the folder of the checkpoint."""
        if self._saved is not None and self._saved[0] == self.progress.step:
            return self._saved[2]
        path = checkpoint.save_progress(
            self.directory,
            self.progress,
            self.rows,
            self.optimizer,
            self.processes,
            keep_last=self.config.keep_last,
            keep_every=self.config.keep_every,
        )
        self._saved = (self.progress.step, self.progress.seconds, path)
        self.observer.on_checkpoint(self.progress.step, path)
        return path


@dataclass(frozen=True)
class Goal:
    """The metric of an evaluation that measures how good a model is.

    Args:
        metric: name of the metric.
        higher_is_better: whether a higher value is better.
    """

    metric: str
    higher_is_better: bool = False

    def better(self, value: float, than: float | None) -> bool:
        """Whether a value is better than another one, or than None; NaN never is."""
        if than is None:
            return not math.isnan(value)
        return value > than if self.higher_is_better else value < than


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over a global batch, as scalars on the device.

    Args:
        loss: loss of the rows of this process, in nats.
        weight: loss weight of all rows.
        masked: number of masked tokens of all rows.
    """

    loss: Tensor
    weight: Tensor
    masked: Tensor


class GradientStep:
    """Computes the gradient of (sum of losses / sum of weights) over a global batch, into `.grad`.

    When memory runs out, `micro_tokens` is halved. The whole batch is then repeated from zero gradients and
    the same random state, so that the global batch never changes.

    A process that fails while gradients are exchanged would block the others. Under DDP, a micro-batch that
    is larger than any successful one is therefore handled in three stages. All processes first compute
    locally. They then agree that memory was sufficient. Then they exchange gradients in a small pass with
    weight 0.

    Args:
        module: the module to call, wrapped for the processes; it returns the summed loss of a packed batch.
        processes: the processes of this training.
        dtype: type of the matrix products.
        micro_tokens: largest micro-batch in tokens; None computes each row at once.
        on_event: called with ("out_of_memory", {...}) when the budget is halved.
    """

    def __init__(
        self,
        module: nn.Module,
        processes: Processes,
        *,
        dtype: torch.dtype,
        micro_tokens: int | None,
        on_event: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._module, self._processes, self._dtype = module, processes, dtype
        self.micro_tokens = micro_tokens
        self._on_event = on_event
        self._proven = 0  # tokens of the largest micro-batch known to fit
        self._sums = torch.float32 if processes.device.type == "mps" else torch.float64

    def __call__(self, batch: GlobalBatch) -> Sums:
        """Compute the gradient and return the sums.

        Raises:
            TrainingError: memory runs out with single documents, or the batch cannot be repeated.
        """
        start = random_state(self._processes.device)
        while True:
            micros = batch.mine
            if self.micro_tokens is not None:
                micros = [part for row in batch.mine for part in split(row, self.micro_tokens)]
            largest = self._largest(batch, micros)
            local_only = self._processes.world > 1 and not self._processes.sharded and largest > self._proven
            sums, failure = self._accumulate(batch, micros, local_only)
            failed = self._processes.largest([failure is not None])[0] if local_only else failure is not None
            if not failed:
                if local_only:  # exchange the accumulated gradients, in a pass of one document with weight 0
                    with random_state_kept(self._processes.device):
                        self._pass(split(micros[0], 1)[0], 0.0, synchronise=True)
                self._proven = max(self._proven, largest)
                return sums
            if self._processes.world > 1 and not local_only:
                raise TrainingError(
                    f"out of memory while processes exchange gradients: {failure}; lower micro_tokens or "
                    "tokens per batch and resume from the last checkpoint"
                )
            self._halve(micros, largest, failure)
            set_random_state(self._processes.device, start)

    def _largest(self, batch: GlobalBatch, micros: list[PackedBatch]) -> int:
        """Number of tokens of the largest micro-batch of any process.

        It is known from the plan unless rows are split.
        """
        if self.micro_tokens is None:
            return max(row.tokens for row in batch.rows)
        return self._processes.largest([max(micro.tokens for micro in micros)])[0]

    def _passes(self, batch: GlobalBatch, micros: list[PackedBatch]) -> int:
        """Number of forward passes of this process.

        Under FSDP2, where each pass is collective, it is the maximum over all processes.
        """
        if not self._processes.sharded:
            return len(micros)
        if self.micro_tokens is None:
            return -(-len(batch.rows) // self._processes.world)
        return self._processes.largest([len(micros)])[0]

    def _accumulate(
        self, batch: GlobalBatch, micros: list[PackedBatch], local_only: bool
    ) -> tuple[Sums, str | None]:
        """Forward and backward pass of every micro-batch; returns the sums, and the memory error or None."""
        self._module.zero_grad(set_to_none=True)
        device, counts = self._processes.device, self._counts(batch)
        sums = Sums(torch.zeros((), dtype=self._sums, device=device), counts[0], counts[1])
        # A batch without a masked token has no loss. Division by 1 keeps it 0 instead of NaN.
        share = self._processes.world / torch.where(sums.weight > 0, sums.weight, 1.0)
        passes = self._passes(batch, micros)
        for number in range(passes):
            micro, real = micros[min(number, len(micros) - 1)], number < len(micros) and not batch.idle
            last = number == passes - 1 and not local_only
            try:
                loss = self._pass(micro, share.float() if real else 0.0, synchronise=last)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                # Only the text is kept: the exception would keep its tensors alive.
                return sums, str(error).partition("\n")[0]
            if real:
                sums.loss.add_(loss)
        return sums, None

    def _counts(self, batch: GlobalBatch) -> Tensor:
        """(2,) loss weight and number of masked tokens of all rows.

        They are counted before the rows are sent to the device.
        """
        rows = [] if batch.idle else batch.mine
        weight = sum(
            float(len(row.asked)) if row.weights is None else float(row.weights.sum(dtype=torch.float64))
            for row in rows
        )
        counts = torch.tensor([weight, sum(len(row.asked) for row in rows)], dtype=self._sums)
        return self._processes.sum(counts.to(self._processes.device, non_blocking=True))

    def _pass(self, micro: PackedBatch, share: Tensor | float, *, synchronise: bool) -> Tensor:
        """One forward and backward pass; returns the summed loss."""
        device = self._processes.device
        with self._processes.gradients(self._module, synchronise=synchronise):
            with autocast(device, self._dtype):
                loss: Tensor = self._module(micro.to(device, non_blocking=True))
            self._processes.accelerator.backward(loss * share)
        return loss.detach()

    def _halve(self, micros: list[PackedBatch], largest: int, failure: str | None) -> None:
        old_limit = min(self.micro_tokens or largest, largest)
        if self._processes.largest([max(len(split(micro, 1)) for micro in micros)])[0] == 1:
            raise TrainingError(
                f"out of memory with single documents of up to {largest} tokens ({failure}); "
                "use a smaller max_length or model, and resume from the last checkpoint"
            )
        self.micro_tokens, self._proven = max(old_limit // 2, 1), 0
        self._module.zero_grad(set_to_none=True)
        release_memory(self._processes.device)
        reason = failure or "another process ran out of memory"
        detail = {"micro_tokens": self.micro_tokens, "before": old_limit, "reason": reason}
        self._on_event("out_of_memory", detail)


def measured_speed(
    rows: nn.Module,
    batches: Iterable[PackedBatch],
    config: LoopConfig,
    device: torch.device,
    *,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """The speed of training in tokens per second, measured in this process by steps of one row each.

    The measurement keeps nothing. Before the first step, one document wakes up the device and its libraries,
    which takes up to seconds. The first step counts only if it took all the time. Layers are not compiled.

    Args:
        rows: as for `Loop`; moved to the device but otherwise unchanged, because the learning rate is 0.
        batches: training batches, made on request. The time for making them counts, as in training.
        config: settings of the training.
        device: device of the training.
        seconds: time after which no other step starts; there is at least one step.
        clock: function that returns the time in seconds.

    Raises:
        RuntimeError: out of memory, see `is_out_of_memory`.
    """
    rows.to(device).train()
    parameters = [parameter for parameter in rows.parameters() if parameter.requires_grad]
    still = {"learning_rate": 0.0, "weight_decay": 0.0}
    optimizer = adamw(rows, **still, betas=config.betas, epsilon=config.epsilon)
    dtype = compute_dtype(config.precision, device)

    def step(batch: PackedBatch) -> None:
        with autocast(device, dtype):
            loss: Tensor = rows(batch.to(device))
        (loss / max(1, len(batch.asked))).backward()  # type: ignore[no-untyped-call]
        clip_gradients(parameters, config.clip).item()  # the host waits for the device, as in a step
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    batches = iter(batches)
    first_batch = next(batches)
    step(split(first_batch, 1)[0])
    began = first = clock()
    tokens, speed = 0, 0.0
    for number, batch in enumerate(chain([first_batch], batches)):
        step(batch)
        now = clock()
        if number == 0:
            first, speed = now, batch.tokens / max(now - began, 1e-9)
        else:
            tokens += batch.tokens
            speed = tokens / max(now - first, 1e-9)
        if now - began >= seconds:
            break
    return speed


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The numbers of one optimizer step, over all processes.

    Args:
        step: number of the step, from 1.
        loss: loss in nats per masked token (per unit of loss weight); may be non-finite if `skipped`.
        grad_norm: gradient norm before clipping.
        learning_rate: learning rate of this step.
        tokens: number of tokens trained on since the start.
        masked: number of tokens predicted in this step.
        fill: fraction of the token budget of the rows that is used.
        tokens_per_second: speed of this step.
        seconds: training time since the start in seconds, over all resumed runs.
        epoch: epoch of the last row of this step, from 0.
        skipped: True if loss or gradient was not finite and the model was not updated.
        bad_steps: number of steps skipped in a row up to this one.
    """

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    masked: int
    fill: float
    tokens_per_second: float
    seconds: float
    epoch: int
    skipped: bool
    bad_steps: int


class Observer:
    """Receives reports and events of a training, in the main process only; this class ignores them.

    `on_event` gets one of these kinds, with these keys in `detail`:

    * "resumed": step, path;
    * "checkpoint_skipped": path, reason;
    * "settings_changed": name -> [before, now];
    * "pace" and "decay", decisions under a time limit: expected, decay_start, end, seconds;
    * "out_of_memory": micro_tokens, before, reason;
    * "bad_step": step, loss, grad_norm, in_a_row, skipped;
    * "stopping": step, signal.
    """

    def on_step(self, report: StepReport) -> None:
        return

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        return

    def on_checkpoint(self, step: int, path: Path) -> None:
        return

    def on_event(self, kind: str, detail: Mapping[str, Any]) -> None:
        return


@dataclass(frozen=True, kw_only=True)
class LoopResult:
    """How a training ended.

    Args:
        status: "finished", or "killed" if a stop signal arrived.
        steps: number of completed steps since the start of training.
        resumed_from: number of steps before this run resumed; None if it did not resume.
        tokens: number of tokens trained on since the start.
        loss: loss of the last good step, in nats per masked token.
        seconds: training time since the start, in seconds.
        checkpoint: folder of the last checkpoint, which has exactly this state.
        signal: number of the stop signal, or None.
    """

    status: Literal["finished", "killed"]
    steps: int
    resumed_from: int | None
    tokens: int
    loss: float | None
    seconds: float
    checkpoint: Path
    signal: int | None

    @classmethod
    def from_progress(
        cls, progress: Progress, signal: int | None, resumed_from: int | None, path: Path
    ) -> LoopResult:
        """The result of a training that a signal or a limit has ended."""
        return cls(
            status="finished" if signal is None else "killed",
            steps=progress.step,
            resumed_from=resumed_from,
            tokens=progress.tokens,
            loss=progress.loss,
            seconds=progress.seconds,
            checkpoint=path,
            signal=signal,
        )
