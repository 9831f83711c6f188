"""A level of a field: its rows, the parts of a record that the model is shown, and the statistics that judge.

A level is a declaration with one method, `rows`. It says what of a record the model sees (`View`), whether
there is a second way to read it (`SecondReading`), what must be known of normal data (`Background`), and
what a row is judged by. Higher statistics are always more unusual; how they become one p-value is not the
level's business but calibration's, so that a level may keep statistics which say much the same.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.reasons import Reasons
from seqmlm.anomaly.statistic_names import Statistics
from seqmlm.anomaly.values import ALONE, Bools, Doubles, Longs, Row, ScoredRecord
from seqmlm.data.compressed import PACKED
from seqmlm.data.record import Record
from seqmlm.engine.counts import Hashes, hash_units
from seqmlm.engine.reductions import Entropy, Reduction
from seqmlm.engine.types import Encoding, Sequences
from seqmlm.engine.units import Units, unit_numbers, unit_symbols
from seqmlm.engine.windows import central_windows
from seqmlm.errors import UsageError
from seqmlm.tokenizers.base import Tokenizer


class View:
    """The whole record, in windows that put each unit where it is most central."""

    def units(self, tokenizer: Tokenizer) -> Units:
        """The rule by which units are hidden and read back."""
        return tokenizer.units

    def windows(
        self, encoding: Encoding, tokenizer: Tokenizer, max_length: int, selected: Bools | None = None
    ) -> list[tuple[Encoding, Bools]]:
        """The windows of a record that the model is shown, each with True at the tokens to ask about there.

        Args:
            encoding: the record.
            max_length: tokens the model takes.
            selected: (L,) True at the tokens to score; None for all.

        Returns:
            Windows; every selected token that can be scored is asked in exactly one of them.
        """
        return central_windows(encoding, tokenizer.space, max_length, selected)


WHOLE = View()


# Backgrounds


class Background(ABC):
    """Statistics of the training split (what occurs), and of scored calibration records (what is usual).

    Class attributes:
        needs_scores: whether `learn` must be called with scored normal records before it can be used.
        learns_units: whether some units of a record are as good to `learn` from as all.
        judges: whether statistics rest on it, so that records it learnt from cannot calibrate, too.
        is_sampled: whether `fit` takes sequences drawn from the training split, so that fewer will do.
    """

    needs_scores: ClassVar[bool] = False
    learns_units: ClassVar[bool] = False
    judges: ClassVar[bool] = True
    is_sampled: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def fit(cls, train: Sequences, tokenizer: Tokenizer, *, seed: int) -> Self:
        """Learn from the training split, in bounded memory."""

    def learn(self, normal: Iterable[ScoredRecord]) -> Self:
        """The same, knowing also how normal records are scored; by default nothing of it matters."""
        return self

    def discreet(self) -> Self:
        """The same without what could identify single records; by default that is nothing."""
        return self

    def prepare(self, encodings: Sequence[Encoding]) -> None:  # noqa: B027
        """Prepare for records whose rows come next: work that is faster for many at once is done here."""

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays that are saved, by name. Those of `discreet` hold no single record."""

    @classmethod
    @abstractmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], tokenizer: Tokenizer) -> Self:
        """The background from its saved `arrays`."""


_TOKENS_COUNTED, _SEQUENCES_NAMED = 4_000_000, 512
_MOST_SEEN = 1 << 20  # 8 MiB of hashes; a vocabulary as open as that tells nothing by what it lacks


class Frequencies(Background):
    """Frequencies of tokens in the training split, and the units that occur there.

    Args:
        log_probs: (K,) natural logarithm of the add-one unigram of the symbols units are spelled in.
        unit_hashes: (S,) ascending, of all units that occur; None where that is not known.
    """

    is_sampled = True

    def __init__(self, log_probs: Doubles, unit_hashes: Hashes | None = None) -> None:
        self.log_probs, self.unit_hashes = log_probs, unit_hashes

    @classmethod
    def fit(cls, train: Sequences, tokenizer: Tokenizer, *, seed: int) -> Self:
        """Count tokens of sequences in a drawn order, until there are four million."""
        counts = np.zeros(tokenizer.space.size, dtype=np.int64)
        rule, unit_hashes, waiting = tokenizer.units, np.zeros(0, dtype=np.uint64), list[Encoding]()
        for index in np.random.default_rng(seed).permutation(len(train)).tolist():
            waiting.append(train[index])
            counts += np.bincount(waiting[-1].ids, minlength=len(counts))
            if len(waiting) == _SEQUENCES_NAMED:
                unit_hashes, waiting = np.union1d(unit_hashes, _names(rule, waiting)), []
            if counts.sum() >= _TOKENS_COUNTED:
                break
        unit_hashes = np.union1d(unit_hashes, _names(rule, waiting))
        with np.errstate(divide="ignore"):
            log_probs = np.log(rule.frequencies(counts))
        return cls(log_probs, unit_hashes if len(unit_hashes) <= _MOST_SEEN else None)

    def discreet(self) -> Self:
        return type(self)(self.log_probs)

    def new_units(self, scored: ScoredRecord) -> Bools | None:
        """(N,) True at units of the encoding that training never had; None where that is not known."""
        if self.unit_hashes is None:
            return None
        names, unit_hashes = _names(scored.rule, [scored.encoding]), self.unit_hashes
        # A search of few names; `np.isin` would sort or hash all that were seen, for every record.
        at = np.minimum(np.searchsorted(unit_hashes, names), max(len(unit_hashes) - 1, 0))
        return unit_hashes[at] != names if len(unit_hashes) else np.ones(len(names), dtype=np.bool_)

    def bits(self, scored: ScoredRecord) -> Doubles:
        """(U,) surprisal of each unit by its tokens' frequencies alone."""
        rule = scored.rule
        spelled = unit_symbols(rule, scored.encoding)
        at = np.searchsorted(rule.numbers(scored.encoding), scored.number).tolist()
        nats = [-sum(self.log_probs[token] for token in spelled[unit]) for unit in at]
        return np.asarray(np.array(nats, dtype=np.float64) / np.log(2))

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "log_probs": self.log_probs,
            **({} if self.unit_hashes is None else {"seen": self.unit_hashes}),
        }

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], tokenizer: Tokenizer) -> Self:
        return cls(arrays["log_probs"], arrays.get("seen"))


def _names(rule: Units, encodings: Sequence[Encoding]) -> Hashes:
    """(N,) a hash of the symbols of each unit of some sequences."""
    return hash_units(rule, encodings, np.zeros(rule.symbols)).hashes


class SecondReading(ABC):
    """Another way to read a record, such as the other strand of DNA; scores of both ways are combined."""

    @abstractmethod
    def record(self, record: Record) -> Record:
        """The record as it is read the other way."""

    @abstractmethod
    def combine(self, first: ScoredRecord, second: ScoredRecord) -> ScoredRecord:
        """`first`, all units of a record, with the scores that it and `second` give together: the same record
        read the other way, at least the same stretch of it."""


TRACKS = (
    *(".bedgraph", ".bg", ".bed", ".bw", ".bigwig"),
    *(f"{ending}{packed}" for ending in (".bedgraph", ".bg", ".bed") for packed in PACKED),
)
"""Endings of files of scores along a sequence; those that are packed, in the blocks of bgzip, last."""


class Track(AbstractContextManager["Track", None], Protocol):
    """A file that keeps the scores of rows along the sequence they lie in; written when it is left, whole or
    not at all, and after an error nothing of it."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row by its fields; the rows of one record come together."""


class Sampling:
    """The choice of the rows of which records calibrate a level."""

    def parts(self, record: Record, random: np.random.Generator) -> Sequence[Record]:
        """The records that a normal record may come as when it is judged: itself, or the parts of a cut.

        A calibration judges these, so that rows are compared with rows of records that are cut alike.
        """
        return (record,)

    def row_numbers(self, record: Record, spans: Longs) -> Longs | None:
        """The row that each unit of a record belongs to, where a row needs the scores of its own units only.

        A calibration then draws some rows of each of many records. The statistics of a row must not depend on
        which other units of the record are scored.

        Args:
            spans: (N, 2) of all units of the record, ascending.

        Returns:
            (N,) numbers of rows, ascending; None where a row needs other units, too.
        """
        return None


WHOLE_RECORDS = Sampling()


class CountStatistics(ABC):
    """The statistics that need no model, of rows that are whole records."""

    @abstractmethod
    def known_values(self, record: Record, tokenizer: Tokenizer) -> frozenset[str]:
        """Values of a training record that other records are judged by, and that its encoding lacks."""

    @abstractmethod
    def columns(
        self,
        encoded: Sequence[tuple[Record, Encoding]],
        background: Background,
        never: frozenset[str] = frozenset(),
    ) -> tuple[dict[str, Doubles], Longs]:
        """The statistics of R records by name, (R,) each, and the (R,) lengths of their rows.

        They are as `Level.rows` has them, with some of the `known_values` never seen.
        """


class Level(ABC):
    """One level of a field.

    Attributes:
        name: that `--level` takes.
        aliases: further names that it takes.
        statistics: of its rows: their meanings, which judge, and how they are fused.
        want: reductions that it reads of every unit beside the surprisal (`ScoredRecord.values`).
        view: the parts of a record that the model is shown when a unit is asked.
        second: a second way to read each record, or None.
        background: class of its knowledge of normal data, or None.
        counting: computes the statistics that need no model; None where the level has none.
        sampling: which rows of which records calibrate it.
        row_per_record: a record is one row.
        counted_from: number of a record's first unit in the ids of rows, 0 or 1. Places that people are shown
            beside an id count from 1 in either case.
        unknown_is_evidence: a unit that training never had says that a row is unusual. Where it is False, a
            row of mostly unknown units is `unfamiliar`: it has no p-value and raises no alarm.
    """

    name: str
    aliases: tuple[str, ...] = ()
    statistics: ClassVar[Statistics]
    want: tuple[Reduction, ...] = ()
    view: View = WHOLE
    second: SecondReading | None = None
    background: ClassVar[type[Background] | None] = None
    counting: CountStatistics | None = None
    sampling: Sampling = WHOLE_RECORDS
    row_per_record: ClassVar[bool] = False
    counted_from: ClassVar[int] = 0
    unknown_is_evidence: ClassVar[bool] = False

    @property
    def counts_people(self) -> bool:
        """Whether a count of its rows may be one of people: a row is a whole record."""
        return self.row_per_record

    @property
    def reasons(self) -> Reasons:
        """Words about its rows."""
        return Reasons(self.name, self.statistics)

    def track(self, path: Path, *, name: str) -> Track:
        """A file for the scores of rows along the sequence they lie in.

        Args:
            path: its ending says the format.
            name: of the track, as a browser shows it.

        Raises:
            UsageError: rows of this level have no such place, or an unknown ending.
            StateError: the file cannot be written.
        """
        raise UsageError(
            f"{path.name} has scores along a coordinate axis, and rows of level {self.name} have no place on "
            "one; name a file of rows with --out, or draw them with --report"
        )

    @abstractmethod
    def rows(self, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
        """The rows of a record that are judged; a statistic that is not known of a row is left out."""

    def unfamiliar(
        self, scored: ScoredRecord, background: Background | None, rows: Sequence[Row]
    ) -> Sequence[bool]:
        """Whether each of some rows of a record is of mostly unknown units: more than `MOST_UNKNOWN`."""
        return [share > MOST_UNKNOWN for share in unknown_shares(rows, *self.unknown(scored, background))]

    def unknown(self, scored: ScoredRecord, background: Background | None) -> tuple[Longs, Bools]:
        """Begins (N,) of the units of a record, ascending, and (N,) True at those that are not known.

        Unknown units are those that training never had, where the background can tell, and those that the
        model is not asked about, for the vocabulary does not have them.
        """
        encoding = scored.encoding
        unknown = np.ones(len(scored.every_span), dtype=np.bool_)
        unknown[scored.places] = False
        owner = unit_numbers(encoding)
        unknown[owner[scored.rule.space.is_special[encoding.ids] & (owner >= 0)]] = True
        new_units = background.new_units(scored) if isinstance(background, Frequencies) else None
        if new_units is not None:
            unknown |= new_units
        starts = scored.every_span[:, 0]
        # A tokenizer may leave what it does not know outside of all units.
        unk = scored.rule.space.unk
        outside = np.flatnonzero((owner < 0) & (encoding.ids == (-1 if unk is None else unk)))
        if not len(outside) or encoding.spans is None:
            return starts, unknown
        starts = np.concatenate([starts, encoding.spans[outside, 0].astype(np.int64)])
        order = np.argsort(starts, kind="stable")
        return starts[order], np.append(unknown, np.ones(len(outside), dtype=np.bool_))[order]


# Statistics and rows that several fields share

UNKNOWN = "unknown"
"""Name of the share of its units that are not known, where rows may hold such: it judges at every such level.

0 where all are known, so that nothing is less unusual by it than anything else.
"""

MOST_UNKNOWN = 0.5
"""Share of unknown units above which a row is unfamiliar."""


def judged_rows(level: Level, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
    """The rows of a record, each marked where it is unfamiliar.

    They have the share of unknown units where that is a statistic and `Level.rows` leaves it out.
    """
    rows = level.rows(scored, background)
    if rows and UNKNOWN in level.statistics and UNKNOWN not in rows[0].statistics:
        shares = unknown_shares(rows, *level.unknown(scored, background))
        values = [math.nan if row.score is None else share for row, share in zip(rows, shares, strict=True)]
        rows = [
            replace(row, statistics={**row.statistics, UNKNOWN: value})
            for row, value in zip(rows, values, strict=True)
        ]
    if level.unknown_is_evidence or not rows:
        return rows
    flags = level.unfamiliar(scored, background, rows)
    return [replace(row, unfamiliar=True) if flag else row for row, flag in zip(rows, flags, strict=True)]


BITS_PER_UNIT = {"bits_per_unit": "mean surprisal of all units"}
SURPRISAL = {"surprisal": "surprisal of this unit"}
LIFT = {"lift": "surprisal beyond what the frequency of the unit explains"}
UNEXPECTED = {"unexpected": "less expected than its place explains"}


class RecordLevel(Level):
    """The record (`name` is what the field calls one) whole, by its bits per unit."""

    statistics: ClassVar[Statistics] = Statistics(BITS_PER_UNIT)
    row_per_record: ClassVar[bool] = True

    def __init__(self, name: str) -> None:
        self.name = name

    def rows(self, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
        return [record_row(scored, {"bits_per_unit": mean(scored)})]


class UnitLevel(Level):
    """Each unit (`name` is what the field calls one) alone, by its surprisal."""

    statistics: ClassVar[Statistics] = Statistics(SURPRISAL)

    def __init__(self, name: str) -> None:
        self.name = name

    def rows(self, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
        """A row for each unit. Its statistics are `SURPRISAL`, with a background of `Frequencies` `LIFT`,
        and, in a level that wants entropies, `UNEXPECTED`."""
        values = {
            "surprisal": scored.surprisal,
            "lift": lift(scored, background),
            "unexpected": excess(scored),
        }
        columns = [
            (name, column.tolist()) for name in self.statistics if (column := values.get(name)) is not None
        ]
        rows = []
        for unit, number in enumerate(scored.number.tolist()):
            statistics = {name: value[unit] for name, value in columns}
            name = str(number + self.counted_from)
            rows.append(part_row(scored, np.array([unit]), name, statistics, length=1))
        return rows

    def unfamiliar(
        self, scored: ScoredRecord, background: Background | None, rows: Sequence[Row]
    ) -> Sequence[bool]:
        """Whether the record is unfamiliar, for all its units: one new word among known ones is evidence."""
        record_as_row = record_row(scored, {"": 0.0})
        return [*super().unfamiliar(scored, background, [record_as_row])] * len(rows)


def unknown_shares(rows: Sequence[Row], starts: Longs, unknown: Bools) -> list[float]:
    """Share of unknown units of each row, of units as `Level.unknown` gives them; 0 for a row of none."""
    total = np.concatenate([[0], np.cumsum(unknown)])
    shares = []
    for row in rows:
        first, last = np.searchsorted(starts, [row.start, row.end]).tolist()
        shares.append(float(total[last] - total[first]) / max(last - first, 1))
    return shares


def mean(scored: ScoredRecord) -> float:
    """Bits per unit; NaN for a record without scored units."""
    return float(scored.surprisal.mean()) if len(scored) else float("nan")


def record_row(scored: ScoredRecord, statistics: dict[str, float]) -> Row:
    """The row of a whole record; the first statistic is its score."""
    return _row(scored.record, scored.record.id, (0, len(scored.raw)), np.arange(len(scored)), statistics)


def part_row(
    scored: ScoredRecord, units: Longs, name: str, statistics: dict[str, float], *, length: int | None = None
) -> Row:
    """The row of some units of a record, from the first to the last; the first statistic is its score."""
    return named_row(scored.record, name, scored.spans[units], units, statistics, length)


def named_row(
    record: Record,
    name: str,
    spans: Longs,
    units: Longs,
    statistics: dict[str, float],
    length: int | None = None,
) -> Row:
    """The row of a part of a record, called so, from the first to the last of `spans` (S, 2)."""
    stretch = int(spans[:, 0].min()), int(spans[:, 1].max())
    return _row(record, f"{record.id}#{name}", stretch, units, statistics, length)


def _row(
    record: Record,
    name: str,
    stretch: tuple[int, int],
    units: Longs,
    statistics: dict[str, float],
    length: int | None = None,
) -> Row:
    """The row of some units of a record, between two offsets of its text."""
    first = next(iter(statistics.values()))
    return Row(
        id=name,
        source=record.source,
        line=record.line,
        start=stretch[0],
        end=stretch[1],
        units=units,
        length=len(units) if length is None else length,
        statistics=statistics,
        score=None if np.isnan(first) else first,
    )


def lift(scored: ScoredRecord, background: Background | None) -> Doubles | None:
    """(U,) surprisal above that of the units' frequencies, in bits; None where these are not known.

    It is how unusual a unit is beside its neighbours, however rare it is (as in the SLOR of Lau et al. 2017,
    their sign turned).
    """
    return scored.surprisal - background.bits(scored) if isinstance(background, Frequencies) else None


def excess(scored: ScoredRecord) -> Doubles | None:
    """(U,) surprisal by the model alone minus its entropy, in bits: 0 on average wherever the model is right.

    None where entropies were not asked for.
    """
    entropy = scored.values.get(Entropy.name)
    return None if entropy is None else scored.values.get(ALONE, scored.surprisal) - entropy


def highest_stretch(values: Doubles, width: int) -> tuple[float, int]:
    """The highest mean of `width` neighbours, of all (N,) values where these are fewer, and its begin.

    >>> highest_stretch(np.array([0.0, 3.0, 5.0, 0.0]), 2)
    (4.0, 1)
    """
    size = min(width, len(values))
    total = np.concatenate([[0.0], np.cumsum(values)])
    sums = total[size:] - total[:-size]
    return float(sums.max() / size), int(sums.argmax())
