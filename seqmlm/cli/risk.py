"""`seqmlm risk`: how probable it is that a code comes next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqmlm.cli import options as opt
from seqmlm.cli.output import end_as_asked, tell


def risk(
    model: opt.Model,
    paths: opt.Paths = None,
    data: opt.Data = None,
    code: Annotated[
        list[str] | None,
        typer.Option(
            help="A code that counts, as the vocabulary spells it; * stands for anything; repeatable."
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Table with subject_id, prediction_time and perhaps boolean_value (MEDS). Default: each "
            "subject at the last event."
        ),
    ] = None,
    gap: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DURATION",
            help="Time from the prediction to what is asked about; several are averaged. Default: 30d.",
        ),
    ] = None,
    prevalent: Annotated[
        bool, typer.Option("--prevalent", help="Ask about those who had one of the codes before, too.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the predictions to this file: .jsonl, .csv or .parquet.")
    ] = None,
    format_out: Annotated[
        str | None, typer.Option(help="Format of the rows: jsonl, csv or parquet. Default: by --out.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted --out.")] = False,
    report: Annotated[
        Path | None, typer.Option(help="Write an HTML report to this file and log a run in MLflow.")
    ] = None,
    domain: opt.ModelDomain = None,
    format: opt.Format = None,
    option: opt.Option = None,
    on_error: opt.OnError = "raise",
    tokens_per_batch: opt.TokensPerBatch = None,
    precision: opt.Precision = "fp32",
    seed: opt.Seed = 0,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON on stdout; needs --out.")
    ] = False,
) -> None:
    """Predict how probable it is that a code is in a later visit, from what was known at a time.

    A history is cut at the time, and a visit with one unknown event is put behind it. `log_ratio` is what the
    history adds to what anybody of that sex and age has. Rows have the columns of meds-evaluation. A
    probability is that of one event of the visit: rank by it, and calibrate it before you believe its size.

    Example: seqmlm risk hospital meds/ --code 'ICD10CM//E11*' --labels labels.parquet --gap 180d
    --out predictions.parquet --report risk.html
    """
    given = locals()
    import sys

    from seqmlm.cli.console import ScoringConsole
    from seqmlm.cli.output import print_json
    from seqmlm.errors import UsageError
    from seqmlm.tasks.risk import RiskConfig, predict_risk

    if json_output and out is None:
        raise UsageError("--json prints the summary on standard output: name a file for the rows with --out")
    several = {"codes": tuple(given.pop("code") or ()), "gaps": tuple(given.pop("gap") or ("30d",))}
    config = opt.configured(RiskConfig, given, **several)
    with ScoringConsole() as console:
        result = predict_risk(config, sys.stdout, console)
    tell(result.sentence())
    if json_output:
        print_json(result.to_dict())
    end_as_asked(result.written.stopped, out)
