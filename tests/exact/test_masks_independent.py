"""Masks and order are the same for any number of loader workers and ranks, and for any row size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Sampler

from seqmlm.engine.masking.base import Corruptor, MaskingConfig
from seqmlm.engine.masking.span import Span
from seqmlm.engine.masking.uniform import Uniform
from seqmlm.engine.packing import PackedBatch, PackedRow, RowDataset, RowPlanner
from seqmlm.engine.types import Encoding, InMemory, TokenSpace

SPACE = TokenSpace(size=40, pad=0, mask=4, unk=1, start=2, end=3, special=(0, 1, 2, 3, 4))
ROWS = 24


def sixty() -> InMemory:
    """60 sequences of 3 to 20 tokens."""
    random, made = np.random.default_rng(0), []
    for length in random.integers(1, 19, 60):
        ids = np.concatenate([[2], random.choice(SPACE.ordinary, length), [3]]).astype(np.int32)
        groups = np.concatenate([[-1], np.arange(length) // 2, [-1]]).astype(np.int32)
        made.append(Encoding(ids=ids, groups=groups))
    return InMemory(made)


class Rows(Sampler[PackedRow]):
    """Rows rank, rank + world, ... of the first `ROWS` the planner gives."""

    def __init__(self, planner: RowPlanner, rank: int, world: int) -> None:
        self.planner, self.rank, self.world = planner, rank, world

    def __iter__(self) -> Iterator[PackedRow]:
        for number in range(ROWS):
            row = self.planner.next_row()
            if number % self.world == self.rank:
                yield row


def batches(*, workers: int = 0, rank: int = 0, world: int = 1, masker: type = Uniform) -> list[PackedBatch]:
    corpus = sixty()
    corruptor = Corruptor(MaskingConfig(), masker(rate=0.15, space=SPACE), SPACE, None, seed=7)
    rows = Rows(RowPlanner(corpus.lengths, tokens_per_row=64, seed=7), rank, world)
    dataset = RowDataset(corpus, corruptor)
    return list(DataLoader(dataset, batch_size=None, sampler=rows, num_workers=workers))


def assert_equal(one: list[PackedBatch], other: list[PackedBatch]) -> None:
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert a.lengths == b.lengths
        for name in ("input_ids", "position_ids", "cu_seq_lens", "asked", "targets", "samples"):
            assert torch.equal(getattr(a, name), getattr(b, name)), name


def masked_sequences(rows: list[PackedBatch]) -> dict[int, tuple[list[int], list[int]]]:
    """Input ids and asked positions of each sample."""
    found = {}
    for batch in rows:
        bounds = batch.cu_seq_lens.tolist()
        for sample, start, stop in zip(batch.samples.tolist(), bounds, bounds[1:], strict=False):
            asked = batch.asked[(batch.asked >= start) & (batch.asked < stop)] - start
            found[sample] = batch.input_ids[0, start:stop].tolist(), asked.tolist()
    return found


@pytest.mark.parametrize("masker", [Uniform, Span])
def test_two_loader_workers_give_what_none_gives(masker):
    assert_equal(batches(workers=0, masker=masker), batches(workers=2, masker=masker))


def test_two_ranks_give_what_one_gives():
    shares = batches(rank=0, world=2), batches(rank=1, world=2)
    assert_equal(batches(), [row for pair in zip(*shares, strict=True) for row in pair])


def test_masks_do_not_depend_on_the_rows_they_are_packed_into():
    corpus = sixty()
    corruptor = Corruptor(MaskingConfig(), Uniform(rate=0.15, space=SPACE), SPACE, None, seed=7)
    dataset = RowDataset(corpus, corruptor)
    whole_epoch = []
    for tokens_per_row in (32, 200):
        planner = RowPlanner(corpus.lengths, tokens_per_row=tokens_per_row, seed=tokens_per_row)
        rows = []
        while planner.epoch == 0:
            rows.append(dataset[planner.next_row()])
        whole_epoch.append(masked_sequences(rows))
    assert whole_epoch[0] == whole_epoch[1]
    assert len(whole_epoch[0]) == len(corpus)


def test_each_epoch_has_masks_of_its_own():
    corpus = sixty()
    corruptor = Corruptor(MaskingConfig(), Uniform(rate=0.15, space=SPACE), SPACE, None, seed=7)
    samples = tuple(range(len(corpus)))
    first, second = (RowDataset(corpus, corruptor)[PackedRow(epoch, samples, 0)] for epoch in (0, 1))
    assert torch.equal(first.samples, second.samples)
    assert not torch.equal(first.input_ids, second.input_ids)
