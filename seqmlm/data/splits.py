"""Which records train and which validate: whole groups, never siblings on both sides.

A split works in two steps, so that it needs no record twice and little memory: `mark` gives a record two
64-bit numbers (its group, its place in time) while the data streams by; `validation` decides once all marks
are there. A group lies in one split whole, by construction.
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

Part = Literal["train", "validation"]
Marks = NDArray[np.int64]


def hash64(text: str, seed: int = 0) -> int:
    """A signed 64-bit hash of a text, the same on every machine and in every process."""
    key = seed.to_bytes(8, "little", signed=True)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "little", signed=True)


def assign(key: str, seed: int, validation: float) -> Part:
    """The split of a key by its hash alone: the same key always lands in the same split.

    Args:
        key: the group (a subject, an article, a cluster).
        seed: another seed, another split.
        validation: share of keys that validate, in [0, 1].
    """
    return "validation" if _share(np.array([hash64(key, seed)]))[0] < validation else "train"


def neighbours(record: Record, lines: int = 1000) -> str:
    """A key that keeps neighbours together where records name no document: stretches of a file's lines.

    Sequences share windows within one split group only, so joining lines of a plain text needs such a key.
    """
    return record.document or f"{Path(record.source).name}:{record.line // lines}"


@runtime_checkable
class Split(Protocol):
    """A rule that divides records into training and validation."""

    def mark(self, record: Record) -> tuple[int, int]:
        """Two signed 64-bit numbers: the record's group and its place in the order."""
        ...

    def validation(self, marks: Marks) -> NDArray[np.bool_]:
        """(N, 2) marks to (N,) True where the record validates."""
        ...


_GIVEN: dict[str | None, int] = {None: 0, "train": 1, "validation": 2}


def _no_label(record: Record) -> str | None:
    return None


@dataclass(frozen=True, kw_only=True)
class ByKey:
    """Groups are divided by hash; each split gets at least one group as soon as there are two.

    Args:
        key: the domain's group of a record.
        seed: another seed, another split.
        share: of the groups, that validates; 0 keeps all for training.
        given: the split the data itself names for a record ("train" or "validation"), or None. As soon as it
            puts any record into validation, only those validate.
    """

    key: Callable[[Record], str]
    seed: int = 0
    share: float = 0.05
    given: Callable[[Record], str | None] = _no_label

    def mark(self, record: Record) -> tuple[int, int]:
        return hash64(self.key(record), self.seed), _GIVEN[self.given(record)]

    def validation(self, marks: Marks) -> NDArray[np.bool_]:
        if (marks[:, 1] == _GIVEN["validation"]).any():
            return np.asarray(marks[:, 1] == _GIVEN["validation"])
        groups = marks[:, 0]
        chosen: NDArray[np.bool_] = _share(groups) < self.share
        if 0 < self.share < 1 and len(groups) and chosen.all() == chosen.any():
            # All on one side: the group nearest to the other side crosses, unless it is the only one.
            lowest, highest = groups[np.argmin(_share(groups))], groups[np.argmax(_share(groups))]
            if lowest != highest:
                alone = groups == lowest if not chosen.any() else groups != highest
                return np.asarray(alone)
        return chosen


def _ordered(value: Any) -> int:
    """A number, date or ISO 8601 text as a 64-bit integer that keeps the order."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    number = float(value)
    if math.isnan(number):
        raise ValueError("not a number has no place")
    # The bits of a double, read as an integer, keep the order of positive and reverse that of negative ones.
    bits = int(np.float64(number + 0.0).view(np.int64))
    return bits if bits >= 0 else bits ^ 0x7FFFFFFFFFFFFFFF


def _share(hashes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Signed 64-bit hashes as numbers spread evenly over [0, 1)."""
    shares: NDArray[np.float64] = (hashes.view(np.uint64) >> np.uint64(11)).astype(np.float64) / 2.0**53
    return shares


@dataclass(frozen=True, kw_only=True)
class Chronological:
    """The latest groups validate: no group in training begins after one in validation.

    Args:
        key: the domain's group of a record (session, patient); a group's time is that of its first record.
        order: the record's place in time: a number, a date, or ISO 8601 text.
        share: of the records that should validate; each split gets a group as soon as there are two.
    """

    key: Callable[[Record], str]
    order: Callable[[Record], Any]
    share: float = 0.05

    def mark(self, record: Record) -> tuple[int, int]:
        """As `Split.mark`.

        Raises:
            DataError: the record has no place in time.
        """
        try:
            return hash64(self.key(record)), _ordered(self.order(record))
        except (ValueError, TypeError):
            raise DataError(
                "the record has no usable time or position",
                source=record.source,
                line=record.line,
                remedy="give every record a number or an ISO 8601 time, or split by key",
            ) from None

    def validation(self, marks: Marks) -> NDArray[np.bool_]:
        groups, member, records = np.unique(marks[:, 0], return_inverse=True, return_counts=True)
        begins = np.full(len(groups), np.iinfo(np.int64).max)
        np.minimum.at(begins, member, marks[:, 1])
        latest = np.lexsort((groups, begins))[::-1]
        wanted = self.share * len(marks)
        chosen = np.zeros(len(groups), dtype=np.bool_)
        if wanted > 0 and len(groups) > 1:
            enough = int(np.searchsorted(np.cumsum(records[latest]), wanted)) + 1
            chosen[latest[: min(enough, len(groups) - 1)]] = True
        return np.asarray(chosen[member])


@dataclass(frozen=True)
class Labelled:
    """A split somebody else has decided: a function from record to "train" or "validation"."""

    label: Callable[[Record], str]

    def mark(self, record: Record) -> tuple[int, int]:
        label = self.label(record)
        if label not in ("train", "validation"):
            raise ValueError(f"a split is 'train' or 'validation', not {label!r}")
        return int(label == "validation"), 0

    def validation(self, marks: Marks) -> NDArray[np.bool_]:
        return np.asarray(marks[:, 0] == 1)
