"""A loaded log model so small that a test can ask it anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tiny_models import random_model

from seqmlm.data.record import Record
from seqmlm.domains.logs.levels import LogBackground
from seqmlm.domains.logs.readers.events import LogLines
from seqmlm.domains.logs.templates import TemplateTokenizer
from seqmlm.engine.types import InMemory
from seqmlm.inference import model_folder
from seqmlm.inference.calibrations import store_backgrounds
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.tokenizers.base import Tokenizer

NORMAL = ("open file 7", "read block 1 of 9", "read block 2 of 9", "close")


def log_model(tokenizer: Tokenizer, max_length: int = 64) -> LoadedModel:
    """Two random layers over the tokenizer's vocabulary, with weights as they are drawn."""
    return random_model("logs", tokenizer, max_length=max_length, spread=1)


def session(lines: Sequence[str], number: int = 0, begin: float = 100.0) -> Record:
    """A record of some lines, a second apart, from line 10 on of its file, every second line."""
    raw = LogLines(lines=tuple(lines), times=tuple(begin + i for i in range(len(lines))))
    places = tuple(range(10, 10 + 2 * len(lines), 2))
    return Record(id=f"s{number}", raw=raw, source="app.log", line=places[0], meta={"lines": places})


def write_log_model(folder: Path, known: Sequence[str] = NORMAL) -> None:
    """Write a model that knows `NORMAL`, and what its levels compare with; it is not calibrated.

    Args:
        folder: of the model.
        known: the same lines in the order that decides the numbers of their tokens.
    """
    normal = [session(NORMAL).raw] * 20
    loaded = log_model(TemplateTokenizer.train([session(known).raw] * 20))
    model_folder.write(folder, loaded.rows, loaded.tokenizer, loaded.card)
    usual = LogBackground.fit(InMemory(loaded.tokenizer.encode_batch(normal)), loaded.tokenizer, seed=0)
    store_backgrounds(folder, {"session": usual, "line": usual})
