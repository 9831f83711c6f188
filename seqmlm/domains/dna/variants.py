"""Read variants of genomes from VCF files or from tables with chrom, pos, ref and alt.

Each variant is checked against the reference. Its wild type is a window of the reference with the variant in
the middle. At the end of a contig, the window is shifted, not padded. Memory holds neither the whole variant
file nor the whole reference. Alleles that are not sequences (`*`, `<DEL>`, breakends) are counted but not
scored.
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
"""Maximum bases of a window."""

FLANK = 16
"""Bases on each side of a variant that its PLL-delta includes. Effects decrease with the distance, but the
cost of each base is the same."""

CODED = "a position where the reference has a code for several bases: the base of the allele is used"

FIRST_ROWS = 1000
"""Alleles at the start of a file that are used to check that the file belongs to the reference."""

MOST_WRONG = 0.05
"""Maximum share of wrong reference alleles among them. A file with more belongs to another genome."""

LEAST_WRONG = 5  # minimum number of wrong alleles: one wrong row of ten can be a single error

INFO, EXCESS, CODING = "SEQMLM_LLR", "SEQMLM_EXCESS", "SEQMLM_CODING"
"""The INFO fields of a scored VCF: scores of substitutions, scores of deletions and insertions, and effects
on coding sequences. Scores of the first two kinds are not comparable with each other."""

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
    """An allele as written in the file. If `bad` is not empty, it is the error of the line, and only `line`
    is valid."""

    line: int
    chrom: str
    pos: int
    ref: str
    alt: str
    fields: Mapping[str, Any]
    bad: str = ""


class DNAVariants(Variants):
    """The reader of genome variants, and their baselines."""

    letters = BASES
    windows = True
    columns: Sequence[str] = COLUMNS
    display_columns, counted = Effect._fields, "consequence"
    formats: ClassVar[Mapping[str, Sequence[str]]] = {"vcf": _SUFFIXES}

    def table_variants(self, table: VariantTable, problems: Problems) -> Iterator[Variant]:
        if table.wildtype is None:
            raise UsageError("DNA variants need a reference genome: add --reference FILE.fa")
        if table.column is not None or table.first is not None:
            raise UsageError(
                "column and first are only for proteins: DNA variants have chrom, pos, ref and alt"
            )
        if table.copied and not _is_vcf(table.path):
            raise UsageError(
                "the variants are in a table, so no scored VCF can be written: use --out FILE.csv"
            )
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
        """The same variant on the reverse complement of its window."""
        size = len(variant.wildtype)
        edits = tuple(
            Edit(size - edit.end, size - edit.start, reverse_complement(edit.text))
            for edit in reversed(variant.edits)
        )
        return replace(variant, wildtype=reverse_complement(variant.wildtype), edits=edits)

    def rivals(self, wildtypes: Sequence[str], alignment: str | None) -> Mapping[str, Predict]:
        """The baselines that need no model.

        "transition" ranks transitions before transversions. "triplet frequencies" compares the frequencies of
        the old and new triplet of bases in the windows. If genes are known, "codon" compares the codons.

        Raises:
            UsageError: an alignment was given.
        """
        if alignment is not None:
            raise UsageError("an alignment is only for proteins: variants of a genome have no family")
        counts = Counter[str]()
        for text in wildtypes:
            for strand in (text, reverse_complement(text)):
                counts.update(strand[i : i + 3] for i in range(len(strand) - 2))

        def transition(wildtype: str, at: int, new_base: str) -> float:
            """0 for a transition, -1 for a transversion."""
            return 0.0 if {wildtype[at], new_base} in ({"A", "G"}, {"C", "T"}) else -1.0

        def triplets(wildtype: str, at: int, new_base: str) -> float:
            """The log-ratio in nats of the counts of the new and the old triplet."""
            base_before, base_after = wildtype[max(0, at - 1) : at], wildtype[at + 1 :][:1]
            new_count, old_count = (
                counts[base_before + base + base_after] for base in (new_base, wildtype[at])
            )
            return float(np.log(new_count + 1) - np.log(old_count + 1))

        def codons(variant: Variant) -> float | None:
            """The log-ratio of codons, or None without one; 0 for substitutions in noncoding sequence."""
            outside = variant.fields["consequence"] is None and variant.substitutions
            return 0.0 if outside else variant.fields["codon"]

        rivals = {"transition": transition, "triplet frequencies": triplets}
        predictors = {name: additive_prediction(worth, f"{BASES}N") for name, worth in rivals.items()}
        return {**predictors, "codon": codons} if "codon" in self.columns else predictors

    def copy(self, path: str, rows: Iterator[Mapping[str, Any]], note: str) -> Iterator[str]:
        """The lines of the same VCF with `INFO`, `EXCESS` and `CODING` in its INFO column. All other columns
        are unchanged."""
        scored = groupby(rows, key=itemgetter("line"))
        line, allele_rows = next(scored, (0, ()))
        for number, text in lines(path, Problems()):
            if text.startswith("#CHROM"):
                for name, variant_kind in ((INFO, "substitutions"), (EXCESS, "deletions and insertions")):
                    description = json.dumps(f"score of {variant_kind}: {note}")
                    yield f"##INFO=<ID={name},Number=A,Type=Float,Description={description}>\n"
                if "codon" in self.columns:
                    description = json.dumps("consequence|gene|change of the protein|log-ratio of codons")
                    yield f"##INFO=<ID={CODING},Number=A,Type=String,Description={description}>\n"
            if number == line:
                text = _with_effects(text, {row["alt"]: row for row in allele_rows})
                line, allele_rows = next(scored, (0, ()))
            yield f"{text}\n"


def _is_vcf(path: str) -> bool:
    """Whether the name of a file is the name of a VCF."""
    return path.lower().endswith(_SUFFIXES) or stem_suffix(path) == ".vcf"


class _GenomeWindows:
    """Finds the window of the genome for each allele of a table, and counts alleles that get no score."""

    def __init__(self, genome: Any, table: VariantTable, problems: Problems) -> None:
        self._genome, self._table, self._problems = genome, table, problems
        self._window = min(WINDOW, table.window or WINDOW)
        self._coding = None if table.genes is None else CodingSequences(table.genes, genome)

    @property
    def columns(self) -> Sequence[str]:
        """The columns of the allele that are repeated in each row of the output."""
        return COLUMNS if self._coding is None else (*COLUMNS, *Effect._fields)

    def check_genome(self, first: Sequence[_Allele]) -> None:
        """Raise a DataError if the first alleles of a file show that it likely belongs to another genome."""
        readable = [allele for allele in first if not allele.bad]
        if not readable:
            return
        located = [
            (allele, name)
            for allele in readable
            if (name := name_among(allele.chrom, self._genome)) is not None
        ]
        remedy = "give the genome that the variants were called against with --reference"
        if not located:
            names = ", ".join(list(dict.fromkeys(allele.chrom for allele in readable))[:3])
            theirs = ", ".join(list(self._genome.keys())[:3])
            reason = (
                f"none of the contigs of the first {number_of(len(readable), 'allele')} ({names}) is in the "
                f"reference ({theirs}). It is probably another assembly, or only a part of an assembly"
            )
            raise DataError(reason, source=self._table.path, remedy=remedy)
        wrong = sum(
            not _fits(allele.ref, self._reference_bases(name, allele.pos, len(allele.ref)))
            for allele, name in located
        )
        if wrong >= LEAST_WRONG and wrong > MOST_WRONG * len(located):
            reason = (
                f"{wrong:,} of the first {len(located):,} REF alleles differ from the reference, "
                "which is probably another assembly"
            )
            raise DataError(reason, source=self._table.path, remedy=remedy)

    def __call__(self, allele: _Allele) -> Variant | None:
        """The variant of an allele, or None if the allele is not a sequence.

        Raises:
            ValueError: the line is bad, or does not match the reference.
        """
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
            self._problems.note(
                "an allele that is not a sequence (*, <DEL>, a breakend, or missing): not scored"
            )
            return None
        edits = changes(ref, alt)
        begin = allele.pos - 1 + (edits[0].start if edits else 0)
        end = allele.pos - 1 + (edits[-1].end if edits else len(ref))
        # The same number of bases on both sides, so that the window is the same on the other strand.
        width = self._window - (self._window - (end - begin)) % 2
        scored = "N" not in alt + ref and max(end - begin, len(alt)) <= width // 2
        if not scored:
            self._problems.note(
                f"an allele with N, or longer than half a window ({width // 2:,} bases): not scored"
            )
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
        """The `count` bases of the reference from the 1-based position `pos` on, in capitals."""
        return str(self._genome[contig][max(0, pos - 1) : max(0, pos - 1 + count)]).upper()


def _fits(ref: str, there: str) -> bool:
    """Whether a REF allele matches the bases of the reference.

    If the reference has a code for several bases, the allele can have one of these bases (VCF 4.3, section
    1.6.1.4) or N. If the reference has N, the allele must have N.

    >>> _fits("AC", "RC"), _fits("N", "R"), _fits("T", "R"), _fits("A", "N")
    (True, True, False, False)
    """
    return len(ref) == len(there) and all(
        base == code or (code not in "ACGTN" and base in "N" + ambiguous_dna_values.get(code, ""))
        for base, code in zip(ref.upper(), there, strict=True)
    )


def _bases(letters: str) -> str:
    """The letters in capitals. U becomes T, and letters that are not bases become N."""
    return re.sub("[^ACGT]", "N", letters.upper().replace("U", "T"))


def _shorten(letters: str) -> str:
    """At most 20 letters. A longer text is cut, and its number of bases is added."""
    return letters if len(letters) <= 20 else f"{letters[:20]}... ({len(letters):,} bases)"


def _vcf_alleles(table: VariantTable) -> Iterator[_Allele]:
    """The alleles of a VCF. A line with several ALT alleles gives several."""
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
                        f"remove it first: bcftools annotate -x {named}",
                        "the VCF already has {}",
                    )
                    raise DataError(reason.format(match[1]), source=path, line=number, remedy=remedy)
            continue
        if not text.strip():
            continue
        if not header:
            remedy = "add the line #CHROM POS ID REF ALT ... before the variants"
            raise DataError("the VCF has no header", source=path, line=number, remedy=remedy)
        cells = text.split("\t")
        if len(cells) < 8 or not _NUMBER.fullmatch(cells[1]) or not _BASES.fullmatch(cells[3]):
            reason = "not a line of a VCF: it must have eight columns, a whole number as POS and bases as REF"
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
    """The values of an INFO cell by name; "1" for a flag, None for a dot."""
    if cell == ".":
        return {}
    pairs = (part.partition("=") for part in cell.split(";") if part)
    return {name: (None if value == "." else value) if equals else "1" for name, equals, value in pairs}


def _allele_value(value: str | None, number: int, count: int) -> str | None:
    """The value for one of `count` alleles, if the value is a list with an item for each allele. Other values
    are returned whole."""
    parts = [] if value is None else value.split(",")
    if len(parts) != count or count == 1:
        return value
    return None if parts[number] == "." else parts[number]


def _table_alleles(path: str) -> Iterator[_Allele]:
    """The alleles of a table. A cell with several alternatives, separated by commas, gives several."""
    columns: dict[str, str] | None = None
    for line, fields in read_rows(path):
        if columns is None:
            lower = lower_names(fields)
            columns = {
                name: next(filter(None, map(lower.get, aliases)), "") for name, aliases in NAMES.items()
            }
            if missing := [name for name in NAMES if not columns[name]]:
                remedy = "add the columns chrom, pos (counted from 1), ref and alt, or use a VCF"
                raise DataError(f"no column {missing[0]}", source=path, line=line, remedy=remedy)
        chrom, pos, ref, alt = (str(fields.get(columns[name], "")).strip() for name in COLUMNS)
        if not _NUMBER.fullmatch(pos) or not _BASES.fullmatch(ref) or not chrom:
            reason = "not a variant: chrom, pos (a whole number), ref and alt (bases) are required"
            yield _Allele(line, "", 0, "", "", {}, reason)
            continue
        for alternative in alt.split(","):
            yield _Allele(line, chrom, int(pos), ref, alternative, fields)


def _with_effects(text: str, rows_by_alt: Mapping[str, Mapping[str, Any]]) -> str:
    """A VCF line with the effects of its alleles in INFO; unchanged if no allele has an effect."""
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
    """Append an entry to an INFO cell."""
    return entry if cell == "." else f"{cell.rstrip(';')};{entry}"


def _coding_info(row: Mapping[str, Any]) -> str:
    """The effect of a variant on a protein as an INFO value, or "" if there is none.

    Characters that INFO values cannot contain are percent-encoded (VCF 4.3, section 1.2).
    """
    if row.get("consequence") is None:
        return ""
    codon = "" if row["codon"] is None else f"{row['codon']:.6g}"
    parts = (row["consequence"], row["gene"], row["change"], codon)
    return "|".join(quote(part, safe="*?:/()+") for part in parts)
