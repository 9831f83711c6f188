"""Read FASTA, A3M and A2M in large blocks, so that reading costs little compared with tokenizing.

The same records from Bio.SeqIO take 1.6 times as long, or 1.2 times for genomes (`benchmarks/ingest.py`). In
addition, records here have their line, and a contig of any length need not fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal
from zlib import crc32

from seqmlm.data.files import MAX_BYTES, source_of, too_long
from seqmlm.data.lines import text_blocks
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.errors import DataError

Gaps = Literal["drop", "keep"]

_UPPER = bytes(range(256)).upper()
_KEEP = bytes(range(256))
_SPACE = b"\r\n \t"
_LOWER = b"abcdefghijklmnopqrstuvwxyz"
# rows that HH-suite adds
_STRUCTURE_ROWS = ("ss_pred", "ss_conf", "ss_dssp", "sa_dssp", "aa_pred", "aa_conf")
_REMEMBERED = 1 << 16  # number of ids that are compared to find repeats


STOPS = "a sequence with '.' and no '-': '.' is left out as a gap, but it may be a stop"


def read_fasta(
    path: str | Path,
    problems: Problems,
    *,
    gaps: Gaps = "drop",
    keep_case: bool = False,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Record]:
    """Read FASTA (also .gz, .zst, "-"). White space and a final `*` are removed; letters become upper case.

    Args:
        path: the file.
        problems: receives records without residues, text before the first `>`, and damaged files. Notes
            repeated ids.
        gaps: treatment of `-` and `.` in alignments: drop or keep.
        keep_case: keep lower case (soft-masked repeats).
        max_bytes: largest size of a record.
    """
    delete = _SPACE + (b"-." if gaps == "drop" else b"")
    yield from _entries(
        path, problems, _KEEP if keep_case else _UPPER, delete, max_bytes, dots=gaps == "drop"
    )


def read_a3m(
    path: str | Path, problems: Problems, *, gaps: Gaps = "drop", max_bytes: int = MAX_BYTES
) -> Iterator[Record]:
    """Read A3M or A2M.

    Lower case marks insertions relative to the query (the first record), or removed columns.

    Args:
        path: the file.
        problems: as in `read_fasta`. Structure rows of HH-suite (`>ss_pred` ...) are left out and noted.
        gaps: "drop" returns sequences with all their residues. "keep" returns the rows of the alignment with
            equal lengths and without insertions. Then `meta["numbers"]` has the number, from 1, of each
            remaining residue in its sequence, if insertions were removed.
        max_bytes: largest size of a record.
    """
    keep = gaps == "keep"
    delete = _SPACE + (b"." if keep else b"-.")
    first = True
    for record in _entries(path, problems, _KEEP if keep else _UPPER, delete, max_bytes):
        if record.id in _STRUCTURE_ROWS:
            problems.note("structure row of an alignment left out")
            continue
        record = _in_columns(record) if keep else record
        yield replace(record, meta={**record.meta, "query": True}) if first else record
        first = False


def _in_columns(record: Record) -> Record:
    """A row without its lower-case letters."""
    if record.raw.isupper():
        return record
    letters = record.raw.replace("-", "")
    numbers = tuple(number for number, letter in enumerate(letters, 1) if not letter.islower())
    raw = record.raw.encode().translate(None, _LOWER).decode()
    return replace(record, raw=raw, meta={**record.meta, "numbers": numbers})


def _entries(
    path: str | Path, problems: Problems, table: bytes, delete: bytes, max_bytes: int, *, dots: bool = False
) -> Iterator[Record]:
    """The records, with translated letters.

    With `dots`, a `.` in a sequence without `-` is noted, because it may be a stop.
    """
    source, name = source_of(path), Path(path).name
    remembered = [""] * _REMEMBERED  # constant memory; a repeat far behind may not be noticed
    for line, part, first, last in parts(source, problems, max_bytes):
        if not (first and last) or len(part) > max_bytes:
            if first:
                fault = too_long(source, line, max_bytes, "record")
                problems.bad(fault, part[:1000].decode("utf-8", "backslashreplace"))
            continue
        header, _, body = part.partition(b"\n")
        raw = body.translate(table, delete).removesuffix(b"*")
        if dots and b"." in body and b"-" not in body and body.isupper():
            problems.note(STOPS, source=source, line=line)
        if not raw or not raw.isascii() or b"\0" in part:
            _unusable(raw, part, source, line, problems)
            continue
        label, _, description = header.decode("utf-8", "backslashreplace").strip().partition(" ")
        slot = crc32(label.encode()) % _REMEMBERED
        if remembered[slot] == label and label:
            problems.note("an id that occurred earlier in the file: both records are kept and share it")
        remembered[slot] = label
        yield Record(
            id=label or f"{name}:{line}",
            raw=raw.decode("ascii"),
            source=source,
            line=line,
            meta={"description": description} if description else {},
        )


def _unusable(raw: bytes, part: bytes, source: str, line: int, problems: Problems) -> None:
    body = part.partition(b"\n")[2]
    if b"\0" in part:
        reason, remedy = "a FASTA record with NUL bytes", "check that this is FASTA, and fetch it again"
    elif raw:
        reason, remedy = "a sequence with bytes that are not ASCII", "check that this is FASTA"
    elif body.strip():
        problems.note("a row of gaps only, left out")
        return
    else:
        reason, remedy = "a FASTA record without a sequence", "remove it, or give it one"
    error = DataError(reason, source=source, line=line, remedy=remedy)
    problems.bad(error, body[:1000].decode("utf-8", "backslashreplace"))


def parts(source: str, problems: Problems, spill: int) -> Iterator[tuple[int, bytes, bool, bool]]:
    """Yield (line of the header, bytes, whether they are the first, whether the last) of every record.

    The bytes do not include the `>`. A record that is cut off by a fault has no last part.

    Args:
        source: the file.
        problems: receives text before the first `>`.
        spill: records with more bytes are returned in several parts.
    """
    under_way = _UnderWay(source, problems, spill)
    tail = b"\n"  # before the file, so that its first record begins like the others
    for block in text_blocks(source, problems, lambda: under_way.line):
        if block is None:
            return
        block = tail + block
        tail = b"\n" if block.endswith(b"\n") else b""  # kept for the next block, which may begin with ">"
        block = block.removesuffix(b"\n")
        first, last = block.find(b"\n>"), block.rfind(b"\n>")
        if first < 0:
            yield from under_way.extend(block)
            continue
        yield from under_way.end(block[:first])
        if first < last:
            for part in block[first + 2 : last].split(b"\n>"):  # the usual case, without a function call
                yield under_way.line, part, True, True
                under_way.line += part.count(b"\n") + 1
        yield from under_way.extend(block[last + 2 :])
    yield from under_way.end(b"")


class _UnderWay:
    """The record whose end has not been read yet, and its first line."""

    def __init__(self, source: str, problems: Problems, spill: int) -> None:
        self.line = 1
        self._source, self._problems, self._spill = source, problems, spill
        self._first = True  # no part of it has been returned
        self._held: list[bytes] = []
        # bytes in the buffer or dropped; line ends among bytes that are not in the buffer
        self._size = self._lost = 0
        self._begun = False  # the first ">" has been read

    def extend(self, block: bytes) -> Iterator[tuple[int, bytes, bool, bool]]:
        """Add bytes without an end. If the buffer is large, yield its content."""
        self._held.append(block)
        self._size += len(block)
        if self._size > self._spill:
            part = b"".join(self._held)
            if not self._begun:  # only its first bytes are kept, to identify it
                self._held = [part[:1000]]
                self._lost += part.count(b"\n", 1000)
            elif not self._first or b"\n" in part or self._size > MAX_BYTES:  # the header is complete
                yield self.line, part, self._first, False
                self._held, self._size, self._first = [], 0, False
                self._lost += part.count(b"\n")

    def end(self, remainder: bytes) -> Iterator[tuple[int, bytes, bool, bool]]:
        """Add the last bytes, and yield the record. Text before the first `>` is refused instead."""
        part = b"".join([*self._held, remainder]) if self._held else remainder
        lines, line, first = part.count(b"\n") + self._lost, self.line, self._first
        self._held, self._size, self._lost, self._first = [], 0, 0, True
        self.line += lines + self._begun
        if self._begun:
            yield line, part, first, True
        elif part.strip():
            self._refuse_preamble(part)  # it follows the added line end
        self._begun = True

    def _refuse_preamble(self, part: bytes) -> None:
        if all(line.lstrip()[:1] in (b"#", b";", b"") for line in part.split(b"\n")):
            self._problems.note("a comment before the first '>'", source=self._source)
            return
        blank = len(part) - len(part.lstrip())
        error = DataError(
            "text before the first '>'",
            source=self._source,
            line=part[:blank].count(b"\n"),
            remedy="it looks like a table: set its format, csv or tsv, and its column"
            if _like_a_table(part[blank:])
            else "give it a header, or name its actual format",
        )
        self._problems.bad(error, part[blank : blank + 1000].decode("utf-8", "backslashreplace"))


def _like_a_table(text: bytes) -> bool:
    """Whether the first lines (at least two) have equally many commas or tabs."""
    first = [line for line in text.split(b"\n", 5)[:5] if line.strip()]
    counts_by_mark = ({line.count(mark) for line in first} for mark in (b",", b"\t"))
    return len(first) > 1 and any(len(counts) == 1 and counts != {0} for counts in counts_by_mark)
