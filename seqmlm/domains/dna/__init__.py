"""The DNA domain: genomes, reads and windows in, bases as units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from seqmlm.anomaly.levels import Level
from seqmlm.data.problems import Problems
from seqmlm.data.readers.huggingface import read_dataset
from seqmlm.data.record import Record
from seqmlm.domains.base import Domain, DomainDefaults, Format, dataset_format, table_formats
from seqmlm.domains.dna.bed import read_bed
from seqmlm.domains.dna.fastq import read_fastq
from seqmlm.domains.dna.genbank import read_embl, read_genbank, read_rna_families
from seqmlm.domains.dna.levels import BaseLevel, RecordLevel, WindowLevel
from seqmlm.domains.dna.nucleotides import BLOCK, CONTEXT, Contig, own, read_genome, read_rows, spelled
from seqmlm.domains.samples import overlap
from seqmlm.engine.masking.base import MaskingConfig
from seqmlm.engine.types import Encoding, Ids
from seqmlm.engine.units import Mode
from seqmlm.tokenizers.base import Tokenizer
from seqmlm.tokenizers.nucleotide import reverse_complement

if TYPE_CHECKING:
    from seqmlm.domains.variants import Variants
    from seqmlm.reports.pictures import Picture

REGION = 2 * BLOCK
"""Bases of a genome that stay together in a split: many windows, and a small phage still has two."""


def _contig(record: Record, problems: Problems) -> Iterator[Record]:
    """The records of a table's cell, spelled and cut as a contig of a FASTA file is."""
    contig = Contig(record.id, source=record.source, line=record.line, problems=problems, meta=record.meta)
    for one in contig.whole(record.raw.encode("utf-8")):
        yield one if record.document is None else replace(one, document=record.document)


class DNADomain(Domain):
    """DNA and RNA, one base a token.

    Single bases, because with them every base can be asked, mutated and mapped; k-mers and byte pairs are
    there for those who want longer windows, and are measured in bits per base like them. Every second layer
    looks at the whole window, for bases pair far apart (`model.layers=nearby` is cheaper, and finds pairs
    later).
    """

    name: ClassVar[str] = "dna"
    title: ClassVar[str] = "DNA and RNA: genomes, reads, windows"
    unit: ClassVar[str] = "base"
    example: ClassVar[str] = "ATGACCGGTACGATTCTGGCAGCTAAAGGT"
    structure: ClassVar[str] = "StemsDecoder"
    hidden: ClassVar[str] = "_"
    gaps: ClassVar[tuple[str, ...]] = ("_", "<mask>", "<MASK>")
    formats: ClassVar[Mapping[str, Format]] = {
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
    }
    dataset: ClassVar[Format] = dataset_format(partial(read_dataset, _contig))
    mode: ClassVar[Mode] = Mode("partition", 4)
    defaults: ClassVar[DomainDefaults] = DomainDefaults(
        tokenizer="base.v1",
        masking=MaskingConfig(masker="uniform.v1", rate=0.3, mask=0.8, random=0.1, keep=0.1),
        size="small",
        max_length=512,
        model={"layers": "mixed.v1", "initialization": "unigram.v1"},
    )

    @property
    def levels(self) -> tuple[Level, ...]:
        return WindowLevel(), BaseLevel(), RecordLevel()

    def of_text(self, text: str, fields: Mapping[str, Any]) -> str:
        """Bases; a text with foreign letters stays, to be refused where it is used."""
        plain = spelled(text.encode("utf-8"), Problems("skip"))
        return text if plain is None else plain.decode()

    def pictures(self, level: Level) -> Sequence[Picture]:
        """Scores along the contigs: a picture of single bases would be a page long for every record."""
        from seqmlm.reports.pictures import Tracks

        return (Tracks("contig", "kb", 1000),)

    def shows(self, row: Mapping[str, Any], anomaly: Mapping[str, Any]) -> bool:
        """Places of anomalies are those of the contig."""
        return overlap(row["contig_start"], row["contig_end"], anomaly)

    def read(
        self,
        paths: Sequence[Path | str],
        problems: Problems,
        *,
        format: str | None = None,
        scoring: bool = False,
        **options: Any,
    ) -> Iterator[Record]:
        """As `Domain.read`; to be scored, blocks of a contig come with the bases next to them."""
        named = self.all_formats.get(format or "fasta")
        if scoring and named is not None and "context" in named.options():
            options = {"context": CONTEXT, **options}
        return super().read(paths, problems, format=format, scoring=scoring, **options)

    def variants(self) -> Variants:
        """Alleles of a VCF or a table, against the reference."""
        from seqmlm.domains.dna.variants import DNAVariants

        return DNAVariants()

    def blank(self, units: int) -> str:
        """Gaps."""
        return self.gaps[0] * units

    def written(self, sequences: Iterable[tuple[str, Any]]) -> Iterator[str]:
        """FASTA."""
        for name, raw in sequences:
            yield f">{name}\n{raw}\n"

    def identity(self, record: Record) -> str:
        """The bases that are its own: a model was trained on these, whatever stands beside them now."""
        return str(record.raw)[slice(*own(record))]

    def split_key(self, record: Record) -> str:
        """The part of the genome a record comes from, so that neighbours stay together; else its sequence.

        A sequence and its reverse complement have one key: training reads both strands.
        """
        if "contig" not in record.meta:
            bases = str(record.raw).upper()
            return min(bases, reverse_complement(bases))
        region = int(record.meta["start"]) // REGION
        return f"{record.meta['contig']}:{region}"

    def order_key(self, record: Record) -> Any | None:
        """The place in the genome; None where the record is no part of one."""
        if "contig" not in record.meta:
            return None
        return record.line * 2**32 + int(record.meta["start"])  # contigs in the order of the file

    def show(self, tokenizer: Tokenizer, raw: Any, encoding: Encoding, asked: Ids, predicted: Ids) -> str:
        """As `Domain.show`; where tokens overlap, they vote."""
        from seqmlm.domains.dna.overlapping import KmerTokenizer, shown

        if not isinstance(tokenizer, KmerTokenizer):
            return super().show(tokenizer, raw, encoding, asked, predicted)
        tokens = [tokenizer.spelling.surface(token) for token in predicted.tolist()]
        return shown(self.hidden, tokens, str(raw), encoding, asked)


DNA = DNADomain()
