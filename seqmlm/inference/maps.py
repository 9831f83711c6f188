"""Records to maps of dependence: long sequences window by window, aligned families as one mean map.

Estimators (`seqmlm.structure.estimators`) are given sequences that fit into the model. Here a longer one is
cut into windows that overlap by half, and each pair is taken from the window in which it is most central;
pairs that no window holds together are not asked about. Memory is that of the dense map, so the number of
units, and of pairs, has a limit.
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
from seqmlm.engine.windows import central_windows
from seqmlm.errors import DataError, UsageError
from seqmlm.inference.batches import encoded
from seqmlm.inference.session import Session, digest
from seqmlm.structure.base import StructureSettings, with_names
from seqmlm.structure.estimators import PairCounts, estimator
from seqmlm.structure.maps import DependenceMap, Null, against, apc, nulls

Longs = NDArray[np.int64]
Names = Callable[[Record, Sequence[str]], Sequence[str]]
"""(record, (N,) its units) -> (N,) what each names."""

MOST_UNITS = 4096
"""Units of a sequence whose map is made: one of so many takes 128 MiB, and several are held at once."""

MOST_PAIRS = 1 << 20
"""Pairs of a sequence that are asked about: all of 1,448 units, or those within a distance of more units."""


class Asked(NamedTuple):
    """What one map is made of: a sequence, or the members of a family, the one whose units it has first."""

    encodings: Sequence[Encoding]
    family: Family | None = None


class Subject(NamedTuple):
    """A record that a map is made of; of a family its first member.

    units: (N,) how each is spelled. rows: that an earlier run wrote of it.
    """

    record: Record
    units: Sequence[str]
    asked: Asked
    rows: Sequence[Mapping[str, Any]] = ()

    @property
    def source(self) -> str:
        return self.record.source

    @property
    def line(self) -> int:
        return self.record.line


class Maps:
    """Makes maps with one model and one estimator.

    Args:
        session: the model.
        settings: of the estimator. The average product is corrected here, on whole maps, so that neither
            windows nor members of a family are corrected each by itself.
        null: null models of each sequence, by which pairs get z and p; 0 for none.
        kind: of null model, as of `seqmlm.structure.maps.nulls`.
        corpus: what "pmi" counts in.
        family: most rows that are taken of an alignment, of which one map is made; None: records are
            sequences by themselves.
        both_strands: a map is the mean of that of the sequence and, turned around, that of its other strand.

    Raises:
        UsageError: the model cannot be asked by this method, or its sequences have one strand.
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
            quiet = Problems("skip", sensitive=session.card.sensitive)
            for _, asked in self.encoded(corpus, quiet):
                for encoding in asked.encodings:
                    counts.add(self.units.spelled(encoding))
        alone = replace(self.settings, apc=False)
        self._estimator = estimator(alone, session.conditionals(), self.units, counts=counts)

    @property
    def name(self) -> str:
        """What estimates, such as "cmi/exact, apc"."""
        own = [self._estimator.name, *["both strands"] * self._both, *["apc"] * self.settings.apc]
        return ", ".join(own)

    @property
    def nats(self) -> bool:
        """Whether values are nats."""
        return self._estimator.nats and not self.settings.apc

    def encoded(self, records: Iterable[Record], problems: Problems) -> Iterator[tuple[Record, Asked]]:
        """What is read, tokenized; of families all members. What cannot be goes to `problems`."""
        domain, tokenizer = self.session.domain, self.session.tokenizer
        for record in records if self._through is None else self._through(records, problems):
            family = record.raw if isinstance(record.raw, Family) else None
            parts = [record] if family is None else [replace(record, raw=x.raw) for x in family.members]
            made = [one.encoding for one in encoded(domain, tokenizer, parts, problems)]
            if len(made) == len(parts):
                yield parts[0], Asked(made, family)

    def subject(self, record: Record, asked: Asked, names: Names | None = None) -> Subject:
        """What is read, with its units, and names of these where those of one name are hidden together.

        Raises:
            DataError: it is too long, or a family whose units are not its letters.
            UsageError: null models of sequences whose units cannot be moved.
        """
        if self._null:
            next(nulls(asked.encodings[0], self.session.tokenizer.space, 1, kind=self._kind))
        if asked.family is not None:
            asked.family.check([len(self.units.numbers(one)) for one in asked.encodings])
        text = self.session.tokenizer.spelling.conceal(self.session.domain.text.spelled(record.raw))
        units = [text[start:end] for start, end in self.units.spans(asked.encodings[0]).tolist()]
        if self.settings.together:
            assert names is not None
            asked = asked._replace(encodings=[with_names(x, names(record, units)) for x in asked.encodings])
        for one in asked.encodings:
            if (reason := self.refusal(one)) is not None:
                raise DataError(reason, remedy="cut the sequence into parts, or give a smaller distance")
        return Subject(record, units, asked)

    def refusal(self, encoding: Encoding) -> str | None:
        """Why no map of a sequence is made, or None."""
        first = self._estimator.representatives(encoding)
        count, asked = len(first), len(np.unique(first))
        pairs = asked * min(asked, self.settings.distance or asked)
        if count <= MOST_UNITS and pairs <= 2 * MOST_PAIRS:
            return None
        return f"a sequence of {count:,} units, too many for a map of all pairs"

    def passes(self, encoding: Encoding) -> int:
        """Masked or changed copies of a sequence that its map takes."""
        return sum(count for _, count in self._copies(encoding))

    def cost(self, encoding: Encoding) -> float:
        """Forward tokens that its map takes."""
        return float(sum(len(window) * count for window, count in self._copies(encoding)))

    def tokens(self, length: int) -> float:
        """Forward tokens that a sequence of so many tokens takes, its units being tokens."""
        longest = self.session.card.max_length
        if length <= longest:
            return float(length * self._estimator.passes(length, length))
        windows = -(-2 * length // longest)
        return float(windows * longest * self._estimator.passes(longest, longest))

    def _copies(self, encoding: Encoding) -> Iterator[tuple[Encoding, int]]:
        times = (1 + self._both) * (1 + (min(self._null, 1) if self._kind == "mirrored" else self._null))
        for window in self._windows(encoding):
            yield window, times * self._estimator.passes_of(window)

    def of(self, given: Sequence[Asked]) -> list[DependenceMap]:
        """One map for each, in order; equal sequences are asked about once.

        Raises:
            UsageError: null models of sequences whose units cannot be moved.
        """
        versions = [[self._versions(encoding) for encoding in one.encodings] for one in given]
        made = self._each([encoding for one in versions for own in one for encoding in own])
        return [
            self._finished(one.family, [[made[self._key(encoding)] for encoding in x] for x in own])
            for one, own in zip(given, versions, strict=True)
        ]

    def _versions(self, encoding: Encoding) -> list[Encoding]:
        """A sequence and its null models."""
        if not self._null:
            return [encoding]
        space, seed = self.session.tokenizer.space, self.settings.seed
        return [encoding, *nulls(encoding, space, self._null, kind=self._kind, seed=seed)]

    def _finished(self, family: Family | None, found: Sequence[Sequence[DependenceMap]]) -> DependenceMap:
        """The map of what is asked about, given those of each member and its null models."""
        every = []
        for own in zip(*found, strict=True):
            one = own[0] if family is None else family_map(family, own)
            if self.settings.apc:
                one = replace(one, values=apc(one.values), method=f"{one.method}, apc", nats=False)
            every.append(one)
        return against(every[0], every[1:]) if self._null else every[0]

    def _each(self, encodings: Sequence[Encoding]) -> dict[bytes, DependenceMap]:
        """The maps of sequences, as the estimator makes them, by `_key`; of both strands where wanted."""
        mirrored = self.session.tokenizer.units.mirrored
        if mirrored is None or not self._both:
            return self._maps(encodings)
        turned = {self._key(one): mirrored(one) for one in encodings}
        others = [one for one in turned.values() if one is not None]
        made = self._maps([*encodings, *others])
        return {
            key: made[key] if other is None else _both_strands(made[key], made[self._key(other)])
            for key, other in turned.items()
        }

    def _maps(self, encodings: Sequence[Encoding]) -> dict[bytes, DependenceMap]:
        """The maps of sequences as they are."""
        fresh = {self._key(one): one for one in encodings}
        windows = {key: self._windows(one) for key, one in fresh.items()}
        found = iter(self._estimator.maps([one for own in windows.values() for one in own]))
        return {
            key: self._joined(fresh[key], own, list(islice(found, len(own)))) for key, own in windows.items()
        }

    def _key(self, encoding: Encoding) -> bytes:
        """Equal for sequences whose maps are equal."""
        symbols = encoding.symbols if self.settings.together else None
        return digest(encoding) + (b"" if symbols is None else symbols.tobytes())

    def _windows(self, encoding: Encoding) -> list[Encoding]:
        longest = self.session.card.max_length
        if len(encoding) <= longest:
            return [encoding]
        return [one for one, _ in central_windows(encoding, self.session.tokenizer.space, longest)]

    def _joined(
        self, encoding: Encoding, windows: Sequence[Encoding], found: Sequence[DependenceMap]
    ) -> DependenceMap:
        """The map of a sequence from those of its windows, each pair from the one it is deepest in."""
        if len(windows) == 1:
            return found[0]
        numbers, first = self.units.numbers(encoding), found[0]
        whole = self._estimator.representatives(encoding)
        size = (len(numbers), len(numbers))
        depth, values, error = np.full(size, -1.0), np.full(size, np.nan), np.full(size, np.nan)
        for window, one in zip(windows, found, strict=True):
            at = whole[np.searchsorted(numbers, self.units.numbers(window))]
            place = np.arange(len(at))
            asked = np.flatnonzero(self._estimator.representatives(window) == place)
            central = np.minimum(place, place[::-1])[asked].astype(np.float64)
            own = np.minimum.outer(central, central)
            here, there = np.ix_(at[asked], at[asked]), np.ix_(asked, asked)
            better = (own > depth[here]) & np.isfinite(one.values[there])
            depth[here] = np.where(better, own, depth[here])
            values[here] = np.where(better, one.values[there], values[here])
            if one.error is not None:
                error[here] = np.where(better, one.error[there], error[here])
        return replace(first, values=values, error=None if first.error is None else error, **_joint(found))


def _check_strands(session: Session, settings: StructureSettings) -> None:
    """Refuse both strands of what has one, and of what asks the model nothing."""
    if session.tokenizer.units.mirrored is None:
        why = f"is for sequences with two strands, and those of {session.domain.name} have one"
    elif settings.method in ("pmi", "couplings"):
        why = f"asks the model about the other strand, and --method {settings.method} asks it nothing"
    else:
        return
    raise UsageError(f"both_strands {why}: leave it out")


def _both_strands(own: DependenceMap, other: DependenceMap) -> DependenceMap:
    """The mean of the map of a sequence and that of its other strand, whose units are in opposite order."""
    error = None
    if own.error is not None and other.error is not None:
        error = np.sqrt(own.error**2 + other.error[::-1, ::-1] ** 2) / 2
    values, method = (own.values + other.values[::-1, ::-1]) / 2, f"{own.method}, both strands"
    return replace(own, values=values, error=error, method=method, **_joint([own, other]))


def candidates(session: Session) -> tuple[int, ...] | None:
    """The ids that can stand at a place, where the field says that these are not all ordinary ones."""
    texts = session.domain.gaps.candidates(session.tokenizer)
    if texts is None:
        return None
    known, surface = set(texts), session.tokenizer.spelling.surface
    return tuple(int(one) for one in session.tokenizer.space.ordinary if surface(int(one)) in known)


def mean_details(found: Sequence[DependenceMap]) -> dict[str, float]:
    """Figures of several maps, as means over those that have them."""
    names = dict.fromkeys(name for one in found for name in one.details)
    each = {name: [one.details[name] for one in found if name in one.details] for name in names}
    return {name: float(np.mean(own)) for name, own in each.items()}


def _joint(found: Sequence[DependenceMap]) -> dict[str, Any]:
    """What a map made of several has of all of them."""
    return {"passes": sum(one.passes for one in found), "details": mean_details(found)}


# Aligned families


class Member(NamedTuple):
    """A sequence of a family: as it is without gaps, and (N,) the column of each of its units."""

    raw: Any
    columns: Longs


class Family(NamedTuple):
    """Some rows of an alignment, the first of them the one whose units the map is of."""

    members: tuple[Member, ...]

    def check(self, units: Sequence[int]) -> None:
        """Refuse members that have so many units, and another number of columns.

        Raises:
            DataError: a unit is not one letter, so that it has no column.
        """
        if any(len(one.columns) != count for one, count in zip(self.members, units, strict=True)):
            raise DataError(
                "rows of an alignment whose units are not its letters",
                remedy="use a model of single letters, or leave out family",
            )


GAPS = "-."


def families(session: Session, most: int) -> Callable[[Iterable[Record], Problems], Iterator[Record]]:
    """What makes records that are families of records that are rows of alignments, for `Maps.encoded`.

    Args:
        most: members of a family: the first row, and others spread evenly over the rest.

    Raises:
        UsageError: a linear model, which reads rows with their gaps and is of one family as a whole.
    """
    if not session.model.rows.has_hidden_states:
        raise UsageError(
            "family=true takes the gaps out of rows, which a linear model needs: leave it out, and use "
            "--method couplings, the map of the whole family"
        )

    def through(records: Iterable[Record], problems: Problems) -> Iterator[Record]:
        for _, rows in groupby(records, key=lambda one: (one.source, one.document)):
            own = list(rows)
            if len({len(str(one.raw)) for one in own}) > 1:
                raise DataError(
                    "no alignment: its rows differ in length",
                    source=own[0].source,
                    line=own[0].line,
                    remedy="align them first, or leave out family",
                )
            chosen = sorted({round(at) for at in np.linspace(0, len(own) - 1, min(most, len(own)))})
            members = tuple(_member(session, own[at]) for at in chosen)
            yield replace(own[0], raw=Family(members))

    return through


def _member(session: Session, row: Record) -> Member:
    text = str(row.raw)
    columns = [place for place, letter in enumerate(text) if letter not in GAPS]
    bare = "".join(text[place] for place in columns)
    return Member(session.domain.text.respelled(row.raw, bare), np.array(columns, dtype=np.int64))


def row_options(session: Session, format: str | None) -> dict[str, Any]:
    """The option that makes readers keep the gaps of an alignment.

    Raises:
        UsageError: no reader of the field has it.
    """
    if "gaps" not in session.domain.files.options(format):
        raise UsageError(f"domain {session.domain.name} reads no alignments: leave out family")
    return {"gaps": "keep"}


def family_map(family: Family, found: Sequence[DependenceMap]) -> DependenceMap:
    """The mean of the maps of the members of a family in the columns of its first member."""
    query = family.members[0].columns
    size = (len(query), len(query))
    total, square, count = np.zeros(size), np.zeros(size), np.zeros(size)
    for member, one in zip(family.members, found, strict=True):
        _, at, own = np.intersect1d(query, member.columns, return_indices=True)
        values, here = one.values[np.ix_(own, own)], np.ix_(at, at)
        known = np.nan_to_num(values)
        total[here] += known
        square[here] += known**2
        count[here] += np.isfinite(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = total / count
        spread = np.sqrt(np.maximum(square / count - mean**2, 0.0) / (count - 1))
    error = np.where(count > 1, spread, np.nan)
    return replace(found[0], values=mean, error=error, **_joint(found))
