"""A model over batches of columns: for `datasets.Dataset.map`, and for what else hands batches to processes.

It holds names alone, so that it goes to another process in a few bytes, and opens its model there on the
first batch. The price is that every process has a model of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import pandas as pd

from seqmlm.api import Model, load
from seqmlm.errors import UsageError

Batch = Mapping[str, Sequence[Any]]

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "score": ("score", "bits_per_unit", "p_value", "alarm", "reason"),
    "predict": ("prediction", "probability"),
    "embed": ("vector",),
}
"""What a batch gains, by task: the same columns for every batch."""

PRIVATE = ("p_value", "alarm")
"""Of these, what is given of sensitive data."""


class Scorer:
    """A column of sequences to columns of answers, a batch at a time: `Dataset.map(scorer, batched=True)`.

    Args:
        model: name, folder or hub id.
        task: score, predict or embed.
        column: of a batch that has the sequences.
        settings: of the task's command, such as fpr=0.01.

    Raises:
        UsageError: no such task.
    """

    def __init__(
        self,
        model: str,
        task: Literal["score", "predict", "embed"] = "score",
        *,
        column: str = "text",
        **settings: Any,
    ) -> None:
        if task not in COLUMNS:
            raise UsageError(f"task is one of {', '.join(COLUMNS)}, not {task!r}")
        self.model, self.task, self.column, self.settings = str(model), task, column, settings

    def __call__(self, batch: Batch) -> dict[str, list[Any]]:
        """The columns of `COLUMNS` for each sequence of a batch; None for one that cannot be read.

        Raises:
            UsageError: no such column, or settings by which a sequence has several rows.
        """
        if self.column not in batch:
            raise UsageError(f"a batch has no column {self.column!r}: name it with column=")
        texts = [*batch[self.column]]
        strings = [text if isinstance(text, str) else "" for text in texts]
        rows = self._opened.run(self.task, strings, **{"on_error": "skip", **self.settings})
        if rows["line"].duplicated().any():
            raise UsageError("a sequence has several rows: ask at the level of whole sequences")
        table = pd.DataFrame(rows).set_index("line").reindex(range(1, len(texts) + 1))
        names = [name for name in COLUMNS[self.task] if not self._opened.card.sensitive or name in PRIVATE]
        return {name: _plain(table[name]) if name in table else [None] * len(texts) for name in names}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_opened"}

    @cached_property
    def _opened(self) -> Model:
        return load(self.model)


def _plain(column: pd.Series) -> list[Any]:
    return [*column.astype(object).where(column.notna(), None)]
