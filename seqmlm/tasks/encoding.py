"""Records to encodings, batch by batch; what a tokenizer cannot spell goes where bad records go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.base import Domain
from seqmlm.engine.types import Encoding
from seqmlm.errors import DataError
from seqmlm.tokenizers.base import Tokenizer, UnknownUnit

BATCH_RECORDS = 256
BATCH_CHARACTERS = 1 << 18

_UNFAMILIAR = "a record most of which the model's vocabulary does not know: is it data of another kind?"


class Encoded(NamedTuple):
    """A record and what the model sees of it."""

    record: Record
    encoding: Encoding


@dataclass(frozen=True, kw_only=True)
class Size:
    """When a batch is full: at the first record with which it reaches one of these.

    Args:
        work: forward tokens that its records may take together.
        of: forward tokens that a record of so many tokens takes.
    """

    work: float = float("inf")
    of: Callable[[int], float] = float


class Filling:
    """Measures a batch while it is filled; which records it gets depends on them alone."""

    def __init__(self, size: Size) -> None:
        self._size = size
        self.empty()

    def empty(self) -> None:
        """A new batch begins."""
        self.records = self._characters = 0
        self._work = 0.0

    def add(self, record: Record, tokens: int = 0) -> bool:
        """Count a record; whether the batch is full with it."""
        self.records += 1
        self._characters += len(record.raw) if isinstance(record.raw, str) else 1024
        self._work += self._size.of(tokens)
        return (
            self.records >= BATCH_RECORDS
            or self._characters >= BATCH_CHARACTERS
            or self._work >= self._size.work
        )


def batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Records that are scored together: up to `BATCH_RECORDS` of them or `BATCH_CHARACTERS`, one at least."""
    batch: list[Record] = []
    filling = Filling(Size())
    for record in records:
        batch.append(record)
        if filling.add(record):
            yield batch
            batch = []
            filling.empty()
    if batch:
        yield batch


def encoded(
    domain: Domain, tokenizer: Tokenizer, records: Sequence[Record], problems: Problems
) -> list[Encoded]:
    """Tokenize a batch; records that the tokenizer cannot spell go to `problems`.

    Raises:
        DataError: a record that cannot be spelled, where `problems` raises.
    """
    found = [one for one in tokenized(domain, tokenizer, records, problems) if one is not None]
    note_unfamiliar(found, tokenizer, problems)
    return found


def note_unfamiliar(batch: Sequence[Encoded], tokenizer: Tokenizer, problems: Problems) -> None:
    """Count the records that the vocabulary does not know."""
    problems.note(_UNFAMILIAR, _unfamiliar(batch, tokenizer))


def tokenized(
    domain: Domain, tokenizer: Tokenizer, records: Sequence[Record], problems: Problems
) -> Iterator[Encoded | None]:
    """Tokenize records one after another; None for one that cannot be spelled, which goes to `problems`.

    Raises:
        DataError: a record that cannot be spelled, where `problems` raises, after those before it.
    """
    try:
        encodings = tokenizer.encode_batch([record.raw for record in records])
    except DataError:
        yield from _singly(domain, tokenizer, records, problems)
    else:
        yield from map(Encoded, records, encodings)


def _singly(
    domain: Domain, tokenizer: Tokenizer, records: Sequence[Record], problems: Problems
) -> Iterator[Encoded | None]:
    for record in records:
        found = None
        try:
            found = Encoded(record, tokenizer.encode(record.raw))
        except UnknownUnit as error:
            shown = domain.unknown_error(record, [error.found], sensitive=problems.sensitive)
            problems.bad(shown, str(record.raw))
        except DataError as error:
            placed = DataError(error.reason, source=record.source, line=record.line, remedy=error.remedy)
            problems.bad(placed, str(record.raw))
        yield found


def _unfamiliar(batch: Sequence[Encoded], tokenizer: Tokenizer) -> int:
    """Records more than half of which is unknown."""
    if not batch or not len(tokenizer.unfamiliar):
        return 0
    unknown = np.zeros(max(tokenizer.space.size, max(tokenizer.unfamiliar) + 1), dtype=np.bool_)
    unknown[list(tokenizer.unfamiliar)] = True
    record = np.repeat(np.arange(len(batch)), [len(one.encoding) for one in batch])
    inside = np.concatenate([one.encoding.groups for one in batch]) >= 0
    strange = inside & unknown[np.concatenate([one.encoding.ids for one in batch])]
    most = 2 * np.bincount(record[strange], minlength=len(batch)) > np.bincount(
        record[inside], minlength=len(batch)
    )
    return int(np.count_nonzero(most))


class InMemory:
    """Encodings in memory, as `Sequences`."""

    def __init__(self, encodings: list[Encoding]) -> None:
        self._encodings = encodings
        self.lengths = np.array([len(one) for one in encodings], dtype=np.int32)

    def __len__(self) -> int:
        return len(self._encodings)

    def __getitem__(self, index: int) -> Encoding:
        return self._encodings[index]
