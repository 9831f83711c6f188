"""Levels of a field: their rows, and the statistics of a row.

A level is a declaration with one method, `rows`. It declares these parts:

* the parts of a record that the model sees (`View`);
* whether there is a second way to read a record (`SecondReading`);
* the knowledge of normal data that it needs (`Background`);
* the statistics of a row (`Statistics`).

A higher value of a statistic is always more unusual. Calibration combines the statistics into one p-value,
not the level. A level may therefore have statistics that measure nearly the same.
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
    """The part of a record that the model sees: all of it, with each unit in its most central window."""

    def units(self, tokenizer: Tokenizer) -> Units:
        """The rule for masking units and reading their predictions."""
        return tokenizer.units

    def windows(
        self, encoding: Encoding, tokenizer: Tokenizer, max_length: int, selected: Bools | None = None
    ) -> list[tuple[Encoding, Bools]]:
        """The windows of a record that the model sees, each with True at the tokens to score in it.

        Args:
            encoding: the record.
            tokenizer: the tokenizer of the model.
            max_length: maximum number of tokens of the model's input.
            selected: (L,) True at the tokens to score; None for all.

        Returns:
            Windows. Every selected token that can be scored is scored in exactly one of them.
        """
        return central_windows(encoding, tokenizer.space, max_length, selected)


WHOLE = View()


# Backgrounds


class Background(ABC):
    """Knowledge of normal data: statistics of the training split and of scored calibration records.

    Class attributes:
        needs_scores: whether `learn` must be called with scored normal records before use.
        learns_units: whether `learn` can use a part of the units of a record.
        judges: whether statistics of rows depend on it. If so, records used by `learn` cannot calibrate too.
        is_sampled: whether `fit` draws sequences from the training split, so that a part of it is enough.
    """

    needs_scores: ClassVar[bool] = False
    learns_units: ClassVar[bool] = False
    judges: ClassVar[bool] = True
    is_sampled: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def fit(cls, train: Sequences, tokenizer: Tokenizer, *, seed: int) -> Self:
        """Compute the statistics of the training split, in bounded memory."""

    def learn(self, normal: Iterable[ScoredRecord]) -> Self:
        """A copy that also uses the scores of normal records. By default, scores are not used."""
        return self

    def discreet(self) -> Self:
        """A copy without data that could identify single records. By default, there are none."""
        return self

    def prepare(self, encodings: Sequence[Encoding]) -> None:  # noqa: B027
        """Prepare for the next records: do work that is faster for many records at once."""

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Name -> array, to be saved. The arrays of `discreet` contain no single record."""

    @classmethod
    @abstractmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], tokenizer: Tokenizer) -> Self:
        """The background from its saved `arrays`."""


_TOKENS_COUNTED, _SEQUENCES_NAMED = 4_000_000, 512
_MOST_SEEN = 1 << 20  # 8 MiB of hashes; with a larger vocabulary, missing units are not evidence


class Frequencies(Background):
    """Frequencies of tokens in the training split, and the units that occur there.

    Args:
        log_probs: (K,) natural logarithms of the add-one unigram probabilities of the symbols in units.
        unit_hashes: (S,) hashes of all units that occur, ascending; None if they are unknown.
    """

    is_sampled = True

    def __init__(self, log_probs: Doubles, unit_hashes: Hashes | None = None) -> None:
        self.log_probs, self.unit_hashes = log_probs, unit_hashes

    @classmethod
    def fit(cls, train: Sequences, tokenizer: Tokenizer, *, seed: int) -> Self:
        """Count the tokens of sequences in random order, until there are four million tokens."""
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
        """(N,) True at units of the encoding that are not in the training data; None if that is unknown."""
        if self.unit_hashes is None:
            return None
        names, unit_hashes = _names(scored.rule, [scored.encoding]), self.unit_hashes
        # This searches only a few names. `np.isin` would sort or hash all stored names for every record.
        at = np.minimum(np.searchsorted(unit_hashes, names), max(len(unit_hashes) - 1, 0))
        return unit_hashes[at] != names if len(unit_hashes) else np.ones(len(names), dtype=np.bool_)

    def bits(self, scored: ScoredRecord) -> Doubles:
        """(U,) surprisal of each unit in bits, by the frequencies of its tokens."""
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
    """(N,) hashes of the symbols of each unit of some sequences."""
    return hash_units(rule, encodings, np.zeros(rule.symbols)).hashes


class SecondReading(ABC):
    """A second way to read a record, such as the other strand of DNA. The scores of both are combined."""

    @abstractmethod
    def record(self, record: Record) -> Record:
        """The record, read in the second way."""

    @abstractmethod
    def combine(self, first: ScoredRecord, second: ScoredRecord) -> ScoredRecord:
        """`first` with the combined scores of both readings.

        Args:
            first: all units of a record.
            second: the same record, or at least the same part of it, read in the second way.
        """


TRACKS = (
    *(".bedgraph", ".bg", ".bed", ".bw", ".bigwig"),
    *(f"{ending}{packed}" for ending in (".bedgraph", ".bg", ".bed") for packed in PACKED),
)
"""Endings of files with scores along a sequence. The compressed ones (blocks of bgzip) are last."""


class Track(AbstractContextManager["Track", None], Protocol):
    """A file with the scores of rows along a sequence.

    It is written at the end of the context, as a whole. After an error, nothing is written.
    """

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row by its fields. The rows of one record must be consecutive."""


class Sampling:
    """Selects the rows that calibrate a level."""

    def parts(self, record: Record, random: np.random.Generator) -> Sequence[Record]:
        """The records that are scored for a normal record: itself, or parts of it.

        New records may be cut into parts. Calibration then uses parts too, so that rows are compared with
        rows of records that are cut in the same way.
        """
        return (record,)

    def row_numbers(self, record: Record, spans: Longs) -> Longs | None:
        """The row of each unit of a record, if a row needs only the scores of its own units.

        A calibration then draws some rows from each of many records. The statistics of a row must not depend
        on which other units of the record are scored.

        Args:
            record: the record.
            spans: (N, 2) the spans of all units of the record, ascending.

        Returns:
            (N,) numbers of rows, ascending; None if a row needs other units too.
        """
        return None


WHOLE_RECORDS = Sampling()


class CountStatistics(ABC):
    """Statistics that need no model, for rows that are whole records."""

    @abstractmethod
    def known_values(self, record: Record, tokenizer: Tokenizer) -> frozenset[str]:
        """Values of a training record that statistics of other records use, and that its encoding lacks."""

    @abstractmethod
    def columns(
        self,
        encoded: Sequence[tuple[Record, Encoding]],
        background: Background,
        never: frozenset[str] = frozenset(),
    ) -> tuple[dict[str, Doubles], Longs]:
        """The statistics of R records (name -> (R,)), and the (R,) lengths of their rows.

        The statistics equal the statistics of `Level.rows`.

        Args:
            encoded: the records with their encodings.
            background: the knowledge of normal data.
            never: a subset of the `known_values`, which count as never seen.
        """


class Level(ABC):
    """One level of a field.

    Attributes:
        name: the name for `--level`.
        aliases: other names for `--level`.
        statistics: the statistics of its rows, which of them decide, and how they are combined.
        want: reductions that it needs for every unit, in addition to the surprisal (`ScoredRecord.values`).
        view: the part of a record that the model sees when it scores a unit.
        second: a second way to read each record, or None.
        background: the class of its knowledge of normal data, or None.
        counting: computes the statistics that need no model; None if the level has none.
        sampling: selects the rows that calibrate it.
        row_per_record: whether each record is one row.
        counted_from: number of the first unit of a record in the ids of rows, 0 or 1. Positions that people
            see next to an id always count from 1.
        unknown_is_evidence: whether units that are not in the training data are evidence of an unusual row.
            If False, a row of mostly unknown units is `unfamiliar`: it has no p-value and raises no alarm.
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
        """Whether a count of its rows may be a count of people, because each row is a whole record."""
        return self.row_per_record

    @property
    def reasons(self) -> Reasons:
        """The texts that describe its rows and alarms."""
        return Reasons(self.name, self.statistics)

    def track(self, path: Path, *, name: str) -> Track:
        """A file for the scores of rows along a sequence.

        Args:
            path: the file; its ending selects the format.
            name: the name of the track in a genome browser.

        Raises:
            UsageError: rows of this level have no position in a sequence, or the ending is unknown.
            StateError: the file cannot be written.
        """
        raise UsageError(
            f"rows of level {self.name} have no place on a coordinate axis, which {path.name} needs; "
            "write rows with --out, or draw them with --report"
        )

    @abstractmethod
    def rows(self, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
        """The rows of a record. A statistic that is unknown for a row is left out."""

    def unfamiliar(
        self, scored: ScoredRecord, background: Background | None, rows: Sequence[Row]
    ) -> Sequence[bool]:
        """Whether each row of a record has mostly unknown units: a fraction above `MOST_UNKNOWN`."""
        return [share > MOST_UNKNOWN for share in unknown_shares(rows, *self.unknown(scored, background))]

    def unknown(self, scored: ScoredRecord, background: Background | None) -> tuple[Longs, Bools]:
        """(N,) starts of the units of a record, ascending, and (N,) True at unknown units.

        A unit is unknown if it is not in the vocabulary, so that the model cannot score it. If the background
        knows the units of the training data, units that do not occur there are unknown too.
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
        # A tokenizer may leave unknown text outside of all units.
        unk = scored.rule.space.unk
        outside = np.flatnonzero((owner < 0) & (encoding.ids == (-1 if unk is None else unk)))
        if not len(outside) or encoding.spans is None:
            return starts, unknown
        starts = np.concatenate([starts, encoding.spans[outside, 0].astype(np.int64)])
        order = np.argsort(starts, kind="stable")
        return starts[order], np.append(unknown, np.ones(len(outside), dtype=np.bool_))[order]


# Statistics and rows that several fields share

UNKNOWN = "unknown"
"""Name of the statistic for the fraction of unknown units in a row. It decides at every level that has it.

It is 0 if all units are known, so that no row is less unusual than such a row.
"""

MOST_UNKNOWN = 0.5
"""Fraction of unknown units above which a row is unfamiliar."""


def judged_rows(level: Level, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
    """The rows of a record; unfamiliar rows are marked.

    If the fraction of unknown units is a statistic of the level and `Level.rows` leaves it out, it is added.
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
    """The level of whole records, scored by bits per unit. `name` is the field's word for a record."""

    statistics: ClassVar[Statistics] = Statistics(BITS_PER_UNIT)
    row_per_record: ClassVar[bool] = True

    def __init__(self, name: str) -> None:
        self.name = name

    def rows(self, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
        return [record_row(scored, {"bits_per_unit": mean(scored)})]


class UnitLevel(Level):
    """The level of single units, with surprisal as the score. `name` is the field's word for a unit."""

    statistics: ClassVar[Statistics] = Statistics(SURPRISAL)

    def __init__(self, name: str) -> None:
        self.name = name

    def rows(self, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
        """One row for each unit.

        Its statistics are `SURPRISAL`; `LIFT`, if the background is `Frequencies`; and `UNEXPECTED`, if the
        level needs entropies.
        """
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
        """Whether the whole record is unfamiliar. A single new word among known words is evidence instead."""
        record_as_row = record_row(scored, {"": 0.0})
        return [*super().unfamiliar(scored, background, [record_as_row])] * len(rows)


def unknown_shares(rows: Sequence[Row], starts: Longs, unknown: Bools) -> list[float]:
    """The fraction of unknown units in each row, from `Level.unknown`; 0 for a row without units."""
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
    """The row of some units of a record, from the first to the last. The first statistic is its score."""
    return named_row(scored.record, name, scored.spans[units], units, statistics, length)


def named_row(
    record: Record,
    name: str,
    spans: Longs,
    units: Longs,
    statistics: dict[str, float],
    length: int | None = None,
) -> Row:
    """The row of a named part of a record, from the first to the last of `spans` (S, 2)."""
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
    """The row of some units of a record, between two offsets in its text."""
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
    """(U,) surprisal minus that by the frequencies of the units, in bits; None if these are unknown.

    It measures how unusual a unit is among its neighbours, independent of how rare it is. It is the SLOR of
    Lau et al. 2017 with the opposite sign.
    """
    return scored.surprisal - background.bits(scored) if isinstance(background, Frequencies) else None


def excess(scored: ScoredRecord) -> Doubles | None:
    """(U,) surprisal from the model without counts, minus its entropy, in bits.

    It is 0 on average where the model is right. None if entropies were not requested.
    """
    entropy = scored.values.get(Entropy.name)
    return None if entropy is None else scored.values.get(ALONE, scored.surprisal) - entropy


def highest_stretch(values: Doubles, width: int) -> tuple[float, int]:
    """The highest mean of `width` neighbours, and the index of the first of them.

    If there are fewer than `width` of the (N,) values, it is the mean of all.

    >>> highest_stretch(np.array([0.0, 3.0, 5.0, 0.0]), 2)
    (4.0, 1)
    """
    size = min(width, len(values))
    total = np.concatenate([[0.0], np.cumsum(values)])
    sums = total[size:] - total[:-size]
    return float(sums.max() / size), int(sums.argmax())
