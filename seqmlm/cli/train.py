"""`seqmlm train`: pretrain a masked language model on a user's sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from seqmlm.cli import words


def train(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Files, folders or data sets (hf:NAME) to train on; the built-in sample if none.",
        ),
    ] = None,
    domain: Annotated[
        str | None,
        typer.Option(
            "--domain",
            "-d",
            help=words.DOMAIN,
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", help="The same as PATH; NAME=PATH makes a named corpus, to be mixed."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run, its folder and the model.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings (see --print-config).")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting, as train.warmup=100.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer name, or the folder of a saved one.")
    ] = None,
    masker: Annotated[str | None, typer.Option(help="Masker: uniform, whole_unit, span ...")] = None,
    size: Annotated[str | None, typer.Option(help="tiny, small or base.")] = None,
    init: Annotated[
        str | None, typer.Option(help="Go on from this model: a name, name@alias, folder or hub id.")
    ] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Stop after so many optimizer steps.")] = None,
    max_time: Annotated[str | None, typer.Option(help="Stop after this time: 90s, 10m, 2h.")] = None,
    epochs: Annotated[float | None, typer.Option(min=0.0, help="Stop after so many passes.")] = None,
    tokens_per_batch: Annotated[int | None, typer.Option(min=1, help="Tokens of one optimizer step.")] = None,
    format: Annotated[str | None, typer.Option(help="Input format; guessed from the name if absent.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Reader option, as column=text.")
    ] = None,
    on_error: Annotated[
        str | None, typer.Option(help="Bad records: raise, skip or quarantine (kept aside).")
    ] = None,
    resume: Annotated[
        str, typer.Option(metavar="never|auto|RUN", help="Go on with an interrupted run.")
    ] = "never",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read one batch, print estimates, stop.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings as YAML, stop.")
    ] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end, on stdout.")
    ] = False,
) -> None:
    """Train a masked language model on your sequences.

    Example: seqmlm train --domain protein my_proteins.fasta.gz --max-time 10m --name enzymes
    """
    from seqmlm.cli.console import TrainingConsole
    from seqmlm.cli.output import print_json
    from seqmlm.config import parse_options
    from seqmlm.tasks.dry_run import dry_run as estimate
    from seqmlm.tasks.launch import TrainRequest, request_config
    from seqmlm.tasks.pretrain import pretrain

    flags: dict[str, Any] = {
        "data": {
            "paths": [*(paths or []), *(data or [])] or None,
            "format": format,
            "options": parse_options(option or []),
            "on_error": on_error,
        },
        "masking": {"masker": masker},
        "model": {"size": size, "init": init},
        "train": {
            "max_steps": max_steps,
            "max_time": max_time,
            "epochs": epochs,
            "tokens_per_batch": tokens_per_batch,
        },
        "tokenizer": {"path" if tokenizer and Path(tokenizer).is_dir() else "name": tokenizer},
    }
    request = TrainRequest(
        domain=domain, name=name, resume=resume, config=config, flags=flags, settings=tuple(settings or ())
    )
    if print_config:
        import yaml

        typer.echo(yaml.safe_dump(request_config(request), sort_keys=False), nl=False)
        return
    with TrainingConsole(quiet=False) as console:
        if dry_run:
            report = estimate(request, console)
        else:
            result = pretrain(request, console)
    if dry_run:
        print_json(report) if json_output else typer.echo("\n".join(f"{k:24} {v}" for k, v in report.items()))
        return
    if json_output and result.is_main:
        print_json(result.to_dict())
    if result.signal is not None:
        raise typer.Exit(128 + result.signal)
