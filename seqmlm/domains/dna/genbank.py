"""Read GenBank, EMBL and RNA Stockholm files, one entry at a time, with Biopython.

GenBank and EMBL entries give sequences and their genes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seqmlm.data.files import MAX_BYTES, source_of
from seqmlm.data.problems import Problems
from seqmlm.data.readers.biopython import Entry, entries, flat, read_stockholm
from seqmlm.data.readers.fasta import Gaps
from seqmlm.data.record import Record
from seqmlm.domains.dna.genes import LARGEST, MOST_GENES, Gene, Genes, is_gene, local_parts, name_of
from seqmlm.domains.dna.nucleotides import BLOCK, LONGEST_GAP, Contig, sequences
from seqmlm.errors import DataError

_FEATURE = re.compile(r"^(?: {5}|FT {3})(?=\S)", re.MULTILINE)


def read_genbank(
    path: str | Path,
    problems: Problems,
    *,
    block: int = BLOCK,
    max_n: int = LONGEST_GAP,
    context: int = 0,
    max_bytes: int = LARGEST,
) -> Iterator[Record]:
    """Read the sequences and gene positions of GenBank entries (also .gz, .zst, "-").

    Args:
        path: the file.
        problems: receives entries that cannot be read, entries without a sequence or an end (`//`), and text
            outside of entries. It counts genes without a position.
        block, max_n, context: as in `read_genome`.
        max_bytes: largest entry. An entry is read into memory as a whole.
    """
    source = source_of(path)
    for entry in entries(source, problems, max_bytes, "entry"):
        stray, *begun = f"\n{entry.text}".split("\nLOCUS")
        line = entry.line + stray.count("\n")
        if stray.strip():
            problems.bad(_error("text outside of GenBank entries", source, entry.line), stray[:1000])
        for text in begun[:-1]:
            problems.bad(_error("an entry without an end", source, line), text[:1000])
            line += text.count("\n") + 1
        for text in begun[-1:]:
            last_entry = Entry(line, f"LOCUS{text}")
            yield from _records(last_entry, "genbank", source, problems, block, max_n, context)


def read_embl(
    path: str | Path,
    problems: Problems,
    *,
    block: int = BLOCK,
    max_n: int = LONGEST_GAP,
    context: int = 0,
    max_bytes: int = LARGEST,
) -> Iterator[Record]:
    """Read the sequences and gene positions of EMBL (ENA) flat files (also .gz, .zst, "-").

    Args:
        path: the file.
        problems: receives entries that cannot be read, and entries without a sequence or an end (`//`). It
            counts genes without a position.
        block, max_n, context, max_bytes: as in `read_genbank`.
    """
    source = source_of(path)
    for entry in entries(source, problems, max_bytes, "entry"):
        yield from _records(entry, "embl", source, problems, block, max_n, context)


def _records(
    entry: Entry, form: str, source: str, problems: Problems, block: int, max_n: int, context: int
) -> Iterator[Record]:
    """The records of all sequences of an entry."""
    noun = "an EMBL entry" if form == "embl" else "an entry"
    for sequence in flat(entry, form, noun, source, problems):
        contig = Contig(
            sequence.id,
            source=source,
            line=entry.line,
            problems=problems,
            block=block,
            max_n=max_n,
            meta={"description": sequence.description} if sequence.description else None,
            genes=_genes(sequence, entry, source, problems),
            context=context,
        )
        yield from contig.records(bytes(sequence.seq))


def _genes(sequence: Any, entry: Entry, source: str, problems: Problems) -> Genes | None:
    """The genes of an entry, or None if it has no genes. At most `MOST_GENES` are kept."""
    genes = set[Gene]()
    for number, feature in enumerate(sequence.features):
        first = {key: values[0] for key, values in feature.qualifiers.items() if key in ("gene", "locus_tag")}
        name = name_of(feature.type, first) if is_gene(feature.type) else None
        if name is None:
            continue
        places = {Gene(int(x.start), int(x.end), name) for x in local_parts(feature) if x.start < x.end}
        if not places:
            begins = [match.start() for match in _FEATURE.finditer(entry.text)]
            line = entry.line + entry.text.count("\n", 0, begins[number] if number < len(begins) else 0)
            problems.note("a gene without a position, left out", source=source, line=line)
        elif len(genes) + len(places) <= MOST_GENES:
            genes |= places
        else:
            problems.note(f"a gene after the first {MOST_GENES:,} of its entry, left out")
    return Genes(genes) if genes else None


def _error(reason: str, source: str, line: int) -> DataError:
    """The error for an entry that begins at a line."""
    remedy = "check that this is GenBank, and fetch the complete entry again, including its sequence"
    return DataError(reason, source=source, line=line, remedy=remedy)


def read_rna_families(
    path: str | Path, problems: Problems, *, gaps: Gaps = "drop", max_bytes: int = MAX_BYTES
) -> Iterator[Record]:
    """Read Stockholm alignments of DNA or RNA (also .gz, .zst, "-"). Each row is a record.

    Args:
        path: the file.
        problems: receives alignments that cannot be read, and rows with letters that are not nucleotides.
        gaps, max_bytes: as in `seqmlm.data.readers.biopython.read_stockholm`.
    """
    yield from sequences(read_stockholm(path, problems, gaps=gaps, max_bytes=max_bytes), problems, gaps)
