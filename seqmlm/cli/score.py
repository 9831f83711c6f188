"""`seqmlm score`: how usual is each sequence, and which part of it is odd."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqmlm.cli.words import PRECISION


def score(
    model: Annotated[str, typer.Argument(help="A model: name, name@alias, name:version, folder or hub id.")],
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH|-]...", help="Files or folders; - is standard input.")
    ] = None,
    data: Annotated[list[str] | None, typer.Option("--data", help="The same as PATH.")] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="exact (a unit hidden at a time), whole-unit, partition:K (K passes), one-pass, or cascade "
            "(all screened, the unusual looked at exactly). Default: exact; cascade for 64 MiB or more, or "
            "a pipe, where the model is calibrated for it."
        ),
    ] = None,
    level: Annotated[
        str | None, typer.Option(help="What is judged, such as residue, line, session; the domain's own.")
    ] = None,
    per_unit: Annotated[
        bool, typer.Option("--per-unit", help="Add every unit's span, surprisal, entropy and rank.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write here instead of stdout: .jsonl, .csv or .parquet.")
    ] = None,
    format_out: Annotated[
        str | None, typer.Option(help="jsonl, csv or parquet, whatever the name of --out.")
    ] = None,
    fpr: Annotated[
        float | None, typer.Option(help="Alarm: this share of normal rows raises one, as 0.001.")
    ] = None,
    alarms_per_day: Annotated[
        float | None, typer.Option(help="Alarm: so many a day of normal data, where data have times.")
    ] = None,
    alarms_only: Annotated[
        bool, typer.Option("--alarms-only", help="Write rows with an alarm only.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an unfinished --out: no row lost, none doubled.")
    ] = False,
    max_latency: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Read - as it is written; a result at most so long after, 1s."),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report, and track a run.")] = None,
    track: Annotated[
        Path | None, typer.Option(help="Write scores along a genome as bedGraph, and track a run.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="REV", help="Of source code: only lines that changed since a git revision."),
    ] = None,
    diff: Annotated[
        Path | None, typer.Option(help="The same by a unified diff, put on the folder already or not.")
    ] = None,
    sarif: Annotated[Path | None, typer.Option(help="Write alarms as SARIF 2.1.0 too; needs --fpr.")] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="SARIF or .jsonl of an earlier scoring: write only new alarms.")
    ] = None,
    domain: Annotated[
        str | None, typer.Option("--domain", "-d", help="Only for a model that does not know its own.")
    ] = None,
    format: Annotated[str | None, typer.Option(help="Input format; guessed from the name if absent.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Reader option, as column=text.")
    ] = None,
    on_error: Annotated[
        str, typer.Option(help="Bad records: raise, skip or quarantine (OUT.quarantine.jsonl).")
    ] = "raise",
    tokens_per_batch: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of one forward pass, halved when memory runs out [as the device]."),
    ] = None,
    precision: Annotated[str, typer.Option(help=PRECISION)] = "fp32",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON on stdout; needs --out.")
    ] = False,
) -> None:
    """Score sequences with a model: a JSON line each, higher score = more unusual.

    `pll` is the sum of ln p of all units, in nats; `bits_per_unit`, `score` and `surprisal` are in bits.
    With a calibrated model `p_value` is the share of normal rows that are at least as unusual.
    Exact scores take one forward pass a unit, so a long record takes the square of its length.

    Example: seqmlm score enzymes new.fasta --per-unit --out scores.jsonl

    Example: seqmlm score mycode . --since main --fpr 0.001 --sarif new.sarif --baseline old.sarif

    Example: tail -F app.log | seqmlm score app - --max-latency 1s --fpr 0.001 --alarms-only
    """
    import sys

    from seqmlm.cli.console import ScoringConsole
    from seqmlm.cli.output import print_json
    from seqmlm.config import from_dict, parse_options
    from seqmlm.errors import UsageError
    from seqmlm.tasks.score import score_files
    from seqmlm.tasks.score_changes import score_changes
    from seqmlm.tasks.score_plan import ScoreConfig

    if as_json and out is None:
        raise UsageError("--json prints the summary on standard output: name a file for the rows with --out")
    config = from_dict(
        ScoreConfig,
        {
            "model": model,
            "paths": [*(paths or []), *(data or [])],
            "mode": mode,
            "level": level,
            "per_unit": per_unit,
            "out": out,
            "format_out": format_out,
            "fpr": fpr,
            "alarms_per_day": alarms_per_day,
            "alarms_only": alarms_only,
            "resume": resume,
            "max_latency": max_latency,
            "report": report,
            "track": track,
            "since": since,
            "diff": diff,
            "sarif": sarif,
            "baseline": baseline,
            "domain": domain,
            "format": format,
            "options": parse_options(option or []),
            "on_error": on_error,
            "tokens_per_batch": tokens_per_batch,
            "precision": precision,
        },
    )
    if since is not None or diff is not None:
        summary = score_changes(config, sys.stdout)
    else:
        with ScoringConsole() as console:
            summary = score_files(config, sys.stdout, console)
    print(summary.sentence(), file=sys.stderr)
    if as_json:
        print_json(summary.to_dict())
    if summary.stopped is not None:
        if out is not None and max_latency is None:
            print(f"stopped: --resume goes on with {out}", file=sys.stderr)
        sys.exit(128 + summary.stopped)
