"""Genes along contigs: of the feature tables of GenBank and EMBL entries, and of GFF3 files beside a genome.

Only names and places are kept, of genes and of what is named after one (a coding sequence, a tRNA): a tenth
of a percent of the size of a genome.

What a variant does to proteins needs the parts of coding sequences. Consequences have the names of
the Sequence Ontology. No model is asked: a codon counts by how frequent it is in the coding sequences
themselves, where a stop hardly ever stands before the end, and its residue by BLOSUM62. A codon that a
feature says to be read otherwise (`transl_except`: selenocysteine at a TGA) is what it is read as.
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
    """The genes of one contig, given in any order; equal ones count once."""

    def __init__(self, genes: Iterable[Gene]) -> None:
        self._genes = sorted(set(genes))
        self._starts = [gene.start for gene in self._genes]
        self._reached = list(accumulate((gene.end for gene in self._genes), max))

    def __len__(self) -> int:
        return len(self._genes)

    def overlapping(self, start: int, end: int) -> tuple[Gene, ...]:
        """The genes that share a base with the bases start to end (0-based, half open), by place."""
        first, last = bisect_right(self._reached, start), bisect_left(self._starts, end)
        return tuple(gene for gene in self._genes[first:last] if gene.end > start)


def overlapping_names(genes: Iterable[Gene], start: int, end: int) -> list[str]:
    """The names of the genes that share a base with the bases start to end, each once, by place.

    >>> overlapping_names([Gene(0, 9, "a"), Gene(5, 8, "b"), Gene(5, 9, "a"), Gene(12, 20, "c")], 6, 12)
    ['a', 'b']
    """
    return list(dict.fromkeys(gene.name for gene in genes if gene.start < end and gene.end > start))


def is_gene(kind: str) -> bool:
    """Whether a feature of this kind is a gene, or is named after one.

    >>> [is_gene(kind) for kind in ("gene", "pseudogene", "tRNA", "exon")]
    [True, True, True, False]
    """
    return kind.endswith("gene") or kind in _PRODUCTS


def name_of(kind: str, qualifiers: Mapping[str, str]) -> str | None:
    """The name of a feature: its gene, else its locus; of a gene of GFF3 also its name or identifier."""
    keys = ("gene", "Name", "locus_tag", "ID") if kind.endswith("gene") else ("gene", "locus_tag")
    name = next((qualifiers[key] for key in keys if qualifiers.get(key)), None)
    if name is None:
        return None
    prefix = next((candidate for candidate in _PREFIXES if name.startswith(candidate)), "")
    return name.removeprefix(prefix) or None


def local_parts(feature: Any) -> list[Any]:
    """The parts of a feature of Biopython that have a place in its own entry."""
    parts = feature.location.parts if feature.location is not None else ()
    return [part for part in parts if part.ref is None and isinstance(part.start + part.end, int)]


def genes_of(path: str, contig: str, problems: Problems) -> Genes | None:
    """The genes of a contig in a GFF3 file, which is read once; None, noted, for one that it does not name.

    Raises:
        DataError: a line that is not GFF3, or too many genes.
    """
    try:
        facts = os.stat(path)
    except (OSError, ValueError):
        raise DataError("no such file of genes", source=path, remedy="check --option genes=FILE") from None
    by_contig = _genes_by_contig(path, facts.st_mtime_ns, facts.st_size, facts.st_ino)
    name = name_among(contig, by_contig)
    if name is None:
        problems.note("a contig without any gene in the file of genes")
    return None if name is None else by_contig[name]


@lru_cache(maxsize=1)  # a genome is read file by file, and its beginning to estimate what a scoring takes
def _genes_by_contig(path: str, *facts: int) -> Mapping[str, Genes]:
    """The genes of a GFF3 file by contig; equal facts are the same file."""
    by_contig: dict[str, set[Gene]] = {}
    count = 0
    for number, feature in gff_features(path, Problems("raise"), is_gene):
        if (name := name_of(feature.columns[2], _attributes(feature, path, number))) is None:
            continue
        by_contig.setdefault(feature.name, set()).add(Gene(feature.start, feature.end, name))
        count += 1
        if count > MOST_GENES:
            remedy = "keep the lines of genes alone, and of the contigs that are scored"
            raise DataError(f"more than {MOST_GENES:,} genes", source=path, line=number, remedy=remedy)
    return {contig: Genes(genes) for contig, genes in by_contig.items()}


def _attributes(feature: Feature, path: str, number: int) -> dict[str, str]:
    """The attributes of a line of GFF3, by name."""
    pairs = [part.partition("=") for part in feature.columns[8].split(";") if part.strip()]
    if not all(equals for _, equals, _ in pairs):
        reason = "attributes that are not NAME=VALUE (is it GTF?)"
        raise DataError(reason, source=path, line=number, remedy=GFF_COLUMNS)
    return {key.strip(): unquote(value.strip()) for key, _, value in pairs}


# Coding sequences

COUNTED = 2_000_000
"""Codons by whose number all are judged."""

STOP, FRAMESHIFT, STOP_LOST, START_LOST = "stop_gained", "frameshift_variant", "stop_lost", "start_lost"
PARTLY, INFRAME, MISSENSE = "coding_sequence_variant", "inframe_indel", "missense_variant"
UNKNOWN, SYNONYMOUS = "incomplete_terminal_codon_variant", "synonymous_variant"
WORST = (STOP, FRAMESHIFT, STOP_LOST, START_LOST, PARTLY, INFRAME, MISSENSE, UNKNOWN, SYNONYMOUS)
"""By how much they change; of `PARTLY` that cannot be told, as the end of a part is in it."""

_BACTERIAL = (4, 11, 25)  # genetic codes in which GTG and TTG begin proteins, too
_STARTS = ("ATG", "GTG", "TTG")
_FACTS = ("gene", "locus_tag", "Name", "protein_id", "transl_table", "partial")
_EXCEPT = "transl_except"
_RECODED = re.compile(r"pos:(.*?),aa:(\w+)")


class Effect(NamedTuple):
    """The effect of a variant on a coding sequence of a gene; the consequence is one of `WORST`.

    change: of the protein, as HGVS has it (p.Q12*); "" of others than single residues.
    codon: log-ratio of the new codons' probability in place of the old residues to that of the old codons,
    nats; None of deletions and insertions, and where a start or a stop is lost.
    """

    gene: str
    consequence: str
    change: str = ""
    codon: float | None = None


class _Part(NamedTuple):
    """Bases start to end (0-based, half open) of a contig, or those of its other strand."""

    start: int
    end: int
    reverse: bool


class _Coding(NamedTuple):
    """A coding sequence of a contig, its parts in the order in which they are read.

    skipped: bases in front of its first whole codon. table: of NCBI's genetic codes. begins: whether its
    first codon is the first of the protein. recoded: residues of codons, by number, that are read otherwise.
    """

    gene: str
    parts: tuple[_Part, ...]
    skipped: int
    table: int
    begins: bool
    recoded: Mapping[int, str]

    @property
    def starts(self) -> tuple[str, ...]:
        """Codons that a protein begins with."""
        return _STARTS if self.table in _BACTERIAL else _STARTS[:1]

    def begins_with(self, codon: str) -> bool:
        """Whether a protein begins with a codon that is a start, or is read as one."""
        return self.begins and (codon in self.starts or self.recoded.get(0) == "M")

    def residue(self, codon: str, number: int | None = None) -> str:
        """The residue of a codon: X of letters that are no bases, * of a stop. With a `number`, the codon is
        the genome's own, which may be recoded."""
        if number is not None and number in self.recoded:
            return self.recoded[number]
        code = unambiguous_dna_by_id[self.table]
        return "*" if codon in code.stop_codons else code.forward_table.get(codon, "X")


class CodingSequences:
    """The coding sequences of a genome.

    Args:
        path: GFF3, GenBank or EMBL (also .gz, .zst). Lines of GFF3 of type CDS with one ID are one sequence,
            and lines with an ID each where they have one Parent and phases that go on.
        genome: its contigs by name, for random access; what reaches behind the end of one goes on at its
            beginning.

    Raises:
        DataError: no such file, one that is none of these, or no coding sequence on a contig of the genome.
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
            remedy = "give the GFF3 or GenBank file of this reference with --set genes=FILE"
            raise DataError(
                "no coding sequence (CDS) on a contig of the reference", source=path, remedy=remedy
            )
        self._places = {
            name: Genes(
                Gene(x.start, x.end, str(n)) for n, sequence in enumerate(sequences) for x in sequence.parts
            )
            for name, sequences in self._sequences.items()
        }

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """How often each codon stands in coding sequences, the last and recoded ones of each left out."""
        codon_counts = Counter[str]()
        for contig, sequences in self._sequences.items():
            for coding in sequences:
                if codon_counts.total() < COUNTED:
                    codons = self._codons(contig, coding)[:-1]
                    codon_counts.update(codon for n, codon in enumerate(codons) if n not in coding.recoded)
        return codon_counts

    def effect(self, contig: str, start: int, end: int, text: str) -> Effect | None:
        """The worst effect of some text (capitals) in place of bases start to end (0-based, half open) of a
        contig, as the genome calls it; None outside of coding sequences."""
        places = self._places.get(contig)
        over = () if places is None else places.overlapping(start, max(end, start + 1))
        all_effects = (
            self._effect(contig, self._sequences[contig][number], start, end, text)
            for number in dict.fromkeys(int(gene.name) for gene in over)
        )
        effects = (effect for effect in all_effects if effect is not None)
        return min(effects, key=lambda effect: WORST.index(effect.consequence), default=None)

    def _effect(self, contig: str, coding: _Coding, start: int, end: int, text: str) -> Effect | None:
        """The effect of a text in place of bases start to end on one coding sequence; None outside of it."""
        insertion = start == end  # the first base, where something stands between two
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
        """log P(b, its codon | a) / P(a, its codon | a) in nats: BLOSUM62 has log(q_ab / p_a p_b) in half
        bits, and p_b times the codon's share of b is how frequent the codon is. None for a stop, for an
        unknown residue, and for residues that BLOSUM62 does not have."""
        if residue in "*XUOJ" or alt_residue == "X":
            return None
        likeness = (blosum62()[residue, alt_residue] - blosum62()[residue, residue]) * math.log(2) / 2
        return float(likeness + math.log((self.counts[alt] + 1) / (self.counts[ref] + 1)))

    def _codons(
        self, contig: str, coding: _Coding, start: int = 0, end: int = 0, text: str = ""
    ) -> list[str]:
        """The whole codons of a coding sequence, with some text in place of bases start to end."""
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
    """A part of a contig, in two where it reaches behind its end."""
    if part.end <= size:
        return [part]
    halves = [part._replace(end=size), part._replace(start=0, end=part.end - size)]
    return halves[::-1] if part.reverse else halves


def _read_gff(path: str) -> Iterator[tuple[str, _Coding]]:
    """The coding sequences of a GFF3 file, with their contigs."""
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
    """The parts in the order in which they are read: by place; of both strands as the file has them."""
    if len({part.reverse for part, _ in parts}) > 1:
        return list(parts)
    return sorted(parts, key=lambda pair: pair[0].start, reverse=parts[0][0].reverse)


def _phases_fit(parts: Sequence[tuple[_Part, int]]) -> bool:
    """Whether each part begins with as many bases as are missing of a codon, and behind the one before."""
    length, spans = 0, sorted(part[:2] for part, _ in parts)
    for part, phase in (ordered := _reading_order(parts)):
        if length and phase != -length % 3:
            return False
        length += part.end - part.start - (phase if (part, phase) == ordered[0] else 0)
    return all(span[1] <= next_span[0] for span, next_span in pairwise(spans))


def _read_flat(path: str, form: str) -> Iterator[tuple[str, _Coding]]:
    """The coding sequences of GenBank or EMBL entries, without those that are partly of another entry."""
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
    """A coding sequence of its parts and of what its feature says."""
    table = facts.get("transl_table", "")
    code = int(table) if table.isdigit() and int(table) in unambiguous_dna_by_id else 1
    gene = name_of("CDS", facts) or facts.get("Name") or facts.get("protein_id") or key
    begins = not skipped and facts.get("partial") != "true"
    return _Coding(
        gene, tuple(parts), skipped, code, begins, _recoded_residues(facts[_EXCEPT], parts, skipped)
    )


def _recoded_residues(text: str, parts: Sequence[_Part], skipped: int) -> dict[int, str]:
    """The residues that `transl_except` gives to codons, by number: a letter, or * of a stop."""
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
    """The consequence of a deletion or an insertion within a part."""
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
    """The number of codons that two sequences have in common from the first on."""
    return [*(a == b for a, b in zip(first, second, strict=False)), False].index(False)


def _consequence(coding: _Coding, number: int, ref: str, alt: str) -> tuple[str, str]:
    """The consequence of a codon for another one, and the change of the residue."""
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
