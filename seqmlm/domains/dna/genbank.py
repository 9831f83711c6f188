"""GenBank and EMBL: sequences and genes of their entries, in memory that does not grow with a sequence.

The format is described in the GenBank release notes, section 3.4. A reader of our own: the same records made
of what Bio.SeqIO gives take 1.3 times as long (`benchmarks/ingest.py`), and it holds an entry whole. The
tests compare both. EMBL, which few files have, and alignments of RNA families are left to Biopython.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from seqmlm.data.files import MAX_BYTES, source_of
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.data.readers.biopython import entries, flat, read_stockholm
from seqmlm.data.record import Record
from seqmlm.domains.dna.genes import MOST_GENES, Gene, Genes, is_gene, name_of
from seqmlm.domains.dna.nucleotides import BLOCK, LONGEST_GAP, Contig
from seqmlm.errors import DataError

_NUMBERS = str.maketrans("", "", "0123456789 \t")
_LINES_TOGETHER = 1000
_VALUE = 12  # column where the value of a keyword begins
_QUALIFIER = 21  # and that of a feature


def read_genbank(
    path: str | Path, problems: Problems, *, block: int = BLOCK, max_n: int = LONGEST_GAP, context: int = 0
) -> Iterator[Record]:
    """Read the sequences of GenBank entries (also .gz, .zst, "-") and the places of their genes.

    Args:
        path: the file.
        problems: receives entries without a sequence or without an end, and text outside of entries; told of
            genes without a place. Of an entry with a line that cannot be read, what comes before it may have
            been handed on.
        block, max_n, context: as in `read_genome`.
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
            cut = partial(Contig, block=block, max_n=max_n, context=context)
            entry, stray = _Entry(source, number, text, problems, cut), False
        elif entry is None:
            if text.strip() and not stray:
                stray = True
                problems.bad(_error("text outside of GenBank entries", source, number), text[:1000])
        elif text.startswith("//"):
            yield from entry.finish()
            entry = None
        else:
            yield from entry.add(text, number)
    if entry is not None:
        problems.bad(_error("an entry without an end", source, entry.line), entry.name)


class _Entry:
    """The entry that is being read."""

    def __init__(
        self, source: str, line: int, locus: str, problems: Problems, cut: Callable[..., Contig]
    ) -> None:
        self.line = line
        self.name = (locus[_VALUE:].split() or [f"{Path(source).name}:{line}"])[0]
        self._source, self._problems, self._cut = source, problems, cut
        self._description: list[str] = []
        self._under = "LOCUS"  # the keyword whose lines are read
        self._features = _Features(source, problems)
        self._contig: Contig | None = None
        self._held: list[str] = []

    def add(self, text: str, number: int) -> Iterator[Record]:
        """Add a line of the file; yield the blocks that are complete."""
        if self._contig is not None:
            self._held.append(text.translate(_NUMBERS))
            if len(self._held) >= _LINES_TOGETHER:
                yield from self._release(self._contig)
            return
        if text[:1].strip():
            self._under = text.split(maxsplit=1)[0]
        elif self._under == "FEATURES":
            self._features.add(text, number)
        value = text[_VALUE:].strip()
        if self._under == "DEFINITION":
            self._description.append(value)
        elif self._under in ("ACCESSION", "VERSION") and value:
            self.name = value.split()[0]
        elif self._under == "ORIGIN":
            description = " ".join(self._description).removesuffix(".")
            self._contig = self._cut(
                self.name,
                source=self._source,
                line=self.line,
                problems=self._problems,
                meta={"description": description} if description else None,
                genes=self._features.genes(),
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


_ELSEWHERE = re.compile(r"[A-Za-z][\w.]*:[\d.^<>]+")  # bases of another entry
_STRETCH = re.compile(r"(\d{1,18})(?:\.\.>?(\d{1,18}))?")


class _Features:
    """The features of an entry, of which genes are kept: each stretch of one on its own."""

    def __init__(self, source: str, problems: Problems) -> None:
        self._source, self._problems = source, problems
        self._found: set[Gene] = set()
        self._kind = ""  # of the feature that is read; none where it is of no gene
        self._line = 0
        self._place: list[str] = []
        self._qualifiers: dict[str, str] = {}
        self._placed = self._quoted = False

    def add(self, text: str, number: int) -> None:
        """Add a line of the table."""
        value = text.strip()
        if text[:_QUALIFIER].strip():
            self._end()
            kind, _, place = value.partition(" ")
            self._kind, self._line = kind if is_gene(kind) else "", number
            self._place, self._qualifiers = [place], {}
            self._placed = self._quoted = False
            return
        if not self._kind:
            return
        if value.startswith("/") and not self._quoted:
            self._placed = True
            key, _, said = value[1:].partition("=")
            if key in ("gene", "locus_tag"):
                self._qualifiers.setdefault(key, said.strip('"'))
        if self._placed:
            self._quoted ^= value.count('"') % 2 == 1
        else:
            self._place.append(value)

    def genes(self) -> Genes | None:
        """Those of the whole table; None where it has none."""
        self._end()
        return Genes(self._found) if self._found else None

    def _end(self) -> None:
        """The feature that is read ends here."""
        name = name_of(self._kind, self._qualifiers) if self._kind else None
        self._kind = ""
        if name is None:
            return
        stretches = _STRETCH.findall(_ELSEWHERE.sub("", "".join(self._place)))
        genes = [Gene(int(first) - 1, int(last or first), name) for first, last in stretches]
        genes = [one for one in genes if 0 <= one.start < one.end]
        if not genes:
            self._problems.note("a gene without a place, left out", source=self._source, line=self._line)
        elif len(self._found) + len(genes) <= MOST_GENES:
            self._found.update(genes)
        else:
            self._problems.note(f"a gene after {MOST_GENES:,} others of its entry, left out")


def _error(reason: str, source: str, line: int) -> DataError:
    remedy = "check that this is GenBank, and fetch the entry again with its sequence"
    return DataError(reason, source=source, line=line, remedy=remedy)


def read_embl(
    path: str | Path,
    problems: Problems,
    *,
    block: int = BLOCK,
    max_n: int = LONGEST_GAP,
    context: int = 0,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Record]:
    """Read the sequences of EMBL (ENA) flat files (also .gz, .zst, "-") and the places of their genes.

    Args:
        path: the file.
        problems: receives entries that cannot be read, or without a sequence or an end.
        block, max_n, context: as in `read_genome`.
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
                genes=_embl_genes(found),
                context=context,
            )
            yield from contig.whole(bytes(found.seq))


def _embl_genes(entry: Any) -> Genes | None:
    """Those of an entry that Biopython has read; None where it has none."""
    found = set()
    for feature in entry.features:
        name = None
        if is_gene(feature.type) and feature.location is not None:
            first = {key: values[0] for key, values in feature.qualifiers.items() if values}
            name = name_of(feature.type, {key: first[key] for key in ("gene", "locus_tag") if key in first})
        for part in feature.location.parts if name is not None else ():
            if part.ref is None and isinstance(part.start, int) and isinstance(part.end, int):
                found.add(Gene(int(part.start), int(part.end), str(name)))
    return Genes(found) if found else None


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
