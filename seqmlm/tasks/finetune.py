"""`seqmlm finetune`: what a small labelled set teaches an encoder, as a number beside cheap rivals.

One loop trains everything: a fine-tuning is `Loop` with another objective. Its run folder has what `train`'s
has; killed at any step, `--resume` reaches the same model.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
import torch
import yaml
from safetensors.torch import load, save

from seqmlm.config import to_dict
from seqmlm.data.examples import Example, Part, Spans
from seqmlm.data.prepare import combined, file_fingerprint
from seqmlm.data.privacy import SMALLEST, redact_small_counts, redacted_counts
from seqmlm.data.problems import Problems
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.distributed import Processes
from seqmlm.engine.durable import move_into_place, owner_only, replace_file
from seqmlm.engine.heads import LabelledRows
from seqmlm.engine.linear import LinearRows
from seqmlm.engine.loop import Goal, Loop, LoopResult
from seqmlm.engine.optimizer import module_tensors, restore_module
from seqmlm.engine.packing import RowPlanner
from seqmlm.engine.schedule import LoopConfig
from seqmlm.errors import DataError, StateError, UsageError, number_of
from seqmlm.evaluation.predictions import Measure, temperature
from seqmlm.inference import model_folder
from seqmlm.inference.labeller import HeadCard, Labeller, Pool
from seqmlm.inference.prompts import Prompts, words_of
from seqmlm.inference.session import Session
from seqmlm.inference.tuning import fit_frozen, merge, tune
from seqmlm.parsing import read_json
from seqmlm.registry import DatasetEntry
from seqmlm.tasks.assemble import Best
from seqmlm.tasks.cases import (
    Case,
    CaseRows,
    cases,
    drawn,
    outputs_of,
    predicted,
    prediction_rows,
    truth_of,
)
from seqmlm.tasks.columns import of_text
from seqmlm.tasks.config import seconds
from seqmlm.tasks.corpus import QUARANTINE, shown_name
from seqmlm.tasks.labelled import (
    MANY,
    Labelling,
    as_values,
    card_of,
    divided,
    doubt,
    is_numeric,
    overlap,
    primary,
    read_examples,
    reading_of,
    resembling,
    why_untested,
)
from seqmlm.tasks.launch import RUN_CONFIG
from seqmlm.tasks.models import register_model, tokenizer_entry, track_model
from seqmlm.tasks.observers import Recorder
from seqmlm.tasks.predictions import write_predictions
from seqmlm.tasks.task import CommandConfig, Summary, Table
from seqmlm.tasks.verdict import NOTHING, figures_of, of_rivals, verdict, worth
from seqmlm.tracking import LEDGER, TrackedRun, Tracker
from seqmlm.workspace import Workspace

REQUEST, DONE = "finetune.yaml", "result.json"
FINAL, BEST = "final.safetensors", "best.safetensors"
RATES = {128: 1e-3, 256: 5e-4}
"""Peak learning rates by width; of wider encoders, and of adapters ten times that, `RATE`."""
RATE = 5e-5
_FREE = ("resume", "name", "max_time", "rivals")
"""What a resumed run may change."""
STEPS = 400
"""About so many steps at least, where epochs are not given: a small set is read more often."""


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(Labelling, CommandConfig):
    """What `seqmlm finetune` can be told.

    Args:
        train: PATH: labelled data to train on: files, folders or Hugging Face data sets; repeatable.
        valid: PATH: data that decide when to stop; default: held out of training.
        test: PATH: data that the figures are of; default: held out of training.
        head: what is read of a record, or of a labelled part: start (its first token) or mean (over its
            tokens); prompt: the gap of a template, where a word stands for each class.
        template: of a prompt: text with a gap and {text}, as in zeroshot.
        words: CLASS=WORD: what stands in the gap for a class; a list.
        crf: entities as one chain of tags (a linear-chain CRF), not one by one.
        tune: what of the encoder is trained: all, last:K layers, lora:R (adapters of rank R), none.
        seeds: so many trainings; the best by validation is kept.
        shots: train on so many examples only, drawn anew for each seed.
        rivals: on compares with the most frequent class, a linear model over units and the frozen encoder.
        name: of the run, its folder and the model. Default: MODEL-LABEL.
        epochs: passes over the training data; default: by their size.
        max_time: end each training within this time: 90s, 10m, 2h.
        learning_rate: peak; default: by the width of the encoder.
        tokens_per_step: of one optimizer step; default: by the size of the data.
        patience: evaluations without a better result that end a training.
        allow_overlap: test on records that are in training, too.
        seed: of the first training, and of what is held out.
        resume: go on with an interrupted run of this --name.
    """

    shown = (
        *("train", "valid", "test", "labels", "label_file", "classes", "task", "pair", "head", "tune"),
        *("seeds", "shots", "rivals", "name", "max_time", "resume", *CommandConfig.shown),
    )
    metavar = ""

    train: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    head: Pool | None = None
    template: str = ""
    words: tuple[str, ...] = ()
    crf: bool = False
    tune: str = "all"
    seeds: int = 1
    shots: int | None = None
    rivals: Literal["on", "off"] = "on"
    name: str | None = None
    epochs: float | None = None
    max_time: str | None = None
    learning_rate: float | None = None
    tokens_per_step: int | None = None
    patience: int = 4
    allow_overlap: bool = False
    resume: bool = False
    seed: int = 0

    def check(self) -> None:
        if not self.train and not self.classes:
            raise UsageError(
                "name labelled data: --train reviews.csv --label sentiment, or --class NAME=FILE"
            )
        if self.pair is None and self.pairing == "bi":
            raise UsageError("pairing=bi embeds two sequences: name the column of the other one with --pair")
        if self.pair is not None and self.head == "prompt":
            raise UsageError("--head prompt reads one sequence: leave it or --pair out")
        for name in ("seeds", "shots", "patience", "tokens_per_step"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, not {value}")


class Finetune:
    """Teach a model labels: classes, values, tags of units or entities.

    The task is found from the labels, and what is not given is held out: whole groups (patients, documents,
    packages, equal sequences). The figures are of the held-out part, with 95 % intervals over groups, beside
    the most frequent class, a linear model over units and the frozen encoder.

    Example: seqmlm finetune english --train reviews.csv --label sentiment

    Example: seqmlm finetune enzymes --class active=active.fasta --class dead=dead.fasta --tune lora:8
    """

    Config = FinetuneConfig
    trains = True

    @classmethod
    def launch(
        cls, name: str, config: FinetuneConfig, *, stdout: TextIO | None, progress: Any, as_json: bool
    ) -> Summary:
        """Run it; see `seqmlm.tasks.task.run`."""
        run = _Run(config, progress)
        summary = run.summary()
        if not run.processes.is_main:
            raise SystemExit(0 if summary.stopped is None else 128 + summary.stopped)
        return summary


class _Run:
    """A fine-tuning under way."""

    def __init__(self, config: FinetuneConfig, console: Any) -> None:
        config.check()
        self.config, self.console, self.began = config, console, time.monotonic()
        self.processes = Processes()
        self.workspace, self.session = Workspace.locate(), _open(config)
        self.private = self.session.card.sensitive
        model = Path(config.model).name.partition("@")[0].partition(":")[0]
        label = "-".join(config.labels) or "labels"
        self.name = config.name or re.sub(r"[^A-Za-z0-9._-]+", "-", f"{model}-{label}")[:100]
        aside = self.workspace.run_dir(self.name) / QUARANTINE
        self.problems = Problems(config.on_error, quarantine=aside, sensitive=self.private)
        self.parts, self.card = self._read()
        self.primary = primary(self.card, self.parts)
        self.goal = Goal(f"valid/{self.primary}", more=True)

    # -- data --------------------------------------------------------------------------------------------

    def _read(self) -> tuple[dict[Part, list[Example]], HeadCard]:
        config = asked = self.config
        given: dict[Part, Sequence[str]] = {
            "train": config.train,
            "validation": config.valid,
            "test": config.test,
        }
        numeric = config.task == "value"
        read = self._files(given, asked, numeric)
        if config.task is None and not numeric and is_numeric(read["train"]):
            read = {part: as_values(own, self.problems) for part, own in read.items()}
        parts = divided(read, self.session, config.seed)
        if config.shots is not None and config.shots < MANY and not config.valid:
            parts["validation"] = []  # whoever has so few labels has none to validate with
        length, pool = min(self.session.card.max_length, 512), _pool(config, parts["train"])
        card = card_of(
            read["train"],
            parts["train"],
            asked,
            pool=pool,
            crf=config.crf,
            length=length,
            sensitive=self.private,
        )
        shared = [] if config.allow_overlap else overlap(parts, self.session)
        if shared and not read["test"] and not any(one.part == "test" for one in read["train"]):
            self.problems.note("a record held out to test that training has, too, left out", len(shared))
            parts["test"] = [one for one in parts["test"] if one not in set(shared)]
        elif shared:
            few = self.private and len(shared) < SMALLEST
            told = "some" if few else f"{len(shared):,} of {len(parts['test']):,}"
            raise DataError(
                f"{told} test examples are in training, or of a group that is",
                remedy="take them out, or --set allow_overlap=true",
            )
        if config.head != "prompt":
            return parts, card
        if card.kind != "class":
            raise UsageError("--head prompt has a word for each class, and predicts classes")
        return parts, replace(
            card, template=config.template, words=words_of(config.words, card.names, self.private)
        )

    @cached_property
    def prompts(self) -> Prompts | None:
        """What puts records into a template, where the head is a prompt."""
        return Prompts(self.session, self.card) if self.card.pool == "prompt" else None

    def _files(
        self, given: Mapping[Part, Sequence[str]], asked: Labelling, numeric: bool
    ) -> dict[Part, list[Example]]:
        found: dict[Part, list[Example]] = {}
        for part, paths in given.items():
            own = asked if part == "train" else replace(asked, classes=())
            found[part] = list(read_examples(self.session, own, paths, self.problems, numeric=numeric))
        if not any(found.values()):
            raise self.problems.nothing()
        return found

    @cached_property
    def held(self) -> dict[Part, list[Case]]:
        """The cases of each part."""
        rivals = self.config.rivals == "on"
        return {
            part: cases(
                *(self.session, self.card, own, self.problems, self.prompts),
                units=rivals and part != "validation",
            )
            for part, own in self.parts.items()
        }

    @property
    def labels(self) -> dict[str, Any]:
        """Where they are, as plain values."""
        return {one.name: to_dict(getattr(self.config, one.name)) for one in fields(Labelling)}

    def drawn(self, seed: int) -> list[Case]:
        """What a training sees."""
        return drawn(self.card, self.held["train"], self.config.shots, seed)

    @cached_property
    def files(self) -> list[str]:
        """All files that are read."""
        config = self.config
        paths = (
            *config.train,
            *config.valid,
            *config.test,
            *(one.partition("=")[2] for one in config.classes),
        )
        read = self.session.domain.files(paths, format=config.format, options=config.options)
        return [*read, *(one for one in (config.label_file, config.mask) if one)]

    # -- training ----------------------------------------------------------------------------------------

    def summary(self) -> Summary:
        config, held = self.config, self.held
        seeds = range(config.seed, config.seed + config.seeds)
        with owner_only(self.private):
            directory = self._directory()
            if not self.processes.is_main:  # it trains, and leaves the rest to the main process
                signals = [self._trained(seed, None).signal for seed in seeds]
                return self._summary({}, [], "", next(filter(None, signals), None))
            self.console.message(self._beginning())
            with self._tracked(self.name) as run:
                found = [self._trained(seed, run) for seed in seeds]
                stopped = next((one.signal for one in found if one.signal is not None), None)
                if stopped is not None:
                    run.end("KILLED")
                    self.console.message(f"stopped and saved; continue with --name {self.name} --resume")
                    return self._summary({}, [], "", stopped)
                best = max(found, key=lambda one: -np.inf if one.value is None else one.value)
                labeller = self._restored(best)
                figures, tables = self._judged(labeller, held["test"], found, best)
                entry = self._registered(directory, labeller, figures, run)
                run.log_metrics(best.steps, _flat(figures))
                track_model(run, entry, _flat(figures))
        figures = redact_small_counts(figures, self.private)
        answer = self._sentence(figures, f"{self.name}:{entry.version}")
        return self._summary(figures, tables, answer, None)

    def _beginning(self) -> str:
        """What is learnt from how much, before it takes time."""
        counts: dict[str, int] = {part: len(own) for part, own in self.parts.items()}
        shown = redacted_counts(counts) if self.private else counts
        many = f"{len(self.card.names):,} {'values' if self.card.kind == 'value' else 'classes'}"
        told = f"{self.card.kind}: {many}; {shown['train']} examples to train on"
        return f"{told}, {shown['validation']} to validate, {shown['test']} to test"

    def _summary(self, figures: Mapping[str, Any], tables: Any, answer: str, stopped: int | None) -> Summary:
        counts = {part: len(own) for part, own in self.parts.items()}
        return Summary(
            task="finetune",
            **redact_small_counts(
                {"items": sum(counts.values()), "bad": self.problems.bad_count}, self.private
            ),
            notes=redact_small_counts(self.problems.counts, self.private),
            figures=figures,
            tables=tables,
            answer=answer,
            stopped=stopped,
            seconds=time.monotonic() - self.began,
        )

    def _directory(self) -> Path:
        """The run's folder, with the request; a name that is taken is refused without `resume`."""
        error = None
        if self.processes.is_main:
            try:
                self._begin(self.name)
            except StateError as raised:
                error = raised
        self.processes.agree(error)
        return self.workspace.run_dir(self.name)

    def _begin(self, name: str) -> None:
        directory, values = self.workspace.run_dir(name), to_dict(self.config)
        file = directory / REQUEST
        now = {key: value for key, value in values.items() if key not in _FREE}
        now["data"] = file_fingerprint(self.files)
        if not file.exists() and any(
            (directory / one).exists() for one in (LEDGER, RUN_CONFIG, "model", DONE)
        ):
            raise StateError(f"{name!r} is another run, no fine-tuning ({directory}): take another --name")
        if file.exists():
            if not self.config.resume:
                raise StateError(
                    f"run {name!r} exists ({directory}): go on with --resume, or take another --name"
                )
            # What a setting of a later version is by default, the run was begun with.
            before = to_dict(FinetuneConfig(model="")) | yaml.safe_load(file.read_text())
            if changed := [key for key in now if before.get(key) != now[key]]:
                raise StateError(f"run {name!r} was started with other values of {', '.join(changed)}")
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(file, yaml.safe_dump(now, sort_keys=False).encode())

    def _tracked(self, name: str, parent: TrackedRun | None = None) -> TrackedRun:
        config, card = self.config, self.card
        directory = self.workspace.run_dir(name)
        params = {
            "domain": self.session.card.domain,
            "init": config.model,
            "kind": card.kind,
            "label": card.label,
            "classes": len(card.names),
            "tune": config.tune,
            "pool": card.pool,
            "pairing": card.pairing,
            "crf": card.crf,
            "epochs": config.epochs,
            "learning_rate": config.learning_rate or self.rate,
            "seeds": config.seeds,
            "shots": config.shots,
            "seed": config.seed,
            "data": "data" if self.private else shown_name(config.train),
        }
        examples = {"training_examples": len(self.parts["train"])}
        params |= redact_small_counts(examples, self.private)
        tags = {"domain": self.session.card.domain, "task": "finetune"}
        if parent is not None and parent.run_id is not None:
            tags["mlflow.parentRunId"] = parent.run_id
        run = Tracker(self.workspace, warn=self.console.message).start(
            name,
            experiment=f"seqmlm-{self.session.card.domain}",
            params=params,
            tags=tags,
            resume=config.resume and (directory / LEDGER).exists(),
        )
        if self.session.entry is not None:
            run.uses(self.session.entry.name, self.session.entry.version)
        return run

    @property
    def rate(self) -> float:
        """The peak learning rate where none is given."""
        width = int(self.session.model.rows.model.config.hidden_size)
        rate = next((own for most, own in RATES.items() if width <= most), RATE)
        return 10 * rate if self.config.tune.startswith("lora") and rate == RATE else rate

    def _trained(self, seed: int, run: TrackedRun | None) -> Trained:
        """One training; its weights lie in its folder."""
        alone = self.config.seeds == 1
        name = self.name if alone else f"{self.name}-seed{seed}"
        directory = self.workspace.run_dir(name)
        done = directory / DONE
        if not alone and self.processes.is_main:
            self._begin(name)
        if done.exists():
            return Trained(**read_json(done), directory=directory)
        train, rows = self.drawn(seed), self.new(seed)
        if self.config.tune == "none" or rows.config.cosine:  # else its scale would take all of the steps
            self._fit_frozen(rows, train, seed)
        if self.config.tune == "none":
            value = self._validate(rows).get(self.goal.metric)
            found = Trained(seed=seed, value=value, steps=0, seconds=0.0, directory=directory)
            self._keep(rows, directory)
        else:
            with nullcontext(run) if alone or run is None else self._tracked(name, run) as own:
                found = self._loop(rows, train, seed, directory, own)
        if found.signal is None and self.processes.is_main:
            replace_file(done, json.dumps(found.to_dict()).encode())
        return found

    def _fit_frozen(self, rows: LabelledRows, train: Sequence[Case], seed: int) -> None:
        asked = [one.pieces for one in train], [len(one.targets) for one in train]
        features = np.concatenate(list(Labeller(rows, self.card).features(*asked)))
        targets = np.concatenate([one.targets for one in train])
        fit_frozen(rows, self.card, features, targets, seed)

    def new(self, seed: int, how: str | None = None) -> LabelledRows:
        """The model before its first step, with what is not trained frozen."""
        torch.manual_seed(seed)
        model = model_folder.load(self.session.model.path, domain=self.session.card.domain, head="optional")
        rows: Any = model.rows
        made = LabelledRows(rows, self.card.config)
        if self.prompts is not None:
            self.prompts.begin(made)
        tune(made, how or self.config.tune)
        return made.to(self.processes.device)

    def _loop(
        self, rows: LabelledRows, train: Sequence[Case], seed: int, directory: Path, run: TrackedRun | None
    ) -> Trained:
        dataset = CaseRows(train, self.card)
        planner = RowPlanner(dataset.lengths, tokens_per_row=self._row(dataset.lengths), seed=seed)
        each = max(1, round(planner.tokens_per_epoch / planner.tokens_per_row / self.processes.world))
        epochs = self.config.epochs or float(np.clip(np.ceil(STEPS / each), 3, 60))
        validated = len(self.held["validation"]) > 0
        evaluator = Best(
            self._validate,
            directory / BEST,
            self.goal,
            resume=self.config.resume,
            writes=self.processes.is_main,
        )
        observer = None
        if run is not None:
            limit = math.inf if self.config.max_time is None else seconds(self.config.max_time)
            observer = Recorder(
                run,
                self.console,
                lambda one: max(one.step, min(epochs * each, one.step * limit / max(one.seconds, 1e-9))),
            )
        loop = Loop(
            rows,
            dataset,
            planner,
            LoopConfig(
                epochs=epochs,
                max_seconds=None if self.config.max_time is None else seconds(self.config.max_time),
                learning_rate=self.config.learning_rate or self.rate,
                schedule="linear",
                rows_per_batch=self.processes.world,
                # Of few data an epoch is a few steps, in which nothing is learnt yet.
                evaluate_every=max(1, each // 2, round(epochs * each / 20)) if validated else None,
                patience=self.config.patience if validated else None,
                precision=self.config.precision,
                seed=seed,
            ),
            directory=directory / "checkpoints",
            observer=observer,
            evaluate=evaluator if validated else None,
            goal=self.goal if validated else None,
        )
        outcome: LoopResult = loop.run(resume=self.config.resume)
        if outcome.signal is None:
            if validated:
                evaluator.restore(rows)
            self._keep(rows, directory)
        return Trained(
            seed=seed,
            value=evaluator.value,
            steps=outcome.steps,
            seconds=outcome.seconds,
            signal=outcome.signal,
            directory=directory,
        )

    def _keep(self, rows: LabelledRows, directory: Path) -> None:
        if self.processes.is_main:
            directory.mkdir(parents=True, exist_ok=True)
            replace_file(directory / FINAL, save(module_tensors(rows)))

    def _row(self, lengths: Any) -> int:
        """Tokens of a process's row; of a step a thirtieth of the data, between 512 and 4,096."""
        asked = self.config.tokens_per_step or int(np.clip(lengths.sum() / 30, 512, 4096))
        return max(asked // self.processes.world, int(lengths.max()))

    def _validate(self, rows: LabelledRows) -> dict[str, float]:
        if not self.held["validation"]:
            return {}
        found = self.measured(Labeller(rows, self.card), self.held["validation"])
        return {f"valid/{name}": one.value for name, one in found.items()}

    # -- figures -----------------------------------------------------------------------------------------

    def measured(self, labeller: Labeller, own: Sequence[Case]) -> dict[str, Measure]:
        """What a model's predictions of some cases are worth, without intervals."""
        return worth(self.card, own, predicted(labeller, own), draws=0)

    def _restored(self, best: Trained) -> Labeller:
        """The model that is kept: adapters merged, temperature set."""
        rows = self.new(best.seed)
        restore_module(rows, load((best.directory / FINAL).read_bytes()))
        merge(rows)
        labeller = Labeller(rows, self.card)
        validation = self.held["validation"]
        if self.card.kind in ("class", "tags") and validation:
            logits = np.concatenate(list(outputs_of(labeller, validation)))
            warmth = temperature(logits, truth_of(self.card, validation))
            labeller = Labeller(rows, replace(self.card, temperature=warmth), labeller.ask)
        return labeller

    def _judged(
        self, labeller: Labeller, test: Sequence[Case], found: Sequence[Trained], best: Trained
    ) -> tuple[dict[str, Any], list[Table]]:
        """Figures on the test data, beside the rivals'."""
        train = self.drawn(best.seed)
        figures: dict[str, Any] = {"kind": self.card.kind, "primary": self.primary}
        figures |= {"train": len(train), "test": len(test)}
        if alike := resembling(self.parts, self.session):
            figures["resembling"] = alike
        if not test:
            return figures, []
        said = predicted(labeller, test)
        others = of_rivals(self.card, train, test) if self.config.rivals == "on" else {}
        if self.config.rivals == "on" and self.config.tune != "none":
            rows = self.new(best.seed, "none")
            self._fit_frozen(rows, train, best.seed)
            others["frozen encoder"] = predicted(Labeller(rows, self.card), test)
        own, table = figures_of(self.card, self.primary, test, said, others)
        figures |= own
        if len(found) > 1:
            again = (self.measured(self._restored(one), test) for one in found)
            each = [one.get(self.primary, NOTHING).value for one in again]
            figures["seeds"] = {str(one.seed): value for one, value in zip(found, each, strict=True)}
            figures["mean"], figures["sd"] = float(np.mean(each)), float(np.std(each, ddof=1))
        kept = prediction_rows(self.card, test, said)
        write_predictions(self.workspace.run_dir(self.name), kept, kind=self.card.kind, names=self.card.names)
        return figures, [table]

    def _sentence(self, figures: Mapping[str, Any], model: str) -> str:
        learnt = f"{number_of(figures['train'], 'example')} taught {model} {self.card.label!r}"
        if read_as := doubt(self.card, self.config.task):
            learnt += f" ({read_as})"
        if not figures["test"]:
            why = why_untested(self.parts)
            return f"{learnt}; nothing was held out to test it ({why}): judge it with --test"
        return f"{learnt}: {verdict(figures, self.primary)}. Use it: seqmlm predict {self.name} FILE"

    # -- the model ---------------------------------------------------------------------------------------

    def _registered(
        self, directory: Path, labeller: Labeller, figures: Mapping[str, Any], run: TrackedRun
    ) -> Any:
        """Write the model's folder, load it again, compare, register."""
        session, config = self.session, self.config
        building, folder = directory / "model.tmp", directory / "model"
        shutil.rmtree(building, ignore_errors=True)
        sources = (*config.train, *(one.partition("=")[2] for one in config.classes))
        fingerprint = combined(files=file_fingerprint(self.files), labels=self.labels)
        card = replace(
            session.card,
            head=labeller.card.to_dict(),
            reading=of_text(reading_of(session, config, sources[0])),
            files={},
            parent=config.model,
            run_name=self.name,
            run_id=run.run_id,
            dataset=fingerprint,
            seed=config.seed,
            metrics=redact_small_counts(_flat(figures), self.private),
        )
        rows: Any = labeller.rows.rows
        model_folder.write(building, rows, session.tokenizer, card, labeller.saved())
        self._compare(building, labeller)
        shutil.rmtree(folder, ignore_errors=True)
        move_into_place(building, folder)
        counts = redact_small_counts({part: len(own) for part, own in self.parts.items()}, self.private)
        return register_model(
            folder,
            name=self.name,
            domain=session.card.domain,
            dataset=DatasetEntry(
                fingerprint=fingerprint, domain=session.card.domain, sources=sources, counts=counts
            ),
            tokenizer=tokenizer_entry(session.tokenizer),
            masking={},
            init=config.model,
            run_id=run.run_id,
        )

    def _compare(self, folder: Path, labeller: Labeller) -> None:
        """Refuse a folder that does not predict what the trained model does.

        Raises:
            StateError: it does not.
        """
        some = (self.held["test"] or self.held["train"])[:8]
        model = model_folder.load(folder, domain=self.session.card.domain)
        again = Labeller.load(model, Conditionals(model.rows, device=labeller.ask.device))
        ours, theirs = (np.concatenate(list(outputs_of(one, some))) for one in (labeller, again))
        if not np.allclose(ours, theirs, atol=1e-4, equal_nan=True):
            raise StateError(
                f"{folder} does not predict what was trained ({np.abs(ours - theirs).max():.3g} off)"
            )


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One training of several.

    Args:
        value: of its validation, None without.
        signal: that stopped it.
    """

    seed: int
    value: float | None
    steps: int
    seconds: float
    directory: Path
    signal: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """What is kept of it."""
        return {name: getattr(self, name) for name in ("seed", "value", "steps", "seconds")}


def _open(config: FinetuneConfig) -> Session:
    """The model to start from.

    Raises:
        UsageError: one that has no hidden states, or is fine-tuned already.
    """
    session = Session.open(config.model, domain=config.domain, labels="any", precision=config.precision)
    if isinstance(session.model.rows, LinearRows):
        raise UsageError(f"{config.model} is a linear model, which has no hidden states to learn from")
    if config.crf and config.tune == "none":
        raise UsageError("a CRF is trained with the encoder, and --tune none trains nothing: leave one out")
    if session.card.head:
        raise UsageError(f"{config.model} is fine-tuned already: begin with the model it was made from")
    return session


def _pool(config: FinetuneConfig, train: Sequence[Example]) -> Pool:
    """What is read where nobody says: of a part its first token, of a record the mean."""
    of_parts = any(isinstance(one.label, Spans) for one in train)
    return config.head or ("start" if of_parts else "mean")


def _flat(figures: Mapping[str, Any]) -> dict[str, float]:
    return {f"test/{k}": float(v) for k, v in figures.items() if isinstance(v, float)}
