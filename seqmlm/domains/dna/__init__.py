"""The DNA field: it reads genomes, sequencing reads and windows of a genome, and its units are bases.

By default each base is a token, because then every base can be masked, mutated and mapped. K-mers and byte
pairs are alternatives that fit more bases into a window. They too are measured in bits per base.

Every second layer attends to the whole window, because bases that are far apart can pair.
`model.layers=nearby` is cheaper, but learns these pairs later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from seqmlm.anomaly.levels import Level
from seqmlm.data.problems import Problems
from seqmlm.data.readers.huggingface import read_dataset
from seqmlm.data.record import Record
from seqmlm.domains.content import NUCLEOTIDES, SEQUENCES
from seqmlm.domains.dna.bed import read_bed
from seqmlm.domains.dna.fastq import read_fastq
from seqmlm.domains.dna.genbank import read_embl, read_genbank, read_rna_families
from seqmlm.domains.dna.levels import BaseLevel, RecordLevel, WindowLevel
from seqmlm.domains.dna.nucleotides import (
    BLOCK,
    CONTEXT,
    Contig,
    own_range,
    plain_letters,
    read_genome,
    read_rows,
)
from seqmlm.domains.dna.tokenizer import reverse_complement
from seqmlm.domains.field import LETTER_GAPS, BuiltInSample, Defaults, Field, Gaps, Keys, Letters, chapter
from seqmlm.domains.files import Format, Reading, dataset_format, table_formats
from seqmlm.domains.samples import overlap
from seqmlm.engine.masking.base import MaskingConfig
from seqmlm.engine.units import Mode

if TYPE_CHECKING:
    from seqmlm.reports.pictures import Picture

REGION = 2 * BLOCK
"""Bases of a genome that go to the same split. A region has many windows, and a small phage still has two
regions."""


def _contig(record: Record, problems: Problems) -> Iterator[Record]:
    """The records from a table's cell, normalized and cut like a contig in a FASTA file."""
    contig = Contig(record.id, source=record.source, line=record.line, problems=problems, meta=record.meta)
    for block in contig.records(record.raw.encode("utf-8")):
        yield block if record.document is None else replace(block, document=record.document)


class Bases(Letters):
    """DNA text in which each letter is one base."""

    example = "ATGACCGGTACGATTCTGGCAGCTAAAGGT"

    def of_text(self, text: str, fields: Mapping[str, Any]) -> str:
        """The text as plain bases. Text with letters that are not nucleotides is returned unchanged; the code
        that uses it refuses it."""
        plain = plain_letters(text.encode("utf-8"), Problems("skip"))
        return text if plain is None else plain.decode()


def _own_bases(record: Record) -> str:
    """The bases of a record without its context.

    They identify a record of the training data even if it now has different bases next to it.
    """
    return str(record.raw)[slice(*own_range(record))]


def _region(record: Record) -> str:
    """The key that decides the split of a record: its region of the genome, or else its bases.

    Neighbouring blocks therefore go to the same split. A sequence and its reverse complement have the same
    key, because training reads both strands.
    """
    if "contig" not in record.meta:
        bases = str(record.raw).upper()
        return min(bases, reverse_complement(bases))
    return f"{record.meta['contig']}:{int(record.meta['start']) // REGION}"


def _place(record: Record) -> int | None:
    """The position in the genome, with contigs in the order of the file; None for a record that is not part
    of a longer contig."""
    return record.line * 2**32 + int(record.meta["start"]) if "contig" in record.meta else None


def _pictures(level: Level) -> Sequence[Picture]:
    """A picture of the scores along the contigs. A picture of single bases would fill a page per record."""
    from seqmlm.reports.pictures import Tracks

    return (Tracks("contig", "kb", 1000),)


def _shows(row: Mapping[str, Any], anomaly: Mapping[str, Any]) -> bool:
    """Whether a row overlaps an anomaly. Both have positions in the contig."""
    return overlap(row["contig_start"], row["contig_end"], anomaly)


DNA = Field(
    name="dna",
    title="DNA and RNA: genomes, reads, windows",
    unit="base",
    formats={
        "fasta": Format(
            read=read_genome,
            suffixes=(".fa", ".fasta", ".fna", ".ffn", ".frn", ".fas", ".fsa", ".mfa", ".afa"),
        ),
        "fastq": Format(read=read_fastq, suffixes=(".fastq", ".fq")),
        "genbank": Format(read=read_genbank, suffixes=(".gb", ".gbk", ".gbff", ".genbank")),
        "embl": Format(read=read_embl, suffixes=(".embl",)),
        "a3m": Format(read=read_rows, suffixes=(".a3m", ".a2m")),
        "stockholm": Format(read=read_rna_families, suffixes=(".sto", ".stk", ".stockholm")),
        "bed": Format(read=read_bed, suffixes=(".bed",)),
        **table_formats(_contig),
    },
    # For scoring, each block of a contig is read together with the bases next to it.
    reading=Reading(
        dataset=dataset_format(partial(read_dataset, _contig)),
        scoring={"context": CONTEXT},
        content=(NUCLEOTIDES, SEQUENCES),  # bases with many N are recognized only as SEQUENCES
    ),
    defaults=Defaults(
        tokenizer="base.v1",
        checkpoints=("base_letters.v1",),
        masking=MaskingConfig(masker="uniform.v1", rate=0.3, mask=0.8, random=0.1, keep=0.1),
        size="small",
        max_length=512,
        model={"layers": "mixed.v1", "initialization": "unigram.v1"},
        mode=Mode("partition", 4),
    ),
    text=Bases(),
    keys=Keys(identity=_own_bases, split=_region, order=_place),
    levels=(WindowLevel(), BaseLevel(), RecordLevel()),
    pictures=_pictures,
    gaps=Gaps(forms=LETTER_GAPS, text=Bases()),
    variants=chapter(__name__, "variants.DNAVariants"),
    structure=chapter(__name__, "structure.StemsDecoder"),
    sample=BuiltInSample(write=chapter(__name__, "sample.write"), shows=_shows),
)
