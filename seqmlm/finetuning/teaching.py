"""One training of a fine-tuning: an encoder with a head, from its first step to the weights that are kept.

It is `Loop` with another objective; where nothing of the encoder is trained, scikit-learn fits the head.
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
from seqmlm.evaluation.intervals import Difference
from seqmlm.evaluation.predictions import temperature
from seqmlm.finetuning.cases import Case, CaseRows, cases, drawn, outputs_of, predicted, truth_of
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
from seqmlm.training.best import BEST, Best, run_loop
from seqmlm.training.observers import Console, Recorder
from seqmlm.training.run import TrainingRun

FINAL = "final.safetensors"
RATES = {128: 1e-3, 256: 5e-4}
"""Peak learning rates by width; of wider encoders, and of adapters ten times that, `RATE`."""
RATE = 5e-5
STEPS = 400
"""About so many steps at least, where epochs are not given: a small set is read more often."""
_KEPT_BYTES = 1 << 28  # of features; larger ones are read again, for they would be held through the training


class Trained(NamedTuple):
    """One training of several: the value of its validation (None without), and the signal that stopped it."""

    seed: int
    value: float | None
    steps: int
    seconds: float
    signal: int | None = None


class Teacher:
    """Trains a head.

    Args:
        problems: receives examples that cannot be spelled in tokens.
        metric: of the validation data, that decides.
        rivals: whether rivals will see the units of the examples.
        processes: that train together.
    """

    def __init__(
        self,
        session: Session,
        asked: Teaching,
        card: HeadCard,
        parts: Parts,
        problems: Problems,
        *,
        metric: str,
        rivals: bool,
        processes: Processes,
    ) -> None:
        self.session, self.asked, self.card, self.processes = session, asked, card, processes
        self.goal = Goal(f"valid/{metric}", higher_is_better=True)
        self._features: tuple[int | None, Floats] = None, np.zeros(0, dtype=np.float32)
        self.prompts = Prompts(session, card) if card.pool == "prompt" else None
        self.held: dict[Part, list[Case]] = {
            part: cases(session, card, own, problems, self.prompts, units=rivals and part != "validation")
            for part, own in parts.items()
        }

    @property
    def rate(self) -> float:
        """The peak learning rate."""
        width = int(self.session.model.rows.model.config.hidden_size)
        rate = next((own for most, own in RATES.items() if width <= most), RATE)
        adapters = self.asked.tune.startswith("lora") and rate == RATE
        return self.asked.learning_rate or (10 * rate if adapters else rate)

    def examples(self, seed: int) -> list[Case]:
        """What a training sees."""
        return drawn(self.card, self.held["train"], self.asked.shots, seed)

    def train(
        self, seed: int, run: TrainingRun, tracked: TrackedRun | None, console: Console, start: Start | None
    ) -> Trained:
        """One training, tracked if `tracked` is given; its weights lie in the run's folder if no signal
        stopped it.

        Args:
            start: how the time limit was divided when it began; None without a limit.
        """
        if self.asked.tune == "none":
            rows = self.frozen(seed)
            found = Trained(seed, self._validated(rows).get(self.goal.metric), 0, 0.0)
        else:
            rows = self._new(seed, self.asked.tune)
            if self.card.begins_fitted:
                self._fit(rows, seed, begins=True)
            found = self._loop(rows, seed, run, tracked, console, start)
        if found.signal is None and self.processes.is_main:
            run.directory.mkdir(parents=True, exist_ok=True)
            replace_file(run.directory / FINAL, save(module_tensors(rows)))
        return found

    def frozen(self, seed: int) -> LabelledRows:
        """The encoder as it is, with a head that is fitted to what it says."""
        rows = self._new(seed, "none")
        self._fit(rows, seed)
        return rows

    def _fit(self, rows: LabelledRows, seed: int, *, begins: bool = False) -> None:
        own = self.examples(seed)
        # A training that begins fitted and its rival, the frozen encoder, read the same of the same examples,
        # but for the rounding errors of adapters, which would tell a resumed run from others.
        adapted = begins and self.asked.tune.startswith("lora")
        seen, features = self._features
        if adapted or seen != seed:
            asked = [one.pieces for one in own], [len(one.targets) for one in own]
            features = np.concatenate(list(Labeller(rows, self.card).features(*asked)))
            if not adapted and features.nbytes <= _KEPT_BYTES:
                self._features = seed, features
        targets = np.concatenate([one.targets for one in own])
        fit_frozen(rows, self.card, features, targets, seed, begins=begins)

    def restored(self, seed: int, folder: Path) -> Labeller:
        """The model that a training has kept: adapters merged, temperature set."""
        rows = self._new(seed, self.asked.tune)
        restore_module(rows, load((folder / FINAL).read_bytes()))
        merge(rows)
        labeller, validation = Labeller(rows, self.card), self.held["validation"]
        if self.card.kind in ("class", "tags") and validation:
            logits = np.concatenate(list(outputs_of(labeller, validation)))
            warmth = temperature(logits, truth_of(self.card, validation))
            labeller = Labeller(rows, replace(self.card, temperature=warmth), labeller.ask)
        return labeller

    def measured(self, labeller: Labeller, own: Sequence[Case]) -> dict[str, Difference]:
        """What a model's predictions of some cases are worth, without intervals."""
        return worth(self.card, own, predicted(labeller, own), draws=0)

    def _new(self, seed: int, how: str) -> LabelledRows:
        """The model before its first step, with what is not trained frozen."""
        torch.manual_seed(seed)
        model = model_folder.load(self.session.model.path, domain=self.session.card.domain, head="optional")
        rows: Any = model.rows
        made = LabelledRows(rows, self.card.config)
        if self.prompts is not None:
            self.prompts.begin(made)
        tune(made, how)
        return made.to(self.processes.device)

    def _loop(
        self,
        rows: LabelledRows,
        seed: int,
        run: TrainingRun,
        tracked: TrackedRun | None,
        console: Console,
        start: Start | None,
    ) -> Trained:
        asked, world, validates = self.asked, self.processes.world, bool(self.held["validation"])
        dataset = CaseRows(self.examples(seed), self.card)
        planner = RowPlanner(dataset.lengths, tokens_per_row=self._row(dataset.lengths), seed=seed)
        each = max(1, round(planner.tokens_per_epoch / planner.tokens_per_row / world))
        epochs = asked.epochs or float(np.clip(np.ceil(STEPS / each), 3, 60))
        config = LoopConfig(
            epochs=epochs,
            max_seconds=None if start is None else start.limit,
            spent=0.0 if start is None else start.spent,
            learning_rate=self.rate,
            schedule="linear",
            rows_per_batch=world,
            # Of few data an epoch is a few steps, in which nothing is learnt yet.
            evaluate_every=max(1, each // 2, round(epochs * each / 20)) if validates else None,
            patience=asked.patience if validates else None,
            precision=asked.precision,
            seed=seed,
        )
        writes = self.processes.is_main
        best = Best(self._validated, run.directory / BEST, self.goal, resume=run.resume, writes=writes)
        observer = None if tracked is None else Recorder(tracked, console, config, planner.tokens_per_epoch)
        parts = (rows, dataset, planner, config)
        outcome, _ = run_loop(run, *parts, observer=observer, evaluate=best if validates else None)
        return Trained(seed, best.value, outcome.steps, outcome.seconds, outcome.signal)

    def _row(self, lengths: Any) -> int:
        """Tokens of a process's row; of a step a thirtieth of the data, between 512 and 4,096."""
        asked = self.asked.tokens_per_step or int(np.clip(lengths.sum() / 30, 512, 4096))
        return max(asked // self.processes.world, int(lengths.max()))

    def _validated(self, rows: LabelledRows) -> dict[str, float]:
        own = self.held["validation"]
        found = self.measured(Labeller(rows, self.card), own) if own else {}
        return {f"valid/{name}": one.value for name, one in found.items()}
