"""Genes along contigs: of the feature tables of GenBank and EMBL entries, and of GFF3 files beside a genome.

Only names and places are kept, of genes and of what is named after one (a coding sequence, a tRNA): a tenth
of a percent of the size of a genome.

What a variant does to proteins needs the parts of coding sequences. Consequences have the names of
the Sequence Ontology. No model is asked: a codon counts by how frequent it is in the coding sequences
themselves, where a stop hardly ever stands before the end, and its residue by BLOSUM62 (Henikoff and Henikoff
1992).
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property, lru_cache, partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple
from urllib.parse import unquote

from Bio.Data.CodonTable import unambiguous_dna_by_id

from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.data.readers.biopython import entries, parsed
from seqmlm.data.readers.features import GFF_COLUMNS, Feature, gff_features, known_as
from seqmlm.errors import DataError
from seqmlm.tokenizers.nucleotide import reverse_complement

LARGEST = 1 << 30
"""Bytes of an entry, which is held in memory whole: a chromosome."""
MOST_GENES = 1_000_000
"""Genes of a file that are kept; the largest annotations have a tenth of that."""

_PRODUCTS = ("CDS", "tRNA", "rRNA", "tmRNA", "ncRNA")
_PREFIXES = ("gene-", "gene:", "Gene:")


class Gene(NamedTuple):
    """A gene, or a part of one: bases start to end (0-based, half open) of its contig."""

    start: int
    end: int
    name: str


class Genes:
    """The genes of one contig.

    Args:
        found: in any order; equal ones count once.
    """

    def __init__(self, found: Iterable[Gene]) -> None:
        self._genes = sorted(set(found))
        self._starts = [one.start for one in self._genes]
        self._reached = list(accumulate((one.end for one in self._genes), max))

    def __len__(self) -> int:
        return len(self._genes)

    def over(self, start: int, end: int) -> tuple[Gene, ...]:
        """Those that share a base with the bases start to end (0-based, half open), by place."""
        first, last = bisect_right(self._reached, start), bisect_left(self._starts, end)
        return tuple(one for one in self._genes[first:last] if one.end > start)


def named_over(genes: Iterable[Gene], start: int, end: int) -> list[str]:
    """The names of the genes that share a base with the bases start to end, each once, by place.

    >>> named_over([Gene(0, 9, "a"), Gene(5, 8, "b"), Gene(5, 9, "a"), Gene(12, 20, "c")], 6, 12)
    ['a', 'b']
    """
    return list(dict.fromkeys(one.name for one in genes if one.start < end and one.end > start))


def is_gene(kind: str) -> bool:
    """Whether a feature of this kind is a gene, or is named after one.

    >>> [is_gene(kind) for kind in ("gene", "pseudogene", "tRNA", "exon")]
    [True, True, True, False]
    """
    return kind.endswith("gene") or kind in _PRODUCTS


def name_of(kind: str, qualifiers: Mapping[str, str]) -> str | None:
    """What a feature is called: its gene, else its locus; a gene of GFF3 also by its name or identifier."""
    keys = ("gene", "Name", "locus_tag", "ID") if kind.endswith("gene") else ("gene", "locus_tag")
    name = next((qualifiers[key] for key in keys if qualifiers.get(key)), None)
    if name is None:
        return None
    prefix = next((one for one in _PREFIXES if name.startswith(one)), "")
    return name.removeprefix(prefix) or None


def genes_of(path: str, contig: str, problems: Problems) -> Genes | None:
    """The genes of a contig in a GFF3 file, which is read once; None for a contig that it does not name.

    Args:
        path: the file (also .gz, .zst).
        contig: as the genome calls it; chr1 may be 1 there, chrM may be MT.
        problems: told of contigs without genes.

    Raises:
        DataError: a line that is not GFF3, or too many genes.
    """
    try:
        facts = os.stat(path)
    except (OSError, ValueError):
        raise DataError("no such file of genes", source=path, remedy="check --option genes=FILE") from None
    known = _read(path, facts.st_mtime_ns, facts.st_size, facts.st_ino)
    name = known_as(contig, known)
    if name is None:
        problems.note("a contig without any gene in the file of genes")
    return None if name is None else known[name]


@lru_cache(maxsize=1)  # a genome is read file by file, and its beginning to estimate what a scoring takes
def _read(path: str, *facts: int) -> Mapping[str, Genes]:
    """The genes of a GFF3 file by contig; equal facts are the same file."""
    found: dict[str, set[Gene]] = {}
    count = 0
    for number, one in gff_features(path, Problems("raise"), is_gene):
        gene = _gene(one, path, number)
        if gene is None:
            continue
        found.setdefault(one.name, set()).add(gene)
        count += 1
        if count > MOST_GENES:
            remedy = "keep the lines of genes alone, and of the contigs that are scored"
            raise DataError(f"more than {MOST_GENES:,} genes", source=path, line=number, remedy=remedy)
    return {contig: Genes(genes) for contig, genes in found.items()}


def _gene(one: Feature, path: str, number: int) -> Gene | None:
    """What a line says; None where it names no gene."""
    pairs = [part.partition("=") for part in one.columns[8].split(";") if part.strip()]
    if not all(equals for _, equals, _ in pairs):
        reason = "attributes that are not NAME=VALUE (is it GTF?)"
        raise DataError(reason, source=path, line=number, remedy=GFF_COLUMNS)
    name = name_of(one.columns[2], {key.strip(): unquote(value.strip()) for key, _, value in pairs})
    return None if name is None else Gene(one.start, one.end, name)


# Coding sequences

COUNTED = 2_000_000
"""Codons by whose number all are judged."""

STOP, FRAMESHIFT, STOP_LOST, START_LOST = "stop_gained", "frameshift_variant", "stop_lost", "start_lost"
INFRAME, MISSENSE, PARTLY = "inframe_indel", "missense_variant", "coding_sequence_variant"
SYNONYMOUS = "synonymous_variant"
WORST = (STOP, FRAMESHIFT, STOP_LOST, START_LOST, INFRAME, MISSENSE, PARTLY, SYNONYMOUS)
"""By how much they change."""


class Effect(NamedTuple):
    """What a variant does to a coding sequence.

    Args:
        gene: whose it is. consequence: one of `WORST`.
        change: of the protein, as HGVS has it (p.Q12*); "" of others than single residues.
        codon: log-ratio of the new codons' probability in place of the old residues to that of the old
            codons, nats; None of deletions and insertions.
    """

    gene: str
    consequence: str
    change: str = ""
    codon: float | None = None


class _Coding(NamedTuple):
    """A coding sequence of a contig.

    Args:
        parts: (start, end), 0-based and half open, ascending.
        skipped: bases in front of its first whole codon. table: of NCBI's genetic codes.
    """

    gene: str
    parts: tuple[tuple[int, int], ...]
    reverse: bool
    skipped: int
    table: int


class CodingSequences:
    """The coding sequences of a genome.

    Args:
        path: GFF3, whose lines of type CDS with one ID, or one Parent, are one sequence; GenBank or EMBL
            (also .gz, .zst).
        genome: its contigs by name, for random access.

    Raises:
        DataError: no such file, one that is neither, or no coding sequence on a contig of the genome.
    """

    def __init__(self, path: str, genome: Any) -> None:
        self._genome = genome
        self._known = defaultdict[str, list[_Coding]](list)
        first = next((text for _, text in lines(path, Problems())), "")
        form = {"LOCUS": "genbank", "ID   ": "embl"}.get(first[:5])
        for contig, one in _of_gff(path) if form is None else _of_flat(path, form):
            if (name := known_as(contig, genome)) is not None:
                self._known[name].append(one)
        if not self._known:
            remedy = "give the GFF3 or GenBank file of this reference (--set genes=FILE)"
            raise DataError(
                "no coding sequence (CDS) on a contig of the reference", source=path, remedy=remedy
            )
        self._places = {
            name: Genes(Gene(*part, str(n)) for n, one in enumerate(found) for part in one.parts)
            for name, found in self._known.items()
        }

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """How often each codon stands in coding sequences, the last one of each left out."""
        found = Counter[str]()
        for contig, sequences in self._known.items():
            for one in sequences:
                if found.total() < COUNTED:
                    found.update(self._codons(contig, one)[:-1])
        return found

    def effect(self, contig: str, start: int, end: int, text: str) -> Effect | None:
        """The worst effect of some text in place of bases start to end; None outside of coding sequences.

        Args:
            contig: as the genome calls it. start, end: 0-based, half open. text: capitals.
        """
        places = self._places.get(contig)
        over = () if places is None else places.over(start, max(end, start + 1))
        found = (
            self._effect(contig, self._known[contig][number], start, end, text)
            for number in dict.fromkeys(int(one.name) for one in over)
        )
        return min(found, key=lambda one: WORST.index(one.consequence), default=None)

    def _effect(self, contig: str, one: _Coding, start: int, end: int, text: str) -> Effect:
        if len(text) != end - start:
            behind = start == end  # the first base, where something stands between two
            inside = any(begin + behind <= start and end + behind <= last for begin, last in one.parts)
            shifts = (len(text) - end + start) % 3
            return Effect(one.gene, (FRAMESHIFT if shifts else INFRAME) if inside else PARTLY)
        both = zip(self._codons(contig, one), self._codons(contig, one, start, text), strict=True)
        changed = [(number, old, new) for number, (old, new) in enumerate(both) if old != new]
        if not changed:  # in a codon that is not whole
            return Effect(one.gene, PARTLY)
        told = [_consequence(old, new, one.table, n == 0 and not one.skipped) for n, old, new in changed]
        ratio = sum(self._ratio(old, new, one.table) for _, old, new in changed)
        was, now = told[0][1:]
        change = f"p.{was}{changed[0][0] + 1}{'=' if was == now else now}" if len(told) == 1 else ""
        return Effect(one.gene, min((own[0] for own in told), key=WORST.index), change, ratio)

    def _ratio(self, old: str, new: str, table: int) -> float:
        """P(b, its codon | a) / P(a, its codon | a): BLOSUM62 has log(q_ab / p_a p_b) in half bits, and what
        p_b and the codon's share of b are together is how frequent the codon is."""
        matrix = _blosum62()
        was, now = _residue(old, table), _residue(new, table)
        likeness = (matrix[was, now] - matrix[was, was]) * math.log(2) / 2
        return float(likeness + math.log((self.counts[new] + 1) / (self.counts[old] + 1)))

    def _codons(self, contig: str, one: _Coding, at: int = 0, text: str = "") -> list[str]:
        """Its whole codons, with some text from base `at` on in place of what is there."""
        parts = []
        for start, end in one.parts:
            part = str(self._genome[contig][start:end]).upper()
            low, high = max(start, at), min(end, at + len(text))
            if low < high:
                part = part[: low - start] + text[low - at : high - at] + part[high - start :]
            parts.append(part)
        letters = "".join(parts)
        letters = (reverse_complement(letters) if one.reverse else letters)[one.skipped :]
        return [letters[begin:last] for begin, last in pairwise(range(0, len(letters) + 1, 3))]


def _of_gff(path: str) -> Iterator[tuple[str, _Coding]]:
    """The coding sequences of a GFF3 file, with their contigs."""
    found = defaultdict[tuple[str, str], list[tuple[Feature, dict[str, str]]]](list)
    for number, one in gff_features(path, Problems("raise"), lambda kind: kind == "CDS"):
        pairs = (part.partition("=") for part in one.columns[8].split(";"))
        facts = {key.strip(): unquote(value.strip()) for key, _, value in pairs}
        found[one.name, facts.get("ID") or facts.get("Parent") or str(number)].append((one, facts))
    for (contig, key), own in found.items():
        own.sort(key=lambda pair: pair[0].start)
        reverse = own[0][0].columns[6] == "-"
        first, facts = own[-1 if reverse else 0]
        phase = first.columns[7]
        skipped = int(phase) if phase in ("1", "2") else 0
        yield contig, _coding([(one.start, one.end) for one, _ in own], facts, key, skipped, reverse=reverse)


def _of_flat(path: str, form: str) -> Iterator[tuple[str, _Coding]]:
    """The coding sequences of GenBank or EMBL entries; of one strand and of one entry."""
    from Bio import SeqIO

    problems = Problems("raise")
    for entry in entries(path, problems, LARGEST, "entry"):
        for record in parsed(partial(SeqIO.parse, format=form), entry, "an entry", path, problems)[0]:
            for feature in (one for one in record.features if one.type == "CDS" and one.location is not None):
                facts = {key: values[0] for key, values in feature.qualifiers.items()}
                parts = [(one.start, one.end, one.ref) for one in feature.location.parts]
                whole = all(isinstance(x + y, int) and ref is None for x, y, ref in parts)
                if whole and feature.location.strand is not None:
                    skipped = {"2": 1, "3": 2}.get(facts.get("codon_start", ""), 0)
                    places = sorted((int(x), int(y)) for x, y, _ in parts)
                    reverse = feature.location.strand == -1
                    yield record.id, _coding(places, facts, record.id, skipped, reverse=reverse)


def _coding(
    parts: list[tuple[int, int]], facts: Mapping[str, str], key: str, skipped: int, *, reverse: bool
) -> _Coding:
    table = facts.get("transl_table", "")
    code = int(table) if table.isdigit() and int(table) in unambiguous_dna_by_id else 1
    gene = name_of("CDS", facts) or facts.get("Name") or facts.get("protein_id") or key
    return _Coding(gene, tuple(parts), reverse, skipped, code)


def _consequence(old: str, new: str, table: int, begins: bool) -> tuple[str, str, str]:
    """The consequence of a codon for another one, and both residues as the change names them."""
    code = unambiguous_dna_by_id[table]
    if begins and old in code.start_codons:
        kept = new in code.start_codons
        return SYNONYMOUS if kept else START_LOST, "M", "M" if kept else "?"
    was, now = _residue(old, table), _residue(new, table)
    if "X" in (was, now):
        return PARTLY, was, now
    if was == now:
        return SYNONYMOUS, was, now
    return STOP if now == "*" else STOP_LOST if was == "*" else MISSENSE, was, now


def _residue(codon: str, table: int) -> str:
    """X of letters that are no bases, * of a stop."""
    code = unambiguous_dna_by_id[table]
    return "*" if codon in code.stop_codons else code.forward_table.get(codon, "X")


@cache
def _blosum62() -> Any:
    from Bio.Align import substitution_matrices

    return substitution_matrices.load("BLOSUM62")
