"""Structure: which units of a sequence depend on each other by a model, as edges, graphs and a report.

The rows are edges. Everything else (graphs, the field's own files, figures, report) is made from the table of
edges once that is complete, with the sequences read again: a run that was resumed gives the same files as one
that was not, and memory holds one sequence with its map at a time. The trade-off is that the input must be
there a second time: of standard input there are rows alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TextIO

import numpy as np
from markupsafe import Markup

from seqmlm.data.privacy import SMALLEST, redacted_count
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.rows import read_rows
from seqmlm.domains.structure import Decoded, Pair, Truth
from seqmlm.engine.durable import entry_of, replace_file
from seqmlm.errors import DataError, StateError, number_of
from seqmlm.evaluation.edges import MEASURES, Ranking, Rankings
from seqmlm.evaluation.intervals import Difference
from seqmlm.inference.batches import tokens_per_second
from seqmlm.inference.estimate import totals
from seqmlm.inference.runner import NoProgress, Progress
from seqmlm.parsing import read_json
from seqmlm.reports.page import Cell, Page
from seqmlm.streams.cursor import differences
from seqmlm.streams.sinks import Fields, tsv_cell, unwritable
from seqmlm.structure.graphs import Component, graphml
from seqmlm.structure.maps import DependenceMap, Doubles
from seqmlm.tasks.corpus import shown_name
from seqmlm.tasks.gaps import Written, keep_report, write_rows
from seqmlm.tasks.score_plan import about
from seqmlm.tasks.structure_plan import EDGES, LAYERS, Plan, Shaped, StructureConfig, StructureCounts

REPORT, SETTINGS = "report.html", "settings.json"

PICTURED = 20
"""Sequences that a report shows, the first ones."""

LISTED = 10
"""Strongest edges of each of them that are listed."""

LONG = 3600.0
"""Seconds from which a person is told what would take less."""

KEPT_BYTES = 64 << 20
"""Larger files are not copied into the run of MLflow."""

Knows = Callable[[Record, Sequence[str]], Truth | None]


@dataclass(frozen=True, kw_only=True)
class StructureResult:
    """How all sequences came out.

    Args:
        sequences, bad: with a map, and left out.
        pairs, edges: rows, and those taken for edges; None in a field that does not say which.
        method: that made the maps.
        passes: masked or changed copies that the model was asked about.
        details: figures of the method, as means over sequences.
        known: sequences with a truth.
        ranking: of their pairs; None without a truth.
        measure: name of the field's own measure.
        measures: the field's own figures, this one first.
        folder: where the files are. files: their names.
        written: how the run ended.
        sensitive: small counts are withheld.
    """

    sequences: int
    bad: int
    pairs: int
    edges: int | None
    method: str
    passes: int
    details: Mapping[str, float]
    known: int
    ranking: Ranking | None
    measure: str | None
    measures: Mapping[str, float]
    folder: Path | None
    files: Sequence[str]
    written: Written
    sensitive: bool = False

    @property
    def withheld(self) -> bool:
        """Whether figures about a truth would be of too few people."""
        counts = [self.known, 0 if self.ranking is None else self.ranking.sequences]
        return self.sensitive and any(0 < count < SMALLEST for count in counts)

    def figures(self) -> dict[str, float]:
        """What can be compared between runs."""
        found: dict[str, float] = {"pairs": self.pairs, "passes": self.passes, **self.details}
        if self.edges is not None:
            found["edges"] = self.edges
        if self.withheld:
            return found
        if (own := self.ranking) is not None:
            for name in MEASURES:
                found |= {name: own.values[name].value, f"{name}_of_distance": own.distance[name].value}
            found["prevalence"] = own.prevalence
        return found | {_own(name): value for name, value in self.measures.items()}

    def to_dict(self) -> dict[str, Any]:
        """What machines read."""
        count = redacted_count if self.sensitive else int
        told: dict[str, Any] = {
            "sequences": count(self.sequences),
            "bad_records": count(self.bad),
            "pairs": self.pairs,
            "edges": self.edges,
            "method": self.method,
            "passes": self.passes,
            "details": dict(self.details),
            "seconds": self.written.seconds,
            "folder": None if self.folder is None else str(self.folder),
            "files": list(self.files),
        }
        if not self.known:
            return told
        told["with_truth"] = count(self.known)
        if self.withheld:
            return told
        if (own := self.ranking) is not None:
            told |= {name: own.values[name].value for name in MEASURES}
            told["prevalence"] = own.prevalence
            told["ranking"] = {
                "sequences": own.sequences,
                "pairs": own.pairs,
                "true": own.true,
                **{kind: _intervals(x) for kind, x in _ranked(own)},
            }
        if self.measure is not None and self.measure in self.measures:
            told[_own(self.measure)] = self.measures[self.measure]
        return told | {"measures": dict(self.measures)}

    def sentence(self) -> str:
        """What a person is told."""
        told = f"{number_of(self.pairs, 'pair')} of {_shown(self.sequences, self.sensitive)} by {self.method}"
        if self.edges is not None:
            told += f", {number_of(self.edges, 'edge')}"
        left_out = f", {_shown(self.bad, self.sensitive, 'bad record')} left out" if self.bad else ""
        copies = "1 masked copy" if self.passes == 1 else f"{self.passes:,} masked copies"
        return f"{told}{left_out}: {copies}, {self.written.seconds:.1f} s"


def _own(name: str) -> str:
    """What the summary calls a figure of the field, which may have the name of one that all fields have."""
    return f"field_{name}" if name in (*MEASURES, "prevalence") else name


def _shown(count: int, sensitive: bool, what: str = "sequence") -> str:
    return f"fewer than {SMALLEST} {what}s" if sensitive and 0 < count < SMALLEST else number_of(count, what)


def map_structure(
    config: StructureConfig, stdout: TextIO, progress: Progress | None = None
) -> StructureResult:
    """Map the sequences of files: edges as rows, and into a folder graphs, figures and a report as well.

    Args:
        config: the model, the sequences and what is wanted.
        stdout: where edges go without a folder.
        progress: told what happens on the way.

    Raises:
        UsageError: a request that makes no sense, or a truth in a field that does not read one.
        DataError: sequences or a truth that cannot be read.
        StateError: no such model, or files that cannot be written.
    """
    told = progress or NoProgress()
    config.check()
    if config.folder is None and not config.shown:
        with TemporaryDirectory() as folder:
            # Figures need the edges a second time, and nobody wants to keep them.
            found = _mapped(replace(config, folder=Path(folder)), stdout, told, kept=False)
            return replace(found, folder=None, files=())
    return _mapped(config, stdout, told, kept=config.folder is not None)


def _mapped(config: StructureConfig, stdout: TextIO, told: Progress, *, kept: bool) -> StructureResult:
    session = config.open()
    plan = Plan(config, session, told)
    problems = Problems("skip" if config.on_error == "quarantine" else config.on_error)
    knows: Knows | None = None
    if config.truth is not None and plan.decoder is not None:
        knows = plan.decoder.truths(config.truth, problems)
        told_of = (knows(one.record, one.units) is not None for one in plan.again())
        if next(told_of, None) is False and not any(told_of):
            raise DataError(
                "none of the sequences is in this truth",
                source=str(config.truth),
                remedy="give the truth of these sequences: it names them as their file does",
            )
    plan.check()
    told.message(_chosen(plan))
    counts = StructureCounts()
    written = _rows(plan, counts, stdout, told)
    if config.folder is None or written.stopped is not None:
        return _result(plan, counts, written)
    results = Results(plan, config.folder / EDGES, knows, nats=counts.nats)
    result = _result(plan, counts, written, results)
    if kept:
        files = write_files(plan, results, config.folder)
        result = replace(result, folder=config.folder, files=(EDGES, *files, REPORT))
        made = page(plan, result, results)
        keep(plan, result, made)
    return result


def _chosen(plan: Plan) -> str:
    """What will be done, and about how long that takes."""
    found = plan.maps.name
    if plan.config.estimator == "auto" and plan.config.method == "cmi":
        found = f"--estimator auto: {found}"
    if "-" in plan.config.paths:
        return found
    work = estimate(plan)
    if not work.passes:
        return found
    less = "; --method cpmi takes less" if work.seconds > LONG and plan.config.method == "cmi" else ""
    return f"{found}; about {work.passes:,.0f} masked copies, {about(work.seconds)} by estimate{less}"


class Work(NamedTuple):
    """What maps take, by estimate: masked or changed copies, and seconds."""

    passes: float
    seconds: float


def estimate(plan: Plan) -> Work:
    """What all maps take, by the input and the model, never by a clock."""

    def cost(shaped: Iterable[Shaped]) -> Doubles:
        every = [(plan.maps.passes(x), plan.maps.cost(x)) for one in shaped for x in one.encodings]
        found: Doubles = np.sum([(0.0, 0.0), *every], axis=0)
        return found

    if plan.through is not None:
        passes, tokens = cost(plan.again()).tolist()
    else:
        config, problems = plan.config, Problems("skip", sensitive=plan.session.card.sensitive)
        found = totals(
            plan.session,
            lambda one: cost(plan.shaped([one], problems)),
            config.paths,
            format=config.format,
            options=plan.options,
            entries=2,
        )
        assert found is not None  # standard input is refused before
        (passes, tokens), _ = found
    return Work(passes, tokens / tokens_per_second(plan.session.model))


def dry_run(config: StructureConfig, progress: Progress | None = None) -> dict[str, Any]:
    """What a run would take: `passes` and `seconds` by estimate, and the `method`; nothing is asked.

    Raises:
        UsageError, DataError, StateError: as `map_structure`.
    """
    told = progress or NoProgress()
    config = replace(config, summary=True)
    config.check()
    plan = Plan(config, replace(config, out=Path(EDGES)).open(), told)
    plan.check()
    work = estimate(plan)
    return {"method": plan.maps.name, "passes": round(work.passes), "seconds": work.seconds}


# Rows


def _rows(plan: Plan, counts: StructureCounts, stdout: TextIO, told: Progress) -> Written:
    """Write the edges of all sequences, unless a run that is continued has done that."""
    config, session = plan.config, plan.session
    request = None if config.folder is None else config.request(session)
    if config.resume and config.folder is not None and (done := _done(config.folder, request)) is not None:
        told.message(f"all edges are in {config.folder / EDGES} already")
        counts.restore(done["counts"])
        return Written(
            records=counts.asked, bad=done["bad"], notes={}, out=config.out, stopped=None, seconds=0.0
        )

    every = config.every or config.folder is not None or plan.decoder is None

    def rows(found: list[Decoded]) -> list[Fields]:
        made = [plan.rows(one, every=every) for one in found]
        for one, own in zip(found, made, strict=True):
            counts.add(one, len(own))
        return [row for own in made for row in own]

    written = write_rows(
        config,
        session,
        plan.columns,
        plan.through,
        plan.decoded,
        rows,
        stdout,
        counts=counts,
        budget=plan.budget(),
        options=plan.options,
        progress=told,
    )
    if config.folder is not None and written.stopped is None:
        done = {"request": request, "counts": counts.snapshot(), "bad": written.bad}
        done["edges"] = entry_of(config.folder / EDGES)
        _write(plan, config.folder / SETTINGS, json.dumps(done, default=str, indent=1) + "\n")
    return written


def _done(folder: Path, request: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What an earlier run told of the edges that it completed, if they are those of this request."""
    try:
        found: dict[str, Any] = read_json(folder / SETTINGS)
        same = not differences(found["request"], json.loads(json.dumps(request, default=str)))
        return found if same and found["edges"] == entry_of(folder / EDGES) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(plan: Plan, path: Path, text: str | bytes | Iterator[str]) -> None:
    """Write a file, whole or not at all; of sensitive data for its owner alone.

    Raises:
        StateError: it cannot be written.
    """

    def fill(file: Any) -> None:
        pieces = text if isinstance(text, Iterator) else iter([text])
        for piece in pieces:
            file.write(piece if isinstance(piece, bytes) else piece.encode("utf-8", "backslashreplace"))

    try:
        replace_file(path, fill, mode=0o600 if plan.session.card.sensitive else 0o666)
    except OSError as error:
        raise unwritable(path, error) from None


# What the rows say of all sequences


class _Edge(NamedTuple):
    id: str
    pair: Pair
    layers: tuple[float, ...]
    predicted: bool


class Results:
    """All sequences with their maps, read anew from the edges and the input by everyone who asks.

    Args:
        plan: that the edges were made by.
        path: of the edges.
        knows: (record, units) -> what is known of it; None where no truth is given.
        nats: whether values are nats.
    """

    def __init__(self, plan: Plan, path: Path, knows: Knows | None, *, nats: bool) -> None:
        self.plan, self._path, self._knows, self.nats = plan, path, knows, nats

    def __iter__(self) -> Iterator[Decoded]:
        rows = self._edges()
        head = next(rows, None)
        for one in self.plan.again():
            name, size = tsv_cell(one.record.id), len(one.units)
            layers, edges, last = np.full((len(LAYERS), size, size), np.nan), set[Pair](), (-1, -1)
            while head is not None and head.id == name and last < head.pair and head.pair[1] < size:
                last = i, j = head.pair
                layers[:, i, j] = layers[:, j, i] = head.layers
                if head.predicted:
                    edges.add(head.pair)
                head = next(rows, None)
            values, error, z, p = layers
            made = DependenceMap(
                values=values, error=error, z=z, p=p, method=self.plan.maps.name, nats=self.nats
            )
            truth = None if self._knows is None else self._knows(one.record, one.units)
            found = frozenset(edges)
            yield Decoded(record=one.record, units=one.units, dependence=made, predicted=found, truth=truth)
        if head is not None:
            raise StateError(
                f"{self._path} has edges of sequences that are not in the input: it has changed meanwhile; "
                "run the command again"
            )

    def known(self) -> Iterator[Decoded]:
        """Those of which something is known."""
        return (one for one in self if one.truth is not None)

    def _edges(self) -> Iterator[_Edge]:
        for _, row in read_rows(str(self._path)):
            figures = tuple(float(row[name]) if row[name] else np.nan for name in LAYERS)
            pair = int(row["i"]), int(row["j"])
            yield _Edge(row["id"], pair, figures, row.get("predicted") == "true")


def _result(
    plan: Plan, counts: StructureCounts, written: Written, results: Results | None = None
) -> StructureResult:
    known, ranking, measures = 0, None, dict[str, float]()
    if results is not None and plan.config.truth is not None and plan.decoder is not None:
        rankings = Rankings(plan.config.seed)
        for one in results.known():
            known += 1
            rankings.add(*_judged(plan, one))
        ranking, measures = rankings.ranking(), plan.decoder.measures(results.known())
    return StructureResult(
        sequences=sum(counts.methods.values()),
        bad=written.bad,
        pairs=counts.rows,
        edges=None if plan.decoder is None else counts.edges,
        method=", ".join(sorted(counts.methods)) or plan.maps.name,
        passes=counts.passes,
        details={name: total / number for name, (total, number) in sorted(counts.details.items())},
        known=known,
        ranking=ranking,
        measure=None if plan.decoder is None else plan.decoder.measure,
        measures=measures,
        folder=None,
        files=(),
        written=written,
        sensitive=plan.session.card.sensitive,
    )


def _judged(plan: Plan, one: Decoded) -> tuple[Any, Any, Any]:
    """(P,) whether the truth has each judged pair of which it says anything, its value, and its distance."""
    assert one.truth is not None
    first, second = plan.judged(one.dependence)
    values = one.dependence.values[first, second]
    pairs = list(zip(first.tolist(), second.tolist(), strict=True))
    labels = np.array([pair in one.truth.edges for pair in pairs], dtype=np.bool_)
    if (known := one.truth.known) is not None:
        told = np.array([known(pair) for pair in pairs], dtype=np.bool_)
        first, second, values, labels = first[told], second[told], values[told], labels[told]
    return labels, values, second - first


# Files


def write_files(plan: Plan, results: Results, folder: Path) -> list[str]:
    """Write graphs and the field's own files; their names.

    Raises:
        StateError: one cannot be written.
    """
    if plan.decoder is None:
        return []
    _write(plan, folder / "edges.json", _json(results))
    components = (Component(one.record.id, one.units, _edges(one)) for one in results)
    _write(plan, folder / "edges.graphml", graphml(components))
    own = plan.decoder.files(results)
    for name, text in own.items():
        _write(plan, folder / name, text)
    return ["edges.json", "edges.graphml", *own]


def _edges(one: Decoded) -> list[tuple[int, int, float]]:
    """Unit, unit and value of what is taken for an edge, in order."""
    return [(i, j, float(one.dependence.values[i, j])) for i, j in sorted(one.predicted)]


def _json(results: Results) -> Iterator[str]:
    """A list with an object a sequence, in pieces."""
    comma = "["
    for one in results:
        edges = [
            {"i": i, "j": j, "value": value if np.isfinite(value) else None} for i, j, value in _edges(one)
        ]
        told = {"id": one.record.id, "units": list(one.units), "edges": edges}
        yield f"{comma}\n{json.dumps(told, ensure_ascii=False)}"
        comma = ","
    yield "[]\n" if comma == "[" else "\n]\n"


def keep(plan: Plan, result: StructureResult, made: Page) -> None:
    """Write the report, and keep it with the files and figures in a run of MLflow."""
    assert result.folder is not None
    config, files = plan.config, [result.folder / name for name in result.files]
    known = {name: value for name, value in result.figures().items() if np.isfinite(value)}
    keep_report(
        config,
        plan.session,
        "structure",
        made,
        result.folder / REPORT,
        known,
        {"method": result.method, "apc": plan.maps.settings.apc, "separation": plan.separation},
        [file for file in files if file.name != REPORT and file.stat().st_size <= KEPT_BYTES],
    )


# Report


def page(plan: Plan, result: StructureResult, results: Results) -> Page:
    """The report: figures of all sequences, and the first of them one by one where data are not sensitive."""
    config = plan.config
    named = "" if result.sensitive else f"{shown_name(config.paths)}, "
    made = Page(f"Structure by {config.model}", f"{named}{result.method}")
    count = redacted_count if result.sensitive else int
    cards: dict[str, Cell] = {"sequences": count(result.sequences), "pairs": result.pairs}
    if result.edges is not None:
        cards["edges"] = result.edges
    made.cards({**cards, "left out": count(result.bad)})
    if result.withheld:
        made.warnings([f"Figures about a truth of fewer than {SMALLEST} records are withheld."])
    elif (own := result.ranking) is not None:
        rows = [[_RANKED[kind], *(_interval(x[m]) for m in MEASURES)] for kind, x in _ranked(own)]
        made.table("Pairs against the truth", ["ranked by", "AUROC", "AUPRC"], rows)
        means = f"Means over {number_of(own.sequences, 'sequence')} with pairs of both kinds"
        made.section("", f"{means}; {own.prevalence:.1%} are true.")
    if result.measures and not result.withheld:
        made.table("Figures of the field", ["figure", "value"], list(result.measures.items()))
    if result.details:
        made.table("Figures of the method", ["figure", "mean"], list(result.details.items()))
    if not result.sensitive:
        _sequences(made, plan, results, result.sequences)
    return made


_RANKED = {
    "model": "the model",
    "distance": "minus the distance",
    "gain": "difference",
}


def _ranked(own: Ranking) -> list[tuple[str, Mapping[str, Difference]]]:
    return [("model", own.values), ("distance", own.distance), ("gain", own.gain)]


def _intervals(own: Mapping[str, Difference]) -> dict[str, Any]:
    return {name: {"value": one.value, "low": one.low, "high": one.high} for name, one in own.items()}


def _interval(one: Difference) -> str:
    bounds = "" if np.isnan(one.low) else f" ({one.low:.3f} to {one.high:.3f})"
    return f"{one.value:.3f}{bounds}"


def _sequences(made: Page, plan: Plan, results: Results, count: int) -> None:
    unit = "nats" if results.nats else "value"
    note = f"above the diagonal: {unit}; places count from 0"
    if plan.decoder is not None:
        note += "; below it: edges; where a truth is given, dark if true, pale if true and missed"
    for one in islice(results, PICTURED):
        picture = None if plan.decoder is None else plan.decoder.picture(one)
        if picture is not None:
            made.section(one.record.id, Markup(picture))
        known = frozenset[Pair]() if one.truth is None else one.truth.edges
        values = one.dependence.values
        units = [" ".join(text.split()) or repr(text)[1:-1] for text in one.units]
        made.matrix(
            one.record.id if picture is None else "",
            values,
            units,
            one.predicted,
            known,
            scale=_scale(plan, one),
            unit=unit,
            note=note,
        )
        first, second = plan.judged(one.dependence)
        order = np.argsort(-values[first, second], kind="stable")[:LISTED]
        rows: list[tuple[Cell, ...]] = []
        for i, j in zip(first[order].tolist(), second[order].tolist(), strict=True):
            rows.append((f"{i} {units[i]}", f"{j} {units[j]}", float(values[i, j]), (i, j) in one.predicted))
        made.table("", ["unit", "and unit", unit, "edge"], rows)
    if count > PICTURED:
        made.section("", f"The first {PICTURED} of {count:,} sequences are shown; edges.tsv has all.")


def _scale(plan: Plan, one: Decoded) -> float:
    """The value of the strongest colour: nearly the highest of a sequence, in eight steps of two digits."""
    values = one.dependence.values[plan.judged(one.dependence)]
    top = float(np.quantile(values, 0.995)) if len(values) else 1.0
    return 8 * float(f"{max(top, 1e-9) / 8:.2g}")
