"""Loaded models so small that a test can ask them anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seqmlm import plugins
from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.domains.protein.tokenizer import ResidueTokenizer
from seqmlm.engine.backbones import build
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.shapes import ModelConfig
from seqmlm.inference import model_folder
from seqmlm.inference.model_folder import Card, LoadedModel
from seqmlm.tokenizers.base import Tokenizer

RESIDUES = "LAGVSERTIDPKQNFYMHWC"
SHAPE = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32}
SMALL = f"model.overrides={SHAPE}"
TINY = ("--size", "tiny", "--set", SMALL)
"""Options of a training, where a test is of what surrounds a model."""
FAST = (
    *(*TINY, "--set", "train.tokens_per_batch=1024", "--set", "train.tokens_per_row=512"),
    *("--set", "train.evaluation_records=20"),
)
"""The same, and steps that are as small."""


def random_model(
    domain: str,
    tokenizer: Tokenizer,
    *,
    max_length: int = 64,
    layers: str = "modernbert.v1",
    spread: float = 12.0,
    **card: Any,
) -> LoadedModel:
    """Two random layers; weights are large, so that what is said depends on what is seen.

    Args:
        domain: of the card.
        tokenizer: the vocabulary.
        max_length: tokens of a window.
        layers: a pattern of `LAYERS`.
        spread: factor of all weights.
        card: further fields of the card.
    """
    torch.manual_seed(3)
    torch.set_num_threads(1)
    overrides = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    model = build(ModelConfig(max_length=max_length, layers=layers, overrides=overrides), tokenizer.space)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(spread)
    facts: dict[str, Any] = {"max_length": max_length, "probability": "ordinary", **card}
    return LoadedModel(
        rows=MaskedRows(model, tokenizer.space),
        tokenizer=tokenizer,
        domain=plugins.domain(domain),
        card=Card(domain=domain, unit=tokenizer.traits.unit, tokenizer=tokenizer.name, **facts),
        path="nowhere",
    )


def protein_model(max_length: int = 22, layers: str = "modernbert.v1") -> LoadedModel:
    """Over residues, with weights as they are drawn."""
    return random_model("protein", ResidueTokenizer(), max_length=max_length, layers=layers, spread=1)


def dna_model() -> LoadedModel:
    """Over bases, with weights as they are drawn."""
    return random_model("dna", BaseTokenizer(), max_length=22, spread=1)


def saved(model: LoadedModel, folder: Path, **card: Any) -> Path:
    """Write a model to a folder, and return that.

    Args:
        model: with the weights, the tokenizer and the card.
        folder: to be made.
        card: fields of the card that are others.
    """
    model_folder.write(folder, model.rows, model.tokenizer, replace(model.card, **card))
    return folder


def proteins(path: Path, count: int, seed: int, *, longest: int = 30) -> Path:
    """A FASTA file of proteins of 8 residues and more."""
    rng, letters = np.random.default_rng(seed), list(RESIDUES)
    sequences = ["".join(rng.choice(letters, size=int(rng.integers(8, longest)))) for _ in range(count)]
    path.write_text("".join(f">p{seed}.{n}\n{one}\n" for n, one in enumerate(sequences)))
    return path


def residues(length: int) -> str:
    """A sequence without a period."""
    return "".join(RESIDUES[(7 * i + i * i) % 20] for i in range(length))
