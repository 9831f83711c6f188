"""Loaded models so small that a test can ask them anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from seqmlm import plugins
from seqmlm.engine.backbones import ModelConfig, build
from seqmlm.engine.model import MaskedRows
from seqmlm.inference import model_folder
from seqmlm.inference.model_folder import Card, LoadedModel
from seqmlm.tokenizers.base import Tokenizer
from seqmlm.tokenizers.bases import BaseTokenizer
from seqmlm.tokenizers.residue import ResidueTokenizer

RESIDUES = "LAGVSERTIDPKQNFYMHWC"


def protein_model(max_length: int = 22, layers: str = "modernbert.v1") -> LoadedModel:
    """Two random layers over residues, of a pattern of `LAYERS`; windows of `max_length` tokens."""
    return _model("protein", ResidueTokenizer(), max_length, layers)


def dna_model() -> LoadedModel:
    """Two random layers over bases."""
    return _model("dna", BaseTokenizer(), 22, "modernbert.v1")


def _model(domain: str, tokenizer: Tokenizer, max_length: int, layers: str) -> LoadedModel:
    torch.manual_seed(3)
    torch.set_num_threads(1)
    overrides = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    model = build(ModelConfig(max_length=max_length, layers=layers, overrides=overrides), tokenizer.space)
    rows = MaskedRows(model, tokenizer.space)
    card = Card(
        domain=domain,
        unit=tokenizer.unit,
        tokenizer=tokenizer.name,
        max_length=max_length,
        probability="ordinary",
    )
    return LoadedModel(
        rows=rows, tokenizer=tokenizer, domain=plugins.domain(domain), card=card, path="nowhere"
    )


def saved(model: LoadedModel, folder: Path, **card: Any) -> Path:
    """Write a model to a folder, and return that.

    Args:
        model: with the weights, the tokenizer and the card.
        folder: to be made.
        card: fields of the card that are others.
    """
    model_folder.write(folder, model.rows, model.tokenizer, replace(model.card, **card))
    return folder


def residues(length: int) -> str:
    """A sequence without a period."""
    return "".join(RESIDUES[(7 * i + i * i) % 20] for i in range(length))
