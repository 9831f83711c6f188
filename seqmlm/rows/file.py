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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TextIO

from seqmlm.data.problems import Problems
from seqmlm.engine.durable import replace_file
from seqmlm.streams.cursor import Cursor, Position
from seqmlm.streams.outputs import output_lock
from seqmlm.streams.sinks import (
    Kind,
    LinesSink,
    Schema,
    StreamSink,
    convert,
    json_lines,
    partial_of,
    unwritable,
)

Row = Mapping[str, Any]
"""What is said of an item or a part of it: `id, source, line`, then the fields of the task."""

Own = Callable[[Iterator[Row]], Iterable[str]]
"""Makes the text of a file in a field's own format of rows."""

Finished = Callable[[Iterator[Row]], Iterable[Row]]
"""Makes the rows that are written of those that were committed, where each depends on all."""


class Rows:
    """The rows of one run: a file that one run at a time writes, or a stream.

    Args:
        path: the file; None for `stdout`.
        request: what decides the rows; values JSON can hold. Only the same request goes on with a file.
        problems: of the run, whose counts belong to the mark.
        format: "jsonl", "csv", "tsv", "parquet", or "own": made by `own`.
        columns: kind of each column of a table whose values alone do not say it.
        own: makes the text of a file in the field's own format.
        whole: rows are written when all are there, as `finish` makes them.
        resume: go on with an unfinished file.
        private: only the owner may read what is written.
        stdout: where rows go without a file; None keeps them for `read` alone.

    Attributes:
        done: items whose rows are committed; asked: of these, all but those that were left out.
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
        columns: Mapping[str, Kind] | None = None,
        own: Own | None = None,
        whole: bool = False,
        resume: bool = False,
        private: bool = False,
        stdout: TextIO | None = None,
    ) -> None:
        self.path, self.notes, self._problems = path, list[str](), problems
        self.done = self.asked = 0
        self._format, self._columns, self._own = format, columns or {}, own
        self._resume, self._private, self._stdout = resume, private, stdout
        self._at_once = format == "jsonl" and not whole  # rows are written as they come
        self._lines = path if path is None or self._at_once else partial_of(path)
        self._mark = None if path is None else Cursor(path, request, private=private)
        self._sink: LinesSink | None = None
        self._spool: IO[bytes] | None = None
        self._position = Position()
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            if self.path is None:
                self._spool = opening.enter_context(tempfile.TemporaryFile())
            else:
                opening.enter_context(output_lock(self.path))
                self._position = self._begun()
                assert self._lines is not None
                mark = self._position.output or None
                self._sink = LinesSink(self._lines, private=self._private, mark=mark)
                opening.callback(self._sink.close)
            self.done = self._position.records
            self.asked = int(self._position.counts.get("asked", 0))
            self._open = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._mark is not None and not self.asked:
            self._mark.remove()  # nothing is done that could be gone on with
        self._open.close()

    def _begun(self) -> Position:
        """Where an unfinished run of this file has come, if it is resumed; else a new beginning."""
        assert self._mark is not None
        assert self.path is not None
        if self._resume:
            found = self._mark.load()
            if found is not None and found.records:
                self.notes.append(f"continuing {self.path} after {found.records:,} items")
                self._problems.cut_quarantine(int(found.problems["quarantined"]))
                return found
            self.notes.append(f"nothing is unfinished of {self.path}: beginning")
        elif (left := self._mark.unfinished()) is not None and left.records:
            self.notes.append(f"the unfinished {self.path} is started over (--resume would continue it)")
        self._mark.remove()
        partial_of(self.path).unlink(missing_ok=True)  # it may have been in another format
        # From here on whoever reads the folder knows an output of ours; the file itself is not touched yet.
        self._mark.save(Position(problems=self._problems.snapshot()))
        return Position()

    @property
    def streamed(self) -> bool:
        """Whether rows go to standard output."""
        return self.path is None and self._stdout is not None

    @contextmanager
    def skipping(self) -> Iterator[int]:
        """While so many items as are done are read again: their problems are not met twice."""
        if not self.done:
            yield 0
            return
        with self._problems.replaying(self._position.problems):
            yield self.done

    def write(self, items: Sequence[Sequence[Row] | None]) -> None:
        """Add the rows of some items and commit them: a kill from here on loses nothing of them.

        Args:
            items: the rows of each; None of one that was left out.

        Raises:
            StateError: they cannot be written; those committed before are kept.
        """
        data = json_lines([row for rows in items if rows is not None for row in rows])
        self.done += len(items)
        self.asked += sum(rows is not None for rows in items)
        if not self.asked:
            return  # what stands in the file is not touched before there is something to write
        if self._spool is not None:
            self._spool.write(data)
            if self._stdout is not None and self._at_once:
                StreamSink(self._stdout, json_lines).put(data)
            return
        assert self._sink is not None
        assert self._mark is not None
        self._sink.put(data)
        mark = self._sink.commit()
        counts, problems = {"asked": self.asked}, self._problems.snapshot()
        self._mark.save(Position(records=self.done, output=mark, counts=counts, problems=problems))

    def read(self) -> Iterator[Row]:
        """The rows so far, from the first one, a line at a time."""
        if self._spool is not None:
            self._spool.seek(0)
            yield from map(json.loads, self._spool)
            self._spool.seek(0, os.SEEK_END)
        elif self._lines is not None and self._lines.exists():
            yield from _read(self._lines)

    def finish(self, finished: Finished | None = None) -> None:
        """All rows are there: make what was asked for of them, and forget how far the run had come.

        Args:
            finished: makes the rows that are written, for a file that is written whole.

        Raises:
            StateError: it cannot be written; the rows are kept.
        """
        if self.path is None:
            if self._stdout is not None and not self._at_once:
                with tempfile.TemporaryDirectory() as folder:
                    self._made(Path(folder) / "table", finished)
                    StreamSink(self._stdout, json_lines).put((Path(folder) / "table").read_bytes())
            return
        assert self._mark is not None
        assert self._sink is not None
        if not self._at_once:
            self._made(self.path, finished)
        self._mark.remove()  # before what it speaks of: a kill in between leaves a finished run
        if not self._at_once:
            self._sink.close()
            partial_of(self.path).unlink(missing_ok=True)

    def _made(self, path: Path, finished: Finished | None) -> None:
        """Write the rows in the format that was asked for."""
        mode = 0o600 if self._private else 0o666
        try:
            if self._own is not None and self._format == "own":
                text = (one.encode() for one in self._own(self.read()))
                replace_file(path, partial(_packed if path.suffix in _PACKED else _put, text), mode=mode)
                return
            with tempfile.TemporaryDirectory() as folder:
                lines = self._lines
                if lines is None or finished is not None:
                    lines = Path(folder) / "rows"
                    with lines.open("wb") as file:
                        rows = self.read() if finished is None else finished(self.read())
                        file.writelines(json_lines([row]) for row in rows)
                if self._format == "jsonl":
                    made = lines.read_bytes()
                    replace_file(path, lambda file: file.write(made), mode=mode)
                    return
                schema = Schema(columns=columns_of(_read(lines), self._columns), closed=True)
                convert(lines, path, schema, format=self._format, private=self._private)
        except OSError as error:
            raise unwritable(self.path, error) from None


def columns_of(rows: Iterable[Row], known: Mapping[str, Kind]) -> dict[str, Kind]:
    """Name to kind of each column of a table of rows, in the order in which they are met.

    >>> columns_of([{"id": "a", "n": 1}, {"id": "b", "n": .5, "all": [1]}], {})
    {'id': 'text', 'n': 'number', 'all': 'json'}
    """
    found: dict[str, Kind | None] = {}
    for row in rows:
        for name, value in row.items():
            own = known[name] if name in known else _kind(value)
            before = found.get(name)
            if before is None or own is None or before == own:
                found[name] = before or own
            else:
                found[name] = "number" if {before, own} == {"integer", "number"} else "json"
    return {name: kind or "text" for name, kind in found.items()}


_PACKED = (".gz", ".bgz")


def _put(lines: Iterable[bytes], file: IO[bytes]) -> None:
    file.writelines(lines)


def _packed(lines: Iterable[bytes], file: IO[bytes]) -> None:
    """In the blocks of bgzip, which programs that read genomes find places in."""
    from Bio.bgzf import BgzfWriter

    with BgzfWriter(fileobj=file) as packed:
        for line in lines:
            packed.write(line)


def _read(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        yield from map(json.loads, file)


def _kind(value: Any) -> Kind | None:
    if value is None:
        return None
    kinds: dict[type, Kind] = {bool: "flag", int: "integer", float: "number", str: "text"}
    return kinds.get(type(value), "json")
