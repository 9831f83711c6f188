"""What a fused layer without gradients does in the type of its weights: float32, or bfloat16 products.

In float32 these are the operations of `seqmlm.engine.fused_layer`. With bfloat16 weights the operands and
results of matrix products are rounded to bfloat16; the residual stream, norms, rotations, softmax and the
sums inside products stay float32. Processors that multiply bfloat16 (avx512_bf16, amx) do so at twice the
speed or more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqmlm.engine.fused_layer import attend, by_heads, layer_norm, rotate
from seqmlm.engine.grouping import Group, Plan

# Attention scores at a time, in bfloat16 products: 4 MiB of fp32.
_SCORES = 1 << 20


def normed(x: Tensor, weight: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
    """(N, H) norm of fp32 rows, ready to be multiplied with weights of `dtype`."""
    return layer_norm(x, weight, eps)[0].to(dtype)


def turn(parts: Tensor, rotation: Tensor, heads: int, turned: int) -> None:
    """`rotate` in place, computed in fp32: a position has more digits than bfloat16."""
    if parts.dtype == torch.float32:
        rotate(parts, rotation, heads, turned)
        return
    some = parts[:, : turned * heads * 2 * rotation.shape[1]]
    exact = some.float()
    rotate(exact, rotation, heads, turned)
    some.copy_(exact)


def add_product(x: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """Add (N, K) rows times (H, K) weights to (N, H) fp32 in place; returns it."""
    if weight.dtype == x.dtype:
        return x.addmm_(rows, weight.t())
    return x.add_(rows @ weight.t())


def attention(queries: Tensor, keys: Tensor, plan: Plan, heads: int) -> Tensor:
    """(P, H) queries over (K, 2 H) keys and values -> (P, H), all of one type.

    torch's CPU kernel is slower in bfloat16 than in float32; two plain products are faster than either.
    """
    if queries.dtype == torch.float32:
        return attend(queries, keys, plan, heads)[0]
    out, hidden = torch.empty_like(queries, memory_format=torch.contiguous_format), queries.shape[1]
    start = begin = 0
    for group in plan.groups:
        stop, end = start + group.blocks * group.queries, begin + group.blocks * group.keys
        both = keys[begin:end]
        _attend(
            by_heads(queries[start:stop], group.blocks, heads),
            by_heads(both[:, :hidden], group.blocks, heads),
            by_heads(both[:, hidden:], group.blocks, heads),
            group,
            by_heads(out[start:stop], group.blocks, heads),
        )
        start, begin = stop, end
    return out


def _attend(query: Tensor, key: Tensor, value: Tensor, group: Group, out: Tensor) -> None:
    """Fill `out` from (blocks, heads, slots, head size) views, so much at a time as the caches hold."""
    heads, size = query.shape[1], query.shape[3]
    each = heads * group.queries * group.keys
    blocks, rows = max(1, _SCORES // each), max(1, _SCORES // (heads * group.keys))
    for first in range(0, group.blocks, blocks):
        some = slice(first, first + blocks)
        across = key[some].flatten(0, 1).transpose(1, 2)
        values = value[some].flatten(0, 1)
        for row in range(0, group.queries, rows):
            part = slice(row, row + rows)
            asked = query[some, :, part]
            scores = torch.baddbmm(query.new_empty(()), asked.flatten(0, 1), across, beta=0, alpha=size**-0.5)
            # torch's softmax of bfloat16 takes three times as long where keys are no multiple of 32.
            shares = scores.view(*asked.shape[:3], group.keys).float()
            if group.bias is not None:  # (blocks, 1, 1 or queries, keys)
                shares += group.bias[some] if group.bias.shape[2] == 1 else group.bias[some, :, part]
            shares = shares.softmax(-1).to(query.dtype).flatten(0, 1)
            out[some, :, part] = torch.bmm(shares, values).view(asked.shape)
