"""`seqmlm predict`: a fine-tuned model predicts a label for each record, or for each of its units."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import nsmallest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from seqmlm.data.compressed import PACKED, ending
from seqmlm.data.counts import People, released_counts, released_extremes
from seqmlm.data.examples import Example, LabelSource, examples
from seqmlm.data.labels import SUBJECT, TIME, at_moments, read_moments, time_of
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.rows import read_rows
from seqmlm.data.tags import entities
from seqmlm.domains.refusals import past_reader
from seqmlm.engine.units import ONE_PASS
from seqmlm.errors import DataError, UsageError, number_of
from seqmlm.finetuning.cases import has_types, target
from seqmlm.finetuning.labelled import group_of
from seqmlm.finetuning.predictions import GROUP, TRUTH
from seqmlm.inference.calibrations import stored_trained_on
from seqmlm.inference.pieces import HeadCard, Piece, pieces, pieces_of_pair, unit_bounds
from seqmlm.inference.prompts import Prompts
from seqmlm.inference.record_batches import forward_tokens
from seqmlm.inference.session import Session
from seqmlm.reports.summary import Figures, Table
from seqmlm.rows.file import Row
from seqmlm.rows.tracks import BEDGRAPH, bedgraph, conll
from seqmlm.tasks.columns import Labelling, labelled_records
from seqmlm.tasks.task import (
    Conclusion,
    NativeFormat,
    Output,
    ReadRows,
    Requirements,
    Task,
    TaskConfig,
    native_format,
    place,
)

if TYPE_CHECKING:
    from seqmlm.reports.page import Page

LEAST_SURE = 50
"""The number of predictions that a report lists."""

TAUGHT = "a record from the training data: the quality of its prediction says little about new records"


@dataclass(frozen=True, kw_only=True)
class PredictConfig(TaskConfig):
    """Settings of `seqmlm predict`.

    Args:
        level: rows for entities: entity (a row for each entity) or unit (a row for each unit, with its tag).
        out: write the rows to this file: .jsonl, .csv, .tsv or .parquet. Tags and entities can also be
            written to .conll or .bedgraph.
        format_out: format of the rows, if the name of --out does not show it: jsonl, csv, tsv, parquet, conll
            or bedgraph. The format conll has units and tags, and bedgraph has one class along sequences.
        positive: the class in a bedgraph. Default: the second of two classes, or the one that is not none.
        truth: COLUMN: the column with the true label of a record. Rows then have the columns `truth` and
            `group`. Repeatable, for several classes or values.
        labels: a table of the predictions to make. For subjects, it has subject_id and prediction_time, and
            predictions use only earlier events. For pairs, it has the ids of both records. The second id is
            in the column that --pair named.
    """

    option_fields = ("level", "truth", "format_out", *TaskConfig.option_fields)

    @classmethod
    def native(cls, domain: str | None = None) -> Mapping[str, Sequence[str]]:
        packed = [f"{suffix}{compression}" for suffix in BEDGRAPH for compression in PACKED]
        return {"conll": (".conll",), "bedgraph": (*BEDGRAPH, *packed)}

    inputs = ("labels",)

    level: Literal["entity", "unit"] = "entity"
    positive: str | None = None
    truth: tuple[str, ...] = ()
    labels: Path | None = None


class Predict(Task[PredictConfig, Record]):
    """Predict labels with a fine-tuned model: classes, values, tags of units, or entities.

    A row has the label, its probability, and the probabilities of all classes. Tags have a row for each unit,
    and entities have a row for each entity. Probabilities are calibrated on the validation data of the
    fine-tuning (temperature scaling).

    Example: seqmlm predict reviews-sentiment new.csv --out predictions.parquet
    """

    Config = PredictConfig
    requires = Requirements(labels="learnt")

    def __init__(self, config: PredictConfig, session: Session) -> None:
        from seqmlm.inference.labeller import Labeller

        super().__init__(config, session)
        formats = config.native()
        writers = {"conll": conll, "bedgraph": self._bedgraph_lines}
        self.native = native_format(config, formats)
        self.output = Output(
            native={name: NativeFormat(endings, writers[name]) for name, endings in formats.items()},
            caution=frozenset({TAUGHT}),
        )
        self.card = HeadCard.of(session.model)
        self.prompts = Prompts(session, self.card) if self.card.pool == "prompt" else None
        self.labeller = Labeller.load(session.model, session.conditionals())
        self.units = config.level == "unit" or self.native is not None
        if self.native is not None and not self.card.of_parts:
            raise UsageError(
                f"{self.native} is for tags and entities; this model predicts labels of whole records"
            )
        if config.truth and self.card.of_parts:
            raise UsageError("--truth is for labels of records; for units, use seqmlm finetune --test")
        self.classes = self._positive_outputs() if self.native == "bedgraph" else []
        self.problems = Problems()

    def _positive_outputs(self) -> list[str]:
        """The outputs that a bedgraph adds up. For an entity, these are its beginning and its inside."""
        entities = self.card.kind == "entities"
        names = {name: name.partition("-")[2] if entities else name for name in self.card.names}
        classes = sorted({*names.values()} - {"", "none"})
        has_default = len(classes) == 1 or (len(classes) == 2 and not entities)
        chosen = self.config.positive or (classes[-1] if has_default else None)
        if chosen not in classes:
            raise UsageError(f"a bedgraph has one class: --set positive=NAME, from {', '.join(classes[:20])}")
        return [name for name, kind in names.items() if kind == chosen]

    def _bedgraph_lines(self, rows: Iterator[Row]) -> Iterable[str]:
        out = self.config.out
        packed = out is not None and ending(out).endswith(PACKED)
        return bedgraph(rows, self.classes, self.classes[0].removeprefix("B-"), indexed=packed)

    def records(self, problems: Problems) -> Iterable[Record]:
        """The records, with the columns for the second sequence of pairs and for the truth."""
        config = self.config
        columns = tuple(column for column in (*config.truth, self.card.pair) if column)
        if not columns or config.labels is not None:
            return super().records(problems)
        labelling = Labelling(labels=columns, format=config.format, options=config.options)
        return labelled_records(self.session, labelling, config.paths, problems)

    def items(self, records: Iterable[Record], problems: Problems) -> Iterator[Record]:
        """The records to predict. Records that trained the model are counted."""
        self.problems, identity = problems, self.session.domain.keys.identity
        taught = stored_trained_on(Path(self.session.model.path))
        for record in self._records_to_predict(records, problems):
            if taught is not None and identity(record) in taught:
                problems.note(TAUGHT, source=record.source, line=record.line)
            yield record

    def _records_to_predict(self, records: Iterable[Record], problems: Problems) -> Iterable[Record]:
        """The records, cut at their prediction times, with the second sequence of pairs and the truth."""
        config, pair = self.config, self.card.pair
        if self.native == "bedgraph":
            records = self._unique_records(records, problems)
        file, until = (
            None if config.labels is None else str(config.labels),
            past_reader(self.session.domain),
        )
        if not config.truth and file is None:
            return records
        if not config.truth and pair is None:
            if not {SUBJECT, TIME} <= next(read_rows(str(file)), (0, {}))[1].keys():
                remedy = "name its column of true labels with --truth, or leave labels out"
                raise DataError(f"no {SUBJECT} and {TIME} to predict at", source=file, remedy=remedy)
            moments = read_moments(read_rows(str(file), problems), str(file), problems)
            return (record for record, _ in at_moments(records, moments, str(file), until, problems))
        source = LabelSource(
            columns=config.truth or (str(pair),),
            numeric=self.card.kind == "value" and bool(config.truth),
            labels=file,
            pair=None if file is None else pair,
            until=until,
        )
        return self._labelled_records(examples(records, problems, source), problems)

    def _unique_records(self, records: Iterable[Record], problems: Problems) -> Iterator[Record]:
        """The records without those that a bedGraph cannot have. It has each position of a name once.

        Parts of one sequence may overlap. A part with the same name that begins with other letters is from
        another sequence.
        """
        first: dict[str, tuple[Any, str]] = {}
        ambiguous = set[tuple[str, str, int]]()  # names, files and lines of records from another sequence
        for record in records:
            location, raw = self._part_location(record, 0, 0), str(record.raw)
            name = location.get("document", record.id)
            begin = (location.get("document_start"), record.meta.get("strand"))
            where, letters = first.setdefault(name, (begin, raw))
            reason = "a name with white space, which a bedGraph cannot have" if name.split() != [name] else ""
            part = begin[0] is not None and (raw.startswith(letters) or letters.startswith(raw))
            if begin == where and raw != letters and not part:
                ambiguous.add((name, record.source, record.line))
            if (name, record.source, record.line) in ambiguous:
                reason = "a name that two sequences share, which a bedGraph cannot tell apart"
            if not reason:
                yield record
                continue
            remedy = "give it another name, or write the rows with --level unit to a .jsonl"
            problems.bad(DataError(reason, source=record.source, line=record.line, remedy=remedy), raw)

    def _labelled_records(self, examples: Iterable[Example], problems: Problems) -> Iterator[Record]:
        """Records with the second sequence of their pair and with their true labels."""
        for example in examples:
            fields: dict[str, Any] = {} if example.second is None else {str(self.card.pair): example.second}
            if self.config.truth:
                fields |= {TRUTH: example.label, GROUP: group_of(self.session, example)}
                try:
                    target(self.card, example.label, problems)
                except DataError as error:
                    problems.bad(problems.located(error, example.record), str(example.record.raw))
                    continue
            yield replace(example.record, meta={**example.record.meta, **fields})

    def cost(self, item: Record) -> float:
        """One pass over the windows of the record, including the second sequence of a pair."""
        tokens, card = self.session.tokens(item.raw), self.card
        if card.pair is not None:
            with suppress(DataError):  # an item without its second sequence is refused with its row
                tokens += self.session.tokens(self._second_sequence(item, card.pair))
        return forward_tokens(self.session.model, ONE_PASS)(tokens)

    def rows(self, items: Sequence[Record]) -> Iterator[list[Row]]:
        """The rows of each record."""
        tokenizer, card = self.session.tokenizer, self.card
        windows: list[list[Piece]] = []
        bounds: list[Any] = []
        encodings = tokenizer.encode_batch([record.raw for record in items])
        for record, encoding in zip(items, encodings, strict=True):
            units = None
            if card.of_parts:
                words = record.meta.get("spans") if "words" in record.meta else None
                units = (
                    unit_bounds(encoding) if words is None else np.array([w for w in words if w], np.int32)
                )
            if card.pair is not None:
                second = tokenizer.encode(self._second_sequence(record, card.pair))
                where = pieces_of_pair(encoding, second, tokenizer.space, card, has_types(self.session))
            elif self.prompts is not None:
                where = self.prompts.pieces(record)
            else:
                where = pieces(encoding, tokenizer.space, card, units)[0]
            windows.append(where)
            bounds.append(units)
        counts = [1 if units is None else len(units) for units in bounds]
        logits = self.labeller.outputs(windows, counts)
        for record, units, outputs in zip(items, bounds, logits, strict=True):
            probabilities = self.labeller.probabilities(outputs)
            if units is None:
                yield [self._row(record, probabilities[0])]
            else:  # units that are shown around a record belong to another record
                first, stop = record.meta.get("own", (0, math.inf))
                parts = self._part_rows(record, units, outputs, probabilities)
                yield [row for row in parts if first <= row["start"] < stop]

    def _second_sequence(self, record: Record, pair: str) -> Any:
        """The raw second sequence of a pair.

        Raises:
            DataError: the record has no second sequence.
        """
        second = record.meta.get(pair)
        if isinstance(second, Record):
            return second.raw
        if not second:
            remedy = "fill it in; for pairs of ids, give a table: --set labels=FILE"
            raise DataError("a pair with an empty side", field=pair, remedy=remedy)
        return self.session.domain.text.of_text(str(second), {**self.config.options, **record.meta})

    def _row(self, record: Record, probabilities: Any) -> Row:
        """The row of a record, with the prediction for the whole record."""
        names, values = self.card.names, [round(float(number), 6) for number in probabilities]
        by_name, where = dict(zip(names, values, strict=True)), {**place(record), **time_of(record)}
        if (truth := record.meta.get(TRUTH)) is not None and self.config.truth:
            where[TRUTH] = truth[0] if self.card.kind == "value" and len(truth) == 1 else truth
            where[GROUP] = record.meta[GROUP]
        if isinstance(second := record.meta.get(self.card.pair or ""), Record):
            where["second"] = second.id
        if self.card.kind == "value":
            return {**where, "prediction": values[0] if len(values) == 1 else by_name}
        if self.card.kind == "multilabel":
            return {**where, "prediction": [name for name in names if by_name[name] >= 0.5], "p": by_name}
        best = names[int(probabilities.argmax())]
        return {**where, "prediction": best, "probability": by_name[best], "p": by_name}

    def _part_rows(self, record: Record, bounds: Any, outputs: Any, probabilities: Any) -> list[Row]:
        """Rows of the units of a record, or of the entities in it."""
        names = self.card.names
        has_token = ~np.isnan(outputs[:, 0])
        silent = [self._part_location(record, a, b) for a, b in bounds[~has_token].tolist()]
        self.problems.note(
            "a unit without a token, which gets no prediction", len(silent), source=record.source
        )
        bounds, probabilities = bounds[has_token], probabilities[has_token]
        where = [self._part_location(record, a, b) for a, b in bounds.tolist()]
        if self.card.kind == "tags":
            tags = [names[index] for index in probabilities.argmax(1)]
        else:
            tags = self.labeller.chain(outputs[has_token])
        if self.card.kind == "entities" and not self.units:
            # The probabilities of beginning an entity and of being inside one are added up.
            kinds = np.array([name.partition("-")[2] for name in names])
            return [
                {
                    **self._part_location(record, where[first]["start"], where[end - 1]["end"]),
                    "prediction": kind,
                    "probability": round(float(probabilities[first:end, kinds == kind].sum(1).min()), 6),
                }
                for first, end, kind in entities(tags)[0]
            ]
        rows: list[Row] = []
        for at, tag, of_unit in zip(where, tags, probabilities, strict=True):
            by_name = dict(zip(names, map(float, of_unit), strict=True))
            rows.append({**at, "prediction": tag, "probability": round(by_name[tag], 6), "p": by_name})
        if self.native == "conll":  # its lines are those of the input
            rows += [{**at, "prediction": None} for at in silent]
        return sorted(rows, key=lambda row: row["start"])

    def _part_location(self, record: Record, start: int, end: int) -> Row:
        """The location of a part in its record, and in the document that the record is a part of."""
        location = {**place(record), "start": start, "end": end, "unit": str(record.raw)[start:end]}
        if record.document is None or "start" not in record.meta:
            return location
        begin = int(record.meta["start"])
        if record.meta.get("strand") == "-":
            start, end = len(record.raw) - end, len(record.raw) - start
        there = {"document": record.document, "document_start": begin + start, "document_end": begin + end}
        return {**location, **there}

    def figures(self, rows: Iterable[Row]) -> Figures:
        """The number of predictions of each class. For values, their mean and range."""
        counts, values, several = Counter[str](), [], []
        for row in rows:
            prediction = row["prediction"]
            if isinstance(prediction, float):
                values.append(prediction)
            elif isinstance(prediction, Mapping):
                several.append(list(prediction.values()))
            elif isinstance(prediction, list):
                counts.update(prediction)
            elif isinstance(prediction, str):
                counts[prediction] += 1
        if several:
            means = np.mean(several, axis=0).tolist()
            few = People(len(several)).withheld
            average = {} if few else {"means": dict(zip(self.card.names, means, strict=True))}
            return {"n": len(several), **average}
        if values:
            if People(len(values)).withheld:
                return {"n": len(values)}
            return {"n": len(values), "mean": float(np.mean(values)), **released_extremes(values)}
        class_counts = dict(counts.most_common())
        return {"n": counts.total(), "predicted": released_counts(class_counts, parts=True)}

    def conclusion(self, figures: Figures, items: People, rows: ReadRows) -> Conclusion:
        lead = f"{number_of(items, 'record')}: {self.card.label}"
        if "means" in figures:
            means = ", ".join(f"{n} {v:.4g}" for n, v in figures["means"].items())
            return Conclusion(f"{lead}; on average {means}")
        if "mean" in figures:
            lead += f" {figures['mean']:.4g} on average"
            return Conclusion(
                lead + (f" ({figures['min']:.4g} to {figures['max']:.4g})" if "min" in figures else "")
            )
        if "predicted" not in figures:
            return Conclusion(lead)
        shares = [
            f"{name} for {count:,}"
            for name, count in [*figures["predicted"].items()][:5]
            if isinstance(count, int)
        ]
        hidden = any(isinstance(count, str) for count in figures["predicted"].values())
        nothing = "counts below 11 are not shown" if hidden else "nothing found"
        return Conclusion(f"{lead} {', '.join(shares) or nothing}")

    def page(self, page: Page, rows: ReadRows, figures: Figures) -> None:
        super().page(page, rows, figures)
        if not page.draws_records:
            return
        sure = (row for row in rows() if isinstance(row["prediction"], str) and "probability" in row)
        least_sure = nsmallest(LEAST_SURE, sure, key=lambda row: row["probability"])
        columns = ("id", "unit", "prediction", "probability")
        named = [name for name in columns if any(name in row for row in least_sure)]
        if least_sure:
            page.table("Least sure", named, [[row.get(name) for name in named] for row in least_sure])

    def tables(self, figures: Figures) -> Iterator[Table]:
        if predicted := figures.get("predicted"):
            yield Table("Predictions", [self.card.label, "how often"], [*predicted.items()])
