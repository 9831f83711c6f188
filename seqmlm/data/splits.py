"""Divide records into training, validation and calibration, in whole groups.

A split has two steps, so that records are read once and memory stays small. `mark` gives a record two 64-bit
numbers (its group and its place in time) while the data are read. `parts` divides the records when all marks
are known. A group is always in a single part. With few groups, training gets a group first, then validation,
then calibration.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.record import Record
from seqmlm.errors import DataError

Part = Literal["train", "validation", "calibration"]
CalibrateOn = Literal["latest", "spread"]
Marks = NDArray[np.int64]
Places = NDArray[np.int64]
Parts = NDArray[np.int8]

PARTS: tuple[Part, ...] = ("train", "validation", "calibration")
"""The parts of the data. `Split.parts` returns indices into this tuple."""

TRAIN, VALIDATION, CALIBRATION = range(3)

# parts in the order of ascending hashes
_IN_ORDER: Parts = np.array([VALIDATION, CALIBRATION, TRAIN], dtype=np.int8)


def hash64(text: str, seed: int = 0) -> int:
    """A signed 64-bit hash of a text. It is the same on every machine and in every process."""
    key = seed.to_bytes(8, "little", signed=True)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "little", signed=True)


def neighbours(record: Record, lines: int = 1000) -> str:
    """A key that keeps neighbouring lines together if there is no document: blocks of lines of a file."""
    return record.document or f"{Path(record.source).name}:{record.line // lines}"


@runtime_checkable
class Split(Protocol):
    """A rule that divides records into training, validation and calibration."""

    def mark(self, record: Record) -> tuple[int, int]:
        """Two signed 64-bit numbers: the group of a record, and its place in the order."""

    def parts(self, marks: Marks) -> Parts:
        """The part of each record (N,), as an index into `PARTS`, from the marks (N, 2)."""


_GIVEN: dict[str | None, int] = {None: 0, "train": 1, "validation": 2, "calibration": 3}


def no_label(record: Record) -> str | None:
    """The part that the data name for a record, for data that name no parts."""
    return None


@dataclass(frozen=True, kw_only=True)
class ByKey:
    """Divides groups by hash. If there are enough groups, each part gets at least one group.

    Args:
        key: returns the group of a record.
        seed: seed of the hash.
        share, calibration: shares of the groups for validation and for calibration. 0 for none.
        enough: smallest number of calibration records, if there are any, but at most a fifth of all records.
        split_of: returns the part that the data name for a record, or None. If any record is named for
            validation, only named records are held out. If then none is named for calibration, half of the
            validation groups calibrate.
    """

    key: Callable[[Record], str]
    seed: int = 0
    share: float = 0.05
    calibration: float = 0.0
    enough: int = 0
    split_of: Callable[[Record], str | None] = no_label

    def mark(self, record: Record) -> tuple[int, int]:
        return hash64(self.key(record), self.seed), _GIVEN[self.split_of(record)]

    def parts(self, marks: Marks) -> Parts:
        groups, labels = marks[:, 0], marks[:, 1]
        held_out = labels == _GIVEN["validation"]
        if not held_out.any():
            return _by_share(groups, (self.share, _calibrating(self, len(marks))))
        parts = held_out.astype(np.int8) * np.int8(VALIDATION)
        named = labels == _GIVEN["calibration"]
        if named.any():
            parts[named] = CALIBRATION
        elif self.calibration:
            calibrates = _by_share(groups[held_out], (0.5, 0.0)) == VALIDATION
            parts[np.flatnonzero(held_out)[calibrates]] = CALIBRATION
        return np.asarray(parts, dtype=np.int8)


def _ordered(value: Any) -> int:
    """Convert a number, date or ISO 8601 text to a 64-bit integer with the same order."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    number = float(value)
    if math.isnan(number):
        raise ValueError("NaN has no place in an order")
    # The bits of a double, read as an integer, keep the order of positive numbers, and reverse that of
    # negative ones.
    bits = int(np.float64(number + 0.0).view(np.int64))
    return bits if bits >= 0 else bits ^ 0x7FFFFFFFFFFFFFFF


def _share(hashes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Convert signed 64-bit hashes to numbers that are evenly spread over [0, 1)."""
    shares: NDArray[np.float64] = (hashes.view(np.uint64) >> np.uint64(11)).astype(np.float64) / 2.0**53
    return shares


def _by_share(groups: NDArray[np.int64], held_out_shares: tuple[float, float]) -> Parts:
    """The part of each record (N,) from its group hash (N,): the lowest hashes validate, the next calibrate.

    Groups have several records and different sizes. If a part then has less than half or more than twice its
    share, the sizes of groups are considered too.
    """
    shares = _share(groups)
    ends = (held_out_shares[0], held_out_shares[0] + held_out_shares[1])
    parts = _IN_ORDER[np.digitize(shares, ends)]
    distinct, member, sizes = np.unique(shares, return_inverse=True, return_counts=True)
    fair = all(
        share / 2 * len(parts) <= np.count_nonzero(parts == part) <= 2 * share * len(parts)
        for part, share in ((VALIDATION, held_out_shares[0]), (CALIBRATION, held_out_shares[1]))
        if share > 0
    )
    if not fair and _FEWEST_SIZED <= len(distinct) <= len(groups) // 2:
        sized = _by_size(sizes, held_out_shares)
        if (sized == TRAIN).any():
            return np.asarray(sized[member], dtype=np.int8)
    if all((parts == part).any() for part, share in enumerate((1.0, *held_out_shares)) if share > 0):
        return parts
    # A part is empty: the nearest groups move to it, as long as there are enough groups.
    first, second = np.searchsorted(distinct, ends).tolist()
    validate, calibrate = _enough(len(distinct), (first, second - first), held_out_shares)
    place = np.digitize(np.arange(len(distinct)), (validate, validate + calibrate))
    return np.asarray(_IN_ORDER[place][member], dtype=np.int8)


_FEWEST_SIZED = 4  # groups; with fewer, each part gets one group


def _by_size(sizes: NDArray[np.int64], shares: tuple[float, float]) -> Parts:
    """The part of each group (G,), from the sizes of groups (G,) in the order of their hashes.

    A group is skipped if a part would become more than 1.5 times as large as its target, unless no other
    group is left.
    """
    parts = np.full(len(sizes), TRAIN, dtype=np.int8)
    for part, share in ((VALIDATION, shares[0]), (CALIBRATION, shares[1])):
        target, assigned = share * sizes.sum(), 0
        for group in range(len(sizes)) if share > 0 else ():
            if parts[group] == TRAIN and assigned + sizes[group] <= 1.5 * target and assigned < 0.75 * target:
                parts[group] = part
                assigned += int(sizes[group])
        if share > 0 and not assigned:
            free_sizes = np.where(parts == TRAIN, sizes, sizes.sum() + 1)
            parts[int(free_sizes.argmin())] = part
    return parts


def _enough(groups: int, counts: tuple[int, int], shares: tuple[float, float]) -> tuple[int, int]:
    """Numbers of validation and calibration groups: at least one if requested, after one for training."""
    validate = max(counts[0], int(shares[0] > 0))
    calibrate = max(counts[1], int(shares[1] > 0))
    validate = max(0, min(validate, groups - 1 - int(shares[1] > 0 and groups > 2)))
    return validate, max(0, min(calibrate, groups - 1 - validate))


def _calibrating(split: ByKey | Chronological, records: int) -> float:
    """The share of records for calibration, if there are `records` records."""
    if not split.calibration:
        return 0.0
    return max(split.calibration, min(split.enough / max(records, 1), 0.2, (1 - split.share) / 2))


@dataclass(frozen=True, kw_only=True)
class Chronological:
    """Divides groups by time: the earliest train, and later groups validate.

    With `calibrate_on` "latest", the latest groups calibrate. No training group begins after a validation
    group, and no validation group begins after a calibration group.

    With "spread", calibration groups come from the whole time before validation. This time is cut into as
    many stretches as there are calibration groups, and a group of each stretch is drawn by hash. No training
    or calibration group begins after a validation group.

    Args:
        key: returns the group of a record (session, patient). The time of a group is the time of its first
            record.
        order: returns the place of a record in time: a number, a date, or ISO 8601 text.
        share, calibration: shares of the records for validation and calibration, as far as groups allow. 0
            for none.
        enough: smallest number of calibration records, if there are any, but at most a fifth of all records.
        calibrate_on: "latest" or "spread".
    """

    key: Callable[[Record], str]
    order: Callable[[Record], Any]
    share: float = 0.05
    calibration: float = 0.0
    enough: int = 0
    calibrate_on: CalibrateOn = "latest"

    def mark(self, record: Record) -> tuple[int, int]:
        """The hash of a record's group, and its place in time.

        Raises:
            DataError: the record has no time.
        """
        try:
            return hash64(self.key(record)), _ordered(self.order(record))
        except (ValueError, TypeError):
            reason = "the record has no usable time or position"
            remedy = "give every record a number or an ISO 8601 time, or split by key"
            raise DataError(reason, source=record.source, line=record.line, remedy=remedy) from None

    def parts(self, marks: Marks) -> Parts:
        groups, came, member, records = np.unique(
            marks[:, 0], return_index=True, return_inverse=True, return_counts=True
        )
        begins = np.full(len(groups), np.iinfo(np.int64).max)
        np.minimum.at(begins, member, marks[:, 1])
        parts = np.full(len(groups), TRAIN, dtype=np.int8)
        groups_left = np.lexsort((came, begins))  # groups without a part so far, the earliest first
        spread = self.calibrate_on == "spread"
        order = (VALIDATION, CALIBRATION) if spread else (CALIBRATION, VALIDATION)
        calibration = _calibrating(self, len(marks))
        sizes = {VALIDATION: self.share * len(marks), CALIBRATION: calibration * len(marks)}
        for part in order:
            # Training keeps one group, then validation, then calibration.
            fewest = (
                2 if part == order[0] and sizes[order[1]] > 0 and (len(groups_left) > 2 or not spread) else 1
            )
            if sizes[part] > 0 and len(groups_left) > fewest:
                draw = _stretches if spread and part == CALIBRATION else _latest
                chosen = draw(groups_left, groups, records, sizes[part])[: len(groups_left) - fewest]
                parts[chosen] = part
                groups_left = groups_left[parts[groups_left] == TRAIN]
        return np.asarray(parts[member], dtype=np.int8)


def _latest(groups_left: Places, groups: Marks, records: Places, size: float) -> Places:
    """The last of `groups_left` (in order of time), latest first, with at least `size` records in all."""
    latest = groups_left[::-1]
    return latest[: int(np.searchsorted(np.cumsum(records[latest]), size)) + 1]


def _stretches(groups_left: Places, groups: Marks, records: Places, size: float) -> Places:
    """Groups with about `size` records together, spread over `groups_left`: one from each stretch of time.

    They are drawn at random, not at regular intervals. Otherwise periodic events could always be at the same
    place of the interval.
    """
    count = min(len(groups_left), max(1, round(size * len(groups_left) / int(records[groups_left].sum()))))
    stretch = np.arange(len(groups_left)) * count // len(groups_left)
    order = np.lexsort((_share(groups[groups_left]), stretch))
    return groups_left[order[np.unique(stretch[order], return_index=True)[1]]]


def evenly(total: int, count: int) -> list[int]:
    """`count` evenly spread indices of `total` items. All indices if there are no more.

    >>> evenly(10, 4), evenly(3, 9)
    ([0, 3, 6, 9], [0, 1, 2])
    """
    return [int(i) for i in np.linspace(0, total - 1, count)] if count < total else list(range(total))


def nested(total: int) -> list[int]:
    """All indices, in an order in which every first part is evenly spread (van der Corput 1935).

    >>> nested(8)
    [0, 4, 2, 6, 1, 5, 3, 7]
    """
    bits = max(total - 1, 0).bit_length()
    turned = (int(f"{i:0{bits}b}"[::-1], 2) for i in range(1 << bits)) if bits else iter(range(total))
    return [i for i in turned if i < total]
