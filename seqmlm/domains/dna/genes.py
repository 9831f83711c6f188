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
from seqmlm.data.readers.biopython import entries, parsed
from seqmlm.data.readers.features import GFF_COLUMNS, Feature, gff_features, known_as
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


def placed(feature: Any) -> list[Any]:
    """The parts of a feature of Biopython that have a place in its own entry."""
    parts = feature.location.parts if feature.location is not None else ()
    return [one for one in parts if one.ref is None and isinstance(one.start + one.end, int)]


def genes_of(path: str, contig: str, problems: Problems) -> Genes | None:
    """The genes of a contig in a GFF3 file, which is read once; None, noted, for one that it does not name.

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
        if (name := name_of(one.columns[2], _attributes(one, path, number))) is None:
            continue
        found.setdefault(one.name, set()).add(Gene(one.start, one.end, name))
        count += 1
        if count > MOST_GENES:
            remedy = "keep the lines of genes alone, and of the contigs that are scored"
            raise DataError(f"more than {MOST_GENES:,} genes", source=path, line=number, remedy=remedy)
    return {contig: Genes(genes) for contig, genes in found.items()}


def _attributes(one: Feature, path: str, number: int) -> dict[str, str]:
    """Those of a line of GFF3."""
    pairs = [part.partition("=") for part in one.columns[8].split(";") if part.strip()]
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
    """What a variant does to a coding sequence, of a gene; the consequence is one of `WORST`.

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
        """Whether a protein does, with a first codon that is a start, or is read as one."""
        return self.begins and (codon in self.starts or self.recoded.get(0) == "M")

    def residue(self, codon: str, number: int | None = None) -> str:
        """X of letters that are no bases, * of a stop; of the genome's own codons by their number, too."""
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
        self._known = defaultdict[str, list[_Coding]](list)
        first = next((text for _, text in lines(path, Problems())), "")
        form = {"LOCUS": "genbank", "ID   ": "embl"}.get(first[:5])
        for contig, one in _of_gff(path) if form is None else _of_flat(path, form):
            if (name := known_as(contig, genome)) is not None:
                parts = (part for own in one.parts for part in _within(own, len(genome[name])))
                self._known[name].append(one._replace(parts=tuple(parts)))
        if not self._known:
            remedy = "give the GFF3 or GenBank file of this reference with --set genes=FILE"
            raise DataError(
                "no coding sequence (CDS) on a contig of the reference", source=path, remedy=remedy
            )
        self._places = {
            name: Genes(Gene(x.start, x.end, str(n)) for n, one in enumerate(found) for x in one.parts)
            for name, found in self._known.items()
        }

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """How often each codon stands in coding sequences, the last and recoded ones of each left out."""
        found = Counter[str]()
        for contig, sequences in self._known.items():
            for one in sequences:
                if found.total() < COUNTED:
                    codons = self._codons(contig, one)[:-1]
                    found.update(codon for n, codon in enumerate(codons) if n not in one.recoded)
        return found

    def effect(self, contig: str, start: int, end: int, text: str) -> Effect | None:
        """The worst effect of some text (capitals) in place of bases start to end (0-based, half open) of a
        contig, as the genome calls it; None outside of coding sequences."""
        places = self._places.get(contig)
        over = () if places is None else places.over(start, max(end, start + 1))
        every = (
            self._effect(contig, self._known[contig][number], start, end, text)
            for number in dict.fromkeys(int(one.name) for one in over)
        )
        effects = (one for one in every if one is not None)
        return min(effects, key=lambda one: WORST.index(one.consequence), default=None)

    def _effect(self, contig: str, one: _Coding, start: int, end: int, text: str) -> Effect | None:
        behind = start == end  # the first base, where something stands between two
        if behind and start == min(part.start for part in one.parts):
            return None
        inside = any(x.start + behind <= start and end + behind <= x.end for x in one.parts)
        if len(text) != end - start and not inside:
            return Effect(one.gene, PARTLY)
        old, new = self._codons(contig, one), self._codons(contig, one, start, end, text)
        if len(text) != end - start:
            return Effect(one.gene, _of_lengths(one, old, new, len(text) - (end - start)))
        changed = [number for number, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1]]
        if not changed:
            return Effect(one.gene, UNKNOWN)
        kinds, changes = zip(*(_consequence(one, n, old[n], new[n]) for n in changed), strict=True)
        residues = ((n, one.residue(old[n], n), one.residue(new[n])) for n in changed)
        every = (self._ratio(old[n], new[n], was, now) for n, was, now in residues)
        ratios = [ratio for ratio in every if ratio is not None]
        return Effect(
            gene=one.gene,
            consequence=min(kinds, key=WORST.index),
            change=f"p.{changes[0]}" if len(changes) == 1 else "",
            codon=sum(ratios) if len(ratios) == len(changed) and START_LOST not in kinds else None,
        )

    def _ratio(self, old: str, new: str, was: str, now: str) -> float | None:
        """P(b, its codon | a) / P(a, its codon | a): BLOSUM62 has log(q_ab / p_a p_b) in half bits, and what
        p_b and the codon's share of b are together is how frequent the codon is. Of a stop, of what is not
        known, and of the residues that it does not have, it says nothing."""
        if was in "*XUOJ" or now == "X":
            return None
        likeness = (blosum62()[was, now] - blosum62()[was, was]) * math.log(2) / 2
        return float(likeness + math.log((self.counts[new] + 1) / (self.counts[old] + 1)))

    def _codons(self, contig: str, one: _Coding, start: int = 0, end: int = 0, text: str = "") -> list[str]:
        """Its whole codons, with some text in place of bases start to end."""
        found = []
        for part in one.parts:
            letters = str(self._genome[contig][part.start : part.end]).upper()
            low, high = max(part.start, start), min(part.end, end)
            if low < high or (start == end and part.start < start < part.end):
                inner = text[low - start :][: high - low] if len(text) == end - start else text
                letters = letters[: low - part.start] + inner + letters[high - part.start :]
            found.append(reverse_complement(letters) if part.reverse else letters)
        letters = "".join(found)[one.skipped :]
        return [letters[begin:last] for begin, last in pairwise(range(0, len(letters) + 1, 3))]


def _within(part: _Part, size: int) -> list[_Part]:
    """A part of a contig, in two where it reaches behind its end."""
    if part.end <= size:
        return [part]
    both = [part._replace(end=size), part._replace(start=0, end=part.end - size)]
    return both[::-1] if part.reverse else both


def _of_gff(path: str) -> Iterator[tuple[str, _Coding]]:
    """The coding sequences of a GFF3 file, with their contigs."""
    found = dict[tuple[str, str], list[tuple[_Part, int]]]()
    facts = dict[tuple[str, str], dict[str, str]]()
    of_parent = defaultdict[tuple[str, str], list[tuple[str, str]]](list)
    for number, one in gff_features(path, Problems("raise"), lambda kind: kind == "CDS"):
        own = _attributes(one, path, number)
        key = one.name, own.get("ID") or own.get("Parent") or str(number)
        if key not in found:
            found[key], facts[key] = [], {name: own[name] for name in _FACTS if name in own}
            of_parent[one.name, own.get("Parent", "")].append(key)
        facts[key][_EXCEPT] = facts[key].get(_EXCEPT, "") + own.get(_EXCEPT, "")
        phase = int(one.columns[7]) if one.columns[7] in ("1", "2") else 0
        found[key].append((_Part(one.start, one.end, one.columns[6] == "-"), phase))
    for (_, parent), keys in of_parent.items():
        first, *others = keys
        together = [part for key in keys for part in found[key]]
        if parent and others and len(together) == len(keys) and _go_on(together):
            found[first] = together
            for key in others:
                facts[first][_EXCEPT] += facts[key][_EXCEPT]
                del found[key]
    for key, some in found.items():
        parts = _in_order(some)
        yield key[0], _coding([part for part, _ in parts], facts[key], key[1], parts[0][1])


def _in_order(parts: Sequence[tuple[_Part, int]]) -> list[tuple[_Part, int]]:
    """As they are read: by place, of both strands as the file has them."""
    if len({part.reverse for part, _ in parts}) > 1:
        return list(parts)
    return sorted(parts, key=lambda one: one[0].start, reverse=parts[0][0].reverse)


def _go_on(parts: Sequence[tuple[_Part, int]]) -> bool:
    """Whether each part begins with as many bases as are missing of a codon, and behind the one before."""
    length, apart = 0, sorted(part[:2] for part, _ in parts)
    for part, phase in (own := _in_order(parts)):
        if length and phase != -length % 3:
            return False
        length += part.end - part.start - (phase if (part, phase) == own[0] else 0)
    return all(one[1] <= two[0] for one, two in pairwise(apart))


def _of_flat(path: str, form: str) -> Iterator[tuple[str, _Coding]]:
    """The coding sequences of GenBank or EMBL entries, without those that are partly of another entry."""
    from Bio import SeqIO

    problems = Problems("raise")
    for entry in entries(path, problems, LARGEST, "entry"):
        for record in parsed(partial(SeqIO.parse, format=form), entry, "an entry", path, problems)[0]:
            for feature in (one for one in record.features if one.type == "CDS"):
                facts = {key: values[0] for key, values in feature.qualifiers.items()}
                facts[_EXCEPT] = "".join(feature.qualifiers.get(_EXCEPT, ()))
                if (own := placed(feature)) and len(own) == len(feature.location.parts):
                    skipped = {"2": 1, "3": 2}.get(facts.get("codon_start", ""), 0)
                    parts = [_Part(int(one.start), int(one.end), one.strand == -1) for one in own]
                    if any(type(x).__name__ != "ExactPosition" for x in (own[0].start, own[0].end)):
                        facts["partial"] = "true"
                    yield record.id, _coding(parts, facts, record.id, skipped)


def _coding(parts: Sequence[_Part], facts: Mapping[str, str], key: str, skipped: int) -> _Coding:
    table = facts.get("transl_table", "")
    code = int(table) if table.isdigit() and int(table) in unambiguous_dna_by_id else 1
    gene = name_of("CDS", facts) or facts.get("Name") or facts.get("protein_id") or key
    begins, recoded = not skipped and facts.get("partial") != "true", _recoded(facts[_EXCEPT], parts, skipped)
    return _Coding(gene, tuple(parts), skipped, code, begins, recoded)


def _recoded(told: str, parts: Sequence[_Part], skipped: int) -> dict[int, str]:
    """The residues of codons that `transl_except` names by places in the contig: a letter, * of a stop."""
    found = {}
    for where, name in _RECODED.findall(re.sub(r"\s", "", told)):
        places = {int(one) - 1 for one in re.findall(r"\d+", where)}
        done, inside = 0, list[int]()
        for one in parts:
            own = [place for place in places if one.start <= place < one.end]
            inside += [done + (one.end - 1 - place if one.reverse else place - one.start) for place in own]
            done += one.end - one.start
        if inside:
            letter = "*" if name == "TERM" else protein_letters_3to1_extended.get(name.capitalize(), "X")
            found[(min(inside) - skipped) // 3] = letter
    return found


def _of_lengths(one: _Coding, old: Sequence[str], new: Sequence[str], more: int) -> str:
    """The consequence of a deletion or an insertion within a part."""
    if more % 3:
        return FRAMESHIFT
    if not new or (one.begins_with(old[0]) and old[0] != new[0] and new[0] not in one.starts):
        return START_LOST
    before = _alike(old, new)
    behind = min(_alike(old[::-1], new[::-1]), len(old) - before, len(new) - before)
    numbers = [*range(before), *[None] * (len(new) - before - behind), *range(len(old) - behind, len(old))]
    stops = [one.residue(codon, number) == "*" for codon, number in zip(new, numbers, strict=True)]
    if any(stops[:-1]):
        return STOP
    return STOP_LOST if one.residue(old[-1], len(old) - 1) == "*" and not stops[-1] else INFRAME


def _alike(one: Sequence[str], other: Sequence[str]) -> int:
    """How many are the same in both from the first on."""
    return [*(a == b for a, b in zip(one, other, strict=False)), False].index(False)


def _consequence(one: _Coding, number: int, old: str, new: str) -> tuple[str, str]:
    """The consequence of a codon for another one, and the change of the residue."""
    was, now = one.residue(old, number), one.residue(new)
    if number == 0 and one.begins_with(old):
        kept = new in one.starts
        return (SYNONYMOUS, "M1=") if kept else (START_LOST, "M1?")
    change = f"{was}{number + 1}{'=' if was == now else now}"
    if "X" in (was, now):
        return UNKNOWN, change
    if was == now:
        return SYNONYMOUS, change
    return STOP if now == "*" else STOP_LOST if was == "*" else MISSENSE, change
