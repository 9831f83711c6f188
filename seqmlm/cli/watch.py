"""`seqmlm watch`: score files while others write to them, and make incidents of their alarms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqmlm.cli import options as opt
from seqmlm.cli.output import end_as_asked, print_json, tell


def watch(
    model: opt.Model,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH]...", help="Files to watch, or patterns of files in quotes."),
    ] = None,
    data: opt.Data = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the rows to this file of JSON lines instead of stdout.")
    ] = None,
    fpr: opt.Fpr = None,
    alarms_per_day: opt.AlarmsPerDay = None,
    extrapolate: opt.Extrapolate = False,
    alarms_only: opt.AlarmsOnly = False,
    max_latency: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Write each row at most this long after its line, such as 1s."),
    ] = "1s",
    source: Annotated[
        str | None,
        typer.Option(
            help="In place of files: journald, perhaps with options of journalctl that say which entries, "
            "such as 'journald -u nginx'."
        ),
    ] = None,
    ignore: Annotated[
        Path | None,
        typer.Option(
            help="File of regular expressions, one a line: alarms whose least expected line or template fits "
            "one make no incident."
        ),
    ] = None,
    calibration: Annotated[
        str,
        typer.Option(
            help="What p-values are ranks among: fixed (the rows the model was calibrated with) or rolling "
            "(the newest rows of the stream, without those of acknowledged incidents)."
        ),
    ] = "fixed",
    shadow: Annotated[
        str | None,
        typer.Option(
            metavar="ALIAS",
            help="The version of the model that this alias names judges the same rows beside, and raises "
            "nothing: each row says in `shadow` whether it would alarm. Scoring takes about twice the time "
            "and memory.",
        ),
    ] = None,
    quiet: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="An incident is over when its file raised no alarm for so long, such as 10m. Default: 5m.",
        ),
    ] = None,
    webhook: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Post each incident to this address until it is taken; repeatable. Its token is read from "
            "SEQMLM_WEBHOOK_TOKEN.",
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
            help="Serve counters on this port, as /metrics (Prometheus) and /metrics.json; 0 for any that is "
            "free.",
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address of this machine that --metrics-port is on.")
    ] = "127.0.0.1",
    mode: opt.Mode = None,
    level: opt.Level = None,
    per_unit: opt.PerUnit = False,
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
    """Watch files: score their lines while others write to them, and make incidents of their alarms.

    Rotated files and new files of a pattern are taken up. Whatever ended it, it goes on where it was left:
    after a kill rows may come again on stdout, never in --out. What alarms come to: `seqmlm incidents list`.

    Example: seqmlm watch app 'logs/*.log' --max-latency 1s --fpr 0.001 --out alarms.jsonl

    Example: seqmlm watch app --source 'journald -u nginx' --fpr 0.001 --out alarms.jsonl

    Example: seqmlm watch app@live 'logs/*.log' --fpr 0.01 --calibration rolling --out alarms.jsonl

    Example: seqmlm watch app@live 'logs/*.log' --shadow candidate --fpr 0.001 --out alarms.jsonl
    """
    given = locals()
    import sys

    from seqmlm.cli.console import ScoringConsole
    from seqmlm.errors import UsageError
    from seqmlm.watch.config import WatchConfig
    from seqmlm.watch.scoring import watch_files

    if json_output and out is None:
        raise UsageError("--json prints the summary on standard output: name a file for the rows with --out")
    several = {"webhook": tuple(webhook or ()), "webhook_format": tuple(webhook_format or ())}
    config = opt.configured(WatchConfig, given, **several)
    with ScoringConsole() as console:
        summary = watch_files(config, console, stdout=sys.stdout)
    tell(summary.sentence())
    if json_output:
        print_json(summary)
    end_as_asked(summary.stopped, out or "the rows after these", go_on="to go on with")
