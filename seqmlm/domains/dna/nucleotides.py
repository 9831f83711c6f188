"""Read genomes in FASTA, and normalize letters and cut long contigs into blocks for all DNA formats.

Case is kept (lower case marks soft-masked repeats). `U` becomes `T`. IUPAC codes for several bases become
`N`. A contig can be larger than memory, so it is cut into blocks while it is read.

For scoring, each block has the bases next to it as context, so that bases next to a cut are scored like
other bases. For training, blocks have no context, because neighbouring blocks can be in different splits.
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
"""Bases per block of a long contig."""

LONGEST_GAP = 512
"""Longest run of N that is kept, in bases."""

CONTEXT = 256
"""Bases of context on each side of a block in scoring: half the window of a model of default length."""

OWN = "own"
"""Key of `Record.meta`: start and end (half open) of the record's own bases. The other bases are context."""

GENES = "genes"
"""Key of `Record.meta`: the genes (`Gene`) that overlap the record, if the genes of its contig are known."""

_PLAIN = b"ACGTNacgtn"
_DROPPED = b"\r\n \t-."
_AMBIGUOUS = b"RYSWKMBDHVXryswkmbdhvx"
_SPELLING = bytes.maketrans(b"Uu" + _AMBIGUOUS, b"Tt" + b"N" * 11 + b"n" * 11)
_UNKNOWN = re.compile(b"[Nn]")
_KNOWN = _PLAIN + b"Uu" + _AMBIGUOUS

FOREIGN = "a letter that is not a nucleotide code"


def plain_letters(letters: bytes, problems: Problems, *, stay: bytes = b"") -> bytes | None:
    """The letters as `ACGTNacgtn`, without white space and gaps; None if a letter is not a nucleotide code.

    Letters in `stay` are kept: `_` for a base that is to be filled in, or `-` for a gap.
    """
    plain = letters.translate(None, _DROPPED.translate(None, stay))
    other_letters = plain.translate(None, _PLAIN + stay)
    if not other_letters:
        return plain
    if other_letters.translate(None, _KNOWN):
        return None
    problems.note("ambiguous bases (IUPAC codes), read as N", len(other_letters.translate(None, b"Uu")))
    return plain.translate(_SPELLING)


def aligned_rows(rows: Iterable[Record], problems: Problems) -> Iterator[Record]:
    """The rows of an alignment with normalized letters.

    Each gap becomes `-`, which tokenizers read like N. `problems` receives rows with letters that are not
    nucleotide codes.
    """
    for row in rows:
        plain = plain_letters(row.raw.replace(".", "-").encode("utf-8"), problems, stay=b"-")
        if plain is None:
            problems.bad(foreign_letter_error(row.source, row.line), f">{row.id}\n{row.raw}")
        else:
            yield replace(row, raw=plain.decode("ascii"))


def foreign_letter_error(source: str, line: int) -> DataError:
    """The error for letters that `plain_letters` refuses."""
    remedy = "write DNA and RNA with ACGTUN and IUPAC codes; for proteins use --domain protein"
    return DataError(FOREIGN, source=source, line=line, remedy=remedy)


class Contig:
    """Cut one contig into records of at most `block` bases.

    The contig is added piece by piece, and memory holds only about one block. A contig that fits into one
    record keeps its name. Other records have the name `<name>:<start>-<end>` (0-based, half open), and their
    `meta` has `contig` and `start`. Runs of more than `max_n` N, and N at the ends of a record, are left out
    and counted.

    With context, `meta` also has `own`. The name then has the positions of the record's own bases, while
    `start` is the position of the first base of the context.

    Args:
        name, source, line: the name of the contig, its file, and its line in the file.
        problems: receives a contig with letters that are not nucleotide codes, or without any letter. It
            counts bases that are left out.
        block: maximum bases per record, at least 1. max_n: longest run of N that is kept.
        meta: metadata of every record. genes: the genes of the contig, or None if they are unknown.
        context: maximum bases of context on each side. Context ends at the next N. A contig that is one
            record has no context.
        holes: keep `_`, which marks a base that is to be filled in.

    Raises:
        UsageError: `block` is less than 1.
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
            raise UsageError(f"block={block}: a block must have at least one base")
        self._name, self._source, self._line, self._problems = name, source, line, problems
        self._block, self._meta, self._genes = block, dict(meta or {}), genes
        self._gap = re.compile(rb"[Nn]{%d,}" % (max_n + 1))  # `re` caches compiled patterns
        self._context, self._stay = context, b"_" if holes else b""
        self._held = b""
        self._done = 0  # bases in `_held` that are already in a record, and are kept as context
        self._at = 0  # position in the contig of the first base in `_held`
        self._refused = self._cut = self._given = False

    def add(self, letters: bytes) -> Iterator[Record]:
        """Add letters from the file, and yield the records of all blocks that are complete."""
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
        """Yield the records of the remaining bases. Report a contig without letters or without bases."""
        if self._refused:
            return
        yield from self._blocks(self._block)
        if len(self._held) > self._done:
            yield from self._records(self._done, len(self._held))
        elif not self._at:
            reason, remedy = "a record without a sequence", "remove the record, or add its sequence"
            error = DataError(reason, source=self._source, line=self._line, remedy=remedy)
            self._problems.bad(error, self._name)
            return
        if not self._given:
            self._problems.note("a sequence of only N, left out", source=self._source, line=self._line)

    def records(self, letters: bytes) -> Iterator[Record]:
        """The records of a contig, from all its letters."""
        yield from self.add(letters)
        yield from self.finish()

    def _blocks(self, limit: int) -> Iterator[Record]:
        """The records of the next blocks, while more than `limit` bases are waiting."""
        while len(self._held) - self._done > limit:
            self._cut = True
            end = self._done + self._block
            yield from self._records(self._done, end)
            self._done = end
        over = max(0, self._done - self._context)
        self._held, self._at, self._done = self._held[over:], self._at + over, self._done - over

    def _records(self, first: int, stop: int) -> Iterator[Record]:
        """The records of the waiting bases from first to stop, divided at long runs of N."""
        bases = self._held[first:stop]
        if b"N" not in bases and b"n" not in bases:
            yield self._record(first, stop, first, stop)
            return
        kept_bases = 0
        for begin, end in self._without_gaps(bases):
            yield self._record(first + begin, first + end, first, stop)
            kept_bases += end - begin
        self._problems.note("N left out (long runs, and N at the ends of a block)", len(bases) - kept_bases)

    def _without_gaps(self, bases: bytes) -> Iterator[tuple[int, int]]:
        """Start and end (half open) of each stretch between long runs of N, without N at its ends."""
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
        """The record of the waiting bases from begin to end, which are part of the block first to stop."""
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
    """Start and end (half open) of a record's own bases, without its context."""
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
    """Read DNA or RNA from a FASTA file (also .gz, .bgz, .zst, "-"). Case is kept.

    Args:
        path: the file.
        problems: receives records without a sequence, records with letters that are not nucleotide codes, and
            text before the first `>`.
        block: maximum bases per record. A longer contig is cut into several records (see `Contig`).
        max_n: longest run of N that is kept in a record.
        genes: a GFF3 file (also .gz, .zst) with the genes of the same contigs. Scored rows then name their
            genes.
        context: bases of context on each side of a block. Scoring uses 256.
        holes: keep `_`, which marks a base that is to be filled in.
        gaps: "keep" reads the upper-case rows of an alignment, which are not cut (see `aligned_rows`).

    Raises:
        DataError: the file of genes cannot be read.
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
                body = header  # `Contig` refuses the NUL as a letter that is not a nucleotide code
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
    """Read A3M or A2M alignments of DNA or RNA (also .gz, .zst, "-"). Each row is a record.

    Args:
        path: the file.
        problems: receives rows without a sequence, and rows with letters that are not nucleotide codes.
        gaps, max_bytes: as in `seqmlm.data.readers.fasta.read_a3m`.
    """
    yield from sequences(read_a3m(path, problems, gaps=gaps, max_bytes=max_bytes), problems, gaps)


def sequences(rows: Iterable[Record], problems: Problems, gaps: Gaps) -> Iterator[Record]:
    """The rows of an alignment: with their gaps ("keep"), or without gaps and cut like a contig."""
    if gaps == "keep":
        yield from aligned_rows(rows, problems)
        return
    for row in rows:
        contig = Contig(row.id, source=row.source, line=row.line, problems=problems, meta=row.meta)
        yield from contig.records(row.raw.encode())
