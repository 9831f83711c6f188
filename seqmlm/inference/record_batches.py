"""Group records into batches of encodings, and limit the work of a batch by estimated forward tokens.

A batch depends only on its records, never on a clock. Therefore a run that resumes after a crash cuts the
input at the same places as an uninterrupted run.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from seqmlm.data.files import expand, is_reference
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import EXACT, Doubles, Mode
from seqmlm.errors import DataError, SeqmlmError
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.tokenizers.base import Tokenizer, Unknown, UnknownUnit

if TYPE_CHECKING:
    from seqmlm.domains.field import Field
    from seqmlm.engine.cones import Layers

BATCH_RECORDS = 256
BATCH_CHARACTERS = 1 << 18
BATCH_SECONDS = 2
PART_SECONDS = 20
"""Estimated seconds of work between two commits.

A run that is stopped loses them, and repeats them when resumed.
"""

# Multiplications and additions per second of two cores, and of a GPU that a small model does not use fully.
# One core of an AMD EPYC reaches 0.8 to 2 times as many in exact scores of sequences of 64 to 512 tokens.
# This includes copies computed as differences (fp32, tiny and small, four patterns of layers, processor
# time).
_RATES = {False: 5e10, True: 1e13}
# number of lengths for which the cost of an exact score is computed; up to 8,192 tokens they are 15 % apart
_LENGTHS = 64
# forward tokens of a batch; fewer would leave forward passes half empty
_LEAST = {False: 4096, True: 1 << 17}


# How much is done at a time


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much work is done at a time. It is the same for the same model, mode and kind of device.

    Args:
        batch: forward tokens of a batch. The first record that reaches them completes the batch.
        commit_interval: forward tokens between two commits.
        cost: computes the forward tokens for a record from its number of tokens.
    """

    batch: float = float("inf")
    commit_interval: float = float("inf")
    cost: Callable[[int], float] = float

    def share(self, sequence: Encoded) -> float:
        """The share of a batch that a record fills: by tokens, records (`BATCH_RECORDS`) or characters."""
        batch_share = max(1 / BATCH_RECORDS, characters(sequence.record) / BATCH_CHARACTERS)
        return max(batch_share, self.cost(len(sequence.encoding)) / self.batch)

    @classmethod
    def of(cls, model: LoadedModel, mode: Mode = EXACT) -> Budget:
        """The budget of a model in a mode: about `BATCH_SECONDS` per batch, and `PART_SECONDS` per commit."""
        each_second = tokens_per_second(model)
        batch = max(_LEAST[_has_gpu()], int(BATCH_SECONDS * each_second))
        commit = max(batch, int(PART_SECONDS * each_second))
        return cls(batch=batch, commit_interval=commit, cost=forward_tokens(model, mode))


def _has_gpu() -> bool:
    import torch

    return torch.accelerator.is_available()


def tokens_per_second(model: LoadedModel) -> float:
    """Approximate forward tokens per second of a model. The same in every run on the same kind of device."""
    return _RATES[_has_gpu()] / (2 * model.rows.weights_per_token)


def forward_tokens(model: LoadedModel, mode: Mode = EXACT) -> Callable[[int], float]:
    """A function from the tokens of a record to the forward tokens of its score in a mode.

    Units are assumed to be tokens. Forward tokens are counted as in whole sequences
    (`engine.layout.exact_cost`).
    """
    longest = model.card.max_length
    copies = {"one-pass": 1, "partition": mode.parts}.get(mode.kind)
    if copies is not None:
        return lambda tokens: float(copies * (tokens if tokens <= longest else 2 * tokens))
    layers = model.rows.layers
    if layers is None:
        return lambda tokens: float(tokens * min(tokens, longest))
    lengths, costs = _exact_costs(layers, longest)

    def exact_cost(tokens: int) -> float:
        """Forward tokens of an exact score of `tokens` tokens."""
        if tokens <= longest:
            return float(np.interp(tokens, lengths, costs))
        # Each token is predicted in one of two windows. Both are also computed unmasked.
        return float(costs[-1]) * tokens / longest + tokens

    return exact_cost


@cache
def _exact_costs(layers: Layers, longest: int) -> tuple[Doubles, Doubles]:
    """Ascending lengths from 0 to `longest`, and the cost of an exact score, nearly linear between them."""
    from seqmlm.engine.layout import exact_cost

    lengths = np.unique(np.geomspace(1, longest, _LENGTHS).round())
    costs = [exact_cost(int(length), layers) for length in lengths]
    return np.append(0.0, lengths), np.append(0.0, costs)


def characters(record: Record) -> int:
    """Approximate length of a record in its file. Records that are not text count as a kilobyte."""
    return len(record.raw) if isinstance(record.raw, str) else 1024


def batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Group records to tokenize together, limited by `BATCH_RECORDS` and `BATCH_CHARACTERS`.

    A batch has at least one record. Records before an error are returned before it is raised.
    """
    batch, size = list[Record](), 0
    try:
        for record in records:
            batch.append(record)
            size += characters(record)
            if len(batch) >= BATCH_RECORDS or size >= BATCH_CHARACTERS:
                yield batch
                batch, size = [], 0
    except SeqmlmError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


# Records and strings to encodings

_UNFAMILIAR = (
    "a record that is mostly outside the model's vocabulary: its score is unreliable; check that it is the "
    "right kind of data"
)


class Encoded(NamedTuple):
    """A record and its encoding for the model."""

    record: Record
    encoding: Encoding


def tokenized(
    domain: Field, tokenizer: Tokenizer, records: Sequence[Record], problems: Problems
) -> Iterator[Encoded]:
    """Tokenize a batch. Records that cannot be tokenized go to `problems`.

    Raises:
        DataError: a record cannot be tokenized, and `problems` raises. Records before it come first.
    """
    sequences = list[Encoded]()
    stream: Iterator[Encoded]
    try:
        encodings = tokenizer.encode_batch([record.raw for record in records])
    except DataError:
        stream = _singly(domain, tokenizer, records, problems)
    else:
        stream = map(Encoded, records, encodings)
    for sequence in stream:
        sequences.append(sequence)
        yield sequence
    problems.note(_UNFAMILIAR, _unfamiliar(sequences, tokenizer))


def encoded(
    domain: Field, tokenizer: Tokenizer, records: Sequence[Record], problems: Problems
) -> list[Encoded]:
    """All results of `tokenized` as a list."""
    return [*tokenized(domain, tokenizer, records, problems)]


def encoded_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Encoding]:
    """Tokenize strings that do not come from a file of the domain.

    Raises:
        DataError: a text cannot be tokenized.
    """
    try:
        return tokenizer.encode_batch(texts)
    except UnknownUnit as error:
        where = f"text {texts[error.index][:40]!r}"
        raise DataError(f"{where}: {error.reason}", remedy=error.remedy) from None


def unknown_tokens(tokenizer: Tokenizer, encodings: Iterable[Encoding]) -> int:
    """Number of tokens outside the vocabulary, which no score can count."""
    unfamiliar = np.array(tokenizer.units.facts.unfamiliar, dtype=np.int32)
    return (
        sum(int(np.isin(encoding.ids, unfamiliar).sum()) for encoding in encodings) if len(unfamiliar) else 0
    )


def _singly(
    domain: Field, tokenizer: Tokenizer, records: Sequence[Record], problems: Problems
) -> Iterator[Encoded]:
    for record in records:
        try:
            encoding = tokenizer.encode(record.raw)
        except UnknownUnit as error:
            unknown = unknown_error(domain, record, [error.found], sensitive=problems.sensitive)
            problems.bad(unknown, str(record.raw))
        except DataError as error:
            refusal = DataError(error.reason, source=record.source, line=record.line, remedy=error.remedy)
            problems.bad(refusal, str(record.raw))
        else:
            yield Encoded(record, encoding)


def _unfamiliar(batch: Sequence[Encoded], tokenizer: Tokenizer) -> int:
    """Number of records of which more than half is unknown."""
    if not batch or not len(tokenizer.units.facts.unfamiliar):
        return 0
    unknown = np.zeros(max(tokenizer.space.size, max(tokenizer.units.facts.unfamiliar) + 1), dtype=np.bool_)
    unknown[list(tokenizer.units.facts.unfamiliar)] = True
    record = np.repeat(np.arange(len(batch)), [len(sequence.encoding) for sequence in batch])
    # Unknown tokens may be outside all units.
    strange = unknown[np.concatenate([sequence.encoding.ids for sequence in batch])]
    inside = strange | (np.concatenate([sequence.encoding.groups for sequence in batch]) >= 0)
    size = len(batch)
    mostly_unknown = 2 * np.bincount(record[strange], minlength=size) > np.bincount(
        record[inside], minlength=size
    )
    return int(np.count_nonzero(mostly_unknown))


# Inputs


def input_bytes(paths: Sequence[str]) -> int | None:
    """Total size of all input files on the disk. None if an input is not a file."""
    files = expand(paths)
    if any(is_reference(path) or is_pipe(path) for path in files):
        return None
    return sum(Path(path).stat().st_size for path in files)


def is_pipe(path: str) -> bool:
    """Whether a path can be read only once: "-", and anything other than a regular file."""
    return path == "-" or not (is_reference(path) or stat.S_ISREG(Path(path).stat().st_mode))


def check(domain: Field, record: Record, tokenizer: Tokenizer, problems: Problems) -> bool:
    """Whether the tokenizer can spell the record. If not, the record goes to `problems`.

    Only closed alphabets refuse a record. An open vocabulary counts its unknown tokens elsewhere.
    """
    unknown_pieces = tokenizer.unknown(record.raw) if tokenizer.traits.closed else []
    if unknown_pieces:
        error = unknown_error(domain, record, unknown_pieces, sensitive=problems.sensitive)
        problems.bad(error, str(record.raw))
    return not unknown_pieces


def unknown_error(
    domain: Field, record: Record, unknown_pieces: Sequence[Unknown], *, sensitive: bool = False
) -> DataError:
    """The error for a record with pieces outside the alphabet. For sensitive data, it shows no values."""
    unit = "a unit" if sensitive or domain.sensitive else repr(unknown_pieces[0].text)
    further_pieces = f" and {len(unknown_pieces) - 1} more" if len(unknown_pieces) > 1 else ""
    return DataError(
        f"{unit} is not in the {domain.name} alphabet",
        source=record.source,
        line=record.line,
        remedy=f"position {unknown_pieces[0].offset + 1} of the sequence{further_pieces}; correct it, "
        f"check that this is {domain.name} data, or continue without such records",
    )
