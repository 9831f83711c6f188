"""Write scores along contigs for genome browsers (UCSC, IGV): bedGraph, bigWig, or BED with gene names."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

from seqmlm.anomaly.levels import TRACKS
from seqmlm.data.compressed import PACKED, ending, packing
from seqmlm.engine.durable import move_into_place, replace_file
from seqmlm.errors import StateError, UsageError, printable

BIGWIG = (".bw", ".bigwig")
BED = (".bed",)
_STRONGEST = 1000  # highest score of a BED line; browsers draw it darkest
_TOGETHER = 4096  # entries passed to pyBigWig at a time


class Segment(NamedTuple):
    """The bases from start to end (0-based, half open) of a contig, with a value."""

    start: int
    end: int
    value: float


class _Group(NamedTuple):
    """The position of one record's segments: in the genome, and in the draft file in bytes."""

    contig: str
    start: int
    offset: int
    size: int
    end: int


class GenomeTrack:
    """Collects rows with a position in a contig, and writes them to a track file when it is closed.

    In bedGraph and bigWig files, positions are sorted and do not overlap. If rows of one record overlap, as
    windows do, a base has their mean. If records overlap (for example, if a BED file lists a window twice),
    the first record in genome order counts.

    In BED files, each row is one line, and lines can overlap. The name of a line is the genes of the row. The
    score of a line is proportional to the score of the row: 1,000 for the highest row, and at least 0.

    Memory holds the rows of one record, and a position in the draft file for each record.

    Args:
        path: the file: .bedgraph, .bg, .bed, .bw or .bigwig. The last two need pyBigWig. If a text file also
            ends in .gz or .bgz, it is compressed with bgzip, and its first line is a comment. The program
            tabix can then index it.
        name: the name of the track in the browser.

    Attributes:
        repeated: number of bases that were dropped because records overlap.

    Raises:
        UsageError: the path has another ending, or pyBigWig is not installed.
        StateError: the file cannot be written.
    """

    def __init__(self, path: Path, *, name: str = "seqmlm") -> None:
        if ending(path) not in TRACKS:
            endings = ", ".join(TRACKS)
            raise UsageError(f"the file of a track must end in {endings}; got {path.name or str(path)!r}")
        self._indexed = ending(path).endswith(PACKED)
        suffix = (Path(path.stem) if self._indexed else path).suffix.lower()
        self._bed, self._highest = suffix in BED, 0.0
        self._bigwig = _bigwig_library() if suffix in BIGWIG else None
        self._path, self._name = path, name
        self._rows: list[tuple[int, int, float]] = []
        self._names: list[str] = []
        self._record: Sequence[Any] = ()
        self._contig = ""
        self._groups: list[_Group] = []
        self._size = 0
        self.repeated = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row with its position in a contig and, optionally, its `genes`.

        Rows without a score are left out. All rows of a record must be added one after another.

        Raises:
            UsageError: the row has no position in a contig.
        """
        if "contig" not in row:
            raise UsageError(
                "a track shows scores along a genome, but these rows have no position in a genome"
            )
        if row["score"] is None:
            return
        contig, start, end = row["contig"], row["contig_start"], row["contig_end"]
        record = (row["source"], row["line"], row["id"].rpartition("#")[0] or row["id"], contig)
        if record != self._record:
            self._flush()
            self._record, self._contig = record, contig
        self._rows.append((start, end, row["score"]))
        self._names.append(printable(",".join(row.get("genes", ()))) or ".")
        self._highest = max(self._highest, row["score"])

    def close(self) -> None:
        """Write the file completely, or not at all.

        Raises:
            StateError: the file cannot be written.
        """
        try:
            with self._report_failure():
                self._flush()
                self._file.flush()
                if self._bigwig is None:
                    write = self._write_bed if self._bed else self._write_bedgraph
                    replace_file(self._path, packing(self._path, write, blocks=True))
                else:
                    self._write_bigwig(self._bigwig)
        finally:
            self._discard()

    def __enter__(self) -> Self:
        with self._report_failure():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=self._path.parent)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._discard()

    def _flush(self) -> None:
        """Write the segments of the finished record to the draft file."""
        if not self._rows:
            return
        if self._bed:
            named = sorted(zip(self._rows, self._names, strict=True))
            drafted = [f"{start}\t{end}\t{value!r}\t{name}\n" for (start, end, value), name in named]
        else:
            drafted = [
                f"{segment.start}\t{segment.end}\t{segment.value!r}\n"
                for segment in merge_overlaps(self._rows)
            ]
        lines, first = "".join(drafted).encode(), min(start for start, _, _ in self._rows)
        last = max(end for _, end, _ in self._rows)
        with self._report_failure():
            self._file.write(lines)
        self._groups.append(_Group(printable(self._contig), first, self._size, len(lines), last))
        self._size += len(lines)
        self._rows, self._names = [], []

    def _draft_lines(self) -> Iterator[tuple[str, list[str]]]:
        """The contig and fields of each line of the draft file. Records are sorted by contig and position."""
        for group in sorted(self._groups):
            yield from self._lines(group)

    def _lines(self, group: _Group) -> Iterator[tuple[str, list[str]]]:
        """The contig and fields of each line of one record in the draft file."""
        self._file.seek(group.offset)
        for text in self._file.read(group.size).decode().split("\n")[:-1]:
            yield group.contig, text.split("\t")

    def _sorted_lines(self) -> Iterator[tuple[str, list[str]]]:
        """The lines of `_draft_lines` sorted by contig and position, even if records overlap.

        Memory holds the lines of overlapping records.
        """
        overlapping: list[tuple[str, list[str]]] = []
        reach: tuple[str, int] = ("", 0)
        for group in sorted(self._groups):
            if overlapping and (group.contig, group.start) >= reach:
                yield from sorted(overlapping, key=_place)
                overlapping, reach = [], ("", 0)
            overlapping += self._lines(group)
            reach = max(reach, (group.contig, group.end))
        yield from sorted(overlapping, key=_place)

    def _contigs(self) -> Iterator[tuple[str, Segment]]:
        """All segments sorted by contig and position, with each base at most once."""
        self.repeated = 0
        contig, done = "", 0
        for name, (first, last, value) in self._draft_lines():
            if name != contig:
                contig, done = name, 0
            start, end = max(int(first), done), int(last)
            self.repeated += min(start, end) - int(first)
            if start < end:
                yield contig, Segment(start, end, float(value))
                done = end

    def _heading(self, settings: str) -> bytes:
        """The track line, which is the first line of the file."""
        label = printable(self._name).replace('"', "'")
        comment = "#" * self._indexed
        return f'{comment}track {settings} name="{label}" description="higher is more unusual"\n'.encode()

    def _write_bed(self, file: IO[bytes]) -> None:
        file.write(self._heading("useScore=1"))
        for contig, (start, end, value, name) in self._sorted_lines():
            share = max(float(value), 0.0) / self._highest if self._highest else 0.0
            file.write(f"{contig}\t{start}\t{end}\t{name}\t{round(_STRONGEST * share)}\n".encode())

    def _write_bedgraph(self, file: IO[bytes]) -> None:
        file.write(self._heading("type=bedGraph"))
        for contig, segment in self._contigs():
            file.write(f"{contig}\t{segment.start}\t{segment.end}\t{segment.value:.5g}\n".encode())

    def _write_bigwig(self, library: Any) -> None:
        sizes: dict[str, int] = {}
        for contig, segment in self._contigs():
            sizes[contig] = segment.end
        with tempfile.TemporaryDirectory(prefix=f".{self._path.name}.", dir=self._path.parent) as folder:
            target = Path(folder) / "track.bw"
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            self._fill_bigwig(library, target, sizes)
            move_into_place(target, self._path)

    def _fill_bigwig(self, library: Any, target: Path, sizes: dict[str, int]) -> None:
        file = library.open(str(target), "w")
        if sizes:
            file.addHeader(list(sizes.items()))
            for contig, segments in groupby(self._contigs(), key=itemgetter(0)):
                while chunk := [segment for _, segment in islice(segments, _TOGETHER)]:
                    starts, ends, values = (list(column) for column in zip(*chunk, strict=True))
                    file.addEntries([contig] * len(chunk), starts, ends=ends, values=values)
        file.close()

    def _discard(self) -> None:
        """Close the draft file, which deletes it."""
        with suppress(OSError):
            self._file.close()

    @contextmanager
    def _report_failure(self) -> Iterator[None]:
        """Turn an OSError into a StateError that names the file of the track."""
        try:
            yield
        except OSError as error:
            reason = f"cannot write the track {self._path}: {error.strerror}"
            raise StateError(f"{reason}; free disk space or choose another file") from None


def _place(line: tuple[str, list[str]]) -> tuple[str, int, int]:
    """The sort key of a line: contig, start and end."""
    contig, fields = line
    return contig, int(fields[0]), int(fields[1])


def merge_overlaps(rows: Sequence[tuple[int, int, float]]) -> list[Segment]:
    """Turn overlapping rows into segments that do not overlap.

    Each segment is between two neighbouring starts or ends of rows. Its value is the mean of the rows that
    cover it.

    >>> [tuple(one) for one in merge_overlaps([(0, 4, 1.0), (2, 6, 3.0)])]
    [(0, 2, 1.0), (2, 4, 2.0), (4, 6, 3.0)]
    """
    events = sorted(event for start, end, x in rows for event in ((start, 1, x), (end, -1, x)))
    segments: list[Segment] = []
    open_rows: list[float] = []
    previous = 0
    for at, kind, value in events:
        if at > previous and open_rows:
            segments.append(Segment(previous, at, sum(open_rows) / len(open_rows)))
        previous = at
        if kind > 0:
            open_rows.append(value)
        else:
            open_rows.remove(value)
    return segments


def _bigwig_library() -> Any:
    """Import the module pyBigWig. It is a UsageError if the module is not installed."""
    try:
        import pyBigWig
    except ImportError:
        raise UsageError(
            "a bigWig file needs pyBigWig: pip install 'seqmlm[bigwig]', or use a .bedgraph file"
        ) from None
    return pyBigWig
