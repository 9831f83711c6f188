"""Read the vectors that `seqmlm embed` has written, from an array (memory-mapped) or a Parquet table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqmlm.errors import DataError, UsageError
from seqmlm.streams.sinks import companion_files


class Vectors(NamedTuple):
    """Vectors with their ids and origin.

    Attributes:
        array: (N, H) the vectors.
        columns: name -> N values; one of them is the id.
        facts: facts about their model and settings.
        path: the file.
    """

    array: NDArray[Any]
    columns: dict[str, list[Any]]
    facts: dict[str, Any]
    path: Path

    def checked(self, facts: Mapping[str, Any], k: int, label: str | None) -> Vectors:
        """Check that k neighbours of other vectors can be searched among these vectors, and return them.

        Args:
            facts: the facts about the other vectors, which must agree.
            k: number of neighbours.
            label: a column that is needed, or None.

        Raises:
            UsageError: these vectors are from another model or have other settings, there are fewer than k,
                or the column is missing.
        """
        for fact, value in facts.items():
            if self.facts.get(fact) != value:
                raise UsageError(
                    f"{self.path} has vectors with {fact} {self.facts.get(fact)}, the new ones have {value}: "
                    "write it again with the same model and settings"
                )
        if k > len(self.array):
            raise UsageError(
                f"{self.path} has {len(self.array)} vectors, fewer than {k} neighbours: request fewer"
            )
        if label is not None and label not in self.columns:
            raise UsageError(f"{self.path} has no column {label!r}: write it with --set keep={label}")
        return self


def read_vectors(path: Path) -> Vectors:
    """Read a file that `seqmlm embed` has written.

    Raises:
        DataError: the file is not such a file, or cannot be read.
    """
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pa_parquet

    try:
        if path.suffix.lower() == ".npy":
            ids, facts = companion_files(path)
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            style = pa_csv.ParseOptions(delimiter="\t", quote_char=False)
            table = pa_csv.read_csv(ids, parse_options=style)
            notes = json.loads(facts.read_text(encoding="utf-8"))
        else:
            stored = pa_parquet.read_table(path)
            array = np.stack(stored["vector"].to_numpy()) if len(stored) else np.zeros((0, 0))
            table, notes = (
                stored.drop_columns("vector"),
                json.loads(stored.schema.metadata[b"seqmlm"]),
            )
        columns = {name: [*map(str, table[name].to_pylist())] for name in table.column_names}
        if array.ndim != 2 or len(array) != len(columns["id"]):
            raise ValueError(f"{len(columns['id'])} ids for an array of shape {array.shape}")
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"not a file with vectors from seqmlm embed ({reason})",
            source=str(path),
            remedy="write them with --out NAME.npy or NAME.parquet",
        ) from None
    return Vectors(array, columns, notes, path)
