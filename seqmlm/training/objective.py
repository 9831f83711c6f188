"""The objective of a training, its loop, and the best weights during training.

Pretraining and fine-tuning are two objectives. They differ in the model, its rows and its evaluation.
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
"""Measures a model, and returns metrics by name."""


class Best:
    """An evaluator that keeps the best weights so far in a file of the run.

    With few data, a long training memorizes. Its last weights then predict new data worse than earlier
    weights.

    Args:
        evaluator: measures the model, always on the same data.
        file: file for the weights.
        goal: the metric that ranks the weights.
        worth: share by which earlier weights must be better to replace the last weights. Evaluations read few
            records and are noisy.
        resume: whether the training is resumed. The weights in the file then count.
        writes: whether this process writes the file. All processes see the same metrics.

    Attributes:
        value: the metric of the weights that were kept or restored.
        replaced: the metric of the last weights, if earlier weights replaced them.
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
        value = values.get(self.goal.metric, math.nan)  # without a value, no weights are better
        if self.goal.better(value, self.value):
            self.value = value
            if not self._writes:
                return values
            try:
                replace_file(self._file, save(module_tensors(rows), {"value": repr(self.value)}))
            except OSError as error:
                raise StateError(
                    f"cannot write {self._file}: {error}; free space, then run the command with --resume"
                ) from None
        return values

    def restore(self, rows: nn.Module) -> float | None:
        """Restore the weights that were kept, if they are better than the last weights.

        Returns:
            The metric of the last weights if earlier weights replaced them, or else None.

        Raises:
            StateError: the file belongs to another model.
            OSError, SafetensorError: the file cannot be read.
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
    """A model, the packed rows it is trained on, and its evaluation.

    Attributes:
        trained_model: the module that the steps change.
        loop: settings of the loop.
        best: keeps the best weights. None before the first step, and if the last weights are used.
    """

    trained_model: Any
    dataset: Any
    planner: Any
    loop: LoopConfig
    best: Best | None = None

    @abstractmethod
    def evaluation(self, run: TrainingRun, processes: Processes) -> Best | Evaluate | None:
        """Evaluate the model during training. With a `Best`, the model ends with the best weights."""

    def train(
        self, run: TrainingRun, processes: Processes, tracked: TrackedRun | None, console: Console
    ) -> LoopResult:
        """Train in the folder of a run and report to `tracked`. A resumed run starts at a checkpoint."""
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
