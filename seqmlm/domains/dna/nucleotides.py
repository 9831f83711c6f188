"""Genomes in FASTA, and what every format of DNA shares: one spelling, and blocks cut from long contigs.

Case stays (lower case is a soft-masked repeat). `U` becomes `T`; the IUPAC codes of several bases become
`N`. A contig may be larger than memory, so it is cut as it is read; the price is that a window never
reaches across two blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seqmlm.data.files import MAX_BYTES, source_of
from seqmlm.data.problems import Problems
from seqmlm.data.readers.fasta import parts
from seqmlm.data.record import Record
from seqmlm.domains.dna.genes import Genes, genes_of
from seqmlm.errors import DataError

BLOCK = 16_384
"""Bases of a block that a long contig is cut into."""

LONGEST_GAP = 512
"""Longest run of N that is kept."""

GENES = "genes"
"""Key of `Record.meta`: the `Gene`s over the record, where those of its contig are known."""

_PLAIN = b"ACGTNacgtn"
_DROPPED = b"\r\n \t-."
_AMBIGUOUS = b"RYSWKMBDHVXryswkmbdhvx"
_SPELLING = bytes.maketrans(b"Uu" + _AMBIGUOUS, b"Tt" + b"N" * 11 + b"n" * 11)
_KNOWN = _PLAIN + b"Uu" + _AMBIGUOUS

FOREIGN = "a letter that stands for no nucleotide"


def spelled(letters: bytes, problems: Problems) -> bytes | None:
    """The letters in `ACGTNacgtn`, white space and gaps removed; None where one stands for no nucleotide."""
    plain = letters.translate(None, _DROPPED)
    others = plain.translate(None, _PLAIN)
    if not others:
        return plain
    if others.translate(None, _KNOWN):
        return None
    problems.note("ambiguous bases (IUPAC codes), read as N", len(others.translate(None, b"Uu")))
    return plain.translate(_SPELLING)


def foreign(source: str, line: int) -> DataError:
    """The error for letters that `spelled` refuses."""
    return DataError(
        FOREIGN,
        source=source,
        line=line,
        remedy="DNA and RNA are spelled in ACGTUN and IUPAC codes; for proteins use --domain protein",
    )


class Contig:
    """Cuts one contig, given piece by piece, into records of at most `block` bases; memory stays that small.

    A contig that fits into one record keeps its name. Of a longer one, or one with long runs of N, a record
    is called `<name>:<start>-<end>` (0-based, half open) and `meta` has `contig` and `start`. Runs of more
    than `max_n` N, and the N at the ends of a record, are left out and counted.

    Args:
        name: of the contig.
        source, line: where it stands.
        problems: receives a contig with foreign letters, or without any base; told of what is left out.
        block: bases of a record.
        max_n: longest run of N that stays.
        meta: goes into every record.
        genes: of the contig; None where they are not known.
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
    ) -> None:
        self._name, self._source, self._line, self._problems = name, source, line, problems
        self._block, self._meta, self._genes = block, dict(meta or {}), genes
        self._gap = re.compile(rb"[Nn]{%d,}" % (max_n + 1))  # the module keeps what it compiled
        self._held = b""
        self._at = 0  # of the first base held
        self._refused = self._cut = False

    def add(self, letters: bytes) -> Iterator[Record]:
        """Add letters as they stand in the file; yield the blocks that are complete."""
        if self._refused:
            return
        plain = spelled(letters, self._problems)
        if plain is None:
            shown = (self._held + letters).decode("utf-8", "backslashreplace")
            self._refused, self._held = True, b""
            self._problems.bad(foreign(self._source, self._line), f">{self._name}\n{shown}")
            return
        held = self._held + plain if self._held else plain
        done = 0
        while len(held) - done > self._block:
            self._cut = True
            yield from self._records(held[done : done + self._block], self._at + done)
            done += self._block
        self._held, self._at = held[done:], self._at + done

    def finish(self) -> Iterator[Record]:
        """Yield what is left."""
        if self._refused:
            return
        if self._held:
            yield from self._records(self._held, self._at)
        elif not self._at:
            error = DataError(
                "a record without a sequence",
                source=self._source,
                line=self._line,
                remedy="remove it, or give it one",
            )
            self._problems.bad(error, self._name)

    def whole(self, letters: bytes) -> Iterator[Record]:
        """All of it at once."""
        yield from self.add(letters)
        yield from self.finish()

    def _records(self, bases: bytes, start: int) -> Iterator[Record]:
        if b"N" not in bases and b"n" not in bases:
            yield self._record(bases, start, whole=not self._cut)
            return
        found = 0
        for begin, end in self._without_gaps(bases):
            whole = not self._cut and end - begin == len(bases)
            yield self._record(bases[begin:end], start + begin, whole)
            found += end - begin
        self._problems.note("N left out: long runs, and those at the ends of a block", len(bases) - found)

    def _without_gaps(self, bases: bytes) -> Iterator[tuple[int, int]]:
        begin = 0
        for run in [*self._gap.finditer(bases), None]:
            end = run.start() if run else len(bases)
            part = bases[begin:end]
            left = len(part) - len(part.lstrip(b"Nn"))
            right = len(part.rstrip(b"Nn"))
            if left < right:
                yield begin + left, begin + right
            begin = run.end() if run else end

    def _record(self, bases: bytes, start: int, whole: bool) -> Record:
        where: dict[str, Any] = {} if whole else {"contig": self._name, "start": start}
        if self._genes is not None:
            where[GENES] = self._genes.over(start, start + len(bases))
        return Record(
            id=self._name if whole else f"{self._name}:{start}-{start + len(bases)}",
            raw=bases.decode("ascii"),
            source=self._source,
            line=self._line,
            document=self._name,
            meta={**self._meta, **where},
        )


# FASTA

_SPILL = 1 << 18


def read_genome(
    path: str | Path,
    problems: Problems,
    *,
    block: int = BLOCK,
    max_n: int = LONGEST_GAP,
    genes: str | None = None,
) -> Iterator[Record]:
    """Read DNA or RNA in FASTA (also .gz, .bgz, .zst, "-"); case stays, see `nucleotides`.

    Args:
        path: the file.
        problems: receives records without bases or with letters of proteins, text before the first `>`.
        block: longest record; a longer contig gives several, see `Contig`.
        max_n: longest run of N that stays in a record.
        genes: a GFF3 file (also .gz, .zst) of the same contigs: rows of scores name its genes.

    Raises:
        DataError: a file of genes that cannot be read.
    """
    source, name = source_of(path), Path(path).name
    contig: Contig | None = None
    for line, part, first, last in parts(source, problems, MAX_BYTES, spill=_SPILL):
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
            )
        yield from contig.add(body)
        if last:
            yield from contig.finish()
