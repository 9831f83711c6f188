"""The encoders: ModernBERT from scratch in three sizes, or any supported masked LM from disk or hub.

What differs between architectures (head, positions, modules without gradients) is in one table, `HEADS`; an
architecture that is not in it is refused, because packing it would give wrong numbers without an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
)

from seqmlm.engine import foreign, linear
from seqmlm.engine.types import TokenSpace
from seqmlm.errors import SeqmlmError, StateError, UsageError, nearest


@dataclass(frozen=True, kw_only=True)
class Size:
    """Shape of a from-scratch model: layers, hidden size, attention heads, features of the gated MLP."""

    layers: int
    hidden: int
    heads: int
    intermediate: int


SIZES: dict[str, Size] = {
    "tiny": Size(layers=4, hidden=128, heads=4, intermediate=192),
    "small": Size(layers=6, hidden=256, heads=4, intermediate=384),
    "base": Size(layers=12, hidden=768, heads=12, intermediate=1152),
}


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """Which tokens the layers look at.

    Args:
        every: of so many layers one looks at the whole sequence, the first one first; None for the first
            layer alone.
        window: tokens to each side that the others look at.
        purpose: what it is for.
    """

    every: int | None
    window: int
    purpose: str

    def __str__(self) -> str:
        if self.every == 1:
            return f"every layer looks at the whole sequence; for {self.purpose}"
        which = "the first layer looks" if self.every is None else f"one layer of {self.every} looks"
        others = f"the others {self.window} tokens to each side"
        return f"{which} at the whole sequence, {others}; for {self.purpose}"


LAYERS: dict[str, Pattern] = {
    "nearby.v1": Pattern(
        every=None, window=4, purpose="cheap scores, where units depend on their neighbours"
    ),
    "mixed.v1": Pattern(every=2, window=16, purpose="scores, and structure between units far apart"),
    "everywhere.v1": Pattern(every=1, window=64, purpose="sets, and structure between units far apart"),
    "modernbert.v1": Pattern(every=3, window=64, purpose="anything, as ModernBERT was published"),
}
"""Patterns of layers, by versioned name."""
PATTERN_KEYS = frozenset({"global_attn_every_n_layers", "local_attention", "layer_types"})
"""Fields of `transformers.ModernBertConfig` that a pattern sets."""
SHAPE_KEYS = frozenset({"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"})
"""Those that a size sets."""

INITIALIZATIONS: dict[str, str] = {
    "modernbert.v1": "truncated normal of scale .02",
    "unigram.v1": "the same; the decoder's bias is the log frequency of a token in the training split",
    "scaled.v1": "truncated normal of scale 1 / sqrt(hidden), and that bias",
}

# From this vocabulary size on it is padded to a multiple of 64, which suits CUDA's matrix tiles.
_LARGE_VOCABULARY = 1024
_RESERVED = {"vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model to start from.

    Args:
        size: "tiny" (4 layers x 128), "small" (6 x 256) or "base" (12 x 768); or "linear", which is no
            encoder (`seqmlm.engine.linear`); ignored when `init` is given.
        init: folder or hub id of a masked LM to continue instead.
        max_length: longest sequence in tokens, special tokens included.
        dropout: probability for embeddings, MLP and attention, in [0, 1).
        layers: which tokens each layer looks at, a name in `LAYERS`.
        initialization: of the weights, a name in `INITIALIZATIONS`.
        overrides: further fields of `transformers.ModernBertConfig`; of a linear model, of
            `seqmlm.engine.linear.Penalty`.
    """

    size: str = "small"
    init: str | None = None
    max_length: int = 512
    dropout: float = 0.0
    layers: str = "modernbert.v1"
    initialization: str = "modernbert.v1"
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.size not in (*SIZES, linear.SIZE):
            known = nearest(self.size, (*SIZES, linear.SIZE))
            raise UsageError(f"unknown model size {self.size!r}{known}")
        if self.layers not in LAYERS:
            raise UsageError(f"unknown model.layers {self.layers!r}{nearest(self.layers, LAYERS)}")
        if self.initialization not in INITIALIZATIONS:
            known = nearest(self.initialization, INITIALIZATIONS)
            raise UsageError(f"unknown model.initialization {self.initialization!r}{known}")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout must lie in [0, 1), not {self.dropout}")
        if self.max_length < 3:
            raise UsageError(
                "max_length must have room for at least one unit between two special tokens, not "
                f"{self.max_length}"
            )
        _check_overrides(self)

    @property
    def is_linear(self) -> bool:
        """Whether it is a linear model, which is trained, saved and loaded in its own way."""
        return self.init is None and self.size == linear.SIZE


def padded_vocabulary(size: int) -> int:
    """Rows of the embedding for `size` ids: the next multiple of 8, or of 64 from 1024 ids on."""
    multiple = 64 if size >= _LARGE_VOCABULARY else 8
    return -(-size // multiple) * multiple


def build(
    config: ModelConfig, space: TokenSpace, frequencies: NDArray[np.float64] | None = None
) -> PreTrainedModel:
    """A fresh ModernBERT (or the model of `config.init`), the same one whenever torch's seed is the same.

    Args:
        config: what to build.
        space: ids of the vocabulary.
        frequencies: (V,) of the tokens in the training split, for initializations that use them; None leaves
            the decoder's bias at 0.

    Returns:
        The model on the CPU in fp32.

    Raises:
        UsageError: an override unknown to ModernBertConfig, or one that the token space determines.
    """
    if config.init is not None:
        return load(config.init, space)
    model = ModernBertForMaskedLM(
        ModernBertConfig(
            vocab_size=padded_vocabulary(space.size),
            pad_token_id=space.pad,
            bos_token_id=space.start,
            cls_token_id=space.start,
            eos_token_id=space.end,
            sep_token_id=space.end,
            **_settings(config),
        )
    )
    bias = model.decoder.bias
    if config.initialization != "modernbert.v1" and frequencies is not None and bias is not None:
        occurring = np.flatnonzero(frequencies)
        with torch.no_grad():
            bias[torch.from_numpy(occurring)] = torch.from_numpy(np.log(frequencies[occurring])).float()
    return model


def widened(model: PreTrainedModel, size: int, *, known: int, like: int) -> PreTrainedModel:
    """The model with room for more ids; all weights that it has stay.

    An id that it does not know begins as another one, of whose probability all new ones together get as much
    again: so of a known id the log-probability changes by that of `like` at most.

    Args:
        model: changed in place.
        size: of the vocabulary.
        known: ids below this are those it was trained with.
        like: the id that new ones begin as.
    """
    if size <= known:
        return model
    if size > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(padded_vocabulary(size), mean_resizing=False)
    weights = [one.weight for one in (model.get_input_embeddings(), model.get_output_embeddings())]
    bias = getattr(model.get_output_embeddings(), "bias", None)
    with torch.no_grad():
        for one in weights:
            one[known:size] = one[like].clone()
        if bias is not None:
            bias[known:size] = bias[like].clone() - math.log(size - known)
    return model


def _settings(config: ModelConfig) -> dict[str, Any]:
    """The fields of `ModernBertConfig` that do not depend on the vocabulary."""
    size, pattern = SIZES[config.size], LAYERS[config.layers]
    settings: dict[str, Any] = {
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": size.intermediate,
        "max_position_embeddings": config.max_length,
        "embedding_dropout": config.dropout,
        "mlp_dropout": config.dropout,
        "attention_dropout": config.dropout,
        "local_attention": 2 * pattern.window,
        **config.overrides,
    }
    settings.setdefault("global_attn_every_n_layers", pattern.every or settings["num_hidden_layers"])
    if config.initialization == "scaled.v1":
        settings.setdefault("initializer_range", settings["hidden_size"] ** -0.5)
    return settings


def _check_overrides(config: ModelConfig) -> None:
    """Refuse overrides that no ModernBERT takes, before anything is read.

    Raises:
        UsageError: an unknown name, one that the token space determines, or a value that does not fit.
    """
    if config.is_linear:
        linear.Penalty.of(config.overrides)
        return
    if not config.overrides:
        return
    known = set(ModernBertConfig().to_dict()) | {"global_attn_every_n_layers"}
    for key in config.overrides:
        if key in _RESERVED:
            raise UsageError(f"model override {key!r} is determined by the tokenizer and cannot be set")
        if key not in known:
            raise UsageError(f"unknown model override {key!r}{nearest(str(key), known)}")
    try:
        with torch.device("meta"):
            ModernBertForMaskedLM(ModernBertConfig(**_settings(config)))
    except Exception as error:  # transformers and torch check values in many ways
        reason = " ".join(str(error).split())
        raise UsageError(f"model.overrides = {dict(config.overrides)} cannot be used: {reason}") from None


def load(
    path_or_hub_id: str | Path,
    space: TokenSpace | None = None,
    *,
    head: Literal["needed", "optional"] = "needed",
) -> PreTrainedModel:
    """A masked LM from a folder or the hub, its weights from safetensors alone; see `seqmlm.engine.foreign`.

    Args:
        path_or_hub_id: folder written by `save_pretrained`, or a hub id.
        space: the vocabulary it will be used with; its ids must fit the model's embedding.
        head: "optional" takes an encoder without a masked-LM head, for what reads its hidden states alone:
            the head is then random.

    Returns:
        The model in fp32, in evaluation mode.

    Raises:
        UsageError: an architecture that is not supported, or a vocabulary that does not fit.
        StateError: no such model, a damaged one, one that needs code of its own, or weights stored as pickle.
    """
    name = str(path_or_hub_id)
    try:
        model, missing = _read(path_or_hub_id)
    except SeqmlmError:
        raise
    except Exception as error:  # the config may hold anything, and transformers checks it in many ways
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise StateError(
            f"cannot load a masked language model from {name!r}: {reason}; give a folder with config.json "
            "and model.safetensors, or a hub id that has safetensors weights"
        ) from error
    unused = HEADS[model.config.model_type].unused
    absent = sorted(key for key in missing if not set(key.split(".")) & set(unused))
    body = f"{model.base_model_prefix}."
    bodiless = [key for key in absent if key.startswith(body)]
    if bodiless or (absent and head == "needed"):
        what = f"has no weights for {bodiless[0]!r}" if bodiless else "is an encoder without a masked-LM head"
        raise StateError(
            f"{name!r} is not a trained masked language model: it {what}; give a checkpoint saved with its "
            "masked-LM head" + ("" if bodiless else " (seqmlm finetune needs none)")
        )
    rows = model.get_input_embeddings().num_embeddings
    if space is not None and space.size > rows:
        raise UsageError(
            f"the tokenizer has {space.size} ids but the model {name!r} only {rows}: use its own tokenizer"
        )
    return model


def _read(reference: str | Path) -> tuple[PreTrainedModel, Collection[str]]:
    """The model, and the names of parameters that its file does not have.

    Transformers gets the settings and the tensors, not the folder. The model is made without memory first:
    sizes that the file does not have are refused before they are allocated.
    """
    values = foreign.settings(reference)
    if values is None:
        raise StateError(f"{reference} has no {foreign.CONFIG}: it is not a saved model")
    if foreign.file_of(reference, foreign.ADAPTER) is not None:
        raise StateError(
            f"{reference} has an adapter ({foreign.ADAPTER}), which is not applied here: merge it into the "
            "weights and save the model again"
        )
    model_type = values.get("model_type")
    if not isinstance(model_type, str):
        raise StateError(f"{reference}: {foreign.CONFIG} names no model_type: it is not a saved model")
    check_supported(model_type, str(reference))
    weights = foreign.Weights(reference)
    foreign.check_counts(values, weights.shapes)
    config = foreign.model_config(CONFIG_MAPPING[model_type], values)
    kind = MODEL_FOR_MASKED_LM_MAPPING[type(config)]
    with torch.device("meta"):
        foreign.check_shapes(kind(config), weights.shapes)
    config.name_or_path = str(reference)
    model, report = kind.from_pretrained(
        None,
        config=config,
        state_dict=weights.read(),
        dtype=torch.float32,
        output_loading_info=True,
        trust_remote_code=False,
        local_files_only=True,
    )
    assert isinstance(model, PreTrainedModel)
    return model, report["missing_keys"]


NEVER = -1e4
"""Decoder bias of an id that is never predicted: its probability is 0 in float32, and float16 holds it."""


def never_predict(model: PreTrainedModel, ids: Tensor) -> None:
    """Give ids no probability, by the decoder's bias, so that any program that loads the model agrees.

    A ModernBERT without such a bias gets one, and its config says so.

    Args:
        model: of an architecture in `HEADS`; changed in place.
        ids: (N,) of the vocabulary.
    """
    decoder: Any = model.get_output_embeddings()
    bias = model.lm_head.bias if model.config.model_type == "esm" else decoder.bias
    if bias is None:
        bias = decoder.bias = nn.Parameter(decoder.weight.new_zeros(len(decoder.weight)))
        model.config.decoder_bias = True
    with torch.no_grad():
        bias[ids] = NEVER


def position_capacity(model: PreTrainedModel) -> int | None:
    """Longest sequence in tokens the model has learned positions for; None if positions are rotary."""
    table = next(
        (
            m
            for name, m in model.named_modules()
            if name.endswith("position_embeddings") and isinstance(m, nn.Embedding)
        ),
        None,
    )
    if table is None:
        return None
    return table.num_embeddings - position_offset(model)


def position_offset(model: PreTrainedModel) -> int:
    """Offset added to 0-based positions before the look-up (RoBERTa, ESM-1b: padding id + 1)."""
    return int(model.config.pad_token_id) + 1 if HEADS[model.config.model_type].offset_positions else 0


def parameter_count(model: nn.Module) -> int:
    """Number of distinct trainable parameters; tied ones count once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def body_parameter_count(config: ModelConfig, space: TokenSpace) -> int:
    """Parameters of the layers of a model from scratch: without embedding and head, which grow with the
    vocabulary.

    Args:
        config: what would be built; takes no memory.
        space: ids of the vocabulary.

    Raises:
        UsageError: see `build`.
    """
    with torch.device("meta"):
        model = build(config, space)
    return parameter_count(model.base_model) - parameter_count(model.get_input_embeddings())


@dataclass(frozen=True)
class Head:
    """How one architecture computes logits from hidden states.

    Args:
        logits: (masked LM, (Q, H) hidden states) -> (Q, V) logits, by the model's own modules.
        layers: where the body keeps its layers; a module that serves as several layers stands there once.
        offset_positions: learned positions start at padding id + 1.
        unused: modules of the body that a masked LM does not use (their parameters get no gradient).
        between: module of the masked LM that other heads, too, have between the body and their classes.
    """

    logits: Callable[[Any, Tensor], Tensor]
    layers: str = "encoder.layer"
    offset_positions: bool = False
    unused: tuple[str, ...] = ()
    between: str | None = None


def _distilbert(model: Any, hidden: Tensor) -> Tensor:
    out: Tensor = model.vocab_projector(
        model.vocab_layer_norm(model.activation(model.vocab_transform(hidden)))
    )
    return out


_ROBERTA = Head(lambda model, hidden: model.lm_head(hidden), offset_positions=True)

HEADS: dict[str, Head] = {
    "modernbert": Head(
        lambda model, hidden: model.decoder(model.head(hidden)), layers="layers", between="head"
    ),
    "bert": Head(lambda model, hidden: model.cls(hidden)),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "esm": Head(lambda model, hidden: model.lm_head(hidden), offset_positions=True, unused=("contact_head",)),
    "distilbert": Head(_distilbert, layers="transformer.layer"),
    "electra": Head(lambda model, hidden: model.generator_lm_head(model.generator_predictions(hidden))),
    "albert": Head(lambda model, hidden: model.predictions(hidden), layers="encoder.albert_layer_groups"),
}


def check_supported(model_type: str, name: str) -> None:
    """Raise UsageError, naming what is supported, unless `model_type` is a known architecture."""
    if model_type not in HEADS:
        raise UsageError(
            f"{name!r} is a {model_type!r} model, which has no exact attention over packed rows here; "
            f"supported: {', '.join(sorted(HEADS))}"
        )


def freeze_unused(model: nn.Module, model_type: str) -> None:
    """Switch off gradients of modules that a masked LM does not use: DDP waits for every trainable
    parameter."""
    for name in HEADS[model_type].unused:
        for path, module in model.named_modules():
            if path.split(".")[-1] == name:
                module.requires_grad_(False)
