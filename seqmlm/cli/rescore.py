"""`seqmlm rescore`: rerank n-best lists with a model's pseudo-log-likelihoods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqmlm.cli import options as opt
from seqmlm.cli.output import say, tell

if TYPE_CHECKING:
    from seqmlm.tasks.rescore import RescoreResult


def rescore(
    model: opt.Model,
    path: Annotated[
        str, typer.Argument(metavar="FILE", help="N-best lists: .json (ESPnet, mlm-scoring), .jsonl or .tsv.")
    ],
    ref: Annotated[
        str | None,
        typer.Option(help="File of reference texts: .tsv of ID and text, or .jsonl with id and text."),
    ] = None,
    weights: Annotated[
        str, typer.Option(help="Weights of the pseudo-log-likelihood to try, separated by commas.")
    ] = "0,0.05,0.1,0.2,0.3,0.5,0.7,1",
    norm: Annotated[str, typer.Option(help="Divide totals by: none, length (words) or gnmt.")] = "none",
    temperature: Annotated[float, typer.Option(help="Divide the pseudo-log-likelihood by this.")] = 1.0,
    dev: Annotated[
        float | None,
        typer.Option(help="Choose the weight on this share of the lists, in (0, 1); report on the others."),
    ] = None,
    unit: Annotated[str, typer.Option(help="Unit of the error rate: word or character.")] = "word",
    mode: opt.PairMode = "exact",
    out: Annotated[
        Path | None,
        typer.Option(help="Write the reranked lists to this file instead of stdout, one JSON line each."),
    ] = None,
    domain: opt.ModelDomain = None,
    tokens_per_batch: opt.TokensPerBatch = None,
    precision: opt.Precision = "fp32",
    expert: opt.Expert = "auto",
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the results as JSON on stdout instead of the lists.")
    ] = False,
) -> None:
    """Rerank n-best lists by first-pass score + weight x pseudo-log-likelihood.

    With references, reports the error rate of every weight, of the first pass and of the oracle (the best
    hypothesis of each list). Choosing a weight on the lists it is reported on is too optimistic: use --dev.
    Lists are ranked by the weight chosen with --dev, or by the only weight given.

    Example: seqmlm rescore english nbest.json --ref ref.tsv --dev 0.3 --out reranked.jsonl
    """
    given = locals()
    import json

    from seqmlm.cli.output import print_json
    from seqmlm.errors import UsageError
    from seqmlm.tasks.rescore import RescoreConfig, rescore_file

    try:
        numbers = list(dict.fromkeys(float(weight) for weight in weights.split(",")))
    except ValueError:
        raise UsageError(
            f"--weights {weights!r} must be numbers separated by commas, such as 0,0.1,0.3"
        ) from None
    config = opt.configured(RescoreConfig, given, references=given.pop("ref"), weights=numbers)
    result, lines = rescore_file(config)
    if json_output:
        print_json(result)
        return
    if out is None:
        for line in lines:
            say(json.dumps(line))
    _print_errors(result, unit)
    tell(
        f"rescored {result.hypotheses:,} hypotheses of {result.lists:,} lists"
        + (f"; {result.unknown:,} unknown tokens were not scored" if result.unknown else "")
        + opt.mixed_in(result.counts)
    )


def _print_errors(result: RescoreResult, unit: str) -> None:
    """Error rates on stderr: stdout has the lists."""

    for heading, part in (("lists that chose the weight", result.dev), ("reported", result.test)):
        if part and (result.dev or heading == "reported"):
            tell(f"{heading}:")
        for row in part:
            tell(
                f"  {row.name:<12} {unit} error rate {row.error_rate:.2%}, exact {row.exact:.1%}, "
                f"{row.changed} changed"
            )
    if result.gain is not None:
        gain = result.gain
        tell(
            f"weight {result.weight:g} compared with the first pass: {-gain.value:+.2%} "
            f"(95 %: {-gain.high:+.2%} to {-gain.low:+.2%})"
        )
