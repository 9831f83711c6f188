"""The values that flow through the engine.

Shape legend, used in all of `seqmlm.engine`:
    L  tokens of one sequence        T  tokens of one packed row       D  documents in a packed row
    Q  asked (or masked) positions   V  vocabulary                     H  hidden size
A *document* is one sequence inside a packed row; a *unit* is what the field counts (word, residue, event).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]

SPECIAL_GROUP = -1

Precision = Literal["auto", "fp32", "bf16"]
"""Of matrix products; "auto" is bf16 on a GPU that has it."""

Sharding = Literal["none", "fsdp2"]
"""What processes of a training divide among them: nothing but the batches, or weights and gradients too."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoding:
    """One tokenized sequence, special tokens included.

    Args:
        ids: (L,) token ids.
        groups: (L,) unit number of each token; tokens of one unit share it, `-1` marks special tokens.
        classes: (L,) small integers naming a token's class (operator, identifier ...), or None.
        spans: (L, 2) half-open offsets into the record's raw text; (0, 0) for special tokens; or None.
        positions: (L,) position ids when they are not 0..L-1 (a set of codes shares one), or None.
        weights: (L,) training loss weights, or None for all 1.
        symbols: (L,) number of what a token names, equal if two tokens name the same (an identifier in its
            scope, the family of a code), -1 if it names nothing; or None. Read by maskers and maps, not by
            models.
        channels: further per-token inputs, each (L,).
    """

    ids: Ids
    groups: Ids
    classes: NDArray[np.int16] | None = None
    spans: Ids | None = None
    positions: Ids | None = None
    weights: Floats | None = None
    symbols: Ids | None = None
    channels: Mapping[str, Floats] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, tokens: Longs) -> Encoding:
        """Some tokens of it, in the order given; one may come several times."""
        columns: dict[str, Any] = {
            name: None if (column := getattr(self, name)) is None else column[tokens] for name in COLUMNS
        }
        return Encoding(**columns, channels={name: column[tokens] for name, column in self.channels.items()})


COLUMNS = tuple(column.name for column in fields(Encoding) if column.name != "channels")


def join_columns(
    pieces: Sequence[Encoding], join: Callable[[list[Any]], Any], **overrides: NDArray[Any] | None
) -> Encoding:
    """One sequence of several, column by column.

    Args:
        pieces: one at least; the channels are those of the first.
        join: makes a column of those of the pieces.
        overrides: columns that are made already.
    """
    columns: dict[str, Any] = {
        name: overrides[name] if name in overrides else join([getattr(piece, name) for piece in pieces])
        for name in COLUMNS
    }
    channels = {name: join([piece.channels[name] for piece in pieces]) for name in pieces[0].channels}
    return Encoding(**columns, channels=channels)


@dataclass(frozen=True, kw_only=True)
class TokenSpace:
    """A vocabulary as the engine sees it: its size and which ids are special.

    A special token is never masked, never inserted by a masker, and leaves the softmax in the
    `ordinary` probability space.

    Args:
        size: number of ids the tokenizer can produce (a model's embedding may be padded beyond it).
        pad, mask: their ids.
        unk, start, end: their ids, or None if the vocabulary has none.
        special: all special ids, the five above included.
    """

    size: int
    pad: int
    mask: int
    unk: int | None
    start: int | None
    end: int | None
    special: tuple[int, ...]

    def __post_init__(self) -> None:
        named = {i for i in (self.pad, self.mask, self.unk, self.start, self.end) if i is not None}
        if not named <= set(self.special) or not all(0 <= i < self.size for i in self.special):
            raise ValueError("special must contain pad, mask, unk, start and end, all within the vocabulary")

    @cached_property
    def is_special(self) -> Bools:
        """(V,) True at special ids."""
        flags = np.zeros(self.size, dtype=np.bool_)
        flags[list(self.special)] = True
        return flags

    @property
    def unknown_ids(self) -> tuple[int, ...]:
        """The id of the unknown token, or nothing where the vocabulary has none."""
        return () if self.unk is None else (self.unk,)

    @cached_property
    def ordinary(self) -> Ids:
        """(R,) the ids that may be masked, inserted and predicted, ascending."""
        return np.flatnonzero(~self.is_special).astype(np.int32)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "special": list(self.special)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TokenSpace:
        return cls(**{**values, "special": tuple(values["special"])})


class Sequences(Protocol):
    """A random-access collection of encodings whose lengths are known without reading them."""

    @property
    def lengths(self) -> Ids:
        """(N,) tokens of each sequence, special tokens included."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Encoding: ...


class InMemory:
    """Encodings in memory, as `Sequences`."""

    def __init__(self, encodings: list[Encoding]) -> None:
        self._encodings = encodings
        self.lengths = np.array([len(encoding) for encoding in encodings], dtype=np.int32)

    def __len__(self) -> int:
        return len(self._encodings)

    def __getitem__(self, index: int) -> Encoding:
        return self._encodings[index]


class Windows(Sequences, Protocol):
    """Sequences that are windows of records."""

    def records(self, indices: Sequence[int]) -> Longs:
        """(M,) the number of the record that each of some windows belongs to."""


@runtime_checkable
class MovingWindows(Windows, Protocol):
    """Windows that may be cut at other places in each epoch.

    Their number is the same in all epochs, and so is the sum of their lengths, or nearly; `lengths` and
    `[index]` are of no epoch in particular.
    """

    @property
    def longest(self) -> int:
        """Tokens of the longest window of any epoch."""

    def lengths_at(self, epoch: int, indices: Longs) -> Ids:
        """(M,) tokens that some windows have in an epoch."""

    def at(self, epoch: int, index: int) -> Encoding:
        """A window as it is cut in an epoch."""


def ranges(starts: Longs, counts: Longs) -> Longs:
    """range(start, start + count) for each of N, one after another.

    >>> ranges(np.array([5, 0]), np.array([2, 3]))
    array([5, 6, 0, 1, 2])
    """
    offsets = np.repeat(starts - (np.cumsum(counts) - counts), counts)
    joined: Longs = np.arange(len(offsets), dtype=np.int64) + offsets
    return joined


def running_totals(counts: Longs) -> Longs:
    """(N + 1,) 0 and the running totals."""
    totals: Longs = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=totals[1:])
    return totals
