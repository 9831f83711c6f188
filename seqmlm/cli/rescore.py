"""`seqmlm rescore`: n-best lists reranked with a model's pseudo-log-likelihoods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqmlm.cli.words import PRECISION

if TYPE_CHECKING:
    from seqmlm.tasks.rescore import RescoreResult


def rescore(
    model: Annotated[str, typer.Argument(help="A model: name, name@alias, name:version, folder or hub id.")],
    path: Annotated[
        str, typer.Argument(metavar="FILE", help="N-best lists: .json (ESPnet, mlm-scoring), .jsonl or .tsv.")
    ],
    ref: Annotated[
        str | None, typer.Option(help="References: .tsv of ID and text, or .jsonl with id and text.")
    ] = None,
    weights: Annotated[
        str, typer.Option(help="Weights of the pseudo-log-likelihood, apart by commas.")
    ] = "0,0.05,0.1,0.2,0.3,0.5,0.7,1",
    norm: Annotated[
        str, typer.Option(help="What totals are divided by: none, length (words) or gnmt.")
    ] = "none",
    temperature: Annotated[float, typer.Option(help="Divides the pseudo-log-likelihood.")] = 1.0,
    dev: Annotated[
        float | None,
        typer.Option(help="Choose the weight on this share of the lists, report on the others."),
    ] = None,
    unit: Annotated[str, typer.Option(help="What errors count: word or character.")] = "word",
    mode: Annotated[
        str, typer.Option(help="exact, whole-unit, partition:K or one-pass, as of seqmlm score.")
    ] = "exact",
    out: Annotated[
        Path | None, typer.Option(help="Write the reranked lists here instead of stdout, a JSON line each.")
    ] = None,
    domain: Annotated[
        str | None, typer.Option("--domain", "-d", help="Only for a model that does not know its own.")
    ] = None,
    tokens_per_batch: Annotated[
        int | None, typer.Option(min=1, help="Tokens of one forward pass; halved when memory runs out.")
    ] = None,
    precision: Annotated[str, typer.Option(help=PRECISION)] = "fp32",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object of results instead of the lists.")
    ] = False,
) -> None:
    """Rerank n-best lists: first-pass score + weight x pseudo-log-likelihood, for every weight.

    Where references are known the error rates of all weights are reported beside the first pass and the
    oracle (the best hypothesis of each list). A weight chosen on the lists it is reported on flatters:
    choose it with --dev. Lists are ranked by the chosen weight, or by the only one.

    Example: seqmlm rescore english nbest.json --ref ref.tsv --dev 0.3 --out reranked.jsonl
    """
    import json
    import sys
    from dataclasses import asdict

    from seqmlm.cli.output import print_json
    from seqmlm.config import from_dict
    from seqmlm.errors import UsageError
    from seqmlm.tasks.rescore import RescoreConfig, rescore_file

    try:
        numbers = list(dict.fromkeys(float(weight) for weight in weights.split(",")))
    except ValueError:
        raise UsageError(f"--weights {weights!r} must be numbers apart by commas, as 0,0.1,0.3") from None
    config = from_dict(
        RescoreConfig,
        {
            "model": model,
            "path": path,
            "references": ref,
            "weights": numbers,
            "norm": norm,
            "temperature": temperature,
            "dev": dev,
            "unit": unit,
            "mode": mode,
            "out": out,
            "domain": domain,
            "tokens_per_batch": tokens_per_batch,
            "precision": precision,
        },
    )
    result, lines = rescore_file(config)
    if as_json:
        print_json(asdict(result))
        return
    if out is None:
        for line in lines:
            print(json.dumps(line, ensure_ascii=False))
    _tell(result, unit)
    print(
        f"rescored {result.hypotheses:,} hypotheses of {result.lists:,} lists"
        + (f"; {result.unknown:,} unknown tokens are in no score" if result.unknown else ""),
        file=sys.stderr,
    )


def _tell(result: RescoreResult, unit: str) -> None:
    """Error rates on stderr: stdout has the lists."""
    import sys

    for heading, part in (("lists that chose the weight", result.dev), ("reported", result.test)):
        if part and (result.dev or heading == "reported"):
            print(f"{heading}:", file=sys.stderr)
        for row in part:
            print(
                f"  {row.name:<12} {unit} error rate {row.error_rate:.2%}, exact {row.exact:.1%}, "
                f"{row.changed} changed",
                file=sys.stderr,
            )
    if result.gain is not None:
        gain = result.gain
        print(
            f"weight {result.weight:g} against the first pass: {-gain.value:+.2%} "
            f"(95 %: {-gain.high:+.2%} to {-gain.low:+.2%})",
            file=sys.stderr,
        )
