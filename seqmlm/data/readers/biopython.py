"""Formats that Biopython reads, an entry at a time; Stockholm, which proteins and nucleotides share.

A file is cut into its entries here, and Biopython is given one at a time: a bad entry is named by the line it
begins on and takes no other with it, and memory holds one entry (of an alignment, all its rows). The formats
that carry most of the data (FASTA, FASTQ) have readers of our own, which are faster; each says at
its head by how much.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from seqmlm.data.files import MAX_BYTES, source_of, too_long
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.data.readers.fasta import Gaps
from seqmlm.data.record import Record
from seqmlm.errors import DataError

_GAPS = str.maketrans("", "", "-.~")
_NAMED = re.compile(r"^#=GF\s+(?:AC|ID)\s+(\S+)", re.MULTILINE)
_AT_LINE = re.compile(r"\bline (\d+)")

Parse = Callable[[StringIO], Iterator[Any]]


class Entry(NamedTuple):
    """The line an entry of a file begins on, and its text."""

    line: int
    text: str


def read_stockholm(
    path: str | Path, problems: Problems, *, gaps: Gaps = "drop", max_bytes: int = MAX_BYTES
) -> Iterator[Record]:
    """Read Stockholm alignments, as Pfam and Rfam have them (also .gz, .zst, "-"), a record a row.

    `document` is the alignment's accession, or else its name. Letters become upper case.

    Args:
        path: the file.
        problems: receives alignments that cannot be read or have no end; notes rows of gaps only.
        gaps: "drop" gives sequences, "keep" gives the rows of the alignment, all of one length, every gap
            as "-".
        max_bytes: largest alignment.
    """
    for entry in entries(source_of(path), problems, max_bytes, "alignment"):
        name = _NAMED.search(entry.text)
        yield from aligned(entry, "stockholm", source_of(path), problems, gaps, name[1] if name else None)


def entries(source: str, problems: Problems, max_bytes: int, kind: str) -> Iterator[Entry]:
    """The entries of a file that end with `//`; one without an end, or too long, goes to `problems`.

    An entry of which a line was refused goes with that line.
    """
    lines_held: list[str] = []
    begins = size = 0
    due, unbroken = 1, True
    for number, text in lines(source, problems, max_bytes=max_bytes):
        unbroken = unbroken and number == due
        due = number + 1
        if not lines_held:
            if not text.strip():
                continue
            begins, size = number, 0
        size += len(text) + 1
        lines_held = [*lines_held[:1]] if size > max_bytes else lines_held
        lines_held.append(text)
        if text.startswith("//"):
            if size > max_bytes:
                problems.bad(too_long(source, begins, max_bytes, kind), lines_held[0])
            elif unbroken:
                yield Entry(begins, "\n".join(lines_held) + "\n")
            lines_held, unbroken = [], True
    if lines_held and unbroken:
        remedy = f"the file breaks off; an {kind} ends with a line //"
        error = DataError(f"an {kind} without an end", source=source, line=begins, remedy=remedy)
        problems.bad(error, "\n".join(lines_held)[:1000])


def whole_file(source: str, problems: Problems, max_bytes: int, kind: str = "file") -> Iterator[Entry]:
    """The text of a file that is one entry, blank lines in front of it left out.

    Nothing of a file with a line that was refused: an atom, or a piece of each row, would be missing.
    """
    lines_held: list[str] = []
    begins = size = 0
    bad_before = problems.met
    for number, text in lines(source, problems, max_bytes=max_bytes):
        if not lines_held and not text.strip():
            continue
        begins = begins or number
        size += len(text) + 1
        if size > max_bytes:
            problems.bad(too_long(source, begins, max_bytes, kind), lines_held[0] if lines_held else None)
            return
        lines_held.append(text)
    if problems.met != bad_before:
        return
    if lines_held:
        yield Entry(begins, "\n".join(lines_held) + "\n")
    else:
        remedy = "give a file that contains sequences"
        problems.bad(DataError("the file has only blank lines", source=source, remedy=remedy))


def parse_entry(
    parse: Parse, entry: Entry, kind: str, source: str, problems: Problems
) -> tuple[list[Any], list[str]]:
    """Records that Biopython parses from an entry of a kind ("an EMBL entry"), and its warnings; errors go to
    `problems`.
    """
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            records = list(parse(_Ending(entry.text)))
            if not records:
                raise ValueError("nothing of this format is in it")
        # Its parsers raise whatever a line they do not expect leads to: AssertionError, KeyError, IndexError.
        except Exception as error:
            at = _AT_LINE.search(str(error))
            line = entry.line + int(at[1]) - 1 if at else entry.line
            message = " ".join(str(error.args[0] if error.args else error).split())[:200].rstrip(".")
            quotation = problems.quoted(f"Biopython says: {message}; ") if str(error) else ""
            remedy = f"{quotation}correct it, or name the format the file really has"
            reason = f"{kind} that cannot be read"
            problems.bad(DataError(reason, source=source, line=line, remedy=remedy), entry.text[:1000])
            return [], []
    return records, [str(warning.message) for warning in warned]


class _Ending(StringIO):
    """A text whose end is an error when it is read again and again, as by the Clustal parser after a head."""

    _patience = 100

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        line = super().readline(-1 if size is None else size)
        if not line:
            self._patience -= 1
            if self._patience < 0:
                raise ValueError("the text ends too early")
        return line


def flat(entry: Entry, format: str, kind: str, source: str, problems: Problems) -> Iterator[Any]:
    """The records that have a sequence in an entry ("an EMBL entry") of a flat file whose format Bio.SeqIO
    knows; `problems` receives an entry that cannot be read, or without a sequence.
    """
    from Bio import SeqIO

    records, _ = parse_entry(partial(SeqIO.parse, format=format), entry, kind, source, problems)
    for record in records:
        if len(record.seq) and record.seq.defined:
            yield record
            continue
        remedy = "fetch the entry again with its sequence, or leave it out"
        problems.bad(DataError(f"{kind} without a sequence", source=source, line=entry.line, remedy=remedy))


def aligned(
    entry: Entry, format: str, source: str, problems: Problems, gaps: Gaps, document: str | None = None
) -> Iterator[Record]:
    """The rows of the alignment in an entry that are more than gaps.

    Args:
        entry, source, document: the alignment, its file and name.
        format: as Bio.AlignIO calls it.
        problems: receives an alignment that cannot be read; notes rows of gaps only.
        gaps: whether they are dropped or kept.
    """
    from Bio import AlignIO

    kind = f"a {format.capitalize()} alignment"
    alignments, _ = parse_entry(partial(AlignIO.parse, format=format), entry, kind, source, problems)
    for number, row in enumerate(chain.from_iterable(alignments), start=1):
        letters = str(row.seq).upper()
        without = letters.translate(_GAPS)
        if not without:
            problems.note("a row of gaps only, left out")
            continue
        yield Record(
            id=row.id or f"{Path(source).name}:{entry.line}:{number}",
            raw=without if gaps == "drop" else letters,
            source=source,
            line=entry.line,
            document=document,
        )
