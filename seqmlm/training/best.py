"""The loop of a training, and the best weights on its way: of few data the last ones have memorized.

Pretraining and fine-tuning differ in the model, its rows and what is measured; this is the same in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import nn

from seqmlm.engine.durable import replace_file
from seqmlm.engine.loop import Goal, Loop, LoopResult, Observer
from seqmlm.engine.optimizer import module_tensors, restore_module
from seqmlm.engine.packing import RowPlanner, Rows
from seqmlm.engine.schedule import LoopConfig
from seqmlm.errors import StateError
from seqmlm.training.run import TrainingRun

BEST = "best.safetensors"
CHECKPOINTS = "checkpoints"

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
        if resume and file.is_file():
            with suppress(SafetensorError, ValueError, TypeError), safe_open(file, "pt") as kept:
                self.value = float((kept.metadata() or {})["value"])

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
        return last


def run_loop(
    run: TrainingRun,
    rows: nn.Module,
    dataset: Rows,
    planner: RowPlanner,
    config: LoopConfig,
    *,
    observer: Observer | None,
    evaluate: Best | Evaluate | None,
) -> tuple[LoopResult, float | None]:
    """Train a model in the folder of a run, from its last checkpoint where the run is resumed.

    Args:
        evaluate: measures the model on the way; with a `Best`, the model gets the best weights at the end.

    Returns:
        How training ended; the metric of the last weights, where earlier ones took their place.
    """
    best = evaluate if isinstance(evaluate, Best) else None
    goal = None if best is None or config.patience is None else best.goal
    told: dict[str, Any] = {"observer": observer, "evaluate": evaluate, "goal": goal}
    loop = Loop(rows, dataset, planner, config, directory=run.directory / CHECKPOINTS, **told)
    result = loop.run(resume=run.resume)
    if best is None or result.status == "killed":
        return result, None
    with run.writing():
        return result, best.restore(rows)
