"""One ModernBERT layer over packed rows without a gradient: nothing is kept, residuals are added in place.

The numbers are those of `seqmlm.engine.fused_layer`. What differs is what a masked copy, asked at one token,
allows:

* the gated MLP goes through the rows a few at a time, so that its wide intermediates stay in the cache;
* where few rows of a document are asked, values are not projected for all its tokens: the attention-weighted
  sum of the inputs is, which is the same by linearity.

With weights in bfloat16 the matrix products are bfloat16, and nothing else (`fused_products`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqmlm.engine.fused_layer import by_heads
from seqmlm.engine.fused_products import add_product, attention, normed, turn
from seqmlm.engine.grouping import Plan

# Rows of the MLP at a time: its intermediates are a few MiB.
_ROWS = 1024
# Asked rows of a document up to which projecting sums is cheaper than projecting every token.
_FEW = 8

Weights = tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor, Tensor]
"""Norm before attention (or None), queries-keys-values, attention output, norm before the MLP, in, out."""


def infer(
    x: Tensor,
    rotation: Tensor,
    plan: Plan,
    asked: Tensor | None,
    heads: int,
    eps: float,
    projected: Tensor | None,
    weights: Weights,
) -> Tensor:
    """One layer for all rows, or for the `asked` ones.

    Args:
        x: (T, H) fp32; overwritten where all rows are asked.
        rotation: (T, head size / 2) complex.
        plan: of the row; for `asked` where given.
        asked: (R,) rows wanted, or None for all.
        heads: of the attention. eps: of the norms.
        projected: (T, 3 H) turned queries, keys and values where they are known, or None.
        weights: with the rows of queries and keys interleaved; matrices in the type of the products, fp32 or
            bfloat16, norms in fp32.

    Returns:
        (T, H), or (R, H), fp32.
    """
    norm1, qkv_weight, out_weight, *mlp = weights
    hidden, dtype = x.shape[1], qkv_weight.dtype
    if asked is None:
        if projected is None:
            projected = normed(x, norm1, eps, dtype) @ qkv_weight.t()
            turn(projected, rotation, heads, 2)
        queries, keys = projected[:, :hidden], projected[:, hidden:]
        attended = _attended(queries, keys, plan, heads)
        return _mlp(add_product(x, attended, out_weight), eps, *mlp)
    inputs = normed(x, norm1, eps, dtype)
    queries = inputs.index_select(0, asked) @ qkv_weight[:hidden].t()
    turn(queries, rotation.index_select(0, asked), heads, 1)
    if all(group.queries <= _FEW for group in plan.groups):
        keys = inputs @ qkv_weight[hidden : 2 * hidden].t()
        turn(keys, rotation, heads, 1)
        attended = _attended_sums(queries, keys, inputs, qkv_weight[2 * hidden :], plan, heads)
    else:
        keys = inputs @ qkv_weight[hidden:].t()
        turn(keys, rotation, heads, 1)
        attended = _attended(queries, keys, plan, heads, rows=True)
    return _mlp(add_product(x.index_select(0, asked), attended, out_weight), eps, *mlp)


def _attended(queries: Tensor, keys: Tensor, plan: Plan, heads: int, rows: bool = False) -> Tensor:
    """(R, H) attention of all rows, or of the asked `rows`, over (T, 2 H) keys and values."""
    if plan.queries is not None:
        queries = queries.index_select(0, plan.rows if rows else plan.queries)
    if plan.keys is not None:
        keys = keys.index_select(0, plan.keys)
    return plan.to_rows(attention(queries, keys, plan, heads))


def _attended_sums(
    queries: Tensor, keys: Tensor, inputs: Tensor, value_weight: Tensor, plan: Plan, heads: int
) -> Tensor:
    """(R, H) attention over values that are projected after they are summed.

    Args:
        queries: (R, H). keys: (T, H). inputs: (T, H) what values are a projection of.
        value_weight: (H, H).
    """
    if plan.queries is not None:
        queries = queries.index_select(0, plan.rows)
    if plan.keys is not None:
        keys, inputs = keys.index_select(0, plan.keys), inputs.index_select(0, plan.keys)
    size = queries.shape[1] // heads
    by_head = value_weight.view(heads, size, -1).transpose(1, 2)
    found, start, begin = [], 0, 0
    for group in plan.groups:
        stop, end = start + group.blocks * group.queries, begin + group.blocks * group.keys
        query = by_heads(queries[start:stop], group.blocks, heads)
        key = by_heads(keys[begin:end], group.blocks, heads)
        scores = (query * size**-0.5) @ key.transpose(-1, -2)
        if group.bias is not None:
            scores += group.bias
        shown = inputs[begin:end].view(group.blocks, group.keys, -1)
        sums = scores.softmax(-1).flatten(1, 2) @ shown
        sums = sums.view(group.blocks, heads, group.queries, -1) @ by_head
        found.append(sums.transpose(1, 2).reshape(-1, queries.shape[1]))
        start, begin = stop, end
    return plan.to_rows(torch.cat(found)) if found else queries


def _mlp(middle: Tensor, eps: float, norm: Tensor | None, in_weight: Tensor, down_weight: Tensor) -> Tensor:
    """Add down(gelu(value) x gate) to (R, H) rows, in place."""
    of_value, of_gate = in_weight.chunk(2)
    for first in range(0, len(middle), _ROWS):
        rows = middle[first : first + _ROWS]
        inputs = normed(rows, norm, eps, in_weight.dtype)
        active = torch.ops.aten.gelu_(inputs @ of_value.t())
        add_product(rows, active.mul_(inputs @ of_gate.t()), down_weight)
    return middle
