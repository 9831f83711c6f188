"""A registered model as MLflow loads it: `mlflow.pyfunc.load_model("models:/english@champion").predict(df)`.

The folder of every trained model holds an `MLmodel` that names this module; nothing in it is pickled, and it
has no absolute path. What it gives is what `seqmlm score` (of a fine-tuned model `seqmlm predict`) gives, a
row for each row of the input. Of sensitive data that is ids, p-values and alarms alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from seqmlm.api import Model, load
from seqmlm.errors import DataError
from seqmlm.frames import ITEM

PRIVATE = ("id", "line", "p_value", "alarm")
"""Columns that are given of sensitive data."""


class Answers:
    """The model that MLflow calls with a table.

    Args:
        model: answers.
        settings: of its command, such as {"fpr": 0.01}; None means "not given".
    """

    def __init__(self, model: Model, settings: Mapping[str, Any]) -> None:
        self.model = model
        self.settings = {name: value for name, value in settings.items() if value is not None}

    def predict(self, data: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table of sequences (column `text`), or of what the field's tables have.

        Args:
            data: the table.

        Raises:
            DataError: no table, or one that the field does not read.
        """
        if not isinstance(data, pd.DataFrame):
            raise DataError("the input is no table", source=ITEM, remedy="send columns with names")
        task = "predict" if self.model.card.head else "score"
        rows = pd.DataFrame(self.model.run(task, data, **self.settings))
        if self.model.card.sensitive:
            rows = rows[[name for name in PRIVATE if name in rows]]
        return rows.astype(object).where(rows.notna(), None)  # JSON has no NaN


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> Answers:
    """Load a model for MLflow; `path` is its folder, `model_config` the argument of `load_model`."""
    return Answers(load(path), model_config or {})
