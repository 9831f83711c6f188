"""A small random text model saved as a folder, for commands that take strings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tiny_models import random_model, saved

from seqmlm.config import from_dict
from seqmlm.engine.heads import LabelledRows
from seqmlm.inference import model_folder
from seqmlm.inference.labeller import Labeller
from seqmlm.inference.pieces import HeadCard
from seqmlm.tokenizers.subword import BpeTokenizer, WordPieceTokenizer

TEXTS = ("the cat sees the dog", "a dog barks", "the dogs bark loudly", "no cats sleep here") * 5


def text_model(
    folder: Path,
    *,
    sensitive: bool = False,
    wordpiece: bool = False,
    masking: Mapping[str, Any] | None = None,
    head: Mapping[str, Any] | None = None,
    reading: Mapping[str, Any] | None = None,
) -> Path:
    """Write the model to `folder`/model, with a random head where one is described, and return that."""
    kind = WordPieceTokenizer if wordpiece else BpeTokenizer
    tokenizer = kind.train(TEXTS, vocabulary_size=300)
    facts = {"sensitive": sensitive, "masking": masking or {}, "reading": reading or {}}
    model = random_model("text", tokenizer, max_length=32, spread=1, **facts)
    with torch.no_grad():
        for weights in model.rows.parameters():
            weights *= 8  # fresh weights are so small that every word is as probable as any other
    if head is None:
        return saved(model, folder / "model")
    rows, card = model.rows, from_dict(HeadCard, head)
    torch.manual_seed(1)
    labeller = Labeller(LabelledRows(rows, card.config), card)
    further = labeller.saved()
    model_folder.write(
        folder / "model", rows, tokenizer, replace(model.card, head=labeller.card.to_dict()), further
    )
    return folder / "model"
