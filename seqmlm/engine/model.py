"""One forward pass from a packed row to a loss: body, selection of the queried rows, head, softmax.

A training step computes everything inside `MaskedRows.forward`. DistributedDataParallel and FSDP2 attach
their work to the forward of the module that they wrap. If body and head were called separately, each process
would get wrong gradients, without an error.

The loss is computed in the memory of the logits. Otherwise, with a vocabulary of 16k, four tensors of (Q, V)
would use most of the memory of the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from seqmlm.engine.attention import NAME, RowLayout
from seqmlm.engine.backbones import HEADS, check_supported, freeze_unused, position_capacity, position_offset
from seqmlm.engine.channels import InputChannels
from seqmlm.engine.cones import ConeBatch, Layers
from seqmlm.engine.fused import FusedEncoder
from seqmlm.engine.packing import PackedBatch
from seqmlm.engine.types import TokenSpace
from seqmlm.errors import UsageError

# Fraction of tokens that were [MASK] in all training runs of ESM (Lin et al. 2023), as in transformers.
_ESM_TRAINED_MASKS = 0.15 * 0.8
_TOKEN_TYPES = "token_type_ids"


class MaskedRows(nn.Module):
    """A masked language model that reads packed rows and predicts only at the queried positions.

    Wrap this module for DDP, or shard it for FSDP2 (`fully_shard(rows)`). `rows.model` is still an ordinary
    `PreTrainedModel`, but its attention expects packed rows. `rows.model.set_attn_implementation("sdpa")`
    undoes this.

    Args:
        model: a masked language model of a supported architecture.
        space: the vocabulary; its ids must fit the embedding of the model.
        probability: "ordinary" removes special ids and padded ids from the softmax. "full" keeps every id of
            the vocabulary.
        channels: embeddings of additional inputs, which are added to the token embeddings; None for a model
            that reads only tokens.

    Raises:
        UsageError: the architecture is not supported, or the vocabulary is larger than the model's
            vocabulary. Also if channels are given to a model that scales its embeddings (token dropout in
            ESM).
    """

    excluded: Tensor
    has_hidden_states: ClassVar[bool] = True
    columns: ClassVar[int | None] = None

    def __init__(
        self,
        model: PreTrainedModel,
        space: TokenSpace,
        *,
        probability: Literal["ordinary", "full"] = "ordinary",
        channels: InputChannels | None = None,
    ) -> None:
        super().__init__()
        check_supported(model.config.model_type, type(model).__name__)
        rows = int(model.config.vocab_size)
        if space.size > rows:
            raise UsageError(f"the vocabulary has {space.size} ids, but the model's embedding only {rows}")
        if probability not in ("ordinary", "full"):
            raise UsageError(f"probability space must be 'ordinary' or 'full', not {probability!r}")
        model.set_attn_implementation(NAME)
        freeze_unused(model, model.config.model_type)
        self.model = model
        self.space = space
        self.probability = probability
        outside = np.arange(space.size, rows)
        special = np.array(space.special if probability == "ordinary" else (), dtype=np.int64)
        excluded = torch.from_numpy(np.sort(np.concatenate([special, outside])).astype(np.int64))
        self.register_buffer("excluded", excluded, persistent=False)
        self._head = HEADS[model.config.model_type]
        self._rescales = model.config.model_type == "esm" and bool(model.config.token_dropout)
        if self._rescales and channels is not None:
            raise UsageError("an ESM model with token dropout cannot read input channels; use another model")
        self.channels = channels
        rotary = getattr(model.config, "position_embedding_type", "absolute") == "rotary"
        self._offset = 0 if rotary else position_offset(model)
        self._capacity = position_capacity(model)
        self._fused = FusedEncoder(model) if FusedEncoder.supports(model) else None

    @property
    def layers(self) -> Layers | None:
        """The encoder's layers if it can compute masked copies as differences, else None.

        See `seqmlm.engine.cones`.
        """
        if self._fused is None or self.channels is not None:
            return None
        layers = self._fused.layers
        device = self.excluded.device.type
        return layers if any(layers.windows) and self._fused.applies(device) else None

    @property
    def weights_per_token(self) -> int:
        """Approximate number of weights that each token is multiplied by: all except the input embeddings."""
        inputs = int(self.model.get_input_embeddings().weight.numel())
        return max(1, sum(parameter.numel() for parameter in self.parameters()) - inputs)

    def forward(
        self,
        batch: PackedBatch | ConeBatch,
        *,
        output: Literal["loss", "logits", "hidden"] = "loss",
        layers: Sequence[int] | None = None,
    ) -> Tensor:
        """The loss, logits or hidden states of one packed row.

        Args:
            batch: a batch on the device of the model. A `ConeBatch` (masked copies as differences) is
                allowed if `layers` is not None, for logits and for last hidden states.
            output: "loss" returns a scalar in fp32: the sum over queried rows of weight x -ln p(target), in
                nats. Divide it by the number of masked tokens in the global batch. "logits" returns (Q, V)
                in fp32. V is `space.size`, and ids outside the probability space have -inf. For "hidden",
                the result is the (Q, H) last hidden states at the queried positions, or (Q, K, H) for K
                `layers`.
            layers: 0 for the embeddings, n for the output of layer n, negative numbers counted from the last
                layer, as in the `hidden_states` of transformers.

        Raises:
            UsageError: a document is longer than the learned positions of the model. The model cannot read
                an input channel, or needs one that is missing. A loss is requested without targets, or a
                layer that does not exist.
        """
        if isinstance(batch, ConeBatch):
            assert self._fused is not None
            assert output != "loss"
            assert layers is None
            hidden = self._fused.copies(batch)
            return hidden if output == "hidden" else self.logits(hidden)
        if output == "hidden" and layers is not None:
            return self._layers(batch, layers)
        hidden = self._last_hidden_states(batch)
        if output == "hidden":
            return hidden
        if output == "logits":
            return self.logits(hidden)
        logits = self._head.logits(self.model, hidden).float()
        if batch.targets is None:
            raise UsageError(
                "this packed batch has no targets: use output='logits', or pack documents with targets"
            )
        return masked_nll(logits, batch.targets, batch.weights, self.excluded)

    def logits(self, hidden: Tensor) -> Tensor:
        """(Q, V) logits in fp32 from (Q, H) last hidden states, by the head of the model; see `forward`."""
        logits = self._head.logits(self.model, hidden).float()[:, : self.space.size]
        # In place only if autograd does not need these logits.
        fill = logits.index_fill if logits.requires_grad else logits.index_fill_
        return fill(1, self.excluded[self.excluded < self.space.size], float("-inf"))

    def _last_hidden_states(self, batch: PackedBatch) -> Tensor:
        """(Q, H) last hidden states at the queried positions."""
        layout = RowLayout(batch.cu_seq_lens, batch.lengths)
        if self._fused is not None and self.channels is None and not batch.channels and self._fused.applies():
            return self._fused(batch.input_ids, batch.position_ids, layout, batch.asked)
        hidden: Tensor = self.model.base_model(**self._inputs(batch), layout=layout)[0]
        return hidden[0].index_select(0, batch.asked)

    def _layers(self, batch: PackedBatch, layers: Sequence[int]) -> Tensor:
        """(Q, K, H) hidden states of K layers at the queried positions."""
        last = int(self.model.config.num_hidden_layers)
        for layer in layers:
            if not -last - 1 <= layer <= last:
                raise UsageError(f"no layer {layer} in a model of {last} layers; 0 is the embeddings")
        numbers = [layer % (last + 1) for layer in layers]
        if set(numbers) == {last}:
            return self._last_hidden_states(batch)[:, None].expand(-1, len(numbers), -1)
        layout = RowLayout(batch.cu_seq_lens, batch.lengths)
        # `output_hidden_states` of transformers is not used: its hooks are never removed and would prevent
        # the fused encoder from being used later.
        with _layer_states(self.model.base_model.get_submodule(self._head.layers)) as states:
            final = self.model.base_model(**self._inputs(batch), layout=layout)[0]
        states[-1] = final  # after the last norm, as the head reads it
        return torch.stack([states[number][0].index_select(0, batch.asked) for number in numbers], dim=1)

    def _inputs(self, batch: PackedBatch) -> dict[str, Any]:
        """The keyword arguments for the body, except those for attention."""
        positions = batch.position_ids + self._offset if self._offset else batch.position_ids
        self._check_positions(batch)
        inputs: dict[str, Any] = {"position_ids": positions, **self._token_types(batch)}
        if self.channels is not None:
            words = self.model.get_input_embeddings()(batch.input_ids)
            inputs["inputs_embeds"] = words + self.channels(batch.channels).to(words.dtype)
        elif self._rescales:
            inputs["inputs_embeds"] = self._rescaled_embeddings(batch, positions)
        else:
            inputs["input_ids"] = batch.input_ids
        return inputs

    def _check_positions(self, batch: PackedBatch) -> None:
        # Reading the positions waits for the device. It is done only if a document is long enough to matter.
        if self._capacity is None or max(batch.lengths) <= self._capacity:
            return
        if int(batch.position_ids.max()) >= self._capacity:
            raise UsageError(
                f"a document of {max(batch.lengths)} tokens is longer than the {self._capacity} positions "
                "this model has learned; lower max_length, so that long records are split into windows"
            )

    def _token_types(self, batch: PackedBatch) -> dict[str, Tensor]:
        """The token types, the only channel that models read themselves, if the batch has them.

        Raises:
            UsageError: the batch lacks a channel of the model, or has a channel that the model cannot read.
        """
        own_channels = set(self.channels.channels) if self.channels is not None else set()
        if not own_channels <= set(batch.channels):
            raise UsageError(
                f"this model reads the input channel {min(own_channels - set(batch.channels))!r}, which the "
                "data do not have; encode them with the model's own tokenizer"
            )
        type_names = {_TOKEN_TYPES} if getattr(self.model.config, "type_vocab_size", 0) else set()
        unread = set(batch.channels) - type_names - own_channels
        if unread:
            raise UsageError(
                f"a {self.model.config.model_type} model cannot read the input channel {min(unread)!r}; "
                "train one with it, or encode without it"
            )
        types = {name: values for name, values in batch.channels.items() if name not in own_channels}
        return {name: values.long() for name, values in types.items()}

    def _rescaled_embeddings(self, batch: PackedBatch, positions: Tensor) -> Tensor:
        """(1, T, H) embeddings with ESM's token dropout for each document: masks are 0, the rest scaled up.

        transformers measures the fraction of masks over the whole row, which would mix the documents of a
        packed row.
        """
        embeddings = self.model.base_model.embeddings
        is_mask = batch.input_ids[0] == embeddings.mask_token_id
        lengths = batch.cu_seq_lens.diff()
        document = torch.repeat_interleave(
            torch.arange(len(lengths), device=lengths.device), lengths, output_size=is_mask.shape[0]
        )
        masks = torch.zeros(len(lengths), device=lengths.device).index_add_(0, document, is_mask.float())
        # At least one token counts as visible: a document that has only masks would give 0 / 0.
        visible = (1 - masks / lengths).clamp_min(1 / max(batch.lengths))
        scale = ((1 - _ESM_TRAINED_MASKS) / visible)[document] * ~is_mask
        words = embeddings.word_embeddings(batch.input_ids)
        scaled = (words * scale[None, :, None]).to(words.dtype)
        out: Tensor = embeddings(inputs_embeds=scaled, position_ids=positions)
        return out


@contextmanager
def _layer_states(layers: Any) -> Iterator[list[Tensor]]:
    """The input of the first layer of a body, followed by the output of each layer as it is called."""
    states: list[Tensor] = []

    def enter(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not states:
            states.append(inputs[0])

    def leave(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        states.append(output if isinstance(output, Tensor) else output[0])

    handles = [layer.register_forward_pre_hook(enter) for layer in layers]
    handles += [layer.register_forward_hook(leave) for layer in layers]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


class _MaskedNll(torch.autograd.Function):
    """Sum of weighted -ln p, computed in the memory of the logits.

    `F.cross_entropy` over masked logits keeps four tensors of (Q, V): logits, masked logits,
    log-probabilities and their gradient. With a vocabulary of 16k, these tensors use more time and memory of
    the head than the matrix products. Here the logits become exp(logits - max) in place. In the backward
    pass they become the gradient, again in place.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, weights: Tensor | None, excluded: Tensor
    ) -> Tensor:
        logits.index_fill_(1, excluded, float("-inf"))
        logits.sub_(logits.amax(1, keepdim=True))
        chosen = logits.gather(1, targets[:, None])
        total = logits.exp_().sum(1, keepdim=True)
        nll = total.log() - chosen
        ctx.save_for_backward(logits, targets, total, weights)
        return (nll if weights is None else nll * weights[:, None]).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        exps, targets, total, weights = ctx.saved_tensors
        scale = grad.expand(total.shape) if weights is None else grad * weights[:, None]
        exps.mul_(scale / total)
        exps.scatter_add_(1, targets[:, None], -scale)
        return exps, None, None, None


def masked_nll(logits: Tensor, targets: Tensor, weights: Tensor | None, excluded: Tensor) -> Tensor:
    """The sum over queried rows of weight x -ln p(target), where p is the softmax without the excluded ids.

    Args:
        logits: (Q, V) fp32; they are overwritten and must therefore belong to the caller.
        targets: (Q,) int64 ids; none of them is excluded.
        weights: (Q,) weight of each row, or None for 1 everywhere.
        excluded: (E,) ids that are not part of the softmax.

    Returns:
        A scalar in fp32, in nats. It is 0, with gradients of 0, if no position is queried.
    """
    if torch.compiler.is_compiling():
        masked = logits.index_fill(1, excluded, float("-inf"))
        nll = F.cross_entropy(masked, targets, reduction="none")
        return (nll if weights is None else nll * weights).sum()
    out: Tensor = _MaskedNll.apply(  # type: ignore[no-untyped-call]
        logits, targets, weights, excluded
    )
    return out
