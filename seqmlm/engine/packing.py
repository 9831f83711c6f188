"""Sequences are laid end to end in rows of a token budget: never cropped, never padded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from seqmlm.engine.planning import Row, RowPlanner, best_fit
from seqmlm.engine.randomness import AUGMENTATION, KeyedGenerator
from seqmlm.engine.types import Encoding, Floats, Sequences
from seqmlm.errors import UsageError

if TYPE_CHECKING:
    from seqmlm.engine.masking.corrupt import Corruptor

__all__ = [
    "Augmentation",
    "Document",
    "PackedBatch",
    "Row",
    "RowDataset",
    "RowPlanner",
    "best_fit",
    "pack",
    "split",
]

# (sequence, generator) -> the same sequence said otherwise, as long as before: the other strand of a genome,
# the codes of a visit in another order.
Augmentation = Callable[[Encoding, np.random.Generator], Encoding]


@dataclass(frozen=True, eq=False)
class Document:
    """One sequence on its way into a packed row.

    Args:
        ids: (L,) input ids, masks already in place.
        asked: (A,) positions within 0..L-1 whose distribution is wanted.
        targets: (A,) the ids to be predicted there, or None.
        weights: (A,) loss weights, or None for all 1.
        positions: (L,) position ids, or None for 0..L-1.
        channels: further inputs, each (L,).
        sample: index of the sequence it was made from.
    """

    ids: NDArray[np.integer]
    asked: NDArray[np.integer]
    targets: NDArray[np.integer] | None = None
    weights: Floats | None = None
    positions: NDArray[np.integer] | None = None
    channels: Mapping[str, Floats] = field(default_factory=dict)
    sample: int = -1


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """Documents laid end to end in one row; attention must not cross `cu_seq_lens`.

    Args:
        input_ids: (1, T) int64.
        position_ids: (1, T) int64, counted from 0 in each document.
        cu_seq_lens: (D + 1,) int32, where each document starts, then T.
        lengths: D python ints, the same boundaries without a device synchronisation.
        asked: (Q,) int64 indices into the T tokens, document by document.
        targets: (Q,) int64 ids to be predicted there, or None.
        weights: (Q,) float32 loss weights, or None for all 1.
        samples: (D,) int64, which sequence each document was made from (-1 unknown).
        channels: further inputs, each (1, T) float32.
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
        """T."""
        return self.input_ids.shape[1]

    @property
    def max_length(self) -> int:
        """Tokens of the longest document."""
        return max(self.lengths)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PackedBatch:
        """The same batch on `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> PackedBatch:
        """The same batch in page-locked memory; `DataLoader(pin_memory=True)` calls it."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> PackedBatch:
        return replace(
            self,
            input_ids=change(self.input_ids),
            position_ids=change(self.position_ids),
            cu_seq_lens=change(self.cu_seq_lens),
            asked=change(self.asked),
            targets=None if self.targets is None else change(self.targets),
            weights=None if self.weights is None else change(self.weights),
            samples=change(self.samples),
            channels={name: change(channel) for name, channel in self.channels.items()},
        )


def pack(documents: Sequence[Document]) -> PackedBatch:
    """Lay documents end to end.

    Raises:
        UsageError: no document, an empty one, targets in some only, or channels that differ.
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
        targets=torch.from_numpy(_join(targets, np.int64)) if targets else None,
        weights=weights,
        samples=torch.tensor([document.sample for document in documents]),
        channels=_join_channels([document.channels for document in documents]),
    )


def _join(parts: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate(parts, dtype=dtype, casting="same_kind")


def _join_channels(channels: Sequence[Mapping[str, Floats]]) -> dict[str, Tensor]:
    names = channels[0].keys()
    if any(own.keys() != names for own in channels):
        raise UsageError("packed documents must all have the same channels")
    return {
        name: torch.from_numpy(_join([own[name] for own in channels], np.float32))[None] for name in names
    }


def split(batch: PackedBatch, max_tokens: int) -> list[PackedBatch]:
    """Cut a batch at document boundaries into batches of at most `max_tokens` tokens, in order.

    A document longer than `max_tokens` stays whole in a batch of its own.
    """
    parts, first, start = [], 0, 0
    while first < len(batch.lengths):
        last, stop = first + 1, start + batch.lengths[first]
        while last < len(batch.lengths) and stop + batch.lengths[last] - start <= max_tokens:
            stop, last = stop + batch.lengths[last], last + 1
        parts.append(_slice(batch, first, last, start, stop))
        first, start = last, stop
    return parts


def _slice(batch: PackedBatch, first: int, last: int, start: int, stop: int) -> PackedBatch:
    """Documents first..last-1, which are tokens start..stop-1."""
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
    """Rows of the planner -> masked, packed batches; for `DataLoader(batch_size=None, sampler=rows)`.

    Args:
        sequences: what is trained on; must be picklable where loader workers are spawned.
        corruptor: puts the masks in place, keyed by epoch and sample.
        augmentation: what is done to a sequence before, keyed likewise; None for nothing.
        seed: of the augmentation.
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

    def __getitem__(self, row: Row) -> PackedBatch:
        documents = []
        for sample in row.samples:
            encoding = self.sequences[sample]
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
