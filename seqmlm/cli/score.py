"""`seqmlm score`: how unusual each sequence is, and which part of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqmlm.cli import options as opt
from seqmlm.cli.output import end_as_asked, tell


def score(
    model: opt.Model,
    paths: opt.Paths = None,
    data: opt.Data = None,
    mode: opt.Mode = None,
    level: opt.Level = None,
    per_unit: opt.PerUnit = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the rows to this file instead of stdout: .jsonl, .csv or .parquet."),
    ] = None,
    format_out: Annotated[
        str | None,
        typer.Option(help="Format of the rows: jsonl, csv or parquet. Default: by the name of --out."),
    ] = None,
    fpr: opt.Fpr = None,
    alarms_per_day: opt.AlarmsPerDay = None,
    extrapolate: opt.Extrapolate = False,
    alarms_only: opt.AlarmsOnly = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume an interrupted --out; no row is lost or duplicated.")
    ] = False,
    max_latency: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Read standard input live; write each row at most this long after its line, such as 1s.",
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write an HTML report to this file and log a run in MLflow.")
    ] = None,
    track: Annotated[
        Path | None,
        typer.Option(
            help="Write scores along a genome to this file and log a run in MLflow: .bedgraph, .bed (names "
            "genes), or .bw."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="REV", help="Source code: score only lines changed since this git revision."),
    ] = None,
    diff: Annotated[
        Path | None,
        typer.Option(help="Source code: score only lines changed by this unified diff, applied or not."),
    ] = None,
    sarif: Annotated[
        Path | None, typer.Option(help="Write the alarms to this SARIF 2.1.0 file as well; needs --fpr.")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(help="SARIF or .jsonl file of an earlier scoring; write only alarms it does not have."),
    ] = None,
    domain: opt.ModelDomain = None,
    format: opt.Format = None,
    option: opt.Option = None,
    on_error: opt.OnError = "raise",
    tokens_per_batch: opt.TokensPerBatch = None,
    precision: opt.Precision = "fp32",
    expert: opt.Expert = "auto",
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON on stdout; needs --out.")
    ] = False,
) -> None:
    """Score sequences with a model: one JSON line each; a higher score is more unusual.

    `pll` is the pseudo-log-likelihood in nats; `bits_per_unit`, `score` and `surprisal` are in bits.
    If the model is calibrated, `p_value` is the share of normal rows that are at least as unusual.
    Exact scoring takes one forward pass per unit; its time grows with the square of a record's length, of a
    model whose layers look nearby (`train --layers nearby`) with the length.

    Example: seqmlm score enzymes new.fasta --per-unit --out scores.jsonl

    Example: seqmlm score mycode . --since main --fpr 0.001 --sarif new.sarif --baseline old.sarif

    Example: tail -F app.log | seqmlm score app - --max-latency 1s --fpr 0.001 --alarms-only
    """
    given = locals()
    import sys

    from seqmlm.cli.console import ScoringConsole
    from seqmlm.cli.output import print_json
    from seqmlm.errors import UsageError
    from seqmlm.tasks.score import score_files
    from seqmlm.tasks.score_changes import score_changes
    from seqmlm.tasks.score_config import ScoreConfig

    if json_output and out is None:
        raise UsageError("--json prints the summary on standard output: name a file for the rows with --out")
    config = opt.configured(ScoreConfig, given)
    if since is not None or diff is not None:
        summary = score_changes(config, sys.stdout)
    else:
        with ScoringConsole() as console:
            summary = score_files(config, sys.stdout, console)
    tell(summary.sentence())
    if json_output:
        print_json(summary)
    end_as_asked(summary.stopped, out if max_latency is None else None)
