"""The encoders: ModernBERT from scratch in three sizes, or a loaded masked language model.

The table `HEADS` lists the differences between architectures: head, positions, and modules without
gradients. An architecture that is not in the table is refused, because packed rows would silently give wrong
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
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

from seqmlm.engine import foreign
from seqmlm.engine.shapes import BIASED, ModelConfig, settings_of
from seqmlm.engine.types import TokenSpace
from seqmlm.errors import SeqmlmError, StateError, UsageError

# From this vocabulary size on it is padded to a multiple of 64, which suits CUDA's matrix tiles.
_LARGE_VOCABULARY = 1024


def padded_vocabulary(size: int) -> int:
    """Number of rows of the embedding for `size` ids: the next multiple of 8, or of 64 from 1024 ids on."""
    multiple = 64 if size >= _LARGE_VOCABULARY else 8
    return -(-size // multiple) * multiple


def build(
    config: ModelConfig, space: TokenSpace, frequencies: NDArray[np.float64] | None = None
) -> PreTrainedModel:
    """A new ModernBERT, or the model that `config.init` names; the same seed of torch gives the same model.

    Args:
        config: the model to build.
        space: the vocabulary.
        frequencies: (V,) frequencies of the tokens in the training split, for initializations that use them;
            None leaves the bias of the decoder at 0.

    Returns:
        The model on the CPU in fp32.

    Raises:
        UsageError: an override that ModernBertConfig does not know, or that the vocabulary determines.
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
            **settings_of(config),
        )
    )
    bias = model.decoder.bias
    if config.initialization in BIASED and frequencies is not None and bias is not None:
        occurring = np.flatnonzero(frequencies)
        with torch.no_grad():
            bias[torch.from_numpy(occurring)] = torch.from_numpy(np.log(frequencies[occurring])).float()
    return model


def widen_vocabulary(model: PreTrainedModel, size: int, *, trained_ids: int, like: int) -> PreTrainedModel:
    """Add room for more ids to a model; all its weights stay the same.

    A new id starts as a copy of the id `like`. All new ids together get as much probability as `like` has.
    The log-probability of a known id therefore changes by at most that of `like`.

    Args:
        model: the model, changed in place.
        size: size of the new vocabulary.
        trained_ids: number of ids that the model was trained with; higher ids are new.
        like: id that the new ones are copied from.
    """
    if size <= trained_ids:
        return model
    if size > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(padded_vocabulary(size), mean_resizing=False)
    weights = [layer.weight for layer in (model.get_input_embeddings(), model.get_output_embeddings())]
    bias = getattr(model.get_output_embeddings(), "bias", None)
    with torch.no_grad():
        for weight in weights:
            weight[trained_ids:size] = weight[like].clone()
        if bias is not None:
            bias[trained_ids:size] = bias[like].clone() - math.log(size - trained_ids)
    return model


def load(
    path_or_hub_id: str | Path,
    space: TokenSpace | None = None,
    *,
    head: Literal["needed", "optional"] = "needed",
) -> PreTrainedModel:
    """A masked language model from a folder or the hub; weights are read only from safetensors.

    See `seqmlm.engine.foreign` for how the files are checked.

    Args:
        path_or_hub_id: folder written by `save_pretrained`, or a hub id.
        space: the vocabulary that the model will be used with; its ids must fit the embedding of the model.
        head: "optional" also accepts an encoder without a masked-LM head, for callers that read only its
            hidden states. The head is then random.

    Returns:
        The model in fp32, in evaluation mode.

    Raises:
        UsageError: the architecture is not supported, or the vocabulary does not fit.
        StateError: the model does not exist, is damaged, needs its own code, or has its weights stored as
            pickle.
    """
    name = str(path_or_hub_id)
    try:
        model, missing = _load_from_files(path_or_hub_id)
    except SeqmlmError:
        raise
    except Exception as error:  # the config may contain anything, and transformers checks it in many ways
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
        lack = f"has no weights for {bodiless[0]!r}" if bodiless else "is an encoder without a masked-LM head"
        raise StateError(
            f"{name!r} is not a trained masked language model: it {lack}; give a checkpoint saved with its "
            "masked-LM head" + ("" if bodiless else " (seqmlm finetune needs none)")
        )
    rows = model.get_input_embeddings().num_embeddings
    if space is not None and space.size > rows:
        raise UsageError(
            f"the tokenizer has {space.size} ids but the model {name!r} only {rows}: use its own tokenizer"
        )
    return model


def _load_from_files(reference: str | Path) -> tuple[PreTrainedModel, Collection[str]]:
    """The model, and the names of parameters that are missing in its file.

    transformers gets the settings and the tensors, not the folder. The model is first built without memory.
    Sizes that do not agree with the file are therefore refused before memory is allocated.
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
        raise StateError(f"{reference}: {foreign.CONFIG} has no model_type: it is not a saved model")
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
        state_dict=weights.tensors(),
        dtype=torch.float32,
        output_loading_info=True,
        trust_remote_code=False,
        local_files_only=True,
    )
    assert isinstance(model, PreTrainedModel)
    return model, report["missing_keys"]


NEVER = -1e4
"""Decoder bias of an id that is never predicted: its probability is 0 in float32.

float16 can represent this number.
"""


def never_predict(model: PreTrainedModel, ids: Tensor) -> None:
    """Set the probability of ids to 0 through the bias of the decoder.

    Every program that loads the model then computes the same probabilities. A ModernBERT without a decoder
    bias gets one, and its config records this.

    Args:
        model: a model of an architecture in `HEADS`; changed in place.
        ids: (N,) ids of the vocabulary.
    """
    decoder: Any = model.get_output_embeddings()
    bias = model.lm_head.bias if model.config.model_type == "esm" else decoder.bias
    if bias is None:
        bias = decoder.bias = nn.Parameter(decoder.weight.new_zeros(len(decoder.weight)))
        model.config.decoder_bias = True
    with torch.no_grad():
        bias[ids] = NEVER


def position_capacity(model: nn.Module) -> int | None:
    """Length in tokens of the longest sequence with learned positions; None if positions are rotary."""
    tables = [
        module
        for name, module in model.named_modules()
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding)
    ]
    return tables[0].num_embeddings - position_offset(model) if tables else None


def position_offset(model: Any) -> int:
    """Number that is added to 0-based positions before the look-up (RoBERTa, ESM-1b: padding id + 1)."""
    return int(model.config.pad_token_id) + 1 if HEADS[model.config.model_type].offset_positions else 0


def parameter_count(model: nn.Module) -> int:
    """Number of distinct trainable parameters; shared parameters count once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def body_parameter_count(config: ModelConfig, space: TokenSpace) -> int:
    """Number of parameters in the layers of a model from scratch.

    Embedding and head are not counted, because they grow with the vocabulary.

    Args:
        config: the model that would be built; this function does not allocate memory for it.
        space: the vocabulary.

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
        logits: (masked LM, (Q, H) hidden states) -> (Q, V) logits, computed by the modules of the model.
        layers: path of the list of layers in the body. A module that serves as several layers is in the list
            once.
        offset_positions: whether learned positions start at padding id + 1.
        unused: modules of the body that a masked LM does not use; their parameters get no gradient.
        neck: module of the masked LM that other heads also have between the body and their classes.
    """

    logits: Callable[[Any, Tensor], Tensor]
    layers: str = "encoder.layer"
    offset_positions: bool = False
    unused: tuple[str, ...] = ()
    neck: str | None = None


_ROBERTA = Head(lambda model, hidden: model.lm_head(hidden), offset_positions=True)

HEADS: dict[str, Head] = {
    "modernbert": Head(lambda model, hidden: model.decoder(model.head(hidden)), layers="layers", neck="head"),
    "bert": Head(lambda model, hidden: model.cls(hidden)),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "esm": Head(lambda model, hidden: model.lm_head(hidden), offset_positions=True, unused=("contact_head",)),
    "distilbert": Head(
        lambda model, hidden: model.vocab_projector(
            model.vocab_layer_norm(model.activation(model.vocab_transform(hidden)))
        ),
        layers="transformer.layer",
    ),
    "electra": Head(lambda model, hidden: model.generator_lm_head(model.generator_predictions(hidden))),
    "albert": Head(lambda model, hidden: model.predictions(hidden), layers="encoder.albert_layer_groups"),
}


def check_supported(model_type: str, name: str) -> None:
    """Raise UsageError with the supported architectures, unless `model_type` is one of them."""
    if model_type not in HEADS:
        raise UsageError(
            f"{name!r} is a {model_type!r} model, for which seqmlm has no exact attention over packed rows; "
            f"supported: {', '.join(sorted(HEADS))}"
        )


def freeze_unused(model: nn.Module, model_type: str) -> None:
    """Switch off gradients for modules that a masked LM does not use.

    DDP waits for a gradient of every trainable parameter.
    """
    for name in HEADS[model_type].unused:
        for path, module in model.named_modules():
            if path.split(".")[-1] == name:
                module.requires_grad_(False)
