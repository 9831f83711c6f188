"""A loaded log model so small that a test can ask it anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from seqmlm import plugins
from seqmlm.data.record import Record
from seqmlm.domains.logs.levels import LogBackground
from seqmlm.domains.logs.readers.events import LogLines
from seqmlm.engine.backbones import ModelConfig, build
from seqmlm.engine.model import MaskedRows
from seqmlm.inference import model_folder
from seqmlm.inference.calibrations import store_backgrounds
from seqmlm.inference.model_folder import Card, LoadedModel
from seqmlm.tokenizers.base import Tokenizer
from seqmlm.tokenizers.log_templates import TemplateTokenizer

NORMAL = ("open file 7", "read block 1 of 9", "read block 2 of 9", "close")


def log_model(tokenizer: Tokenizer, max_length: int = 64) -> LoadedModel:
    """Two random layers over the tokenizer's vocabulary."""
    torch.manual_seed(3)
    torch.set_num_threads(1)
    overrides = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    model = build(ModelConfig(max_length=max_length, overrides=overrides), tokenizer.space)
    card = Card(
        domain="logs",
        unit=tokenizer.unit,
        tokenizer=tokenizer.name,
        max_length=max_length,
        probability="ordinary",
    )
    rows = MaskedRows(model, tokenizer.space)
    return LoadedModel(
        rows=rows, tokenizer=tokenizer, domain=plugins.domain("logs"), card=card, path="nowhere"
    )


def session(lines: Sequence[str], number: int = 0, begin: float = 100.0) -> Record:
    """A record of some lines, a second apart, from line 10 on of its file, every second line."""
    raw = LogLines(lines=tuple(lines), times=tuple(begin + i for i in range(len(lines))))
    places = tuple(range(10, 10 + 2 * len(lines), 2))
    return Record(id=f"s{number}", raw=raw, source="app.log", line=places[0], meta={"lines": places})


class _Encodings(list):  # type: ignore[type-arg]
    """A list with the lengths of its encodings."""

    @property
    def lengths(self) -> object:
        return np.array(list(map(len, self)))


def write_log_model(folder: Path, known: Sequence[str] = NORMAL) -> None:
    """Write a model that knows `NORMAL`, and what its levels compare with; it is not calibrated.

    Args:
        folder: of the model.
        known: the same lines in the order that decides the numbers of their tokens.
    """
    normal = [session(NORMAL).raw] * 20
    loaded = log_model(TemplateTokenizer.train([session(known).raw] * 20))
    model_folder.write(folder, loaded.rows, loaded.tokenizer, loaded.card)
    usual = LogBackground.fit(_Encodings(loaded.tokenizer.encode_batch(normal)), loaded.tokenizer, seed=0)
    store_backgrounds(folder, {"session": usual, "line": usual})
