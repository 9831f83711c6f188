"""Genes on contigs, and the consequences of variants in coding sequences.

Genes come from the feature tables of GenBank and EMBL entries, or from a GFF3 file that belongs to a genome.
Only names and positions are kept, for genes and for features that are named after a gene (coding sequences,
tRNAs). They take about a tenth of a percent of the size of the genome.

The consequence of a variant is computed from the parts of the coding sequence. Consequences have the names
of the Sequence Ontology. No model is needed. A codon is scored by its frequency in the coding sequences, in
which a stop codon hardly ever occurs before the end. The residue of the codon is scored with BLOSUM62.

A feature can define a different residue for a codon (`transl_except`, such as selenocysteine at a TGA). The
codon then has this residue.
"""

from __future__ import annotations

import math
import os
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple
from urllib.parse import unquote

from Bio.Data.CodonTable import unambiguous_dna_by_id
from Bio.Data.IUPACData import protein_letters_3to1_extended

from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.data.readers.biopython import entries, parse_entry
from seqmlm.data.readers.features import GFF_COLUMNS, Feature, gff_features, name_among
from seqmlm.domains.dna.tokenizer import reverse_complement
from seqmlm.domains.variants import blosum62
from seqmlm.errors import DataError

LARGEST = 1 << 30
"""Maximum bytes of an entry, such as a chromosome. An entry is read into memory as a whole."""
MOST_GENES = 1_000_000
"""Maximum number of genes that are kept for a file. The largest annotations have a tenth of this."""

_PRODUCTS = ("CDS", "tRNA", "rRNA", "tmRNA", "ncRNA")
_PREFIXES = ("gene-", "gene:", "Gene:")


class Gene(NamedTuple):
    """A gene or part of a gene: the bases from start to end (0-based, half open) of its contig."""

    start: int
    end: int
    name: str


class Genes:
    """The genes of one contig, searchable by position. Duplicates are dropped."""

    def __init__(self, genes: Iterable[Gene]) -> None:
        self._genes = sorted(set(genes))
        self._starts = [gene.start for gene in self._genes]
        self._reached = list(accumulate((gene.end for gene in self._genes), max))

    def __len__(self) -> int:
        return len(self._genes)

    def overlapping(self, start: int, end: int) -> tuple[Gene, ...]:
        """The genes that overlap the bases from start to end (0-based, half open), in order of position."""
        first, last = bisect_right(self._reached, start), bisect_left(self._starts, end)
        return tuple(gene for gene in self._genes[first:last] if gene.end > start)


def overlapping_names(genes: Iterable[Gene], start: int, end: int) -> list[str]:
    """The distinct names of the genes that overlap the bases from start to end, in the order of `genes`.

    >>> overlapping_names([Gene(0, 9, "a"), Gene(5, 8, "b"), Gene(5, 9, "a"), Gene(12, 20, "c")], 6, 12)
    ['a', 'b']
    """
    return list(dict.fromkeys(gene.name for gene in genes if gene.start < end and gene.end > start))


def is_gene(kind: str) -> bool:
    """Whether a feature of this kind is a gene or is named after its gene.

    >>> [is_gene(kind) for kind in ("gene", "pseudogene", "tRNA", "exon")]
    [True, True, True, False]
    """
    return kind.endswith("gene") or kind in _PRODUCTS


def name_of(kind: str, qualifiers: Mapping[str, str]) -> str | None:
    """The name of a feature: its gene or else its locus tag, or None if it has neither.

    For a gene, the attributes `Name` and `ID` of GFF3 are used too.
    """
    keys = ("gene", "Name", "locus_tag", "ID") if kind.endswith("gene") else ("gene", "locus_tag")
    name = next((qualifiers[key] for key in keys if qualifiers.get(key)), None)
    if name is None:
        return None
    prefix = next((candidate for candidate in _PREFIXES if name.startswith(candidate)), "")
    return name.removeprefix(prefix) or None


def local_parts(feature: Any) -> list[Any]:
    """The parts of a Biopython feature that have a position in the entry of the feature."""
    parts = feature.location.parts if feature.location is not None else ()
    return [part for part in parts if part.ref is None and isinstance(part.start + part.end, int)]


def genes_of(path: str, contig: str, problems: Problems) -> Genes | None:
    """The genes of a contig in a GFF3 file, or None if the file has no gene on this contig.

    The file is read once and cached. Contigs without genes are counted in `problems`.

    Raises:
        DataError: the file does not exist, a line is not GFF3, or there are more than `MOST_GENES` genes.
    """
    try:
        facts = os.stat(path)
    except (OSError, ValueError):
        raise DataError("no such gene file", source=path, remedy="check --option genes=FILE") from None
    by_contig = _genes_by_contig(path, facts.st_mtime_ns, facts.st_size, facts.st_ino)
    name = name_among(contig, by_contig)
    if name is None:
        problems.note("a contig without genes in the gene file: its rows have no gene names")
    return None if name is None else by_contig[name]


@lru_cache(maxsize=1)  # the same genes are needed for each file of a genome, and for the estimate of the time
def _genes_by_contig(path: str, *facts: int) -> Mapping[str, Genes]:
    """The genes of a GFF3 file by contig. Time, size and inode (`facts`) tell whether the file changed."""
    by_contig: dict[str, set[Gene]] = {}
    count = 0
    for number, feature in gff_features(path, Problems("raise"), is_gene):
        if (name := name_of(feature.columns[2], _attributes(feature, path, number))) is None:
            continue
        by_contig.setdefault(feature.name, set()).add(Gene(feature.start, feature.end, name))
        count += 1
        if count > MOST_GENES:
            remedy = "keep only the gene lines of the contigs that are scored"
            raise DataError(f"more than {MOST_GENES:,} genes", source=path, line=number, remedy=remedy)
    return {contig: Genes(genes) for contig, genes in by_contig.items()}


def _attributes(feature: Feature, path: str, number: int) -> dict[str, str]:
    """The attributes of a line of GFF3 (column 9), by name."""
    pairs = [part.partition("=") for part in feature.columns[8].split(";") if part.strip()]
    if not all(equals for _, equals, _ in pairs):
        reason = "attributes that are not NAME=VALUE (is the file GTF?)"
        raise DataError(reason, source=path, line=number, remedy=GFF_COLUMNS)
    return {key.strip(): unquote(value.strip()) for key, _, value in pairs}


# Coding sequences

COUNTED = 2_000_000
"""Codons that are counted to estimate codon frequencies. Counting ends with the coding sequence that reaches
this number."""

STOP, FRAMESHIFT, STOP_LOST, START_LOST = "stop_gained", "frameshift_variant", "stop_lost", "start_lost"
PARTLY, INFRAME, MISSENSE = "coding_sequence_variant", "inframe_indel", "missense_variant"
UNKNOWN, SYNONYMOUS = "incomplete_terminal_codon_variant", "synonymous_variant"
WORST = (STOP, FRAMESHIFT, STOP_LOST, START_LOST, PARTLY, INFRAME, MISSENSE, UNKNOWN, SYNONYMOUS)
"""Consequences from the most to the least severe. The severity of `PARTLY` is unknown, because the variant
contains the end of a part of the coding sequence."""

_BACTERIAL = (4, 11, 25)  # genetic codes in which GTG and TTG are start codons too
_STARTS = ("ATG", "GTG", "TTG")
_FACTS = ("gene", "locus_tag", "Name", "protein_id", "transl_table", "partial")
_EXCEPT = "transl_except"
_RECODED = re.compile(r"pos:(.*?),aa:(\w+)")


class Effect(NamedTuple):
    """The effect of a variant on a coding sequence of a gene. `consequence` is one of `WORST`.

    Attributes:
        gene: the name of the gene.
        consequence: the term of the Sequence Ontology.
        change: the change of the protein in HGVS notation (p.Q12*), or "" if it is not a change of one
            residue.
        codon: log-ratio in nats of the probability of the new codons to the probability of the old codons,
            given the old residues. It is None for deletions and insertions, and if a start or stop codon
            is lost.
    """

    gene: str
    consequence: str
    change: str = ""
    codon: float | None = None


class _Part(NamedTuple):
    """Bases start to end (0-based, half open) of a contig, or the bases of its other strand."""

    start: int
    end: int
    reverse: bool


class _Coding(NamedTuple):
    """A coding sequence of a contig.

    Attributes:
        gene: the name of its gene.
        parts: its parts in reading order.
        skipped: bases before its first whole codon.
        table: number of the genetic code at NCBI.
        begins: whether its first codon is the first codon of the protein.
        recoded: residues of codons with a `transl_except`, by 0-based codon number.
    """

    gene: str
    parts: tuple[_Part, ...]
    skipped: int
    table: int
    begins: bool
    recoded: Mapping[int, str]

    @property
    def starts(self) -> tuple[str, ...]:
        """The start codons of the genetic code."""
        return _STARTS if self.table in _BACTERIAL else _STARTS[:1]

    def begins_with(self, codon: str) -> bool:
        """Whether the sequence has its first codon, and this codon is a start codon or is recoded as M."""
        return self.begins and (codon in self.starts or self.recoded.get(0) == "M")

    def residue(self, codon: str, number: int | None = None) -> str:
        """The residue of a codon: `*` for a stop codon, X for a codon with letters that are not bases.

        With a `number`, the codon is the codon of the genome at this number, which can be recoded.
        """
        if number is not None and number in self.recoded:
            return self.recoded[number]
        code = unambiguous_dna_by_id[self.table]
        return "*" if codon in code.stop_codons else code.forward_table.get(codon, "X")


class CodingSequences:
    """The coding sequences of a genome, their codon frequencies, and the effects of variants on them.

    Args:
        path: a GFF3, GenBank or EMBL file (also .gz, .zst). GFF3 lines of type CDS with the same ID are one
            sequence. So are lines with different IDs, if they have the same Parent and their phases continue
            each other.
        genome: the contigs of the genome by name, for random access. A part that extends past the end of a
            contig continues at its beginning, as in a circular genome.

    Raises:
        DataError: the file does not exist, is in none of these formats, or has no coding sequence on a contig
            of the genome.
    """

    def __init__(self, path: str, genome: Any) -> None:
        self._genome = genome
        self._sequences = defaultdict[str, list[_Coding]](list)
        first = next((text for _, text in lines(path, Problems())), "")
        form = {"LOCUS": "genbank", "ID   ": "embl"}.get(first[:5])
        for contig, sequence in _read_gff(path) if form is None else _read_flat(path, form):
            if (name := name_among(contig, genome)) is not None:
                parts = (
                    part
                    for contig_part in sequence.parts
                    for part in _split_at_end(contig_part, len(genome[name]))
                )
                self._sequences[name].append(sequence._replace(parts=tuple(parts)))
        if not self._sequences:
            remedy = "use --set genes=FILE with the GFF3, GenBank or EMBL file of this reference"
            raise DataError(
                "no coding sequence (CDS) is on a contig of the reference", source=path, remedy=remedy
            )
        self._places = {
            name: Genes(
                Gene(x.start, x.end, str(n)) for n, sequence in enumerate(sequences) for x in sequence.parts
            )
            for name, sequences in self._sequences.items()
        }

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """The number of occurrences of each codon in the coding sequences.

        The last codon of each sequence and recoded codons are left out.
        """
        codon_counts = Counter[str]()
        for contig, sequences in self._sequences.items():
            for coding in sequences:
                if codon_counts.total() < COUNTED:
                    codons = self._codons(contig, coding)[:-1]
                    codon_counts.update(codon for n, codon in enumerate(codons) if n not in coding.recoded)
        return codon_counts

    def effect(self, contig: str, start: int, end: int, text: str) -> Effect | None:
        """The most severe effect of replacing bases with `text`, or None outside of coding sequences.

        Args:
            contig: the name of the contig in the genome.
            start, end: the replaced bases (0-based, half open).
            text: the new bases, in capitals.
        """
        places = self._places.get(contig)
        over = () if places is None else places.overlapping(start, max(end, start + 1))
        all_effects = (
            self._effect(contig, self._sequences[contig][number], start, end, text)
            for number in dict.fromkeys(int(gene.name) for gene in over)
        )
        effects = (effect for effect in all_effects if effect is not None)
        return min(effects, key=lambda effect: WORST.index(effect.consequence), default=None)

    def _effect(self, contig: str, coding: _Coding, start: int, end: int, text: str) -> Effect | None:
        """The effect on one coding sequence of replacing bases with `text`, or None outside of it."""
        insertion = start == end  # inserted bases are before base `start`
        if insertion and start == min(part.start for part in coding.parts):
            return None
        inside = any(x.start + insertion <= start and end + insertion <= x.end for x in coding.parts)
        if len(text) != end - start and not inside:
            return Effect(coding.gene, PARTLY)
        ref, alt = self._codons(contig, coding), self._codons(contig, coding, start, end, text)
        if len(text) != end - start:
            return Effect(coding.gene, _indel_consequence(coding, ref, alt, len(text) - (end - start)))
        changed = [number for number, pair in enumerate(zip(ref, alt, strict=True)) if pair[0] != pair[1]]
        if not changed:
            return Effect(coding.gene, UNKNOWN)
        kinds, changes = zip(*(_consequence(coding, n, ref[n], alt[n]) for n in changed), strict=True)
        residues = ((n, coding.residue(ref[n], n), coding.residue(alt[n])) for n in changed)
        estimates = (
            self._ratio(ref[n], alt[n], residue, alt_residue) for n, residue, alt_residue in residues
        )
        ratios = [ratio for ratio in estimates if ratio is not None]
        return Effect(
            gene=coding.gene,
            consequence=min(kinds, key=WORST.index),
            change=f"p.{changes[0]}" if len(changes) == 1 else "",
            codon=sum(ratios) if len(ratios) == len(changed) and START_LOST not in kinds else None,
        )

    def _ratio(self, ref: str, alt: str, residue: str, alt_residue: str) -> float | None:
        """log P(b, its codon | a) / P(a, its codon | a) in nats, for the old residue a and the new residue b.

        BLOSUM62 has log(q_ab / p_a p_b) in half bits. The frequency of the new codon is p_b times the share
        of this codon among the codons of b. The result is None if a is a stop, unknown or not in BLOSUM62, or
        if b is unknown.
        """
        if residue in "*XUOJ" or alt_residue == "X":
            return None
        likeness = (blosum62()[residue, alt_residue] - blosum62()[residue, residue]) * math.log(2) / 2
        return float(likeness + math.log((self.counts[alt] + 1) / (self.counts[ref] + 1)))

    def _codons(
        self, contig: str, coding: _Coding, start: int = 0, end: int = 0, text: str = ""
    ) -> list[str]:
        """The whole codons of a coding sequence in which `text` replaces the bases from start to end."""
        texts = []
        for part in coding.parts:
            letters = str(self._genome[contig][part.start : part.end]).upper()
            low, high = max(part.start, start), min(part.end, end)
            if low < high or (start == end and part.start < start < part.end):
                inner = text[low - start :][: high - low] if len(text) == end - start else text
                letters = letters[: low - part.start] + inner + letters[high - part.start :]
            texts.append(reverse_complement(letters) if part.reverse else letters)
        letters = "".join(texts)[coding.skipped :]
        return [letters[begin:last] for begin, last in pairwise(range(0, len(letters) + 1, 3))]


def _split_at_end(part: _Part, size: int) -> list[_Part]:
    """A part of a contig of `size` bases; divided in two, in reading order, if it extends past the end."""
    if part.end <= size:
        return [part]
    halves = [part._replace(end=size), part._replace(start=0, end=part.end - size)]
    return halves[::-1] if part.reverse else halves


def _read_gff(path: str) -> Iterator[tuple[str, _Coding]]:
    """The coding sequences of a GFF3 file, each with its contig."""
    phased_parts = dict[tuple[str, str], list[tuple[_Part, int]]]()
    facts = dict[tuple[str, str], dict[str, str]]()
    of_parent = defaultdict[tuple[str, str], list[tuple[str, str]]](list)
    for number, feature in gff_features(path, Problems("raise"), lambda kind: kind == "CDS"):
        attributes = _attributes(feature, path, number)
        key = feature.name, attributes.get("ID") or attributes.get("Parent") or str(number)
        if key not in phased_parts:
            phased_parts[key] = []
            facts[key] = {name: attributes[name] for name in _FACTS if name in attributes}
            of_parent[feature.name, attributes.get("Parent", "")].append(key)
        facts[key][_EXCEPT] = facts[key].get(_EXCEPT, "") + attributes.get(_EXCEPT, "")
        phase = int(feature.columns[7]) if feature.columns[7] in ("1", "2") else 0
        phased_parts[key].append((_Part(feature.start, feature.end, feature.columns[6] == "-"), phase))
    for (_, parent), keys in of_parent.items():
        first, *later_keys = keys
        together = [part for key in keys for part in phased_parts[key]]
        if parent and later_keys and len(together) == len(keys) and _phases_fit(together):
            phased_parts[first] = together
            for key in later_keys:
                facts[first][_EXCEPT] += facts[key][_EXCEPT]
                del phased_parts[key]
    for key, unordered in phased_parts.items():
        parts = _reading_order(unordered)
        yield key[0], _coding([part for part, _ in parts], facts[key], key[1], parts[0][1])


def _reading_order(parts: Sequence[tuple[_Part, int]]) -> list[tuple[_Part, int]]:
    """The parts in reading order: by position on their strand. If they are on both strands, the order of the
    file is kept."""
    if len({part.reverse for part, _ in parts}) > 1:
        return list(parts)
    return sorted(parts, key=lambda pair: pair[0].start, reverse=parts[0][0].reverse)


def _phases_fit(parts: Sequence[tuple[_Part, int]]) -> bool:
    """Whether the parts are one coding sequence: they do not overlap, and the phase of each part completes
    the last codon of the previous part."""
    length, spans = 0, sorted(part[:2] for part, _ in parts)
    for part, phase in (ordered := _reading_order(parts)):
        if length and phase != -length % 3:
            return False
        length += part.end - part.start - (phase if (part, phase) == ordered[0] else 0)
    return all(span[1] <= next_span[0] for span, next_span in pairwise(spans))


def _read_flat(path: str, form: str) -> Iterator[tuple[str, _Coding]]:
    """The coding sequences of GenBank or EMBL entries, each with its contig. Sequences with a part in another
    entry are left out."""
    from Bio import SeqIO

    problems = Problems("raise")
    for entry in entries(path, problems, LARGEST, "entry"):
        for record in parse_entry(partial(SeqIO.parse, format=form), entry, "an entry", path, problems)[0]:
            for feature in (candidate for candidate in record.features if candidate.type == "CDS"):
                facts = {key: values[0] for key, values in feature.qualifiers.items()}
                facts[_EXCEPT] = "".join(feature.qualifiers.get(_EXCEPT, ()))
                if (located := local_parts(feature)) and len(located) == len(feature.location.parts):
                    skipped = {"2": 1, "3": 2}.get(facts.get("codon_start", ""), 0)
                    parts = [_Part(int(part.start), int(part.end), part.strand == -1) for part in located]
                    if any(type(x).__name__ != "ExactPosition" for x in (located[0].start, located[0].end)):
                        facts["partial"] = "true"
                    yield record.id, _coding(parts, facts, record.id, skipped)


def _coding(parts: Sequence[_Part], facts: Mapping[str, str], key: str, skipped: int) -> _Coding:
    """Make a coding sequence from its parts and the attributes of its feature.

    `key` is its name if the attributes have none. `skipped` is the number of bases before the first codon.
    """
    table = facts.get("transl_table", "")
    code = int(table) if table.isdigit() and int(table) in unambiguous_dna_by_id else 1
    gene = name_of("CDS", facts) or facts.get("Name") or facts.get("protein_id") or key
    begins = not skipped and facts.get("partial") != "true"
    return _Coding(
        gene, tuple(parts), skipped, code, begins, _recoded_residues(facts[_EXCEPT], parts, skipped)
    )


def _recoded_residues(text: str, parts: Sequence[_Part], skipped: int) -> dict[int, str]:
    """The residues from `transl_except` by codon number: a letter, or `*` for a stop."""
    residues = {}
    for where, name in _RECODED.findall(re.sub(r"\s", "", text)):
        places = {int(number) - 1 for number in re.findall(r"\d+", where)}
        done, inside = 0, list[int]()
        for part in parts:
            covered = [place for place in places if part.start <= place < part.end]
            inside += [
                done + (part.end - 1 - place if part.reverse else place - part.start) for place in covered
            ]
            done += part.end - part.start
        if inside:
            letter = "*" if name == "TERM" else protein_letters_3to1_extended.get(name.capitalize(), "X")
            residues[(min(inside) - skipped) // 3] = letter
    return residues


def _indel_consequence(coding: _Coding, ref: Sequence[str], alt: Sequence[str], excess: int) -> str:
    """The consequence of a deletion or insertion within a part. The length changes by `excess` bases."""
    if excess % 3:
        return FRAMESHIFT
    if not alt or (coding.begins_with(ref[0]) and ref[0] != alt[0] and alt[0] not in coding.starts):
        return START_LOST
    head = _common_start(ref, alt)
    tail = min(
        _common_start(ref[::-1], alt[::-1]),
        len(ref) - head,
        len(alt) - head,
    )
    numbers = [
        *range(head),
        *[None] * (len(alt) - head - tail),
        *range(len(ref) - tail, len(ref)),
    ]
    stops = [coding.residue(codon, number) == "*" for codon, number in zip(alt, numbers, strict=True)]
    if any(stops[:-1]):
        return STOP
    return STOP_LOST if coding.residue(ref[-1], len(ref) - 1) == "*" and not stops[-1] else INFRAME


def _common_start(first: Sequence[str], second: Sequence[str]) -> int:
    """The number of equal codons at the start of two sequences."""
    return [*(a == b for a, b in zip(first, second, strict=False)), False].index(False)


def _consequence(coding: _Coding, number: int, ref: str, alt: str) -> tuple[str, str]:
    """The consequence of replacing codon `ref` with `alt`, and the change of the residue in HGVS notation."""
    residue, alt_residue = coding.residue(ref, number), coding.residue(alt)
    if number == 0 and coding.begins_with(ref):
        is_start = alt in coding.starts
        return (SYNONYMOUS, "M1=") if is_start else (START_LOST, "M1?")
    change = f"{residue}{number + 1}{'=' if residue == alt_residue else alt_residue}"
    if "X" in (residue, alt_residue):
        return UNKNOWN, change
    if residue == alt_residue:
        return SYNONYMOUS, change
    return STOP if alt_residue == "*" else STOP_LOST if residue == "*" else MISSENSE, change
