"""ModernBERT's encoder for packed rows on the CPU: the same numbers with half the passes over memory.

transformers runs a layer as some forty operations, each reading and writing (T, hidden) tensors, and autograd
keeps most of them. On a CPU these passes cost nearly as much as the matrix products. Here a layer is one
autograd function with its gradient written out:

* queries and keys are rotated in place: with the rows of their weight interleaved, a rotation is one
  product of complex numbers;
* queries, keys and values are gathered into groups of similar length (`grouping`) at once;
* residuals are added inside the matrix products; norms and GELU are computed again in the backward pass;
* the last layer goes on for the asked rows only: nothing else is read from it.

`FusedEncoder.applies` says whether a model can run this way right now; otherwise transformers' own forward
runs, with `packed_attention`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from seqmlm.engine.grouping import Group, Layout, Plan
from seqmlm.engine.memory import keep_freed_memory

_FLASH = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_FLASH_BACKWARD = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


class _Layer(torch.autograd.Function):
    """x + attention(norm(x)), then + mlp(norm(of that)): the second part for the `asked` rows, if given."""

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
        normed, *stats1 = _norm(x, norm1, eps)
        qkv = normed @ qkv_weight.t()
        _rotate(qkv, rotation, heads)
        queries, keys = qkv[:, :hidden], qkv[:, hidden:]
        if plan.queries is not None:
            queries = queries.index_select(0, plan.queries)
        if plan.keys is not None:
            keys = keys.index_select(0, plan.keys)
        attended, sums = _attend(queries, keys, plan, heads)
        residual = x if asked is None else x.index_select(0, asked)
        middle = torch.addmm(residual, plan.to_rows(attended), out_weight.t())
        normed, *stats2 = _norm(middle, norm2, eps)
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
        of_queries = plan.to_rows(grad_queries)
        if asked is not None:
            of_queries = torch.zeros_like(x).index_add_(0, asked, of_queries)
        grad_qkv = torch.cat([of_queries, plan.sum_keys(grad_keys)], dim=1)
        _rotate(grad_qkv, rotation.conj(), heads)
        grad_weight = torch.empty_like(qkv_weight)
        grad_weight[interleave] = grad_qkv.t() @ _norm(x, norm1, eps)[0]
        grad_x, grad_norm1 = _norm_backward(grad_qkv @ qkv_weight, x, stats1, norm1)
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
    grad_in = grad_both.t() @ _norm(middle, norm, eps)[0]
    grad_middle, grad_norm = _norm_backward(grad_both @ in_weight, middle, stats, norm)
    return grad_middle.add_(grad), grad_norm, grad_in, grad_down


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor | None, Tensor | None]:
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


def _rotate(qkv: Tensor, rotation: Tensor, heads: int) -> None:
    """Turn queries and keys in place: (N, 3 hidden) in interleaved pairs, `rotation` (N, head size / 2)."""
    pairs = qkv.view(len(qkv), 3, heads, -1, 2)[:, :2]
    torch.view_as_complex(pairs).mul_(rotation[:, None, None])


def _attend(queries: Tensor, keys: Tensor, plan: Plan, heads: int) -> tuple[Tensor, list[Tensor]]:
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
        of_out, out = (_heads(tensor[start:stop], group.blocks, heads) for tensor in (grad, attended))
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
        pair = _heads(both[:, :hidden], group.blocks, heads), _heads(both[:, hidden:], group.blocks, heads)
        yield group, _heads(queries[start:stop], group.blocks, heads), pair
        start, begin = stop, end


def _heads(slots: Tensor, blocks: int, heads: int) -> Tensor:
    """(blocks x slots, H) -> (blocks, heads, slots, head size), a view."""
    return slots.view(blocks, -1, heads, slots.shape[1] // heads).transpose(1, 2)


def _flat(found: Tensor) -> Tensor:
    """(blocks, heads, slots, head size) -> (blocks x slots, H)."""
    return found.transpose(1, 2).flatten(2).flatten(0, 1)


class FusedEncoder:
    """Runs a ModernBERT body over a packed row; keeps no parameters of its own.

    Args:
        model: a `ModernBertForMaskedLM`.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        self._model, self._heads, self._eps = model, config.num_attention_heads, config.norm_eps
        size = config.hidden_size // config.num_attention_heads
        # Row r of a head's query or key weight holds one half of a pair, row r + size / 2 the other.
        pairs = torch.arange(size).view(2, size // 2).t().reshape(-1)
        starts = torch.arange(0, 2 * config.hidden_size, size)
        turned = (starts[:, None] + pairs).reshape(-1)
        self._interleave = torch.cat([turned, torch.arange(2 * config.hidden_size, 3 * config.hidden_size)])
        self._drops = max(config.embedding_dropout, config.attention_dropout, config.mlp_dropout) > 0

    @staticmethod
    def supports(model: PreTrainedModel) -> bool:
        """Whether the architecture and its settings are the ones written out here."""
        config = model.config
        if config.model_type != "modernbert" or _FLASH is None or _FLASH_BACKWARD is None:
            return False
        plain = not (config.norm_bias or config.attention_bias or config.mlp_bias)
        rotary = all(kind == "default" for kind in model.model.rotary_emb.rope_type.values())
        return plain and rotary and config.hidden_activation == "gelu"

    def applies(self) -> bool:
        """Whether this call may go this way: fp32 on a CPU, no dropout, plain layers nobody listens to."""
        if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
            return False
        body = self._model.model
        if self._model.training and (self._drops or body.gradient_checkpointing):
            return False
        for module in body.layers.modules():
            if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
                return False
            if module._compiled_call_impl is not None:  # who asked for compiled layers gets them
                return False
        return all(
            _plain(weight) for layer in body.layers for weight in _weights(layer) if weight is not None
        )

    def __call__(self, input_ids: Tensor, position_ids: Tensor, layout: Layout, asked: Tensor) -> Tensor:
        """Last hidden states of the asked rows.

        Args:
            input_ids, position_ids: (1, T).
            layout: of the row.
            asked: (Q,) indices into the T tokens.

        Returns:
            (Q, hidden).
        """
        keep_freed_memory()
        body = self._model.model
        hidden = body.embeddings(input_ids=input_ids)[0]
        kinds = set(body.config.layer_types)
        rotations = {kind: self._rotation(hidden, position_ids, kind) for kind in kinds}
        last = len(body.layers) - 1
        for number, layer in enumerate(body.layers):
            window = None if layer.attn.sliding_window is None else layer.attn.sliding_window - 1
            rows = asked if number == last else None
            hidden = _Layer.apply(  # type: ignore[no-untyped-call]
                hidden,
                rotations[layer.attention_type],
                layout.plan(hidden.shape[1], window, rows),
                rows,
                self._interleave,
                self._heads,
                self._eps,
                *_weights(layer),
            )
        out: Tensor = body.final_norm(hidden)
        return out

    def _rotation(self, hidden: Tensor, position_ids: Tensor, kind: str) -> Tensor:
        """(T, head size / 2) complex: the angle of each pair at each position."""
        cos, sin = self._model.model.rotary_emb(hidden, position_ids, kind)
        half = cos.shape[-1] // 2
        return torch.complex(cos[0, :, :half], sin[0, :, :half])


def _weights(layer: Any) -> tuple[Any, ...]:
    """A layer's parameters in the order of `_Layer`; the first layer has no first norm."""
    first = None if isinstance(layer.attn_norm, nn.Identity) else layer.attn_norm.weight
    attention, mlp = layer.attn, layer.mlp
    second = layer.mlp_norm.weight
    return (first, attention.Wqkv.weight, attention.Wo.weight, second, mlp.Wi.weight, mlp.Wo.weight)


def _plain(weight: Any) -> bool:
    return (
        isinstance(weight, Tensor)
        and not isinstance(weight, DTensor)
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
    )
