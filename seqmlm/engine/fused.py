"""ModernBERT's encoder for packed rows on the CPU: the same numbers with half the passes over memory.

transformers runs a layer as some forty operations, each reading and writing (T, hidden) tensors, and autograd
keeps most of them. On a CPU these passes cost nearly as much as the matrix products. Here a layer is one
autograd function with its gradient written out:

* queries and keys are rotated in place: with the rows of their weight interleaved, a rotation is one
  product of complex numbers;
* queries, keys and values are gathered into groups of similar length (`grouping`) at once;
* residuals are added inside the matrix products; norms and GELU are computed again in the backward pass;
* without gradients, the first layer's queries, keys and values are those of its distinct tokens: the masked
  copies of a sequence have few of them;
* the last layer has queries, and goes on, for the asked rows only: nothing else is read from it.

`FusedEncoder.applies` says whether a model can run this way right now; otherwise transformers' own forward
runs, with `packed_attention`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from seqmlm.engine.fused_layer import AVAILABLE, FusedLayer
from seqmlm.engine.grouping import Layout
from seqmlm.engine.memory import keep_freed_memory


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
        if config.model_type != "modernbert" or not AVAILABLE:
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
        hidden, projected = self._embedded(input_ids)
        kinds = set(body.config.layer_types)
        rotations = {kind: self._rotation(hidden, position_ids, kind) for kind in kinds}
        last = len(body.layers) - 1
        for number, layer in enumerate(body.layers):
            window = None if layer.attn.sliding_window is None else layer.attn.sliding_window - 1
            rows = asked if number == last else None
            hidden = FusedLayer.apply(  # type: ignore[no-untyped-call]
                hidden,
                rotations[layer.attention_type],
                layout.plan(hidden.shape[1], window, rows),
                rows,
                self._interleave,
                self._heads,
                self._eps,
                projected if number == 0 else None,
                *_weights(layer),
            )
        out: Tensor = body.final_norm(hidden)
        return out

    def _embedded(self, input_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """(T, hidden) embeddings, and what the first layer makes of them (T, 3 hidden), or None.

        Both depend on the token alone, not on its place, so distinct tokens are computed once.
        """
        body, layers = self._model.model, self._model.model.layers
        plain = isinstance(layers[0].attn_norm, nn.Identity) and len(layers) > 1
        if torch.is_grad_enabled() or self._model.training or not plain:
            return body.embeddings(input_ids=input_ids)[0], None
        tokens, place = torch.unique(input_ids[0], return_inverse=True)
        embedded = body.embeddings(input_ids=tokens[None])[0]
        if 2 * len(tokens) > len(place):
            return embedded.index_select(0, place), None
        weight = layers[0].attn.Wqkv.weight.index_select(0, self._interleave)
        return embedded.index_select(0, place), (embedded @ weight.t()).index_select(0, place)

    def _rotation(self, hidden: Tensor, position_ids: Tensor, kind: str) -> Tensor:
        """(T, head size / 2) complex: the angle of each pair at each position."""
        cos, sin = self._model.model.rotary_emb(hidden, position_ids, kind)
        half = cos.shape[-1] // 2
        return torch.complex(cos[0, :, :half], sin[0, :, :half])


def _weights(layer: Any) -> tuple[Any, ...]:
    """A layer's parameters in the order of `FusedLayer`; the first layer has no first norm."""
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
