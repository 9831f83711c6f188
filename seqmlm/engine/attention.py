"""Attention over packed rows: one function, registered with transformers, that never looks across documents.

A packed row (1, T) holds D documents one after another. The encoders of transformers know nothing of that:
given `position_ids` alone they let every token attend to the whole row. `packed_attention` is registered
under the name "seqmlm" with transformers' `AttentionInterface`; a `Layout`, built once per batch and handed
down through the model's keyword arguments, tells it where the documents are.

Two kernels compute the same numbers:

* "varlen": `torch.nn.attention.varlen.varlen_attn` (flash), on CUDA in bf16 or fp16;
* "grouped": everywhere else. Documents of similar length are gathered into one padded (N, heads, M, head
  size) block and go through `scaled_dot_product_attention` together. One call per document spends its time
  on call overhead where documents are short (25 tokens: 3 times the time of grouped calls); one call for
  all of them spends it on padding where they are long. `grouping.group` balances the two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from seqmlm.engine.grouping import Layout, Plan
from seqmlm.errors import UsageError

NAME = "seqmlm"


class _Keys(torch.autograd.Function):
    """Keys or values into the slots that read them; a token read by several sums their gradients."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, plan: Plan) -> Tensor:
        ctx.plan = plan
        return tokens if plan.keys is None else tokens.index_select(0, plan.keys)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.plan.sum_keys(grads[0].flatten(1)).view(-1, *grads[0].shape[1:]), None


class _Queries(torch.autograd.Function):
    """Queries into their slots."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, plan: Plan) -> Tensor:
        ctx.plan = plan
        return tokens if plan.queries is None else tokens.index_select(0, plan.queries)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.plan.to_rows(grads[0]), None


class _Rows(torch.autograd.Function):
    """Results out of their slots."""

    @staticmethod
    def forward(ctx: Any, slots: Tensor, plan: Plan) -> Tensor:
        ctx.plan = plan
        return plan.to_rows(slots)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.plan.to_slots(grads[0]), None


def grouped_attention(
    query: Tensor, key: Tensor, value: Tensor, plan: Plan, *, scaling: float | None, dropout: float
) -> Tensor:
    """Exact attention within documents through one SDPA call per group of similar lengths.

    Args:
        query, key, value: (T, heads, head size) of one row.
        plan: from `Layout.plan`, for all tokens.
        scaling: factor on the scores; None for head size ** -0.5.
        dropout: probability of dropping an attention weight.

    Returns:
        (T, heads, head size).
    """
    inputs: list[Tensor] = [
        into.apply(tokens, plan)  # type: ignore[no-untyped-call]
        for into, tokens in ((_Queries, query), (_Keys, key), (_Keys, value))
    ]
    sizes = [(g.blocks * g.queries, g.blocks * g.keys) for g in plan.groups]
    split = [
        torch.split(slots, [size[kind] for size in sizes])
        for slots, kind in zip(inputs, (0, 1, 1), strict=True)
    ]
    outputs = []
    for each, *parts in zip(plan.groups, *split, strict=True):
        q, k, v = (part.unflatten(0, (each.blocks, -1)).transpose(1, 2) for part in parts)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=each.mask, dropout_p=dropout, scale=scaling)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    slots = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    rows: Tensor = _Rows.apply(slots, plan)  # type: ignore[no-untyped-call]
    return rows


# The loop over groups has another length for every batch: traced code would be compiled anew for each.
_grouped_eager: Callable[..., Tensor] = torch.compiler.disable(  # type: ignore[no-untyped-call]
    grouped_attention
)


@cache
def _varlen() -> tuple[Callable[..., Any], frozenset[str]] | None:
    """torch's varlen kernel and the names of its arguments, or None where this torch has none."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn, frozenset(inspect.signature(varlen_attn).parameters)


def attention_path(device: torch.device, dtype: torch.dtype, head_size: int = 64) -> str:
    """Which kernel packed rows take, and why.

    Args:
        device, dtype: of queries, keys and values (under autocast: of what autocast yields).
        head_size: features of one head.

    Returns:
        "varlen: ..." or "grouped: ...".
    """
    if device.type != "cuda":
        return f"grouped: {device.type} has no varlen kernel"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"grouped: the varlen kernel computes in bf16 or fp16, not {dtype}"
    if head_size % 8 or head_size > 256:
        return f"grouped: the varlen kernel takes heads of 8, 16 ... 256 features, not {head_size}"
    found = _varlen()
    if found is None or not {"scale", "window_size"} <= found[1]:
        return f"grouped: torch {torch.__version__} has no varlen kernel with windows"
    return "varlen: flash attention over cu_seq_lens"


def _varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, *, scaling: float | None, window: int | None
) -> Tensor:
    """The same as `grouped_attention` through torch's flash kernel; inputs (T, heads, head size)."""
    found = _varlen()
    assert found is not None
    sides = (-1, -1) if window is None else (window, window)
    cu, longest = layout.cu_seq_lens, layout.max_length
    out: Tensor = found[0](query, key, value, cu, cu, longest, longest, scale=scaling, window_size=sides)
    return out


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    layout: Layout | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of one packed row, exact within each document and blind across them.

    The function transformers calls under the name "seqmlm".

    Args:
        module: the attention module (its own settings arrive as arguments).
        query, key, value: (1, heads, T, head size).
        attention_mask: must be None: a packed row has no padding.
        scaling: factor on the scores; None for head size ** -0.5.
        dropout: attention dropout probability (0 outside training).
        sliding_window: transformers' value: tokens to each side plus one; None for all.
        layout: where the documents are.

    Returns:
        (1, T, heads, head size), and None for the weights.

    Raises:
        UsageError: no layout, padding, or dropout where the kernel cannot honour it.
    """
    if layout is None or attention_mask is not None:
        raise UsageError(
            "this model's attention is set to packed rows and was called with a padded batch; call it "
            "through MaskedRows, or run model.set_attn_implementation('sdpa') first"
        )
    window = None if sliding_window is None else sliding_window - 1
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    q, k = q.to(v.dtype), k.to(v.dtype)
    if attention_path(v.device, v.dtype, v.shape[-1]).startswith("varlen"):
        if dropout > 0:
            raise UsageError(
                f"attention dropout {dropout} cannot be honoured by the varlen kernel of this device; set "
                "the model's attention dropout to 0, or train in fp32"
            )
        return _varlen_attention(q, k, v, layout, scaling=scaling, window=window)[None], None
    plan = layout.plan(v.shape[-1] * v.shape[-2], window)
    return _grouped_eager(q, k, v, plan, scaling=scaling, dropout=dropout)[None], None


AttentionInterface.register(NAME, packed_attention)
