"""Run a model on batches of columns, for `datasets.Dataset.map` and other tools with several processes.

A `Scorer` stores only the name of its model, so it can be sent to another process in a few bytes. The process
loads the model on its first batch. The cost: every process has its own copy of the model.
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
"""Columns that a batch gains, by task. They are the same for every batch."""

PRIVATE = ("p_value", "alarm")
"""The columns of `COLUMNS` that are returned for sensitive data."""


class Scorer:
    """Add result columns to a column of sequences, batch by batch: `Dataset.map(scorer, batched=True)`.

    Example:

        scorer = seqmlm.Scorer("english", "score", fpr=0.01)
        dataset.map(scorer, batched=True)

    Args:
        model: name, folder or hub id of the model.
        task: score, predict or embed.
        column: name of the column with the sequences.
        settings: settings of the task's command, such as fpr=0.01.

    Raises:
        UsageError: the task is not score, predict or embed.
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
        """The columns of `COLUMNS` for each sequence of a batch. Sequences that cannot be read get None.

        Raises:
            UsageError: the batch lacks the column, or the settings give several rows for a sequence.
        """
        if self.column not in batch:
            raise UsageError(f"a batch has no column {self.column!r}: name it with column=")
        texts = [*batch[self.column]]
        strings = [text if isinstance(text, str) else "" for text in texts]
        rows = self._opened.run(self.task, strings, **{"on_error": "skip", **self.settings})
        if rows["line"].duplicated().any():
            raise UsageError("a sequence has several rows: set a level that scores whole sequences")
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
