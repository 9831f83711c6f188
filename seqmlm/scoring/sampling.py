"""The share of the rows of each record that a calibration looks at, where not all of them can be paid for.

Rows of one record are alike: the number of records says what a calibration is worth, not the number of rows.
Some rows of each of many records cost as much as all rows of a few. Every row of a record is drawn with the
same probability, so that normal rows are distributed as the rows of whole records are. A drawn row is scored
in the same windows as in its whole record, so that its statistics are the same.
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
"""Rows that a training calibrates a mode with, if it can pay for them: they guarantee rates of .001."""

ENOUGH_RECORDS = 50
"""Records that so many rows must be of: rows of few records are more alike than their number says."""

_MANY_RECORDS = 200  # that a limit is divided among, where single rows can be drawn
_NEIGHBOURS = 20  # rows that are drawn together where one pass of the model covers them


class Limit(NamedTuple):
    """How much is spent on a mode: so many forward tokens, but so many rows and records at least."""

    tokens: float
    rows: int = 0
    records: int = 0


class Portion(NamedTuple):
    """Some records that are judged together.

    records: tokenized.
    drawn_tokens: (L,) True at the tokens of drawn rows, for each record; None where all rows are judged.
    done, of: records up to here, of how many.
    drawn_share: the share of their rows that was drawn.
    spent: forward tokens up to here, by estimate.
    limit: of these; None where all records are taken.
    """

    records: list[Encoded]
    drawn_tokens: list[Bools] | None
    done: int
    of: int
    drawn_share: float
    spent: float
    limit: Limit | None

    def share(self, rows: int) -> float:
        """How much is done with so many rows, from 0 to 1: of all records, or of what is enough."""
        if self.limit is None:
            return self.done / self.of
        tokens, least_rows, records = self.limit
        paid = min(self.spent / max(tokens, 1), rows / max(least_rows, 1), self.done / max(records, 1))
        plenty = min(rows / ENOUGH_ROWS, self.done / ENOUGH_RECORDS)
        return min(1.0, max(paid, plenty, self.done / self.of))

    def owes(self, rows: int, least_rows: int) -> bool:
        """Whether further records must be taken, however late it is: of so many rows there are too few."""
        return self.limit is not None and (rows < least_rows or self.done < self.limit.records)

    def enough(self, rows: int) -> bool:
        """Whether no further records need be taken."""
        return self.limit is not None and self.share(rows) >= 1


class DrawnRows(NamedTuple):
    """The rows that are drawn of a record.

    drawn_tokens: (L,) True at their tokens.
    rows, of: how many they are, of how many.
    """

    drawn_tokens: Bools
    rows: int
    of: int


RowNumbers = Callable[[Encoded], Longs | None]
"""(N,) the row that each unit of a record belongs to, by number; None where a row needs the whole record."""


def row_numbers(level: Level, rule: Units) -> RowNumbers:
    """The rows of a level, by the units of a record."""
    return lambda record: level.sampling.row_numbers(record.record, rule.spans(record.encoding))


def unit_rows(rule: Units) -> RowNumbers:
    """Each unit of a record as a row of its own."""
    return lambda record: np.arange(len(rule.numbers(record.encoding)))


@dataclass(frozen=True, kw_only=True, eq=False)
class RowSample:
    """Some rows of each record: each with the same probability, but one of a record at least.

    Args:
        numbers: the rows of a record.
        rule: the units of records.
        share: of the rows of a record, above 0.
        neighbours: rows that follow each other are drawn; else such as are spread evenly over the record.
        seed: of the draw. It depends on the record alone, and not on the records before it.
    """

    numbers: RowNumbers
    rule: Units
    share: float
    neighbours: bool
    seed: int

    def of(self, record: Encoded) -> DrawnRows:
        """The rows that are drawn of a record."""
        numbers = self.numbers(record)
        assert numbers is not None  # else there is no sample
        rows = np.unique(numbers)
        name = f"{record.record.source}\0{record.record.id}\0{record.record.line}"
        start = np.random.default_rng([self.seed, hash64(name) % 2**63]).random()
        chosen = rows[self._places(len(rows), start)]
        units = self.rule.numbers(record.encoding)[np.isin(numbers, chosen)]
        return DrawnRows(np.isin(record.encoding.groups, units), len(chosen), len(rows))

    def _places(self, count: int, start: float) -> Longs:
        """Places of the drawn rows among so many; `start`, in [0, 1), is where the draw begins."""
        if not count:
            return np.zeros(0, dtype=np.int64)
        row_count = min(float(count), max(1.0, self.share * count))
        if self.neighbours:
            first, offset = divmod(start * count, 1)
            return (
                int(first) + np.arange(int(row_count + offset))
            ) % count  # behind the last row comes the first
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
    """The sample that a limit is spent on; None where all rows of records are taken.

    Args:
        probed: some of the records, at least one.
        records: how many there are.
        cost: forward tokens of a record.
        neighbours: as of `RowSample`: in modes where a pass asks all units of a window.
        rows: how many are enough, where there are as many records as are enough.
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
    """Rows of normal records, of which the model was not asked.

    statistics: name -> (N,) those of `Statistics.counted`.
    lengths: (N,) units that rows are compared by.
    records: (N,) what each row is of, as numbers.
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
