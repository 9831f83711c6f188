"""The predictions for the test data of a fine-tuning, stored in its run as a Parquet file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from seqmlm.errors import StateError

PREDICTIONS = "predictions.parquet"
TRUTH, GROUP = "truth", "group"
"""Columns in rows of predictions that `seqmlm evaluate` reads."""
_KEY = b"seqmlm"


class Predictions(NamedTuple):
    """Predictions of N items; `seqmlm.evaluation.predictions.measures` takes `truth` and `predicted`."""

    kind: str
    names: tuple[str, ...]
    ids: list[str]
    groups: list[str]
    truth: Any
    predicted: Any

    def mismatch(self, second: Predictions, *, ids: bool = False) -> str | None:
        """How the test data of two sets of predictions differ, in words; None if they are equal.

        With `ids`, the text names the first ids that differ. Values are compared with a tolerance, because
        each training scales them differently.
        """
        if self.kind != second.kind:
            return f"one predicts {self.kind}, the other {second.kind}"
        if self.kind != "entities" and self.names != second.names:
            mine = f"one predicts {len(self.names)} {self.kind} labels"
            return f"their labels differ: {mine}, the other predicts different labels"
        if self.ids != second.ids:
            many = f"{len(self.ids):,} and {len(second.ids):,} items"
            pairs = zip(self.ids, second.ids, strict=False)
            pair = next((pair for pair in pairs if pair[0] != pair[1]), None)
            named = f"; the first ids that differ are {pair[0]!r} and {pair[1]!r}" if pair and ids else ""
            return f"they were tested on different records ({many}{named})"
        if self.kind == "entities":
            same = self.truth == second.truth
        else:
            same = np.allclose(self.truth, second.truth, rtol=1e-4, atol=1e-6)
        return None if same else "the true labels of the same records differ"


def write_predictions(
    folder: Path, predictions: Predictions, records: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Write predictions to the folder of a run, one row per item, with more fields from `records`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind, names, ids, groups, truth, predicted = predictions
    columns: dict[str, Any] = {"id": ids, "group": groups, "truth": map(_plain_label, truth)}
    if kind in ("class", "tags"):
        columns["truth"] = [names[index] for index in truth]
        columns["p"] = [dict(zip(names, map(float, row), strict=True)) for row in predicted]
    else:
        columns["prediction"] = map(_plain_label, predicted)
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    if records:
        rows = [{**row, **fields} for row, fields in zip(rows, records, strict=True)]
    header = json.dumps({"kind": kind, "names": list(names)})
    table = pa.Table.from_pylist(rows).replace_schema_metadata({_KEY: header.encode()})
    pq.write_table(table, folder / PREDICTIONS)


def _plain_label(label: Any) -> Any:
    return label if isinstance(label, list) else label.tolist()


def is_predictions_file(path: Path) -> bool:
    """Whether a file is one that `write_predictions` kept."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return path.suffix == ".parquet" and _KEY in (pq.read_schema(path).metadata or {})
    except (OSError, pa.ArrowException):
        return False  # the reader reports the fault


def read_predictions(folder: Path) -> Predictions:
    """Read predictions from `write_predictions`, from a folder or a file in it.

    Raises:
        StateError: there are no predictions, or they cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder if folder.is_file() else folder / PREDICTIONS
    if not path.is_file():
        raise StateError(f"{folder} keeps no predictions: only a fine-tuning that had test data does")
    try:
        table = pq.read_table(path)
        header = json.loads((table.schema.metadata or {})[_KEY])
        kind, names = header["kind"], tuple(header["names"])
        ids, groups, truth = (table[name].to_pylist() for name in ("id", "group", "truth"))
        if kind in ("class", "tags"):
            predicted: Any = np.column_stack([column.to_numpy() for column in table["p"].flatten()])
            truth = np.array([names.index(name) for name in truth])
        else:
            predicted = table["prediction"].to_pylist()
            if kind != "entities":
                truth, predicted = np.array(truth), np.array(predicted)
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise StateError(f"{path} cannot be read ({reason}): fine-tune again with another --name") from None
    return Predictions(kind, names, ids, groups, truth, predicted)
