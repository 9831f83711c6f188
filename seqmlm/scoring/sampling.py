"""Sample rows of records for a calibration, if scoring all rows would take too long.

Rows of one record are alike, so the quality of a calibration depends on the number of records rather than
rows. Some rows from each of many records cost as much as all rows of a few records. Every row of a record is
drawn with the same probability, so the sample has the distribution of all rows. A drawn row is scored in the
same windows as in its whole record, so its statistics are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from seqmlm.anomaly.levels import Level
from seqmlm.anomaly.values import Bools, Doubles, Longs
from seqmlm.data.splits import hash64
from seqmlm.engine.types import Encoding, Sequences
from seqmlm.engine.units import Units
from seqmlm.inference.estimate import Cost
from seqmlm.inference.record_batches import Encoded

ENOUGH_ROWS = 1_000
"""Rows that a training uses to calibrate a mode, if time allows. They guarantee rates of .001."""

ENOUGH_RECORDS = 50
"""Minimum number of records for `ENOUGH_ROWS` rows, because rows from the same record are alike."""

_MANY_RECORDS = 200  # number of records that share a limit, if single rows can be drawn
_NEIGHBOURS = 20  # rows that are drawn together if one pass of the model covers them


class Limit(NamedTuple):
    """The limit for a mode: a number of forward tokens, with minimum numbers of rows and records."""

    tokens: float
    rows: int = 0
    records: int = 0


class Portion(NamedTuple):
    """Some records that are scored together.

    Attributes:
        records: tokenized records.
        drawn_tokens: for each record, (L,) True at the tokens of drawn rows. None if all rows are scored.
        done: number of records so far.
        of: number of all records.
        drawn_share: the share of their rows that was drawn.
        spent: estimated forward tokens so far.
        limit: the limit for the mode, or None to use all records.
    """

    records: list[Encoded]
    drawn_tokens: list[Bools] | None
    done: int
    of: int
    drawn_share: float
    spent: float
    limit: Limit | None

    def share(self, rows: int) -> float:
        """The completed share (0 to 1) after `rows` rows: of all records, or of a sufficient number."""
        if self.limit is None:
            return self.done / self.of
        tokens, least_rows, records = self.limit
        paid = min(self.spent / max(tokens, 1), rows / max(least_rows, 1), self.done / max(records, 1))
        plenty = min(rows / ENOUGH_ROWS, self.done / ENOUGH_RECORDS)
        return min(1.0, max(paid, plenty, self.done / self.of))

    def owes(self, rows: int, least_rows: int) -> bool:
        """Whether more records are required, even if time is over, because `rows` rows are too few."""
        return self.limit is not None and (rows < least_rows or self.done < self.limit.records)

    def enough(self, rows: int) -> bool:
        """Whether `rows` rows are enough."""
        return self.limit is not None and self.share(rows) >= 1


class DrawnRows(NamedTuple):
    """The drawn rows of a record.

    Attributes:
        drawn_tokens: (L,) True at the tokens of drawn rows.
        rows: number of drawn rows.
        of: number of all rows.
    """

    drawn_tokens: Bools
    rows: int
    of: int


RowNumbers = Callable[[Encoded], Longs | None]
"""(N,) the number of the row that each unit of a record belongs to. None if rows need the whole record."""


def row_numbers(level: Level, rule: Units) -> RowNumbers:
    """A function that gives the row of each unit of a record, at a level."""
    return lambda record: level.sampling.row_numbers(record.record, rule.spans(record.encoding))


def unit_rows(rule: Units) -> RowNumbers:
    """A function that makes each unit of a record a separate row."""
    return lambda record: np.arange(len(rule.numbers(record.encoding)))


@dataclass(frozen=True, kw_only=True, eq=False)
class RowSample:
    """Draws some rows of each record, each with the same probability, and at least one per record.

    Args:
        numbers: gives the rows of a record.
        rule: the units of records.
        share: share of the rows of a record to draw, above 0.
        neighbours: draw consecutive rows. Otherwise rows are spread evenly over the record.
        seed: seed of the draw. The draw depends only on the record, not on earlier records.
    """

    numbers: RowNumbers
    rule: Units
    share: float
    neighbours: bool
    seed: int

    def of(self, record: Encoded) -> DrawnRows:
        """Draw rows of a record."""
        numbers = self.numbers(record)
        assert numbers is not None  # otherwise there is no sample
        rows = np.unique(numbers)
        name = f"{record.record.source}\0{record.record.id}\0{record.record.line}"
        start = np.random.default_rng([self.seed, hash64(name) % 2**63]).random()
        chosen = rows[self._places(len(rows), start)]
        units = self.rule.numbers(record.encoding)[np.isin(numbers, chosen)]
        return DrawnRows(np.isin(record.encoding.groups, units), len(chosen), len(rows))

    def _places(self, count: int, start: float) -> Longs:
        """The indices of the drawn rows among `count` rows. `start` in [0, 1) is where the draw begins."""
        if not count:
            return np.zeros(0, dtype=np.int64)
        row_count = min(float(count), max(1.0, self.share * count))
        if self.neighbours:
            first, offset = divmod(start * count, 1)
            return (
                int(first) + np.arange(int(row_count + offset))
            ) % count  # after the last row, continue at the first
        return np.flatnonzero(np.diff(np.floor(np.arange(count + 1) * row_count / count + start)))


def row_sample(
    numbers: RowNumbers,
    probed: Sequence[Encoded],
    records: int,
    cost: Cost,
    limit: Limit,
    *,
    rule: Units,
    neighbours: bool,
    rows: float = float("inf"),
    seed: int = 0,
) -> RowSample | None:
    """The sample that fits a limit, or None to use all rows.

    Args:
        numbers: gives the rows of a record.
        probed: some of the records, at least one.
        records: number of all records.
        cost: gives the forward tokens of a record.
        limit: the limit.
        rule: the units of records.
        neighbours: see `RowSample`. For modes in which a pass covers all units of a window.
        rows: sufficient number of rows, if there are `ENOUGH_RECORDS` records.
        seed: seed of the draw.
    """
    numbered = [numbers(encoded) for encoded in probed]
    if any(encoded is None for encoded in numbered):
        return None
    rows_per_record = (
        float(np.mean([len(np.unique(encoded)) for encoded in numbered if encoded is not None])) or 1.0
    )
    tokens = float(np.mean([cost(encoded.encoding) for encoded in probed])) or 1.0
    many = min(records, _MANY_RECORDS)
    share = limit.tokens / (many * tokens)
    if many >= ENOUGH_RECORDS:
        share = min(share, rows / (many * rows_per_record))
    share = max(
        share, limit.rows / (many * rows_per_record), (_NEIGHBOURS if neighbours else 1) / rows_per_record
    )
    if share >= 1:
        return None
    return RowSample(numbers=numbers, rule=rule, share=share, neighbours=neighbours, seed=seed)


class CountedRows(NamedTuple):
    """Rows of normal records that were not scored by the model.

    Attributes:
        statistics: name -> (N,) values of the statistics in `Statistics.counted`.
        lengths: (N,) lengths by which rows are compared.
        records: (N,) number of the group that each row belongs to.
    """

    statistics: dict[str, Doubles]
    lengths: Longs
    records: Longs


class Subset:
    """A subset of sequences, by index, as `Sequences`."""

    def __init__(self, sequences: Sequences, chosen: Longs) -> None:
        self._sequences, self._chosen = sequences, chosen.tolist()
        self.lengths = sequences.lengths[chosen]

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> Encoding:
        return self._sequences[self._chosen[index]]
