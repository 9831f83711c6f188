"""Grouping is exact and cheap to plan; dropout and windows are honoured or refused, never ignored."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from seqmlm.engine import attention
from seqmlm.engine.attention import (
    RowLayout,
    attention_path,
    group_by_length,
    grouped_attention,
    packed_attention,
)
from seqmlm.errors import UsageError

HEADS, SIZE = 3, 8


def layout(lengths: list[int]) -> RowLayout:
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    return RowLayout(bounds, tuple(lengths))


def reference(query: Tensor, key: Tensor, value: Tensor, lengths: list[int], window: int | None) -> Tensor:
    """Softmax attention of each document by itself, written out; (T, heads, size) in and out."""
    parts = []
    for q, k, v in zip(*(x.split(lengths) for x in (query, key, value)), strict=True):
        scores = torch.einsum("qhd,khd->hqk", q, k) * SIZE**-0.5
        if window is not None:
            offsets = torch.arange(len(q))
            scores = scores.masked_fill((offsets[:, None] - offsets).abs() > window, float("-inf"))
        parts.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
    return torch.cat(parts)


@settings(max_examples=60)
@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=20), window=st.none() | st.integers(1, 60))
def test_grouped_equals_written_out(lengths: list[int], window: int | None) -> None:
    torch.manual_seed(0)
    inputs = [
        torch.randn(sum(lengths), HEADS, SIZE, dtype=torch.double, requires_grad=True) for _ in range(3)
    ]
    upstream = torch.randn(sum(lengths), HEADS, SIZE, dtype=torch.double)
    expected = reference(*inputs, lengths, window)
    found = grouped_attention(*inputs, layout(lengths).plan(HEADS * SIZE, window), scaling=None, dropout=0.0)
    assert (found - expected).abs().max() < 1e-12
    for ours, theirs in zip(
        torch.autograd.grad(found, inputs, upstream),
        torch.autograd.grad(expected, inputs, upstream),
        strict=True,
    ):
        assert (ours - theirs).abs().max() < 1e-12


@settings(max_examples=100)
@given(lengths=st.lists(st.integers(1, 600), min_size=1, max_size=80), width=st.sampled_from([32, 256, 768]))
def test_every_document_is_in_one_group_of_its_like(lengths: list[int], width: int) -> None:
    groups = group_by_length(lengths, width)
    assert sorted(document for members in groups for document in members) == list(range(len(lengths)))
    ranges = sorted(
        (min(lengths[d] for d in members), max(lengths[d] for d in members)) for members in groups
    )
    assert all(longest <= shortest for (_, longest), (shortest, _) in pairwise(ranges))


def test_short_documents_share_calls_and_long_ones_do_not() -> None:
    assert len(group_by_length([20, 25, 22, 31, 18] * 20, 256)) <= 5
    assert group_by_length([512, 400, 300], 256) == [[0], [1], [2]]


def test_plans_are_built_once_a_batch() -> None:
    rows = layout([70, 20, 30])
    assert rows.plan(32, None) is rows.plan(32, None)
    assert rows.plan(32, 69) is rows.plan(32, None)
    assert rows.plan(32, 64) is not rows.plan(32, None)


def call(lengths: list[int], **settings_: Any) -> Tensor:
    torch.manual_seed(1)
    query, key, value = torch.randn(3, 1, HEADS, sum(lengths), SIZE)
    return packed_attention(nn.Identity(), query, key, value, None, layout=layout(lengths), **settings_)[0]


def test_transformers_counts_the_window_with_its_centre() -> None:
    """transformers passes half the window plus one: 5 means 4 tokens to each side."""
    torch.manual_seed(1)
    query, key, value = (x[0].transpose(0, 1) for x in torch.randn(3, 1, HEADS, 40, SIZE))
    expected = reference(query, key, value, [30, 10], 4)
    assert (call([30, 10], sliding_window=5)[0] - expected).abs().max() < 1e-6
    assert (call([30, 10], sliding_window=6)[0] - expected).abs().max() > 1e-3


def test_scaling_is_the_models_own() -> None:
    assert (call([5, 9], scaling=1.0) - call([5, 9])).abs().max() > 1e-2
    assert torch.equal(call([5, 9], scaling=SIZE**-0.5), call([5, 9]))


def test_attention_dropout_drops_weights_and_rescales_the_rest() -> None:
    """With values that spell out the weights: each is 0 or twice what it was at p = 0.5."""
    lengths = [6, 8, 6, 7]
    torch.manual_seed(0)
    query, key = torch.randn(2, 27, HEADS, SIZE)
    value = torch.cat([torch.eye(SIZE)[:length] for length in lengths])[:, None].expand(27, HEADS, SIZE)
    plan = layout(lengths).plan(HEADS * SIZE, None)
    whole = grouped_attention(query, key, value, plan, scaling=None, dropout=0.0)
    dropped = grouped_attention(query, key, value, plan, scaling=None, dropout=0.5)
    kept = dropped != 0
    assert torch.allclose(dropped[kept], 2 * whole[kept])
    share = kept.sum() / (whole != 0).sum()
    assert 0.4 < share < 0.6


def test_a_padded_batch_is_refused() -> None:
    query = torch.zeros(1, HEADS, 4, SIZE)
    with pytest.raises(UsageError, match="set_attn_implementation"):
        packed_attention(nn.Identity(), query, query, query, None)
    with pytest.raises(UsageError, match="padded batch"):
        packed_attention(nn.Identity(), query, query, query, torch.ones(1, 1, 4, 4), layout=layout([4]))


def test_the_path_and_its_reason() -> None:
    assert attention_path(torch.device("cpu"), torch.bfloat16).startswith("grouped: cpu")
    assert "float32" in attention_path(torch.device("cuda"), torch.float32)
    assert "12" in attention_path(torch.device("cuda"), torch.bfloat16, head_size=12)
    assert attention_path(torch.device("cuda"), torch.bfloat16).startswith(("varlen", "grouped: torch"))


def varlen_double(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """What torch documents of `varlen_attn`, on the CPU."""
    lengths = cu_seq_q.diff().tolist()
    assert cu_seq_q.dtype == torch.int32
    assert torch.equal(cu_seq_q, cu_seq_k)
    assert max_q == max_k == max(lengths)
    assert window_size[0] == window_size[1]
    out = reference(query, key, value, lengths, None if window_size[0] < 0 else window_size[0])
    assert scale in (None, SIZE**-0.5)
    return out


@pytest.fixture
def varlen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "attention_path", lambda *_: "varlen: a double of it")
    monkeypatch.setattr(attention, "_varlen", lambda: varlen_double)


@pytest.mark.parametrize("window", [None, 5])
def test_varlen_gets_documents_and_windows(window: int | None, varlen: None, monkeypatch: pytest.MonkeyPatch):
    through_varlen = call([30, 10, 7], sliding_window=window)
    monkeypatch.undo()
    assert (through_varlen - call([30, 10, 7], sliding_window=window)).abs().max() < 1e-6


def test_varlen_refuses_dropout(varlen: None) -> None:
    with pytest.raises(UsageError, match=r"attention dropout \(0\.1\)"):
        call([5, 3], dropout=0.1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("window", [None, 9, 65])
def test_varlen_kernel_on_a_gpu(window: int | None) -> None:
    """bf16 flash against fp32 written out, forward and backward."""
    lengths = [200, 33, 64, 5, 128]
    torch.manual_seed(0)
    inputs = [torch.randn(sum(lengths), HEADS, SIZE, requires_grad=True) for _ in range(3)]
    expected = reference(*inputs, lengths, window)
    grads = torch.autograd.grad(expected.square().sum(), inputs)
    half = [x.detach().cuda().bfloat16().requires_grad_() for x in inputs]
    query, key, value = (x.transpose(0, 1)[None] for x in half)
    rows = RowLayout(layout(lengths).cu_seq_lens.cuda(), tuple(lengths))
    hf_window = None if window is None else window + 1
    found = packed_attention(nn.Identity(), query, key, value, None, layout=rows, sliding_window=hf_window)[0]
    assert (found[0].float().cpu() - expected).abs().max() < 2e-2 * expected.abs().max()
    for ours, theirs in zip(torch.autograd.grad(found.float().square().sum(), half), grads, strict=True):
        assert (ours.float().cpu() - theirs).abs().max() < 4e-2 * theirs.abs().max()
