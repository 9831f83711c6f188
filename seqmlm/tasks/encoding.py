"""Records to encodings, batch by batch; what a tokenizer cannot spell goes where bad records go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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


def batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Records that are scored together: up to `BATCH_RECORDS` of them or `BATCH_CHARACTERS`, one at least."""
    batch: list[Record] = []
    characters = 0
    for record in records:
        batch.append(record)
        characters += len(record.raw) if isinstance(record.raw, str) else 1024
        if len(batch) >= BATCH_RECORDS or characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def encoded(
    domain: Domain, tokenizer: Tokenizer, records: Sequence[Record], problems: Problems
) -> list[Encoded]:
    """Tokenize a batch; records that the tokenizer cannot spell go to `problems`.

    Raises:
        DataError: a record that cannot be spelled, where `problems` raises.
    """
    try:
        encodings = tokenizer.encode_batch([record.raw for record in records])
        found = list(map(Encoded, records, encodings))
    except DataError:
        found = list(_singly(domain, tokenizer, records, problems))
    problems.note(_UNFAMILIAR, _unfamiliar(found, tokenizer))
    return found


def _singly(
    domain: Domain, tokenizer: Tokenizer, records: Sequence[Record], problems: Problems
) -> Iterator[Encoded]:
    for record in records:
        try:
            yield Encoded(record, tokenizer.encode(record.raw))
        except UnknownUnit as error:
            shown = domain.unknown_error(record, [error.found], sensitive=problems.sensitive)
            problems.bad(shown, str(record.raw))
        except DataError as error:
            placed = DataError(error.reason, source=record.source, line=record.line, remedy=error.remedy)
            problems.bad(placed, str(record.raw))


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
