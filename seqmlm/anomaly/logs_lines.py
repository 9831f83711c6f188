"""The lines of log records as arrays: what each says, laid end to end, so that channels need no loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.types import Encoding
from seqmlm.tokenizers.base import Tokenizer

Longs = NDArray[np.int64]
Doubles = NDArray[np.float64]

_MIX = np.uint64(0x9E3779B97F4A7C15)
_STIR = np.uint64(0xD6E8FEB86659FD93)


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """The N lines of R records, one record after the other.

    Args:
        keys: (N,) what each line says; equal for lines that say the same but for their values.
        offsets: (R + 1,) where the records' lines begin and end.
    """

    keys: Longs
    offsets: Longs

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> Longs:
        """(R,) lines of each record."""
        return np.diff(self.offsets)

    @property
    def record(self) -> Longs:
        """(N,) the record of each line, ascending."""
        return np.repeat(np.arange(len(self)), self.counts)


def lines_of(encodings: Sequence[Encoding], tokenizer: Tokenizer) -> Lines:
    """The lines of encoded records; gap tokens are no lines.

    Args:
        encodings: windows or sessions, as `tokenizer` encoded them.
        tokenizer: one whose unit is the line (a template a token), or one of words with an end token behind
            every line.
    """
    if not encodings:
        return Lines(np.zeros(0, np.int64), np.zeros(1, np.int64))
    ids = np.concatenate([encoding.ids for encoding in encodings])
    groups = np.concatenate([encoding.groups for encoding in encodings])
    edges = np.cumsum([0, *map(len, encodings)])
    if tokenizer.unit == "line":
        inside = groups >= 0
        before = np.concatenate([[0], np.cumsum(inside)])
        return Lines(ids[inside].astype(np.int64), before[edges])
    ends = ids == tokenizer.space.end
    before = np.concatenate([[0], np.cumsum(ends)])
    return Lines(_line_keys(ids, groups >= 0, before[:-1], int(before[-1])), before[edges])


def line_at(encoding: Encoding, positions: Longs, tokenizer: Tokenizer) -> Longs:
    """(U,) the 0-based line of the record that each token belongs to.

    Args:
        encoding: a whole window or session.
        positions: (U,) tokens of lines, no gaps and no special tokens.
        tokenizer: as in `lines_of`.
    """
    if tokenizer.unit == "line":
        line: Longs = np.cumsum(encoding.groups >= 0) - 1
    else:
        ends = encoding.ids == tokenizer.space.end
        line = np.cumsum(ends) - ends
    return line[positions]


def _line_keys(ids: NDArray[np.int32], inside: NDArray[np.bool_], line: Longs, count: int) -> Longs:
    """(count,) a 63-bit hash of each line's tokens and their order.

    Args:
        ids, inside: (T,) tokens, and whether they are words.
        line: (T,) the line of each, ascending.
    """
    tokens, at = ids[inside].astype(np.uint64), line[inside]
    first = np.searchsorted(at, at, side="left")
    place = (np.arange(len(at)) - first).astype(np.uint64)
    mixed = (tokens + np.uint64(1)) * _MIX ^ (place + np.uint64(1)) * _STIR
    mixed = (mixed ^ mixed >> np.uint64(29)) * _STIR
    mixed ^= mixed >> np.uint64(32)
    sums = np.zeros(count, dtype=np.uint64)
    np.add.at(sums, at, mixed)
    return (sums >> np.uint64(1)).astype(np.int64)
