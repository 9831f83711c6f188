"""GenBank and EMBL: the sequences of their entries, in memory that does not grow with an entry.

The format is described in the GenBank release notes, section 3.4. A reader of our own: the same records made
of what Bio.SeqIO gives take 1.3 times as long (`benchmarks/ingest.py`), and it holds an entry whole. The
tests compare both. EMBL, which few files have, and alignments of RNA families are left to Biopython.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from seqmlm.data.files import MAX_BYTES, lines, source_of
from seqmlm.data.problems import Problems
from seqmlm.data.readers.biopython import entries, flat, read_stockholm
from seqmlm.data.record import Record
from seqmlm.domains.dna.nucleotides import BLOCK, LONGEST_GAP, Contig
from seqmlm.errors import DataError

_NUMBERS = str.maketrans("", "", "0123456789 \t")
_LINES_TOGETHER = 1000
_VALUE = 12  # column where the value of a keyword begins


def read_genbank(
    path: str | Path, problems: Problems, *, block: int = BLOCK, max_n: int = LONGEST_GAP
) -> Iterator[Record]:
    """Read the sequences of GenBank entries (also .gz, .zst, "-"); annotations are left aside.

    Args:
        path: the file.
        problems: receives entries without a sequence or without an end, and text outside of entries. Of an
            entry with a line that cannot be read, what comes before it may have been handed on.
        block, max_n: as in `read_genome`.
    """
    source = source_of(path)
    entry: _Entry | None = None
    stray = False  # what is outside of entries has been named
    due = 1
    for number, text in lines(source, problems):
        if number != due:  # a line was refused, and with it the entry it is in, whose bases it may have had
            entry, stray = None, True
        due = number + 1
        if text.startswith("LOCUS"):
            if entry is not None:
                problems.bad(_error("an entry without an end", source, entry.line), entry.name)
            entry, stray = _Entry(source, number, text, problems, block, max_n), False
        elif entry is None:
            if text.strip() and not stray:
                stray = True
                problems.bad(_error("text outside of GenBank entries", source, number), text[:1000])
        elif text.startswith("//"):
            yield from entry.finish()
            entry = None
        else:
            yield from entry.add(text)
    if entry is not None:
        problems.bad(_error("an entry without an end", source, entry.line), entry.name)


class _Entry:
    """The entry that is being read."""

    def __init__(
        self, source: str, line: int, locus: str, problems: Problems, block: int, max_n: int
    ) -> None:
        self.line = line
        self.name = (locus[_VALUE:].split() or [f"{Path(source).name}:{line}"])[0]
        self._source, self._problems, self._block, self._max_n = source, problems, block, max_n
        self._description: list[str] = []
        self._under = "LOCUS"  # the keyword whose lines are read
        self._contig: Contig | None = None
        self._held: list[str] = []

    def add(self, text: str) -> Iterator[Record]:
        """Add a line; yield the blocks that are complete."""
        if self._contig is not None:
            self._held.append(text.translate(_NUMBERS))
            if len(self._held) >= _LINES_TOGETHER:
                yield from self._release(self._contig)
            return
        if text[:1].strip():
            self._under = text.split(maxsplit=1)[0]
        value = text[_VALUE:].strip()
        if self._under == "DEFINITION":
            self._description.append(value)
        elif self._under in ("ACCESSION", "VERSION") and value:
            self.name = value.split()[0]
        elif self._under == "ORIGIN":
            description = " ".join(self._description).removesuffix(".")
            self._contig = Contig(
                self.name,
                source=self._source,
                line=self.line,
                problems=self._problems,
                block=self._block,
                max_n=self._max_n,
                meta={"description": description} if description else None,
            )

    def finish(self) -> Iterator[Record]:
        """The entry ends here."""
        if self._contig is None:
            self._problems.bad(_error("an entry without a sequence", self._source, self.line), self.name)
            return
        yield from self._release(self._contig)
        yield from self._contig.finish()

    def _release(self, contig: Contig) -> Iterator[Record]:
        letters, self._held = "".join(self._held), []
        yield from contig.add(letters.encode("utf-8", "backslashreplace"))


def _error(reason: str, source: str, line: int) -> DataError:
    remedy = "check that this is GenBank, and fetch the entry again with its sequence"
    return DataError(reason, source=source, line=line, remedy=remedy)


def read_embl(
    path: str | Path,
    problems: Problems,
    *,
    block: int = BLOCK,
    max_n: int = LONGEST_GAP,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Record]:
    """Read the sequences of EMBL (ENA) flat files (also .gz, .zst, "-"); annotations are left aside.

    Args:
        path: the file.
        problems: receives entries that cannot be read, or without a sequence or an end.
        block, max_n: as in `read_genome`.
        max_bytes: largest entry, which is held in memory whole.
    """
    for entry in entries(source_of(path), problems, max_bytes, "entry"):
        for found in flat(entry, "embl", "an EMBL entry", source_of(path), problems):
            contig = Contig(
                found.id,
                source=source_of(path),
                line=entry.line,
                problems=problems,
                block=block,
                max_n=max_n,
                meta={"description": found.description} if found.description else None,
            )
            yield from contig.whole(bytes(found.seq))


def read_rna_families(
    path: str | Path, problems: Problems, *, max_bytes: int = MAX_BYTES
) -> Iterator[Record]:
    """Read Stockholm alignments of DNA or RNA (also .gz, .zst, "-"), a record a row, without gaps.

    Args:
        path: the file.
        problems: receives alignments that cannot be read, and rows with letters of proteins.
        max_bytes: largest alignment.
    """
    for row in read_stockholm(path, problems, max_bytes=max_bytes):
        yield from Contig(row.id, source=row.source, line=row.line, problems=problems).whole(row.raw.encode())
