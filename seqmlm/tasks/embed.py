"""Vectors in context for records, units, windows or spans, as rows, a table or an array."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from seqmlm.data.counts import People
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.rows import number
from seqmlm.data.spans import Span, read_spans, span_of
from seqmlm.engine.types import Floats
from seqmlm.engine.units import ONE_PASS
from seqmlm.errors import DataError, StateError, UsageError, number_of, span_text
from seqmlm.evaluation.cosines import cosine, cosine_agreement
from seqmlm.evaluation.neighbours import Index, RowNeighbours
from seqmlm.evaluation.senses import one_sense, sense_figures, word_key
from seqmlm.inference.embedder import (
    Embedder,
    Item,
    Layers,
    Of,
    Pool,
    concatenate_items,
    unit_numbers,
    unit_ranges,
)
from seqmlm.inference.normalization import Normal, Normalization
from seqmlm.inference.record_batches import (
    BATCH_CHARACTERS,
    BATCH_RECORDS,
    Budget,
    Encoded,
    batches,
    characters,
    tokenized,
)
from seqmlm.inference.senses import Senses
from seqmlm.inference.session import Session
from seqmlm.inference.survey import MOST, add_layers, layer_table, survey
from seqmlm.reports.summary import Figures
from seqmlm.rows.file import Row
from seqmlm.rows.vectors import read_vectors
from seqmlm.streams.cursor import file_facts
from seqmlm.streams.sinks import Kind, Schema, companion_files, format_of, packed, unpacked
from seqmlm.tasks.columns import HOLDERS, Labelling, labelled_records
from seqmlm.tasks.task import (
    Conclusion,
    Output,
    ReadRows,
    Requirements,
    Task,
    TaskConfig,
    format_figure,
    place,
)
from seqmlm.tokenizers.base import fingerprint

if TYPE_CHECKING:
    from seqmlm.reports.page import Page


@dataclass(frozen=True, kw_only=True)
class EmbedConfig(TaskConfig):
    """Settings of `seqmlm embed`.

    Args:
        layers: layers to use: last, N, -4:mean or -4:sum (the last four), or all (concatenated). N is 0 for
            the embedding layer; negative numbers count from the last layer.
        of: part that gets one vector: record, unit, window (the model's longest input) or span (see --set
            spans).
        pool: how to pool over units: mean, max, start or tokens. `start` takes the start token of a record,
            or the first token of a part. `tokens` is the mean over all tokens of a record, including special
            tokens.
        normal: normalization: raw (none), centred, z or whitened. All but raw need an earlier run with fit.
        fit: fit the normalizations on these records and keep them with the model.
        pair: A,B: compare the sequences in two columns; rows have the cosine.
        truth: COLUMN: column with a value to compare the cosines of pairs with, or with the true sense.
        neighbours: K: write the K nearest neighbours of each vector by cosine, among the other vectors or in
            an index.
        index: file to search for neighbours: a .npy or .parquet file that --out wrote.
        knn: COLUMN: predict this label by the majority of the K nearest neighbours (K is 5 by default).
        senses: TRAIN: table of spans in text with their `sense`. Each sense gets a centroid, kept with the
            model. "stored" uses kept centroids. Rows have the nearest sense of the span's word.
        discourse: give all spans of a word in a document the same sense: the most frequent one.
        colour: COLUMN: column that colours the map in the report.
        keep: columns of the input to copy to the rows, separated by commas.
        spans: table with the columns id, start and end (letters of a record, from 0); other columns are
            copied. Default: the columns start and end of the input.
        out: write the rows to this file: .jsonl, .csv, .tsv, .parquet or .npy (an array, with .ids.tsv).
        dtype: number type of vectors in .parquet and .npy.
    """

    option_fields = ("layers", "of", "neighbours", *TaskConfig.option_fields)
    inputs = ("spans", "index", "train")

    layers: str = "last"
    of: Of = "record"
    pool: Pool = "mean"
    normal: Normal = "raw"
    fit: bool = False
    pair: str | None = None
    truth: str | None = None
    arrays = True

    neighbours: int | None = None
    index: Path | None = None
    knn: str | None = None
    senses: str | None = None
    discourse: bool = False
    colour: str | None = None
    keep: str = ""
    spans: Path | None = None
    dtype: Literal["float32", "float16"] = "float32"

    @property
    def outputs(self) -> dict[str, Path | None]:
        files = super().outputs
        if self.out is not None and format_of(self.out, self.format_out) == "npy":
            names = ("the ids of --out", "the facts of --out")
            files |= dict(zip(names, companion_files(self.out), strict=True))
        return files

    def check(self) -> None:
        super().check()
        if self.of != "span" and (self.spans is not None or self.senses is not None):
            raise UsageError("spans and senses need --of span")
        if self.fit and (self.normal != "raw" or self.pair):
            raise UsageError("fit needs raw vectors: leave out --set normal and --set pair")
        if self.truth and not (self.pair or self.senses):
            raise UsageError("truth needs pairs or senses: add --set pair=A,B or --set senses=TRAIN")
        if self.pair and (len(self.columns) != 2 or self.of != "record"):
            raise UsageError(
                "pair compares two columns of whole records: write --set pair=A,B with --of record"
            )
        if (self.k is not None) + bool(self.pair) + self.fit + (self.senses is not None) > 1:
            raise UsageError("neighbours, pair, fit and senses exclude each other: give only one of them")
        if self.k is None and self.index is not None:
            raise UsageError("an index needs a number of neighbours: add --neighbours K")
        if self.k is not None and self.k < 1:
            raise UsageError("neighbours must be at least 1")
        Layers.check(self.layers)

    @property
    def train(self) -> Path | None:
        """The table of labelled spans."""
        return None if self.senses in (None, "stored") else Path(str(self.senses))

    @property
    def k(self) -> int | None:
        """The number of neighbours per vector, or None if none are requested."""
        return 5 if self.neighbours is None and self.knn else self.neighbours

    @property
    def columns(self) -> list[str]:
        """The two columns of a pair."""
        return split_names(self.pair or "")


SpanTable = dict[str, list[Span]]  # spans of the file `spans`, by the id of their record


class Embed(Task[EmbedConfig, Item]):
    """Compute vectors in context: hidden states of a model, pooled over records, units, windows or spans.

    Long records are read in overlapping windows. Each unit is taken from the window in which it is most
    central. For DNA, a vector is the mean of both strands. Encoders without a masked-LM head also work.

    Example: seqmlm embed english reviews.txt --out reviews.npy

    Example: seqmlm embed genome new.fa --of window --layers -4:mean --out windows.parquet
    """

    Config = EmbedConfig
    requires = Requirements(labels="any")

    def __init__(self, config: EmbedConfig, session: Session) -> None:
        super().__init__(config, session)
        self.embedder = session.embedder(layers=config.layers, of=config.of, pool=config.pool)
        self.normalization: Normalization | None = None
        if config.normal != "raw":
            self.normalization = Normalization.stored(Path(session.model.path), self._pooling())
        elif config.fit and not Path(session.model.path).is_dir():
            raise StateError(f"{config.model} is on the Hugging Face hub: download it to a folder first")
        label_columns = [column for column in (config.knn, config.colour) if column]
        self.kept_columns = list(dict.fromkeys([*split_names(config.keep), *label_columns]))
        self.needs_all_rows = config.k is not None or config.discourse
        self.senses: Senses | None = None
        if config.senses is not None:
            session.check_public("words", "senses need other data")
        self._budget, self.choices = Budget.of(session.model, ONE_PASS), self._choices()
        self.facts = {**self._pooling(), "normal": self.choices["normal"], "model": identity(session)}
        kinds, half = self._kinds(), config.dtype == "float16"
        width = self.width if "vector" in kinds else 0
        columns = Schema(columns=kinds, closed=config.of != "span", width=width, half=half, facts=self.facts)
        self.output = Output(
            stdout="figures" if config.fit or config.pair or config.knn else "rows",
            columns=columns,
            final_rows=self.final_rows if self.needs_all_rows else None,
            settled=self.choices,
            reads_ahead=config.train is None,  # building senses needs the model
            costs=None if config.train is None else lambda problems: (),  # therefore there is no estimate
        )
        if config.senses == "stored":
            self.senses = Senses.stored(Path(session.model.path), self.facts)
        self.index: Index | None = None
        if config.index is not None and config.k is not None:
            table = read_vectors(config.index).checked(self.facts, config.k, config.knn)
            self.index = Index(table.array, table.columns["id"], table.columns.get(config.knn or ""))

    @property
    def width(self) -> int:
        """The number of dimensions of a vector."""
        normalization = self.normalization
        return self.embedder.width if normalization is None else normalization.width(self.config.normal)

    def _pooling(self) -> dict[str, str]:
        """The layers, parts and pooling that identify a normalization.

        Spans use the normalization of units.
        """
        of = "unit" if self.config.of == "span" else self.config.of
        return {"layers": self.embedder.layers.text, "of": of, "pool": self.config.pool}

    def _kinds(self) -> dict[str, Kind]:
        kinds: dict[str, Kind] = {"id": "text", "source": "text", "line": "integer"}
        if self.config.pair:
            return {**kinds, "cosine": "number", **({"truth": "number"} if self.config.truth else {})}
        if self.config.of != "record":
            kinds |= {"start": "integer", "end": "integer", "unit": "text"}
        texts: dict[str, Kind] = dict.fromkeys(self.kept_columns, "text")
        if self.config.senses:
            return {
                **kinds,
                **texts,
                "sense": "text",
                "cosine": "number",
                "frequent": "text",
                "truth": "text",
            }
        if self.config.knn:
            return {**kinds, **texts, "label": "text", "share": "number"}
        if self.needs_all_rows:
            return {**kinds, **texts, "neighbour": "text", "cosine": "number", "rank": "integer"}
        return {**kinds, **texts, "vector": "vector"}

    def _choices(self) -> Mapping[str, Any]:
        config = self.config
        normal = config.normal + (f" {self.normalization.digest}" if self.normalization else "")
        return {"layers": self.embedder.layers.text, "of": config.of, "pool": config.pool, "normal": normal}

    def records(self, problems: Problems) -> Iterable[Record]:
        """The records, with the columns to copy to rows.

        For pairs: the first sequence, the second as a column.
        """
        config = self.config
        extra = [*config.columns[1:], *([config.truth] if config.truth else []), *self.kept_columns]
        if config.of == "span" and config.spans is None:
            extra += ["start", "end"]
        if not extra:
            return super().records(problems)
        names = self.session.domain.files.options(config.format) if config.pair else ()
        options = {**{name: config.columns[0] for name in HOLDERS if name in names}, **config.options}
        labelling = Labelling(labels=tuple(extra), format=config.format, options=options)
        return labelled_records(self.session, labelling, config.paths, problems)

    def items(self, records: Iterable[Record], problems: Problems) -> Iterator[Item]:
        """The items to embed. Records without units and spans without tokens are bad records."""
        if self.config.train is not None:
            self.senses = self._train_senses(problems)
        if self.config.pair is not None:
            yield from self._pair_items(records, problems)
        else:
            yield from self._record_items(records, self._read_spans(problems), problems, self.embedder)

    def _read_spans(self, problems: Problems) -> SpanTable | None:
        return None if self.config.spans is None else read_spans(self.config.spans, problems)

    def _record_items(
        self, records: Iterable[Record], spans: SpanTable | None, problems: Problems, embedder: Embedder
    ) -> Iterator[Item]:
        """The items of records that are not pairs, or of their spans."""
        for batch in batches(records):
            for encoded in tokenized(self.session.domain, self.session.tokenizer, batch, problems):
                record_spans = self._spans(encoded, spans, problems) if self.config.of == "span" else ()
                if (unit_numbers(encoded.encoding) < 0).all():
                    problems.bad(_record_error(encoded.record, _EMPTY), str(encoded.record.raw))
                else:
                    yield from embedder.items(encoded, record_spans)
        if spans:
            problems.note("a span with an id that no record has", sum(map(len, spans.values())))

    def _pair_items(self, records: Iterable[Record], problems: Problems) -> Iterator[Item]:
        """An item for each record: its sequence together with the sequence in the second column."""
        second, truth = self.config.columns[1], self.config.truth
        for record in records:
            missing = next((name for name in (second, truth) if name and name not in record.meta), None)
            if missing is not None or (truth and not math.isfinite(number(record.meta[truth]))):
                reason = f"no column {missing!r}" if missing else f"no number in column {truth!r}"
                problems.bad(_record_error(record, reason), str(record.raw))
                continue
            raw = self.session.domain.text.of_text(str(record.meta[second]), record.meta)
            pair = [record, replace(record, raw=raw)]
            encodings = tokenized(self.session.domain, self.session.tokenizer, pair, problems)
            parts = [item for encoded in encodings for item in self.embedder.items(encoded)]
            if len(parts) == 2:
                yield concatenate_items(*parts)
            else:
                problems.bad(_record_error(record, _EMPTY), str(record.raw))

    def _train_senses(self, problems: Problems) -> Senses:
        """The centroid of each sense, computed from the vectors of labelled spans."""
        labelled, config = list[tuple[str, str, Floats]](), self.config
        labelling = Labelling(labels=("start", "end", "sense"), format=config.format, options=config.options)
        records = labelled_records(self.session, labelling, [str(config.train)], problems)
        items = self._record_items(records, None, problems, self.embedder)
        for batch in iter(lambda: [*islice(items, BATCH_RECORDS)], []):
            for item, vectors in zip(batch, self._vectors(batch), strict=True):
                for columns, vector in zip(self._places(item), vectors, strict=True):
                    labelled.append((word_key(columns["unit"]), str(item.record.meta["sense"]), vector))
        return Senses.of(labelled, self.facts)

    def _spans(self, encoded: Encoded, table: SpanTable | None, problems: Problems) -> list[Span]:
        """The spans of a record that have tokens. The others are bad records."""
        usable, record = list[Span](), encoded.record
        if table is None:
            try:
                bounds = {name: record.meta.get(name) for name in ("start", "end")}
                spans = [span_of(bounds, record.source, record.line)]
            except DataError as error:
                problems.bad(error, error.reason)
                return []
        else:
            spans = table.pop(record.id, [])
        for span, (low, high) in zip(spans, unit_ranges(encoded.encoding, spans).tolist(), strict=True):
            if high > low:
                usable.append(span)
            else:
                reason = "a span without a token of its record"
                remedy = f"no token is at {span_text(span.start, span.end)}: correct start and end"
                source = record.source if table is None else str(self.config.spans)
                problems.bad(DataError(reason, source=source, line=span.line, remedy=remedy), reason)
        return usable

    def cost(self, item: Item) -> float:
        return float(item.tokens)

    def batch_share(self, item: Item) -> float:
        letters = characters(item.record) / BATCH_CHARACTERS if self.config.of in ("record", "span") else 0.0
        return max(1 / BATCH_RECORDS, letters, item.tokens / self._budget.batch)

    def rows(self, items: Sequence[Item]) -> Iterator[list[Row]]:
        """A row for each vector."""
        for item, vectors in zip(items, self._vectors(items), strict=True):
            if self.config.pair is not None:
                yield [{**place(item.record), "cosine": cosine(*vectors), **self._truth(item.record)}]
                continue
            make = self._sense_columns if self.config.senses is not None else self._vector_column
            places = zip(self._places(item), vectors, strict=True)
            yield [{**columns, **make(item, columns, vector)} for columns, vector in places]

    def _vectors(self, items: Sequence[Item]) -> Iterator[Floats]:
        """(T, W) the normalized vectors of each item."""
        for raw in self.embedder.vectors(items):
            normalization = self.normalization
            yield raw if normalization is None else normalization.applied(self.config.normal, raw)

    def _sense_columns(self, item: Item, columns: Row, vector: Floats) -> Row:
        """The nearest sense of a span's word with its cosine, and the true sense if it is known."""
        assert self.senses is not None
        word, meta = word_key(columns["unit"]), item.record.meta
        sense, cosine = self.senses.sense(word, vector)
        answer = {"sense": sense, "cosine": cosine, "frequent": self.senses.frequent(word)}
        name = self.config.truth
        truth = {"truth": str(meta[name])} if name is not None and name in meta else {}
        return {**answer, **truth, **({"document": item.record.document} if self.config.discourse else {})}

    def _truth(self, record: Record) -> Row:
        return {} if self.config.truth is None else {"truth": number(record.meta[self.config.truth])}

    def _vector_column(self, item: Item, columns: Row, vector: Floats) -> Row:
        """The vector as numbers for JSON lines, or packed for tables and for computing on all rows."""
        table = format_of(self.config.out, self.config.format_out) != "jsonl"
        short = table or self.needs_all_rows or self.config.fit
        return {"vector": packed(vector) if short else vector.tolist()}

    def _places(self, item: Item) -> list[Row]:
        """The other columns of each vector of an item, one row per vector."""
        if item.spans is None:
            return [{**place(item.record), **self._inputs(item.record.meta)}]
        domain, conceal = self.session.domain, self.session.tokenizer.spelling.conceal
        text, places = conceal(domain.text.text_of(item.record.raw)), list[Row]()
        fields = item.fields or [{}] * len(item.spans)
        for (start, end), extra in zip(item.spans.tolist(), fields, strict=True):
            span = {"start": start, "end": end, "unit": text[start:end]}
            places.append({**place(item.record), **span, **self._inputs(item.record.meta), **extra})
        return places

    def _inputs(self, columns: Mapping[str, Any]) -> Row:
        """The columns of the input that are copied to rows."""
        return {name: str(columns[name]) for name in self.kept_columns if name in columns}

    def figures(self, rows: Iterable[Row]) -> Figures:
        facts, config = {"width": self.width, **self.choices}, self.config
        if config.pair is not None:
            return {**cosine_agreement(list(rows)), **facts}
        if config.senses is not None:
            return sense_figures(one_sense(rows) if config.discourse else rows) | facts
        if config.k is not None:
            vectors = ((_without_vector(row), unpacked(row["vector"])) for row in rows)
            self.near = RowNeighbours.search(vectors, self.width, config.k, self.index, config.knn)
            return self.near.figures() | facts
        if config.fit:
            corpus = {"corpus": [Path(path).name for path in config.paths], **self._pooling()}
            self.fitted = fitted = Normalization.fit((unpacked(row["vector"]) for row in rows), corpus)
            counts = {"vectors": fitted.facts["vectors"], "dropped": fitted.dropped}
            return {**facts, **counts, "components": len(fitted.components), "fitted": fitted.digest}
        return {"rows": sum(1 for _ in rows), **facts}

    def final_rows(self, rows: Iterator[Row], figures: Figures) -> Iterator[Row]:
        """A row for each neighbour or predicted label, or rows with one sense per word and document."""
        return one_sense(rows) if self.config.discourse else self.near.rows()

    def extra_files(self, rows: ReadRows) -> Sequence[Path]:
        """Store the fitted normalization or senses in the model's folder.

        This is done last, because the model's files are part of the request.
        """
        folder = Path(self.session.model.path)
        if self.config.fit:
            self.fitted.keep(folder)
        if self.config.train is not None and self.senses is not None and folder.is_dir():
            self.senses.keep(folder)
        return ()

    def page(self, page: Page, rows: ReadRows, figures: Figures) -> None:
        """Draw a map of the vectors, if the page may draw records."""
        super().page(page, rows, figures)
        config = self.config
        if not page.draws_records or config.pair or config.senses or self.needs_all_rows:
            return
        total = sum(1 for _ in rows())
        sample = [*islice(rows(), 0, None, math.ceil(total / MOST))]
        words = [row["unit"] for row in sample] if config.of == "unit" else []
        kinds = [str(row.get(config.colour)) for row in sample] if config.colour else []
        vectors = [unpacked(row["vector"]) for row in sample]
        survey(page, vectors, normal=config.normal, words=words, kinds=kinds)
        if "-" not in config.paths:  # standard input can be read only once
            problems = Problems("skip")
            layers = self.session.embedder(layers="all", of=config.of, pool=config.pool)
            items = self._record_items(self.records(problems), self._read_spans(problems), problems, layers)
            add_layers(page, [*layer_table(layers, items)])

    def conclusion(self, figures: Figures, items: People, rows: ReadRows) -> Conclusion:
        unit = "pair" if self.config.pair else "span" if self.config.senses else "vector"
        count = next((figures[name] for name in ("rows", "vectors", "spans") if name in figures), items)
        parts = [
            f"{key.replace('_', ' ')} {format_figure(figures[key])}" for key in _ANSWER if key in figures
        ]
        if dropped := figures.get("dropped"):
            parts.append(f"{number_of(dropped, 'dimension')} without variance, left out by z")
        width = f" with {self.width} numbers each" if unit == "vector" else ""
        return Conclusion(number_of(count, unit) + width + (f": {', '.join(parts)}" if parts else ""))


_ANSWER = ("spearman", "pearson", "neighbours", "recall", "accuracy", "majority", "most_frequent", "fitted")
"""Figures that the conclusion shows."""


def split_names(names: str) -> list[str]:
    """The names in a text, which are separated by commas."""
    return [name.strip() for name in names.split(",") if name.strip()]


def identity(session: Session) -> str:
    """A digest of a model's weights and tokenizer. Vectors can be compared if their digests are equal."""
    state = sha256(fingerprint(session.tokenizer).encode())
    files = session.model.files
    weights = [file for file in files if file.name.startswith("model") or file.name == "config.json"]
    for _, digest in sorted(file_facts(weights).items()) or [("", session.model.path)]:
        state.update(digest.encode())
    return state.hexdigest()[:16]


_EMPTY = "a record without a unit has no vector"


def _record_error(record: Record, reason: str) -> DataError:
    return DataError(reason, source=record.source, line=record.line, remedy="correct it, or remove it")


def _without_vector(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "vector"}
