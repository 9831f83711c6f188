"""One training of a fine-tuning: an encoder with a head, from the first step to the best weights.

It uses `Loop` with its own objective. If the encoder is frozen, scikit-learn fits the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load, save

from seqmlm.data.examples import Part
from seqmlm.data.problems import Problems
from seqmlm.engine.distributed import Processes
from seqmlm.engine.durable import replace_file
from seqmlm.engine.heads import LabelledRows
from seqmlm.engine.loop import Goal
from seqmlm.engine.optimizer import module_tensors, restore_module
from seqmlm.engine.packing import RowPlanner
from seqmlm.engine.schedule import LoopConfig
from seqmlm.engine.types import Floats
from seqmlm.evaluation.intervals import Estimate
from seqmlm.evaluation.predictions import temperature
from seqmlm.finetuning.cases import (
    Case,
    CaseRows,
    few_shot_cases,
    outputs_of,
    predictions_of,
    spelled_cases,
    truth_of,
)
from seqmlm.finetuning.config import Teaching
from seqmlm.finetuning.labelled import Parts
from seqmlm.finetuning.worth import worth
from seqmlm.inference import model_folder
from seqmlm.inference.labeller import Labeller
from seqmlm.inference.pieces import HeadCard
from seqmlm.inference.prompts import Prompts
from seqmlm.inference.session import Session
from seqmlm.inference.tuning import fit_frozen, merge, tune
from seqmlm.tasks.deadline import Start
from seqmlm.tracking import TrackedRun
from seqmlm.training.objective import BEST, Best, Objective
from seqmlm.training.observers import Console
from seqmlm.training.run import TrainingRun

FINAL = "final.safetensors"
RATES = {128: 1e-3, 256: 5e-4}
"""Peak learning rates by width of the encoder. Wider encoders use `RATE`, and their adapters ten times that
rate."""
RATE = 5e-5
STEPS = 400
"""The approximate minimum number of steps if epochs are not given. Small data sets are repeated more."""
_KEPT_BYTES = 1 << 28  # of features; larger ones are computed again, to save memory during the training


class Trained(NamedTuple):
    """The result of one training: its validation value (None without), and the signal that stopped it."""

    seed: int
    value: float | None
    steps: int
    seconds: float
    signal: int | None = None


class Teacher:
    """Trains a head, and the selected part of its encoder.

    Args:
        problems: receives examples that cannot be encoded.
        metric: the measure on the validation data that selects the best weights.
        rivals: whether baselines need the units of the examples.
        processes: the processes that train together.
    """

    def __init__(
        self,
        session: Session,
        config: Teaching,
        card: HeadCard,
        parts: Parts,
        problems: Problems,
        *,
        metric: str,
        rivals: bool,
        processes: Processes,
    ) -> None:
        self.session, self.config, self.card, self.processes = session, config, card, processes
        self.goal = Goal(f"valid/{metric}", higher_is_better=True)
        self._features: tuple[int | None, Floats] = None, np.zeros(0, dtype=np.float32)
        self.prompts = Prompts(session, card) if card.pool == "prompt" else None
        self.cases: dict[Part, list[Case]] = {
            part: spelled_cases(
                *(session, card, examples, problems, self.prompts), units=rivals and part != "validation"
            )
            for part, examples in parts.items()
        }

    @property
    def rate(self) -> float:
        """The peak learning rate."""
        width = int(self.session.model.rows.model.config.hidden_size)
        rate = next((peak for widest, peak in RATES.items() if width <= widest), RATE)
        adapters = self.config.tune.startswith("lora") and rate == RATE
        return self.config.learning_rate or (10 * rate if adapters else rate)

    def training_cases(self, seed: int) -> list[Case]:
        """The training cases for a seed."""
        return few_shot_cases(self.card, self.cases["train"], self.config.shots, seed)

    def train(
        self, seed: int, run: TrainingRun, tracked: TrackedRun | None, console: Console, start: Start | None
    ) -> Trained:
        """Run one training, in the time that `start` leaves for its steps; track it if `tracked` is given.

        If no signal stopped it, its weights are in the folder of the run.
        """
        if self.config.tune == "none":
            rows = self.frozen_model(seed)
            trained = Trained(seed, self.validation_metrics(rows).get(self.goal.metric), 0, 0.0)
        else:
            rows = self._new_model(seed, self.config.tune)
            if self.card.begins_fitted:
                self._fit(rows, seed, begins=True)
            training = HeadTraining(self, rows, seed, start)
            outcome = training.train(run, self.processes, tracked, console)
            value = None if training.best is None else training.best.value
            trained = Trained(seed, value, outcome.steps, outcome.seconds, outcome.signal)
        if trained.signal is None and self.processes.is_main:
            run.directory.mkdir(parents=True, exist_ok=True)
            replace_file(run.directory / FINAL, save(module_tensors(rows)))
        return trained

    def frozen_model(self, seed: int) -> LabelledRows:
        """The frozen encoder with a head that is fitted to its outputs."""
        rows = self._new_model(seed, "none")
        self._fit(rows, seed)
        return rows

    def _fit(self, rows: LabelledRows, seed: int, *, begins: bool = False) -> None:
        cases = self.training_cases(seed)
        # A training that begins with a fitted head shares features with its baseline, the frozen encoder.
        # Adapters are an exception: their rounding errors would make a resumed run differ from others.
        adapted = begins and self.config.tune.startswith("lora")
        features_seed, features = self._features
        if adapted or features_seed != seed:
            inputs = [case.pieces for case in cases], [len(case.targets) for case in cases]
            features = np.concatenate(list(Labeller(rows, self.card).features(*inputs)))
            if not adapted and features.nbytes <= _KEPT_BYTES:
                self._features = seed, features
        targets = np.concatenate([case.targets for case in cases])
        fit_frozen(rows, self.card, features, targets, seed, begins=begins)

    def best_labeller(self, seed: int, folder: Path) -> Labeller:
        """The model with the stored weights of a training: adapters merged, temperature set."""
        rows = self._new_model(seed, self.config.tune)
        restore_module(rows, load((folder / FINAL).read_bytes()))
        merge(rows)
        labeller, validation = Labeller(rows, self.card), self.cases["validation"]
        if self.card.kind in ("class", "tags") and validation:
            logits = np.concatenate(list(outputs_of(labeller, validation)))
            warmth = temperature(logits, truth_of(self.card, validation))
            labeller = Labeller(rows, replace(self.card, temperature=warmth), labeller.ask)
        return labeller

    def measures(self, labeller: Labeller, cases: Sequence[Case]) -> dict[str, Estimate]:
        """Measures of the predictions for some cases, by name, without intervals."""
        return worth(self.card, cases, predictions_of(labeller, cases), draws=0)

    def _new_model(self, seed: int, mode: str) -> LabelledRows:
        """The model before its first step. Weights that are not trained are frozen."""
        torch.manual_seed(seed)
        model = model_folder.load(self.session.model.path, domain=self.session.card.domain, head="optional")
        rows: Any = model.rows
        labelled = LabelledRows(rows, self.card.config)
        if self.prompts is not None:
            self.prompts.begin(labelled)
        tune(labelled, mode)
        return labelled.to(self.processes.device)

    def validation_metrics(self, rows: LabelledRows) -> dict[str, float]:
        """Measures of a model on the validation data, by name."""
        cases = self.cases["validation"]
        measures = self.measures(Labeller(rows, self.card), cases) if cases else {}
        return {f"valid/{name}": measure.value for name, measure in measures.items()}


class HeadTraining(Objective):
    """The training of a head and the tuned part of its encoder, on the labelled examples of a seed."""

    def __init__(self, teacher: Teacher, rows: LabelledRows, seed: int, start: Start | None) -> None:
        config, world, validates = teacher.config, teacher.processes.world, bool(teacher.cases["validation"])
        self.teacher, self.trained_model = teacher, rows
        self.dataset = CaseRows(teacher.training_cases(seed), teacher.card)
        lengths = self.dataset.lengths
        # A step sees a thirtieth of the data, between 512 and 4,096 tokens of all processes.
        step_tokens = config.tokens_per_step or int(np.clip(lengths.sum() / 30, 512, 4096))
        row_tokens = max(step_tokens // world, int(lengths.max()))
        self.planner = RowPlanner(lengths, tokens_per_row=row_tokens, seed=seed)
        epoch_steps = max(1, round(self.planner.tokens_per_epoch / self.planner.tokens_per_row / world))
        epochs = config.epochs or float(np.clip(np.ceil(STEPS / epoch_steps), 3, 60))
        self.loop = LoopConfig(
            epochs=epochs,
            max_seconds=None if start is None else start.limit,
            spent=0.0 if start is None else start.spent,
            learning_rate=teacher.rate,
            schedule="linear",
            rows_per_batch=world,
            # With few data, an epoch has only a few steps, and the model has not learnt anything yet.
            evaluate_every=max(1, epoch_steps // 2, round(epochs * epoch_steps / 20)) if validates else None,
            patience=config.patience if validates else None,
            precision=config.precision,
            seed=seed,
        )

    def evaluation(self, run: TrainingRun, processes: Processes) -> Best | None:
        """The evaluation that keeps the best weights on the validation data; None without such data."""
        teacher, file = self.teacher, run.directory / BEST
        if not teacher.cases["validation"]:
            return None
        options = {"resume": run.resume, "writes": processes.is_main}
        return Best(teacher.validation_metrics, file, teacher.goal, **options)
