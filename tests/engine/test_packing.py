"""Packing lays documents end to end and loses nothing; splitting a batch is packing its parts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.engine.masking.base import Corruptor, MaskingConfig
from seqmlm.engine.masking.uniform import Uniform
from seqmlm.engine.packing import Document, PackedBatch, PackedRow, RowDataset, pack, split
from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.errors import UsageError

SPACE = TokenSpace(size=40, pad=0, mask=4, unk=1, start=2, end=3, special=(0, 1, 2, 3, 4))


@st.composite
def document_lists(draw: st.DrawFn) -> list[Document]:
    """Documents with the same columns present."""
    with_targets, with_channel = draw(st.booleans()), draw(st.booleans())
    documents = []
    for sample in range(draw(st.integers(1, 6))):
        length = draw(st.integers(1, 9))
        random = np.random.default_rng(draw(st.integers(0, 1000)))
        asked = np.flatnonzero(random.random(length) < 0.4)
        documents.append(
            Document(
                ids=random.integers(0, 50, length).astype(np.int32),
                asked=asked,
                targets=random.integers(0, 50, len(asked)).astype(np.int32) if with_targets else None,
                weights=random.random(len(asked), np.float32) if draw(st.booleans()) else None,
                positions=random.integers(0, 20, length).astype(np.int32) if draw(st.booleans()) else None,
                channels={"age": random.random(length, np.float32)} if with_channel else {},
                sample=sample,
            )
        )
    return documents


def assert_same(one: PackedBatch, other: PackedBatch) -> None:
    for column in dataclasses.fields(PackedBatch):
        a, b = getattr(one, column.name), getattr(other, column.name)
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype
            assert torch.equal(a, b), column.name
        elif column.name == "channels":
            assert a.keys() == b.keys()
            assert all(torch.equal(a[name], b[name]) for name in a)
        else:
            assert a == b


@given(documents=document_lists())
def test_every_document_is_found_again(documents):
    batch = pack(documents)
    assert batch.lengths == tuple(len(document.ids) for document in documents)
    assert batch.cu_seq_lens.tolist() == np.concatenate([[0], np.cumsum(batch.lengths)]).tolist()
    assert batch.tokens == sum(batch.lengths)
    assert batch.samples.tolist() == [document.sample for document in documents]
    begin = 0
    for start, document in zip(batch.cu_seq_lens.tolist()[:-1], documents, strict=True):
        own = slice(start, start + len(document.ids))
        expected = range(len(document.ids)) if document.positions is None else document.positions.tolist()
        assert batch.input_ids[0, own].tolist() == document.ids.tolist()
        assert batch.position_ids[0, own].tolist() == list(expected)
        asked = slice(begin, begin + len(document.asked))
        assert batch.asked[asked].tolist() == (document.asked + start).tolist()
        if document.targets is not None:
            assert batch.targets[asked].tolist() == document.targets.tolist()
        if batch.weights is not None:
            weights = np.ones(len(document.asked)) if document.weights is None else document.weights
            assert batch.weights[asked].tolist() == weights.tolist()
        for name, channel in document.channels.items():
            assert batch.channels[name][0, own].tolist() == channel.tolist()
        begin = asked.stop
    assert begin == len(batch.asked)
    assert (batch.weights is None) == all(document.weights is None for document in documents)


def test_types_and_shapes():
    given = {"targets": np.array([9], np.int32), "weights": np.ones(1, np.float32)}
    batch = pack([Document(ids=np.array([5, 6, 7], np.int32), asked=np.array([1]), **given)])
    for name in ("input_ids", "position_ids", "asked", "targets", "samples"):
        assert getattr(batch, name).dtype == torch.int64
    assert (batch.cu_seq_lens.dtype, batch.weights.dtype) == (torch.int32, torch.float32)
    assert batch.input_ids.shape == batch.position_ids.shape == (1, 3)
    assert batch.samples.tolist() == [-1]


@given(documents=document_lists(), max_tokens=st.integers(1, 30))
def test_what_belongs_to_one_sample_is_not_split(documents, max_tokens):
    documents = [dataclasses.replace(one, sample=number // 2) for number, one in enumerate(documents)]
    parts = split(pack(documents), max_tokens)
    assert [n for part in parts for n in part.lengths] == [len(one.ids) for one in documents]
    own = [set(part.samples.tolist()) for part in parts]
    assert sum(map(len, own)) == len(set().union(*own))
    assert all(
        part.tokens <= max_tokens or len(samples) == 1 for part, samples in zip(parts, own, strict=True)
    )


@given(documents=document_lists(), max_tokens=st.integers(1, 30))
def test_split_equals_packing_the_parts(documents, max_tokens):
    first = 0
    for part in split(pack(documents), max_tokens):
        own = documents[first : first + len(part.lengths)]
        # Whether there are weights is decided for the whole batch: give the parts what the batch had.
        if part.weights is not None:
            full = [np.ones(len(d.asked), np.float32) if d.weights is None else d.weights for d in own]
            own = [dataclasses.replace(d, weights=w) for d, w in zip(own, full, strict=True)]
        assert_same(part, pack(own))
        assert part.tokens <= max_tokens or len(part.lengths) == 1
        first += len(part.lengths)
        if first < len(documents):
            assert part.tokens + len(documents[first].ids) > max_tokens
    assert first == len(documents)


@given(documents=document_lists())
def test_moving_keeps_everything(documents):
    batch = pack(documents)
    assert_same(batch.to("cpu", non_blocking=True), batch)
    meta = batch.to("meta")
    assert {meta.input_ids.device.type, meta.asked.device.type, meta.samples.device.type} == {"meta"}


@pytest.mark.parametrize("kind", ["int32", "float64"])
def test_targets_keep_their_kind_and_further_dimensions(kind):
    targets = np.arange(6).reshape(2, 3).astype(kind)
    parts = [Document(ids=np.arange(3), asked=np.array([1]), targets=own[None]) for own in targets]
    batch = pack(parts)
    assert batch.targets.dtype == {"int32": torch.int64, "float64": torch.float32}[kind]
    assert batch.targets.tolist() == targets.tolist()
    assert torch.equal(split(batch, 3)[1].targets, batch.targets[1:])


def test_what_does_not_fit_together_is_refused():
    ids, asked = np.array([5, 6], np.int32), np.array([0])
    plain = Document(ids=ids, asked=asked)
    for other, said in (
        (Document(ids=ids[:0], asked=asked[:0]), "at least one token"),
        (Document(ids=ids, asked=asked, targets=ids[:1]), "every packed document has targets"),
        (Document(ids=ids, asked=asked, channels={"age": np.ones(2, np.float32)}), "the same channels"),
    ):
        with pytest.raises(UsageError, match=said):
            pack([plain, other])
    with pytest.raises(UsageError, match="at least one document"):
        pack([])


def test_a_row_carries_what_its_sequences_have():
    encodings = [
        Encoding(
            ids=np.arange(5, 5 + length, dtype=np.int32),
            groups=np.arange(length, dtype=np.int32),
            positions=np.arange(length, dtype=np.int32) // 2,
            weights=np.arange(1, 1 + length, dtype=np.float32) / 8,
            channels={"age": np.arange(length, dtype=np.float32) + 20},
        )
        for length in (3, 6)
    ]
    corruptor = Corruptor(MaskingConfig(rate=0.5), Uniform(rate=0.5, space=SPACE), SPACE, None, seed=1)
    batch = RowDataset(encodings, corruptor)[PackedRow(epoch=2, samples=(1, 0), tokens=9)]
    expected = []
    for sample in (1, 0):
        own, masked = encodings[sample], corruptor(encodings[sample], 2, sample)
        at = masked.positions
        columns = {"targets": own.ids[at], "weights": own.weights[at], "positions": own.positions}
        expected.append(Document(ids=masked.ids, asked=at, channels=own.channels, sample=sample, **columns))
    assert_same(batch, pack(expected))


def test_augmentation_comes_before_the_masks_and_is_keyed_like_them():
    ids = np.arange(5, 25, dtype=np.int32)
    encodings = [Encoding(ids=ids, groups=np.arange(20, dtype=np.int32)) for _ in range(30)]

    def turned(encoding: Encoding, rng: np.random.Generator) -> Encoding:
        return (
            dataclasses.replace(encoding, ids=encoding.ids[::-1].copy()) if rng.random() < 0.5 else encoding
        )

    corruptor = Corruptor(MaskingConfig(rate=0.3), Uniform(rate=0.3, space=SPACE), SPACE, None, seed=1)

    def rows(samples, epoch=0):
        dataset = RowDataset(encodings, corruptor, augmentation=turned, seed=1)
        batch = dataset[PackedRow(epoch=epoch, samples=samples, tokens=20 * len(samples))]
        true = batch.input_ids[0].clone()
        true[batch.asked] = batch.targets
        return true.reshape(-1, 20), batch.input_ids.reshape(-1, 20)

    everything = tuple(range(30))
    true, masked = rows(everything)
    first = true[:, 0].tolist()
    assert set(first) == {5, 24}, "some turned, some not"
    alone = [rows((sample,))[1] for sample in everything]
    assert torch.equal(torch.cat(alone), masked), "whoever else is in the row"
    assert rows(everything, epoch=1)[0][:, 0].tolist() != first


@pytest.mark.gpu
def test_pinned_batches_hold_the_same():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    batch = pack([Document(ids=np.arange(4), asked=np.array([1]), targets=np.array([2]))])
    assert batch.pin_memory().input_ids.is_pinned()
    assert_same(batch.pin_memory().to("cuda").to("cpu"), batch)
