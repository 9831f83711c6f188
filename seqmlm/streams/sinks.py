"""A sink takes rows of results; what it has committed survives a kill, a full disk and a power cut."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from seqmlm.errors import StateError, UsageError, nearest
from seqmlm.streams.schema import Schema

Row = Mapping[str, Any]
Mark = Mapping[str, int]
"""Where a sink stands, as it says itself; given back to go on from there."""

FORMATS = {"jsonl": (".jsonl", ".ndjson", ".json"), "csv": (".csv",), "parquet": (".parquet", ".pq")}
"""Format to the endings that mean it; the first format is that of any other name."""


class Sink(ABC):
    """Rows go in; after `commit` they stay, and `Mark` says how to find the end of them again."""

    @abstractmethod
    def write(self, rows: Sequence[Row]) -> None:
        """Take rows. Those since the last commit may be lost, or torn, when the process dies.

        Raises:
            StateError: they cannot be written; what was committed is still there.
        """

    @abstractmethod
    def commit(self) -> Mark:
        """Put everything written so far on the disk, and say where that is.

        Raises:
            StateError: it cannot be written.
        """

    @abstractmethod
    def finish(self) -> None:
        """Give the output its final form. Until `close`, what `commit` returned is still valid.

        Raises:
            StateError: it cannot be written.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the output; unfinished, what was committed stays; finished, what was needed only on the
        way is removed."""


def format_of(path: Path | None, asked: str | None = None) -> str:
    """The format of an output: the one asked for, else what its name says, else JSON lines.

    Raises:
        UsageError: an unknown format, or a parquet file on standard output.
    """
    if asked is not None and asked not in FORMATS:
        raise UsageError(f"results cannot be written as {asked!r}{nearest(asked, FORMATS)}")
    suffix = path.suffix.lower() if path is not None else ""
    by_name = next((name for name, suffixes in FORMATS.items() if suffix in suffixes), "jsonl")
    chosen = asked or by_name
    if path is None and chosen == "parquet":
        raise UsageError("a parquet file cannot go to standard output; name a file with --out")
    return chosen


def open_sink(
    path: Path | None,
    schema: Schema,
    *,
    format: str,
    private: bool = False,
    mark: Mark | None = None,
    stdout: TextIO | None = None,
) -> Sink:
    """The sink for a file, or for standard output where `path` is None.

    A file that is there is replaced when the first row comes, or the first commit.

    Args:
        path: of the output.
        schema: its columns.
        format: one of `FORMATS`.
        private: only the owner may read it.
        mark: go on behind what was committed at this mark; None: begin.
        stdout: the stream, where `path` is None.

    Raises:
        StateError: the output is no longer what it was at the mark.
    """
    from seqmlm.streams.csv import CsvRows
    from seqmlm.streams.jsonl import JsonRows
    from seqmlm.streams.parquet import ParquetSink
    from seqmlm.streams.textfile import StreamSink, TextFileSink

    if path is not None and format == "parquet":
        return ParquetSink(path, schema, private=private, mark=mark)
    rows = CsvRows(schema) if format == "csv" else JsonRows()
    if path is None:
        assert stdout is not None
        return StreamSink(stdout, rows)
    return TextFileSink(path, rows, private=private, mark=mark)


def unwritable(path: Path | str, error: OSError) -> StateError:
    """The error for output that the system refuses."""
    return StateError(
        f"cannot write {path}: {error.strerror}; the rows committed before are kept: free space or choose a "
        "place you may write to, then run the same command with --resume"
    )


def changed(path: Path) -> StateError:
    """The error for output that is not what the cursor remembers."""
    return StateError(
        f"cannot go on with {path}: it is not what the unfinished scoring has written; put it back, or score "
        "again without --resume"
    )
