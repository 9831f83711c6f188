"""Which sequences share a packed row: decided from lengths alone, identically on every rank, resumable."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.randomness import Permutation
from seqmlm.engine.types import Ids
from seqmlm.errors import StateError, UsageError

_PLENTY = 0.98  # a row filled to this share is emitted at once; emptier ones wait for the next samples


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Best-fit decreasing: put items into as few bins of `capacity` as the heuristic finds.

    Returns:
        Indices into `lengths`, bin by bin; an item longer than `capacity` has a bin of its own.

    >>> best_fit([3, 9, 7, 2], 10)
    [[1], [2, 0], [3]]
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return _fit(order, [lengths[index] for index in order], capacity)


def _fit(items: Iterable[int], lengths: Iterable[int], capacity: int) -> list[list[int]]:
    """Put each item, in the order given, into the fullest bin that still holds it."""
    bins: list[list[int]] = []
    spaces: list[int] = []  # the different amounts of space left, ascending: at most `capacity` of them
    holders: dict[int, list[int]] = {}  # space left -> the bins that have it
    for item, length in zip(items, lengths, strict=True):
        place = bisect_left(spaces, length)
        if place < len(spaces):
            space = spaces[place]
            chosen = holders[space].pop()
            if not holders[space]:
                del holders[space], spaces[place]
            bins[chosen].append(item)
        else:
            space, chosen = capacity, len(bins)
            bins.append([item])
        left = space - length
        if left > 0:
            if left not in holders:
                holders[left] = []
                insort(spaces, left)
            holders[left].append(chosen)
    return bins


@dataclass(frozen=True)
class Row:
    """Which samples share a packed row, and in which epoch (dynamic masks differ by epoch)."""

    epoch: int
    samples: tuple[int, ...]
    tokens: int


class RowPlanner:
    """Plans packed rows endlessly; the same on every rank, and resumable between any two rows.

    Consecutive samples of the permuted order, about `lookahead` rows of them, are fitted together. Well
    filled rows are emitted in a shuffled order, the samples of the others wait for the next ones. Only
    samples above a quarter of a row are placed longest first: with shorter ones that would gather all long
    sentences in one row and all short ones in another.

    Args:
        lengths: (N,) tokens of each sequence; may be memory-mapped, is never copied.
        tokens_per_row: capacity of a row.
        seed: of the order.
        shuffle: False keeps the order of `lengths`, up to the fitting.
        lookahead: rows planned together; more fills better and forgets order over a longer stretch.

    Raises:
        UsageError: no sequence, an empty one, or one longer than a row.
    """

    def __init__(
        self, lengths: Ids, *, tokens_per_row: int, seed: int, shuffle: bool = True, lookahead: int = 32
    ) -> None:
        if not len(lengths):
            raise UsageError("there is no sequence to plan rows from; check the training data")
        if lengths.min() < 1:
            raise UsageError(f"sequence {int(lengths.argmin())} has no token; leave empty sequences out")
        if lengths.max() > tokens_per_row:
            worst = int(lengths.argmax())
            raise UsageError(
                f"sequence {worst} has {lengths[worst]} tokens, more than tokens_per_row = {tokens_per_row}; "
                "raise tokens_per_row or split the sequences into shorter windows (max_length)"
            )
        if lookahead < 1:
            raise UsageError(f"lookahead = {lookahead} rows must be at least 1")
        self.lengths = lengths
        self.tokens_per_row = tokens_per_row
        self.tokens_per_epoch = int(lengths.sum(dtype=np.int64))
        self._seed, self._shuffle, self._lookahead = seed, shuffle, lookahead
        self._rows: list[Row] = []
        self._plan(epoch=0, cursor=0, carried=[])

    @property
    def epoch(self) -> int:
        """Epoch of the next row, from 0."""
        return self._peek().epoch

    def next_row(self) -> Row:
        """The next row; after the last one of an epoch, the first one of the next."""
        row = self._peek()
        self._emitted += 1
        return row

    def _peek(self) -> Row:
        if self._emitted == len(self._rows):
            if self._next_cursor == len(self.lengths):  # an epoch's last stretch holds nothing back
                self._plan(epoch=self._epoch + 1, cursor=0, carried=[])
            else:
                self._plan(epoch=self._epoch, cursor=self._next_cursor, carried=self._waiting)
        return self._rows[self._emitted]

    def state_dict(self) -> dict[str, Any]:
        """JSON-ready: where the present stretch began, and how many of its rows are out."""
        return {
            "epoch": self._epoch,
            "cursor": self._cursor,
            "carried": self._carried,
            "emitted": self._emitted,
            "settings": self._settings(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            StateError: it was taken with other sequences or settings, which give other rows.
        """
        for key, value in self._settings().items():
            if state["settings"][key] != value:
                raise StateError(
                    f"the rows were planned with {key} = {state['settings'][key]}, now it is {value}; "
                    "resume with the same data and settings or start a new run"
                )
        self._plan(epoch=state["epoch"], cursor=state["cursor"], carried=list(state["carried"]))
        self._emitted = int(state["emitted"])

    def _settings(self) -> dict[str, Any]:
        return {
            "samples": len(self.lengths),
            "tokens": self.tokens_per_epoch,
            "tokens_per_row": self.tokens_per_row,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "lookahead": self._lookahead,
        }

    def _plan(self, epoch: int, cursor: int, carried: list[int]) -> None:
        """Fit `carried` and the samples from `cursor` on into rows."""
        self._epoch, self._cursor, self._carried, self._emitted = epoch, cursor, carried, 0
        taken, self._next_cursor = self._take()
        samples = np.array(carried + taken)
        lengths = self.lengths[samples].astype(np.int64)
        long_first = np.argsort(np.where(lengths > self.tokens_per_row // 4, -lengths, 0), kind="stable")
        items = samples[long_first].tolist()
        length_of = dict(zip(items, lengths[long_first].tolist(), strict=True))
        bins = _fit(items, length_of.values(), self.tokens_per_row)
        rows = [Row(epoch, tuple(own), sum(map(length_of.__getitem__, own))) for own in bins]
        held = self._hold_back(rows) if self._next_cursor < len(self.lengths) else set()
        self._waiting = [sample for number in sorted(held) for sample in rows[number].samples]
        self._rows = [row for number, row in enumerate(rows) if number not in held]
        if self._shuffle:
            order = Permutation(len(self._rows), (self._seed, epoch, cursor))
            self._rows = [self._rows[place] for place in order(np.arange(len(self._rows)))]

    def _take(self) -> tuple[list[int], int]:
        """Samples from the cursor on until `lookahead` rows could be full, and the cursor after them."""
        order = Permutation(len(self.lengths), (self._seed, self._epoch))
        wanted = self._lookahead * self.tokens_per_row - int(self.lengths[self._carried].sum())
        taken: list[int] = []
        cursor = self._cursor
        while wanted > 0 and cursor < len(self.lengths):
            guess = wanted * len(self.lengths) // self.tokens_per_epoch + 8
            block: NDArray[np.int64] = np.arange(cursor, min(cursor + guess, len(self.lengths)))
            samples = order(block) if self._shuffle else block
            sums = np.cumsum(self.lengths[samples], dtype=np.int64)
            used = min(int(np.searchsorted(sums, wanted)) + 1, len(samples))
            taken += samples[:used].tolist()
            wanted -= int(sums[used - 1])
            cursor += used
        return taken, cursor

    def _hold_back(self, rows: Sequence[Row]) -> set[int]:
        """Numbers of the rows worth waiting for more samples: the emptiest, at most half of them."""
        poor = [number for number, row in enumerate(rows) if row.tokens < _PLENTY * self.tokens_per_row]
        return set(sorted(poor, key=lambda number: rows[number].tokens)[: len(rows) // 2])
