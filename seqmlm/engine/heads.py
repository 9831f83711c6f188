"""What the engine must know of each supported architecture: its head, its positions, its embedding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from seqmlm.errors import UsageError


@dataclass(frozen=True)
class Head:
    """One architecture's way from hidden states to logits.

    Args:
        logits: (masked LM, (Q, H) hidden states) -> (Q, V) logits, by the model's own modules.
        layers: where the body keeps its layers; a module that serves as several layers stands there once.
        offset_positions: learned positions start at padding id + 1.
        unused: modules of the body that no masked LM reads (their parameters would never get a gradient).
    """

    logits: Callable[[Any, Tensor], Tensor]
    layers: str = "encoder.layer"
    offset_positions: bool = False
    unused: tuple[str, ...] = ()


def _distilbert(model: Any, hidden: Tensor) -> Tensor:
    out: Tensor = model.vocab_projector(
        model.vocab_layer_norm(model.activation(model.vocab_transform(hidden)))
    )
    return out


HEADS: dict[str, Head] = {
    "modernbert": Head(lambda model, hidden: model.decoder(model.head(hidden)), layers="layers"),
    "bert": Head(lambda model, hidden: model.cls(hidden)),
    "roberta": Head(lambda model, hidden: model.lm_head(hidden), offset_positions=True),
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
    """Switch off gradients of modules that a masked LM never reads: DDP waits for every trainable
    parameter."""
    for name in HEADS[model_type].unused:
        for path, module in model.named_modules():
            if path.split(".")[-1] == name:
                module.requires_grad_(False)
