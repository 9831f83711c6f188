"""The data types that the parts of the engine exchange.

Shapes in all of `seqmlm.engine` use these letters:
    L  tokens of one sequence        T  tokens of one packed row       D  documents in a packed row
    Q  queried (or masked) positions V  vocabulary                     H  hidden size
A *document* is one sequence inside a packed row. A *unit* is the smallest part that gets a probability, such
as a word, a residue or an event. A *queried* position is one where the model predicts a token.
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
"""Precision of matrix products; "auto" is bf16 on a GPU that supports it, and fp32 otherwise."""

Sharding = Literal["none", "fsdp2"]
"""How processes share a training: "none" divides only batches, "fsdp2" also weights and gradients."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoding:
    """One tokenized sequence, including special tokens.

    Args:
        ids: (L,) token ids.
        groups: (L,) unit number of each token. Tokens of one unit have the same number; `-1` marks special
            tokens.
        classes: (L,) small integers that name the class of each token (operator, identifier ...), or None.
        spans: (L, 2) start and end of each token in the raw text of the record, end excluded; (0, 0) for
            special tokens; or None.
        positions: (L,) position ids if they are not 0..L-1, or None. The codes of a set have the same
            position.
        weights: (L,) weight of each token in the training loss, or None for 1 everywhere.
        symbols: (L,) number of the thing that each token names, or None. Two tokens that name the same thing
            have the same number: an identifier in its scope, or the family of a code. A token that names
            nothing has -1. Maskers and maps read it, models do not.
        channels: name to (L,) additional inputs of each token.
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
        """The encoding of selected tokens, in the given order; a token may be selected several times."""
        columns: dict[str, Any] = {
            name: None if (column := getattr(self, name)) is None else column[tokens] for name in COLUMNS
        }
        return Encoding(**columns, channels={name: column[tokens] for name, column in self.channels.items()})


COLUMNS = tuple(column.name for column in fields(Encoding) if column.name != "channels")


def join_columns(
    pieces: Sequence[Encoding], join: Callable[[list[Any]], Any], **overrides: NDArray[Any] | None
) -> Encoding:
    """Join several encodings into one, column by column.

    Args:
        pieces: at least one encoding; the result has the channels of the first.
        join: makes one column from the list of columns of the pieces.
        overrides: columns of the result that are not joined but used as given.
    """
    columns: dict[str, Any] = {
        name: overrides[name] if name in overrides else join([getattr(piece, name) for piece in pieces])
        for name in COLUMNS
    }
    channels = {name: join([piece.channels[name] for piece in pieces]) for name in pieces[0].channels}
    return Encoding(**columns, channels=channels)


@dataclass(frozen=True, kw_only=True)
class TokenSpace:
    """The vocabulary as the engine sees it: its size and its special ids.

    A special token is never masked and never inserted by a masker. In the `ordinary` probability space, it
    is not part of the softmax.

    Args:
        size: number of ids that the tokenizer can produce. The embedding of a model may be padded to more
            rows.
        pad, mask: ids of the padding token and the mask token.
        unk, start, end: ids of the unknown, start and end tokens, or None if the vocabulary has no such
            token.
        special: all special ids, including the five above.

    Raises:
        ValueError: `special` lacks one of the five ids, or has an id outside the vocabulary.
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
        """The id of the unknown token as a tuple, which is empty if the vocabulary has no unknown token."""
        return () if self.unk is None else (self.unk,)

    @cached_property
    def ordinary(self) -> Ids:
        """(R,) ids that are not special, ascending: only these may be masked, inserted and predicted."""
        return np.flatnonzero(~self.is_special).astype(np.int32)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "special": list(self.special)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TokenSpace:
        return cls(**{**values, "special": tuple(values["special"])})


class Sequences(Protocol):
    """A collection of encodings with random access, whose lengths are known without reading them."""

    @property
    def lengths(self) -> Ids:
        """(N,) number of tokens of each sequence, including special tokens."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Encoding: ...


class InMemory:
    """`Sequences` over a list of encodings in memory."""

    def __init__(self, encodings: list[Encoding]) -> None:
        self._encodings = encodings
        self.lengths = np.array([len(encoding) for encoding in encodings], dtype=np.int32)

    def __len__(self) -> int:
        return len(self._encodings)

    def __getitem__(self, index: int) -> Encoding:
        return self._encodings[index]


class Windows(Sequences, Protocol):
    """`Sequences` in which each element is a window of a record."""

    def records(self, indices: Sequence[int]) -> Longs:
        """(M,) number of the record that each of the M windows belongs to."""


@runtime_checkable
class MovingWindows(Windows, Protocol):
    """Windows that may be cut at different places in each epoch.

    The number of windows is the same in all epochs, and the sum of their lengths is the same or nearly so.
    `lengths` and `[index]` do not refer to a particular epoch.
    """

    @property
    def longest(self) -> int:
        """Number of tokens of the longest window of any epoch."""

    def lengths_at(self, epoch: int, indices: Longs) -> Ids:
        """(M,) number of tokens that the given windows have in an epoch."""

    def at(self, epoch: int, index: int) -> Encoding:
        """The encoding of one window as it is cut in an epoch."""


def ranges(starts: Longs, counts: Longs) -> Longs:
    """The integers start .. start + count - 1 of each of N ranges, concatenated.

    >>> ranges(np.array([5, 0]), np.array([2, 3]))
    array([5, 6, 0, 1, 2])
    """
    offsets = np.repeat(starts - (np.cumsum(counts) - counts), counts)
    joined: Longs = np.arange(len(offsets), dtype=np.int64) + offsets
    return joined


def running_totals(counts: Longs) -> Longs:
    """(N + 1,) 0, followed by the cumulative sums of the counts."""
    totals: Longs = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=totals[1:])
    return totals
