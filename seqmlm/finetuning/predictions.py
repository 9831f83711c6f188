"""Predictions of a fine-tuning's test data as its run keeps them: a Parquet file that says what it is of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from seqmlm.errors import StateError

PREDICTIONS = "predictions.parquet"
TRUTH, GROUP = "truth", "group"
"""Columns of predicted rows that `seqmlm evaluate` reads."""
_KEY = b"seqmlm"


class Predictions(NamedTuple):
    """Of N items; `truth` and `predicted` as `seqmlm.evaluation.predictions.measures` takes them."""

    kind: str
    names: tuple[str, ...]
    ids: list[str]
    groups: list[str]
    truth: Any
    predicted: Any

    def mismatch(self, other: Predictions, *, ids: bool = False) -> str | None:
        """In what two sets of predictions are not of the same; None where they are.

        With `ids` an example of those that differ is named. Values are compared with the rounding of their
        scale, which each training has for itself.
        """
        if self.kind != other.kind:
            return f"one predicts {self.kind}, the other {other.kind}"
        if self.kind != "entities" and self.names != other.names:
            return f"one predicts {len(self.names)} {self.kind} labels, the other has others"
        if self.ids != other.ids:
            many = f"{len(self.ids):,} and {len(other.ids):,} items"
            pair = next((pair for pair in zip(self.ids, other.ids, strict=False) if pair[0] != pair[1]), None)
            named = f"; the first ids that differ are {pair[0]!r} and {pair[1]!r}" if pair and ids else ""
            return f"they were tested on other records ({many}{named})"
        if self.kind == "entities":
            same = self.truth == other.truth
        else:
            same = np.allclose(self.truth, other.truth, rtol=1e-4, atol=1e-6)
        return None if same else "the true labels of the same records differ"


def write_predictions(folder: Path, made: Predictions, records: Sequence[Mapping[str, Any]] = ()) -> None:
    """Keep predictions in a run's folder, an item a row, with what `records` add to each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {"id": made.ids, "group": made.groups, "truth": map(_plain, made.truth)}
    if made.kind in ("class", "tags"):
        columns["truth"] = [made.names[one] for one in made.truth]
        columns["p"] = [dict(zip(made.names, map(float, one), strict=True)) for one in made.predicted]
    else:
        columns["prediction"] = map(_plain, made.predicted)
    rows = [dict(zip(columns, own, strict=True)) for own in zip(*columns.values(), strict=True)]
    if records:
        rows = [{**row, **more} for row, more in zip(rows, records, strict=True)]
    told = json.dumps({"kind": made.kind, "names": list(made.names)})
    table = pa.Table.from_pylist(rows).replace_schema_metadata({_KEY: told.encode()})
    pq.write_table(table, folder / PREDICTIONS)


def _plain(one: Any) -> Any:
    return one if isinstance(one, list) else one.tolist()


def is_stored(path: Path) -> bool:
    """Whether a file is one that `write_predictions` kept."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return path.suffix == ".parquet" and _KEY in (pq.read_schema(path).metadata or {})
    except (OSError, pa.ArrowException):
        return False  # who reads it says what is wrong with it


def read_predictions(folder: Path) -> Predictions:
    """What `write_predictions` kept in a folder, or a file that was moved out of it; else StateError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder if folder.is_file() else folder / PREDICTIONS
    if not path.is_file():
        raise StateError(f"{folder} keeps no predictions: only a fine-tuning that had test data does")
    try:
        table = pq.read_table(path)
        told = json.loads((table.schema.metadata or {})[_KEY])
        kind, names = told["kind"], tuple(told["names"])
        ids, groups, truth = (table[name].to_pylist() for name in ("id", "group", "truth"))
        if kind in ("class", "tags"):
            predicted: Any = np.column_stack([one.to_numpy() for one in table["p"].flatten()])
            truth = np.array([names.index(one) for one in truth])
        else:
            predicted = table["prediction"].to_pylist()
            if kind != "entities":
                truth, predicted = np.array(truth), np.array(predicted)
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise StateError(f"{path} cannot be read ({reason}): fine-tune again with another --name") from None
    return Predictions(kind, names, ids, groups, truth, predicted)
