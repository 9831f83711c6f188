"""MLflow flavor of registered models: `mlflow.pyfunc.load_model("models:/english@champion").predict(df)`.

The folder of every trained model has an `MLmodel` file that names this module. The file contains no pickled
objects and no absolute paths. The result is the same as from `seqmlm score`, or from `seqmlm predict` for a
fine-tuned model, with a row for each input row. For sensitive data, the columns are only ids, p-values and
alarms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from seqmlm.api import Model, load
from seqmlm.errors import DataError
from seqmlm.frames import ITEM

PRIVATE = ("id", "line", "p_value", "alarm")
"""Columns that are returned for sensitive data."""


class Answers:
    """The model object that MLflow calls with a table.

    Args:
        model: the model.
        settings: settings of the command, such as {"fpr": 0.01}. None means "not given".
    """

    def __init__(self, model: Model, settings: Mapping[str, Any]) -> None:
        self.model = model
        self.settings = {name: value for name, value in settings.items() if value is not None}

    def predict(self, data: pd.DataFrame) -> pd.DataFrame:
        """Score or predict the sequences of a table, in the columns that the field reads (`text` for texts).

        Args:
            data: the table, with one sequence per row.

        Raises:
            DataError: the input is not a table, or the field cannot read it.
        """
        if not isinstance(data, pd.DataFrame):
            raise DataError("the input is not a table", source=ITEM, remedy="send named columns")
        task = "predict" if self.model.card.head else "score"
        rows = pd.DataFrame(self.model.run(task, data, **self.settings))
        if self.model.card.sensitive:
            rows = rows[[name for name in PRIVATE if name in rows]]
        return rows.astype(object).where(rows.notna(), None)  # JSON has no NaN


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> Answers:
    """Load a model for MLflow from the folder `path`. `model_config` is the argument of `load_model`."""
    return Answers(load(path), model_config or {})
