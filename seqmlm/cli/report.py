"""`seqmlm report`: write a page about the results of `watch` in a period."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqmlm.cli.options import Json
from seqmlm.cli.output import print_json, say, tell

_LISTED = 10  # incidents that are printed


def report(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="The model: NAME, NAME@ALIAS, NAME:VERSION or a folder. Default: all models.",
        ),
    ] = None,
    since: Annotated[
        str, typer.Option(metavar="DURATION", help="Length of the period that ends now: 24h, 30m, 7d, ...")
    ] = "24h",
    html: Annotated[
        Path | None,
        typer.Option(
            "--report", metavar="FILE", help="Write the page to this file; default: report-MODEL.html."
        ),
    ] = None,
    json_output: Json = False,
) -> None:
    """Report the results of `watch` for a period: rows, alarms, incidents over time, and p-values.

    It reads only the database. Streams that are not running or have scored nothing are listed first.
    With --json no page is written unless --report names one.

    Example: seqmlm report web --since 24h --report web.html
    """
    from seqmlm.watch.timeline import default_page, timeline

    period = timeline(model, since)
    page = html if html is not None or json_output else default_page(model)
    if page is not None:
        period.write(page)
        tell(f"report: {page}")
    if json_output:
        print_json(period.to_dict())
        return
    for incident in period.incidents[:_LISTED]:
        say(f"incident {incident.id} ({incident.full_state}): {incident.title}")
    for sentence in period.verdict():
        say(sentence)
    for sentence in period.warnings():
        say(f"warning: {sentence}")
