"""Packing: which sequences share a row, how they are concatenated, and the global batches of rows.

Sequences are concatenated in rows of a token budget, and are never cropped or padded. Which sequences share
a row depends only on their lengths. Every process plans the same rows, and the plan can resume between any
two rows. Every global batch contains the position of the planner after it, because loader workers plan
ahead. Well-filled rows change the order of samples within a window of some rows. `RowPlanner` bounds that
window.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from seqmlm.engine.randomness import AUGMENTATION, KeyedGenerator, Permutation
from seqmlm.engine.signals import ignore_in_worker
from seqmlm.engine.types import Encoding, Floats, Ids, Longs, MovingWindows, Sequences
from seqmlm.errors import StateError, UsageError

if TYPE_CHECKING:
    from seqmlm.engine.masking.base import Corruptor


_PLENTY = 0.98  # a row filled to at least this fraction is emitted at once; others wait for more samples


def best_fit(items: Iterable[int], lengths: Iterable[int], capacity: int) -> list[list[int]]:
    """Put each item, in the given order, into the fullest bin with enough space.

    An item that is longer than `capacity` gets its own bin.

    Returns:
        For each bin, a list of its items.
    """
    bins: list[list[int]] = []
    spaces: list[int] = []  # the different amounts of free space, ascending; at most `capacity` of them
    holders: dict[int, list[int]] = {}  # amount of free space -> the bins that have it
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
        space_left = space - length
        if space_left > 0:
            if space_left not in holders:
                holders[space_left] = []
                insort(spaces, space_left)
            holders[space_left].append(chosen)
    return bins


@dataclass(frozen=True)
class PackedRow:
    """Samples that share a packed row.

    Args:
        epoch: their epoch, because dynamic masks differ between epochs.
        samples: indices of the samples.
        tokens: total number of tokens.
    """

    epoch: int
    samples: tuple[int, ...]
    tokens: int


class RowPlanner:
    """Plans an endless series of packed rows, which is the same in every process.

    The plan can resume between any two rows. Consecutive samples of the permuted order, enough for about
    `lookahead` rows, are packed together. Well-filled rows are emitted in a shuffled order. The samples of
    the other rows wait for the next group. Samples longer than a quarter of a row are placed first, longest
    first. Shorter samples keep their order; otherwise one row would have all long sentences and another all
    short ones.

    Args:
        lengths: (N,) number of tokens of each sequence; may be memory-mapped, is never copied.
        tokens_per_row: capacity of a row, in tokens.
        seed: seed of the order.
        lookahead: number of rows that are planned together. More rows are filled better, but change the
            order over a longer range.
        moving: sequences whose lengths differ between epochs. `lengths` are then their nominal lengths,
            whose sum is the same in every epoch.

    Raises:
        UsageError: there is no sequence, a sequence is empty, or a sequence is longer than a row.
    """

    def __init__(
        self,
        lengths: Ids,
        *,
        tokens_per_row: int,
        seed: int,
        lookahead: int = 32,
        moving: MovingWindows | None = None,
    ) -> None:
        if not len(lengths):
            raise UsageError("there is no sequence to plan rows from; check the training data")
        if lengths.min() < 1:
            raise UsageError(f"sequence {int(lengths.argmin())} has no token; remove empty sequences")
        longest = int(lengths.max()) if moving is None else moving.longest
        if longest > tokens_per_row:
            worst = f"sequence {int(lengths.argmax())}" if longest == lengths.max() else "a sequence"
            raise UsageError(
                f"{worst} has {longest} tokens, more than tokens_per_row = {tokens_per_row}; "
                "raise tokens_per_row or split the sequences into shorter windows (max_length)"
            )
        if lookahead < 1:
            raise UsageError(f"lookahead = {lookahead} rows must be at least 1")
        self.lengths = lengths
        self.tokens_per_row = tokens_per_row
        self.tokens_per_epoch = int(lengths.sum(dtype=np.int64))
        self._seed, self._lookahead = seed, lookahead
        self._moving = moving
        self._rows: list[PackedRow] = []
        self._plan(epoch=0, cursor=0, carried=[])

    @property
    def epoch(self) -> int:
        """Epoch of the next row, from 0."""
        return self._peek().epoch

    def next_row(self) -> PackedRow:
        """The next row; the last row of an epoch is followed by the first row of the next."""
        row = self._peek()
        self._emitted += 1
        return row

    def _peek(self) -> PackedRow:
        if self._emitted == len(self._rows):
            if self._next_cursor == len(self.lengths):  # the epoch is over, and no sample is waiting
                self._plan(epoch=self._epoch + 1, cursor=0, carried=[])
            else:
                self._plan(epoch=self._epoch, cursor=self._next_cursor, carried=self._waiting)
        return self._rows[self._emitted]

    def state_dict(self) -> dict[str, Any]:
        """The position as JSON: the start of the current group of rows, and how many of them were emitted."""
        return {
            "epoch": self._epoch,
            "cursor": self._cursor,
            "carried": self._carried,
            "emitted": self._emitted,
            "settings": self._settings(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of a `state_dict`.

        Raises:
            StateError: it was made with other sequences or settings, which give other rows.
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
            "lookahead": self._lookahead,
        }

    def _plan(self, epoch: int, cursor: int, carried: list[int]) -> None:
        """Pack `carried` and the samples from `cursor` on into rows."""
        self._epoch, self._cursor, self._carried, self._emitted = epoch, cursor, carried, 0
        new_samples, self._next_cursor = self._take()
        samples = np.array(carried + new_samples)
        lengths = self._lengths_of(samples)
        long_first = np.argsort(np.where(lengths > self.tokens_per_row // 4, -lengths, 0), kind="stable")
        items = samples[long_first].tolist()
        length_of = dict(zip(items, lengths[long_first].tolist(), strict=True))
        bins = best_fit(items, length_of.values(), self.tokens_per_row)
        rows = [
            PackedRow(epoch, tuple(members), sum(map(length_of.__getitem__, members))) for members in bins
        ]
        waiting_rows = self._hold_back(rows) if self._next_cursor < len(self.lengths) else set()
        self._waiting = [sample for number in sorted(waiting_rows) for sample in rows[number].samples]
        self._rows = [row for number, row in enumerate(rows) if number not in waiting_rows]
        order = Permutation(len(self._rows), (self._seed, epoch, cursor))
        self._rows = [self._rows[place] for place in order(np.arange(len(self._rows)))]

    def _take(self) -> tuple[list[int], int]:
        """Samples from the cursor on that fill `lookahead` rows, and the cursor after them."""
        order = Permutation(len(self.lengths), (self._seed, self._epoch))
        carried = np.array(self._carried, dtype=np.int64)
        free_tokens = self._lookahead * self.tokens_per_row - int(self._lengths_of(carried).sum())
        new_samples: list[int] = []
        cursor = self._cursor
        while free_tokens > 0 and cursor < len(self.lengths):
            guess = free_tokens * len(self.lengths) // self.tokens_per_epoch + 8
            samples = order(np.arange(cursor, min(cursor + guess, len(self.lengths))))
            sums = np.cumsum(self._lengths_of(samples))
            used = min(int(np.searchsorted(sums, free_tokens)) + 1, len(samples))
            new_samples += samples[:used].tolist()
            free_tokens -= int(sums[used - 1])
            cursor += used
        return new_samples, cursor

    def _lengths_of(self, samples: Longs) -> Longs:
        """(M,) number of tokens of the given samples in this epoch."""
        if self._moving is None:
            return self.lengths[samples].astype(np.int64)
        return self._moving.lengths_at(self._epoch, samples).astype(np.int64)

    def _hold_back(self, rows: Sequence[PackedRow]) -> set[int]:
        """Indices of the rows that wait for more samples: the emptiest, at most half of them."""
        poor = [number for number, row in enumerate(rows) if row.tokens < _PLENTY * self.tokens_per_row]
        return set(sorted(poor, key=lambda number: rows[number].tokens)[: len(rows) // 2])


# (sequence, generator) -> an equivalent form of equal length, such as the other strand of a genome, or the
# codes of a visit in another order.
Augmentation = Callable[[Encoding, np.random.Generator], Encoding]


@dataclass(frozen=True, eq=False)
class Document:
    """One sequence to be packed.

    Args:
        ids: (L,) input ids, which already contain the masks.
        asked: (A,) queried positions in 0..L-1.
        targets: (A,) ids to predict there, or None; for other objectives (A, ...) of any type.
        weights: (A,) weights in the loss, or None for 1 everywhere.
        positions: (L,) position ids, or None for 0..L-1.
        channels: name to (L,) additional inputs.
        sample: index of the sequence that the document was made from; -1 if unknown.
    """

    ids: NDArray[np.integer]
    asked: NDArray[np.integer]
    targets: NDArray[Any] | None = None
    weights: Floats | None = None
    positions: NDArray[np.integer] | None = None
    channels: Mapping[str, Floats] = field(default_factory=dict)
    sample: int = -1


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a batch, or of a part of it, in which every tensor is replaced by `change(tensor)`."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: map_tensors(part, change) for name, part in value.items()}
    if isinstance(value, tuple):  # of parts, or of numbers
        parts = value and hasattr(value[0], "__dataclass_fields__")
        return tuple([map_tensors(part, change) for part in value]) if parts else value
    names = getattr(value, "__dataclass_fields__", ())
    return type(value)(*[map_tensors(getattr(value, name), change) for name in names]) if names else value


class Movable:
    """A batch whose tensors are moved together."""

    __slots__ = ()

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same batch on another device."""
        moved: Self = map_tensors(self, lambda tensor: tensor.to(device, non_blocking=non_blocking))
        return moved

    def pin_memory(self) -> Self:
        """The same batch in page-locked memory; `DataLoader(pin_memory=True)` calls it."""
        moved: Self = map_tensors(self, Tensor.pin_memory)
        return moved


@dataclass(frozen=True, eq=False)
class PackedBatch(Movable):
    """Documents concatenated in one row; attention must not cross the boundaries in `cu_seq_lens`.

    Args:
        input_ids: (1, T) int64.
        position_ids: (1, T) int64, counted from 0 in each document.
        cu_seq_lens: (D + 1,) int32, the start of each document, then T.
        lengths: number of tokens of each document as Python integers, which need no device synchronisation.
        asked: (Q,) int64 queried positions as indices into the T tokens, document by document.
        targets: (Q,) int64 ids to predict there, or None; for other objectives (Q, ...) int64 or float32.
        weights: (Q,) float32 weights in the loss, or None for 1 everywhere.
        samples: (D,) int64, index of the sequence that each document was made from (-1 if unknown).
        channels: name to (1, T) float32 additional inputs.
    """

    input_ids: Tensor
    position_ids: Tensor
    cu_seq_lens: Tensor
    lengths: tuple[int, ...]
    asked: Tensor
    targets: Tensor | None
    weights: Tensor | None
    samples: Tensor
    channels: Mapping[str, Tensor]

    @property
    def tokens(self) -> int:
        """T, the number of tokens of the row."""
        return self.input_ids.shape[1]


def pack(documents: Sequence[Document]) -> PackedBatch:
    """One packed row of concatenated documents.

    Raises:
        UsageError: there is no document, a document is empty, only some have targets, or channels differ.
    """
    lengths = [len(document.ids) for document in documents]
    if not lengths or min(lengths) == 0:
        raise UsageError("packing needs at least one document, and at least one token in each")
    bounds = np.fromiter(accumulate(lengths, initial=0), dtype=np.int64, count=len(lengths) + 1)
    starts, total = bounds[:-1], int(bounds[-1])
    counts = [len(document.asked) for document in documents]
    asked = _join([document.asked for document in documents], np.int64) + np.repeat(starts, counts)
    positions = np.arange(total) - np.repeat(starts, lengths)
    for start, document in zip(starts, documents, strict=True):
        if document.positions is not None:
            positions[start : start + len(document.ids)] = document.positions
    targets = [document.targets for document in documents if document.targets is not None]
    if targets and len(targets) < len(documents):
        raise UsageError("either every packed document has targets or none has")
    if any(document.channels.keys() != documents[0].channels.keys() for document in documents):
        raise UsageError("packed documents must all have the same channels")
    # Targets that are values are floats; ids and classes are integers.
    kind = np.float32 if any(array.dtype.kind == "f" for array in targets) else np.int64
    weights = None
    if any(document.weights is not None for document in documents):
        parts = [
            np.ones(n) if d.weights is None else d.weights for d, n in zip(documents, counts, strict=True)
        ]
        weights = torch.from_numpy(_join(parts, np.float32))
    return PackedBatch(
        input_ids=torch.from_numpy(_join([document.ids for document in documents], np.int64))[None],
        position_ids=torch.from_numpy(positions)[None],
        cu_seq_lens=torch.from_numpy(bounds.astype(np.int32)),
        lengths=tuple(lengths),
        asked=torch.from_numpy(asked),
        targets=torch.from_numpy(_join(targets, kind)) if targets else None,
        weights=weights,
        samples=torch.tensor([document.sample for document in documents]),
        channels={
            name: torch.from_numpy(_join([document.channels[name] for document in documents], np.float32))[
                None
            ]
            for name in documents[0].channels
        },
    )


def _join(parts: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate(parts, dtype=dtype, casting="same_kind")


def split(batch: PackedBatch, max_tokens: int) -> list[PackedBatch]:
    """Split a batch at document boundaries into batches of at most `max_tokens` tokens, in order.

    Neighbouring documents of one sample stay together. If they are longer than `max_tokens`, they form a
    batch by themselves.
    """
    samples, bounds = batch.samples.tolist(), [*accumulate(batch.lengths, initial=0)]
    ends = [n for n in range(1, len(samples)) if samples[n] != samples[n - 1] or samples[n] < 0]
    parts, first, last = [], 0, 0
    for end in [*ends, len(samples)]:
        if last > first and bounds[end] - bounds[first] > max_tokens:
            parts.append(_slice(batch, first, last, bounds[first], bounds[last]))
            first = last
        last = end
    return [*parts, _slice(batch, first, last, bounds[first], bounds[last])]


def _slice(batch: PackedBatch, first: int, last: int, start: int, stop: int) -> PackedBatch:
    """The batch of documents first..last-1, which are tokens start..stop-1."""
    inside = (batch.asked >= start) & (batch.asked < stop)
    return PackedBatch(
        input_ids=batch.input_ids[:, start:stop],
        position_ids=batch.position_ids[:, start:stop],
        cu_seq_lens=batch.cu_seq_lens[first : last + 1] - start,
        lengths=batch.lengths[first:last],
        asked=batch.asked[inside] - start,
        targets=None if batch.targets is None else batch.targets[inside],
        weights=None if batch.weights is None else batch.weights[inside],
        samples=batch.samples[first:last],
        channels={name: channel[:, start:stop] for name, channel in batch.channels.items()},
    )


class RowDataset(Dataset[PackedBatch]):
    """The training data: planned rows -> masked, packed batches.

    It is used as `DataLoader(batch_size=None, sampler=rows)`.

    Args:
        sequences: the training sequences; `MovingWindows` are cut as in the epoch of the row. They must be
            picklable if loader workers are spawned.
        corruptor: applies the masks, which depend on epoch and sample.
        augmentation: applied to each sequence before masking, also depending on epoch and sample; None for
            none.
        seed: seed of the augmentation.
    """

    def __init__(
        self,
        sequences: Sequences,
        corruptor: Corruptor,
        *,
        augmentation: Augmentation | None = None,
        seed: int = 0,
    ) -> None:
        self.sequences = sequences
        self.corruptor = corruptor
        self.augmentation = augmentation
        self._generator = KeyedGenerator(seed)
        self._moving = sequences if isinstance(sequences, MovingWindows) else None

    def __getitem__(self, row: PackedRow) -> PackedBatch:
        documents = []
        moving = self._moving
        for sample in row.samples:
            encoding = self.sequences[sample] if moving is None else moving.at(row.epoch, sample)
            if self.augmentation is not None:
                generator = self._generator.at(row.epoch, sample, AUGMENTATION)
                encoding = self.augmentation(encoding, generator)
            masked = self.corruptor(encoding, row.epoch, sample)
            documents.append(
                Document(
                    ids=masked.ids,
                    asked=masked.positions,
                    targets=masked.targets,
                    weights=masked.weights,
                    positions=encoding.positions,
                    channels=encoding.channels,
                    sample=sample,
                )
            )
        return pack(documents)


class Rows(Protocol):
    """Turns planned rows into batches; it must be picklable if loader workers are spawned."""

    def __getitem__(self, row: PackedRow) -> PackedBatch: ...


@dataclass(frozen=True, eq=False)
class GlobalBatch:
    """The rows of one optimizer step.

    Args:
        rows: all rows of all processes.
        mine: the packed batches of this process, on the CPU.
        idle: True if this process has no rows. `mine` is then a row of another process, with weight 0.
        position: `planner.state_dict()` after these rows.
    """

    rows: tuple[PackedRow, ...]
    mine: list[PackedBatch]
    idle: bool
    position: dict[str, Any]

    @property
    def tokens(self) -> int:
        """Number of tokens of all rows; there is no padding."""
        return sum(row.tokens for row in self.rows)


def global_batches(
    dataset: Rows,
    planner: RowPlanner,
    *,
    rows_per_batch: int,
    rank: int,
    world: int,
    workers: int,
    pin_memory: bool,
) -> Generator[GlobalBatch]:
    """Global batches of `rows_per_batch` consecutive rows; process r of w computes rows r, r + w, ...

    Loader workers plan ahead of the rows that are used. The position after a batch is therefore recorded
    when the batch is planned, and delivered with it. Closing the generator ends the workers.

    Args:
        dataset: turns planned rows into batches.
        planner: plans the rows.
        rows_per_batch: number of rows of a global batch.
        rank, world: number of this process, from 0, and number of processes.
        workers: number of loader workers; 0 for none.
        pin_memory: whether batches are put into page-locked memory.
    """
    plans: deque[tuple[tuple[PackedRow, ...], dict[str, Any]]] = deque()

    def process_rows(rows: tuple[PackedRow, ...]) -> tuple[PackedRow, ...]:
        return rows[rank::world] or rows[:1]

    def planned_rows() -> Iterator[PackedRow]:
        while True:
            rows = tuple(planner.next_row() for _ in range(rows_per_batch))
            plans.append((rows, planner.state_dict()))
            yield from process_rows(rows)

    loader: DataLoader[PackedBatch] = DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_size=None,
        sampler=planned_rows(),  # type: ignore[arg-type]
        num_workers=workers,
        worker_init_fn=ignore_in_worker if workers else None,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # otherwise the loader draws its seed from the generator of dropout
    )
    batches = iter(loader)
    while True:
        first = next(batches)
        rows, position = plans.popleft()
        mine = [first, *islice(batches, len(process_rows(rows)) - 1)]
        yield GlobalBatch(rows=rows, mine=mine, idle=rank >= len(rows), position=position)


def rows_per_epoch(planner: RowPlanner, max_rows: int = 1_000) -> int:
    """Number of rows of the planner's next epoch.

    Up to `max_rows` rows are counted. Beyond that, the number is extrapolated from the tokens. The position
    of the planner does not change.
    """
    position, epoch, rows, tokens = planner.state_dict(), planner.epoch, 0, 0
    while planner.epoch == epoch and rows < max_rows:
        rows, tokens = rows + 1, tokens + planner.next_row().tokens
    is_complete = planner.epoch != epoch
    planner.load_state_dict(position)
    return rows if is_complete else round(rows * planner.tokens_per_epoch / tokens)
