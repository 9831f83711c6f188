"""Zero-shot classification: find the class whose words fit best into the gap of a template.

`inference.classifier` computes the scores of the classes. Several templates are averaged. If the true classes
are known, a row also has the prediction of each single wording. This shows how much the result depends on the
wording.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from seqmlm.data.counts import People
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.errors import DataError, UsageError, number_of
from seqmlm.evaluation.classes import class_measures
from seqmlm.inference.classifier import Classifier, Verbalizer, read_wording
from seqmlm.inference.cloze import Cloze
from seqmlm.inference.session import Session
from seqmlm.reports.summary import Figures, Table
from seqmlm.reports.verdict import accuracy_sentence
from seqmlm.rows.file import Row
from seqmlm.tasks.task import Conclusion, Output, ReadRows, Task, TaskConfig, place, read_records

if TYPE_CHECKING:
    from seqmlm.reports.page import Page

CONTEXTS, FEWEST = 200, 20  # inputs that contextual calibration uses at most, and at least
ONE_CLASS = 0.95  # a larger share of predictions for one class gets a warning
MEASURES = ("accuracy", "interval", "macro_f1", "majority", "calibrated_random", "sensitivity", "confusion")


@dataclass(frozen=True, kw_only=True)
class ZeroshotConfig(TaskConfig):
    """Settings of `seqmlm zeroshot`.

    Args:
        templates: text with a gap and with {text} or {COLUMN} for the data; several templates are averaged. A
            template without {text} or {COLUMN} is appended to the text.
        labels: CLASS=WORD,...: a class and its words; repeatable.
        truth: COLUMN: column of the true class. With it, the accuracy of all wordings together and of each
            wording is reported.
        task: YAML file with `templates` (a list) and `labels` (class: [words]), in place of the options.
        calibration: what to subtract from a word's log-probability: pmi, contextual, none or auto. `pmi` is
            its value in the template without data, `contextual` its mean over the first 200 inputs. `auto` is
            contextual for files with at least 20 inputs, otherwise pmi.
    """

    option_fields = ("templates", "labels", "truth", *TaskConfig.option_fields)
    inputs = ("task",)

    templates: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    truth: str | None = None
    task: Path | None = None
    calibration: Literal["auto", "pmi", "contextual", "none"] = "auto"

    def check(self) -> None:
        super().check()
        if self.calibration == "contextual" and "-" in self.paths:
            raise UsageError("contextual calibration reads the first inputs twice: give a file instead of -")


class Zeroshot(Task[ZeroshotConfig, Record]):
    """Classify sequences without training: find the class whose words fit best into the gap of a template.

    The score of a class is the mean over its words. A word of several tokens has one mask per token, and its
    tokens are predicted from left to right. Scores only compare classes. They are not calibrated
    probabilities.

    Example: seqmlm zeroshot english reviews.csv --template '{text} It was [MASK].'
    --label positive=great,excellent --label negative=bad,terrible --truth label --out p.jsonl

    Example: seqmlm zeroshot english reviews.txt --template 'The review is [MASK].' --label good=good
    --label bad=bad
    """

    Config = ZeroshotConfig

    def __init__(self, config: ZeroshotConfig, session: Session) -> None:
        super().__init__(config, session)
        self.output = Output(costs=self._costs)
        templates, labels = read_wording(config.templates, config.labels, config.task)
        self.classifier = Classifier(Cloze(session), templates, Verbalizer.of(labels))
        self.calibration: str = config.calibration
        self.columns_read = sorted(self.classifier.fields | ({config.truth} if config.truth else set()))

    def records(self, problems: Problems) -> Iterable[Record]:
        """The records, with the columns that templates and the truth need."""
        tables = self.columns_read and "keep" in self.session.domain.files.options()
        options = {"keep": tuple(self.columns_read)} if tables else {}
        return read_records(self.session, self.config, problems, options)

    def items(self, records: Iterable[Record], problems: Problems) -> Iterator[Record]:
        """The records that have all columns and a class with words. The words are calibrated first.

        Raises:
            DataError: there are too few records for the requested calibration.
        """
        contexts = self._contexts()
        if self.config.calibration == "auto":
            self.calibration = "contextual" if contexts else "pmi"
        if self.calibration != "none":
            self.classifier.calibrate(contexts)
            self.session.forget()  # later results must not depend on it, as in a resumed run
        for record in records:
            if error := self._missing(record):
                problems.bad(error)
            else:
                yield record

    def _costs(self, problems: Problems) -> Iterable[float]:
        """The costs of the records, without the calibration, which would run the model."""
        return (self.cost(record) for record in self.records(problems) if self._missing(record) is None)

    def _contexts(self) -> list[Record]:
        """The first records, for contextual calibration. Empty if it is not used or there are too few.

        Raises:
            DataError: contextual calibration is requested, and there are too few records.
        """
        if self.config.calibration in ("pmi", "none") or "-" in self.config.paths:
            return []
        records = self.records(Problems("skip"))
        usable = (record for record in records if self.classifier.fields <= record.meta.keys())
        contexts = [*islice(usable, CONTEXTS)]
        if len(contexts) < FEWEST and self.config.calibration == "contextual":
            reason = f"contextual calibration needs at least {FEWEST} inputs, and there are {len(contexts)}"
            raise DataError(reason, source=", ".join(self.config.paths), remedy="use --set calibration=pmi")
        return contexts if len(contexts) >= FEWEST else []

    def _missing(self, record: Record) -> DataError | None:
        """An error that names the column or class that a record lacks, or None."""
        truth, names = self.config.truth, self.classifier.verbalizer.names
        lacks = next((name for name in self.columns_read if name not in record.meta), None)
        reason, remedy = "no such column", "give a column of the table; plain text has no columns"
        if lacks is None and truth is not None and (true := str(record.meta[truth])) not in names:
            lacks, reason = truth, f"the class {true!r} has no words"
            remedy = f"the classes are {', '.join(names)}; add words with --label {true}=..."
        if lacks is None:
            return None
        return DataError(reason, source=record.source, line=record.line, field=lacks, remedy=remedy)

    def cost(self, item: Record) -> float:
        """Forward tokens: one copy of each template with the record, for each token of a word."""
        return self.classifier.cost(self.session.tokens(item.raw))

    def rows(self, items: Sequence[Record]) -> Iterator[list[Row]]:
        """A row for each record: the best class, all scores, and the prediction of each wording."""
        log_probs, truth = self.classifier.log_probs(items), self.config.truth
        names = self.classifier.verbalizer.names
        wordings = self.classifier.wordings(log_probs) if truth else {}
        for number, fits in enumerate(self.classifier.scores(log_probs)):
            record, scores = items[number], dict(zip(names, fits.tolist(), strict=True))
            row: dict[str, Any] = {**place(record), "prediction": names[fits.argmax()], "scores": scores}
            row |= {"truth": str(record.meta[truth])} if truth else {}
            if wordings:
                row["wordings"] = {name: picks[number] for name, picks in wordings.items()}
            yield [row]

    def figures(self, rows: Iterable[Row]) -> Figures:
        """Counts of predicted classes. If `truth` is known, also the accuracy, overall and by wording."""
        names, counts, right = self.classifier.verbalizer.names, Counter[tuple[str, str]](), Counter[str]()
        for row in rows:
            counts[row.get("truth", ""), row["prediction"]] += 1
            right.update({name: answer == row["truth"] for name, answer in row.get("wordings", {}).items()})
        n, predicted = counts.total(), dict.fromkeys(names, 0)
        for (_, prediction), count in counts.items():
            predicted[prediction] += count
        figures = {"n": n, "predicted": predicted, "calibration": self.calibration, **dict.fromkeys(MEASURES)}
        if self.config.truth is not None:
            figures |= class_measures(counts, names)
        if shares := {name: count / n for name, count in right.items()}:
            worst, best = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
            spread = {"min": shares[worst], "max": shares[best], "worst": worst, "best": best}
            figures["sensitivity"] = {**spread, "wordings": shares}
        return figures

    def conclusion(self, figures: Figures, items: People, rows: ReadRows) -> Conclusion:
        text = f"{number_of(figures['n'], 'record')} classified (calibration {figures['calibration']})"
        name, count = max(figures["predicted"].items(), key=lambda pair: (isinstance(pair[1], int), pair[1]))
        if items >= FEWEST and isinstance(count, int) and count > ONE_CLASS * items:
            text += f", {count / items:.0%} of them as {name!r}: these words may not suit this model"
        if figures["accuracy"] is None:
            return Conclusion(f"{text}; accuracy unknown, because no --truth column was given")
        spread = figures["sensitivity"]
        by_wording = f"; by wording {spread['min']:.1%} to {spread['max']:.1%}" if spread else ""
        return Conclusion(f"{text}: {accuracy_sentence(figures)}{by_wording}")

    def tables(self, figures: Figures) -> Iterator[Table]:
        if confusion := figures["confusion"]:
            cells = [(name, *counts.values()) for name, counts in confusion.items()]
            yield Table("True class (rows) and prediction", ["class", *confusion], cells)
        if spread := figures["sensitivity"]:
            wording_rows = [(name, f"{accuracy:.1%}") for name, accuracy in spread["wordings"].items()]
            yield Table("Accuracy by wording", ["wording", "accuracy"], wording_rows)
        yield Table("Predictions", ["class", "records"], [*figures["predicted"].items()])

    def page(self, page: Page, rows: ReadRows, figures: Figures) -> None:
        super().page(page, rows, figures)
        words = self.classifier.verbalizer
        owners = [(word, words.names[number]) for word, number in zip(words.words, words.owner, strict=True)]
        page.table("Words", ["word", "class"], owners)
        page.section("Templates", "\n\n".join(self.classifier.templates))
