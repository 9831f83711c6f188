"""Settings of `seqmlm finetune`. Settings that make no sense are refused before any file is read."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from seqmlm.config import from_dict
from seqmlm.engine.types import Precision
from seqmlm.errors import UsageError
from seqmlm.finetuning.labelled import Lesson
from seqmlm.tasks.deadline import seconds
from seqmlm.tasks.settings import CommandConfig
from seqmlm.training.resume import resume_mode, run_to_resume, saved_settings
from seqmlm.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class Teaching:
    """Settings for the training of the head and the encoder.

    Args:
        tune: which part of the encoder is trained: all, last:K (the last K layers), lora:R (adapters of rank
            R), or none.
        epochs: passes over the training data. The default depends on the size of the data.
        max_time: end within this time from the start of the command: 90s, 10m, 2h. All trainings share it.
            Baselines are left out if no time remains for them. If reading the data takes more than half
            of the limit, the limit is extended by the excess.
        learning_rate: the peak learning rate. The default depends on the width of the encoder.
        tokens_per_step: tokens in one optimizer step. The default depends on the size of the data.
        patience: end a training after this many evaluations without a better result.
        resume: RUN: continue an interrupted run, with its settings. Without a value, or with auto, continue
            the run with this --name.
    """

    tune: str = "all"
    epochs: float | None = None
    max_time: str | None = None
    learning_rate: float | None = None
    tokens_per_step: int | None = None
    patience: int = 4
    resume: str | bool = "never"
    shots: int | None = None
    precision: Precision = "fp32"


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(Lesson, Teaching, CommandConfig):
    """Settings of `seqmlm finetune`.

    Args:
        seeds: number of trainings, each with another random seed. The model with the best result on the
            validation data is kept.
        rivals: whether to compare the model with the most frequent class, a linear model of units, and the
            frozen encoder: on or off.
        table: a table with more columns for each record, by id. Gradient boosting on these columns becomes
            one more baseline, also averaged with the model. For classes and values only.
        name: name for the run, its folder and the model. Default: MODEL-LABEL.
        model: the model to start from: NAME, NAME@ALIAS, NAME:VERSION, a model folder or a hub id. Not needed
            for a resumed run.
    """

    option_fields = (
        *("train", "valid", "test", "labels", "label_file", "classes", "task", "pair", "head", "tune"),
        *("seeds", "shots", "rivals", "table", "name", "max_time", "resume", *CommandConfig.option_fields),
    )
    metavar = ""

    model: str = ""
    seeds: int = 1
    rivals: Literal["on", "off"] = "on"
    table: Path | None = None
    name: str | None = None

    @property
    def run_name(self) -> str | None:
        """The given name of the run, or one made from model and label; None without both."""
        model = Path(self.model).name.partition("@")[0].partition(":")[0]
        default = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{model}-{'-'.join(self.labels) or 'labels'}")[:100]
        return self.name or (default if model else None)

    @property
    def resumed_run(self) -> str | None:
        """The name of the run to resume; None for a new run.

        Raises:
            UsageError: --name and --resume give different names, or no name is given.
            StateError: no run has this name.
        """
        mode = resume_mode(self.resume)
        name = self.run_name if mode == "auto" else self.name
        if mode == "auto" and name is None:
            raise UsageError("name the run to continue: --resume RUN")
        return run_to_resume("finetune", Workspace.locate(), name=name, resume=mode)

    @classmethod
    def resumed_settings(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The saved settings of the run that `values` resume; they apply unless new ones are given."""
        name = from_dict(cls, values).resumed_run
        if name is None:
            return {}
        saved = saved_settings(Workspace.locate().run_dir(name), "finetune")
        return {key: value for key, value in saved.items() if key != "data"} | {"name": name}

    def check(self) -> None:
        if not self.model:
            raise UsageError("name the model to start from, or a run to continue: --resume RUN")
        if not self.train and not self.classes:
            raise UsageError(
                "name labelled data: --train reviews.csv --label sentiment, or --class NAME=FILE"
            )
        if self.pair is None and self.pairing == "bi":
            raise UsageError("pairing=bi embeds two sequences: name the column of the other one with --pair")
        if self.pair is not None and self.head == "prompt":
            raise UsageError("--head prompt reads one sequence: leave it or --pair out")
        if self.table is not None and self.rivals == "off":
            raise UsageError(
                "--table adds a baseline, and --rivals off removes all baselines: omit one of the two"
            )
        if re.fullmatch(r"all|none|(last|lora):0*[1-9]\d*", self.tune, re.ASCII) is None:
            raise UsageError(
                f"--tune takes all, none, last:K or lora:R with a number above 0, not {self.tune!r}"
            )
        if self.max_time is not None:
            seconds(self.max_time)
        for name in ("epochs", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"{name} must be a number above 0, not {value}")
        for name in ("seeds", "shots", "patience", "tokens_per_step"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, not {value}")
