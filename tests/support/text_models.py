"""A small random text model saved as a folder, for commands that take strings."""

from __future__ import annotations

from pathlib import Path

import torch

from seqmlm.engine.backbones import ModelConfig, build
from seqmlm.engine.model import MaskedRows
from seqmlm.tasks import bundle
from seqmlm.tokenizers.subword import BpeTokenizer, WordPieceTokenizer

TEXTS = ("the cat sees the dog", "a dog barks", "the dogs bark loudly", "no cats sleep here") * 5


def text_model(
    folder: Path, *, domain: str = "text", sensitive: bool = False, wordpiece: bool = False
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
    card = bundle.Card(
        domain=domain,
        unit="word",
        tokenizer=tokenizer.name,
        max_length=32,
        probability="ordinary",
        sensitive=sensitive,
    )
    bundle.write(folder / "model", rows, tokenizer, card)
    return folder / "model"
