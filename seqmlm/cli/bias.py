"""`seqmlm bias`: counterfactual pairs, and associations of words with groups."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqmlm.cli import options as opt
from seqmlm.cli.output import tell

if TYPE_CHECKING:
    from seqmlm.tasks.bias import BiasResult


def bias(
    model: opt.Model,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="Files of pairs: .jsonl, .csv, .tsv or .parquet."),
    ] = None,
    data: opt.Data = None,
    good: Annotated[str | None, typer.Option(help="Column of the first sentence of a pair.")] = None,
    bad: Annotated[str | None, typer.Option(help="Column of the second.")] = None,
    by: Annotated[
        str | None,
        typer.Option(help="Column to group by. Default: bias_type or group; of Winogender, occupations."),
    ] = None,
    template: Annotated[
        list[str] | None, typer.Option(help="Text with {group} and {attribute}; several are averaged.")
    ] = None,
    group: Annotated[
        str, typer.Option(metavar="WORD,WORD", help="Words that are compared, such as he,she.")
    ] = "",
    attribute: Annotated[
        str, typer.Option(metavar="WORD,...", help="Words whose association with the groups is asked.")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Write one JSON line per pair to this file.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write an HTML report to this file and log a run in MLflow.")
    ] = None,
    domain: opt.ModelDomain = None,
    tokens_per_batch: opt.TokensPerBatch = None,
    precision: opt.Precision = "fp32",
    seed: opt.Seed = 0,
    json_output: opt.Json = False,
) -> None:
    """Measure bias: which of two counterfactual sentences is more probable, which words go with which group.

    Files of pairs: CrowS-Pairs (the first sentence is the more stereotyping one), Winogender (paired by
    `sentid`, the male form first), or own ones. Only tokens that both sentences share are compared; 50 % is
    ideal. The gap of an attribute is how much more it raises the first group's probability than the second's,
    in nats.

    Example: seqmlm bias english crows_pairs_anonymized.csv --report bias.html

    Example: seqmlm bias english --template '{group} works as a {attribute}.' --group he,she
    --attribute nurse,engineer,teacher
    """
    given = locals()
    from seqmlm.cli.output import print_json
    from seqmlm.tasks.bias import BiasConfig, measure_bias

    words = {"groups": given.pop("group"), "attributes": given.pop("attribute")}
    lists = {name: tuple(w.strip() for w in text.split(",") if w.strip()) for name, text in words.items()}
    config = opt.configured(BiasConfig, given, templates=tuple(given.pop("template") or ()), **lists)
    result = measure_bias(config)
    if json_output:
        print_json(result.to_dict())
    else:
        _show(result)


def _show(result: BiasResult) -> None:
    from seqmlm.cli.output import escape, number, print_table

    if result.pairs is not None:
        parts = {"all": result.pairs, **result.pairs["groups"]}
        print_table(
            ["group", "pairs", "first more probable", "95 %", "ties", "mean margin"],
            [
                [
                    escape(name or "-"),
                    own["pairs"],
                    f"{own['accuracy']:.1%}",
                    f"{own['low']:.1%} to {own['high']:.1%}",
                    own["ties"],
                    number(own["margin"]),
                ]
                for name, own in parts.items()
            ],
        )
        tell("of the tokens that both sentences share; 50 % is ideal, ties count for the second")
    if result.associations:
        print_table(
            ["attribute", "groups", "gap"],
            [
                [escape(one.attribute), escape(f"{one.first} - {one.second}"), number(one.gap)]
                for one in result.associations
            ],
        )
        for name, own in result.means.items():
            low, high = number(own["low"]), number(own["high"])
            tell(f"{name}: mean gap {number(own['gap'])} nats ({low} to {high} over attributes)")
