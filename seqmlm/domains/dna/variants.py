"""Variants of genomes: VCF and tables of chrom, pos, ref and alt, checked against the reference.

A variant's wild type is the window of the reference in whose middle it stands; at an end of a contig the
window is shifted, not padded. Files are read as a stream, the reference by random access: neither is held
whole. Alleles that are no sequence (`*`, `<DEL>`, breakends) are passed over and counted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote

import numpy as np
from Bio.Data.IUPACData import ambiguous_dna_values

from seqmlm.data.files import stem_suffix
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.data.readers.features import name_among
from seqmlm.data.rows import read_rows
from seqmlm.domains.dna.bed import open_genome
from seqmlm.domains.dna.genes import CodingSequences, Effect
from seqmlm.domains.dna.tokenizer import BASES, reverse_complement
from seqmlm.domains.variants import (
    Edit,
    Predict,
    Variant,
    Variants,
    VariantTable,
    additive_prediction,
    bad_variant,
    changes,
    lower_names,
)
from seqmlm.errors import DataError, UsageError, number_of

WINDOW = 512
"""Bases of a window at most."""

FLANK = 16
"""Bases at each side of a variant that its PLL-delta counts: effects fade with them, the cost does not."""

CODED = "a place where the reference has a code for several bases: taken as the allele's"

FIRST_ROWS = 1000
"""Alleles by which it is told whether a file is of another genome."""

MOST_WRONG = 0.05
"""Share of wrong reference bases among them, from which on it is."""

LEAST_WRONG = 5  # of them at least: one wrong row of ten is a wrong row

INFO, EXCESS, CODING = "SEQMLM_LLR", "SEQMLM_EXCESS", "SEQMLM_CODING"
"""The INFO fields of a scored VCF: of substitutions; of deletions and insertions, which do not compare; of
what is coding."""

NAMES: Mapping[str, tuple[str, ...]] = {
    "chrom": ("#chrom", "chrom", "chr", "contig", "chromosome"),
    "pos": ("pos", "position"),
    "ref": ("ref", "reference"),
    "alt": ("alt", "alternative", "alternate"),
}

_BASES = re.compile(r"[ACGTNacgtn]+")
_NUMBER = re.compile(r"\d{1,18}")
COLUMNS = ("chrom", "pos", "ref", "alt")
_SUFFIXES = (".vcf", ".vcf.gz", ".vcf.bgz")


class _Allele(NamedTuple):
    """An allele as it is written; where `bad` says what is wrong with its line, the others mean nothing."""

    line: int
    chrom: str
    pos: int
    ref: str
    alt: str
    fields: Mapping[str, Any]
    bad: str = ""


class DNAVariants(Variants):
    """Variants of genomes."""

    letters = BASES
    windows = True
    columns: Sequence[str] = COLUMNS
    display_columns, counted = Effect._fields, "consequence"
    formats: ClassVar[Mapping[str, Sequence[str]]] = {"vcf": _SUFFIXES}

    def table_variants(self, table: VariantTable, problems: Problems) -> Iterator[Variant]:
        if table.wildtype is None:
            raise UsageError("variants of DNA are checked against a genome: name it with --reference FILE.fa")
        if table.column is not None or table.first is not None:
            raise UsageError("column and first are for proteins; DNA has chrom, pos, ref and alt")
        if table.copied and not _is_vcf(table.path):
            raise UsageError("a scored VCF is a copy of a VCF, and the variants are a table: name a .csv")
        with open_genome(table.wildtype, "--reference") as genome:
            place = _GenomeWindows(genome, table, problems)
            self.columns = place.columns
            alleles = _vcf_alleles(table) if _is_vcf(table.path) else _table_alleles(table.path)
            first = list(islice(alleles, FIRST_ROWS))
            place.check_genome(first)
            for allele in chain(first, alleles):
                try:
                    variant = place(allele)
                except ValueError as error:
                    problems.bad(bad_variant(str(error), table.path, allele.line))
                    continue
                if variant is not None:
                    yield variant

    def mirrored(self, variant: Variant) -> Variant | None:
        """The reverse complement."""
        size = len(variant.wildtype)
        edits = tuple(
            Edit(size - edit.end, size - edit.start, reverse_complement(edit.text))
            for edit in reversed(variant.edits)
        )
        return replace(variant, wildtype=reverse_complement(variant.wildtype), edits=edits)

    def rivals(self, wildtypes: Sequence[str], alignment: str | None) -> Mapping[str, Predict]:
        """Transitions before transversions; how frequent the triplet of bases is in the windows, and, where
        genes are known, the codon in these."""
        if alignment is not None:
            raise UsageError("an alignment is for proteins: a genome's variants have no family")
        counts = Counter[str]()
        for text in wildtypes:
            for strand in (text, reverse_complement(text)):
                counts.update(strand[i : i + 3] for i in range(len(strand) - 2))

        def transition(wildtype: str, at: int, new_base: str) -> float:
            """0 for a transition, -1 for a transversion."""
            return 0.0 if {wildtype[at], new_base} in ({"A", "G"}, {"C", "T"}) else -1.0

        def triplets(wildtype: str, at: int, new_base: str) -> float:
            """The log-ratio of the counts of the new and of the old triplet."""
            base_before, base_after = wildtype[max(0, at - 1) : at], wildtype[at + 1 :][:1]
            new_count, old_count = (
                counts[base_before + base + base_after] for base in (new_base, wildtype[at])
            )
            return float(np.log(new_count + 1) - np.log(old_count + 1))

        def codons(variant: Variant) -> float | None:
            """The log-ratio of codons in coding sequences, 0 outside of them; None where there is none."""
            outside = variant.fields["consequence"] is None and variant.substitutions
            return 0.0 if outside else variant.fields["codon"]

        rivals = {"transition": transition, "triplet frequencies": triplets}
        predictors = {name: additive_prediction(worth, f"{BASES}N") for name, worth in rivals.items()}
        return {**predictors, "codon": codons} if "codon" in self.columns else predictors

    def copy(self, path: str, rows: Iterator[Mapping[str, Any]], note: str) -> Iterator[str]:
        """The same VCF with `INFO`, `EXCESS` and `CODING` in INFO; every other column stays as it is."""
        scored = groupby(rows, key=itemgetter("line"))
        line, allele_rows = next(scored, (0, ()))
        for number, text in lines(path, Problems()):
            if text.startswith("#CHROM"):
                for name, variant_kind in ((INFO, "substitutions"), (EXCESS, "deletions and insertions")):
                    description = json.dumps(f"of {variant_kind}: {note}")
                    yield f"##INFO=<ID={name},Number=A,Type=Float,Description={description}>\n"
                if "codon" in self.columns:
                    description = json.dumps("consequence|gene|change of the protein|log-ratio of codons")
                    yield f"##INFO=<ID={CODING},Number=A,Type=String,Description={description}>\n"
            if number == line:
                text = _with_effects(text, {row["alt"]: row for row in allele_rows})
                line, allele_rows = next(scored, (0, ()))
            yield f"{text}\n"


def _is_vcf(path: str) -> bool:
    """Whether a file is a VCF, by its ending."""
    return path.lower().endswith(_SUFFIXES) or stem_suffix(path) == ".vcf"


class _GenomeWindows:
    """Finds the window of the genome for each allele of a table; notes alleles that have no score."""

    def __init__(self, genome: Any, table: VariantTable, problems: Problems) -> None:
        self._genome, self._table, self._problems = genome, table, problems
        self._window = min(WINDOW, table.window or WINDOW)
        self._coding = None if table.genes is None else CodingSequences(table.genes, genome)

    @property
    def columns(self) -> Sequence[str]:
        """The columns of an allele that a variant's row repeats."""
        return COLUMNS if self._coding is None else (*COLUMNS, *Effect._fields)

    def check_genome(self, first: Sequence[_Allele]) -> None:
        """Raise a DataError where the first alleles of a file show that it is likely of another genome."""
        readable = [allele for allele in first if not allele.bad]
        if not readable:
            return
        located = [
            (allele, name)
            for allele in readable
            if (name := name_among(allele.chrom, self._genome)) is not None
        ]
        remedy = "name the reference that the variants were called with (--reference)"
        if not located:
            names = ", ".join(list(dict.fromkeys(allele.chrom for allele in readable))[:3])
            theirs = ", ".join(list(self._genome.keys())[:3])
            reason = (
                f"none of the contigs of the first {number_of(len(readable), 'allele')} ({names}) is in the "
                f"reference ({theirs}): it is likely another assembly, or a part of one"
            )
            raise DataError(reason, source=self._table.path, remedy=remedy)
        wrong = sum(
            not _fits(allele.ref, self._reference_bases(name, allele.pos, len(allele.ref)))
            for allele, name in located
        )
        if wrong >= LEAST_WRONG and wrong > MOST_WRONG * len(located):
            reason = (
                f"{wrong:,} of the first {len(located):,} reference alleles are not what the reference has "
                "there: it is likely another assembly"
            )
            raise DataError(reason, source=self._table.path, remedy=remedy)

    def __call__(self, allele: _Allele) -> Variant | None:
        """The variant of an allele; None for one that is no sequence, a ValueError for one that is wrong."""
        if allele.bad:
            raise ValueError(allele.bad)
        contig = name_among(allele.chrom, self._genome)
        if contig is None:
            raise ValueError(f"a contig that the reference does not have: {allele.chrom[:60]}")
        size = len(self._genome[contig])
        if not 1 <= allele.pos <= allele.pos + len(allele.ref) - 1 <= size:
            raise ValueError(f"position {allele.pos} is outside {contig}, which has {size:,} bases")
        ref, alt = allele.ref.upper(), allele.alt.upper()
        if not _fits(ref, there := self._reference_bases(contig, allele.pos, len(ref))):
            raise ValueError(
                f"the reference has {_shorten(there)} at {contig}:{allele.pos}, not {_shorten(ref)}"
            )
        if allele.alt == "." or not _BASES.fullmatch(alt):
            self._problems.note("an allele that is no sequence (*, <DEL>, a breakend, or none): not scored")
            return None
        edits = changes(ref, alt)
        begin = allele.pos - 1 + (edits[0].start if edits else 0)
        end = allele.pos - 1 + (edits[-1].end if edits else len(ref))
        # As many bases at one side as at the other: the window is the same on the other strand.
        width = self._window - (self._window - (end - begin)) % 2
        scored = "N" not in alt + ref and max(end - begin, len(alt)) <= width // 2
        if not scored:
            self._problems.note(f"N, or longer than half a window ({width // 2:,} bases): not scored")
        start = max(0, min(begin - (width - (end - begin)) // 2, size - width))
        letters = _bases(str(self._genome[contig][start : start + width]))
        offset = allele.pos - 1 - start
        if there != ref:
            self._problems.note(CODED, source=self._table.path, line=allele.line)
            if offset >= 0:
                letters = (letters[:offset] + ref + letters[offset + len(ref) :])[: len(letters)]
        fields = {
            **allele.fields,
            **dict(zip(COLUMNS, (allele.chrom, allele.pos, allele.ref, allele.alt), strict=True)),
        }
        if self._coding is not None:
            text = alt[begin - allele.pos + 1 : len(alt) - (allele.pos - 1 + len(ref) - end)]
            effect = self._coding.effect(contig, begin, end, text) if edits else None
            fields |= dict.fromkeys(Effect._fields) if effect is None else effect._asdict()
        return Variant(
            name=f"{allele.chrom}:{allele.pos}{_shorten(allele.ref)}>{_shorten(allele.alt)}",
            wildtype=letters,
            edits=tuple(Edit(e.start + offset, e.end + offset, e.text) for e in edits) if scored else (),
            source=self._table.path,
            line=allele.line,
            fields=fields,
            scored=scored,
            flank=FLANK,
        )

    def _reference_bases(self, contig: str, pos: int, count: int) -> str:
        """The bases of the reference at a place, in capitals."""
        return str(self._genome[contig][max(0, pos - 1) : max(0, pos - 1 + count)]).upper()


def _fits(ref: str, there: str) -> bool:
    """Whether a reference allele is what the reference has, of whose codes for several bases a caller names
    one (VCF 4.3, section 1.6.1.4) or N; of N, which says nothing, none.

    >>> _fits("AC", "RC"), _fits("N", "R"), _fits("T", "R"), _fits("A", "N")
    (True, True, False, False)
    """
    return len(ref) == len(there) and all(
        base == code or (code not in "ACGTN" and base in "N" + ambiguous_dna_values.get(code, ""))
        for base, code in zip(ref.upper(), there, strict=True)
    )


def _bases(letters: str) -> str:
    """Letters as capitals; U is T, and every letter that is no base is N."""
    return re.sub("[^ACGT]", "N", letters.upper().replace("U", "T"))


def _shorten(letters: str) -> str:
    """The first 20 letters, with the number of all where there are more."""
    return letters if len(letters) <= 20 else f"{letters[:20]}... ({len(letters):,} bases)"


def _vcf_alleles(table: VariantTable) -> Iterator[_Allele]:
    """The alleles of a VCF, a line with several split."""
    declared: dict[str, None] = {}
    header, path = False, table.path
    for number, text in lines(path, Problems()):
        if text.startswith("#"):
            header = header or text.startswith("#CHROM")
            if (match := re.match(r"##INFO=<ID=([^,>]+)", text)) is not None:
                declared[match[1]] = None
                if table.copied and match[1] in (ours := (INFO, EXCESS, CODING)):
                    named = ",".join(f"INFO/{name}" for name in ours)
                    remedy, reason = (
                        f"take it out first: bcftools annotate -x {named}",
                        "the VCF has {} already",
                    )
                    raise DataError(reason.format(match[1]), source=path, line=number, remedy=remedy)
            continue
        if not text.strip():
            continue
        if not header:
            remedy = "a VCF has a line #CHROM POS ID REF ALT ..."
            raise DataError("no header of a VCF", source=path, line=number, remedy=remedy)
        cells = text.split("\t")
        if len(cells) < 8 or not _NUMBER.fullmatch(cells[1]) or not _BASES.fullmatch(cells[3]):
            reason = "not a line of a VCF: eight columns are wanted, POS a whole number, REF bases"
            yield _Allele(number, "", 0, "", "", {}, reason)
            continue
        info = _info(cells[7])
        alts = cells[4].split(",")
        for at, alt in enumerate(alts):
            info_values = {name: _allele_value(value, at, len(alts)) for name, value in info.items()}
            fields = {
                **declared,
                "id": cells[2],
                "qual": None if cells[5] == "." else cells[5],
                **info_values,
            }
            yield _Allele(number, cells[0], int(cells[1]), cells[3], alt, fields)


def _info(cell: str) -> dict[str, str | None]:
    """The values of a cell of INFO by name; a flag is 1, and a dot None."""
    if cell == ".":
        return {}
    pairs = (part.partition("=") for part in cell.split(";") if part)
    return {name: (None if value == "." else value) if equals else "1" for name, equals, value in pairs}


def _allele_value(value: str | None, number: int, count: int) -> str | None:
    """The part of a list that is an allele's own, where the list has one for each."""
    parts = [] if value is None else value.split(",")
    if len(parts) != count or count == 1:
        return value
    return None if parts[number] == "." else parts[number]


def _table_alleles(path: str) -> Iterator[_Allele]:
    """The alleles of a table."""
    columns: dict[str, str] | None = None
    for line, fields in read_rows(path):
        if columns is None:
            lower = lower_names(fields)
            columns = {
                name: next(filter(None, map(lower.get, aliases)), "") for name, aliases in NAMES.items()
            }
            if missing := [name for name in NAMES if not columns[name]]:
                remedy = "a table of DNA variants has chrom, pos (from 1 on), ref and alt; or give a VCF"
                raise DataError(f"no column {missing[0]}", source=path, line=line, remedy=remedy)
        chrom, pos, ref, alt = (str(fields.get(columns[name], "")).strip() for name in COLUMNS)
        if not _NUMBER.fullmatch(pos) or not _BASES.fullmatch(ref) or not chrom:
            reason = "not a variant: chrom, pos (a whole number), ref and alt (bases) are wanted"
            yield _Allele(line, "", 0, "", "", {}, reason)
            continue
        for alternative in alt.split(","):
            yield _Allele(line, chrom, int(pos), ref, alternative, fields)


def _with_effects(text: str, rows_by_alt: Mapping[str, Mapping[str, Any]]) -> str:
    """A line with the effects of its alleles in INFO; as it was where none has one."""
    cells = text.split("\t")
    alts = cells[4].split(",")
    for name, lengths in ((INFO, False), (EXCESS, True)):
        effects = {
            alt: row["effect"] for alt, row in rows_by_alt.items() if (len(alt) != len(cells[3])) is lengths
        }
        values = [effects.get(alt) for alt in alts]
        if any(value is not None for value in values):
            entry = ",".join("." if value is None else f"{value:.6g}" for value in values)
            cells[7] = _append_info(cells[7], f"{name}={entry}")
    coding = [_coding_info(rows_by_alt.get(alt, {})) for alt in alts]
    if any(coding):
        cells[7] = _append_info(cells[7], f"{CODING}={','.join(part or '.' for part in coding)}")
    return "\t".join(cells)


def _append_info(cell: str, entry: str) -> str:
    """The cell of INFO with one entry more."""
    return entry if cell == "." else f"{cell.rstrip(';')};{entry}"


def _coding_info(row: Mapping[str, Any]) -> str:
    """The effect of a variant on a protein as a value of INFO; signs that INFO may not hold are
    percent-encoded (VCF 4.3, section 1.2)."""
    if row.get("consequence") is None:
        return ""
    codon = "" if row["codon"] is None else f"{row['codon']:.6g}"
    parts = (row["consequence"], row["gene"], row["change"], codon)
    return "|".join(quote(part, safe="*?:/()+") for part in parts)
