"""Loaded models of any field with random weights, so small that a test can ask them anything."""

from __future__ import annotations

import torch

from seqmlm import plugins
from seqmlm.engine.backbones import ModelConfig, build
from seqmlm.engine.model import MaskedRows
from seqmlm.inference.model_folder import Card, LoadedModel
from seqmlm.tokenizers.base import Tokenizer


def random_model(
    domain: str, tokenizer: Tokenizer, *, max_length: int = 64, spread: float = 12.0
) -> LoadedModel:
    """Two random layers; weights are large, so that what is said depends on what is seen.

    Args:
        domain: of the card.
        tokenizer: the vocabulary.
        max_length: tokens of a window.
        spread: factor of all weights.
    """
    torch.manual_seed(3)
    torch.set_num_threads(1)
    overrides = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    model = build(ModelConfig(max_length=max_length, overrides=overrides), tokenizer.space)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(spread)
    card = Card(
        domain=domain,
        unit=tokenizer.unit,
        tokenizer=tokenizer.name,
        max_length=max_length,
        probability="ordinary",
    )
    return LoadedModel(
        rows=MaskedRows(model, tokenizer.space),
        tokenizer=tokenizer,
        domain=plugins.domain(domain),
        card=card,
        path="nowhere",
    )
