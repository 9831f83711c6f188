"""Files of rows that can be resumed.

The rows of a run are written as JSON lines, and the file only grows. Until the run is complete, a mark is
next to the file. It has the request, the number of finished items, and the length of the file at that time. A
resumed run truncates the file to this length, skips the finished items and continues. The result has the same
bytes as an uninterrupted run.

Tables (CSV, TSV, Parquet) and files in a field's own format are made from the finished rows. The cost: for a
moment, the rows of a table are on the disk twice.
"""

from __future__ import annotations

import json
import os
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TextIO

import numpy as np

from seqmlm.data.compressed import PACKED, packing
from seqmlm.data.problems import Problems
from seqmlm.engine.durable import replace_file
from seqmlm.streams.cursor import Cursor, Position
from seqmlm.streams.outputs import output_lock
from seqmlm.streams.ownership import refuse_foreign, remember
from seqmlm.streams.sinks import (
    Kind,
    LinesSink,
    Mark,
    Schema,
    StreamSink,
    convert,
    json_lines,
    partial_of,
    table_lines,
    write_error,
)

Row = Mapping[str, Any]
"""One row of results for an item or a part of it: `id, source, line`, then the fields of the task."""

NativeText = Callable[[Iterator[Row]], Iterable[str]]
"""Converts rows into the text of a file in a field's own format."""

Finished = Callable[[Iterator[Row]], Iterable[Row]]
"""Converts committed rows into the final rows, if each of these depends on all rows."""

RowFilter = Callable[[Row], bool]

Order = Callable[[Row], tuple[float, float]]
"""The sort key of a row, ascending. The second number orders rows with an equal first number."""


class Rows:
    """The rows of one run: a file, which only one run at a time writes, or a stream.

    Args:
        path: the file; None for `stdout`.
        request: everything that determines the rows, as JSON values. Only a run with an equal request can
            resume the file.
        problems: the problems of the run. Their counts are stored in the mark.
        format: "jsonl", "csv", "tsv", "parquet", or "own" (converted by `native`).
        columns: the columns of a table: all of them, or the kind of each column that its values do not show.
        native: converts rows into the field's own format.
        needs_all: whether rows are written at the end, after `finish` has converted them.
        row_filter: whether a row is written. Other rows are only counted. None writes all rows.
        resume: whether to continue an unfinished file; None for rows that no run can resume.
        stdout: the stream for rows without a file. None keeps them only for `read`.
        keeps: whether rows without a file are kept for `read`. Otherwise they are only shown.
        line: converts a row for `stdout` into lines for people, in place of JSON.
        order: the sort key of rows for people, ascending. They are shown at the end. None shows them at once.

    Attributes:
        done: number of items whose rows are written.
        asked: number of these items that were not left out.
        committed: number of items whose rows are on the disk. A resumed run continues after these.
        notes: messages for the user about the start of the run.

    Raises:
        StateError: on entering: another run writes the file, or the file cannot be resumed.
    """

    def __init__(
        self,
        path: Path | None,
        request: Mapping[str, Any],
        problems: Problems,
        *,
        format: str = "jsonl",
        columns: Schema | Mapping[str, Kind] | None = None,
        native: NativeText | None = None,
        needs_all: bool = False,
        row_filter: RowFilter | None = None,
        resume: bool | None = False,
        stdout: TextIO | None = None,
        keeps: bool = True,
        line: Callable[[Row], str] | None = None,
        order: Order | None = None,
    ) -> None:
        self.path, self.notes, self._problems = path, list[str](), problems
        self.done = self.asked = self.committed = 0
        self._format, self._columns, self._native, self._row_filter = (
            format,
            columns or {},
            native,
            row_filter,
        )
        self._resume, self._keeps = resume, keeps
        encode: Callable[[Sequence[Row]], bytes] | None = json_lines if format == "jsonl" else None
        if format in ("csv", "tsv") and isinstance(columns, Schema):  # all of whose columns are known
            encode = table_lines(columns, format)
        elif format == "jsonl" and line is not None:
            encode = partial(_for_people, line)
        packed = path is not None and path.suffix.lower() in PACKED
        grows = format == "jsonl" and row_filter is None and not packed
        as_they_come = encode is not None if path is None else grows
        people = line is not None and path is None and stdout is not None and format == "jsonl" and keeps
        self._order = order if people else None
        self._at_once = as_they_come and not needs_all and self._order is None
        self._stdout = None if stdout is None else StreamSink(stdout, encode or json_lines)
        self._lines = path if path is None or self._at_once else partial_of(path)
        self._mark = None if path is None else Cursor(path, request)
        self._sink: LinesSink | None = None
        self._spool: IO[bytes] | None = None
        self._position = Position()
        self._quarantined = 0  # bytes of the quarantine file from earlier runs
        self._torn = False  # the file has rows of an unfinished run that is not resumed
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            if self.path is None:
                self._spool = opening.enter_context(tempfile.TemporaryFile()) if self._keeps else None
            else:
                opening.enter_context(output_lock(self.path))
                self._position = self._begun()
                assert self._lines is not None
                mark = self._position.output or None
                self._sink = LinesSink(self._lines, mark=mark)
                opening.callback(self._sink.close)
            self.done = self.committed = self._position.records
            self.asked = int(self._position.counts.get("asked", 0))
            if self.done:
                with self._problems.replaying(self._position.problems):
                    pass  # counting continues from the problems stored then
            self._open = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._mark is not None and not self.asked and not self._torn:
            self._mark.remove()  # nothing is done that could be resumed
        self._open.close()

    def _begun(self) -> Position:
        """The position of an unfinished run of this file, if it is resumed; otherwise a new position."""
        assert self._mark is not None
        assert self.path is not None
        unfinished = self._mark.load() if self._resume else self._mark.unfinished()[0]
        if unfinished is not None:
            self._quarantined = int(unfinished.counts["quarantined_before"])
            going_on = self._resume and unfinished.records
            self._problems.cut_quarantine(
                int(unfinished.problems["quarantined"]) if going_on else self._quarantined
            )
            if going_on:
                self.notes.append(f"continuing {self.path} after {unfinished.records:,} items")
                return unfinished
        if self._resume:
            self.notes.append(f"{self.path} has no unfinished run to resume: starting from the beginning")
        elif unfinished is not None and unfinished.records:
            way = " (--resume would continue it)" if self._resume is not None else ""
            self.notes.append(f"the unfinished {self.path} is written again from the beginning{way}")
        refuse_foreign(self.path)
        refuse_foreign(partial_of(self.path))
        # From here on, readers of the folder recognise this output. The file itself is not changed yet. It
        # may have uncommitted rows, so it must never be there without a mark.
        self._torn = unfinished is not None
        self._quarantined = self._problems.quarantined
        self._mark.save(self._position_after(0))
        partial_of(self.path).unlink(missing_ok=True)  # it may have been in another format
        return Position()

    def _position_after(self, done: int, mark: Mark | None = None) -> Position:
        """The mark of a run with `done` finished items."""
        counts = {"asked": self.asked, "quarantined_before": self._quarantined}
        return Position(records=done, output=mark or {}, counts=counts, problems=self._problems.snapshot())

    @property
    def streamed(self) -> bool:
        """Whether rows go to standard output."""
        return self.path is None and self._stdout is not None

    def write(self, items: Sequence[Sequence[Row] | None]) -> None:
        """Add the rows of some items.

        Args:
            items: the rows of each item; None for an item that was left out.

        Raises:
            StateError: the rows cannot be written. Rows committed earlier are kept.
        """
        rows_of_all = [row for rows in items if rows is not None for row in rows]
        self.done += len(items)
        self.asked += sum(rows is not None for rows in items)
        if not self.asked:
            return  # the file is not changed before there is something to write
        if self._sink is not None:
            self._sink.write_lines(json_lines(rows_of_all))
            return
        if self._spool is not None:
            self._spool.write(json_lines(rows_of_all))
        if self._stdout is not None and self._at_once:
            self._stdout.write([*filter(self._row_filter, rows_of_all)] if self._row_filter else rows_of_all)

    def commit(self) -> None:
        """Write all rows so far to the disk, so that a kill cannot lose them.

        Raises:
            StateError: the rows cannot be written. Rows committed earlier are kept.
        """
        if self._sink is None or not self.asked:
            return
        assert self._mark is not None
        self._mark.save(self._position_after(self.done, self._sink.commit()))
        self.committed = self.done

    def keep(self) -> None:
        """Show the rows since the last commit, if a run ends early. A resumed run continues from the commit.

        Raises:
            StateError: the rows cannot be written.
        """
        if self._sink is not None and self.asked:
            self._sink.flush()
        elif self._order is not None and self._stdout is not None:
            for row in self._ranked(self._order):
                self._stdout.write([row])

    def read(self) -> Iterator[Row]:
        """Read the rows so far, from the first, one line at a time."""
        if self._spool is not None:
            self._spool.seek(0)
            yield from map(json.loads, self._spool)
            self._spool.seek(0, os.SEEK_END)
        elif self._lines is not None and self._lines.exists():
            yield from _rows_of(self._lines)

    def finish(self, finished: Finished | None = None) -> None:
        """Complete the run: write the requested format from all rows, and remove the mark.

        Args:
            finished: converts the rows into the final rows, for a file that is written at the end.

        Raises:
            StateError: the file cannot be written. The rows are kept.
        """
        if self.path is None:
            if self._stdout is not None and not self._at_once and self._format == "jsonl":
                for row in self._final_rows(finished):
                    self._stdout.write([row])
                self._stdout.finish()
            elif self._stdout is not None and not self._at_once:
                with tempfile.TemporaryDirectory() as folder:
                    self._write_all(Path(folder) / "table", finished)
                    self._stdout.write_lines((Path(folder) / "table").read_bytes())
            elif self._stdout is not None:
                self._stdout.finish()
            return
        assert self._mark is not None
        assert self._sink is not None
        if not self._at_once:
            self._write_all(self.path, finished)
        elif not self.asked:
            self._sink.commit()  # an empty file, if there are no rows
        remember(self.path)
        self._mark.remove()  # before the partial file: a kill in between leaves a finished run
        if not self._at_once:
            self._sink.close()
            partial_of(self.path).unlink(missing_ok=True)

    def _final_rows(self, finished: Finished | None) -> Iterable[Row]:
        """The final rows, in the form and order in which they are written."""
        if self._order is not None and finished is None:
            return self._ranked(self._order)
        rows = self.read() if finished is None else finished(self.read())
        return rows if self._row_filter is None else filter(self._row_filter, rows)

    def _ranked(self, order: Order) -> Iterator[Row]:
        """The rows that pass the filter, sorted. Only their positions are kept in memory."""
        assert self._spool is not None
        first, second, places = array("d"), array("d"), array("q")
        place = self._spool.seek(0)
        for line in self._spool:
            row = json.loads(line)
            if self._row_filter is None or self._row_filter(row):
                key = order(row)
                first.append(key[0])
                second.append(key[1])
                places.append(place)
            place += len(line)
        for number in np.lexsort((np.array(second), np.array(first))).tolist():
            self._spool.seek(places[number])
            yield json.loads(self._spool.readline())
        self._spool.seek(0, os.SEEK_END)

    def _write_all(self, path: Path, finished: Finished | None) -> None:
        """Write all rows in the requested format."""
        try:
            if self._native is not None and self._format == "own":
                text = (line.encode() for line in self._native(self.read()))
                replace_file(path, packing(path, partial(write_lines, text), blocks=True))
                return
            with tempfile.TemporaryDirectory() as folder:
                rows = self._final_rows(finished)
                if self._format == "jsonl":
                    lines_of = partial(write_lines, (json_lines([row]) for row in rows))
                    replace_file(path, packing(path, lines_of, blocks=False))
                    return
                lines = self._lines
                if (
                    lines is None
                    or not lines.exists()
                    or finished is not None
                    or self._row_filter is not None
                ):
                    lines = Path(folder) / "rows"
                    with lines.open("wb") as file:
                        file.writelines(json_lines([row]) for row in rows)
                schema = self._columns
                if not isinstance(schema, Schema):
                    schema = Schema(columns=columns_of(_rows_of(lines), schema), closed=True)
                convert(lines, path, schema, format=self._format)
        except OSError as error:
            raise write_error(self.path, error) from None


def _for_people(line: Callable[[Row], str], rows: Sequence[Row]) -> bytes:
    return "".join(map(line, rows)).encode()


def columns_of(rows: Iterable[Row], declared: Mapping[str, Kind]) -> dict[str, Kind]:
    """Column name -> kind, for a table of rows, in the order of first occurrence.

    >>> columns_of([{"id": "a", "n": 1}, {"id": "b", "n": .5, "all": [1]}], {})
    {'id': 'text', 'n': 'number', 'all': 'json'}
    """
    kinds: dict[str, Kind | None] = {}
    for row in rows:
        for name, value in row.items():
            cell_kind = declared[name] if name in declared else _kind(value)
            earlier = kinds.get(name)
            if earlier is None or cell_kind is None or earlier == cell_kind:
                kinds[name] = earlier or cell_kind
            else:
                kinds[name] = "number" if {earlier, cell_kind} == {"integer", "number"} else "json"
    return {name: kind or "text" for name, kind in kinds.items()}


def write_lines(lines: Iterable[bytes], file: IO[bytes]) -> None:
    for line in lines:
        file.write(line)


def _rows_of(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        yield from map(json.loads, file)


def _kind(value: Any) -> Kind | None:
    if value is None:
        return None
    kinds: dict[type, Kind] = {bool: "flag", int: "integer", float: "number", str: "text"}
    return kinds.get(type(value), "json")
