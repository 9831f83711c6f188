"""Compute maps of dependence from records: long sequences by windows, aligned families as a mean map.

Estimators (`seqmlm.structure.estimators`) take sequences that fit into the model. Here, a longer sequence is
cut into windows that overlap by half. Each pair is taken from the window in which it is most central. Pairs
that are in no common window are not computed. The dense map must fit into memory. Therefore the number of
units and the number of pairs are limited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import unit_symbols
from seqmlm.engine.windows import central_windows
from seqmlm.errors import DataError, UsageError
from seqmlm.inference.record_batches import encoded
from seqmlm.inference.session import Session, digest
from seqmlm.structure.base import StructureSettings, with_names
from seqmlm.structure.estimators import PairCounts, estimator
from seqmlm.structure.maps import DependenceMap, Null, apc, null_sequences, with_null_scores

Longs = NDArray[np.int64]
Names = Callable[[Record, Sequence[str]], Sequence[str]]
"""(record, (N,) its units) -> (N,) the name of each unit."""

MOST_UNITS = 4096
"""Largest number of units of a sequence with a map.

Such a map takes 128 MiB, and several maps are in memory together.
"""

MOST_PAIRS = 1 << 20
"""Largest number of pairs of a sequence: all pairs of 1,448 units, or near pairs of more units."""


class MapInput(NamedTuple):
    """Input of one map: a sequence, or the members of a family.

    The first member of a family has the units of the map.
    """

    encodings: Sequence[Encoding]
    family: Family | None = None


class Subject(NamedTuple):
    """A record with a map. For a family, it is the first member.

    Attributes:
        record: the record.
        units: (N,) text of each unit.
        map_input: the input of the map.
        rows: rows for this record from an earlier run.
    """

    record: Record
    units: Sequence[str]
    map_input: MapInput
    rows: Sequence[Mapping[str, Any]] = ()

    @property
    def source(self) -> str:
        return self.record.source

    @property
    def line(self) -> int:
        return self.record.line


class Maps:
    """Computes maps with one model and one estimator.

    Args:
        session: the model.
        settings: settings of the estimator. The average product correction is applied here, to whole maps.
            Otherwise it would be applied to each window or member separately.
        null: number of null models per sequence, which give pairs z-scores and p-values. 0 for none.
        kind: kind of null model, see `seqmlm.structure.maps.null_sequences`.
        corpus: records that the method "pmi" counts.
        family: largest number of rows of an alignment that are used for its map. With None, records are
            separate sequences.
        both_strands: whether a map is the mean of the maps of the two strands.

    Raises:
        UsageError: the model does not support the method, or its sequences have only one strand.
    """

    def __init__(
        self,
        session: Session,
        settings: StructureSettings,
        *,
        null: int = 0,
        kind: Null = "shuffled",
        corpus: Iterable[Record] = (),
        family: int | None = None,
        both_strands: bool = False,
    ) -> None:
        self.session, self.units = session, session.tokenizer.units
        self.settings = replace(settings, candidates=candidates(session))
        self._null, self._kind, self._both = null, kind, both_strands
        self._through = None if family is None else families(session, family)
        if both_strands:
            _check_strands(session, settings)
        counts = None
        if settings.method == "pmi":
            counts = PairCounts(settings.window)
            quiet = Problems("skip")
            for _, map_input in self.encoded(corpus, quiet):
                for encoding in map_input.encodings:
                    counts.add(unit_symbols(self.units, encoding))
        uncorrected = replace(self.settings, apc=False)
        self._estimator = estimator(uncorrected, session.conditionals(), self.units, counts=counts)

    @property
    def name(self) -> str:
        """Name of the estimator and its corrections, such as "cmi/exact, apc"."""
        parts = [self._estimator.name, *["both strands"] * self._both, *["apc"] * self.settings.apc]
        return ", ".join(parts)

    @property
    def nats(self) -> bool:
        """Whether the values are in nats."""
        return self._estimator.nats and not self.settings.apc

    def encoded(self, records: Iterable[Record], problems: Problems) -> Iterator[tuple[Record, MapInput]]:
        """Records with their encodings; for a family, the encodings of all members.

        Records that cannot be tokenized go to `problems`.
        """
        domain, tokenizer = self.session.domain, self.session.tokenizer
        for record in records if self._through is None else self._through(records, problems):
            family = record.raw if isinstance(record.raw, Family) else None
            parts = [record] if family is None else [replace(record, raw=x.raw) for x in family.members]
            encodings = [row.encoding for row in encoded(domain, tokenizer, parts, problems)]
            if len(encodings) == len(parts):
                yield parts[0], MapInput(encodings, family)

    def subject(self, record: Record, map_input: MapInput, names: Names | None = None) -> Subject:
        """A record with the text of its units.

        Args:
            record: the record.
            map_input: its encodings.
            names: names of units. Units with the same name are masked together.

        Raises:
            DataError: the sequence is too long, or a unit of a family is not a single letter.
            UsageError: null models are requested, but the units of the sequence cannot be moved.
        """
        if self._null:
            next(null_sequences(map_input.encodings[0], self.session.tokenizer.space, 1, kind=self._kind))
        if map_input.family is not None:
            map_input.family.check([len(self.units.numbers(encoding)) for encoding in map_input.encodings])
        text = self.session.tokenizer.spelling.conceal(self.session.domain.text.text_of(record.raw))
        units = [text[start:end] for start, end in self.units.spans(map_input.encodings[0]).tolist()]
        if self.settings.together:
            assert names is not None
            map_input = map_input._replace(
                encodings=[with_names(x, names(record, units)) for x in map_input.encodings]
            )
        for encoding in map_input.encodings:
            if (reason := self.refusal(encoding)) is not None:
                raise DataError(reason, remedy="cut the sequence into parts, or give a smaller distance")
        return Subject(record, units, map_input)

    def refusal(self, encoding: Encoding) -> str | None:
        """Why a sequence cannot have a map, or None."""
        first = self._estimator.representatives(encoding)
        count, places = len(first), len(np.unique(first))
        pairs = places * min(places, self.settings.distance or places)
        if count <= MOST_UNITS and pairs <= 2 * MOST_PAIRS:
            return None
        return f"a sequence of {count:,} units, too many for a map of all pairs"

    def passes(self, encoding: Encoding) -> int:
        """Number of masked or changed copies of a sequence for its map."""
        return sum(count for _, count in self._copies(encoding))

    def cost(self, encoding: Encoding) -> float:
        """Number of forward tokens for the map of a sequence."""
        return float(sum(len(window) * count for window, count in self._copies(encoding)))

    def tokens(self, length: int) -> float:
        """Number of forward tokens for a sequence of `length` tokens, if units are tokens."""
        longest = self.session.card.max_length
        if length <= longest:
            return float(length * self._estimator.passes(length, length))
        windows = -(-2 * length // longest)
        return float(windows * longest * self._estimator.passes(longest, longest))

    def _copies(self, encoding: Encoding) -> Iterator[tuple[Encoding, int]]:
        times = (1 + self._both) * (1 + (min(self._null, 1) if self._kind == "mirrored" else self._null))
        for window in self._windows(encoding):
            yield window, times * self._estimator.passes_of(window)

    def of(self, map_inputs: Sequence[MapInput]) -> list[DependenceMap]:
        """The maps of the inputs, in order. Equal sequences are computed once.

        Raises:
            UsageError: null models are requested, but the units of a sequence cannot be moved.
        """
        versions = [
            [self._versions(encoding) for encoding in map_input.encodings] for map_input in map_inputs
        ]
        maps = self._maps_by_key(
            [
                encoding
                for encodings in versions
                for sequence_versions in encodings
                for encoding in sequence_versions
            ]
        )
        return [
            self._final_map(
                map_input.family, [[maps[self._key(encoding)] for encoding in x] for x in input_versions]
            )
            for map_input, input_versions in zip(map_inputs, versions, strict=True)
        ]

    def _versions(self, encoding: Encoding) -> list[Encoding]:
        """A sequence and its null models."""
        if not self._null:
            return [encoding]
        space, seed = self.session.tokenizer.space, self.settings.seed
        return [encoding, *null_sequences(encoding, space, self._null, kind=self._kind, seed=seed)]

    def _final_map(
        self, family: Family | None, member_maps: Sequence[Sequence[DependenceMap]]
    ) -> DependenceMap:
        """The map of one input from maps (M, 1 + null): a row for each member, with the null models last."""
        versions = []
        for version_maps in zip(*member_maps, strict=True):
            version = version_maps[0] if family is None else family_map(family, version_maps)
            if self.settings.apc:
                version = replace(
                    version, values=apc(version.values), method=f"{version.method}, apc", nats=False
                )
            versions.append(version)
        return with_null_scores(versions[0], versions[1:]) if self._null else versions[0]

    def _maps_by_key(self, encodings: Sequence[Encoding]) -> dict[bytes, DependenceMap]:
        """The maps of sequences by `_key`, before corrections. If requested, they combine both strands."""
        strands = self.session.tokenizer.units.facts.strands
        if strands is None or not self._both:
            return self._maps(encodings)
        turned = {self._key(encoding): strands.mirrored(encoding) for encoding in encodings}
        mirrored_encodings = [encoding for encoding in turned.values() if encoding is not None]
        maps = self._maps([*encodings, *mirrored_encodings])
        return {
            key: maps[key] if twin is None else _both_strands(maps[key], maps[self._key(twin)])
            for key, twin in turned.items()
        }

    def _maps(self, encodings: Sequence[Encoding]) -> dict[bytes, DependenceMap]:
        """The maps of sequences by `_key`, for the given strand."""
        fresh = {self._key(encoding): encoding for encoding in encodings}
        windows = {key: self._windows(encoding) for key, encoding in fresh.items()}
        window_maps = iter(
            self._estimator.maps([encoding for parts in windows.values() for encoding in parts])
        )
        return {
            key: self._merge_windows(fresh[key], parts, list(islice(window_maps, len(parts))))
            for key, parts in windows.items()
        }

    def _key(self, encoding: Encoding) -> bytes:
        """A key that is equal for sequences with equal maps."""
        symbols = encoding.symbols if self.settings.together else None
        return digest(encoding) + (b"" if symbols is None else symbols.tobytes())

    def _windows(self, encoding: Encoding) -> list[Encoding]:
        longest = self.session.card.max_length
        if len(encoding) <= longest:
            return [encoding]
        return [window for window, _ in central_windows(encoding, self.session.tokenizer.space, longest)]

    def _merge_windows(
        self, encoding: Encoding, windows: Sequence[Encoding], window_maps: Sequence[DependenceMap]
    ) -> DependenceMap:
        """Combine the maps of windows. Each pair is taken from the window in which it is most central."""
        if len(windows) == 1:
            return window_maps[0]
        numbers, first = self.units.numbers(encoding), window_maps[0]
        representatives = self._estimator.representatives(encoding)
        size = (len(numbers), len(numbers))
        depth, values, error = np.full(size, -1.0), np.full(size, np.nan), np.full(size, np.nan)
        for window, window_map in zip(windows, window_maps, strict=True):
            at = representatives[np.searchsorted(numbers, self.units.numbers(window))]
            place = np.arange(len(at))
            asked_units = np.flatnonzero(self._estimator.representatives(window) == place)
            central = np.minimum(place, place[::-1])[asked_units].astype(np.float64)
            depths = np.minimum.outer(central, central)
            here, there = np.ix_(at[asked_units], at[asked_units]), np.ix_(asked_units, asked_units)
            better = (depths > depth[here]) & np.isfinite(window_map.values[there])
            depth[here] = np.where(better, depths, depth[here])
            values[here] = np.where(better, window_map.values[there], values[here])
            if window_map.error is not None:
                error[here] = np.where(better, window_map.error[there], error[here])
        return replace(
            first, values=values, error=None if first.error is None else error, **_common_fields(window_maps)
        )


def _check_strands(session: Session, settings: StructureSettings) -> None:
    """Refuse both strands for sequences with one strand, and for methods that do not use the model.

    Raises:
        UsageError: in both cases.
    """
    if session.tokenizer.units.facts.strands is None:
        why = f"needs sequences with two strands, and {session.domain.name} sequences have one"
    elif settings.method in ("pmi", "couplings"):
        why = f"uses the model on the other strand, and --method {settings.method} does not use the model"
    else:
        return
    raise UsageError(f"both_strands {why}: leave it out")


def _both_strands(forward: DependenceMap, backward: DependenceMap) -> DependenceMap:
    """The mean of the maps of a sequence and of its other strand, whose units are in reverse order."""
    error = None
    if forward.error is not None and backward.error is not None:
        error = np.sqrt(forward.error**2 + backward.error[::-1, ::-1] ** 2) / 2
    values, method = (forward.values + backward.values[::-1, ::-1]) / 2, f"{forward.method}, both strands"
    return replace(forward, values=values, error=error, method=method, **_common_fields([forward, backward]))


def candidates(session: Session) -> tuple[int, ...] | None:
    """The ids that may occur at a place, if the field allows only some of the ordinary ids."""
    texts = session.domain.gaps.candidates(session.tokenizer)
    if texts is None:
        return None
    allowed, surface = set(texts), session.tokenizer.spelling.surface
    return tuple(int(token) for token in session.tokenizer.space.ordinary if surface(int(token)) in allowed)


def mean_details(maps: Sequence[DependenceMap]) -> dict[str, float]:
    """Figures of several maps. Each is the mean over the maps that have it."""
    names = dict.fromkeys(name for dependence in maps for name in dependence.details)
    columns = {
        name: [dependence.details[name] for dependence in maps if name in dependence.details]
        for name in names
    }
    return {name: float(np.mean(figures)) for name, figures in columns.items()}


def _common_fields(maps: Sequence[DependenceMap]) -> dict[str, Any]:
    """Fields of a map that combines several maps: the total of passes, and the means of details."""
    return {"passes": sum(dependence.passes for dependence in maps), "details": mean_details(maps)}


# Aligned families


class Member(NamedTuple):
    """A sequence of a family, without gaps.

    Attributes:
        raw: the sequence.
        columns: (N,) column of each unit in the alignment.
    """

    raw: Any
    columns: Longs


class Family(NamedTuple):
    """Some rows of an alignment. The first row has the units of the map."""

    members: tuple[Member, ...]

    def check(self, units: Sequence[int]) -> None:
        """Check that each member has as many units as columns.

        Args:
            units: number of units of each member.

        Raises:
            DataError: a unit is not a single letter, and therefore has no column.
        """
        if any(len(member.columns) != count for member, count in zip(self.members, units, strict=True)):
            raise DataError(
                "rows of an alignment whose units are not its letters",
                remedy="use a model of single letters, or leave out --set family",
            )


GAPS = "-."


def families(session: Session, max_members: int) -> Callable[[Iterable[Record], Problems], Iterator[Record]]:
    """A function that groups rows of alignments into one record per family, for `Maps.encoded`.

    Args:
        session: the model.
        max_members: largest number of members of a family: the first row, and others evenly spread over the
            rest.

    Raises:
        UsageError: the model is linear. It reads rows with their gaps, and models the family as a whole.
    """
    if not session.model.rows.has_hidden_states:
        raise UsageError(
            "family=true removes the gaps of rows, which a linear model needs: leave it out, and use "
            "--method couplings, the map of the whole family"
        )

    def through(records: Iterable[Record], problems: Problems) -> Iterator[Record]:
        for _, rows in groupby(records, key=lambda record: (record.source, record.document)):
            family_rows = list(rows)
            if len({len(str(row.raw)) for row in family_rows}) > 1:
                raise DataError(
                    "not an alignment: its rows differ in length",
                    source=family_rows[0].source,
                    line=family_rows[0].line,
                    remedy="align them first, or leave out --set family",
                )
            chosen = sorted(
                {
                    round(number)
                    for number in np.linspace(0, len(family_rows) - 1, min(max_members, len(family_rows)))
                }
            )
            members = tuple(_member(session, family_rows[number]) for number in chosen)
            yield replace(family_rows[0], raw=Family(members))

    return through


def _member(session: Session, row: Record) -> Member:
    text = str(row.raw)
    columns = [place for place, letter in enumerate(text) if letter not in GAPS]
    bare = "".join(text[place] for place in columns)
    return Member(session.domain.text.with_text(row.raw, bare), np.array(columns, dtype=np.int64))


def row_options(session: Session, format: str | None) -> dict[str, Any]:
    """The option that makes readers keep the gaps of an alignment.

    Raises:
        UsageError: the readers of the field do not have it.
    """
    if "gaps" not in session.domain.files.options(format):
        raise UsageError(f"domain {session.domain.name} reads no alignments: leave out --set family")
    return {"gaps": "keep"}


def family_map(family: Family, maps: Sequence[DependenceMap]) -> DependenceMap:
    """The mean of the maps of the members of a family, in the columns of its first member."""
    query = family.members[0].columns
    size = (len(query), len(query))
    total, square, count = np.zeros(size), np.zeros(size), np.zeros(size)
    for member, member_map in zip(family.members, maps, strict=True):
        _, query_places, member_places = np.intersect1d(query, member.columns, return_indices=True)
        values, here = (
            member_map.values[np.ix_(member_places, member_places)],
            np.ix_(query_places, query_places),
        )
        filled = np.nan_to_num(values)
        total[here] += filled
        square[here] += filled**2
        count[here] += np.isfinite(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = total / count
        spread = np.sqrt(np.maximum(square / count - mean**2, 0.0) / (count - 1))
    error = np.where(count > 1, spread, np.nan)
    return replace(maps[0], values=mean, error=error, **_common_fields(maps))
