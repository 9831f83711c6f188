"""One ModernBERT layer over packed rows, with its own gradient or without gradients.

It avoids the passes over memory that `seqmlm.engine.fused` describes. Without gradients (`infer`) the
results are the same. Nothing is kept, and residuals are added in place. Two more savings are possible:

* the gated MLP processes few rows at a time, so that its wide intermediate results stay in the cache;
* if few rows of a document are queried, the attention-weighted sums of the inputs are projected instead of
  the values of all tokens. By linearity, the result is the same.

With weights in bfloat16, the operands and results of matrix products are rounded to bfloat16. The residual
stream, norms, rotations, softmax and the sums inside products stay float32. Processors that multiply
bfloat16 (avx512_bf16, amx) need half the time for a product, or less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seqmlm.engine.attention import Group, Grouping
from seqmlm.engine.cones import Step

_FLASH = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_FLASH_BACKWARD = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)

AVAILABLE = _FLASH is not None and _FLASH_BACKWARD is not None
"""Whether this version of torch has the attention kernels that the layer calls."""


class FusedLayer(torch.autograd.Function):
    """One layer for all rows or for some `rows`: y = x + attention(norm(x)), then y + mlp(norm(y)).

    Matrix products, and the tensors that the MLP keeps for its gradient, have the type `dtype`: fp32 or
    bfloat16. Everything else is fp32. This includes attention, because the CPU kernel of torch for attention
    is slower in bfloat16.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        rotation: Tensor,
        plan: Grouping,
        rows: Tensor | None,
        interleave: Tensor,
        heads: int,
        eps: float,
        dtype: torch.dtype,
        *weights: Tensor,
    ) -> Tensor:
        norm1, qkv_weight, out_weight, norm2, in_weight, down_weight = weights
        hidden = x.shape[1]
        qkv_weight = qkv_weight.to(dtype).index_select(0, interleave)
        out_weight, in_weight, down_weight = (
            weight.to(dtype) for weight in (out_weight, in_weight, down_weight)
        )
        first, *stats1 = layer_norm(x, norm1, eps)
        first = first.to(dtype)
        if rows is None:
            qkv = (first @ qkv_weight.t()).float()
            rotate(qkv, rotation, heads, 2)
            queries, keys = qkv[:, :hidden], qkv[:, hidden:]
        else:
            queries = (first.index_select(0, rows) @ qkv_weight[:hidden].t()).float()
            rotate(queries, rotation.index_select(0, rows), heads, 1)
            keys = (first @ qkv_weight[hidden:].t()).float()
            rotate(keys, rotation, heads, 1)
        queries, keys = _slots(queries, keys, plan, rows is not None)
        attended, sums = attend(queries, keys, plan.groups, heads)
        residual = x if rows is None else x.index_select(0, rows)
        middle = _plus_product(residual, plan.to_rows(attended).to(dtype), out_weight)
        second, *stats2 = layer_norm(middle, norm2, eps)
        value_gate = second.to(dtype) @ in_weight.t()
        value, gate = value_gate.chunk(2, dim=1)
        active = nn.functional.gelu(value)
        out = _plus_product(middle, active * gate, down_weight)
        ctx.plan, ctx.heads, ctx.eps = plan, heads, eps
        ctx.save_for_backward(
            *(x, rotation, rows, interleave, queries, keys, attended, middle, value_gate, active),
            *(*stats1, *stats2, norm1, qkv_weight, out_weight, norm2, in_weight, down_weight, *sums),
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, rotation, rows, interleave, queries, keys, attended, middle, value_gate, active, *saved = (
            ctx.saved_tensors
        )
        stats1, stats2, sums = saved[:2], saved[2:4], saved[10:]
        norm1, qkv_weight, out_weight, norm2, in_weight, down_weight = saved[4:10]
        plan, heads, eps, dtype = ctx.plan, ctx.heads, ctx.eps, qkv_weight.dtype
        grad_middle, grad_norm2, grad_in, grad_down = _mlp_backward(
            grad, middle, value_gate, active, stats2, eps, norm2, in_weight, down_weight
        )
        rounded = grad_middle.to(dtype)
        grad_out = (rounded.t() @ plan.to_rows(attended).to(dtype)).float()
        grad_attended = plan.to_slots((rounded @ out_weight).float())
        grad_queries, grad_keys = _attend_backward(grad_attended, queries, keys, attended, sums, plan, heads)
        row_grad_queries, row_grad_keys = plan.to_rows(grad_queries), plan.sum_keys(grad_keys)
        first, hidden = layer_norm(x, norm1, eps)[0].to(dtype), x.shape[1]
        grad_weight = torch.empty(qkv_weight.shape)
        if rows is None:
            grad_qkv = torch.cat([row_grad_queries, row_grad_keys], dim=1)
            rotate(grad_qkv, rotation.conj(), heads, 2)
            grad_qkv = grad_qkv.to(dtype)
            grad_weight[interleave] = (grad_qkv.t() @ first).float()
            grad_first = (grad_qkv @ qkv_weight).float()
        else:
            rotate(row_grad_queries, rotation.index_select(0, rows).conj(), heads, 1)
            rotate(row_grad_keys, rotation.conj(), heads, 1)
            row_grad_queries, row_grad_keys = row_grad_queries.to(dtype), row_grad_keys.to(dtype)
            grad_weight[interleave[:hidden]] = (row_grad_queries.t() @ first.index_select(0, rows)).float()
            grad_weight[interleave[hidden:]] = (row_grad_keys.t() @ first).float()
            grad_first = (row_grad_keys @ qkv_weight[hidden:]).float()
            grad_first.index_add_(0, rows, (row_grad_queries @ qkv_weight[:hidden]).float())
        grad_x, grad_norm1 = _norm_backward(grad_first, x, stats1, norm1)
        if rows is None:
            grad_x += grad_middle
        else:
            grad_x.index_add_(0, rows, grad_middle)
        return (grad_x, *[None] * 7, grad_norm1, grad_weight, grad_out, grad_norm2, grad_in, grad_down)


def _slots(queries: Tensor, keys: Tensor, plan: Grouping, rows_only: bool) -> tuple[Tensor, Tensor]:
    """The query slots and key slots of a plan.

    Args:
        queries: (N, H) queries of all tokens, or only of the queried rows.
        keys: keys and values of all tokens.
        plan: the plan.
        rows_only: whether `queries` has only the queried rows.
    """
    if plan.queries is not None:
        queries = queries.index_select(0, plan.rows if rows_only else plan.queries)
    return queries, plan.to_keys(keys)


def _plus_product(x: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """(N, H) fp32 `x` plus (N, K) rows times (H, K) weights."""
    return torch.addmm(x, rows, weight.t()) if weight.dtype == x.dtype else x + rows @ weight.t()


def _mlp_backward(
    grad: Tensor,
    middle: Tensor,
    value_gate: Tensor,
    active: Tensor,
    stats: Sequence[Tensor],
    eps: float,
    norm: Tensor,
    in_weight: Tensor,
    down_weight: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Gradients of middle + down(gelu(value) x gate), where `value_gate` is in(norm(middle))."""
    value, gate = value_gate.chunk(2, dim=1)
    rounded = grad.to(value_gate.dtype)
    grad_product = rounded @ down_weight
    grad_both = torch.empty_like(value_gate)
    grad_value, grad_gate = grad_both.chunk(2, dim=1)
    torch.mul(grad_product, active, out=grad_gate)
    grad_down = (rounded.t() @ (active * gate)).float()
    torch.ops.aten.gelu_backward.grad_input(grad_product.mul_(gate), value, grad_input=grad_value)
    grad_in = (grad_both.t() @ layer_norm(middle, norm, eps)[0].to(value_gate.dtype)).float()
    grad_middle, grad_norm = _norm_backward((grad_both @ in_weight).float(), middle, stats, norm)
    return grad_middle.add_(grad), grad_norm, grad_in, grad_down


def layer_norm(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Layer norm without bias, its means and its inverse deviations; the identity without a weight."""
    if weight is None:
        return x, None, None
    out, mean, scale = torch.native_layer_norm(x, weight.shape, weight, None, eps)
    return out, mean, scale


def _norm_backward(
    grad: Tensor, x: Tensor, stats: Sequence[Tensor], weight: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    if weight is None:
        return grad, None
    grad_x, grad_weight, _ = torch.ops.aten.native_layer_norm_backward(
        grad, x, weight.shape, stats[0], stats[1], weight, None, [True, True, False]
    )
    return grad_x, grad_weight


def rotate(parts: Tensor, rotation: Tensor, heads: int, parts_turned: int) -> None:
    """Rotate the first parts of each row in place.

    Args:
        parts: (N, queries, keys or values of H features each) in interleaved pairs.
        rotation: (N, head size / 2) complex.
        heads: number of heads in each part.
        parts_turned: number of parts to rotate, from the first.
    """
    size = rotation.shape[1]
    pairs = parts.view(len(parts), parts.shape[1] // (2 * heads * size), heads, size, 2)[:, :parts_turned]
    torch.view_as_complex(pairs).mul_(rotation[:, None, None])


def attend(queries: Tensor, keys: Tensor, groups: Sequence[Group], heads: int) -> tuple[Tensor, list[Tensor]]:
    """Attention of (P, H) queries over (K, 2 H) keys and values.

    Returns:
        (P, H), and for each group the log-sum-exp of its attention scores.
    """
    outputs, sums = [], []
    for group, query, (key, value) in _group_views(queries, keys, groups, heads):
        out, log_sum = _FLASH(query, key, value, attn_mask=group.bias)  # type: ignore[misc]
        outputs.append(_flat(out))
        sums.append(log_sum)
    if not outputs:
        return queries.new_empty(0, queries.shape[1]), sums
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0], sums


def _attend_backward(
    grad: Tensor,
    queries: Tensor,
    keys: Tensor,
    attended: Tensor,
    sums: Sequence[Tensor],
    plan: Grouping,
    heads: int,
) -> tuple[Tensor, Tensor]:
    """Gradients of the queries (P, H) and of keys and values (K, 2 H), from the result's gradient (P, H)."""
    grad_queries, grad_keys = torch.empty_like(grad), grad.new_empty(keys.shape)
    start = begin = 0
    for (group, query, (key, value)), log_sum in zip(
        _group_views(queries, keys, plan.groups, heads), sums, strict=True
    ):
        stop, end = start + group.blocks * group.queries, begin + group.blocks * group.keys
        grad_out, out = (split_heads(tensor[start:stop], group.blocks, heads) for tensor in (grad, attended))
        grads = _FLASH_BACKWARD(  # type: ignore[misc]
            grad_out, query, key, value, out, log_sum, 0.0, False, attn_mask=group.bias
        )
        grad_queries[start:stop] = _flat(grads[0])
        torch.cat([_flat(grads[1]), _flat(grads[2])], dim=1, out=grad_keys[begin:end])
        start, begin = stop, end
    return grad_queries, grad_keys


def _group_views(
    queries: Tensor, keys: Tensor, groups: Sequence[Group], heads: int
) -> Iterator[tuple[Group, Tensor, tuple[Tensor, Tensor]]]:
    """For each group, (blocks, heads, slots, head size) views of its queries, keys and values."""
    start = begin = 0
    hidden = queries.shape[1]
    for group in groups:
        stop, end = start + group.blocks * group.queries, begin + group.blocks * group.keys
        keys_values = keys[begin:end]
        pair = (
            split_heads(keys_values[:, :hidden], group.blocks, heads),
            split_heads(keys_values[:, hidden:], group.blocks, heads),
        )
        yield group, split_heads(queries[start:stop], group.blocks, heads), pair
        start, begin = stop, end


def split_heads(slots: Tensor, blocks: int, heads: int) -> Tensor:
    """(blocks, heads, slots, head size) view of (blocks x slots, H)."""
    return slots.view(blocks, -1, heads, slots.shape[1] // heads).transpose(1, 2)


def _flat(by_head: Tensor) -> Tensor:
    """(blocks x slots, H) from (blocks, heads, slots, head size)."""
    return by_head.transpose(1, 2).flatten(2).flatten(0, 1)


# Number of attention scores that are computed together in bfloat16 products: 4 MiB of fp32.
_SCORES = 1 << 20


def norm_rows(x: Tensor, weight: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
    """(N, H) norm of fp32 rows, in the type `dtype` of the weights that they are multiplied by."""
    return layer_norm(x, weight, eps)[0].to(dtype)


def rotate_exactly(parts: Tensor, rotation: Tensor, heads: int, parts_turned: int) -> None:
    """`rotate` in place, computed in fp32, because positions need more precision than bfloat16 has."""
    if parts.dtype == torch.float32:
        rotate(parts, rotation, heads, parts_turned)
        return
    leading = parts[:, : parts_turned * heads * 2 * rotation.shape[1]]
    exact = leading.float()
    rotate(exact, rotation, heads, parts_turned)
    leading.copy_(exact)


def add_product(x: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """Add (N, K) rows times (H, K) weights to (N, H) fp32 `x` in place, and return `x`."""
    if weight.dtype == x.dtype:
        return x.addmm_(rows, weight.t())
    return x.add_(rows @ weight.t())


def attention(queries: Tensor, keys: Tensor, groups: Sequence[Group], heads: int) -> Tensor:
    """(P, H) attention of (P, H) queries over (K, 2 H) keys and values, all of one type.

    The CPU kernel of torch is slower in bfloat16 than in float32. Two plain products are faster than either.
    """
    on_cpu = _on_cpu(queries)
    if on_cpu and queries.dtype == torch.float32:
        return attend(queries, keys, groups, heads)[0]
    out, start = torch.empty_like(queries, memory_format=torch.contiguous_format), 0
    for group, query, (key, value) in _group_views(queries, keys, groups, heads):
        stop = start + group.blocks * group.queries
        block_out = split_heads(out[start:stop], group.blocks, heads)
        if on_cpu:
            _attend(query, key, value, group, block_out)
        else:
            bias = None if group.bias is None else group.bias.to(query.dtype)
            block_out.copy_(nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias))
        start = stop
    return out


def _on_cpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def _attend(query: Tensor, key: Tensor, value: Tensor, group: Group, out: Tensor) -> None:
    """Fill `out` from (blocks, heads, slots, head size) views, in parts that fit into the caches."""
    heads, size = query.shape[1], query.shape[3]
    block_scores = heads * group.queries * group.keys
    blocks, rows = max(1, _SCORES // block_scores), max(1, _SCORES // (heads * group.keys))
    for first in range(0, group.blocks, blocks):
        blocks_now = slice(first, first + blocks)
        across = key[blocks_now].flatten(0, 1).transpose(1, 2)
        values = value[blocks_now].flatten(0, 1)
        for row in range(0, group.queries, rows):
            part = slice(row, row + rows)
            queries = query[blocks_now, :, part]
            scores = torch.baddbmm(
                query.new_empty(()), queries.flatten(0, 1), across, beta=0, alpha=size**-0.5
            )
            # In bfloat16, the softmax of torch takes three times as long if the number of keys is not a
            # multiple of 32.
            shares = scores.view(*queries.shape[:3], group.keys).float()
            if group.bias is not None:  # (1 or blocks, 1, 1 or queries, keys)
                bias = group.bias if group.is_shared else group.bias[blocks_now]
                shares += bias if bias.shape[2] == 1 else bias[:, :, part]
            shares = shares.softmax(-1).to(query.dtype).flatten(0, 1)
            out[blocks_now, :, part] = torch.bmm(shares, values).view(queries.shape)


# Number of rows that the MLP processes together: its intermediate results take a few MiB.
_ROWS = 1024
# Up to this number of queried rows in a document, projecting sums is cheaper than projecting every token.
_FEW = 8

Weights = tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor, Tensor]
"""Norm before attention (or None), queries-keys-values, attention output, norm before the MLP, in, out."""


def infer(
    x: Tensor,
    rotation: Tensor,
    plan: Grouping,
    rows: Tensor | None,
    heads: int,
    eps: float,
    projected: Tensor | None,
    weights: Weights,
) -> Tensor:
    """One layer without gradients, for all rows or for some `rows`.

    Args:
        x: (T, H) fp32; overwritten if all rows are computed.
        rotation: (T, head size / 2) complex.
        plan: plan of the packed row, or of `rows`.
        rows: (R,) rows to compute, or None for all.
        heads: number of attention heads.
        eps: constant of the norms.
        projected: (T, 3 H) rotated queries, keys and values if they are already known, or None.
        weights: weights in which the rows of queries and keys are interleaved. Matrices have the type of the
            products (fp32 or bfloat16), norms are fp32.

    Returns:
        (T, H), or (R, H), fp32.
    """
    norm1, qkv_weight, out_weight, *mlp = weights
    hidden, dtype = x.shape[1], qkv_weight.dtype
    if rows is None:
        if projected is None:
            projected = norm_rows(x, norm1, eps, dtype) @ qkv_weight.t()
            rotate_exactly(projected, rotation, heads, 2)
        queries, keys = projected[:, :hidden], projected[:, hidden:]
        attended = _attend_row(queries, keys, plan, heads)
        return _mlp(add_product(x, attended, out_weight), eps, *mlp)
    inputs = norm_rows(x, norm1, eps, dtype)
    queries = inputs.index_select(0, rows) @ qkv_weight[:hidden].t()
    rotate_exactly(queries, rotation.index_select(0, rows), heads, 1)
    if all(group.queries <= _FEW for group in plan.groups):
        keys = inputs @ qkv_weight[hidden : 2 * hidden].t()
        rotate_exactly(keys, rotation, heads, 1)
        attended = _row_attention_by_sums(queries, keys, inputs, qkv_weight[2 * hidden :], plan, heads)
    else:
        keys = inputs @ qkv_weight[hidden:].t()
        rotate_exactly(keys, rotation, heads, 1)
        attended = _attend_row(queries, keys, plan, heads, rows_only=True)
    return _mlp(add_product(x.index_select(0, rows), attended, out_weight), eps, *mlp)


def _attend_row(queries: Tensor, keys: Tensor, plan: Grouping, heads: int, rows_only: bool = False) -> Tensor:
    """(R, H) attention of all rows, or only of the queried rows, over (T, 2 H) keys and values."""
    queries, keys = _slots(queries, keys, plan, rows_only)
    return plan.to_rows(attention(queries, keys, plan.groups, heads))


def _row_attention_by_sums(
    queries: Tensor, keys: Tensor, inputs: Tensor, value_weight: Tensor, plan: Grouping, heads: int
) -> Tensor:
    """(R, H) attention over values that are projected after they are summed.

    Args:
        queries: (R, H).
        keys: (T, H).
        inputs: (T, H) the values are a projection of these.
        value_weight: (H, H) matrix of this projection.
        plan: plan of the rows.
        heads: number of attention heads.
    """
    queries, keys = _slots(queries, keys, plan, True)
    inputs = plan.to_keys(inputs)
    size = queries.shape[1] // heads
    by_head = value_weight.view(heads, size, -1).transpose(1, 2)
    outputs, start, begin = [], 0, 0
    for group in plan.groups:
        stop, end = start + group.blocks * group.queries, begin + group.blocks * group.keys
        query = split_heads(queries[start:stop], group.blocks, heads)
        key = split_heads(keys[begin:end], group.blocks, heads)
        scores = (query * size**-0.5) @ key.transpose(-1, -2)
        if group.bias is not None:
            scores += group.bias
        block_inputs = inputs[begin:end].view(group.blocks, group.keys, -1)
        sums = scores.softmax(-1).flatten(1, 2) @ block_inputs
        sums = sums.view(group.blocks, heads, group.queries, -1) @ by_head
        outputs.append(sums.transpose(1, 2).reshape(-1, queries.shape[1]))
        start, begin = stop, end
    return plan.to_rows(torch.cat(outputs)) if outputs else queries


def infer_copies(
    below: Tensor,
    sequences: Tensor,
    projected: Tensor,
    rotation: Tensor,
    step: Step,
    heads: int,
    eps: float,
    weights: Weights,
) -> Tensor:
    """One layer for those rows of masked copies that differ from their sequences and affect a queried row.

    Args:
        below: (P, H) fp32 rows of the layer below.
        sequences: (T, H) fp32 rows of the sequences in the layer below.
        projected: (T, 3 H) their rotated queries, keys and values in this layer.
        rotation: (T, head size / 2) complex.
        step: the rows to compute, and the rows that they depend on.
        heads, eps, weights: as in `infer`.

    Returns:
        (R, H) fp32.
    """
    norm1, qkv_weight, out_weight, *mlp = weights
    hidden = below.shape[1]
    inputs, angles = norm_rows(below, norm1, eps, qkv_weight.dtype), rotation.index_select(0, step.below)
    keys = inputs @ qkv_weight[hidden:].t()
    rotate_exactly(keys, angles, heads, 1)
    changed = inputs.index_select(0, step.shared) @ qkv_weight[:hidden].t()
    rotate_exactly(changed, angles.index_select(0, step.shared), heads, 1)
    if len(step.shared) == len(step.rows):
        queries, rows = changed, below.index_select(0, step.shared)
    else:
        queries = projected[:, :hidden].index_select(0, step.rows).index_copy_(0, step.place, changed)
        rows = sequences.index_select(0, step.rows)
        rows.index_copy_(0, step.place, below.index_select(0, step.shared))
    keys = torch.cat([projected[:, hidden:], keys])
    return _mlp(add_product(rows, _block_attention(queries, keys, step, heads), out_weight), eps, *mlp)


# Number of elements of keys and values that are moved together: on a CPU (True), few enough for its caches.
_GATHERED = {False: 1 << 27, True: 1 << 20}


def _block_attention(queries: Tensor, keys: Tensor, step: Step, heads: int) -> Tensor:
    """(R, H) attention of (R, H) queries over keys and values (T + P, 2 H)."""
    parts, hidden = [queries[:0]], queries.shape[1]
    for block in step.blocks:
        group, elements = block.group, _GATHERED[_on_cpu(keys)]
        size = max(1, elements // (group.keys * 2 * hidden))
        for first in range(0, group.blocks, size):
            count = min(size, group.blocks - first)
            rows = block.rows[first * group.queries : (first + count) * group.queries]
            index = block.keys[first * group.keys : (first + count) * group.keys]
            mask = group.mask if group.mask is None or group.is_shared else group.mask[first : first + count]
            part = Group(count, group.queries, group.keys, mask)
            parts.append(attention(queries.index_select(0, rows), keys.index_select(0, index), [part], heads))
    return torch.cat(parts).index_select(0, step.outputs)


def _mlp(middle: Tensor, eps: float, norm: Tensor | None, in_weight: Tensor, down_weight: Tensor) -> Tensor:
    """Add down(gelu(value) x gate) to (R, H) rows, in place."""
    value_weight, gate_weight = in_weight.chunk(2)
    for first in range(0, len(middle), _ROWS):
        rows = middle[first : first + _ROWS]
        inputs = norm_rows(rows, norm, eps, in_weight.dtype)
        active = torch.ops.aten.gelu_(inputs @ value_weight.t())
        add_product(rows, active.mul_(inputs @ gate_weight.t()), down_weight)
    return middle
