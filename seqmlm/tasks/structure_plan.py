"""What follows from a request for structure: the field's decoder, the estimator, and the rows of a sequence.

A row is a pair of units that is judged, so that `edges.tsv` holds all that is known of a map: what needs it
again (graphs, figures, a report) reads that file.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.files import expand
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.structure import Decoded, Decoder
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import unit_numbers
from seqmlm.errors import DataError, UsageError
from seqmlm.inference.batches import Budget, Encoded, batches, encoded
from seqmlm.inference.maps import Asked, Family, Maps, families, row_options
from seqmlm.inference.runner import Counts, Progress
from seqmlm.inference.session import NO_ENCODING, Session
from seqmlm.streams.cursor import file_facts
from seqmlm.streams.sinks import Fields, Schema
from seqmlm.structure.base import StructureSettings
from seqmlm.structure.maps import DependenceMap, Null, Over, nulls
from seqmlm.tasks.gaps import GapConfig
from seqmlm.tasks.task import placed

Longs = NDArray[np.int64]

EDGES = "edges.tsv"
LAYERS = ("value", "se", "z", "p")
"""Columns of a row that are figures of a map."""


@dataclass(frozen=True, kw_only=True)
class StructureConfig(GapConfig):
    """What `seqmlm structure` can be told; `out` follows from `folder`.

    Args:
        method, estimator, distance, columns, rows, symmetric, steps, k, seed: as of `StructureSettings`.
        apc: correct maps by the average product; None for what the field does.
        together: units of one name are hidden together, and a pair of names has one value, at the first unit
            of each; None for what the field does.
        separation: least distance of units whose pair is judged; None for the field's.
        both_strands: a map is the mean over both strands.
        null, null_model: null models of each sequence by which pairs get z and p, 0 for none; and their kind.
        family: the sequences are rows of alignments, of each of which one mean map is made.
        sequences: of a family, at most.
        every: on standard output all pairs, not those alone that are taken for edges.
        truth: what is known of the structure.
        folder: where edges, graphs and report go; None for standard output.
        summary: nothing goes to standard output: only the figures are wanted.
    """

    method: str = "cmi"
    estimator: str = "auto"
    distance: int | None = None
    separation: int | None = None
    columns: Over = "max"
    rows: Over = "mean"
    symmetric: Over = "mean"
    apc: bool | None = None
    steps: int = 2000
    k: int = 128
    seed: int = 0
    together: bool | None = None
    both_strands: bool = False
    null: int = 0
    null_model: Null = "shuffled"
    family: bool = False
    sequences: int = 20
    every: bool = False
    truth: Path | None = None
    folder: Path | None = None
    summary: bool = False

    def __post_init__(self) -> None:
        if self.folder is not None:
            object.__setattr__(self, "out", self.folder / EDGES)
        for name, least in (("distance", 1), ("separation", 1), ("null", 0), ("sequences", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise UsageError(f"{name} is at least {least}; got {value}")
        if self.distance is not None and self.separation is not None and self.distance < self.separation:
            raise UsageError("no pair is as near as --distance and as far as --min-separation")

    @property
    def shown(self) -> bool:
        """Whether edges go to standard output."""
        return self.folder is None and self.truth is None and not self.summary

    def check(self) -> None:
        super().check()
        if self.folder is not None and self.format_out is not None:
            raise UsageError("--format-out is of standard output; a folder has edges.tsv")
        if "-" in self.paths and (not self.shown or self.method == "pmi"):
            raise UsageError(
                "standard input cannot be read twice, as --out, --truth, --json, --dry-run and --method pmi "
                "need: write it to a file"
            )
        if self.folder is not None:
            if self.folder.exists() and not self.folder.is_dir():
                raise UsageError(f"--out {self.folder} is a file; name a folder")
            home = self.folder.resolve()
            read = [*map(str, expand(self.paths)), *([] if self.truth is None else [str(self.truth)])]
            if any(one != "-" and Path(one).resolve().is_relative_to(home) for one in read):
                raise UsageError(f"--out {self.folder} holds what is read; name another folder")

    def settings(self, decoder: Decoder | None) -> StructureSettings:
        """Of the estimator."""
        names = {one.name for one in fields(StructureSettings)} & {one.name for one in fields(self)}
        own = {name: getattr(self, name) for name in names}
        for name in ("apc", "together"):
            if own[name] is None:
                own[name] = decoder is not None and bool(getattr(decoder, name))
        return StructureSettings(**own)

    def request(self, session: Session) -> dict[str, Any]:
        told = super().request(session)
        for name in ("folder", "truth", "every", "summary"):
            del told[name]
        files = session.domain.files(self.paths, format=self.format, options=self.options)
        return {
            **told,
            "precision": session.precision,
            "input": file_facts(files),
            "model file": file_facts(session.model.files),
        }


class StructureCounts(Counts):
    """What is told of all maps together: rows, edges among them, passes, methods, figures of the method."""

    def __init__(self) -> None:
        self.edges = self.passes = 0
        self.nats = True
        self.methods: Counter[str] = Counter()
        self.details: dict[str, list[float]] = {}  # name -> sum and number

    def restore(self, counts: Mapping[str, Any]) -> None:
        super().restore(counts)
        self.edges, self.passes = int(counts.get("edges", 0)), int(counts.get("passes", 0))
        self.nats = bool(counts.get("nats", True))
        self.methods = Counter(counts.get("methods", {}))
        self.details = {name: list(own) for name, own in counts.get("details", {}).items()}

    def snapshot(self) -> dict[str, Any]:
        own = {"edges": self.edges, "passes": self.passes, "nats": self.nats}
        return {**super().snapshot(), **own, "methods": dict(self.methods), "details": self.details}

    def add(self, one: Decoded, rows: int) -> None:
        """Take in one sequence and how many rows it has."""
        self.rows += rows
        self.edges += len(one.predicted)
        self.passes += one.dependence.passes
        self.nats = one.dependence.nats
        self.methods[one.dependence.method] += 1
        for name, value in one.dependence.details.items():
            own = self.details.setdefault(name, [0.0, 0.0])
            own[0], own[1] = own[0] + float(value), own[1] + 1


class Shaped(NamedTuple):
    """A sequence that a map is made of.

    record: as the field has it. units: how each is spelled.
    encodings: of the sequence; of a family those of all members, its own first. family: or None.
    """

    record: Record
    units: Sequence[str]
    encodings: Sequence[Encoding]
    family: Family | None


def with_names(encoding: Encoding, names: Sequence[str]) -> Encoding:
    """A sequence whose units (N,) have these names as symbols."""
    _, number = np.unique(np.array(names, dtype=np.object_), return_inverse=True)
    return replace(encoding, symbols=np.append(number, -1)[unit_numbers(encoding)].astype(np.int32))


class Plan:
    """How sequences become edges.

    Args:
        config: what is wanted.
        session: the model.
        told: learns what was chosen.
    """

    def __init__(self, config: StructureConfig, session: Session, told: Progress) -> None:
        self.config, self.session = config, session
        self.decoder: Decoder | None = None
        try:
            self.decoder = copy.copy(session.domain.decoder())
        except UsageError as error:
            if config.truth is not None:
                raise
            told.message(f"{error}: pairs have values, and none is taken for an edge")
        if self.decoder is not None and config.separation is not None:
            self.decoder.separation = config.separation
        if config.together and (self.decoder is None or self.decoder.together is None):
            raise UsageError(
                f"domain {session.domain.name} does not say which units have one name: leave out --together"
            )
        given = config.separation or 1
        self.separation = given if self.decoder is None else self.decoder.separation
        self.options = {**(row_options(session, config.format) if config.family else {}), **config.options}
        self.through = families(session, config.sequences) if config.family else None
        settings = config.settings(self.decoder)
        self.maps = Maps(
            session,
            settings,
            null=config.null,
            kind=config.null_model,
            corpus=self.corpus(),
            both_strands=config.both_strands,
        )

    def check(self) -> None:
        """Refuse null models of sequences whose units cannot be moved, by the first sequence of a file.

        Raises:
            UsageError: it is one of these.
        """
        if not self.config.null or "-" in self.config.paths:
            return
        if (first := next(self.again(), None)) is not None:
            space, kind = self.session.tokenizer.space, self.config.null_model
            next(nulls(first.encodings[0], space, 1, kind=kind))

    @property
    def columns(self) -> Schema:
        """Of the rows."""
        known: dict[str, Any] = {"id": "text", "i": "integer", "j": "integer"}
        known |= {"unit_i": "text", "unit_j": "text", **dict.fromkeys(LAYERS, "number")}
        return Schema(columns=known | ({} if self.decoder is None else {"predicted": "flag"}), closed=True)

    def shaped(self, batch: Sequence[Encoded], problems: Problems) -> list[Shaped]:
        """The sequences of a batch of which a map is made; others go to `problems`."""
        found = []
        for record, encoding in batch:
            try:
                found.append(self._shaped(record, self._encodings(record, encoding)))
            except DataError as error:
                problems.bad(placed(error, record, problems.sensitive))
        return found

    def _encodings(self, record: Record, encoding: Encoding) -> Sequence[Encoding]:
        """Of a sequence, or of the members of a family."""
        if not isinstance(record.raw, Family):
            return [encoding]
        return self.session.tokenizer.encode_batch([one.raw for one in record.raw.members])

    def _shaped(self, record: Record, encodings: Sequence[Encoding]) -> Shaped:
        family = record.raw if isinstance(record.raw, Family) else None
        if family is not None:
            record = replace(record, raw=family.members[0].raw)
            family.check([len(self.maps.units.numbers(one)) for one in encodings])
        units = self._spelled(record, encodings[0])
        if self.maps.settings.together:
            assert self.decoder is not None
            encodings = [with_names(one, self.decoder.names(record, units)) for one in encodings]
        for one in encodings:
            if (reason := self.maps.refusal(one)) is not None:
                raise DataError(reason, remedy="cut the sequence into parts, or give a smaller --distance")
        return Shaped(record, units, encodings, family)

    def _spelled(self, record: Record, encoding: Encoding) -> list[str]:
        tokenizer = self.session.tokenizer
        text = tokenizer.conceal(self.session.domain.spelled(record.raw))
        spans = self.maps.units.spans(encoding).tolist()
        return [text[start:end] for start, end in spans]

    def decoded(self, batch: Sequence[Encoded], problems: Problems) -> list[Decoded]:
        """The sequences of a batch with their maps and edges."""
        shaped = self.shaped(batch, problems)
        maps = self.maps.of([Asked(one.encodings, one.family) for one in shaped])
        return [self._decoded(one, made) for one, made in zip(shaped, maps, strict=True)]

    def _decoded(self, one: Shaped, made: DependenceMap) -> Decoded:
        decoder = self.decoder
        edges = frozenset() if decoder is None else decoder.decode(one.record, one.units, made)
        return Decoded(record=one.record, units=one.units, dependence=made, predicted=edges)

    def judged(self, dependence: DependenceMap) -> tuple[Longs, Longs]:
        """(P,) and (P,) the units of the pairs that are judged, in the order of rows."""
        first, second = np.triu_indices(len(dependence), self.separation)
        known = np.isfinite(dependence.values[first, second])
        return first[known], second[known]

    def rows(self, one: Decoded, *, every: bool) -> list[Fields]:
        """The rows of one sequence: all judged pairs, or those alone that are taken for edges."""
        own = one.dependence
        judged = set(zip(*(at.tolist() for at in self.judged(own)), strict=True)) if every else set()
        pairs = sorted(judged | one.predicted)  # an edge may have no value: a tree connects everything
        first, second = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        layers = [own.values, own.error, own.z, own.p]
        figures = [[None] * len(pairs) if x is None else x[first, second].tolist() for x in layers]
        found: list[Fields] = []
        for (i, j), *values in zip(pairs, *figures, strict=True):
            row = {"id": one.record.id, "i": i, "j": j, "unit_i": one.units[i], "unit_j": one.units[j]}
            row |= dict(zip(LAYERS, values, strict=True))
            found.append(row if self.decoder is None else {**row, "predicted": (i, j) in one.predicted})
        return found

    def again(self) -> Iterator[Shaped]:
        """The sequences of the input, in order, those alone that have a map."""
        problems = Problems("skip", sensitive=self.session.card.sensitive)
        for batch in self._batches(problems):
            yield from self.shaped(batch, problems)

    def corpus(self) -> Iterator[Encoding]:
        """All sequences of the input that can be read."""
        for batch in self._batches(Problems("skip", sensitive=self.session.card.sensitive)):
            for record, encoding in batch:
                with suppress(DataError):
                    yield from self._encodings(record, encoding)

    def _batches(self, problems: Problems) -> Iterator[list[Encoded]]:
        session = self.session
        read = session.reader(self.config.paths, format=self.config.format, options=self.options)(problems)
        for some in batches(read if self.through is None else self.through(read, problems)):
            if self.through is not None:
                yield [Encoded(one, NO_ENCODING) for one in some]
            else:
                yield encoded(session.domain, session.tokenizer, some, problems)

    def budget(self) -> Budget:
        """Batches by what maps cost; a family is a batch of its own."""
        usual = Budget.of(self.session.model)
        return replace(usual, cost=self.maps.tokens if self.through is None else lambda _: usual.batch)
