"""Structure: find the units of a sequence that depend on each other according to a model.

A row is a pair of units with its value. Graphs, figures and pictures are made from the rows and the
sequences. The sequences are read a second time, so that memory contains only one sequence with its map. The
trade-off: standard input can be read once, and therefore gives only rows.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import numpy as np

from seqmlm.data.counts import SMALLEST, People
from seqmlm.data.files import expand
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.rows import read_rows
from seqmlm.domains.refusals import missing_capability
from seqmlm.domains.structure import LAYERS, Decoded, Decoder, Pair, Truth, draw, map_of
from seqmlm.engine.durable import replace_file
from seqmlm.errors import DataError, StateError, UsageError, duration_text, number_of
from seqmlm.evaluation.edges import MEASURES, RANKED, Rankings
from seqmlm.inference.maps import Maps, Subject, candidates, row_options
from seqmlm.inference.record_batches import input_bytes, tokens_per_second
from seqmlm.inference.session import Session
from seqmlm.reports.summary import Figures, Table
from seqmlm.reports.verdict import links_warnings
from seqmlm.rows.file import Row
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.ownership import refuse_foreign, remember
from seqmlm.streams.sinks import write_error
from seqmlm.structure.base import SMALL_ALPHABET, StructureSettings
from seqmlm.structure.estimators import KINDS, MOST_ELEMENTS
from seqmlm.structure.graphs import Component, graphml, json_pieces
from seqmlm.structure.maps import DependenceMap, Null, Over
from seqmlm.tasks.pace import LONG
from seqmlm.tasks.task import (
    Conclusion,
    Output,
    ReadRows,
    Task,
    TaskConfig,
    items_text,
    place,
    read_records,
    row_location,
    terminal_line,
)

if TYPE_CHECKING:
    from seqmlm.reports.page import Page

Made = TypeVar("Made")

COLUMNS = {"id", "source", "line", "i", "j", "unit_i", "unit_j", *LAYERS, "predicted", "method"}
NUMBERS = {"position_i", "position_j", "number_i", "number_j"}
"""All columns of a row, and columns that number units from 1.

In an alignment, `number_i` and `number_j` count in the whole sequence. Any other column of a row is a detail
of the method.
"""

GRAPHS = ("edges.json", "edges.graphml")

ROWS = 1 << 17
"""Number of rows that are made together. Each takes half a kilobyte."""

EDGES_ALONE = (
    "a sequence of which the earlier rows have only the edges: it has no figures of pairs, which need the "
    "rows that --out writes"
)
PICTURED = 20
"""Number of sequences that a report shows. They are the first ones."""


@dataclass(frozen=True, kw_only=True)
class StructureConfig(TaskConfig):
    """Settings of `seqmlm structure`.

    Args:
        method: how to measure dependence: couplings, jacobian, dependency, cmi, cpmi or pmi. `couplings`
            reads the parameters of a linear model. `jacobian` and `dependency` measure how much one place
            changes with another. `cmi` is the conditional mutual information, `cpmi` the same for only the
            units in the sequence. `pmi` uses counts of the input and no model. Default: couplings for linear
            models, jacobian for up to 64 symbols, otherwise cmi of near pairs with estimator topk.
        truth: known structure: truth.json of a sample, or a file of the field such as CoNLL-U, a 3D structure
            or contacts. Adds AUROC, AUPRC and the field's own measure.
        graphs: DIR: write the edges as graphs, and files of the field such as CoNLL-U, to this folder.
        all: print all pairs, not only the edges. A file always has all pairs.
        edges: rows of an earlier run on these sequences (.jsonl): make figures, graphs and the report from
            them, without running the model.
        dry_run: only count the masked or changed copies of each sequence that the model would have to
            process.
        estimator: estimator for cmi: exact, topk, gibbs, fast or auto. `exact` tries every symbol at every
            place, `topk` the k most probable ones. `gibbs` draws a chain. `fast` takes one pass per unit and
            symbol, not per pair. `auto` decides by vocabulary size and length.
        distance: maximum distance of a pair, in units. Default: none, or 16 if cmi is chosen automatically.
        min_separation: minimum distance of a pair, in units. Default: depends on the domain.
        columns, rows: how to combine the tokens of a unit, first in columns and then in rows: max or mean.
        symmetric: how to combine the two directions of a pair: mean or max.
        apc: apply the average product correction. Default: depends on the domain.
        steps: number of draws of a chain, for the estimator gibbs.
        k: number of symbols per place, for the estimator topk. Default: 128, or 2 if cmi is chosen
            automatically.
        seed: seed of the draws.
        together: hide all units with the same name together, such as all records of a code. Each pair of
            names then has one value, at the first unit of each. Default: depends on the domain.
        both_strands: average with the map of the other strand, if there is one. Doubles the work.
        null: number of null models per sequence, 0 for none. Each pair gets z and p, by comparison with pairs
            at a similar distance in the null models. Each null model takes as long as the map.
        null_model: kind of null model: shuffled (units), dinucleotide (shuffled, with the same number of each
            pair of neighbours), or mirrored (read backwards).
        family: the files are alignments: make one map per file, the mean over its rows, in the columns of the
            first row.
        sequences: number of rows to use from an alignment: the first row, and others at even steps.
        query: map only the sequence with this id. For couplings of a family, number the map by this row.
            Default: the first row of each file.
    """

    option_fields = ("method", "truth", "graphs", *TaskConfig.option_fields)
    inputs = ("truth", "edges")

    method: str | None = None
    truth: Path | None = None
    graphs: Path | None = None
    all: bool = False
    edges: Path | None = None
    dry_run: bool = False
    estimator: Literal["auto", "exact", "topk", "gibbs", "fast"] = "auto"
    distance: int | None = None
    min_separation: int | None = None
    columns: Over = "max"
    rows: Over = "mean"
    symmetric: Over = "mean"
    apc: bool | None = None
    steps: int = 2000
    k: int | None = None
    seed: int = 0
    together: bool | None = None
    both_strands: bool = False
    null: int = 0
    null_model: Null = "shuffled"
    family: bool = False
    sequences: int = 20
    query: str | None = None

    def settings(self, **settled: Any) -> StructureSettings:
        """The settings of the estimator. `settled` overrides values according to the model and the field.

        Raises:
            UsageError: a setting is not valid.
        """
        names = {part.name for part in fields(StructureSettings)} & {part.name for part in fields(self)}
        values = {name: value for name in names if (value := getattr(self, name)) is not None}
        return StructureSettings(**values | settled)

    @property
    def second_pass_reasons(self) -> list[str]:
        """The names of the settings in use that need the sequences a second time."""
        reasons = [name for name in ("truth", "graphs", "report", "edges") if getattr(self, name) is not None]
        return [*reasons, *(["method pmi"] if self.method == "pmi" else [])]

    def check(self) -> None:
        super().check()
        for name, minimum in (("distance", 1), ("min_separation", 1), ("null", 0), ("sequences", 1)):
            if (value := getattr(self, name)) is not None and value < minimum:
                raise UsageError(f"{name} must be at least {minimum}; got {value}")
        if self.method not in (None, *KINDS):
            raise UsageError(f"--method must be one of {', '.join(KINDS)}; got {self.method!r}")
        self.settings()
        if self.query is not None and self.family:
            raise UsageError("family maps all sequences of a file, query only one: remove one of the two")
        if self.distance is not None and self.distance < (self.min_separation or 1):
            raise UsageError(
                "distance is below min_separation, which leaves no pair: use a larger --set distance"
            )
        if self.second_pass_reasons and "-" in self.paths:
            reasons = ", ".join(self.second_pass_reasons)
            raise UsageError(
                f"{reasons} needs the input twice, but standard input can be read once: write it to a file"
            )
        if self.dry_run and (refused := [name for name in self.second_pass_reasons if name != "method pmi"]):
            raise UsageError(f"dry_run does not run the model: remove {', '.join(refused)}")
        if (folder := self.graphs) is not None:
            if folder.exists() and not folder.is_dir():
                raise UsageError(f"--graphs {folder} is a file; name a folder")
            inputs = [Path(path) for path in expand(self.input_paths) if path != "-"]
            if any(path.resolve().is_relative_to(folder.resolve()) for path in inputs):
                raise UsageError(f"--graphs {folder} contains input files; name another folder")
            check_outputs({"--out": self.out, "--report": self.report, **_graph_outputs(folder)})


def _graph_outputs(folder: Path) -> dict[str, Path]:
    return {f"{name} of --graphs": folder / name for name in GRAPHS}


@dataclass(frozen=True)
class Repeatable(Generic[Made]):
    """An iterable that calls `make` for each new iteration."""

    make: Callable[[], Iterator[Made]]

    def __iter__(self) -> Iterator[Made]:
        return self.make()


TOPK, NEAR = 2, 16
"""Defaults for large alphabets: symbols per place, and the maximum distance of a pair in units."""


def usual_settings(session: Session) -> dict[str, Any]:
    """The default settings for a masked model; docs/explanation/benchmarks/structure.md has the reasons.

    For up to 64 symbols it is the Jacobian, which needs A N copies of a sequence instead of A N². For more
    symbols it is the conditional mutual information of the most probable symbols in near pairs. If a token
    covers several units, it is the conditional pointwise mutual information of the units in the sequence.
    """
    if session.tokenizer.units.facts.names is not None:
        return {"method": "cpmi"}
    ordinary = candidates(session)
    symbols = session.tokenizer.space.ordinary if ordinary is None else ordinary
    if len(symbols) > SMALL_ALPHABET:
        return {"method": "cmi", "estimator": "topk", "k": TOPK, "distance": NEAR}
    fits = (session.card.max_length * len(symbols)) ** 2 <= MOST_ELEMENTS
    return {"method": "jacobian" if fits else "cmi"}


class Structure(Task[StructureConfig, Subject]):
    """Map which units of a sequence depend on each other: trees, contacts, base pairs or graphs.

    Two units depend on each other if changing one changes the model's prediction at the other. Every pair
    gets a value. It is in nats for cmi, cpmi and pmi. The domain decides which pairs are edges. The command
    prints the edges, one JSON line each. --out writes all pairs. In rows, `i` and `j` count units from 0,
    `position_i` and `position_j` from 1.

    Example: seqmlm structure english sentences.txt --out edges.jsonl --graphs trees --report trees.html

    Example: seqmlm structure enzymes new.fasta --truth 1abc.pdb --set min_separation=6 --json
    """

    Config = StructureConfig

    def __init__(self, config: StructureConfig, session: Session) -> None:
        super().__init__(config, session)
        if config.graphs is not None:
            check_outputs(_graph_outputs(config.graphs), folder=session.model.path)
        self.decoder = self._decoder()
        if config.graphs is not None and self.decoder is not None:
            for name in self.decoder.files(()):
                refuse_foreign(config.graphs / name, "--graphs")
        self.separation = (config.min_separation or 1) if self.decoder is None else self.decoder.separation
        shows_rows = config.truth is config.graphs is config.report is None
        self.all_pairs = config.all or config.out is not None or not shows_rows or self.decoder is None
        self.gaps = row_options(session, config.format) if config.family else {}
        self.truth_of: Callable[[Record, Sequence[str]], Truth | None] | None = None
        self.maps = Maps(
            session,
            self._settings(),
            null=config.null,
            kind=config.null_model,
            corpus=self._all(Problems("skip")),
            family=config.sequences if config.family else None,
            both_strands=config.both_strands,
        )
        self.output = Output(
            unit="sequence",
            stdout="rows" if shows_rows else "figures",
            columns=dict.fromkeys(LAYERS, "number"),
            line=self._line,
            notes=(*self._first_map_note(), *links_warnings(session.card.unit, session.card.metrics)),
            costs=self._costs,
        )

    def _first_map_note(self) -> Sequence[str]:
        """A note on the time for the first map, if it is long, because there is no progress before it."""
        files, asks_model = self.config.sources, not self.config.dry_run and self.config.edges is None
        if not asks_model or not files or input_bytes(files) is None:
            return ()
        first = next(iter(self._subjects(*self._reread())), None)
        tokens = 0.0 if first is None else sum(map(self.maps.cost, first.map_input.encodings))
        seconds = tokens / tokens_per_second(self.session.model)
        if seconds < LONG:
            return ()
        by_pair = self.maps.settings.method in ("cmi", "cpmi")
        shorter = "; --set distance=N computes fewer pairs" if by_pair else ""
        return (f"estimated time for the first map: {duration_text(seconds)}{shorter}",)

    def _decoder(self) -> Decoder | None:
        """The field's decoder with the settings of the config, or None for a field without a decoder.

        Raises:
            UsageError: a setting needs a decoder, and the field has none.
        """
        config, domain, decoder = self.config, self.session.domain, None
        if domain.structure is not None:
            decoder = domain.structure()
        elif config.truth is not None or config.graphs is not None:
            raise missing_capability(domain, "structure")
        if decoder is not None and config.min_separation is not None:
            decoder.separation = config.min_separation
        if config.together and (decoder is None or decoder.together is None):
            raise UsageError(f"domain {domain.name} has no names for units: leave out --set together")
        return decoder

    def _settings(self) -> StructureSettings:
        """The settings of the estimator, completed with defaults from the model and the field."""
        config, decoder = self.config, self.decoder
        linear = not self.session.model.rows.has_hidden_states
        apc = getattr(decoder, "apc", False) if config.apc is None else config.apc
        together = getattr(decoder, "together", False) if config.together is None else config.together
        usual = {"method": "couplings"} if linear else usual_settings(self.session)
        settled = {name: x for name, x in usual.items() if getattr(config, name) in (None, "auto")}
        if config.method is not None:
            settled = {}
        elif self.separation > NEAR:  # otherwise no pair would be left
            settled.pop("distance", None)
        return config.settings(**settled, apc=bool(apc), together=bool(together))

    # Sequences

    def records(self, problems: Problems) -> Iterable[Record]:
        records, query = self._all(problems), self.config.query
        if query is not None:
            return self._query_record(records, query)
        return self._first_rows(records) if self._of_family else records

    @property
    def _of_family(self) -> bool:
        """Whether all rows of a file share one map (linear models).

        With a truth, each row has its own map.
        """
        return self.maps.settings.method == "couplings" and self.config.truth is None

    @staticmethod
    def _first_rows(records: Iterable[Record]) -> Iterator[Record]:
        """The first row of each file."""
        return (next(rows) for _, rows in groupby(records, key=lambda record: record.source))

    def _all(self, problems: Problems) -> Iterable[Record]:
        return read_records(self.session, self.config, problems, self.gaps)

    def _query_record(self, records: Iterable[Record], query: str) -> Iterator[Record]:
        """The sequence with the id `query`.

        Raises:
            DataError: no sequence has this id.
        """
        record = next((record for record in records if record.id == query), None)
        if record is None:
            source, remedy = self.config.paths[0], "give an id that is in the file"
            raise DataError(f"no sequence has the id {query}", source=source, remedy=remedy)
        yield record

    def _reread(self) -> tuple[Iterable[Record], Problems]:
        """The records, read again, with problems that are not reported."""
        problems = Problems("skip")
        return self.records(problems), problems

    def items(self, records: Iterable[Record], problems: Problems) -> Iterator[Subject]:
        """The sequences that can have a map.

        Raises:
            DataError: the truth has none of the sequences.
            UsageError: null models are requested, and the units cannot be moved.
        """
        if self.config.truth is not None and self.decoder is not None:
            sequences = self._subjects(*self._reread())
            self.truth_of = self.decoder.truths(self.config.truth, problems)
            have_truth = [self.truth_of(subject.record, subject.units) is not None for subject in sequences]
            if have_truth and not any(have_truth):
                remedy = "give the truth for these sequences, with the same ids as in their file"
                source = str(self.config.truth)
                raise DataError(
                    "no sequence of the input is in this truth file", source=source, remedy=remedy
                )
        subjects = self._subjects(records, problems)
        return subjects if self.config.edges is None else self._with_rows(subjects, problems)

    def _with_rows(self, subjects: Iterable[Subject], problems: Problems) -> Iterator[Subject]:
        """Yield the sequences with the rows of an earlier run, which may have written only edges."""
        for subject, earlier_rows in self._row_groups(subjects, self._earlier()):
            rows, n = [*earlier_rows], len(subject.units)
            if rows and all(row.get("predicted") for row in rows) and len(rows) < n * (n - 1) // 2:
                problems.note(EDGES_ALONE, source=subject.source, line=subject.line)
            yield subject._replace(rows=rows)

    def _subjects(self, records: Iterable[Record], problems: Problems) -> Iterator[Subject]:
        """Yield the sequences with the inputs of their maps. Sequences without a map are bad records."""
        names = None if self.decoder is None else self.decoder.names
        for record, map_input in self.maps.encoded(records, problems):
            try:
                yield self.maps.subject(record, map_input, names)
            except DataError as error:
                problems.bad(problems.located(error, record))

    def cost(self, item: Subject) -> float:
        """Forward tokens of all copies for the map, 0 if the model is not used."""
        if self.config.dry_run or self.config.edges is not None:
            return 0.0
        return sum(map(self.maps.cost, item.map_input.encodings))

    def batch_share(self, item: Subject) -> float:
        """Share of a part: by the cost of the map, or by its rows, which are kept in memory."""
        return max(super().batch_share(item), len(item.units) ** 2 / (2 * ROWS))

    def _costs(self, problems: Problems) -> Iterator[float]:
        return map(self.cost, self._subjects(self.records(problems), problems))

    # Rows

    def rows(self, items: Sequence[Subject]) -> Iterator[Sequence[Row]]:
        """A row for each evaluated pair, or for each edge, of each sequence."""
        if self.config.dry_run:
            for subject in items:
                passes = sum(map(self.maps.passes, subject.map_input.encodings))
                yield [{**place(subject.record), "units": len(subject.units), "passes": passes}]
        elif self.config.edges is not None:
            for subject in items:
                yield [row for row in subject.rows if self.all_pairs or row.get("predicted")]
        else:
            yield from map(self._map_rows, items, self.maps.of([subject.map_input for subject in items]))

    def _map_rows(self, subject: Subject, dependence: DependenceMap) -> Sequence[Row]:
        """The rows of one map: all evaluated pairs, or only the edges."""
        edges = frozenset[Pair]()
        if self.decoder is not None:
            edges = self.decoder.decode(subject.record, subject.units, dependence)
        decoded = Decoded(record=subject.record, units=subject.units, dependence=dependence, predicted=edges)
        separation = self.separation if self.all_pairs else None
        rows = [{**place(subject.record), **row} for row in decoded.rows(separation)]
        numbers = subject.record.meta.get("numbers")
        for row in rows:
            if numbers is not None:
                row |= {"number_i": numbers[row["i"]], "number_j": numbers[row["j"]]}
            if self.decoder is None:
                del row["predicted"]
        return rows

    # Figures of finished rows

    def _earlier(self) -> Iterator[Row]:
        """The rows of an earlier run.

        Raises:
            DataError: they are not rows of this command.
        """
        path = str(self.config.edges)
        for line, row in read_rows(path):
            if lacks := COLUMNS - {"predicted"} - row.keys():
                remedy = "give a .jsonl file that seqmlm structure wrote with --out"
                raise DataError(
                    "not a pair of units", source=path, line=line, field=min(lacks), remedy=remedy
                )
            yield row

    def _row_groups(
        self, subjects: Iterable[Subject], rows: Iterator[Row]
    ) -> Iterator[tuple[Subject, Iterator[Row]]]:
        """Yield each sequence with an iterator of its rows, which must be read before the next sequence.

        Rows and sequences are in the same order.

        Raises:
            StateError: rows are left over.
        """
        head = next(rows, None)

        def rows_of(subject: Subject) -> Iterator[Row]:
            nonlocal head
            here, last = place(subject.record).items(), (-1, -1)
            while head is not None and here <= head.items() and last < (head["i"], head["j"]):
                if head["j"] >= len(subject.units):
                    return
                last = head["i"], head["j"]
                yield head
                head = next(rows, None)

        for subject in subjects:
            yield subject, rows_of(subject)
        if head is not None:
            raise StateError(
                f"edges of {head['source']}:{head['line']} do not match the sequences: the input changed; "
                "run the command again"
            )

    def decodings(self, rows: Iterator[Row]) -> Iterator[Decoded]:
        """All sequences with their maps, reconstructed from the rows."""
        for (record, units, *_), pair_rows in self._row_groups(self._subjects(*self._reread()), rows):
            # Rows of an earlier run have the name of the method, but not the unit of its values.
            nats = self.maps.nats and self.config.edges is None
            dependence, edges = map_of(pair_rows, len(units), nats=nats)
            truth = None if self.truth_of is None else self.truth_of(record, units)
            yield Decoded(
                record=record, units=units, dependence=dependence, predicted=frozenset(edges), truth=truth
            )

    def figures(self, rows: Iterable[Row]) -> Figures:
        """Counts of pairs and edges, means of the details of the method, and agreement with a truth."""
        if self.config.dry_run:
            return {"passes": sum(row["passes"] for row in rows), "method": self.maps.name}
        counts, methods = Counter[str](), set[str]()
        details, last = dict[str, list[float]](), dict[str, Any]()

        def count_rows() -> Iterator[Row]:
            nonlocal last
            for row in rows:
                counts.update(pairs=1, edges=bool(row.get("predicted")))
                methods.add(row["method"])
                if not last.items() <= row.items() or not last:
                    last = {name: row[name] for name in ("id", "source", "line")}
                    for name in row.keys() - COLUMNS - NUMBERS:
                        details.setdefault(name, []).append(row[name])
                yield row

        quality = self._quality(all_rows := count_rows())
        deque(all_rows, maxlen=0)
        available = {"pairs": self.all_pairs, "edges": self.decoder is not None}
        totals = {name: counts[name] for name, is_known in available.items() if is_known}
        means = {name: float(np.mean(numbers)) for name, numbers in sorted(details.items())}
        return {**totals, "method": ", ".join(sorted(methods)) or self.maps.name, "details": means, **quality}

    def _quality(self, rows: Iterator[Row]) -> Figures:
        """The quality of the ranking of pairs, and the field's own measures, if a truth is known."""
        if self.truth_of is None or self.decoder is None:
            return {}
        rankings, truth_count = Rankings(self.config.seed), 0

        def compared_records() -> Iterator[Decoded]:
            nonlocal truth_count
            for decoded in self.decodings(rows):
                if decoded.truth is not None:
                    truth_count += 1
                    rankings.add(*decoded.ranking(self.separation))
                    yield decoded

        measures = self.decoder.measures(all_records := compared_records())
        deque(all_records, maxlen=0)  # a field without measures does not read the records
        ranking = rankings.ranking()
        if People(truth_count).withheld or People(ranking.get("sequences", 0)).withheld:
            return {"with_truth": truth_count}
        finite_measures = {name: value for name, value in measures.items() if np.isfinite(value)}
        figures: dict[str, Any] = {"with_truth": truth_count}
        if ranking:
            figures |= {name: ranking["model"][name]["value"] for name in MEASURES}
            figures["prevalence"] = ranking["prevalence"]
        if (name := self.decoder.measure) in finite_measures:
            figures[f"field_{name}" if name in figures else name] = finite_measures[name]
        return {**figures, "ranking": ranking, "measures": finite_measures}

    def _line(self, row: Row) -> str:
        """A line for the terminal: both units with their positions from 1, and the value of the pair."""
        if "i" not in row:
            return terminal_line(row)
        units = (f"{row[f'position_{at}']} {row[f'unit_{at}']}" for at in "ij")
        value = "" if row["value"] is None else f"{row['value']:.4g}"
        return "  ".join([*row_location(row), " - ".join(units), value])

    def conclusion(self, figures: Figures, items: People, rows: ReadRows) -> Conclusion:
        text, method = items_text(self, items), f"(method {figures['method']})"
        if self.config.dry_run:
            count = figures["passes"]
            return Conclusion(f"{text}: {f'{count:,}' if isinstance(count, int) else count} passes {method}")
        if "pairs" in figures:
            text = f"{number_of(figures['pairs'], 'pair')} of {text}"
        if "edges" in figures:
            return Conclusion(f"{text}, {number_of(figures['edges'], 'edge')} {method}")
        return Conclusion(f"{text} {method}; this domain has no rule for edges")

    def tables(self, figures: Figures) -> Iterator[Table]:
        if ranking := figures.get("ranking"):
            rankings = ((name, ranking[kind]) for kind, name in RANKED.items())
            rows = [(name, *(_interval(ranks[measure]) for measure in MEASURES)) for name, ranks in rankings]
            yield Table("Pairs against the truth", ["ranked by", "AUROC", "AUPRC"], rows)
        if measures := figures.get("measures"):
            yield Table("Measures of the field", ["measure", "value"], [*measures.items()])
        if details := figures.get("details"):
            yield Table("Details of the method", ["detail", "mean"], [*details.items()])

    def page(self, page: Page, rows: ReadRows, figures: Figures) -> None:
        """Add the figures, and pictures of the first sequences if the page may draw records."""
        super().page(page, rows, figures)
        if not page.draws_records:
            if "with_truth" in figures and "ranking" not in figures:
                page.warnings(
                    [f"Agreement with the truth is withheld: fewer than {SMALLEST} records have one."]
                )
            return
        page.section("", f"Pictures show the first {PICTURED} sequences. Positions count from 1.")
        for decoded in islice(self.decodings(rows()), PICTURED):
            draw(page, self.decoder, decoded, self.separation)

    def extra_files(self, rows: ReadRows) -> list[Path]:
        """Write the graphs and the field's own files."""
        if (folder := self.config.graphs) is None:
            return []
        assert self.decoder is not None
        maps = Repeatable(lambda: self.decodings(rows()))
        graphs = Repeatable(
            lambda: (Component(decoded.record.id, decoded.units, decoded.edges) for decoded in maps)
        )
        texts = {
            "edges.json": json_pieces(graphs),
            "edges.graphml": graphml(graphs),
            **self.decoder.files(maps),
        }
        for name, pieces in texts.items():
            _write(folder / name, pieces)
        return [folder / name for name in texts]


def _write(path: Path, pieces: Iterable[str]) -> None:
    lines = (piece.encode("utf-8", "backslashreplace") for piece in pieces)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        refuse_foreign(path, "--graphs")
        replace_file(path, lambda file: file.writelines(lines))
        remember(path)
    except OSError as error:
        raise write_error(path, error) from None


def _interval(figure: Mapping[str, float | None]) -> str:
    bounds = "" if figure["low"] is None else f" ({figure['low']:.3f} to {figure['high']:.3f})"
    return f"{figure['value']:.3f}{bounds}"
