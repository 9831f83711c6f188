"""`seqmlm pairs`: which of two sequences that differ in little does the model find more probable?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqmlm.cli.words import PRECISION

if TYPE_CHECKING:
    from seqmlm.tasks.pairs import PairsResult


def pairs(
    model: Annotated[str, typer.Argument(help="A model: name, name@alias, name:version, folder or hub id.")],
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="Pairs: .jsonl, .csv, .tsv or .parquet.")
    ] = None,
    data: Annotated[list[str] | None, typer.Option("--data", help="The same as FILE.")] = None,
    good: Annotated[
        str | None,
        typer.Option(help="Column of the better sequence; without FILE, a text file of them, one a line."),
    ] = None,
    bad: Annotated[str | None, typer.Option(help="The same of the other one.")] = None,
    group: Annotated[
        str | None, typer.Option(help="Column to group by; default UID, bias_type or group if there.")
    ] = None,
    mode: Annotated[
        str, typer.Option(help="exact, whole-unit, partition:K or one-pass, as of seqmlm score.")
    ] = "exact",
    metric: Annotated[
        str, typer.Option(help="sum or mean per unit of the log-probabilities; shared: of common tokens.")
    ] = "sum",
    language: Annotated[
        str, typer.Option(help="Of source code without a column `language`, as python.")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Write a JSON line for each pair here.")] = None,
    domain: Annotated[
        str | None, typer.Option("--domain", "-d", help="Only for a model that does not know its own.")
    ] = None,
    tokens_per_batch: Annotated[
        int | None, typer.Option(min=1, help="Tokens of one forward pass; halved when memory runs out.")
    ] = None,
    precision: Annotated[str, typer.Option(help=PRECISION)] = "fp32",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare minimal pairs: the share in which the better sequence has the higher pseudo-log-likelihood.

    Ties count as wrong. BLiMP's JSON lines and CrowS-Pairs' CSV are taken as they are; so are columns
    `original` and `mutated` of code or proteins. `--metric shared` is the CrowS-Pairs metric: the share of
    pairs in which the more stereotyping sentence is the more probable one, 50 % being ideal.

    Example: seqmlm pairs english blimp.jsonl.gz --group linguistics_term --json
    """
    from seqmlm.cli.output import print_json
    from seqmlm.config import from_dict
    from seqmlm.tasks.pairs import PairsConfig, compare_pairs

    config = from_dict(
        PairsConfig,
        {
            "model": model,
            "paths": [*(paths or []), *(data or [])],
            "good": good,
            "bad": bad,
            "group": group,
            "mode": mode,
            "metric": metric,
            "options": {"language": language} if language else {},
            "out": out,
            "domain": domain,
            "tokens_per_batch": tokens_per_batch,
            "precision": precision,
        },
    )
    result = compare_pairs(config)
    if as_json:
        print_json(result.to_dict())
    else:
        _show(result)


def _show(result: PairsResult) -> None:
    import sys

    from seqmlm.cli.output import escape, number, print_table

    metrics = {result.metric: result.overall, **result.beside}
    rows = [
        (*(("all", name) if name != "length" else ("all, floor", "shorter is better")), part)
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
    unknown = f"; {result.unknown:,} unknown tokens are in no score" if result.unknown else ""
    print(
        f"{macro}{result.computed:,} of {result.copies:,} masked copies computed, {result.seconds:.1f} s"
        f"{unknown}",
        file=sys.stderr,
    )
