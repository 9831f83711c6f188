"""Predictions of a fine-tuned model: a label for each record, or for each of its units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from seqmlm.data.examples import LabelSource, examples
from seqmlm.data.labels import at_moments, read_moments, time_of
from seqmlm.data.privacy import SMALLEST, redacted_count, redacted_counts
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.rows import read_rows
from seqmlm.data.tags import entities
from seqmlm.errors import DataError, number_of
from seqmlm.inference.labeller import HeadCard, Labeller, Piece, pieces, pieces_of_pair, unit_bounds
from seqmlm.inference.prompts import Prompts
from seqmlm.inference.session import Session
from seqmlm.rows.file import Row
from seqmlm.tasks.cases import has_types
from seqmlm.tasks.task import Figures, Table, Task, TaskConfig, place, read


@dataclass(frozen=True, kw_only=True)
class PredictConfig(TaskConfig):
    """What `seqmlm predict` can be told.

    Args:
        level: of entities: entity (a row for each that is found) or unit (a row for each unit, with its tag).
        labels: a table of what to predict. Of subjects, subject_id and prediction_time: from what was known
            then. Of pairs, the ids of both records, the second one in the column that --pair named.
    """

    shown = ("level", *TaskConfig.shown)

    inputs = ("labels",)

    level: Literal["entity", "unit"] = "entity"
    labels: Path | None = None


class Predict(Task[PredictConfig, Record]):
    """Predict what a fine-tuned model has learnt: classes, values, tags of units, or entities.

    A row has the label, how probable it is, and the probabilities of all classes; of tags there is a row for
    each unit, of entities one for each that is found. Probabilities are calibrated on the validation data of
    the fine-tuning (temperature scaling).

    Example: seqmlm predict reviews-sentiment new.csv --out predictions.parquet
    """

    Config = PredictConfig
    learnt = True

    def __init__(self, config: PredictConfig, session: Session) -> None:
        super().__init__(config, session)
        self.card = HeadCard.of(session.model)
        self.prompts = Prompts(session, self.card) if self.card.pool == "prompt" else None
        self.labeller = Labeller.load(session.model, session.conditionals())

    def records(self, problems: Problems) -> Iterable[Record]:
        """What is read, with the other sequence of pairs."""
        beside = self.card.pair is not None and self.config.labels is None
        return read(self.session, self.config, problems, {"keep": (self.card.pair,)} if beside else {})

    def items(self, records: Iterable[Record], problems: Problems) -> Iterable[Record]:
        """The records, each as it was known at its times, or with its others, where a table names these."""
        if self.config.labels is None:
            return records
        file, pair = str(self.config.labels), self.card.pair
        if pair is not None:
            pairs = examples(records, problems, LabelSource(columns=(pair,), labels=file, pair=pair))
            return (replace(one.record, meta={**one.record.meta, pair: one.second}) for one in pairs)
        moments = read_moments(read_rows(file, problems), file, problems)
        asked = at_moments(records, moments, file, self.session.domain.until, problems)
        return (record for record, _ in asked)

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
            yield [self._row(record, told[0])] if own is None else self._parts(record, own, outputs, told)

    def _second(self, record: Record, pair: str) -> Any:
        """The other sequence of a pair."""
        second = record.meta.get(pair)
        if isinstance(second, Record):
            return second.raw
        if not second:
            remedy = "fill it in; pairs of ids stand in a table: --set labels=FILE"
            raise DataError("a pair with an empty side", field=pair, remedy=remedy)
        return self.session.domain.of_text(str(second), {**self.config.options, **record.meta})

    def _row(self, record: Record, told: Any) -> Row:
        names, values = self.card.names, [round(float(one), 6) for one in told]
        of, where = dict(zip(names, values, strict=True)), {**place(record), **time_of(record)}
        if isinstance(second := record.meta.get(self.card.pair or ""), Record):
            where["second"] = second.id
        if self.card.kind == "value":
            return {**where, "prediction": values[0] if len(values) == 1 else of}
        if self.card.kind == "multilabel":
            return {**where, "prediction": [name for name in names if of[name] >= 0.5], "p": of}
        best = names[int(told.argmax())]
        return {**where, "prediction": best, "probability": of[best], "p": of}

    def _parts(self, record: Record, bounds: Any, outputs: Any, told: Any) -> list[Row]:
        text, names = str(record.raw), self.card.names
        kept = ~np.isnan(outputs[:, 0])
        bounds, told = bounds[kept], told[kept]
        where = [{"start": a, "end": b, "unit": text[a:b]} for a, b in bounds.tolist()]
        if self.card.kind == "tags":
            tags = [names[one] for one in told.argmax(1)]
        else:
            tags = self.labeller.chain(outputs[kept])
        sure = [round(float(own[names.index(tag)]), 6) for own, tag in zip(told, tags, strict=True)]
        if self.card.kind == "entities" and self.config.level == "entity":
            return [
                {
                    **place(record),
                    "start": where[first]["start"],
                    "end": where[end - 1]["end"],
                    "unit": text[where[first]["start"] : where[end - 1]["end"]],
                    "prediction": kind,
                    "probability": min(sure[first:end]),
                }
                for first, end, kind in entities(tags)[0]
            ]
        return [
            {
                **place(record),
                **at,
                "prediction": tag,
                "probability": p,
                "p": dict(zip(names, map(float, own), strict=True)),
            }
            for at, tag, p, own in zip(where, tags, sure, told, strict=True)
        ]

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

    def sentence(self, figures: Figures, items: int) -> str:
        shown = redacted_count(items) if self.session.card.sensitive else items
        told = f"{number_of(shown, 'record')}: {self.card.label}"
        if "means" in figures:
            return f"{told}; on average {', '.join(f'{n} {v:.4g}' for n, v in figures['means'].items())}"
        if "mean" in figures:
            told += f" {figures['mean']:.4g} on average"
            return told + (f" ({figures['min']:.4g} to {figures['max']:.4g})" if "min" in figures else "")
        if "predicted" not in figures:
            return told
        shares = [
            f"{name} {count:,}"
            for name, count in [*figures["predicted"].items()][:5]
            if isinstance(count, int)
        ]
        hidden = any(isinstance(count, str) for count in figures["predicted"].values())
        nothing = "counts below 11 are not shown" if hidden else "nothing found"
        return f"{told} {', '.join(shares) or nothing}"

    def tables(self, figures: Figures) -> Iterator[Table]:
        if predicted := figures.get("predicted"):
            yield Table("Predictions", [self.card.label, "how often"], [*predicted.items()])
