"""The encoder of ModernBERT for packed rows, with the same results and half the passes over memory.

transformers runs a layer as about forty operations. Each reads and writes (T, hidden) tensors, and autograd
keeps most of them. On a CPU these passes cost nearly as much as the matrix products. Here a layer is one
autograd function with its own gradient (`seqmlm.engine.fused_layer`):

* queries and keys are rotated in place: with the rows of their weight interleaved, a rotation is one product
  of complex numbers;
* queries, keys and values are moved into groups of similar length (`seqmlm.engine.attention`) in one step;
* residuals are added inside the matrix products; norms and GELU are recomputed in the backward pass;
* the last layer computes queries, and everything after them, only for the queried rows.

Without gradients, nothing is kept and more is omitted:

* the queries, keys and values of the first layer are computed once for each distinct pair of token and
  position. The masked copies of a sequence have few such pairs;
* a layer computes only rows that the queried rows depend on (`stages`). Before a layer with a window of w
  tokens, these are the rows within w tokens of the needed ones. Before a layer that attends to all tokens,
  they are all rows. Long documents with few queried tokens thus skip most rows of their last layers.

Under autocast to bfloat16, only the matrix products run in bfloat16, with and without gradients.

`FusedEncoder.applies` returns whether a model can run this way. Otherwise the forward of transformers runs,
with `packed_attention`. The cost is that this architecture is implemented twice; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from seqmlm.engine.attention import RowLayout
from seqmlm.engine.cones import ConeBatch, Layers
from seqmlm.engine.device import keep_freed_memory
from seqmlm.engine.fused_layer import AVAILABLE, FusedLayer, infer, infer_copies, norm_rows, rotate_exactly
from seqmlm.engine.types import Longs, ranges, running_totals


class FusedEncoder:
    """Runs the body of a ModernBERT over a packed row; has no parameters of its own.

    Args:
        model: a `ModernBertForMaskedLM`.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        self._model, self._heads, self._eps = model, config.num_attention_heads, config.norm_eps
        size = config.hidden_size // config.num_attention_heads
        # Rows r and r + size / 2 of the query or key weight of a head form a pair.
        pairs = torch.arange(size).view(2, size // 2).t().reshape(-1)
        starts = torch.arange(0, 2 * config.hidden_size, size)
        interleaved_rows = (starts[:, None] + pairs).reshape(-1)
        value_rows = torch.arange(2 * config.hidden_size, 3 * config.hidden_size)
        self._interleave = torch.cat([interleaved_rows, value_rows])
        self._drops = max(config.embedding_dropout, config.attention_dropout, config.mlp_dropout) > 0

    @staticmethod
    def supports(model: PreTrainedModel) -> bool:
        """Whether this class implements the architecture with its settings."""
        config = model.config
        if config.model_type != "modernbert" or not AVAILABLE:
            return False
        plain = not (config.norm_bias or config.attention_bias or config.mlp_bias)
        rotary = all(kind == "default" for kind in model.model.rotary_emb.rope_type.values())
        return plain and rotary and config.hidden_activation == "gelu"

    def applies(self, device: str = "cpu") -> bool:
        """Whether a call can run here now: in fp32 or bfloat16, without dropout, hooks or compiled layers."""
        if torch.compiler.is_compiling():
            return False
        if torch.is_autocast_enabled(device) and _product_dtype(device) != torch.bfloat16:
            return False
        body = self._model.model
        if self._model.training and (self._drops or body.gradient_checkpointing):
            return False
        for module in body.layers.modules():
            if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
                return False
            if module._compiled_call_impl is not None:  # compiled layers were requested
                return False
            if self._model.training and isinstance(module, nn.Dropout) and module.p > 0:  # an adapter's
                return False
        linears = (linear for layer in body.layers for linear in _linears(layer))
        return all(map(_is_one_product, linears)) and all(
            _is_plain(weight, device) for weight in body.layers.parameters()
        )

    @property
    def layers(self) -> Layers:
        """Windows and width of the layers."""
        windows = tuple(_window(layer) for layer in self._model.model.layers)
        return Layers(windows, int(self._model.config.hidden_size))

    def copies(self, batch: ConeBatch) -> Tensor:
        """(Q, hidden) fp32 last hidden states of the queried rows of masked copies, without gradients.

        Every layer is computed for the sequences, and for the rows of the copies that differ.
        """
        keep_freed_memory()
        body, row = self._model.model, batch.sequences
        device = row.input_ids.device.type
        dtype = _product_dtype(device)
        layout = RowLayout(row.cu_seq_lens, row.lengths)
        with torch.no_grad(), torch.autocast(device, enabled=False):
            rotations = self._rotations(body.embeddings.norm.weight, row.position_ids)
            hidden = body.embeddings(input_ids=row.input_ids)[0]
            copy_rows = body.embeddings(input_ids=batch.tokens[None])[0]
            for layer, step in zip(body.layers, batch.steps, strict=True):
                weights, rotation = self._inference_weights(layer, dtype), rotations[layer.attention_type]
                projected = norm_rows(hidden, weights[0], self._eps, dtype) @ weights[1].t()
                rotate_exactly(projected, rotation, self._heads, 2)
                copy_rows = infer_copies(
                    copy_rows, hidden, projected, rotation, step, self._heads, self._eps, weights
                )
                if step is batch.steps[-1] and not batch.unchanged:
                    break
                plan = layout.plan(hidden.shape[1], _window(layer))
                hidden = infer(hidden, rotation, plan, None, self._heads, self._eps, projected, weights)
            out: Tensor = body.final_norm(torch.cat([hidden, copy_rows]).index_select(0, batch.asked))
        return out

    def __call__(self, input_ids: Tensor, position_ids: Tensor, layout: RowLayout, tokens: Tensor) -> Tensor:
        """Last hidden states of the queried rows.

        Args:
            input_ids, position_ids: (1, T).
            layout: the documents of the row.
            tokens: (Q,) queried rows, as indices into the T tokens.

        Returns:
            (Q, hidden) fp32.
        """
        keep_freed_memory()
        body, dtype = self._model.model, _product_dtype()
        run = self._differentiable if torch.is_grad_enabled() else self._infer
        with torch.autocast("cpu", enabled=False):  # this class decides where to round
            hidden = run(input_ids, position_ids, layout, tokens, dtype)
        out: Tensor = body.final_norm(hidden)
        return out

    def _differentiable(
        self, input_ids: Tensor, position_ids: Tensor, layout: RowLayout, tokens: Tensor, dtype: torch.dtype
    ) -> Tensor:
        body = self._model.model
        hidden: Tensor = body.embeddings(input_ids=input_ids)[0]
        rotations = self._rotations(hidden, position_ids)
        last = len(body.layers) - 1
        for number, layer in enumerate(body.layers):
            rows = tokens if number == last else None
            hidden = FusedLayer.apply(  # type: ignore[no-untyped-call]
                hidden,
                rotations[layer.attention_type],
                layout.plan(hidden.shape[1], _window(layer), rows),
                rows,
                self._interleave,
                self._heads,
                self._eps,
                dtype,
                *_weights(layer),
            )
        return hidden

    def _infer(
        self, input_ids: Tensor, position_ids: Tensor, layout: RowLayout, tokens: Tensor, dtype: torch.dtype
    ) -> Tensor:
        layers = self._model.model.layers
        steps = stages(layout, tokens, [_window(layer) for layer in layers])
        rotations, hidden, projected = self._embed(input_ids, position_ids, dtype)
        for layer, stage in zip(layers, steps, strict=True):
            hidden = infer(
                hidden,
                rotations[layer.attention_type],
                stage.layout.plan(hidden.shape[1], _window(layer), stage.rows),
                stage.rows,
                self._heads,
                self._eps,
                projected,
                self._inference_weights(layer, dtype),
            )
            projected = None
            if stage.rows is not None:
                rotations = {kind: angle.index_select(0, stage.rows) for kind, angle in rotations.items()}
        return hidden

    def _inference_weights(self, layer: Any, dtype: torch.dtype) -> Any:
        """The weights of a layer for `infer`.

        They are not cached: rounding them takes a thousandth of the time of a full row.
        """
        norm, qkv, out, norm_mlp, *mlp = _weights(layer)
        qkv = self._interleaved_weight(qkv, dtype)
        return (norm, qkv, out.to(dtype), norm_mlp, *(weight.to(dtype) for weight in mlp))

    def _interleaved_weight(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """(3 H, H) weights of queries, keys and values in `dtype`, with the rows of each pair adjacent."""
        return weight.to(dtype).index_select(0, self._interleave.to(weight.device))

    def _embed(
        self, input_ids: Tensor, position_ids: Tensor, dtype: torch.dtype
    ) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
        """Rotations, embeddings, and the projections of the first layer.

        All depend only on a token and its position, and are therefore computed once for each distinct pair.

        Returns:
            The rotations for each kind of layer. The embeddings (T, H). The rotated queries, keys and values
            of the first layer (T, 3 H) in `dtype`, or None if few pairs are repeated.
        """
        body, layers = self._model.model, self._model.model.layers
        positions, place = torch.unique(position_ids[0], return_inverse=True)
        angles = self._rotations(body.embeddings.norm.weight, positions[None])
        rotations = {kind: angle.index_select(0, place) for kind, angle in angles.items()}
        pairs, same = torch.unique(input_ids[0] * len(positions) + place, return_inverse=True)
        if 2 * len(pairs) > len(same):
            return rotations, body.embeddings(input_ids=input_ids)[0], None
        tokens = torch.div(pairs, len(positions), rounding_mode="floor")
        embedded = body.embeddings(input_ids=tokens[None])[0]
        hidden = embedded.index_select(0, same)
        if not isinstance(layers[0].attn_norm, nn.Identity) or len(layers) == 1:
            return rotations, hidden, None
        weight = self._interleaved_weight(_effective_weight(layers[0].attn.Wqkv), dtype)
        projected = embedded.to(dtype) @ weight.t()
        angle = angles[layers[0].attention_type].index_select(0, pairs % len(positions))
        rotate_exactly(projected, angle, self._heads, 2)
        return rotations, hidden, projected.index_select(0, same)

    def _rotations(self, like: Tensor, position_ids: Tensor) -> dict[str, Tensor]:
        """For each kind of layer, (T, head size / 2) complex rotation of each pair at each position."""
        body, rotations = self._model.model, {}
        for kind in set(body.config.layer_types):
            cos, sin = body.rotary_emb(like, position_ids, kind)
            half = cos.shape[-1] // 2
            rotations[kind] = torch.complex(cos[0, :, :half], sin[0, :, :half])
        return rotations


def _product_dtype(device: str = "cpu") -> torch.dtype:
    """The type of the matrix products in this module."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32


def _window(layer: Any) -> int | None:
    """Number of tokens to each side that a layer attends to; None for all."""
    return None if layer.attn.sliding_window is None else layer.attn.sliding_window - 1


def _weights(layer: Any) -> tuple[Any, ...]:
    """The parameters of a layer in the order of `FusedLayer`; the first layer has no first norm."""
    first = None if isinstance(layer.attn_norm, nn.Identity) else layer.attn_norm.weight
    qkv, out, *mlp = map(_effective_weight, _linears(layer))
    return (first, qkv, out, layer.mlp_norm.weight, *mlp)


def _linears(layer: Any) -> tuple[Any, ...]:
    return layer.attn.Wqkv, layer.attn.Wo, layer.mlp.Wi, layer.mlp.Wo


def _effective_weight(linear: Any) -> Tensor:
    """The matrix that a linear layer multiplies by: its weight plus the terms of low-rank adapters.

    Adapters are recognised by the methods that `peft` gives them (Hu et al. 2022). Other adapters run in
    transformers (see `_is_one_product`), because the weight without them would silently give another model.
    """
    weight: Tensor = linear.weight
    if type(linear) is nn.Linear or linear.merged or linear.disable_adapters:
        return weight
    return sum((linear.get_delta_weight(name) for name in _adapters(linear)), weight)


def _adapters(linear: Any) -> list[str]:
    return [name for name in linear.active_adapters if name in linear.lora_A]


def _is_one_product(linear: Any) -> bool:
    """Whether a linear layer, including its adapters, multiplies by one matrix."""
    if type(linear) is nn.Linear:
        return True
    if not hasattr(linear, "get_delta_weight") or not hasattr(linear, "lora_A"):
        return False
    biased = any(linear.lora_B[name].bias is not None for name in _adapters(linear))
    return not biased and not linear.lora_variant  # variants such as DoRA also scale the weight itself


def _is_plain(weight: Any, device: str) -> bool:
    return (
        isinstance(weight, Tensor)
        and not isinstance(weight, DTensor)
        and weight.device.type == device
        and weight.dtype == torch.float32
    )


# Rows are omitted if at most this fraction of them is needed; otherwise moving the rest costs more.
_WORTH = 0.9


@dataclass(frozen=True, eq=False)
class Stage:
    """Input and output rows of one layer.

    Args:
        layout: the documents of the rows that it reads.
        rows: (R,) rows that it computes, ascending except in the last layer; None for all.
    """

    layout: RowLayout
    rows: Tensor | None


def stages(layout: RowLayout, tokens: Tensor, windows: Sequence[int | None]) -> list[Stage]:
    """The input and output rows of each layer, first to last.

    Args:
        layout: the documents of the whole row.
        tokens: (Q,) rows that are needed from the last layer.
        windows: for each layer, the number of tokens to each side that it attends to; None for all.
    """
    sizes = np.asarray(layout.lengths, dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    wanted_tokens = tokens.numpy()
    document = np.searchsorted(starts, wanted_tokens, side="right") - 1
    spans = _row_ranges(wanted_tokens - starts[document], document, sizes, windows)
    steps: list[Stage] = []
    low, high = np.zeros_like(sizes), sizes
    for span in spans:
        rows = None
        next_layout = layout
        if span is not None and (span[1] - span[0]).sum() <= _WORTH * (high - low).sum():
            row_counts = span[1] - span[0]
            rows = torch.from_numpy(ranges(running_totals(high - low)[:-1] + span[0] - low, row_counts))
            bounds = torch.from_numpy(running_totals(row_counts).astype(np.int32))
            next_layout = RowLayout(bounds, tuple(row_counts.tolist()))
            low, high = span
        steps.append(Stage(layout, rows))
        layout = next_layout
    first = np.cumsum(high - low) - high
    steps.append(Stage(layout, torch.from_numpy(wanted_tokens - starts[document] + first[document])))
    return steps


def _row_ranges(
    offsets: Longs, document: Longs, sizes: Longs, windows: Sequence[int | None]
) -> list[tuple[Longs, Longs] | None]:
    """(D,) first row and (D,) end of the rows that each layer but the last must compute.

    None stands for all rows.
    """
    low, high = sizes.copy(), np.zeros_like(sizes)
    np.minimum.at(low, document, offsets)
    np.maximum.at(high, document, offsets + 1)
    nothing = high == 0
    low[nothing], high[nothing] = 0, 1  # a document has at least one row
    spans: list[tuple[Longs, Longs] | None] = []
    everything = False
    for window in reversed(windows[1:]):
        everything |= window is None
        if not everything:
            low, high = np.maximum(low - (window or 0), 0), np.minimum(high + (window or 0), sizes)
        spans.append(None if everything else (low, high))
    return spans[::-1]
