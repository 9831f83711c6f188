"""A fine-tuning under way: data, trainings, figures beside the rivals, the registered model."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.config import to_dict
from seqmlm.data.counts import redacted_counts, released
from seqmlm.data.identity import TrainedOn
from seqmlm.data.labels import time_of
from seqmlm.data.problems import Problems
from seqmlm.data.sources import UNNAMED, combined, file_fingerprint, shown_name
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.distributed import Processes
from seqmlm.errors import StateError, UsageError, number_of
from seqmlm.finetuning.cases import items_of, outputs_of, predicted, truth_of
from seqmlm.finetuning.config import FinetuneConfig
from seqmlm.finetuning.labelled import doubt, primary, read_parts, resembling, why_untested
from seqmlm.finetuning.predictions import Predictions, write_predictions
from seqmlm.finetuning.table import Columns
from seqmlm.finetuning.teaching import Teacher, Trained
from seqmlm.finetuning.worth import Rivals, figures_of
from seqmlm.inference import model_folder
from seqmlm.inference.arrays import encode_arrays
from seqmlm.inference.calibrations import TRAINED_ON
from seqmlm.inference.labeller import Labeller
from seqmlm.inference.session import Session
from seqmlm.privacy import handling_sensitive_data
from seqmlm.registry.entries import ModelEntry
from seqmlm.reports.summary import Summary, Table
from seqmlm.reports.verdict import finetuning_sentence
from seqmlm.tasks.columns import Labelling, reader_options, text_options
from seqmlm.tasks.deadline import CUTS, Cuts, Deadline, RemainingTime, Start, seconds
from seqmlm.tasks.register import track_model
from seqmlm.tracking import DESCRIPTION, METRICS, TrackedRun, read_metrics
from seqmlm.training.observers import complete_console
from seqmlm.training.page import PAGE, described, finetuning_page
from seqmlm.training.resume import (
    REQUESTS,
    check_name_is_free,
    check_unchanged,
    resume_mode,
    saved_settings,
)
from seqmlm.training.run import QUARANTINE, TrainingRun
from seqmlm.workspace import Workspace

COMPARED = ("accuracy", "auroc", "macro_f1", "spearman", "mean")
"""Figures beside the primary one that trainings are compared by: few."""
NAMED = 10
"""Most classes that are named when a training begins."""
_FREE = ("max_time", "rivals", "table")
"""What a resumed run may change."""


class Finetuning:
    """A fine-tuning under way."""

    def __init__(self, config: FinetuneConfig, console: Any) -> None:
        config.check()
        self.config, self.console = config, complete_console(console)
        self.deadline = Deadline(self.console.began)
        self.deadline.limit = None if config.max_time is None else seconds(config.max_time)
        self.processes = Processes()
        self.workspace, self.session = Workspace.locate(), _open(config)
        self.private = self.session.card.sensitive
        self.seeds = range(config.seed, config.seed + config.seeds)
        self.run = self._run(config.resumed_run or str(config.run_name))
        self.settings = self._agreed_settings()
        aside = self.run.directory / QUARANTINE
        self.problems = Problems(config.on_error, quarantine=aside, sensitive=self.private)
        self.problems.listener = self.console.message
        reading = self.deadline.elapsed()
        self.parts, self.card = read_parts(self.session, config, self.problems)
        self._say(self.deadline.extend(self.deadline.elapsed() - reading))
        self.primary = primary(self.card, self.parts)
        self.columns = None
        if config.table is not None and self.card.kind not in ("class", "value"):
            raise UsageError(f"--table is for classes and values, and these labels are {self.card.kind}")
        if config.table is not None:
            self.columns = Columns(config.table, self.card, self.parts, self.problems)

    @cached_property
    def teacher(self) -> Teacher:
        """What trains; it has the examples in tokens."""
        return Teacher(
            *(self.session, self.config, self.card, self.parts, self.problems),
            metric=self.primary,
            rivals=self.config.rivals == "on",
            processes=self.processes,
        )

    def _run(self, name: str) -> TrainingRun:
        return TrainingRun(
            workspace=self.workspace,
            name=name,
            task="finetune",
            domain=self.session.card.domain,
            resume=resume_mode(self.config.resume) != "never",
        )

    def _of_seed(self, seed: int) -> TrainingRun:
        """The run of one training: the run itself, where there are no others."""
        return self.run if self.config.seeds == 1 else self._run(f"{self.run.name}-seed{seed}")

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the examples to train on come from, as they were named."""
        return (*self.config.train, *(one.partition("=")[2] for one in self.config.classes))

    @cached_property
    def files(self) -> list[str]:
        """All files that are read."""
        config = self.config
        of_class = (one.partition("=")[2] for one in config.classes)
        paths = (*config.train, *config.valid, *config.test, *of_class)
        read = self.session.domain.files.inputs(paths, format=config.format, options=config.options)
        return [*read, *(one for one in (config.label_file, config.mask) if one)]

    def summary(self) -> Summary:
        """Train, judge, register."""
        config, teacher, seeds = self.config, self.teacher, self.seeds
        with handling_sensitive_data(self.private):
            if self.processes.is_main:
                self.run.begin(self.settings)
            if not self.processes.is_main:  # it trains, and leaves the rest to the main process
                signals = [self._trained(seed, None, seeds.stop - seed).signal for seed in seeds]
                return self._summary(stopped=next(filter(None, signals), None))
            self.console.message(self._beginning())
            with self._tracked(self.run) as tracked:
                found = [self._trained(seed, tracked, seeds.stop - seed) for seed in seeds]
                if stopped := next(filter(None, (one.signal for one in found)), None):
                    self.console.message(self.run.stop(tracked, found[-1].steps))
                    return self._summary(stopped=stopped)
                best = max(found, key=lambda one: -np.inf if one.value is None else one.value)
                labeller = teacher.restored(best.seed, self._of_seed(best.seed).directory)
                if config.rivals == "on" and self.parts["test"]:
                    self.console.message("trained; now what is cheaper learns from the same examples")
                figures, tables = self._judged(labeller, found, best)
                entry = self._registered(labeller, figures, tracked.run_id)
                measured = _flat(figures)
                compared = {name: measured[name] for name in self._compared() if name in measured}
                rest = {name: value for name, value in measured.items() if name not in compared}
                tracked.log_metrics(best.steps, compared, rest)
                tracked.set_numbers(rest)
                track_model(tracked, entry, compared)
                figures = released(figures)
                model = f"{self.run.name}:{entry.version}"
                answer, hint = self._sentence(figures, model), f"seqmlm predict {self.run.name} NEW"
                self._page(model, answer.partition(" Use it:")[0], hint, figures, tables, best, tracked)
        hint = f"next: {hint} --out predictions.csv"
        return self._summary(figures=figures, tables=tables, answer=answer, hint=hint)

    def _beginning(self) -> str:
        """What is learnt from how much, before it takes time."""
        counts: dict[str, int] = {part: len(own) for part, own in self.parts.items()}
        shown = redacted_counts(counts) if self.private else counts
        several = len(self.card.names)
        many = number_of(several, "value") if self.card.kind == "value" else f"{several:,} classes"
        shots = self.config.shots
        drawn = f"{shots} of " if shots is not None and shots < counts["train"] else ""
        told = f"{self.card.kind}: {many}{self._classes()}; {drawn}{shown['train']} examples to train on"
        return f"{told}, {shown['validation']} to validate, {shown['test']} to test"

    def _classes(self) -> str:
        """The classes of records with how many examples each has, where they are few; of sensitive data a
        class may say something of a person."""
        if self.private or self.card.kind != "class" or len(self.card.names) > NAMED:
            return ""
        counts = Counter(str(one.label) for own in self.parts.values() for one in own)
        return f" ({', '.join(f'{name!r} {counts[name]}' for name in sorted(counts))})"

    def _summary(self, **found: Any) -> Summary:
        counts = {
            "items": sum(map(len, self.parts.values())),
            "bad": self.problems.bad_count,
            "notes": self.problems.counts,
        }
        spent = self.deadline.wall()
        return Summary(task="finetune", **released(counts), **found, seconds=spent)

    def _settings(self) -> dict[str, Any]:
        """The settings that are saved with the run, and a digest of the data.

        A name that is taken is refused, and so is a resumed run that other settings or data began.
        """
        settings: dict[str, Any] = to_dict(self.config)
        del settings["resume"], settings["name"]
        settings["data"] = file_fingerprint(self.files)
        frozen = [key for key in settings if key not in _FREE]
        for run in dict.fromkeys([self.run, *map(self._of_seed, self.seeds)]):
            if not (run.resume and (run.directory / REQUESTS[run.task]).exists()):
                check_name_is_free(run.name, run.task, run.directory)
                continue
            # What a setting of a later version is by default, the run was begun with.
            saved = to_dict(FinetuneConfig()) | saved_settings(run.directory, run.task)
            check_unchanged(run.name, saved, settings, frozen=frozen, alternative="take another --name")
        return settings

    def _agreed_settings(self) -> dict[str, Any]:
        """The settings, as the main process checks them against what runs have."""
        settings, error = dict[str, Any](), None
        if self.processes.is_main:
            try:
                settings = self._settings()
            except StateError as raised:
                error = raised
        self.processes.agree(error)
        return settings

    def _tracked(self, run: TrainingRun, parent: str | None = None) -> TrackedRun:
        config, card = self.config, self.card
        own = ("tune", "epochs", "seeds", "shots", "seed")
        params = {
            "domain": run.domain,
            "init": config.model,
            **{name: getattr(card, name) for name in ("kind", "label", "pool", "pairing", "crf")},
            "classes": len(card.names),
            **{name: getattr(config, name) for name in own},
            "learning_rate": self.teacher.rate,
            "data": self._shown(),
            **released({"training_examples": len(self.parts["train"])}),
        }
        tracked = run.start(params, self.console.message, parent=parent)
        if self.session.entry is not None:
            tracked.uses(self.session.entry.name, self.session.entry.version)
        counts = released({part: len(own) for part, own in self.parts.items()})
        source, digest = "withheld" if self.private else self.sources[0], file_fingerprint(self.files)
        tracked.dataset(self._shown(), source, combined(files=digest), counts)
        return tracked

    def _shown(self) -> str:
        return UNNAMED if self.private else shown_name(self.sources)

    def _trained(self, seed: int, tracked: TrackedRun | None, left: int) -> Trained:
        """One training; a child of the run, where there are several. What is done is not done again.

        Args:
            left: trainings that share what is left of the time limit, this one included.
        """
        run, alone = self._of_seed(seed), self.config.seeds == 1
        if not alone and self.processes.is_main:
            run.begin(self.settings)
        trained = run.result(lambda saved: Trained(**saved))
        if trained is not None:
            if (start := self._recorded(run)) is not None:
                self.deadline.carry(start.elapsed + trained.seconds)
            return trained
        start = self._started(run, left)
        child = tracked is not None and not alone and self.config.tune != "none"
        with self._tracked(run, tracked.run_id) if child and tracked else nullcontext(tracked) as own:
            found = self.teacher.train(seed, run, own, self.console, start)
        if start is not None:  # of a resumed training, the seconds before it stopped count too
            self.deadline.carry(max(self.deadline.elapsed(), start.elapsed + found.seconds))
        if found.signal is None and self.processes.is_main:
            run.finish(found._asdict())
        return found

    def _recorded(self, run: TrainingRun) -> Start | None:
        """How an earlier process divided the time for a training."""
        if self._cuts is None or (recorded := self._cuts.get(run.name)) is None:
            return None
        return Start(**recorded)

    def _started(self, run: TrainingRun, left: int) -> Start | None:
        """The division of the time for a training, as the main process measures it; None without a limit."""
        if self.deadline.limit is None:
            return None
        text = ""
        if self._cuts is not None:
            if (start := self._recorded(run)) is None:
                start = self.deadline.start(left)
                self._cuts.write(run.name, **asdict(start))
            else:
                self.deadline.carry(start.elapsed)
            text = json.dumps(asdict(start))
        return Start(**json.loads(self.processes.text_from_main(text)))

    @cached_property
    def _cuts(self) -> Cuts | None:
        """What the clock cut; None without a limit, and in other processes than the main one."""
        limit = self.deadline.limit
        if limit is None or not self.processes.is_main:
            return None
        return Cuts(self.run.directory / CUTS, {"limit": limit})

    def _late(self, best: Trained) -> Callable[[str], bool]:
        """Whether no time is left for a rival of a name."""
        start = self._recorded(self._of_seed(best.seed))
        remaining = RemainingTime(deadline=self.deadline, start=start, cuts=self._cuts, key="rivals: ")
        return remaining.is_over

    def _say(self, text: str) -> None:
        if text and self.processes.is_main:
            self.console.message(text)

    def _judged(
        self, labeller: Labeller, found: Sequence[Trained], best: Trained
    ) -> tuple[dict[str, Any], list[Table]]:
        """Figures on the test data, beside the rivals'."""
        card, teacher, test = self.card, self.teacher, self.teacher.held["test"]
        train = teacher.examples(best.seed)
        figures = {"kind": card.kind, "primary": self.primary, "train": len(train), "test": len(test)}
        if alike := resembling(self.parts, self.session):
            figures["resembling"] = alike
        if not test:
            return figures, []
        said = predicted(labeller, test)
        rivals = Rivals(card, train, test, self._late(best))
        if self.config.rivals == "on":
            rivals.add_cheap()
        if self.config.rivals == "on" and self.config.tune != "none":
            rivals.add("frozen encoder", lambda: predicted(Labeller(teacher.frozen(best.seed), card), test))
        if self.columns is not None:
            rivals.add_columns(self.columns, said)
        own, table = figures_of(card, self.primary, test, said, rivals)
        figures |= own
        if len(found) > 1:
            each = [self._measured(one.seed) for one in found]
            figures["seeds"] = {str(one.seed): value for one, value in zip(found, each, strict=True)}
            figures["mean"], figures["sd"] = float(np.mean(each)), float(np.std(each, ddof=1))
        items = items_of(card, test)
        ids, groups = [one.record.id for one in items], [one.group for one in items]
        made = Predictions(card.kind, card.names, ids, groups, truth_of(card, test), said)
        write_predictions(self.run.directory, made, [time_of(one.record) for one in items])
        return figures, [table]

    def _compared(self) -> list[str]:
        """Figures that trainings are compared by: as a metric, each is a chart with one point in MLflow."""
        return [f"test/{name}" for name in dict.fromkeys((self.primary, *COMPARED))]

    def _page(
        self,
        model: str,
        lead: str,
        hint: str,
        figures: Mapping[str, Any],
        tables: Sequence[Table],
        best: Trained,
        tracked: TrackedRun,
    ) -> None:
        """What the training came to, as the main artifact of its run, and as the description."""
        facts = {
            "data": self._shown(),
            "begun from": self.config.model,
            **{name: figures[name] for name in ("train", "test")},
            "next": hint,
        }
        metrics = read_metrics(self._of_seed(best.seed).directory / METRICS)
        file = self.run.directory / PAGE
        finetuning_page(model, lead, facts, self.primary, metrics, tables).write(file)
        tracked.set_tag(DESCRIPTION, described([lead.removesuffix(".")]))
        tracked.artifact(file)

    def _measured(self, seed: int) -> float:
        """What decides, of one training on the test data."""
        labeller = self.teacher.restored(seed, self._of_seed(seed).directory)
        found = self.teacher.measured(labeller, self.teacher.held["test"])
        return found[self.primary].value if self.primary in found else math.nan

    def _sentence(self, figures: Mapping[str, Any], model: str) -> str:
        learnt = f"{number_of(figures['train'], 'example')} taught {model} {self.card.label!r}"
        if read_as := doubt(self.card, self.config.task):
            learnt += f" ({read_as})"
        if not figures["test"]:
            why = why_untested(self.parts)
            return f"{learnt}; nothing was held out to test it ({why}): judge it with --test"
        result = finetuning_sentence(figures, self.primary)
        return f"{learnt}: {result}. Use it: seqmlm predict {self.run.name} FILE"

    def _registered(self, labeller: Labeller, figures: Mapping[str, Any], run_id: str | None) -> ModelEntry:
        """Write the model's folder, load it again, compare, register."""
        session, config, run = self.session, self.config, self.run
        labels = {one.name: to_dict(getattr(config, one.name)) for one in fields(Labelling)}
        card = replace(
            session.card,
            head=labeller.card.to_dict(),
            reading=text_options(reader_options(session.domain, config, self.sources[0])),
            files={},
            parent=config.model,
            run_name=run.name,
            run_id=run_id,
            dataset=combined(files=file_fingerprint(self.files), labels=labels),
            seed=config.seed,
            metrics=released(_flat(figures)),
        )
        rows: Any = labeller.rows.rows
        folder = run.version_folder(card.steps)
        model = replace(session.model, rows=rows, card=card, path=str(folder))
        taught = TrainedOn.of(session.domain.keys.identity(one.record) for one in self.parts["train"])
        further = {**labeller.saved(), TRAINED_ON: encode_arrays(taught.to_arrays())}
        with run.building(folder) as building:
            model_folder.write(building, rows, session.tokenizer, card, further)
            self._compare(building, labeller)
        counts: dict[str, int] = {part: len(own) for part, own in self.parts.items()}
        return run.register(model, sources=self.sources, counts=counts)

    def _compare(self, folder: Path, labeller: Labeller) -> None:
        """Refuse a folder that does not predict what the trained model does."""
        some = (self.teacher.held["test"] or self.teacher.held["train"])[:8]
        model = model_folder.load(folder, domain=self.session.card.domain)
        again = Labeller.load(model, Conditionals(model.rows, device=labeller.ask.device))
        ours, theirs = (np.concatenate(list(outputs_of(one, some))) for one in (labeller, again))
        if not np.allclose(ours, theirs, atol=1e-4, equal_nan=True):
            raise StateError(
                f"{folder} does not predict what was trained ({np.abs(ours - theirs).max():.3g} off)"
            )


def _open(config: FinetuneConfig) -> Session:
    """The model to start from; UsageError for one that has no hidden states, or is fine-tuned already."""
    session = Session.open(config.model, domain=config.domain, labels="any", precision=config.precision)
    if not session.model.rows.has_hidden_states:
        raise UsageError(f"{config.model} is a linear model, which has no hidden states to learn from")
    if config.crf and config.tune == "none":
        raise UsageError("a CRF is trained with the encoder, and --tune none trains nothing: leave one out")
    if session.card.head:
        raise UsageError(f"{config.model} is fine-tuned already: begin with the model it was made from")
    return session


def _flat(figures: Mapping[str, Any]) -> dict[str, float]:
    return {f"test/{k}": float(v) for k, v in figures.items() if isinstance(v, float)}
