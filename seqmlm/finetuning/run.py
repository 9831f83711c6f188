"""The run of a fine-tuning: its data, trainings, test results and registered model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.config import to_dict
from seqmlm.data.counts import released, released_counts
from seqmlm.data.fingerprints import combined, file_fingerprint
from seqmlm.data.identity import TrainedOn
from seqmlm.data.labels import time_of
from seqmlm.data.problems import Problems
from seqmlm.data.sources import shown_name
from seqmlm.engine.conditionals import Conditionals
from seqmlm.errors import StateError, UsageError, number_of
from seqmlm.finetuning.cases import items_of, outputs_of, predictions_of, truth_of
from seqmlm.finetuning.config import FinetuneConfig
from seqmlm.finetuning.labelled import (
    primary_measure,
    read_parts,
    reading_note,
    resembling_count,
    why_untested,
)
from seqmlm.finetuning.predictions import Predictions, write_predictions
from seqmlm.finetuning.table import Columns
from seqmlm.finetuning.teaching import Teacher, Trained
from seqmlm.finetuning.worth import Rivals, figures_of
from seqmlm.inference import model_folder
from seqmlm.inference.arrays import encode_arrays
from seqmlm.inference.calibrations import TRAINED_ON
from seqmlm.inference.labeller import Labeller
from seqmlm.inference.session import Session
from seqmlm.registry.entries import ModelEntry
from seqmlm.reports.page import Page
from seqmlm.reports.summary import Summary, Table
from seqmlm.reports.verdict import finetuning_sentence
from seqmlm.tasks.columns import Labelling, reader_options, text_options
from seqmlm.tasks.deadline import RemainingTime
from seqmlm.tracking import METRICS, TrackedRun, read_metrics
from seqmlm.training.job import TrainingJob
from seqmlm.training.page import curves, date
from seqmlm.training.resume import (
    REQUESTS,
    check_name_is_free,
    check_unchanged,
    resume_mode,
    saved_settings,
)
from seqmlm.training.run import QUARANTINE, TrainingRun, track_version

COMPARED = ("accuracy", "auroc", "macro_f1", "spearman", "mean")
"""Measures that are charts in MLflow, besides the primary measure."""
NAMED = 10
"""The largest number of classes that are listed when a training begins."""
_FREE = ("max_time", "rivals", "table")
"""Settings that a resumed run may change."""


class Finetuning(TrainingJob):
    """The run of a fine-tuning."""

    def __init__(self, config: FinetuneConfig, console: Any) -> None:
        config.check()
        super().__init__(console)
        self.limit(config.max_time)
        self.config, self.session = config, _open_session(config)
        self.seeds = range(config.seed, config.seed + config.seeds)
        self.run = TrainingRun(
            workspace=self.workspace,
            name=config.resumed_run or str(config.run_name),
            task="finetune",
            domain=self.session.card.domain,
            resume=resume_mode(config.resume) != "never",
        )
        self.settings = self._agreed_settings()
        quarantine = self.run.directory / QUARANTINE
        with self.session.data_rules():
            self.problems = Problems(config.on_error, quarantine=quarantine)
            self.problems.listener = self.console.message
            self.parts, self.card = self.load_data(lambda: read_parts(self.session, config, self.problems))
        self.primary = primary_measure(self.card, self.parts)
        self.columns = None
        if config.table is not None and self.card.kind not in ("class", "value"):
            raise UsageError(f"--table is for classes and values, and these labels are {self.card.kind}")
        if config.table is not None:
            self.columns = Columns(config.table, self.card, self.parts, self.problems)

    @cached_property
    def teacher(self) -> Teacher:
        """The teacher of the head, with the examples in tokens."""
        return Teacher(
            *(self.session, self.config, self.card, self.parts, self.problems),
            metric=self.primary,
            rivals=self.config.rivals == "on",
            processes=self.processes,
        )

    def _seed_run(self, seed: int) -> TrainingRun:
        """The run of one seed. With a single seed, it is the run itself."""
        return self.run if self.config.seeds == 1 else replace(self.run, name=f"{self.run.name}-seed{seed}")

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of the training examples, as given on the command line."""
        return (*self.config.train, *(class_file.partition("=")[2] for class_file in self.config.classes))

    @cached_property
    def files(self) -> list[str]:
        """All files that the run reads."""
        config = self.config
        classes = self.sources[len(config.train) :]
        paths = (*config.train, *config.valid, *config.test, *classes)
        data_files = self.session.domain.files.inputs(paths, format=config.format, options=config.options)
        return [*data_files, *filter(None, (config.label_file, config.mask))]

    def summary(self) -> Summary:
        """Train the models, test the best one and register it."""
        config, teacher, seeds = self.config, self.teacher, self.seeds
        with self.session.data_rules():
            if not self.processes.is_main:  # it trains, and leaves the rest to the main process
                signals = [self._train_seed(seed, None, seeds.stop - seed).signal for seed in seeds]
                return self._summary(stopped=next(filter(None, signals), None))
            self.run.begin(self.settings)
            self.console.message(self._plan_sentence())
            with self._open_run(self.run) as tracked:
                trainings = [self._train_seed(seed, tracked, seeds.stop - seed) for seed in seeds]
                if stopped := next(filter(None, (training.signal for training in trainings)), None):
                    self.console.message(self.run.stop(tracked, trainings[-1].steps))
                    return self._summary(stopped=stopped)
                best = max(trainings, key=lambda trained: -np.inf if trained.value is None else trained.value)
                labeller = teacher.best_labeller(best.seed, self._seed_run(best.seed).directory)
                if config.rivals == "on" and self.parts["test"]:
                    self.console.message("training done; fitting baselines on the same examples")
                figures, tables = self._test_results(labeller, trainings, best)
                entry = self._register(labeller, figures, tracked.run_id)
                metrics = _test_metrics(figures)
                # In MLflow, each metric is a chart with one point; details would be too many charts.
                compared_names = dict.fromkeys(f"test/{name}" for name in (self.primary, *COMPARED))
                chart_metrics = {name: metrics[name] for name in compared_names if name in metrics}
                details = {name: value for name, value in metrics.items() if name not in chart_metrics}
                track_version(tracked, entry, best.steps, chart_metrics, details)
                figures = released(figures)
                model = f"{self.run.name}:{entry.version}"
                answer = self._answer(figures, model)
                lead = answer.partition(" Use it:")[0]
                page = self._page(model, lead, figures, tables, best)
                self.publish(tracked, page, [lead.removesuffix(".")])
            hint = f"next: seqmlm predict {self.run.name} NEW --out predictions.csv"
            return self._summary(figures=figures, tables=tables, answer=answer, hint=hint)

    def _plan_sentence(self) -> str:
        """The kind of labels and the numbers of examples, in a sentence."""
        counts: dict[str, int] = {part: len(examples) for part, examples in self.parts.items()}
        shown = released_counts(counts)
        several = len(self.card.names)
        many = number_of(several, "value") if self.card.kind == "value" else f"{several:,} classes"
        shots = self.config.shots
        train = f"{shots} of " if shots is not None and shots < counts["train"] else ""
        train += f"{shown['train']} examples to train on"
        held_out = f"{shown['validation']} to validate, {shown['test']} to test"
        return f"{self.card.kind}: {many}{self._class_counts()}; {train}, {held_out}"

    def _class_counts(self) -> str:
        """The classes with their numbers of examples, if classes are few and may be named; else ""."""
        if self.card.kind != "class" or len(self.card.names) > NAMED:
            return ""
        counts = Counter(str(example.label) for examples in self.parts.values() for example in examples)
        text = ", ".join(f"{name!r} {counts[name]}" for name in sorted(counts))
        return self.problems.quoted(f" ({text})")  # a class may reveal something about a person

    def _summary(self, **results: Any) -> Summary:
        counts = {
            "items": sum(map(len, self.parts.values())),
            "bad": self.problems.bad_count,
            "notes": self.problems.counts,
        }
        spent = self.deadline.wall()
        return Summary(task="finetune", **released(counts), **results, seconds=spent)

    def _agreed_settings(self) -> dict[str, Any]:
        """The settings to save with the run, with a digest of the data.

        The main process checks them, and all processes agree on the result.
        """
        settings: dict[str, Any] = to_dict(self.config)
        del settings["resume"], settings["name"]
        settings["data"] = file_fingerprint(self.files)
        error = None
        try:
            if self.processes.is_main:
                self._check_runs(settings)
        except StateError as raised:
            error = raised
        self.processes.agree(error)
        return settings

    def _check_runs(self, settings: Mapping[str, Any]) -> None:
        """Refuse a name that is taken, and a resumed run with other settings or data."""
        frozen = [key for key in settings if key not in _FREE]
        for run in dict.fromkeys([self.run, *map(self._seed_run, self.seeds)]):
            if not (run.resume and (run.directory / REQUESTS[run.task]).exists()):
                check_name_is_free(run.name, run.task, run.directory)
                continue
            # A run of an earlier version began with the defaults of newer settings.
            saved = to_dict(FinetuneConfig()) | saved_settings(run.directory, run.task)
            check_unchanged(run.name, saved, settings, frozen=frozen, alternative="take another --name")

    def _open_run(self, run: TrainingRun, parent: str | None = None) -> TrackedRun:
        """Open a run in MLflow with its parameters and data, as a child of the run `parent`."""
        config, card = self.config, self.card
        settings = ("tune", "epochs", "seeds", "shots", "seed")
        params = {
            "domain": run.domain,
            "init": config.model,
            **{name: getattr(card, name) for name in ("kind", "label", "pool", "pairing", "crf")},
            "classes": len(card.names),
            **{name: getattr(config, name) for name in settings},
            "learning_rate": self.teacher.rate,
            "data": self._data_name(),
            **released({"training_examples": len(self.parts["train"])}),
        }
        tracked = run.start(params, self.console.message, parent=parent)
        if self.session.entry is not None:
            tracked.uses(self.session.entry.name, self.session.entry.version)
        counts = released({part: len(own) for part, own in self.parts.items()})
        source = self.sources[0]
        tracked.dataset(self._data_name(), source, combined(files=self.settings["data"]), counts)
        return tracked

    def _data_name(self) -> str:
        return shown_name(self.sources)

    def _train_seed(self, seed: int, tracked: TrackedRun | None, trainings_left: int) -> Trained:
        """Train one seed, or read its result if it is finished.

        With several seeds, it is a child run in MLflow. Trainings share the remaining time; `trainings_left`
        is the number of trainings that still need time, including this one.
        """
        run, is_single = self._seed_run(seed), self.config.seeds == 1
        if not is_single and self.processes.is_main:
            run.begin(self.settings)
        finished = run.result(lambda saved: Trained(**saved))
        if finished is not None:
            if (start := self.recorded_start(run.name)) is not None:
                self.deadline.carry(start.elapsed + finished.seconds)
            return finished
        start = self.start(run.name, trainings_left)
        child = tracked is not None and not is_single and self.config.tune != "none"
        with self._open_run(run, tracked.run_id) if child and tracked else nullcontext(tracked) as own_run:
            outcome = self.teacher.train(seed, run, own_run, self.console, start)
        if start is not None:  # for a resumed training, the seconds before it stopped count too
            self.deadline.carry(max(self.deadline.elapsed(), start.elapsed + outcome.seconds))
        if outcome.signal is None and self.processes.is_main:
            run.finish(outcome._asdict())
        return outcome

    def _rival_deadline(self, best: Trained) -> Callable[[str], bool]:
        """A function that tells whether no time remains for the baseline with a name."""
        start = self.recorded_start(self._seed_run(best.seed).name)
        remaining = RemainingTime(deadline=self.deadline, start=start, cuts=self.cuts, key="rivals: ")
        return remaining.is_over

    def _test_results(
        self, labeller: Labeller, trainings: Sequence[Trained], best: Trained
    ) -> tuple[dict[str, Any], list[Table]]:
        """The test results of the model and the baselines, also as a table. Writes the predictions."""
        card, teacher, test = self.card, self.teacher, self.teacher.cases["test"]
        train = teacher.training_cases(best.seed)
        figures = {"kind": card.kind, "primary": self.primary, "train": len(train), "test": len(test)}
        if alike := resembling_count(self.parts, self.session):
            figures["resembling"] = alike
        if not test:
            return figures, []
        predictions = predictions_of(labeller, test)
        rivals = Rivals(card, train, test, self._rival_deadline(best))
        if self.config.rivals == "on":
            rivals.add_cheap()
        if self.config.rivals == "on" and self.config.tune != "none":
            frozen = partial(teacher.frozen_model, best.seed)
            rivals.add("frozen encoder", lambda: predictions_of(Labeller(frozen(), card), test))
        if self.columns is not None:
            rivals.add_columns(self.columns, predictions)
        test_figures, table = figures_of(card, self.primary, test, predictions, rivals)
        figures |= test_figures
        if len(trainings) > 1:
            seeds = [training.seed for training in trainings]
            seed_figures = [self._seed_figure(seed) for seed in seeds]
            figures["seeds"] = dict(zip(map(str, seeds), seed_figures, strict=True))
            figures["mean"], figures["sd"] = float(np.mean(seed_figures)), float(np.std(seed_figures, ddof=1))
        items = items_of(card, test)
        ids, groups = [case.record.id for case in items], [case.group for case in items]
        stored = Predictions(card.kind, card.names, ids, groups, truth_of(card, test), predictions)
        write_predictions(self.run.directory, stored, [time_of(case.record) for case in items])
        return figures, [table]

    def _page(
        self, model: str, lead: str, figures: Mapping[str, Any], tables: Sequence[Table], best: Trained
    ) -> Page:
        """The page of the fine-tuning, with the curves of its best training."""
        facts = {
            "data": self._data_name(),
            "begun from": self.config.model,
            **{name: figures[name] for name in ("train", "test")},
            "next": f"seqmlm predict {self.run.name} NEW",
        }
        metrics = read_metrics(self._seed_run(best.seed).directory / METRICS)
        page = Page(f"Fine-tuning: {model}", lead)
        page.head({**facts, **date()})
        page.section("Loss", curves(metrics, f"valid/{self.primary}", self.primary))
        for table in tables:
            page.table(*table)
        return page

    def _seed_figure(self, seed: int) -> float:
        """The primary measure of one training on the test data; NaN if it cannot be computed."""
        labeller = self.teacher.best_labeller(seed, self._seed_run(seed).directory)
        measures = self.teacher.measures(labeller, self.teacher.cases["test"])
        return measures[self.primary].value if self.primary in measures else math.nan

    def _answer(self, figures: Mapping[str, Any], model: str) -> str:
        """The result of the fine-tuning in a sentence, and the command that uses its model."""
        examples = number_of(figures["train"], "example")
        learnt = f"{model} was trained on {examples} to predict {self.card.label!r}"
        if read_as := reading_note(self.card, self.config.task):
            learnt += f" ({read_as})"
        if not figures["test"]:
            why = why_untested(self.parts)
            return f"{learnt}; nothing was held out to test it ({why}): evaluate it with --test"
        result = finetuning_sentence(figures, self.primary)
        return f"{learnt}: {result}. Use it: seqmlm predict {self.run.name} FILE"

    def _register(self, labeller: Labeller, figures: Mapping[str, Any], run_id: str | None) -> ModelEntry:
        """Write the folder of the model, check that it loads with equal predictions, and register it."""
        session, config, run = self.session, self.config, self.run
        labels = {field.name: to_dict(getattr(config, field.name)) for field in fields(Labelling)}
        card = replace(
            session.card,
            head=labeller.card.to_dict(),
            reading=text_options(reader_options(session.domain, config, self.sources[0])),
            files={},
            parent=config.model,
            run_name=run.name,
            run_id=run_id,
            dataset=combined(files=self.settings["data"], labels=labels),
            seed=config.seed,
            metrics=released(_test_metrics(figures)),
        )
        rows: Any = labeller.rows.rows
        folder = run.version_folder(card.steps)
        model = replace(session.model, rows=rows, card=card, path=str(folder))
        identity = session.domain.keys.identity
        taught = TrainedOn.of(identity(example.record) for example in self.parts["train"])
        head_files = {**labeller.saved(), TRAINED_ON: encode_arrays(taught.to_arrays())}
        with run.writing(), run.building(folder) as building:
            model_folder.write(building, rows, session.tokenizer, card, head_files)
            self._check_reloaded(building, labeller)
        counts: dict[str, int] = {part: len(examples) for part, examples in self.parts.items()}
        with run.registering(folder):
            return run.register(model, sources=self.sources, counts=counts)

    def _check_reloaded(self, folder: Path, labeller: Labeller) -> None:
        """Refuse a folder whose predictions differ from the predictions of the trained model."""
        sample = (self.teacher.cases["test"] or self.teacher.cases["train"])[:8]
        model = model_folder.load(folder, domain=self.session.card.domain)
        reloaded = Labeller.load(model, Conditionals(model.rows, device=labeller.ask.device))
        ours, theirs = (np.concatenate(list(outputs_of(head, sample))) for head in (labeller, reloaded))
        if not np.allclose(ours, theirs, atol=1e-4, equal_nan=True):
            raise StateError(
                f"the model saved in {folder} predicts other values than the trained model (difference: "
                f"{np.abs(ours - theirs).max():.3g}). It was not registered: continue with --resume, and "
                "report this if it happens again"
            )


def _open_session(config: FinetuneConfig) -> Session:
    """Open the model to start from.

    Raises:
        UsageError: it has no hidden states, or it is fine-tuned already.
    """
    session = Session.open(config.model, domain=config.domain, labels="any", precision=config.precision)
    if not session.model.rows.has_hidden_states:
        raise UsageError(f"{config.model} is a linear model, which has no hidden states to learn from")
    if config.crf and config.tune == "none":
        raise UsageError(
            "a CRF is trained with the encoder, and --tune none trains nothing: omit one of the two"
        )
    if session.card.head:
        raise UsageError(f"{config.model} is already fine-tuned: start from the model that it was made from")
    return session


def _test_metrics(figures: Mapping[str, Any]) -> dict[str, float]:
    return {f"test/{k}": float(v) for k, v in figures.items() if isinstance(v, float)}
