"""Predictions of a fine-tuned model: a label for each record, or for each of its units."""

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
from seqmlm.data.counts import SMALLEST, People, redacted_counts, released_count
from seqmlm.data.examples import Example, LabelSource, examples
from seqmlm.data.labels import SUBJECT, TIME, at_moments, read_moments, time_of
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.rows import read_rows
from seqmlm.data.tags import entities
from seqmlm.domains.field import past_reader
from seqmlm.engine.units import ONE_PASS
from seqmlm.errors import DataError, UsageError, number_of
from seqmlm.finetuning.cases import has_types, target
from seqmlm.finetuning.labelled import group_of
from seqmlm.finetuning.predictions import GROUP, TRUTH
from seqmlm.inference.batches import forward_tokens
from seqmlm.inference.calibrations import stored_trained_on
from seqmlm.inference.pieces import HeadCard, Piece, pieces, pieces_of_pair, unit_bounds
from seqmlm.inference.prompts import Prompts
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
"""Predictions that a report names."""

TAUGHT = "a record that the model was taught with: its prediction says little of new ones"


@dataclass(frozen=True, kw_only=True)
class PredictConfig(TaskConfig):
    """What `seqmlm predict` can be told.

    Args:
        level: of entities: entity (a row for each that is found) or unit (a row for each unit, with its tag).
        out: write the rows to this file: .jsonl, .csv, .tsv, .parquet; tags and entities also .conll, or
            .bedgraph.
        format_out: format of the rows, where the name of --out does not say it: jsonl, csv, tsv, parquet,
            conll (units and tags) or bedgraph (a class along sequences).
        positive: class of a bedgraph; default: the second of two, or the one that is not none.
        truth: COLUMN: of the true label of a record, which its row then has as `truth`, beside its `group`;
            repeatable, for several classes or values.
        labels: a table of what to predict. Of subjects, subject_id and prediction_time: from what was known
            then. Of pairs, the ids of both records, the second one in the column that --pair named.
    """

    option_fields = ("level", "truth", "format_out", *TaskConfig.option_fields)

    @classmethod
    def native(cls, domain: str | None = None) -> Mapping[str, Sequence[str]]:
        packed = [f"{one}{more}" for one in BEDGRAPH for more in PACKED]
        return {"conll": (".conll",), "bedgraph": (*BEDGRAPH, *packed)}

    inputs = ("labels",)

    level: Literal["entity", "unit"] = "entity"
    positive: str | None = None
    truth: tuple[str, ...] = ()
    labels: Path | None = None


class Predict(Task[PredictConfig, Record]):
    """Predict what a fine-tuned model has learnt: classes, values, tags of units, or entities.

    A row has the label, how probable it is, and the probabilities of all classes; of tags there is a row for
    each unit, of entities one for each that is found. Probabilities are calibrated on the validation data of
    the fine-tuning (temperature scaling).

    Example: seqmlm predict reviews-sentiment new.csv --out predictions.parquet
    """

    Config = PredictConfig
    requires = Requirements(labels="learnt")

    def __init__(self, config: PredictConfig, session: Session) -> None:
        from seqmlm.inference.labeller import Labeller

        super().__init__(config, session)
        formats = config.native()
        writers = {"conll": conll, "bedgraph": self._bedgraph}
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
            raise UsageError(f"{self.native} is of tags and entities; the model predicts of records")
        if config.truth and self.card.of_parts:
            raise UsageError("--truth is of records; of units a fine-tuning's --test has figures")
        self.classes = self._positive() if self.native == "bedgraph" else []
        self.problems = Problems()

    def _positive(self) -> list[str]:
        """The outputs that a bedgraph adds up: of an entity its beginning and its inside."""
        entities = self.card.kind == "entities"
        names = {name: name.partition("-")[2] if entities else name for name in self.card.names}
        known = sorted({*names.values()} - {"", "none"})
        usual = known[0] if len(known) == 1 else known[1] if len(known) == 2 and not entities else None
        chosen = self.config.positive or usual
        if chosen not in known:
            raise UsageError(f"a bedgraph is of one class: --set positive=NAME, of {', '.join(known[:20])}")
        return [name for name, kind in names.items() if kind == chosen]

    def _bedgraph(self, rows: Iterator[Row]) -> Iterable[str]:
        out = self.config.out
        packed = out is not None and ending(out).endswith(PACKED)
        return bedgraph(rows, self.classes, self.classes[0].removeprefix("B-"), indexed=packed)

    def records(self, problems: Problems) -> Iterable[Record]:
        """What is read, with the columns of the other sequence of pairs and of the truth."""
        config = self.config
        own = tuple(one for one in (*config.truth, self.card.pair) if one and config.labels is None)
        if not own:
            return super().records(problems)
        asked = Labelling(labels=own, format=config.format, options=config.options)
        return labelled_records(self.session, asked, config.paths, problems)

    def items(self, records: Iterable[Record], problems: Problems) -> Iterator[Record]:
        """The records that are asked about; those that taught the model are counted."""
        self.problems, identity = problems, self.session.domain.keys.identity
        taught = stored_trained_on(Path(self.session.model.path))
        for record in self._asked(records, problems):
            if taught is not None and identity(record) in taught:
                problems.note(TAUGHT, source=record.source, line=record.line)
            yield record

    def _asked(self, records: Iterable[Record], problems: Problems) -> Iterable[Record]:
        """The records, each as it was known at its times, with its others and with its truth."""
        config, pair = self.config, self.card.pair
        if self.native == "bedgraph":
            records = self._distinct(records, problems)
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
        return self._completed(examples(records, problems, source), problems)

    def _distinct(self, records: Iterable[Record], problems: Problems) -> Iterator[Record]:
        """The records but those that a bedGraph, which has each place of a name once, has no room for.

        Parts of a sequence may overlap; a part of another one of the same name begins with other letters.
        """
        first: dict[str, tuple[Any, str]] = {}
        others = set[tuple[str, str, int]]()  # of which the first part showed what they are
        for record in records:
            at, raw = self._place(record, 0, 0), str(record.raw)
            name, begin = at.get("document", record.id), (at.get("document_start"), record.meta.get("strand"))
            where, letters = first.setdefault(name, (begin, raw))
            reason = "a name with white space, which a bedGraph cannot have" if name.split() != [name] else ""
            part = begin[0] is not None and (raw.startswith(letters) or letters.startswith(raw))
            if begin == where and raw != letters and not part:
                others.add((name, record.source, record.line))
            if (name, record.source, record.line) in others:
                reason = "a name that another sequence has, of which a bedGraph has one"
            if not reason:
                yield record
                continue
            remedy = "give it another name, or write the rows with --level unit to a .jsonl"
            problems.bad(DataError(reason, source=record.source, line=record.line, remedy=remedy), raw)

    def _completed(self, found: Iterable[Example], problems: Problems) -> Iterator[Record]:
        """Records with the other one of a pair, and their true labels."""
        for one in found:
            more: dict[str, Any] = {} if one.second is None else {str(self.card.pair): one.second}
            if self.config.truth:
                more |= {TRUTH: one.label, GROUP: group_of(self.session, one)}
                try:
                    target(self.card, one.label, problems.sensitive)
                except DataError as error:
                    problems.bad(problems.located(error, one.record), str(one.record.raw))
                    continue
            yield replace(one.record, meta={**one.record.meta, **more})

    def cost(self, item: Record) -> float:
        """One pass over the record, the other one of its pair or the words of its prompt, in windows."""
        tokens, card = self.session.tokens(item.raw), self.card
        if card.pair is not None:
            with suppress(DataError):  # an item without the other one is refused with its row
                tokens += self.session.tokens(self._second(item, card.pair))
        return forward_tokens(self.session.model, ONE_PASS)(tokens)

    def rows(self, items: Sequence[Record]) -> Iterator[list[Row]]:
        """Rows of each record."""
        tokenizer, card = self.session.tokenizer, self.card
        found: list[list[Piece]] = []
        bounds: list[Any] = []
        for record, encoding in zip(items, tokenizer.encode_batch([one.raw for one in items]), strict=True):
            own = None
            if card.of_parts:
                words = record.meta.get("spans") if "words" in record.meta else None
                own = unit_bounds(encoding) if words is None else np.array([w for w in words if w], np.int32)
            if card.pair is not None:
                other = tokenizer.encode(self._second(record, card.pair))
                where = pieces_of_pair(encoding, other, tokenizer.space, card, has_types(self.session))
            elif self.prompts is not None:
                where = self.prompts.pieces(record)
            else:
                where = pieces(encoding, tokenizer.space, card, own)[0]
            found.append(where)
            bounds.append(own)
        counts = [1 if own is None else len(own) for own in bounds]
        for record, own, outputs in zip(items, bounds, self.labeller.outputs(found, counts), strict=True):
            told = self.labeller.probabilities(outputs)
            if own is None:
                yield [self._row(record, told[0])]
            else:  # what is shown beside a record is another one's
                first, stop = record.meta.get("own", (0, math.inf))
                parts = self._parts(record, own, outputs, told)
                yield [row for row in parts if first <= row["start"] < stop]

    def _second(self, record: Record, pair: str) -> Any:
        second = record.meta.get(pair)
        if isinstance(second, Record):
            return second.raw
        if not second:
            remedy = "fill it in; pairs of ids stand in a table: --set labels=FILE"
            raise DataError("a pair with an empty side", field=pair, remedy=remedy)
        return self.session.domain.text.of_text(str(second), {**self.config.options, **record.meta})

    def _row(self, record: Record, told: Any) -> Row:
        names, values = self.card.names, [round(float(one), 6) for one in told]
        of, where = dict(zip(names, values, strict=True)), {**place(record), **time_of(record)}
        if (truth := record.meta.get(TRUTH)) is not None and self.config.truth:
            where[TRUTH] = truth[0] if self.card.kind == "value" and len(truth) == 1 else truth
            where[GROUP] = record.meta[GROUP]
        if isinstance(second := record.meta.get(self.card.pair or ""), Record):
            where["second"] = second.id
        if self.card.kind == "value":
            return {**where, "prediction": values[0] if len(values) == 1 else of}
        if self.card.kind == "multilabel":
            return {**where, "prediction": [name for name in names if of[name] >= 0.5], "p": of}
        best = names[int(told.argmax())]
        return {**where, "prediction": best, "probability": of[best], "p": of}

    def _parts(self, record: Record, bounds: Any, outputs: Any, told: Any) -> list[Row]:
        names = self.card.names
        kept = ~np.isnan(outputs[:, 0])
        silent = [self._place(record, a, b) for a, b in bounds[~kept].tolist()]
        self.problems.note(
            "a unit without a token, of which nothing is predicted", len(silent), source=record.source
        )
        bounds, told = bounds[kept], told[kept]
        where = [self._place(record, a, b) for a, b in bounds.tolist()]
        if self.card.kind == "tags":
            tags = [names[one] for one in told.argmax(1)]
        else:
            tags = self.labeller.chain(outputs[kept])
        if self.card.kind == "entities" and not self.units:
            # That a unit begins an entity of a kind, or is inside one, is one answer.
            kinds = np.array([name.partition("-")[2] for name in names])
            return [
                {
                    **self._place(record, where[first]["start"], where[end - 1]["end"]),
                    "prediction": kind,
                    "probability": round(float(told[first:end, kinds == kind].sum(1).min()), 6),
                }
                for first, end, kind in entities(tags)[0]
            ]
        sure = [round(float(own[names.index(tag)]), 6) for own, tag in zip(told, tags, strict=True)]
        rows: list[Row] = [
            {**at, "prediction": tag, "probability": p, "p": dict(zip(names, map(float, own), strict=True))}
            for at, tag, p, own in zip(where, tags, sure, told, strict=True)
        ]
        if self.native == "conll":  # its lines are those of the input
            rows += [{**at, "prediction": None} for at in silent]
        return sorted(rows, key=lambda row: row["start"])

    def _place(self, record: Record, start: int, end: int) -> Row:
        """A part, and where it is in the document that the record was cut out of."""
        found = {**place(record), "start": start, "end": end, "unit": str(record.raw)[start:end]}
        if record.document is None or "start" not in record.meta:
            return found
        begin = int(record.meta["start"])
        if record.meta.get("strand") == "-":
            start, end = len(record.raw) - end, len(record.raw) - start
        there = {"document": record.document, "document_start": begin + start, "document_end": begin + end}
        return {**found, **there}

    def figures(self, rows: Iterable[Row]) -> Figures:
        """How many were called what; of values their mean and range."""
        counts, values, several = Counter[str](), [], []
        for row in rows:
            said = row["prediction"]
            if isinstance(said, float):
                values.append(said)
            elif isinstance(said, Mapping):
                several.append(list(said.values()))
            elif isinstance(said, list):
                counts.update(said)
            elif isinstance(said, str):
                counts[said] += 1
        if several:
            means = np.mean(several, axis=0).tolist()
            few = self.session.card.sensitive and len(several) < SMALLEST
            told = {} if few else {"means": dict(zip(self.card.names, means, strict=True))}
            return {"n": len(several), **told}
        if values:
            found: Figures = {"n": len(values), "mean": float(np.mean(values))}
            if self.session.card.sensitive:  # the least and the largest are each of one person
                return found if len(values) >= SMALLEST else {"n": len(values)}
            return {**found, "min": min(values), "max": max(values)}
        own = dict(counts.most_common())
        hidden = self.session.card.sensitive
        return {"n": counts.total(), "predicted": redacted_counts(own, parts=True) if hidden else own}

    def conclusion(self, figures: Figures, items: People, rows: ReadRows) -> Conclusion:
        shown = released_count(items)
        told = f"{number_of(shown, 'record')}: {self.card.label}"
        if "means" in figures:
            means = ", ".join(f"{n} {v:.4g}" for n, v in figures["means"].items())
            return Conclusion(f"{told}; on average {means}")
        if "mean" in figures:
            told += f" {figures['mean']:.4g} on average"
            return Conclusion(
                told + (f" ({figures['min']:.4g} to {figures['max']:.4g})" if "min" in figures else "")
            )
        if "predicted" not in figures:
            return Conclusion(told)
        shares = [
            f"{name} for {count:,}"
            for name, count in [*figures["predicted"].items()][:5]
            if isinstance(count, int)
        ]
        hidden = any(isinstance(count, str) for count in figures["predicted"].values())
        nothing = "counts below 11 are not shown" if hidden else "nothing found"
        return Conclusion(f"{told} {', '.join(shares) or nothing}")

    def page(self, page: Page, rows: ReadRows, figures: Figures) -> None:
        super().page(page, rows, figures)
        if self.session.card.sensitive:
            return
        sure = (row for row in rows() if isinstance(row["prediction"], str) and "probability" in row)
        least = nsmallest(LEAST_SURE, sure, key=lambda row: row["probability"])
        columns = ("id", "unit", "prediction", "probability")
        named = [name for name in columns if any(name in row for row in least)]
        if least:
            page.table("Least sure", named, [[row.get(name) for name in named] for row in least])

    def tables(self, figures: Figures) -> Iterator[Table]:
        if predicted := figures.get("predicted"):
            yield Table("Predictions", [self.card.label, "how often"], [*predicted.items()])
