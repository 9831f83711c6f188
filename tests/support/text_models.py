"""A small random text model saved as a folder, for commands that take strings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from seqmlm.engine.backbones import ModelConfig, build
from seqmlm.engine.model import MaskedRows
from seqmlm.inference import model_folder
from seqmlm.tokenizers.subword import BpeTokenizer, WordPieceTokenizer

TEXTS = ("the cat sees the dog", "a dog barks", "the dogs bark loudly", "no cats sleep here") * 5


def text_model(
    folder: Path,
    *,
    sensitive: bool = False,
    wordpiece: bool = False,
    masking: Mapping[str, Any] | None = None,
) -> Path:
    """Write the model to `folder`/model, and return that."""
    torch.manual_seed(3)
    torch.set_num_threads(1)
    kind = WordPieceTokenizer if wordpiece else BpeTokenizer
    tokenizer = kind.train(TEXTS, vocabulary_size=300)
    overrides = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    model = build(ModelConfig(max_length=32, overrides=overrides), tokenizer.space)
    with torch.no_grad():
        for weights in model.parameters():
            weights *= 8  # fresh weights are so small that every word is as probable as any other
    rows = MaskedRows(model, tokenizer.space)
    card = model_folder.Card(
        domain="text",
        unit="word",
        tokenizer=tokenizer.name,
        max_length=32,
        probability="ordinary",
        sensitive=sensitive,
        masking=masking or {},
    )
    model_folder.write(folder / "model", rows, tokenizer, card)
    return folder / "model"
