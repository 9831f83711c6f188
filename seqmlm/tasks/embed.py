"""Vectors in context: of records, of their units, windows or spans, as rows, a table or an array."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.rows import read_rows, required
from seqmlm.engine.linear import LinearRows
from seqmlm.engine.types import Floats
from seqmlm.engine.units import ONE_PASS
from seqmlm.errors import DataError, UsageError, number_of
from seqmlm.inference.batches import (
    BATCH_CHARACTERS,
    BATCH_RECORDS,
    Budget,
    Encoded,
    batches,
    characters,
    tokenized,
)
from seqmlm.inference.embedder import Item, Of, Pool, Span, covered, unit_numbers
from seqmlm.inference.session import Session
from seqmlm.rows.file import Row
from seqmlm.streams.cursor import file_facts
from seqmlm.streams.sinks import Kind, Schema, packed
from seqmlm.tasks.task import Figures, Task, TaskConfig, open_model, place


@dataclass(frozen=True, kw_only=True)
class EmbedConfig(TaskConfig):
    """What `seqmlm embed` can be told.

    Args:
        layers: last, N (0 for the embeddings, negative from the last on), or -4:mean or -4:sum of the last
            four.
        of: what has a vector: record, unit, window (as long as the model reads) or span (of --set spans).
        pool: over units: mean, start (of a record its start token, of a part its first token) or max; tokens
            is the mean over all tokens of a record, special ones too.
        spans: a table with the columns id, start and end (letters of a record, from 0); others stay in rows.
        out: write the rows to this file: .jsonl, .csv, .tsv, .parquet or .npy (an array, with .ids.tsv).
        dtype: of vectors in .parquet and .npy.
    """

    shown = ("layers", "of", "pool", "out", "resume", "report", "on_error")
    inputs = ("spans",)

    layers: str = "last"
    of: Of = "record"
    pool: Pool = "mean"
    spans: Path | None = None
    dtype: Literal["float32", "float16"] = "float32"

    def check(self) -> None:
        super().check()
        if (self.of == "span") != (self.spans is not None):
            raise UsageError("vectors of spans need both --of span and --set spans=FILE (id, start, end)")


class Embed(Task[EmbedConfig, Item]):
    """Vectors in context: the hidden states of a model, pooled over records, units, windows or spans.

    A record longer than the model is read in overlapping windows, each unit where it is most central; where
    sequences have two strands, a vector is the mean of both. Encoders without a masked-LM head are taken too.

    Example: seqmlm embed english reviews.txt --out reviews.npy

    Example: seqmlm embed genome new.fa --of window --layers -4:mean --out windows.parquet
    """

    Config = EmbedConfig

    def __init__(self, config: EmbedConfig, session: Session) -> None:
        super().__init__(config, session)
        if isinstance(session.model.rows, LinearRows):
            raise UsageError(
                f"{config.model} is a linear model, which has no hidden states: embed with one that was "
                "trained with --size tiny, small or base"
            )
        self.embedder = session.embedder(layers=config.layers, of=config.of, pool=config.pool)
        self._budget = Budget.of(session.model, ONE_PASS)
        self.columns = Schema(
            columns=self._kinds(),
            closed=config.of != "span",
            width=self.embedder.width,
            half=config.dtype == "float16",
            facts={**self.decided(), "model": identity(session)},
        )

    @classmethod
    def opened(cls, config: EmbedConfig) -> Session:
        return open_model(config, labels="any")

    def _kinds(self) -> dict[str, Kind]:
        kinds: dict[str, Kind] = {"id": "text", "source": "text", "line": "integer"}
        if self.config.of != "record":
            kinds |= {"start": "integer", "end": "integer", "unit": "text"}
        return {**kinds, "vector": "vector"}

    def decided(self) -> Mapping[str, Any]:
        config = self.config
        return {"layers": config.layers, "of": config.of, "pool": config.pool}

    def items(self, records: Iterable[Record], problems: Problems) -> Iterator[Item]:
        """What is embedded of the records; those without a unit, and spans without one, are bad."""
        spans = None if self.config.spans is None else read_spans(self.config.spans, problems)
        for some in batches(records):
            for one in tokenized(self.session.domain, self.session.tokenizer, some, problems):
                own = () if spans is None else self._spans(one, spans.pop(one.record.id, ()), problems)
                if (unit_numbers(one.encoding) < 0).all():
                    problems.bad(_empty(one.record), str(one.record.raw))
                else:
                    yield from self.embedder.items(one, own)
        if spans:
            problems.note("a span of a record that is not there", sum(map(len, spans.values())))

    def _spans(self, one: Encoded, spans: Sequence[Span], problems: Problems) -> list[Span]:
        """Those with a token."""
        kept = []
        for span, (low, high) in zip(spans, covered(one.encoding, spans).tolist(), strict=True):
            if high > low:
                kept.append(span)
            else:
                reason = "a span without a token of its record"
                remedy = f"letters {span.start} to {span.end} are none of it, or blank: correct them"
                problems.bad(
                    DataError(reason, source=str(self.config.spans), line=span.line, remedy=remedy), reason
                )
        return kept

    def share(self, item: Item) -> float:
        letters = characters(item.record) / BATCH_CHARACTERS if self.config.of in ("record", "span") else 0.0
        return max(1 / BATCH_RECORDS, letters, item.tokens / self._budget.batch)

    def rows(self, items: Sequence[Item]) -> Iterator[list[Row]]:
        """A row for each vector."""
        for item, vectors in zip(items, self.embedder.vectors(items), strict=True):
            yield [
                {**where, "vector": self.written_vector(vector)}
                for where, vector in zip(self._places(item), vectors, strict=True)
            ]

    def written_vector(self, vector: Floats) -> Any:
        """The vector as JSON lines have it: numbers, or text where a table is made of them."""
        lines = self.out is None or self.out.suffix.lower() in (".jsonl", ".ndjson", ".json")
        return vector.tolist() if lines and self.config.format_out in (None, "jsonl") else packed(vector)

    def _places(self, item: Item) -> list[Row]:
        """What a row says beside each vector of an item."""
        if item.spans is None:
            return [place(item.record)]
        domain, conceal = self.session.domain, self.session.tokenizer.conceal
        text, found = conceal(domain.spelled(item.record.raw)), list[Row]()
        fields = item.fields or [{}] * len(item.spans)
        for (start, end), more in zip(item.spans.tolist(), fields, strict=True):
            found.append({**place(item.record), "start": start, "end": end, "unit": text[start:end], **more})
        return found

    def figures(self, rows: Iterable[Row]) -> Figures:
        count = sum(1 for _ in rows)
        return {"rows": count, "width": self.embedder.width, **self.decided()}

    def sentence(self, figures: Figures, items: int) -> str:
        return f"{number_of(figures['rows'], 'vector')} of {figures['width']} numbers"


def identity(session: Session) -> str:
    """What names the weights and the tokenizer of a model, for whoever compares vectors."""
    state = sha256(session.tokenizer.fingerprint().encode())
    weights = [
        one for one in session.model.files if one.name.startswith("model") or one.name == "config.json"
    ]
    for _, digest in sorted(file_facts(weights).items()) or [("", session.model.path)]:
        state.update(digest.encode())
    return state.hexdigest()[:16]


def read_spans(path: Path, problems: Problems) -> dict[str, list[Span]]:
    """The spans of each record in a table; `problems` receives those that are none.

    Raises:
        DataError: the table cannot be read, or lacks a column.
    """
    found: dict[str, list[Span]] = defaultdict(list)
    for line, row in read_rows(str(path)):
        name, start, end = (required(row, one, str(path), line) for one in ("id", "start", "end"))
        bounds = [int(one) if str(one).strip().isdecimal() else -1 for one in (start, end)]
        if not 0 <= bounds[0] < bounds[1]:
            reason, remedy = "a span that does not end behind its start", "write whole numbers, start < end"
            problems.bad(DataError(reason, source=str(path), line=line, remedy=remedy), reason)
            continue
        more = {key: value for key, value in row.items() if key not in ("id", "start", "end")}
        found[str(name)].append(Span(bounds[0], bounds[1], more, line))
    return found


def _empty(record: Record) -> DataError:
    return DataError(
        "a record without a unit has no vector",
        source=record.source,
        line=record.line,
        remedy="leave it out",
    )
