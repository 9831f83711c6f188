"""Maps of sequences by `seqmlm structure`, for benchmarks. Sequences that have a map are not mapped again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seqmlm.data.files import UNDER_WAY
from seqmlm.data.rows import read_rows
from seqmlm.reports.summary import Summary
from seqmlm.tasks.run import run
from seqmlm.tasks.structure import Structure, StructureConfig


def mapped(folder: Path, **settings: Any) -> Summary:
    """Map the sequences of files; write `edges.jsonl`, graphs and files of the field into the folder.

    Args:
        folder: continued at the point where an earlier run stopped.
        settings: settings of `StructureConfig`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = folder / "edges.jsonl"
    whole = rows.exists() and not rows.with_name(rows.name + UNDER_WAY).exists()
    where: dict[str, Any] = {"edges": rows} if whole else {"out": rows, "resume": True}
    return run("structure", Structure, StructureConfig(graphs=folder / "graphs", **where, **settings))


def edges(folder: Path) -> Iterator[Any]:
    """The rows of all judged pairs."""
    return (row for _, row in read_rows(str(folder / "edges.jsonl")))
