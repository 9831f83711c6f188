"""Read formats of Biopython, entry by entry, and Stockholm, which proteins and nucleotides share.

A file is cut into its entries here, and Biopython parses them one at a time. A bad entry is therefore
reported by its first line, and does not affect other entries. Only one entry is in memory (for an alignment,
all its rows). The formats with most of the data (FASTA, FASTQ) have separate readers, which are faster. The
docstring of each states by how much.
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
    """An entry of a file: its first line, and its text."""

    line: int
    text: str


def read_stockholm(
    path: str | Path, problems: Problems, *, gaps: Gaps = "drop", max_bytes: int = MAX_BYTES
) -> Iterator[Record]:
    """Read Stockholm alignments, as from Pfam and Rfam (also .gz, .zst, "-"), with one record per row.

    `document` is the accession of the alignment, or else its name. Letters become upper case.

    Args:
        path: the file.
        problems: receives alignments that cannot be read or have no end. Notes rows with only gaps.
        gaps: "drop" returns sequences. "keep" returns the rows of the alignment with equal lengths, and every
            gap as "-".
        max_bytes: largest size of an alignment.
    """
    for entry in entries(source_of(path), problems, max_bytes, "alignment"):
        name = _NAMED.search(entry.text)
        yield from aligned(entry, "stockholm", source_of(path), problems, gaps, name[1] if name else None)


def entries(source: str, problems: Problems, max_bytes: int, kind: str) -> Iterator[Entry]:
    """The entries of a file that end with `//`. Entries without an end or above the limit go to `problems`.

    If a line of an entry was refused, the entry is left out with it.
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
    """The text of a file that is a single entry, without blank lines before it.

    If a line was refused, nothing is returned, because an atom, or a part of each row, would be missing.
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
    """Parse the records of an entry with Biopython, and return them with its warnings.

    Args:
        parse: the parser.
        entry: the entry.
        kind: kind of the entry for messages, such as "an EMBL entry".
        source: the file.
        problems: receives errors.
    """
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            records = list(parse(_Ending(entry.text)))
            if not records:
                raise ValueError("nothing of this format is in it")
        # Its parsers raise any exception for unexpected lines: AssertionError, KeyError, IndexError.
        except Exception as error:
            at = _AT_LINE.search(str(error))
            line = entry.line + int(at[1]) - 1 if at else entry.line
            message = " ".join(str(error.args[0] if error.args else error).split())[:200].rstrip(".")
            quotation = problems.quoted(f"Biopython says: {message}; ") if str(error) else ""
            remedy = f"{quotation}correct it, or name the actual format of the file"
            reason = f"{kind} that cannot be read"
            problems.bad(DataError(reason, source=source, line=line, remedy=remedy), entry.text[:1000])
            return [], []
    return records, [str(warning.message) for warning in warned]


class _Ending(StringIO):
    """A text that raises an error if its end is read repeatedly, as the Clustal parser may do."""

    _patience = 100

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        line = super().readline(-1 if size is None else size)
        if not line:
            self._patience -= 1
            if self._patience < 0:
                raise ValueError("the text ends too early")
        return line


def flat(entry: Entry, format: str, kind: str, source: str, problems: Problems) -> Iterator[Any]:
    """The records with a sequence in an entry of a flat file whose format Bio.SeqIO knows.

    Args:
        entry: the entry.
        format: the name of the format in Bio.SeqIO.
        kind: kind of the entry for messages, such as "an EMBL entry".
        source: the file.
        problems: receives an entry that cannot be read, or has no sequence.
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
    """The rows of the alignment in an entry, without rows of only gaps.

    Args:
        entry, source, document: the alignment, its file and its name.
        format: the name of the format in Bio.AlignIO.
        problems: receives an alignment that cannot be read. Notes rows with only gaps.
        gaps: whether gaps are dropped or kept.
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
