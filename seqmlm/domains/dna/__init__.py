"""The DNA domain: genomes, reads and windows in, bases as units.

Single bases are tokens, because with them every base can be asked, mutated and mapped; k-mers and byte pairs
are there for those who want longer windows, and are measured in bits per base like them. Every second layer
looks at the whole window, for bases pair far apart (`model.layers=nearby` is cheaper, and finds pairs later).
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
"""Bases of a genome that stay together in a split: many windows, and a small phage still has two."""


def _contig(record: Record, problems: Problems) -> Iterator[Record]:
    """The records of a table's cell, spelled and cut as a contig of a FASTA file is."""
    contig = Contig(record.id, source=record.source, line=record.line, problems=problems, meta=record.meta)
    for block in contig.records(record.raw.encode("utf-8")):
        yield block if record.document is None else replace(block, document=record.document)


class Bases(Letters):
    """One letter a base."""

    example = "ATGACCGGTACGATTCTGGCAGCTAAAGGT"

    def of_text(self, text: str, fields: Mapping[str, Any]) -> str:
        """Bases; a text with foreign letters stays, to be refused where it is used."""
        plain = plain_letters(text.encode("utf-8"), Problems("skip"))
        return text if plain is None else plain.decode()


def _own_bases(record: Record) -> str:
    """The bases of a record without its context: training knows these, whatever is beside them now."""
    return str(record.raw)[slice(*own_range(record))]


def _region(record: Record) -> str:
    """The part of the genome a record comes from, so that neighbours stay together; else its bases.

    A sequence and its reverse complement have one key: training reads both strands.
    """
    if "contig" not in record.meta:
        bases = str(record.raw).upper()
        return min(bases, reverse_complement(bases))
    return f"{record.meta['contig']}:{int(record.meta['start']) // REGION}"


def _place(record: Record) -> int | None:
    """The place in the genome, contigs in the order of the file; None where the record is no part of one."""
    return record.line * 2**32 + int(record.meta["start"]) if "contig" in record.meta else None


def _pictures(level: Level) -> Sequence[Picture]:
    """Scores along the contigs: a picture of single bases would be a page long for every record."""
    from seqmlm.reports.pictures import Tracks

    return (Tracks("contig", "kb", 1000),)


def _shows(row: Mapping[str, Any], anomaly: Mapping[str, Any]) -> bool:
    """Whether a row shows an anomaly: both have places of the contig."""
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
    # To be scored, blocks of a contig come with the bases next to them.
    reading=Reading(
        dataset=dataset_format(partial(read_dataset, _contig)),
        scoring={"context": CONTEXT},
        content=(NUCLEOTIDES, SEQUENCES),  # with many bases that are not known, letters are those of both
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
