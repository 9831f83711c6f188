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
    mode: Annotated[
        str | None,
        typer.Option(
            help="How log-probabilities are computed: exact (mask one unit at a time), partition:K (mask "
            "each unit once in K passes) or one-pass (mask nothing). Default: by domain; where that "
            "would take more than ten minutes by estimate, or is not calibrated, another one that is."
        ),
    ] = None,
    level: opt.Level = None,
    per_unit: Annotated[
        bool, typer.Option("--per-unit", help="Add span, surprisal, entropy and rank of every unit.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the rows to this file instead of stdout: .jsonl, .csv or .parquet."),
    ] = None,
    format_out: Annotated[
        str | None,
        typer.Option(help="Format of the rows: jsonl, csv or parquet. Default: by the name of --out."),
    ] = None,
    fpr: Annotated[
        float | None,
        typer.Option(help="False positive rate: share of normal rows that raise an alarm, such as 0.001."),
    ] = None,
    alarms_per_day: Annotated[
        float | None,
        typer.Option(help="Alarms a day on normal data, instead of --fpr; the data must have times."),
    ] = None,
    extrapolate: Annotated[
        bool,
        typer.Option(
            "--extrapolate",
            help="Allow a rate below what the normal rows guarantee, by the fit of a tail to their scores.",
        ),
    ] = False,
    alarms_only: Annotated[
        bool, typer.Option("--alarms-only", help="Write only the rows that raise an alarm.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume an interrupted --out; no row is lost or duplicated.")
    ] = False,
    max_latency: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Read standard input live, or files with --follow; write each row at most this long after "
            "its line, such as 1s.",
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Score files while others write to them, also rotated ones, and new files of a pattern in "
            "quotes; go on where it was left. After a kill rows may come again on stdout, never in --out.",
        ),
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(
            help="With --follow, in place of files: journald, perhaps with options of journalctl that say "
            "which entries, such as 'journald -u nginx'."
        ),
    ] = None,
    ignore: Annotated[
        Path | None,
        typer.Option(
            help="File of regular expressions, one a line: alarms whose least expected line or template fits "
            "one make no incident; with --follow."
        ),
    ] = None,
    calibration: Annotated[
        str,
        typer.Option(
            help="With --follow: fixed (p-values are ranks among the rows the model was calibrated with) or "
            "rolling (among the newest rows of the stream, without those of acknowledged incidents)."
        ),
    ] = "fixed",
    shadow: Annotated[
        str | None,
        typer.Option(
            metavar="ALIAS",
            help="With --follow: the version of the model that this alias names judges the same rows beside, "
            "and raises nothing: each row says in `shadow` whether it would alarm. Scoring takes about twice "
            "the time and memory.",
        ),
    ] = None,
    quiet: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="An incident is over when its file raised no alarm for so long, such as 10m; with "
            "--follow. Default: 5m.",
        ),
    ] = None,
    webhook: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="With --follow: post each incident to this address until it is taken; repeatable. Its token "
            "is read from SEQMLM_WEBHOOK_TOKEN.",
        ),
    ] = None,
    webhook_format: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FORMAT",
            help="Format of what is posted: plain, alertmanager (its API v2) or otlp (logs as JSON); one for "
            "all webhooks, or one for each. Default: plain.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="With --follow: serve counters on this port, as /metrics (Prometheus) and /metrics.json; 0 "
            "for any that is free.",
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address of this machine that --metrics-port is on.")
    ] = "127.0.0.1",
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

    Example: seqmlm score app 'logs/*.log' --follow --max-latency 1s --fpr 0.001 --out alarms.jsonl

    Example: seqmlm score app --source 'journald -u nginx' --follow --fpr 0.001 --out alarms.jsonl

    Example: seqmlm score app@live 'logs/*.log' --follow --fpr 0.01 --calibration rolling --out alarms.jsonl

    Example: seqmlm score app@live 'logs/*.log' --follow --shadow candidate --fpr 0.001 --out alarms.jsonl

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
    from seqmlm.tasks.score_follow import score_following

    if json_output and out is None:
        raise UsageError("--json prints the summary on standard output: name a file for the rows with --out")
    several = {"webhook": tuple(webhook or ()), "webhook_format": tuple(webhook_format or ())}
    config = opt.configured(ScoreConfig, given, **several)
    if since is not None or diff is not None:
        summary = score_changes(config, sys.stdout)
    else:
        with ScoringConsole() as console:
            if follow:
                summary = score_following(config, console, stdout=sys.stdout)
            else:
                summary = score_files(config, sys.stdout, console)
    tell(summary.sentence())
    if json_output:
        print_json(summary)
    if follow:
        end_as_asked(summary.stopped, out or "the rows after these", go_on="to go on with")
    end_as_asked(summary.stopped, out if max_latency is None else None)
