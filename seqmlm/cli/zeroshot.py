"""`seqmlm zeroshot`: classify by a template with a gap, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqmlm.cli import options as opt
from seqmlm.cli.output import end_as_asked, print_json, tell


def zeroshot(
    model: opt.Model,
    paths: opt.Paths = None,
    data: opt.Data = None,
    template: Annotated[
        list[str] | None,
        typer.Option(
            help="Text with a gap, and {text} or {COLUMN} where the data go; several are averaged. One "
            "without stands behind the text."
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="CLASS=WORD,...", help="A class and the words that stand for it; repeatable."),
    ] = None,
    task: Annotated[
        Path | None, typer.Option(help="YAML file with `templates` (a list) and `labels` (class: [words]).")
    ] = None,
    truth: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the true class, to evaluate by.")
    ] = None,
    calibration: Annotated[
        str,
        typer.Option(
            help="What is taken off a word's log-probability: pmi (what it has in the template without "
            "data), contextual (its mean over the first 200 inputs), none, or auto: contextual for files of "
            "20 inputs or more, else pmi."
        ),
    ] = "auto",
    sensitivity: Annotated[
        bool,
        typer.Option("--sensitivity", help="Evaluate each template, and each word of a class, alone too."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the rows to this file instead of stdout: .jsonl, .csv or .parquet."),
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
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON on stdout; needs --out.")
    ] = False,
) -> None:
    """Classify sequences without training: how well do the words of a class fit into a template's gap?

    A class is as probable as its words on average; a word of several tokens has one mask for each, and is
    asked from left to right. Scores are comparisons, no calibrated probabilities.

    Example: seqmlm zeroshot english reviews.csv --template '{text} It was [MASK].'
    --label positive=great,excellent --label negative=bad,terrible --truth label --sensitivity --out p.jsonl

    Example: seqmlm zeroshot english reviews.txt --template 'The review is [MASK].' --label good=good
    --label bad=bad
    """
    given = locals()
    import sys

    from seqmlm.cli.console import ScoringConsole
    from seqmlm.errors import UsageError
    from seqmlm.tasks.zeroshot import ZeroshotConfig
    from seqmlm.tasks.zeroshot import zeroshot as classify

    if json_output and out is None:
        raise UsageError("--json prints the summary on standard output: name a file for the rows with --out")
    labels: dict[str, tuple[str, ...]] = {}
    for text in given.pop("label") or ():
        name, equals, words = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--label {text!r}: write CLASS=WORD,WORD, such as positive=great,excellent")
        if name.strip() in labels:
            raise UsageError(f"--label names the class {name.strip()!r} twice: give all its words at once")
        labels[name.strip()] = tuple(word.strip() for word in words.split(","))
    templates = tuple(given.pop("template") or ())
    config = opt.configured(ZeroshotConfig, given, labels=labels, templates=templates)
    with ScoringConsole() as console:
        result = classify(config, sys.stdout, console)
    tell(result.sentence())
    if json_output:
        print_json(result.to_dict())
    end_as_asked(result.written.stopped, out)
