"""The objective of a training, its loop, and the best weights on its way: the last ones may have memorized.

Pretraining and fine-tuning are two objectives: they differ in the model, its rows and the measure.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import nn

from seqmlm.engine.distributed import Processes
from seqmlm.engine.durable import replace_file
from seqmlm.engine.loop import Goal, Loop, LoopResult
from seqmlm.engine.optimizer import module_tensors, restore_module
from seqmlm.engine.schedule import LoopConfig
from seqmlm.errors import StateError
from seqmlm.tracking import TrackedRun
from seqmlm.training.observers import Console, Recorder
from seqmlm.training.resume import CHECKPOINTS
from seqmlm.training.run import TrainingRun

BEST = "best.safetensors"

Evaluate = Callable[[Any], dict[str, float]]
"""Measures a model; metrics by name."""


class Best:
    """An evaluator that keeps the best weights so far in a file of the run.

    Of few data a long training memorizes: its last weights predict new data worse than earlier ones.

    Args:
        evaluator: measures, on the same data each time.
        file: where the weights are kept.
        goal: which of its metrics says how good the weights are.
        worth: by which share earlier weights must be better to be taken: evaluations are of few records.
        resume: whether the training goes on, so that what is kept there counts.
        writes: whether this process writes the file; all see the same metrics.

    Attributes:
        value: the metric of the weights that are kept, or that were restored.
        replaced: the metric of the last weights, where earlier ones took their place.
    """

    def __init__(
        self,
        evaluator: Evaluate,
        file: Path,
        goal: Goal,
        *,
        worth: float = 0.0,
        resume: bool,
        writes: bool = True,
    ) -> None:
        self._evaluator, self._file, self.goal, self._worth = evaluator, file, goal, worth
        self._writes = writes
        self.value: float | None = None
        self.replaced: float | None = None
        if resume and file.is_file():
            with suppress(SafetensorError, ValueError, TypeError), safe_open(file, "pt") as stored:
                self.value = float((stored.metadata() or {})["value"])

    def __call__(self, rows: nn.Module) -> dict[str, float]:
        values = self._evaluator(rows)
        value = values.get(self.goal.metric, math.nan)  # where it cannot be had, nothing is better
        if self.goal.better(value, self.value):
            self.value = value
            if not self._writes:
                return values
            try:
                replace_file(self._file, save(module_tensors(rows), {"value": repr(self.value)}))
            except OSError as error:
                raise StateError(f"cannot write {self._file}: {error}; free space, then --resume") from None
        return values

    def restore(self, rows: nn.Module) -> float | None:
        """Give a trained model the weights that were kept, if they are better; the metric of the last then.

        Raises:
            StateError: the file is of another model.
            OSError, SafetensorError: it cannot be read.
        """
        if self.value is None:
            return None
        last = self._evaluator(rows).get(self.goal.metric, math.nan)
        if not self.goal.better(
            self.value, last * (1 + self._worth if self.goal.higher_is_better else 1 - self._worth)
        ):
            self.value = last
            return None
        restore_module(rows, load(self._file.read_bytes()))
        self.replaced = last
        return last


class Objective(ABC):
    """A model, the packed rows it is trained on, and how it is measured.

    Attributes:
        trained_model: the module that the steps change.
        loop: settings of the loop.
        best: keeps the best weights; None before the first step, and where the last ones stay.
    """

    trained_model: Any
    dataset: Any
    planner: Any
    loop: LoopConfig
    best: Best | None = None

    @abstractmethod
    def evaluation(self, run: TrainingRun, processes: Processes) -> Best | Evaluate | None:
        """Measures the model on the way; with a `Best`, the model gets the best weights at the end."""

    def train(
        self, run: TrainingRun, processes: Processes, tracked: TrackedRun | None, console: Console
    ) -> LoopResult:
        """Train in the folder of a run, from its last checkpoint where it is resumed; report to `tracked`."""
        evaluate = self.evaluation(run, processes)
        self.best = best = evaluate if isinstance(evaluate, Best) else None
        observer = None
        if tracked is not None:
            observer = Recorder(tracked, console, self.loop, self.planner.tokens_per_epoch)
        loop = Loop(
            *(self.trained_model, self.dataset, self.planner, self.loop),
            directory=run.directory / CHECKPOINTS,
            observer=observer,
            evaluate=evaluate,
            goal=None if best is None or self.loop.patience is None else best.goal,
        )
        outcome = loop.run(resume=run.resume)
        if best is not None and outcome.status != "killed":
            with run.writing():
                best.restore(self.trained_model)
        return outcome
