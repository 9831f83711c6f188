"""`seqmlm pairs`: minimal pairs, and how often the model prefers the better sequence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqmlm.cli import options as opt
from seqmlm.cli.output import tell

if TYPE_CHECKING:
    from seqmlm.tasks.pairs import PairsResult


def pairs(
    model: opt.Model,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="Files of pairs: .jsonl, .csv, .tsv or .parquet."),
    ] = None,
    data: opt.Data = None,
    good: Annotated[
        str | None,
        typer.Option(help="Column of the better sequence; without FILE, a text file with one per line."),
    ] = None,
    bad: Annotated[str | None, typer.Option(help="Column, or text file, of the worse sequence.")] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Column to group results by. Default: UID, bias_type or group, if present."),
    ] = None,
    mode: opt.PairMode = "exact",
    metric: Annotated[
        str,
        typer.Option(
            help="What is compared: sum of log-probabilities, mean per unit, or shared (sum over the tokens "
            "that both sequences have)."
        ),
    ] = "sum",
    language: Annotated[
        str,
        typer.Option(help="Programming language of source code without a column `language`, such as python."),
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Write one JSON line per pair to this file.")] = None,
    domain: opt.ModelDomain = None,
    tokens_per_batch: opt.TokensPerBatch = None,
    precision: opt.Precision = "fp32",
    expert: opt.Expert = "auto",
    json_output: opt.Json = False,
) -> None:
    """Compare minimal pairs: the share in which the better sequence has the higher pseudo-log-likelihood.

    Ties count as wrong. The published files of BLiMP and CrowS-Pairs can be read directly, and so can tables
    with columns `original` and `mutated`. `--metric shared` is the CrowS-Pairs metric: the share of pairs in
    which the more stereotyping sentence is the more probable one; 50 % is ideal.

    Example: seqmlm pairs english blimp.jsonl.gz --group linguistics_term --json
    """
    given = locals()
    from seqmlm.cli.output import print_json
    from seqmlm.tasks.pairs import PairsConfig, compare_pairs

    given["options"] = {"language": language} if given.pop("language") else {}
    config = opt.configured(PairsConfig, given)
    result = compare_pairs(config)
    if json_output:
        print_json(result.to_dict())
    else:
        _show(result)


def _show(result: PairsResult) -> None:
    from seqmlm.cli.output import escape, number, print_table

    metrics = {result.metric: result.overall, **result.beside}
    rows = [
        (*(("all", name) if name != "length" else ("all, baseline", "shorter is better")), part)
        for name, part in metrics.items()
    ]
    rows += [(name, result.metric, part) for name, part in result.groups.items()]
    print_table(
        ["group", "metric", "pairs", "accuracy", "95 %", "ties", "mean margin"],
        [
            [
                escape(name or "-"),
                metric,
                part.rate.trials,
                f"{part.rate.value:.1%}",
                f"{part.rate.low:.1%} to {part.rate.high:.1%}",
                part.ties,
                number(part.margin),
            ]
            for name, metric, part in rows
        ],
    )
    macro = f"mean over {len(result.groups)} groups {result.macro:.1%}; " if result.groups else ""
    unknown = f"; {result.unknown:,} unknown tokens were not scored" if result.unknown else ""
    tell(
        f"{macro}{result.computed:,} of {result.copies:,} masked copies computed, {result.seconds:.1f} s"
        f"{unknown}{opt.mixed_in(result.counts)}"
    )
