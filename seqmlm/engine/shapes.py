"""The model to train: sizes, patterns of layers, initializations. These are only settings, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from seqmlm.errors import UsageError, nearest
from seqmlm.parsing import Share, word_list

LINEAR = "linear"
"""The size that selects a linear model instead of an encoder (`seqmlm.engine.linear`)."""


class Size(NamedTuple):
    """Shape of a model from scratch: layers, hidden size, attention heads, features of the gated MLP."""

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
    """A pattern of layers: which tokens each layer attends to.

    Args:
        period: one of this many layers attends to the whole sequence, starting with the first layer; None if
            only the first layer does.
        window: number of tokens to each side that the other layers attend to.
        purpose: the tasks that the pattern is suited to.
    """

    period: int | None
    window: int
    purpose: str

    def __str__(self) -> str:
        if self.period == 1:
            return f"every layer is global ({self.purpose})"
        ordinals = {2: "every second", 3: "every third"}
        which = "the first" if self.period is None else ordinals.get(self.period, f"every {self.period}th")
        nearby = f"the others see {self.window} tokens on each side"
        return f"{which} layer is global, {nearby} ({self.purpose})"


LAYERS: dict[str, Pattern] = {
    "nearby.v1": Pattern(
        period=None, window=4, purpose="for cheap scores when units depend on their neighbours"
    ),
    "mixed.v1": Pattern(period=2, window=16, purpose="for scores, and structure between distant units"),
    "everywhere.v1": Pattern(period=1, window=64, purpose="for sets, and structure between distant units"),
    "modernbert.v1": Pattern(period=3, window=64, purpose="ModernBERT"),
}
"""Patterns of layers, by versioned name."""
PATTERN_KEYS = frozenset({"global_attn_every_n_layers", "local_attention", "layer_types"})
"""Fields of `transformers.ModernBertConfig` that a pattern sets."""
SHAPE_KEYS = frozenset({"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"})
"""Fields of `transformers.ModernBertConfig` that a size sets."""

INITIALIZATIONS: dict[str, str] = {
    "modernbert.v1": "truncated normal of scale .02",
    "unigram.v1": "the same; the decoder's bias is the log frequency of a token in the training split",
    "scaled.v1": "truncated normal of scale 1 / sqrt(hidden), and that bias",
    "neighbours.v1": "as modernbert.v1, with embeddings from the neighbours of tokens in the training split",
    "unigram_neighbours.v1": "as unigram.v1, with the embeddings of neighbours.v1",
}
BIASED = frozenset({"unigram.v1", "scaled.v1", "unigram_neighbours.v1"})
"""Initializations that set the decoder's bias to the log frequencies of tokens."""
FROM_NEIGHBOURS = frozenset({"neighbours.v1", "unigram_neighbours.v1"})
"""Initializations that take embeddings from the neighbours of tokens."""

_RESERVED = word_list("vocab_size pad_token_id bos_token_id eos_token_id cls_token_id sep_token_id")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The model to start from.

    Args:
        size: size of a new model: "tiny" (4 layers x 128), "small" (6 x 256), "base" (12 x 768), or "linear"
            for aligned sequences. It is ignored if `init` is set.
        init: folder or hub id of a masked language model to continue from; None for a new model.
        max_length: number of tokens in the longest sequence, including special tokens.
        dropout: probability of dropout in embeddings, MLP and attention, in [0, 1).
        layers: which tokens each layer attends to. "nearby" gives cheap scores if units depend on their
            neighbours. Structure between units far apart needs "mixed" or "everywhere". The
            published ModernBERT has "modernbert".
        initialization: initial weights of a new model: "modernbert", "unigram", "scaled", "neighbours" or
            "unigram_neighbours". The last two compute embeddings from the neighbours of tokens in the data,
            which shortens the training.
        overrides: other settings: fields of `transformers.ModernBertConfig`, or of
            `seqmlm.engine.linear.Penalty` for a linear model.

    Raises:
        UsageError: a setting is unknown or out of range.
    """

    size: str = "small"
    init: str | None = None
    max_length: int = 512
    dropout: Share = 0.0
    layers: str = "modernbert.v1"
    initialization: str = "modernbert.v1"
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for setting, name, choices in (
            ("model size", self.size, (*SIZES, LINEAR)),
            ("model.layers", self.layers, LAYERS),
            ("model.initialization", self.initialization, INITIALIZATIONS),
        ):
            if name not in choices:
                raise UsageError(f"unknown {setting} {name!r}{nearest(name, choices)}")
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
        """Whether it is a linear model, which has its own training and files."""
        return self.init is None and self.size == LINEAR


def settings_of(config: ModelConfig) -> dict[str, Any]:
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
    settings.setdefault("global_attn_every_n_layers", pattern.period or settings["num_hidden_layers"])
    if config.initialization == "scaled.v1":
        settings.setdefault("initializer_range", settings["hidden_size"] ** -0.5)
    return settings


def _check_overrides(config: ModelConfig) -> None:
    """Refuse overrides that ModernBERT, or a linear model, does not accept, before anything is read."""
    if not config.overrides:
        return
    if config.is_linear:
        from seqmlm.engine.linear import Penalty

        Penalty.from_settings(config.overrides)
        return
    for key in SHAPE_KEYS & config.overrides.keys():
        if not isinstance(config.overrides[key], int) or config.overrides[key] < 1:
            raise UsageError(f"model.overrides.{key} must be a whole number above 0")
    import torch
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    known_keys = set(ModernBertConfig().to_dict()) | {"global_attn_every_n_layers"}
    for key in config.overrides:
        if key in _RESERVED:
            raise UsageError(f"model override {key!r} is determined by the tokenizer and cannot be set")
        if key not in known_keys:
            raise UsageError(f"unknown model override {key!r}{nearest(str(key), known_keys)}")
    try:
        with torch.device("meta"):
            ModernBertForMaskedLM(ModernBertConfig(**settings_of(config)))
    except Exception as error:  # transformers and torch check values in many ways
        reason = " ".join(str(error).split())
        raise UsageError(f"model.overrides = {dict(config.overrides)} cannot be used: {reason}") from None
