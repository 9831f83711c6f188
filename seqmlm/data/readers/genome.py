"""Genomes in FASTA: contigs of any length in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from seqmlm.data.files import MAX_BYTES, source_of
from seqmlm.data.problems import Problems
from seqmlm.data.readers.fasta import parts
from seqmlm.data.readers.nucleotides import BLOCK, LONGEST_GAP, Contig
from seqmlm.data.record import Record

_SPILL = 1 << 18


def read_genome(
    path: str | Path, problems: Problems, *, block: int = BLOCK, max_n: int = LONGEST_GAP
) -> Iterator[Record]:
    """Read DNA or RNA in FASTA (also .gz, .bgz, .zst, "-"); case stays, see `nucleotides`.

    Args:
        path: the file.
        problems: receives records without bases or with letters of proteins, text before the first `>`.
        block: longest record; a longer contig gives several, see `Contig`.
        max_n: longest run of N that stays in a record.
    """
    source, name = source_of(path), Path(path).name
    contig: Contig | None = None
    for line, part, first, last in parts(source, problems, MAX_BYTES, spill=_SPILL):
        body = part
        if first or contig is None:
            header, _, body = part.partition(b"\n")
            label, _, description = header.decode("utf-8", "backslashreplace").strip().partition(" ")
            contig = Contig(
                label or f"{name}:{line}",
                source=source,
                line=line,
                problems=problems,
                block=block,
                max_n=max_n,
                meta={"description": description} if description else None,
            )
        yield from contig.add(body)
        if last:
            yield from contig.finish()
