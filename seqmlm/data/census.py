"""What can be said of a stream of records in bounded memory: counts, lengths, duplicates, splits and leaks.

Two samples are kept. One is uniform over records (Vitter 1985, algorithm R). The other is a sample of the
*hash values* of raw sequences: equal sequences are kept or left out together, so duplicates and sequences on
both sides of a split are found at their true rate (Gibbons 2001, distinct sampling). Below the limits both
hold everything, and all figures are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.dedup import hash128
from seqmlm.data.record import Record
from seqmlm.data.splits import CALIBRATION, TRAIN, VALIDATION, Split

_MARKS = 8  # places in the split that are remembered of one sequence


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What was counted.

    Args:
        records: all of them.
        distinct: different raw sequences.
        duplicates: records whose raw sequence had occurred before.
        train, validation, calibration: records of each part.
        leaked: different sequences that stand in training and in a part that is held out.
        exact: False where some of these are estimates, from a sample of a long stream.
    """

    records: int
    distinct: int
    duplicates: int
    train: int
    validation: int
    calibration: int
    leaked: int
    exact: bool


class Census:
    """Counts records as they stream by.

    Args:
        split: decides what would validate.
        seed: of the uniform samples.
        distinct: different sequences held before the sample of hash values is thinned.
        uniform: records whose length and place in the split are held.
        kept: whole records held, of at most `characters` characters together.
    """

    def __init__(
        self,
        split: Split,
        seed: int,
        *,
        distinct: int = 500_000,
        uniform: int = 100_000,
        kept: int = 1_000,
        characters: int = 1 << 23,
    ) -> None:
        self.records = self.characters = 0
        self._split, self._limit, self._uniform = split, distinct, uniform
        self._kept_limit, self._room = kept, characters
        self._seen: dict[bytes, list[tuple[int, int]]] = {}
        self._level = 0  # hash values with this many low bits 0 are kept
        self._lengths = np.zeros(uniform, dtype=np.int64)
        self._marks = np.zeros((uniform, 2), dtype=np.int64)
        self._kept: list[Record] = []
        self._kept_characters = 0
        self._random = np.random.default_rng(seed)

    def add(self, record: Record) -> None:
        """Count one record."""
        text = str(record.raw)
        mark = self._split.mark(record)
        place = self.records if self.records < self._uniform else int(self._random.integers(self.records + 1))
        if place < self._uniform:
            self._lengths[place], self._marks[place] = len(text), mark
        self.records += 1
        self.characters += len(text)
        self._keep(record, len(text))
        digest = hash128(text)
        if int.from_bytes(digest[:8], "little") & ((1 << self._level) - 1):
            return
        marks = self._seen.setdefault(digest, [])
        if mark not in marks and len(marks) < _MARKS:
            marks.append(mark)
        if len(self._seen) > self._limit:
            self._thin()

    def _keep(self, record: Record, length: int) -> None:
        if len(self._kept) < self._kept_limit and self._kept_characters + length <= self._room:
            self._kept.append(record)
            self._kept_characters += length
            return
        place = int(self._random.integers(self.records))
        if place < len(self._kept):
            left = self._kept_characters - len(str(self._kept[place].raw))
            if left + length <= self._room:
                self._kept[place], self._kept_characters = record, left + length

    def _thin(self) -> None:
        self._level += 1
        low = (1 << self._level) - 1
        self._seen = {d: m for d, m in self._seen.items() if not int.from_bytes(d[:8], "little") & low}

    @property
    def kept(self) -> list[Record]:
        """Records to look at, drawn uniformly unless they are very long; the first ones of a short stream."""
        return self._kept

    def lengths(self, quantiles: tuple[float, ...]) -> dict[str, int]:
        """Quantiles of the length of a record's text, in characters."""
        held = self._lengths[: min(self.records, self._uniform)]
        found = np.quantile(held if len(held) else [0], quantiles, method="inverted_cdf")
        return dict(zip(map(str, quantiles), map(int, found), strict=True))

    def counts(self) -> Counts:
        """All counts so far."""
        owners, marks = self._all_marks()
        held = min(self.records, self._uniform)
        parts = self._split.parts(np.concatenate([self._marks[:held], marks]))
        validation, calibration = (
            round(float((parts[:held] == part).mean()) * self.records) if held else 0
            for part in (VALIDATION, CALIBRATION)
        )
        trains = parts[held:] == TRAIN
        held_out = np.bincount(owners[~trains], minlength=len(self._seen)) > 0
        in_training = np.bincount(owners[trains], minlength=len(self._seen)) > 0
        distinct = min(len(self._seen) << self._level, self.records)
        return Counts(
            records=self.records,
            distinct=distinct,
            duplicates=self.records - distinct,
            train=self.records - validation - calibration,
            validation=validation,
            calibration=calibration,
            leaked=int(np.count_nonzero(held_out & in_training)) << self._level,
            exact=self._level == 0 and self.records <= self._uniform,
        )

    def _all_marks(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(M,) number of the sequence and (M, 2) marks of everything in the sample of hash values."""
        owners = [number for number, marks in enumerate(self._seen.values()) for _ in marks]
        flat = [mark for marks in self._seen.values() for mark in marks]
        return np.array(owners, dtype=np.int64), np.array(flat, dtype=np.int64).reshape(-1, 2)
