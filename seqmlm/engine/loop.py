"""The training loop: from planned rows to a trained model, stopped and resumed at will.

One step is: take a global batch, accumulate its gradient, clip, look at the numbers (the one moment the host
waits for the device), update or skip, report; now and then evaluate or save. The loop prints nothing and
writes nothing but checkpoints: an `Observer` hears of everything.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seqmlm.engine import progress as training
from seqmlm.engine.compiled import compile_layers
from seqmlm.engine.config import LoopConfig
from seqmlm.engine.course import Course
from seqmlm.engine.device import autocast, compute_dtype, random_state_kept
from seqmlm.engine.distributed import Processes, clip
from seqmlm.engine.feed import Feed, GlobalBatch, Rows, rows_per_epoch
from seqmlm.engine.observer import LoopResult, NullObserver, Observer, StepReport
from seqmlm.engine.optimizer import adamw, set_learning_rate
from seqmlm.engine.planning import RowPlanner
from seqmlm.engine.progress import Progress, changes
from seqmlm.engine.signals import StopSignals
from seqmlm.engine.step import GradientStep, Sums
from seqmlm.errors import TrainingError

__all__ = ["Loop", "LoopConfig", "LoopResult", "NullObserver", "Observer", "StepReport"]


class Loop:
    """Trains a masked language model.

    Args:
        rows: `MaskedRows`: called with a packed batch, returns the summed loss in nats. It is moved to the
            device, and trained in place.
        dataset: planned row -> packed batch with targets, masks keyed by epoch and sample.
        planner: at the start of the data.
        directory: of the checkpoints.
        evaluate: from `rows` to metrics; called by every process, sees the model that is being trained.

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
    ) -> None:
        self.rows, self.dataset, self.planner, self.config = rows, dataset, planner, config
        self.directory, self.evaluate = directory, evaluate
        self.processes = Processes(config.device, config.sharding)
        self.observer = observer if observer is not None and self.processes.is_main else NullObserver()
        self.dtype = compute_dtype(config.precision, self.processes.device)
        self.progress = Progress(micro_tokens=config.micro_tokens)
        self.settings = {**config.settings(), "processes": self.processes.world}
        self._resumed_from: int | None = None
        self._saved: tuple[int, float, Path] | None = None  # step, seconds and folder of the last checkpoint

    def run(self, resume: bool = False) -> LoopResult:
        """Train until a limit is reached or a signal asks to stop; the last state is always saved.

        Args:
            resume: go on from the newest valid checkpoint of `directory`, if there is one.

        Raises:
            StateError: see `progress.find`, `checkpoint.save`.
            TrainingError: numbers are not finite too often in a row, or memory is not enough for a document.
        """
        with StopSignals(patience=2.0 if self.processes.world > 1 else 0.0) as signals:
            self._start(resume)
            stopped_by = None
            with self._feed() as feed:
                while stopped_by is None and not self.course.is_over(self.progress):
                    stopped_by = self._step(feed.next(), signals)
                    if stopped_by is None:
                        self._evaluate_if_due()
                        self._save_if_due()
            if stopped_by is not None:
                self.observer.on_event("stopping", {"step": self.progress.step, "signal": stopped_by})
            path = self._save()
        return self._result(stopped_by, path)

    # -- before the first step ---------------------------------------------------------------------------

    def _start(self, resume: bool) -> None:
        """Place the model, plan the steps, and take up an earlier run's state."""
        saved, skipped = training.find(self.directory, resume, self.processes)
        for each in skipped:
            self.observer.on_event("checkpoint_skipped", {"path": str(each.path), "reason": each.reason})
        rows = rows_per_epoch(self.planner) if self.config.epochs is not None else 0
        self._prepare_model()
        torch.manual_seed(self.config.seed + self.processes.rank)  # dropout must differ between processes
        if saved is not None:
            self.progress = training.restore(saved, self.rows, self.optimizer, self.processes)
            self._resume(saved.path)
        self.progress.settings = self.settings
        self.course = Course(self.config, rows, self.progress.time_plan)
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

    def _resume(self, path: Path) -> None:
        """Take up the data, and say what is different now."""
        progress = self.progress
        if progress.position is not None:
            self.planner.load_state_dict(progress.position)
        self._resumed_from = progress.step
        self._saved = (progress.step, progress.seconds, path)
        self.observer.on_event("resumed", {"step": progress.step, "path": str(path)})
        changed = changes(progress.settings, self.settings)
        if changed:
            self.observer.on_event("settings_changed", changed)

    def _feed(self) -> Feed:
        return Feed(
            self.dataset,
            self.planner,
            rows_per_batch=self.config.rows_per_batch,
            rank=self.processes.rank,
            world=self.processes.world,
            workers=self.config.loader_workers,
            pin_memory=self.processes.device.type == "cuda",
        )

    # -- one step ----------------------------------------------------------------------------------------

    def _step(self, batch: GlobalBatch, signals: StopSignals) -> int | None:
        """Train on one global batch; returns the signal that asks to stop, received by any process."""
        began, progress = time.perf_counter(), self.progress
        rate = self.course.learning_rate(progress.step)
        set_learning_rate(self.optimizer, rate)
        sums = self.gradient_step(batch)
        norm = clip(self.parameters, self.config.clip)
        numbers = self._read(sums, norm, signals)
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
        self._report(batch, numbers, rate, skipped, time.perf_counter() - began)
        if skipped:
            self._count_bad_step(numbers)
        decision = self.course.observe(progress)
        if decision is not None:
            self.observer.on_event(decision, progress.time_plan or {})
        return int(numbers["signal"]) or None

    def _read(self, sums: Sums, norm: Tensor, signals: StopSignals) -> dict[str, float]:
        """The step's numbers, summed over processes, in a single transfer from the device."""
        elapsed = time.perf_counter() - self._started if self.processes.is_main else 0.0
        own = [elapsed, signals.received == signal.SIGTERM, signals.received == signal.SIGINT]
        local = torch.tensor(own, dtype=sums.loss.dtype).to(sums.loss.device, non_blocking=True)
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

    def _report(
        self, batch: GlobalBatch, numbers: Mapping[str, float], rate: float, skipped: bool, duration: float
    ) -> None:
        self.observer.on_step(
            StepReport(
                step=self.progress.step,
                loss=numbers["loss"],
                grad_norm=numbers["norm"],
                learning_rate=rate,
                tokens=self.progress.tokens,
                masked=int(numbers["masked"]),
                fill=batch.tokens / (len(batch.rows) * self.planner.tokens_per_row),
                tokens_per_second=batch.tokens / max(duration, 1e-9),
                seconds=numbers["seconds"],
                epoch=batch.rows[-1].epoch,
                skipped=skipped,
                bad_steps=self.progress.bad_steps,
            )
        )

    def _count_bad_step(self, numbers: Mapping[str, float]) -> None:
        progress = self.progress
        detail = {"step": progress.step, "loss": numbers["loss"], "grad_norm": numbers["norm"]}
        detail |= {"in_a_row": progress.bad_steps, "skipped": progress.skipped}
        self.observer.on_event("bad_step", detail)
        if progress.bad_steps >= self.config.max_bad_steps:
            good = f"go back to {self._saved[2]}" if self._saved else "no checkpoint was saved before"
            raise TrainingError(
                f"loss {numbers['loss']} or gradient norm {numbers['norm']} was not finite for "
                f"{progress.bad_steps} steps in a row, up to step {progress.step}; {good}. "
                "Lower the learning rate or lengthen the warm-up"
            )

    # -- between steps -----------------------------------------------------------------------------------

    def _evaluate_if_due(self) -> None:
        every = self.config.evaluate_every
        if self.evaluate is None or every is None or self.progress.step % every:
            return
        device = self.processes.device
        with random_state_kept(device), autocast(device, self.dtype):
            metrics = self.evaluate(self.rows)
        self.rows.train()
        self.processes.forget_forward(self.rows)
        self.observer.on_evaluation(self.progress.step, metrics)

    def _save_if_due(self) -> None:
        """Save when enough has passed; not amid bad steps, so that a checkpoint to go back to stays."""
        step, seconds = (0, 0.0) if self._saved is None else self._saved[:2]
        steps_due = self.progress.step - step >= self.config.checkpoint_every_steps
        seconds_due = self.progress.seconds - seconds >= self.config.checkpoint_every_seconds
        if (steps_due or seconds_due) and not self.progress.bad_steps:
            self._save()

    def _save(self) -> Path:
        """Save, unless exactly this state was saved already."""
        if self._saved is not None and self._saved[0] == self.progress.step:
            return self._saved[2]
        path = training.save(
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

    def _result(self, stopped_by: int | None, path: Path) -> LoopResult:
        return LoopResult(
            status="finished" if stopped_by is None else "killed",
            steps=self.progress.step,
            resumed_from=self._resumed_from,
            tokens=self.progress.tokens,
            loss=self.progress.loss,
            seconds=self.progress.seconds,
            checkpoint=path,
            signal=stopped_by,
        )
