"""A file of rows: JSON lines that only grow. What is in it is done; all else is made of the finished file.

Beside the file lies a mark until the run is complete: the request, how many items are done, and how long
the file was then. A run that is resumed cuts the file back to the mark, skips so many items and goes on: the
same bytes as a run that nobody interrupted. Tables (CSV, TSV, Parquet) and files in a field's own format are
made of the finished rows. The price is that a table's rows are on the disk twice for a moment.
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
"""A row of results, of an item or a part of it: `id, source, line`, then the fields of the task."""

NativeText = Callable[[Iterator[Row]], Iterable[str]]
"""Makes the text of a file in a field's own format of rows."""

Finished = Callable[[Iterator[Row]], Iterable[Row]]
"""Makes the rows that are written of those that were committed, where each depends on all."""

RowFilter = Callable[[Row], bool]

Order = Callable[[Row], tuple[float, float]]
"""What rows are sorted by, ascending; the second number parts those that are equal by the first."""


class Rows:
    """The rows of one run: a file that one run at a time writes, or a stream.

    Args:
        path: the file; None for `stdout`.
        request: what decides the rows; values JSON can hold. Only the same request goes on with a file.
        problems: of the run, whose counts belong to the mark.
        format: "jsonl", "csv", "tsv", "parquet", or "own": made by `native`.
        columns: of a table: all of them, or the kind of each whose values alone do not say it.
        native: makes the text of a file in the field's own format.
        needs_all: rows are written when all are there, as `finish` makes them.
        row_filter: whether a row is written, or only counted; None for all.
        resume: go on with an unfinished file; None for rows of which no run goes on.
        stdout: where rows go without a file; None keeps them for `read` alone.
        keeps: rows without a file are kept for `read`; else they are only shown.
        line: makes lines for people of each row that goes to `stdout`, in place of JSON.
        order: what rows for people are sorted by, ascending; they are shown when all are there. None: as they
            come.

    Attributes:
        done: items whose rows are written; asked: of these, all but those that were left out.
        committed: items whose rows are on the disk, from which a resumed run goes on.
        notes: what a person should know of the beginning.

    Raises:
        StateError: on entering: another run writes the file, or it cannot be gone on with.
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
        self._quarantined = 0  # bytes of the quarantine file that are of earlier runs
        self._torn = False  # what stands in the file is of an unfinished run, and is not gone on with
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
                    pass  # counting goes on from what was met then
            self._open = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._mark is not None and not self.asked and not self._torn:
            self._mark.remove()  # nothing is done that could be gone on with
        self._open.close()

    def _begun(self) -> Position:
        """Where an unfinished run of this file has come, if it is resumed; else a new beginning."""
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
            self.notes.append(f"nothing is unfinished of {self.path}: beginning")
        elif unfinished is not None and unfinished.records:
            way = " (--resume would continue it)" if self._resume is not None else ""
            self.notes.append(f"the unfinished {self.path} is started over{way}")
        refuse_foreign(self.path)
        refuse_foreign(partial_of(self.path))
        # From here on whoever reads the folder knows an output of ours; the file itself is not touched yet.
        # Rows that nobody committed may stand in it: at no moment must it lie there without a mark.
        self._torn = unfinished is not None
        self._quarantined = self._problems.quarantined
        self._mark.save(self._position_after(0))
        partial_of(self.path).unlink(missing_ok=True)  # it may have been in another format
        return Position()

    def _position_after(self, done: int, mark: Mark | None = None) -> Position:
        """The mark of a run of which so many items are done."""
        counts = {"asked": self.asked, "quarantined_before": self._quarantined}
        return Position(records=done, output=mark or {}, counts=counts, problems=self._problems.snapshot())

    @property
    def streamed(self) -> bool:
        """Whether rows go to standard output."""
        return self.path is None and self._stdout is not None

    def write(self, items: Sequence[Sequence[Row] | None]) -> None:
        """Add the rows of some items; None of one that was left out.

        Raises:
            StateError: they cannot be written; those committed before are kept.
        """
        rows_of_all = [row for rows in items if rows is not None for row in rows]
        self.done += len(items)
        self.asked += sum(rows is not None for rows in items)
        if not self.asked:
            return  # what stands in the file is not touched before there is something to write
        if self._sink is not None:
            self._sink.write_lines(json_lines(rows_of_all))
            return
        if self._spool is not None:
            self._spool.write(json_lines(rows_of_all))
        if self._stdout is not None and self._at_once:
            self._stdout.write([*filter(self._row_filter, rows_of_all)] if self._row_filter else rows_of_all)

    def commit(self) -> None:
        """Put what was written on the disk: a kill from here on loses nothing of it.

        Raises:
            StateError: it cannot be written; those committed before are kept.
        """
        if self._sink is None or not self.asked:
            return
        assert self._mark is not None
        self._mark.save(self._position_after(self.done, self._sink.commit()))
        self.committed = self.done

    def keep(self) -> None:
        """Let the rows since the last commit be seen, where a run ends early; it goes on from the commit.

        Raises:
            StateError: they cannot be written.
        """
        if self._sink is not None and self.asked:
            self._sink.flush()
        elif self._order is not None and self._stdout is not None:
            for row in self._ranked(self._order):
                self._stdout.write([row])

    def read(self) -> Iterator[Row]:
        """The rows so far, from the first one, a line at a time."""
        if self._spool is not None:
            self._spool.seek(0)
            yield from map(json.loads, self._spool)
            self._spool.seek(0, os.SEEK_END)
        elif self._lines is not None and self._lines.exists():
            yield from _rows_of(self._lines)

    def finish(self, finished: Finished | None = None) -> None:
        """All rows are there: make what was asked for of them, and forget how far the run had come.

        Args:
            finished: makes the rows that are written, for a file that is written whole.

        Raises:
            StateError: it cannot be written; the rows are kept.
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
            self._sink.commit()  # an empty file, where there was nothing to say
        remember(self.path)
        self._mark.remove()  # before what it speaks of: a kill in between leaves a finished run
        if not self._at_once:
            self._sink.close()
            partial_of(self.path).unlink(missing_ok=True)

    def _final_rows(self, finished: Finished | None) -> Iterable[Row]:
        """The rows that are written, as they are in the end."""
        if self._order is not None and finished is None:
            return self._ranked(self._order)
        rows = self.read() if finished is None else finished(self.read())
        return rows if self._row_filter is None else filter(self._row_filter, rows)

    def _ranked(self, order: Order) -> Iterator[Row]:
        """The rows that are wanted, sorted; only the places of rows are held in memory."""
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
        """Write the rows in the format that was asked for."""
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
    """Name to kind of each column of a table of rows, in the order in which they are met.

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
