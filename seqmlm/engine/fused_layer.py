"""One ModernBERT layer over packed rows as an autograd function, its gradient written out.

The passes over memory that `seqmlm.engine.fused` saves are saved here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seqmlm.engine.grouping import Group, Plan

_FLASH = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_FLASH_BACKWARD = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)

AVAILABLE = _FLASH is not None and _FLASH_BACKWARD is not None
"""Whether this torch has the attention kernels that the layer calls."""


class FusedLayer(torch.autograd.Function):
    """x + attention(norm(x)), then + mlp(norm(of that)), for all rows or for the `asked` ones."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        rotation: Tensor,
        plan: Plan,
        asked: Tensor | None,
        interleave: Tensor,
        heads: int,
        eps: float,
        *weights: Tensor,
    ) -> Tensor:
        norm1, qkv_weight, out_weight, norm2, in_weight, down_weight = weights
        hidden = x.shape[1]
        qkv_weight = qkv_weight.index_select(0, interleave)
        normed, *stats1 = layer_norm(x, norm1, eps)
        if asked is None:
            qkv = normed @ qkv_weight.t()
            rotate(qkv, rotation, heads, 2)
            queries, keys = qkv[:, :hidden], qkv[:, hidden:]
        else:
            queries = normed.index_select(0, asked) @ qkv_weight[:hidden].t()
            rotate(queries, rotation.index_select(0, asked), heads, 1)
            keys = normed @ qkv_weight[hidden:].t()
            rotate(keys, rotation, heads, 1)
        if plan.queries is not None:
            queries = queries.index_select(0, plan.queries if asked is None else plan.rows)
        if plan.keys is not None:
            keys = keys.index_select(0, plan.keys)
        attended, sums = attend(queries, keys, plan, heads)
        residual = x if asked is None else x.index_select(0, asked)
        middle = torch.addmm(residual, plan.to_rows(attended), out_weight.t())
        normed, *stats2 = layer_norm(middle, norm2, eps)
        both = normed @ in_weight.t()
        value, gate = both.chunk(2, dim=1)
        active = nn.functional.gelu(value)
        out = torch.addmm(middle, active * gate, down_weight.t())
        ctx.plan, ctx.heads, ctx.eps = plan, heads, eps
        ctx.save_for_backward(
            *(x, rotation, asked, interleave, queries, keys, attended, middle, both, active),
            *(*stats1, *stats2, norm1, qkv_weight, out_weight, norm2, in_weight, down_weight, *sums),
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, rotation, asked, interleave, queries, keys, attended, middle, both, active, *rest = (
            ctx.saved_tensors
        )
        stats1, stats2, sums = rest[:2], rest[2:4], rest[10:]
        norm1, qkv_weight, out_weight, norm2, in_weight, down_weight = rest[4:10]
        plan, heads, eps = ctx.plan, ctx.heads, ctx.eps
        grad_middle, grad_norm2, grad_in, grad_down = _mlp_backward(
            grad, middle, both, active, stats2, eps, norm2, in_weight, down_weight
        )
        grad_out = grad_middle.t() @ plan.to_rows(attended)
        grad_attended = plan.to_slots(grad_middle @ out_weight)
        grad_queries, grad_keys = _attend_backward(grad_attended, queries, keys, attended, sums, plan, heads)
        of_queries, of_keys = plan.to_rows(grad_queries), plan.sum_keys(grad_keys)
        normed, hidden = layer_norm(x, norm1, eps)[0], x.shape[1]
        grad_weight = torch.empty_like(qkv_weight)
        if asked is None:
            grad_qkv = torch.cat([of_queries, of_keys], dim=1)
            rotate(grad_qkv, rotation.conj(), heads, 2)
            grad_weight[interleave] = grad_qkv.t() @ normed
            grad_normed = grad_qkv @ qkv_weight
        else:
            rotate(of_queries, rotation.index_select(0, asked).conj(), heads, 1)
            rotate(of_keys, rotation.conj(), heads, 1)
            grad_weight[interleave[:hidden]] = of_queries.t() @ normed.index_select(0, asked)
            grad_weight[interleave[hidden:]] = of_keys.t() @ normed
            grad_normed = of_keys @ qkv_weight[hidden:]
            grad_normed.index_add_(0, asked, of_queries @ qkv_weight[:hidden])
        grad_x, grad_norm1 = _norm_backward(grad_normed, x, stats1, norm1)
        if asked is None:
            grad_x += grad_middle
        else:
            grad_x.index_add_(0, asked, grad_middle)
        return (grad_x, *[None] * 6, grad_norm1, grad_weight, grad_out, grad_norm2, grad_in, grad_down)


def _mlp_backward(
    grad: Tensor,
    middle: Tensor,
    both: Tensor,
    active: Tensor,
    stats: Sequence[Tensor],
    eps: float,
    norm: Tensor,
    in_weight: Tensor,
    down_weight: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Gradients of middle + down(gelu(value) x gate), with value and gate (`both`) from in(norm(middle))."""
    value, gate = both.chunk(2, dim=1)
    grad_product = grad @ down_weight
    grad_both = torch.empty_like(both)
    grad_value, grad_gate = grad_both.chunk(2, dim=1)
    torch.mul(grad_product, active, out=grad_gate)
    grad_down = grad.t() @ (active * gate)
    torch.ops.aten.gelu_backward.grad_input(grad_product.mul_(gate), value, grad_input=grad_value)
    grad_in = grad_both.t() @ layer_norm(middle, norm, eps)[0]
    grad_middle, grad_norm = _norm_backward(grad_both @ in_weight, middle, stats, norm)
    return grad_middle.add_(grad), grad_norm, grad_in, grad_down


def layer_norm(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Layer norm without bias, with its means and inverse deviations; without a weight, nothing is done."""
    if weight is None:
        return x, None, None
    out, mean, scale = torch.native_layer_norm(x, weight.shape, weight, None, eps)
    return out, mean, scale


def _norm_backward(
    grad: Tensor, x: Tensor, stats: Sequence[Tensor], weight: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    if weight is None:
        return grad, None
    into, of_weight, _ = torch.ops.aten.native_layer_norm_backward(
        grad, x, weight.shape, stats[0], stats[1], weight, None, [True, True, False]
    )
    return into, of_weight


def rotate(parts: Tensor, rotation: Tensor, heads: int, turned: int) -> None:
    """Turn the first parts of each row in place.

    Args:
        parts: (N, queries, keys or values of H features each) in interleaved pairs.
        rotation: (N, head size / 2).
        heads: of each part.
        turned: how many parts, from the first.
    """
    size = rotation.shape[1]
    pairs = parts.view(len(parts), parts.shape[1] // (2 * heads * size), heads, size, 2)[:, :turned]
    torch.view_as_complex(pairs).mul_(rotation[:, None, None])


def attend(queries: Tensor, keys: Tensor, plan: Plan, heads: int) -> tuple[Tensor, list[Tensor]]:
    """(P, H) queries over (K, 2 H) keys and values -> (P, H) and each group's log-sum-exp of scores."""
    found, sums = [], []
    for group, query, (key, value) in _blocks(queries, keys, plan, heads):
        out, log_sum = _FLASH(query, key, value, attn_mask=group.bias)  # type: ignore[misc]
        found.append(_flat(out))
        sums.append(log_sum)
    if not found:
        return queries.new_empty(0, queries.shape[1]), sums
    return torch.cat(found) if len(found) > 1 else found[0], sums


def _attend_backward(
    grad: Tensor,
    queries: Tensor,
    keys: Tensor,
    attended: Tensor,
    sums: Sequence[Tensor],
    plan: Plan,
    heads: int,
) -> tuple[Tensor, Tensor]:
    """Gradients (P, H) of the queries and (K, 2 H) of keys and values, from that of the result (P, H)."""
    of_queries, of_keys = torch.empty_like(grad), grad.new_empty(keys.shape)
    start = begin = 0
    for (group, query, (key, value)), log_sum in zip(_blocks(queries, keys, plan, heads), sums, strict=True):
        stop, end = start + group.blocks * group.queries, begin + group.blocks * group.keys
        of_out, out = (by_heads(tensor[start:stop], group.blocks, heads) for tensor in (grad, attended))
        found = _FLASH_BACKWARD(  # type: ignore[misc]
            of_out, query, key, value, out, log_sum, 0.0, False, attn_mask=group.bias
        )
        of_queries[start:stop] = _flat(found[0])
        torch.cat([_flat(found[1]), _flat(found[2])], dim=1, out=of_keys[begin:end])
        start, begin = stop, end
    return of_queries, of_keys


def _blocks(
    queries: Tensor, keys: Tensor, plan: Plan, heads: int
) -> Iterator[tuple[Group, Tensor, tuple[Tensor, Tensor]]]:
    """Each group's (blocks, heads, slots, head size) views of its queries, keys and values."""
    start = begin = 0
    hidden = queries.shape[1]
    for group in plan.groups:
        stop, end = start + group.blocks * group.queries, begin + group.blocks * group.keys
        both = keys[begin:end]
        pair = (
            by_heads(both[:, :hidden], group.blocks, heads),
            by_heads(both[:, hidden:], group.blocks, heads),
        )
        yield group, by_heads(queries[start:stop], group.blocks, heads), pair
        start, begin = stop, end


def by_heads(slots: Tensor, blocks: int, heads: int) -> Tensor:
    """(blocks x slots, H) -> (blocks, heads, slots, head size), a view."""
    return slots.view(blocks, -1, heads, slots.shape[1] // heads).transpose(1, 2)


def _flat(found: Tensor) -> Tensor:
    """(blocks, heads, slots, head size) -> (blocks x slots, H)."""
    return found.transpose(1, 2).flatten(2).flatten(0, 1)
