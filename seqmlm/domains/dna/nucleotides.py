"""Genomes in FASTA, and what every format of DNA shares: one spelling, and blocks cut from long contigs.

Case stays (lower case is a soft-masked repeat). `U` becomes `T`; the IUPAC codes of several bases become
`N`. A contig may be larger than memory, so it is cut as it is read. To be scored, a block comes with the
bases next to it, so that a base beside a cut is read as one amid a block is; for training it does not: two
blocks may be on two sides of a split.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from seqmlm.data.files import MAX_BYTES, source_of
from seqmlm.data.problems import Problems
from seqmlm.data.readers.fasta import Gaps, parts, read_a3m, read_fasta
from seqmlm.data.record import Record
from seqmlm.domains.dna.genes import Genes, genes_of
from seqmlm.errors import DataError, UsageError

BLOCK = 16_384
"""Bases of a block that a long contig is cut into."""

LONGEST_GAP = 512
"""Longest run of N that is kept."""

CONTEXT = 256
"""Bases beside a block that it is scored with: half a window of models of the default length."""

OWN = "own"
"""Key of `Record.meta`: which bases (from, to) of a record are its own; the others are shown beside them."""

GENES = "genes"
"""Key of `Record.meta`: the `Gene`s over the record, where those of its contig are known."""

_PLAIN = b"ACGTNacgtn"
_DROPPED = b"\r\n \t-."
_AMBIGUOUS = b"RYSWKMBDHVXryswkmbdhvx"
_SPELLING = bytes.maketrans(b"Uu" + _AMBIGUOUS, b"Tt" + b"N" * 11 + b"n" * 11)
_UNKNOWN = re.compile(b"[Nn]")
_KNOWN = _PLAIN + b"Uu" + _AMBIGUOUS

FOREIGN = "a letter that stands for no nucleotide"


def plain_letters(letters: bytes, problems: Problems, *, stay: bytes = b"") -> bytes | None:
    """The letters in `ACGTNacgtn`, white space and gaps removed; None where one stands for no nucleotide.
    Others may `stay`: `_`, a base that is to be filled in, or `-`, a gap."""
    plain = letters.translate(None, _DROPPED.translate(None, stay))
    other_letters = plain.translate(None, _PLAIN + stay)
    if not other_letters:
        return plain
    if other_letters.translate(None, _KNOWN):
        return None
    problems.note("ambiguous bases (IUPAC codes), read as N", len(other_letters.translate(None, b"Uu")))
    return plain.translate(_SPELLING)


def aligned_rows(rows: Iterable[Record], problems: Problems) -> Iterator[Record]:
    """Rows of an alignment, spelled as other sequences are, each gap as `-`, which is read as N is; one with
    foreign letters goes to `problems`."""
    for row in rows:
        plain = plain_letters(row.raw.replace(".", "-").encode("utf-8"), problems, stay=b"-")
        if plain is None:
            problems.bad(foreign_letter_error(row.source, row.line), f">{row.id}\n{row.raw}")
        else:
            yield replace(row, raw=plain.decode("ascii"))


def foreign_letter_error(source: str, line: int) -> DataError:
    """The error for letters that `plain_letters` refuses."""
    remedy = "DNA and RNA are spelled in ACGTUN and IUPAC codes; for proteins use --domain protein"
    return DataError(FOREIGN, source=source, line=line, remedy=remedy)


class Contig:
    """Cuts one contig, given piece by piece, into records of at most `block` bases; memory stays that small.

    A contig that fits into one record keeps its name. Of a longer one, or one with long runs of N, a record
    is called `<name>:<start>-<end>` (0-based, half open) and `meta` has `contig` and `start`. Runs of more
    than `max_n` N, and the N at the ends of a record, are left out and counted. With a context, `meta` also
    has `own`, the name is that of these bases, and `start` is that of the first base of all.

    Args:
        name, source, line: of the contig, and where it stands.
        problems: receives a contig with foreign letters, or without any base; told of what is left out.
        block: bases of a record, one at least. max_n: longest run of N that stays.
        meta: goes into every record. genes: of the contig; None where they are not known.
        context: bases on either side that a record of a longer contig has beside its own, up to the next N.
        holes: `_` stays, for a base that is to be filled in.
    """

    def __init__(
        self,
        name: str,
        *,
        source: str,
        line: int,
        problems: Problems,
        block: int = BLOCK,
        max_n: int = LONGEST_GAP,
        meta: Mapping[str, Any] | None = None,
        genes: Genes | None = None,
        context: int = 0,
        holes: bool = False,
    ) -> None:
        if block < 1:
            raise UsageError(f"block={block}: a block has one base or more")
        self._name, self._source, self._line, self._problems = name, source, line, problems
        self._block, self._meta, self._genes = block, dict(meta or {}), genes
        self._gap = re.compile(rb"[Nn]{%d,}" % (max_n + 1))  # the module keeps what it compiled
        self._context, self._stay = context, b"_" if holes else b""
        self._held = b""
        self._done = 0  # bases held that have been handed on, and are kept for their neighbours
        self._at = 0  # of the first base held
        self._refused = self._cut = self._given = False

    def add(self, letters: bytes) -> Iterator[Record]:
        """Add letters as they stand in the file; yield the blocks that are complete."""
        if self._refused:
            return
        plain = plain_letters(letters, self._problems, stay=self._stay)
        if plain is None:
            text = (self._held + letters).decode("utf-8", "backslashreplace")
            self._refused, self._held = True, b""
            self._problems.bad(foreign_letter_error(self._source, self._line), f">{self._name}\n{text}")
            return
        self._held += plain
        yield from self._blocks(self._block + self._context)

    def finish(self) -> Iterator[Record]:
        """Yield the records of the bases that wait."""
        if self._refused:
            return
        yield from self._blocks(self._block)
        if len(self._held) > self._done:
            yield from self._records(self._done, len(self._held))
        elif not self._at:
            reason, remedy = "a record without a sequence", "remove it, or give it one"
            error = DataError(reason, source=self._source, line=self._line, remedy=remedy)
            self._problems.bad(error, self._name)
            return
        if not self._given:
            self._problems.note("a sequence of N alone, left out", source=self._source, line=self._line)

    def records(self, letters: bytes) -> Iterator[Record]:
        """The records of a contig whose letters are given at once."""
        yield from self.add(letters)
        yield from self.finish()

    def _blocks(self, limit: int) -> Iterator[Record]:
        """The records of the next blocks, as long as more than `limit` bases wait."""
        while len(self._held) - self._done > limit:
            self._cut = True
            end = self._done + self._block
            yield from self._records(self._done, end)
            self._done = end
        over = max(0, self._done - self._context)
        self._held, self._at, self._done = self._held[over:], self._at + over, self._done - over

    def _records(self, first: int, stop: int) -> Iterator[Record]:
        """The records of bases first to stop of those held."""
        bases = self._held[first:stop]
        if b"N" not in bases and b"n" not in bases:
            yield self._record(first, stop, first, stop)
            return
        kept_bases = 0
        for begin, end in self._without_gaps(bases):
            yield self._record(first + begin, first + end, first, stop)
            kept_bases += end - begin
        self._problems.note(
            "N left out: long runs, and those at the ends of a block", len(bases) - kept_bases
        )

    def _without_gaps(self, bases: bytes) -> Iterator[tuple[int, int]]:
        """Begin and end (half open) of each stretch between long runs of N, without N at its ends."""
        begin = 0
        for run in [*self._gap.finditer(bases), None]:
            end = run.start() if run else len(bases)
            part = bases[begin:end]
            head = len(part) - len(part.lstrip(b"Nn"))
            tail = len(part.rstrip(b"Nn"))
            if head < tail:
                yield begin + head, begin + tail
            begin = run.end() if run else end

    def _record(self, begin: int, end: int, first: int, stop: int) -> Record:
        """The record of the held bases begin to end, of a block from first to stop."""
        self._given = True
        is_whole = not self._cut and (begin, end) == (first, stop)
        bases_before = self._held[max(0, begin - self._context) : begin] if begin == first else b""
        bases_after = self._held[end : end + self._context] if end == stop else b""
        bases_before, bases_after = _UNKNOWN.split(bases_before)[-1], _UNKNOWN.split(bases_after)[0]
        start = self._at + begin - len(bases_before)
        place: dict[str, Any] = {} if is_whole else {"contig": self._name, "start": start}
        if bases_before or bases_after:
            place[OWN] = len(bases_before), len(bases_before) + end - begin
        if self._genes is not None:
            place[GENES] = self._genes.overlapping(start, self._at + end + len(bases_after))
        return Record(
            id=self._name if is_whole else f"{self._name}:{self._at + begin}-{self._at + end}",
            raw=(bases_before + self._held[begin:end] + bases_after).decode("ascii"),
            source=self._source,
            line=self._line,
            document=self._name,
            meta={**self._meta, **place},
        )


def own_range(record: Record) -> tuple[int, int]:
    """Begin and end (half open) of the bases of a record that are its own, not context beside them."""
    first, stop = record.meta.get(OWN, (0, len(str(record.raw))))
    return int(first), int(stop)


# FASTA

_SPILL = 1 << 18


def read_genome(
    path: str | Path,
    problems: Problems,
    *,
    block: int = BLOCK,
    max_n: int = LONGEST_GAP,
    genes: str | None = None,
    context: int = 0,
    holes: bool = False,
    gaps: Gaps = "drop",
) -> Iterator[Record]:
    """Read DNA or RNA in FASTA (also .gz, .bgz, .zst, "-"); case stays, see `nucleotides`.

    Args:
        path: the file.
        problems: receives records without bases or with letters of proteins, text before the first `>`.
        block: longest record; a longer contig gives several, see `Contig`.
        max_n: longest run of N that stays in a record.
        genes: a GFF3 file (also .gz, .zst) of the same contigs: rows of scores name its genes.
        context: bases of its neighbours that a block comes with; to be scored, 256.
        holes: `_` is a base that is to be filled in.
        gaps: "keep" reads the rows of an alignment, upper case, which are not cut; see `aligned_rows`.

    Raises:
        DataError: a file of genes that cannot be read.
    """
    if gaps == "keep":
        yield from aligned_rows(read_fasta(path, problems, gaps=gaps), problems)
        return
    source, name = source_of(path), Path(path).name
    contig: Contig | None = None
    for line, part, first, last in parts(source, problems, _SPILL):
        body = part
        if first or contig is None:
            header, _, body = part.partition(b"\n")
            if b"\0" in header:
                body = header  # refused as a letter that stands for no nucleotide
            label, _, description = header.decode("utf-8", "backslashreplace").strip().partition(" ")
            label = label or f"{name}:{line}"
            contig = Contig(
                label,
                source=source,
                line=line,
                problems=problems,
                block=block,
                max_n=max_n,
                meta={"description": description} if description else None,
                genes=None if genes is None else genes_of(genes, label, problems),
                context=context,
                holes=holes,
            )
        yield from contig.add(body)
        if last:
            yield from contig.finish()


def read_rows(
    path: str | Path, problems: Problems, *, gaps: Gaps = "drop", max_bytes: int = MAX_BYTES
) -> Iterator[Record]:
    """Read A3M or A2M alignments of DNA or RNA (also .gz, .zst, "-"), a record a row.

    Args:
        path: the file.
        problems: receives rows without bases or with letters of proteins.
        gaps, max_bytes: as in `seqmlm.data.readers.fasta.read_a3m`.
    """
    yield from sequences(read_a3m(path, problems, gaps=gaps, max_bytes=max_bytes), problems, gaps)


def sequences(rows: Iterable[Record], problems: Problems, gaps: Gaps) -> Iterator[Record]:
    """Rows of an alignment as they are, or as sequences without gaps, cut as any contig is."""
    if gaps == "keep":
        yield from aligned_rows(rows, problems)
        return
    for row in rows:
        contig = Contig(row.id, source=row.source, line=row.line, problems=problems, meta=row.meta)
        yield from contig.records(row.raw.encode())
