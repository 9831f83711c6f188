"""Zero-shot classification: a template with a gap, and the words that stand for each class in it.

A class is as probable as its words are in the gap (Schick and Schuetze 2021). Words differ in how probable
they are anyway, and that is taken off: by what they have in the template without the text (pointwise mutual
information), or by what they have on average over unlabelled inputs (contextual calibration, Zhao et al.
2021; Hu et al. 2022). Several templates are averaged. How far an answer hangs on the wording is part of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np

from seqmlm.config import read_yaml
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.holes import Prompt, fields_in
from seqmlm.engine.types import Longs
from seqmlm.engine.units import Doubles
from seqmlm.errors import DataError, UsageError, nearest, number_of
from seqmlm.evaluation.intervals import exact_rate
from seqmlm.inference.batches import Batch, Encoded
from seqmlm.inference.cloze import Cloze
from seqmlm.inference.runner import Counts, Progress
from seqmlm.inference.session import Session
from seqmlm.reports.page import Cell, Page
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.sinks import Fields, Kind, Schema
from seqmlm.tasks.gaps import GapConfig, Written, keep_report, one_by_one, write_rows

CONTEXTS = 200
"""Inputs that contextual calibration looks at, the first ones."""

ONE_CLASS = 0.95
"""Share of predictions of one class from which on that is said."""

FEWEST = 20
"""Inputs below which contextual calibration is refused: of one input it would take all away."""

COLUMNS: Mapping[str, Kind] = {
    "id": "text",
    "source": "text",
    "line": "integer",
    "prediction": "text",
    "scores": "json",
    "truth": "text",
}

Calibration = Literal["auto", "pmi", "contextual", "none"]


@dataclass(frozen=True, kw_only=True)
class ZeroshotConfig(GapConfig):
    """What `seqmlm zeroshot` can be told.

    Args:
        templates: with a gap, and `{text}` or `{COLUMN}` where the data go; one without stands behind the
            text.
        labels: class to its words.
        task: a YAML file with `templates` and `labels`, in place of these two.
        truth: column of the true class.
        calibration: "pmi", "contextual" or "none"; "auto" is "contextual" where files have inputs enough.
        sensitivity: evaluate every template alone, and every word of a class alone, too.
        report: an HTML file that shows the results.
    """

    templates: tuple[str, ...] = ()
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    task: Path | None = None
    truth: str | None = None
    calibration: Calibration = "auto"
    sensitivity: bool = False
    report: Path | None = None

    def check(self) -> None:
        super().check()
        check_outputs({"--out": self.out, "--report": self.report}, inputs=self.paths, streams=True)
        if self.sensitivity and self.truth is None:
            raise UsageError(
                "--sensitivity compares accuracies: name the column of true classes with --truth"
            )
        if self.calibration == "contextual" and "-" in self.paths:
            raise UsageError("contextual calibration reads the first inputs twice: give a file, not -")


@dataclass(frozen=True, kw_only=True)
class Verbalizer:
    """The words of the classes.

    Args:
        names: C classes. words: W words, those of a class side by side. owner: (W,) the class of each.

    Raises:
        UsageError: fewer than two classes, a class without words, or a word of two classes.
    """

    names: tuple[str, ...]
    words: tuple[str, ...]
    owner: Longs

    @classmethod
    def of(cls, labels: Mapping[str, Sequence[str]]) -> Verbalizer:
        """From class to words."""
        if len(labels) < 2:
            raise UsageError("at least two classes are needed: --label positive=great --label negative=bad")
        for name, words in labels.items():
            if not words or any(not word.strip() for word in words):
                raise UsageError(f"class {name!r} has no words, or an empty one: --label {name}=word,word")
        words = [word for own in labels.values() for word in own]
        if (twice := next((word for word in words if words.count(word) > 1), None)) is not None:
            raise UsageError(f"the word {twice!r} stands for two classes, or twice for one")
        owner = np.repeat(np.arange(len(labels)), [len(own) for own in labels.values()])
        return cls(names=tuple(labels), words=tuple(words), owner=owner)

    def probabilities(self, log_probs: Doubles, words: Longs | None = None) -> Doubles:
        """(..., C) of the classes: a class has the geometric mean of its words, among all words.

        Args:
            log_probs: (..., W) of the words, calibrated; in any unit but that of a factor.
            words: those that count; None for all.
        """
        chosen = np.arange(len(self.words)) if words is None else words
        own = log_probs[..., chosen]
        own = own - np.logaddexp.reduce(own, axis=-1, keepdims=True)
        of = self.owner[chosen]
        means = np.stack([own[..., of == number].mean(-1) for number in range(len(self.names))], axis=-1)
        found: Doubles = np.exp(means - np.logaddexp.reduce(means, axis=-1, keepdims=True))
        return found

    def alone(self) -> list[Longs]:
        """One word of each class at a time: the first ones, the second ones, and so on, in turns."""
        own = [np.flatnonzero(self.owner == number) for number in range(len(self.names))]
        most = max(map(len, own))
        return [np.array([one[turn % len(one)] for one in own]) for turn in range(most)] if most > 1 else []


class Classifier:
    """Classifies records with one model.

    Args:
        cloze: of the model.
        templates, labels: as of `ZeroshotConfig`.

    Raises:
        UsageError: no template, one without a gap or with several; a word that cannot stand in it.
    """

    def __init__(self, cloze: Cloze, templates: Sequence[str], labels: Mapping[str, Sequence[str]]) -> None:
        if not templates:
            raise UsageError("a template is needed, such as --template '{text} It was [MASK].'")
        self.cloze, self.verbalizer = cloze, Verbalizer.of(labels)
        self.templates = [text if fields_in(text) else f"{{text}} {text}" for text in templates]
        special = {cloze.tokenizer.tokens[one] for one in cloze.tokenizer.space.special} | set(cloze.forms)
        for word in self.verbalizer.words:
            if found := next((one for one in special if one in word), None):
                raise UsageError(f"the word {word!r} has {found!r} in it, which is no word of the data")
        self._prior = np.zeros((len(self.templates), len(self.verbalizer.words)))
        self.empty = [self._checked(template) for template in self.templates]

    def _checked(self, template: str) -> Prompt:
        """The template without data, once every word was seen to fit into it."""
        prompt = self._prompt(template, self.cloze.domain.empty, dict.fromkeys(fields_in(template), ""))
        if len(prompt.holes) != 1:
            forms = " or ".join(self.cloze.forms)
            raise UsageError(f"the template {template!r} has {len(prompt.holes)} gaps; write one {forms}")
        for word in self.verbalizer.words:
            try:
                self.cloze.put([prompt], [[word]])
            except (DataError, UsageError) as error:
                raise UsageError(f"the word {word!r} cannot stand in {template!r}: {error}") from None
        return prompt

    def _prompt(self, template: str, raw: Any, fields: Mapping[str, Any]) -> Prompt:
        written = self.cloze.domain.framed(raw, template, fields, self.cloze.forms)
        return self.cloze.domain.prompt(written, self.cloze.forms)

    @property
    def fields(self) -> set[str]:
        """Columns that the templates need."""
        return set().union(*map(fields_in, self.templates)) - {"text"}

    def log_probs(self, prompts: Sequence[Prompt]) -> Doubles:
        """(N, W) of the words in the gap of each prompt, in nats per token."""
        words = self.verbalizer.words
        gapped = self.cloze.put(
            [prompt for prompt in prompts for _ in words], [[word] for _ in prompts for word in words]
        )
        fits = [fit.log_prob / fit.units for fit in self.cloze.fits(gapped)]
        return np.array(fits, dtype=np.float64).reshape(len(prompts), len(words))

    def asked(self, records: Sequence[Record]) -> Doubles:
        """(N, T, W) of the words in each template of each record, in nats per token."""
        prompts = [
            self._prompt(template, record.raw, record.meta)
            for record in records
            for template in self.templates
        ]
        shape = len(records), len(self.templates), len(self.verbalizer.words)
        return self.log_probs(prompts).reshape(shape)

    def calibrate(self, how: Calibration, contexts: Sequence[Record]) -> None:
        """Take off, from now on, what words have anyway.

        Args:
            contexts: unlabelled records, for "contextual".
        """
        if how == "pmi":
            self._prior = self.log_probs(self.empty)
        elif how == "contextual":
            found = self.asked(contexts)
            self._prior = np.logaddexp.reduce(found, axis=0) - math.log(len(contexts))

    def calibrated(self, log_probs: Doubles) -> Doubles:
        """(N, T, W) without what the words have anyway."""
        found: Doubles = log_probs - self._prior
        return found

    def scores(self, calibrated: Doubles) -> Doubles:
        """(N, C) of the classes, the mean over templates."""
        found: Doubles = self.verbalizer.probabilities(calibrated).mean(axis=1)
        return found

    def variants(self) -> list[tuple[str, Any, Longs | None]]:
        """What else could have been asked: name, templates, words."""
        templates = [(one, number, None) for number, one in enumerate(self.templates)]
        words = [
            (", ".join(self.verbalizer.words[place] for place in own), slice(None), own)
            for own in self.verbalizer.alone()
        ]
        return [*(templates if len(templates) > 1 else ()), *words]


class ZeroshotCounts(Counts):
    """What is known of the classes so far.

    Attributes:
        table: (C, C) rows of each true class and predicted one.
        right: of each variant of the wording, how often it was right.
    """

    def __init__(self, classes: int, variants: int) -> None:
        self.table = np.zeros((classes, classes), dtype=np.int64)
        self.predicted = np.zeros(classes, dtype=np.int64)
        self.right = np.zeros(variants, dtype=np.int64)

    def restore(self, counts: Mapping[str, Any]) -> None:
        super().restore(counts)
        if counts:
            self.table = np.array(counts["table"], dtype=np.int64)
            self.predicted = np.array(counts["predicted"], dtype=np.int64)
            self.right = np.array(counts["right"], dtype=np.int64)

    def snapshot(self) -> dict[str, Any]:
        lists = {name: getattr(self, name).tolist() for name in ("table", "predicted", "right")}
        return {**super().snapshot(), **lists}


@dataclass(frozen=True, kw_only=True)
class ZeroshotResult:
    """What a classification found.

    Args:
        n: records.
        predicted: class to how many were called so.
        accuracy, interval: of the predictions, with its 95 % interval (Clopper and Pearson 1934); None where
            no true class is known, as all that follow.
        macro_f1: the mean of the classes' F1.
        majority: accuracy of the most frequent class, always.
        calibrated_random: accuracy of guesses drawn as often as each class was predicted.
        sensitivity: lowest and highest accuracy of the wordings, each alone, and of which wording.
        confusion: true class to predicted class to count.
        calibration: of the words.
        written: how the run ended.
    """

    n: int
    predicted: Mapping[str, int]
    accuracy: float | None
    interval: tuple[float, float] | None
    macro_f1: float | None
    majority: float | None
    calibrated_random: float | None
    sensitivity: Mapping[str, Any] | None
    confusion: Mapping[str, Mapping[str, int]] | None
    calibration: str
    written: Written

    def to_dict(self) -> dict[str, Any]:
        """What machines read."""
        return {key: value for key, value in asdict(self).items() if key != "written"}

    def sentence(self) -> str:
        """What a person is told."""
        told = f"{number_of(self.n, 'record')} classified (calibration {self.calibration})"
        name, most = max(self.predicted.items(), key=lambda item: item[1])
        if self.n >= FEWEST and most > ONE_CLASS * self.n:
            told += f", {most / self.n:.0%} of them {name!r}: these words may not fit this model"
        if self.accuracy is None or self.interval is None:
            return f"{told}; no true classes were given, so nothing is known of how often it is right"
        low, high = self.interval
        better = "" if low > max(self.majority or 0, self.calibrated_random or 0) else "; not clearly better"
        wording = ""
        if self.sensitivity is not None:
            wording = f"; by wording {self.sensitivity['min']:.1%} to {self.sensitivity['max']:.1%}"
        return (
            f"{told}: accuracy {self.accuracy:.1%} ({low:.1%} to {high:.1%}), macro F1 {self.macro_f1:.3f}; "
            f"always the most frequent class {self.majority:.1%}, random guesses {self.calibrated_random:.1%}"
            f"{better}{wording}"
        )


def zeroshot(config: ZeroshotConfig, stdout: TextIO, progress: Progress | None = None) -> ZeroshotResult:
    """Classify records, a row for each.

    Args:
        config: which, and how.
        stdout: where rows go when `config.out` is None.
        progress: told what happens on the way.

    Raises:
        UsageError: a request that makes no sense, see `Classifier`.
        DataError: a bad record, or one without a column that a template or `truth` needs, under `on_error`
            "raise".
        StateError: no such model, or rows that cannot be written.
    """
    config.check()
    templates, labels = _task(config)
    session = config.open()
    classifier = Classifier(Cloze(session), templates, labels)
    names = classifier.verbalizer.names
    variants = classifier.variants() if config.sensitivity else []
    keep = sorted(classifier.fields | ({config.truth} if config.truth else set()))
    config = _keeping(config, session, keep)
    contexts = _contexts(config, session)
    if config.calibration == "auto":
        config = replace(config, calibration="contextual" if contexts else "pmi")
    classifier.calibrate(config.calibration, contexts)
    counts = ZeroshotCounts(len(names), len(variants))

    def through(records: Any, problems: Problems) -> Any:
        for record in records:
            if error := _missing(record, keep, config, names):
                problems.bad(error, None)
            else:
                yield record

    def answers(batch: Batch[Encoded], problems: Problems) -> list[tuple[Record, Doubles]]:
        return one_by_one(batch, problems, lambda some: list(classifier.calibrated(classifier.asked(some))))

    def rows(found: list[tuple[Record, Doubles]]) -> list[Fields]:
        return [_row(record, own, classifier, config, counts, variants) for record, own in found]

    schema = Schema(columns=dict(COLUMNS) if config.truth else {k: COLUMNS[k] for k in [*COLUMNS][:-1]})
    written = write_rows(
        config, session, schema, through, answers, rows, stdout, counts=counts, progress=progress
    )
    result = _result(config, names, counts, variants, written)
    if config.report is not None:
        numbers = {"records": result.n, "accuracy": result.accuracy, "macro_f1": result.macro_f1}
        known = {key: float(value) for key, value in numbers.items() if value is not None}
        page = _page(config, classifier, result)
        keep_report(config, session, "zeroshot", page, config.report, known, {"templates": len(templates)})
    return result


def _task(config: ZeroshotConfig) -> tuple[Sequence[str], Mapping[str, Sequence[str]]]:
    """Templates and labels, of the options or of a file."""
    if config.task is None:
        return config.templates, config.labels
    if config.templates or config.labels:
        raise UsageError("--task names a file with templates and labels: leave --template and --label out")
    values = read_yaml(config.task)
    if unknown := next((key for key in values if key not in ("templates", "labels")), None):
        raise UsageError(
            f"{config.task}: {unknown!r} is not known{nearest(unknown, ['templates', 'labels'])}"
        )
    templates, labels = values.get("templates") or [], values.get("labels") or {}
    good = isinstance(templates, list) and isinstance(labels, dict)
    if not good or not all(isinstance(words, list) for words in labels.values()):
        raise UsageError(f"{config.task}: templates is a list, and labels has a list of words for each class")
    return [str(one) for one in templates], {str(k): [str(w) for w in own] for k, own in labels.items()}


def _keeping(config: ZeroshotConfig, session: Session, keep: Sequence[str]) -> ZeroshotConfig:
    """The request, with columns that readers shall keep beside the sequence."""
    formats = session.domain.all_formats.values()
    if not keep or not any("keep" in one.options() for one in formats):
        return config
    return replace(config, options={**config.options, "keep": tuple(keep)})


def _contexts(config: ZeroshotConfig, session: Session) -> list[Record]:
    """The first records, for contextual calibration; none where another is wanted, or these are too few."""
    if config.calibration in ("pmi", "none") or "-" in config.paths:
        return []
    read = session.reader(config.paths, format=config.format, options=config.options)
    found = list(islice(read(Problems("skip", sensitive=session.card.sensitive)), CONTEXTS))
    if len(found) >= FEWEST:
        return found
    if config.calibration == "auto":
        return []
    raise DataError(
        f"contextual calibration needs {FEWEST} inputs at least, and there are {len(found)}",
        source=", ".join(config.paths),
        remedy="use --calibration pmi",
    )


def _missing(
    record: Record, keep: Sequence[str], config: ZeroshotConfig, names: Sequence[str]
) -> DataError | None:
    """What a record lacks, if anything."""
    if (lacks := next((name for name in keep if name not in record.meta), None)) is not None:
        remedy = "name a column of the table; plain text has none"
        return DataError("no such column", source=record.source, line=record.line, field=lacks, remedy=remedy)
    if config.truth is None:
        return None
    true = str(record.meta[config.truth])
    if true in names:
        return None
    return DataError(
        f"the class {true!r} has no words",
        source=record.source,
        line=record.line,
        field=config.truth,
        remedy=f"classes are {', '.join(names)}; give it some with --label {true}=...",
    )


def _row(
    record: Record,
    calibrated: Doubles,
    classifier: Classifier,
    config: ZeroshotConfig,
    counts: ZeroshotCounts,
    variants: Sequence[tuple[str, Any, Longs | None]],
) -> Fields:
    """The row of one record, counted."""
    names, verbalizer = classifier.verbalizer.names, classifier.verbalizer
    scores = classifier.scores(calibrated[None])[0]
    best = int(scores.argmax())
    row: dict[str, Any] = {
        "id": record.id,
        "source": record.source,
        "line": record.line,
        "prediction": names[best],
        "scores": dict(zip(names, scores.tolist(), strict=True)),
    }
    counts.rows += 1
    counts.predicted[best] += 1
    if config.truth is not None:
        row["truth"] = str(record.meta[config.truth])
        true = names.index(row["truth"])
        counts.table[true, best] += 1
        for number, (_, templates, words) in enumerate(variants):
            guess = verbalizer.probabilities(np.atleast_2d(calibrated[templates]), words)
            counts.right[number] += int(guess.mean(axis=0).argmax()) == true
    return row


def _result(
    config: ZeroshotConfig,
    names: Sequence[str],
    counts: ZeroshotCounts,
    variants: Sequence[tuple[str, Any, Longs | None]],
    written: Written,
) -> ZeroshotResult:
    table, n = counts.table, int(counts.predicted.sum())
    known = config.truth is not None and bool(n)
    rate = exact_rate(int(np.trace(table)), n) if known else None
    f1 = [2 * table[c, c] / max(1, table[c].sum() + table[:, c].sum()) for c in range(len(names))]
    shares, guessed = table.sum(axis=1) / max(1, n), counts.predicted / max(1, n)
    told = zip(variants, counts.right, strict=True) if known else ()
    right = {name: int(own) / n for (name, _, _), own in told}
    spread = None
    if right:
        low, high = min(right, key=right.__getitem__), max(right, key=right.__getitem__)
        spread = {"min": right[low], "max": right[high], "worst": low, "best": high, "wordings": right}
    rows = [dict(zip(names, own, strict=True)) for own in table.tolist()]
    return ZeroshotResult(
        n=n,
        predicted=dict(zip(names, counts.predicted.tolist(), strict=True)),
        accuracy=None if rate is None else rate.value,
        interval=None if rate is None else (rate.low, rate.high),
        macro_f1=float(np.mean(f1)) if known else None,
        majority=float(shares.max()) if known else None,
        calibrated_random=float(shares @ guessed) if known else None,
        sensitivity=spread,
        confusion=dict(zip(names, rows, strict=True)) if known else None,
        calibration=config.calibration,
        written=written,
    )


def _page(config: ZeroshotConfig, classifier: Classifier, result: ZeroshotResult) -> Page:
    """The report: how often it is right, of what wording, and which classes are taken for which."""
    page = Page(
        f"Zero-shot: {config.model}", f"{number_of(result.n, 'record')}, calibration {result.calibration}"
    )
    if result.accuracy is None or result.interval is None or result.confusion is None:
        page.warnings(["No true classes were given: how often the predictions are right is not known."])
    else:
        low, high = result.interval
        floor = max(result.majority or 0.0, result.calibrated_random or 0.0)
        if low <= floor:
            page.warnings([f"The accuracy is not clearly above what needs no model ({floor:.1%})."])
        page.cards(
            {
                "accuracy": f"{result.accuracy:.1%} ({low:.1%} to {high:.1%})",
                "macro F1": result.macro_f1,
                "always the most frequent class": f"{result.majority:.1%}",
                "random guesses": f"{result.calibrated_random:.1%}",
            }
        )
        names = list(result.confusion)
        rows: list[tuple[Cell, ...]] = [
            (name, *own.values(), sum(own.values())) for name, own in result.confusion.items()
        ]
        page.table("True class (rows) and prediction", ["class", *names, "records"], rows)
    if result.sensitivity is not None:
        alone = [(name, f"{own:.1%}") for name, own in result.sensitivity["wordings"].items()]
        page.table("Each wording alone", ["wording", "accuracy"], alone)
    page.table("Predictions", ["class", "records"], list(result.predicted.items()))
    spoken = classifier.verbalizer
    words = [(word, spoken.names[own]) for word, own in zip(spoken.words, spoken.owner.tolist(), strict=True)]
    page.table("Words", ["word", "class"], words)
    page.section("Templates", "\n\n".join(classifier.templates))
    return page
