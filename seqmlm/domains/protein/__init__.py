"""The protein domain: sequences, alignments and structures, with residues as units.

Each residue is one token of ESM's vocabulary, so that ESM checkpoints load. Residues are masked one by one
(80/10/10 as in ESM). The rate is 30 %, which teaches more in a short training than ESM's 15 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from seqmlm.anomaly.levels import Level
from seqmlm.data.problems import Problems
from seqmlm.data.readers.biopython import read_stockholm
from seqmlm.data.readers.fasta import read_a3m, read_fasta
from seqmlm.data.readers.huggingface import read_dataset
from seqmlm.data.record import Record
from seqmlm.domains.content import SEQUENCES
from seqmlm.domains.field import LETTER_GAPS, BuiltInSample, Defaults, Field, Gaps, Keys, Letters, chapter
from seqmlm.domains.files import Format, Reading, dataset_format, table_formats
from seqmlm.domains.protein.levels import ProteinLevel, ResidueLevel
from seqmlm.domains.protein.readers import read_clustal, read_mmcif, read_pdb, read_swissprot
from seqmlm.domains.protein.tokenizer import STANDARD
from seqmlm.engine.masking.base import MaskingConfig
from seqmlm.engine.units import Mode
from seqmlm.tokenizers.base import Tokenizer

if TYPE_CHECKING:
    from seqmlm.domains.structure import Decoder
    from seqmlm.domains.variants import Variants
    from seqmlm.reports.pictures import Picture

_LIKE_DNA = 40
"""Length in residues of the shortest sequence that counts as DNA if it has no other letters."""

_NO_RESIDUE = str.maketrans("", "", " \t\r\n-.")


def _residues(text: str) -> str:
    """A sequence spelled as in a FASTA record: upper case, without spaces, gaps and stop signs."""
    return text.translate(_NO_RESIDUE).removesuffix("*").upper()


def _protein(record: Record, problems: Problems) -> Iterator[Record]:
    """The protein in a table cell, without spaces and gaps; a cell of gaps only is counted."""
    if raw := _residues(record.raw):
        yield replace(record, raw=raw)
    else:
        problems.note("a row of gaps only, left out")


def _count_dna(records: Iterator[Record], problems: Problems) -> Iterator[Record]:
    """Yield the records unchanged, and note long ones that look like DNA."""
    for record in records:
        if len(record.raw) >= _LIKE_DNA and not record.raw.strip("ACGTUN"):
            note = "a protein with only the letters A, C, G, T, U and N: is it DNA?"
            problems.note(note, source=record.source, line=record.line)
        yield record


class Residues(Letters):
    """Sequences with one letter per residue."""

    example = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ"

    def of_text(self, text: str, fields: Mapping[str, Any]) -> str:
        return _residues(text)


class ResidueGaps(Gaps):
    """Gaps for unknown residues. Each can be filled by one of the 20 standard residues."""

    def candidates(self, tokenizer: Tokenizer) -> Sequence[str]:
        return STANDARD


def _pictures(level: Level) -> Sequence[Picture]:
    from seqmlm.domains.protein.picture import Residues as Numbered

    return (Numbered(),)


def _variants() -> Variants:
    from seqmlm.domains.protein.variants import ProteinVariants

    return ProteinVariants(PROTEIN)


def _clusters() -> Callable[[Record], str]:
    from seqmlm.domains.protein.clusters import IdentityClusters

    return IdentityClusters().key


def _contacts() -> Decoder:
    from seqmlm.domains.protein.structure import ContactsDecoder

    return ContactsDecoder(PROTEIN)


PROTEIN = Field(
    name="protein",
    title="Proteins: amino acid sequences",
    unit="residue",
    formats={
        "fasta": Format(
            read=read_fasta,
            suffixes=(".fasta", ".fa", ".faa", ".fas", ".fsa", ".mpfa", ".mfa", ".afa", ".pep"),
        ),
        "a3m": Format(read=read_a3m, suffixes=(".a3m", ".a2m")),
        "stockholm": Format(read=read_stockholm, suffixes=(".sto", ".stk", ".stockholm")),
        "clustal": Format(read=read_clustal, suffixes=(".aln", ".clustal", ".clw")),
        "swissprot": Format(read=read_swissprot, suffixes=(".dat", ".sprot", ".swiss")),
        "pdb": Format(read=read_pdb, suffixes=(".pdb", ".ent")),
        "mmcif": Format(read=read_mmcif, suffixes=(".cif", ".mmcif")),
        **table_formats(_protein),
    },
    reading=Reading(
        dataset=dataset_format(partial(read_dataset, _protein)), inspect=_count_dna, content=(SEQUENCES,)
    ),
    defaults=Defaults(
        tokenizer="residue.v1",
        checkpoints=("residue.v1", "residue_letters.v1"),
        masking=MaskingConfig(masker="uniform.v1", rate=0.3, mask=0.8, random=0.1, keep=0.1),
        size="small",
        max_length=512,
        model={"initialization": "unigram.v1"},
        mode=Mode("partition", 4),
    ),
    text=Residues(),
    # The sequence is the key. Rows of an alignment share a document, but a family may be on both sides of a
    # split. Similar sequences stay together only if identity clusters are requested.
    keys=Keys(split=lambda record: str(record.raw), clusters=_clusters),
    levels=(ProteinLevel(), ResidueLevel("residue")),
    pictures=_pictures,
    gaps=ResidueGaps(forms=LETTER_GAPS, text=Residues()),
    variants=_variants,
    structure=_contacts,
    sample=BuiltInSample(write=chapter(__name__, "sample.write")),
)
