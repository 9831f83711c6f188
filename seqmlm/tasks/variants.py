"""Variants: their effects according to a model, agreement with measurements, and suggested next tests."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from seqmlm import plugins
from seqmlm.data.counts import People
from seqmlm.data.problems import Problems
from seqmlm.domains.refusals import missing_capability
from seqmlm.domains.variants import Variant, Variants, VariantTable
from seqmlm.errors import UsageError, number_of
from seqmlm.inference.session import Session
from seqmlm.inference.variants import BITS, CONVENTIONS, WHOLE, VariantScorer
from seqmlm.reports.summary import Figures, Table
from seqmlm.reports.verdict import agreement_sentences, suggestion_doubts
from seqmlm.rows.file import Row
from seqmlm.tasks.measurements import Measurements, agreement_table
from seqmlm.tasks.substitutions import Grid
from seqmlm.tasks.task import (
    Conclusion,
    NativeFormat,
    Output,
    ReadRows,
    Requirements,
    Task,
    TaskConfig,
    format_figure,
    native_format,
    row_location,
)

if TYPE_CHECKING:
    from seqmlm.reports.page import Page

Convention = Literal["masked", "wt", "mask_fill", "mutant", "match_fill", "pll_delta", "pll_excess"]
NUMBERS = (*CONVENTIONS, "pll_delta_per_unit", BITS)
BITS_LOW = f"{BITS}_low"
"""The mean of the wild type's bits at the places of variants, minus two standard errors."""
PLACES = 10_000
"""Maximum number of places for this mean."""
KINDS: dict[str, Any] = {"effect": "number", "convention": "text", **dict.fromkeys(NUMBERS, "number")}
LISTED = 20  # number of fittest, and of least fit, variants in a report


@dataclass(frozen=True, kw_only=True)
class VariantsConfig(TaskConfig):
    """Settings of `seqmlm variants`.

    Args:
        paths: variants: .csv, .tsv, .jsonl, .parquet, .txt (one per line), sequences, or a VCF.
        wildtype: file of the wild type, or the FASTA that a VCF refers to. Default: the column wt_seq or
            target_seq.
        convention: log-ratio to use as the effect: masked, wt, mask_fill, mutant, match_fill, pll_delta or
            pll_excess. Deletions and insertions always use pll_excess or pll_delta.
        column: column of the variants. Default: mutant, variant, hgvs or mutated_sequence.
        first: number of the first letter of the wild type in the file. Default: inferred.
        measured: COLUMN: compare with these measurements; higher = fitter.
        prediction: columns of other predictions to compare; higher = fitter.
        cutoff: lowest measurement that counts as fit, for AUC and MCC. Default: taken from DMS_score_bin,
            otherwise the median.
        family: alignment of the wild type's family (.a3m, .a2m, .sto, .afa). A linear model needs
            the alignment that it was trained on. With measurements, the site-independent prediction of this
            alignment is also compared.
        query: row of the family that is the wild type, without --wildtype. Default: the first row, if the
            table has no wild type.
        genes: GFF3, GenBank or EMBL file of the genes in the genome: adds the effect of each variant on
            proteins, and how common its codons are.
        next: number of substitutions to suggest for the next test: the fittest ones that were not measured,
            each at a different place if possible.
        out: write the rows to this file: .jsonl, .csv, .tsv or .parquet. For a VCF also .vcf or .vcf.gz: a
            copy with SEQMLM_LLR in INFO, and SEQMLM_EXCESS for deletions and insertions.
        report: write an HTML report with a map of all substitutions to this file and log a run in MLflow.
    """

    option_fields = (
        *("wildtype", "family", "measured", "next", "out", "resume", "report", "shard", "domain"),
        "on_error",
    )
    metavar = "FILE"
    inputs = ("wildtype", "family", "genes")
    later = ("measured", "prediction", "cutoff", "next")

    @classmethod
    def native(cls, domain: str | None = None) -> Mapping[str, Sequence[str]]:
        names = plugins.names("domains") if domain is None else [domain]
        chapters = [plugins.domain(name).variants for name in names]
        return {
            name: endings
            for chapter in chapters
            if chapter is not None
            for name, endings in chapter().formats.items()
        }

    wildtype: str | None = field(default=None, metadata={"also": ("--reference",)})
    convention: Convention = "masked"
    column: str | None = None
    first: int | None = None
    measured: str | None = None
    prediction: tuple[str, ...] = ()
    cutoff: float | None = None
    family: str | None = None
    query: str | None = None
    genes: str | None = None
    next: int = 0

    def check(self) -> None:
        if len(self.paths) != 1 or self.next < 0:
            raise UsageError("give one file of variants, and a --next of at least 0")
        if self.measured is None and (self.prediction or self.cutoff is not None):
            raise UsageError("prediction and cutoff need a column of measurements: add --measured COLUMN")
        if self.query is not None and (self.family is None or self.wildtype is not None):
            raise UsageError("query names a row of --family: give --family, and remove --wildtype")
        super().check()


class VariantsTask(Task[VariantsConfig, Variant]):
    """Score variants of a sequence: log-ratios of the mutant to the wild type in nats; higher = fitter.

    Write protein variants as A123G, A1P:D2N, p.Ala123Val, p.Ala3_Gly5del, p.Ala3_Gly4insTrp, or as whole
    sequences. The numbering of the wild type is inferred and reported. Every residue is checked. DNA variants
    are a VCF, or a table of chrom, pos, ref and alt. Each is scored in a window around it, on both strands.

    Conventions: `wt` reads the wild type unmasked. `masked` hides one place at a time. `mask_fill` hides all
    places of the variant together. `mutant` hides one place at a time in the mutant. `match_fill` compares
    the new residue in the mutant with the old residue in the wild type, with that place hidden in both. For a
    single substitution, `masked`, `mask_fill`, `mutant` and `match_fill` are equal.

    Deletions and insertions use pll_excess, the difference in fit between mutant and wild type. Each place is
    measured against the model's expectation for it, so longer or shorter sequences are not favoured.
    pll_delta is the difference of the pseudo-log-likelihoods.

    Rows go to --out. Without --out they go to stdout, unless --measured, --next or --json print something
    else.

    Example: seqmlm variants genome calls.vcf.gz --reference genome.fa --out scored.vcf.gz

    Example: seqmlm variants esm2 dms.csv --wildtype wt.fasta --measured fitness --next 20 --report dms.html
    """

    Config = VariantsConfig
    requires = Requirements(capabilities=("variants",))

    def __init__(self, config: VariantsConfig, session: Session) -> None:
        super().__init__(config, session)
        if session.domain.variants is None:
            raise missing_capability(session.domain, "variants")
        self.field = session.domain.variants()
        formats = self.field.formats
        self.copied = native_format(config, formats) is not None
        self.output = Output(
            unit="variant",
            columns=KINDS,
            stdout="rows" if config.measured is None and not config.next else "figures",
            native={name: NativeFormat(endings, self.native_text) for name, endings in formats.items()},
            line=self.line,
            costs=self._costs,
        )
        if config.next and self.field.windows:
            raise UsageError("--next needs one wild type; here each variant has its own: remove --next")
        self.scorer = scorer_of(session, self.field, config.convention)
        self.listed: Sequence[Variant] = ()
        self.measured: Measurements | None = None

    def input_files(self) -> list[str]:
        config = self.config
        return [] if "-" in config.input_paths else [*config.input_paths]

    def records(self, problems: Problems) -> Iterable[Variant]:
        """The variants of the table. If each has its own window, the window fits into the model's input."""
        config, session, window = self.config, self.session, None
        if self.field.windows:
            special = np.count_nonzero(session.tokenizer.encode(self.field.letters).groups < 0)
            window = session.card.max_length - int(special)
        table = VariantTable(
            path=config.paths[0],
            wildtype=config.wildtype,
            column=config.column,
            first=config.first,
            window=window,
            copied=self.copied,
            family=config.family,
            query=config.query,
            genes=config.genes,
            columns=session.model.rows.columns,
        )
        return self.field.table_variants(table, problems)

    def items(self, records: Iterable[Variant], problems: Problems) -> Iterable[Variant]:
        """The variants. They are a stream if each has its own window and there are no measurements.

        Raises:
            UsageError: `next` is set, and there are several wild types.
            DataError: the measurements cannot be read.
        """
        config = self.config
        if self.field.windows and config.measured is None:
            return records
        self.listed = list(records)
        if config.next and len({variant.wildtype for variant in self.listed}) > 1:
            raise UsageError("--next needs one wild type; these variants have several: remove --next")
        if config.measured is not None and self.listed:
            self.measured = Measurements.of(
                config.measured,
                self.field,
                self.session,
                self.listed,
                prediction=config.prediction,
                cutoff=config.cutoff,
                alignment=config.family,
            )
        if not self.field.windows:
            self.scorer.expect(self.listed)
        return self.listed

    def _costs(self, problems: Problems) -> Iterable[float]:
        """The costs of the variants that were read, or of all variants in the file."""
        return map(self.cost, self.listed or self.records(problems))

    def cost(self, item: Variant) -> float:
        return self.scorer.cost(item)

    def rows(self, items: Sequence[Variant]) -> Iterator[list[Row]]:
        """A row for each variant: its effect, and the log-ratios of all conventions."""
        return variant_rows(self.scorer, self.field, items, self.config.convention)

    def line(self, row: Row) -> str:
        """A line for the terminal: the place and effect of a variant, and the columns that the field adds."""
        effect = "no effect" if row["effect"] is None else f"{row['effect']:+.2f} ({row['convention']})"
        columns = [
            (name, row[name]) for name in self.field.display_columns if row.get(name) not in (None, "")
        ]
        cells = (cell if isinstance(cell, str) else f"{name} {cell:+.2f}" for name, cell in columns)
        return "  ".join([*row_location(row), effect, *cells])

    def native_text(self, rows: Iterator[Row]) -> Iterable[str]:
        """The text of a copy of the input table with the effects of each variant, in pieces."""
        config = self.config
        length = config.convention if config.convention in WHOLE else "pll_excess"
        note = (
            f"log-ratio (nats) of the allele to the reference by {Path(config.model).name}, "
            f"{config.convention} for substitutions, {length} for deletions and insertions, mean of both "
            "strands; higher = fitter"
        )
        return self.field.copy(config.paths[0], rows, note)

    @cached_property
    def grid(self) -> Grid | None:
        """Every substitution of the wild type, or None if there are several wild types."""
        if self.field.windows or len({variant.wildtype for variant in self.listed}) != 1:
            return None
        variant = self.listed[0]
        numbers = variant.numbers or range(variant.first, variant.first + len(variant.wildtype))
        return Grid(variant.wildtype, self.field.letters, self.scorer.map(variant.wildtype), numbers)

    def figures(self, rows: Iterable[Row]) -> Figures:
        """Counts of scored variants, agreement with measurements, and substitutions to test next."""
        scored = unscored = mixed = bits_count = 0
        bits, places, effects, kinds = 0.0, set[float](), list[Row](), Counter[str]()
        for row in rows:
            if (kind := row.get(self.field.counted)) is not None:
                kinds[kind] += 1
            scored += row["effect"] is not None
            unscored += row["effect"] is None
            mixed += row["convention"] not in (None, self.config.convention)
            if row[BITS] is not None:
                bits_count, bits = bits_count + 1, bits + row[BITS]
                if len(places) < PLACES:
                    places.add(row[BITS])  # variants at the same place have the same bits
            if self.measured is not None:
                effects.append({name: row[name] for name in ("line", "id", "effect")})
        figures: dict[str, Any] = {"variants": scored + unscored, "scored": scored, "mixed": mixed}
        figures |= {"convention": self.config.convention, BITS: bits / bits_count if bits_count else None}
        figures[BITS_LOW] = _lower_bound(sorted(places))
        if self.field.counted in self.field.columns:
            figures["counts"] = dict(kinds.most_common())
        if self.measured is not None:
            figures |= self.measured.agreement_with(effects)
        if self.config.next and self.grid is not None:
            figures["next"] = self.grid.suggestions(self.config.next, self.measured)
        return figures

    def conclusion(self, figures: Figures, items: People, rows: ReadRows) -> Conclusion:
        sentences = [f"scored {format_figure(figures['scored'])} of {number_of(items, self.output.unit)}"]
        if "counts" in figures:
            kinds = (f"{format_figure(number)} {name}" for name, number in figures["counts"].items())
            sentences.append(f"by {self.field.counted}: {', '.join(kinds) or 'none has one'}")
        if figures["mixed"]:
            sentences.append(
                f"{format_figure(figures['mixed'])} of {number_of(items, self.output.unit)} are deletions or "
                "insertions. Their pll_excess cannot be compared with the other effects; "
                "use --set convention=pll_excess for all"
            )
        chance = math.log2(len(self.field.letters))
        low = figures[BITS_LOW]
        if low is not None and min(low, figures[BITS]) >= chance:
            windows = "these windows", "train longer, or on sequences that are closer to these"
            remedy = "cut it like the training data, such as to one domain"
            wildtype = "this wild type", f"{remedy}, or train on its family"
            subject, remedy = windows if self.field.windows else wildtype
            bits_text = f"{figures[BITS]:.2f} bits per place, {chance:.2f} by chance"
            sentences.append(f"the model does not know {subject} ({bits_text}): {remedy}")
        return Conclusion("\n".join([*sentences, *agreement_sentences(figures), *suggestion_doubts(figures)]))

    def tables(self, figures: Figures) -> Iterator[Table]:
        if "agreement" in figures:
            yield Table("Agreement with the measurements", *agreement_table(figures["agreement"]))
        if "next" in figures:
            cells = [(row["variant"], f"{row['effect']:+.3f}") for row in figures["next"]]
            yield Table("Suggested next tests", ["variant", "effect"], cells)

    def page(self, page: Page, rows: ReadRows, figures: Figures) -> None:
        super().page(page, rows, figures)
        if self.grid is not None:
            self.grid.draw(page)
        columns = ("variant", "effect, nats", "convention", "line")
        for heading, best in (("Fittest", heapq.nlargest), ("Least fit", heapq.nsmallest)):
            scored_rows = (row for row in rows() if row["effect"] is not None)
            top = best(LISTED, scored_rows, key=lambda row: row["effect"])
            page.table(
                heading, columns, [[row[x] for x in ("id", "effect", "convention", "line")] for row in top]
            )


def _lower_bound(bits: Sequence[float]) -> float | None:
    """The mean minus two standard errors, or None for fewer than two places."""
    if len(bits) < 2:
        return None
    return float(np.mean(bits) - 2 * np.std(bits, ddof=1) / math.sqrt(len(bits)))


def scorer_of(session: Session, field: Variants, convention: str) -> VariantScorer:
    """A scorer for the variants of a field with a convention.

    Raises:
        UsageError: the model does not support the convention.
    """
    pll = convention in WHOLE
    scorer = VariantScorer(session, field.letters, pll=pll, mirrored=field.mirrored, windows=field.windows)
    if not scorer.one_letter and convention not in ("masked", *WHOLE):
        raise UsageError(
            f"convention {convention} needs a model with one token per letter; this model has several: "
            "use masked, pll_delta or pll_excess"
        )
    return scorer


def variant_rows(
    scorer: VariantScorer, field: Variants, variants: Sequence[Variant], convention: str
) -> Iterator[list[Row]]:
    """Yield the row of each variant. Deletions and insertions use "pll_excess" for most conventions."""
    for variant, effects in zip(variants, scorer.effects(variants), strict=True):
        chosen = convention if variant.substitutions or convention in WHOLE else "pll_excess"
        place = {"id": variant.name, "source": variant.source, "line": variant.line}
        effect = {"effect": effects.get(chosen), "convention": chosen if effects else None}
        repeated = {name: variant.fields.get(name) for name in field.columns}
        yield [{**place, **repeated, **effect, **{name: effects.get(name) for name in NUMBERS}}]
