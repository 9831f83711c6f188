"""`seqmlm variants`: how fit variants of a sequence are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqmlm.cli import options as opt
from seqmlm.cli.output import end_as_asked, tell
from seqmlm.errors import number_of

if TYPE_CHECKING:
    from seqmlm.tasks.variants import VariantsResult


def variants(
    model: opt.Model,
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="Variants: .csv, .tsv, .jsonl, .parquet, .txt (one a line), sequences, or a VCF.",
        ),
    ] = None,
    wildtype: Annotated[
        str | None,
        typer.Option(
            "--wildtype",
            "--reference",
            help="File of the wild type, or FASTA that a VCF refers to. Default: the column wt_seq "
            "or target_seq.",
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(help="Column of the variants. Default: mutant, variant, hgvs or mutated_sequence."),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option(
            help="Number that the file gives to the first letter of the wild type. Default: inferred."
        ),
    ] = None,
    convention: Annotated[
        str,
        typer.Option(help="What the effect is: masked, wt, mask_fill, mutant, match_fill or pll_delta."),
    ] = "masked",
    measured: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Compare with these measurements; higher = fitter."),
    ] = None,
    prediction: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Compare also these predictions with them; repeatable."),
    ] = None,
    cutoff: Annotated[
        float | None,
        typer.Option(
            help="Measurement from which on a variant counts as fit, for AUC and MCC. "
            "Default: by DMS_score_bin, else the median."
        ),
    ] = None,
    alignment: Annotated[
        str | None,
        typer.Option(
            help="Family of the wild type (.a3m, .sto, .afa): adds the site-independent prediction."
        ),
    ] = None,
    next: Annotated[
        int,
        typer.Option(
            min=0,
            help="Name so many substitutions to test next: the fittest by the model that were not measured, "
            "each of another place while there is one.",
        ),
    ] = 0,
    proteingym: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Instead of FILE: score every assay of this folder, its reference file and tables; --out is "
            "then a folder of tables with the scores.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Write an HTML report with a map of all substitutions; is kept in an MLflow run."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the rows to this file: .jsonl, .csv or .parquet; of a VCF also .vcf or .vcf.gz, a "
            "copy with SEQMLM_LLR in INFO."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted --out.")] = False,
    domain: opt.ModelDomain = None,
    on_error: opt.OnError = "raise",
    tokens_per_batch: opt.TokensPerBatch = None,
    precision: opt.Precision = "fp32",
    json_output: opt.Json = False,
) -> None:
    """Score variants of a sequence: log-ratios of a mutant to the wild type in nats; higher = fitter.

    Variants are written A123G, A1P:D2N, p.Ala123Val, p.Ala3_Gly5del, p.Ala3_Gly4insTrp, or as whole
    sequences. How the file numbers the wild type is inferred and said; every residue is checked.

    The conventions: `wt` reads the wild type unmasked, `masked` hides each place, `mask_fill` all places of
    the variant together, `mutant` each in the mutant; `match_fill` takes the new residue from the mutant and
    the old one from the wild type. For one substitution the last four are the same. Deletions and insertions
    have only `pll_delta`, the difference of pseudo-log-likelihoods.

    Rows go to --out; without it to stdout, unless --measured, --next or --json ask for something else there.

    Example: seqmlm variants esm2 blat.csv --wildtype blat.fasta --out scores.csv

    Variants of DNA are a VCF, or a table of chrom, pos, ref and alt; each is judged in the window of the
    genome in whose middle it stands, on both strands.

    Example: seqmlm variants genome calls.vcf.gz --reference genome.fa --out scored.vcf.gz

    Example: seqmlm variants esm2 dms.csv --wildtype wt.fasta --measured fitness --next 20 --report dms.html
    """
    given = locals()
    import sys

    from seqmlm.cli.console import ScoringConsole
    from seqmlm.cli.output import print_json
    from seqmlm.errors import UsageError
    from seqmlm.tasks.variants import VariantsConfig, judge_variants

    if proteingym is not None:
        _benchmark(given, path)
        return
    if path is None:
        raise UsageError("name a file of variants")
    given["paths"] = [given.pop("path")]
    given.pop("proteingym")
    config = opt.configured(VariantsConfig, given, prediction=tuple(prediction or ()))
    rows = out is None and not (measured or next or json_output)
    with ScoringConsole() as console:
        result = judge_variants(config, sys.stdout if rows else None, console)
    if json_output:
        print_json(result.to_dict())
    else:
        _show(result)
    end_as_asked(result.stopped, out)


_OF_FILES = ("wildtype", "column", "first", "measured", "prediction", "cutoff", "alignment", "next", "report")


def _benchmark(given: dict[str, Any], path: str | None) -> None:
    """Score the assays of a folder."""
    from seqmlm.cli.console import ScoringConsole
    from seqmlm.cli.output import escape, print_json, print_table
    from seqmlm.errors import UsageError
    from seqmlm.tasks.assays import AssaysConfig, judge_assays
    from seqmlm.tasks.variants import agreement_table, intervals

    given["next"] = given["next"] or None
    if path is not None or any(given.pop(name) not in (None, []) for name in _OF_FILES):
        raise UsageError(
            "--proteingym names the variants, their wild types and measurements: leave the rest out"
        )
    given.pop("path")
    json_output = given["json_output"]
    config = opt.configured(AssaysConfig, given, folder=given.pop("proteingym"), scores=given.pop("out"))
    with ScoringConsole() as console:
        result = judge_assays(config, console)
    if json_output:
        told = {"assays": result.assays, "overall": intervals(result.overall)}
        print_json({**told, "variants": result.variants, "seconds": result.seconds})
    else:
        columns, rows = agreement_table(result.overall)
        print_table(columns, [[escape(cell) for cell in row] for row in rows])
    tell(f"scored {number_of(result.variants, 'variant')} of {number_of(len(result.assays), 'assay')}")


def _show(result: VariantsResult) -> None:
    from seqmlm.cli.output import escape, print_table
    from seqmlm.tasks.variants import agreement_table

    if result.agreement is not None:
        columns, rows = agreement_table(result.agreement.metrics)
        print_table(columns, [[escape(cell) for cell in row] for row in rows])
        gain = result.agreement.gain
        if gain is not None:
            tell(
                f"Spearman of the model minus that of {result.agreement.against}: {gain.value:+.4f} "
                f"({gain.low:+.3f} to {gain.high:+.3f}), on {result.agreement.n:,} variants"
            )
    if result.doubt is not None:
        tell(result.doubt)
    if result.suggestions:
        print_table(
            ["test next", "effect"],
            [[escape(one.variant), f"{one.effect:+.3f}"] for one in result.suggestions],
        )
    left_out = f", {result.bad:,} left out" if result.bad else ""
    tell(
        f"scored {result.scored:,} of {number_of(result.variants, 'variant')}{left_out}: "
        f"{result.passes:,} masked copies computed, {result.seconds:.1f} s"
    )
