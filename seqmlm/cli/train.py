"""`seqmlm train`: pretrain a masked language model on a user's sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from seqmlm.cli import options as opt
from seqmlm.cli.command import described
from seqmlm.cli.output import advise, say


def train(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH|-",
            help="Files, folders or Hugging Face data sets (hf:NAME[:SPLIT]) to train on; - is standard "
            "input. Default: the domain's built-in sample.",
        ),
    ] = None,
    domain: opt.OptionalDomain = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="PATH",
            help="Same as a positional PATH; repeatable. NAME=PATH names a corpus; several names are mixed.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the run, of its folder and of the model. Default: DOMAIN-SIZE-TIME."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Read settings from this YAML file (see --print-config).")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change one setting, repeatable, such as masking.masker=span, train.epochs=3, "
            "data.on_error=skip (see --print-config).",
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            help="Model size: tiny, small or base; or linear, a Potts model of aligned sequences (--option "
            "gaps=keep). Default: by --max-time if given, else by domain."
        ),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(
            help="Start from this model's weights and vocabulary: a name, NAME@ALIAS, folder or hub id. Log "
            "templates that are new in the data get new ids."
        ),
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many optimizer steps.")
    ] = None,
    max_time: Annotated[
        str | None,
        typer.Option(
            help="End within this time: 90s, 10m, 2h, of which a fifth is for evaluation and calibration. "
            "Without --size a measured second chooses the size: --max-time 5m on two cores takes tiny."
        ),
    ] = None,
    option: opt.Option = None,
    resume: Annotated[
        str,
        typer.Option(
            metavar="never|auto|RUN",
            help="Resume an interrupted run: its name, or auto for --name, else the newest unfinished one.",
        ),
    ] = "never",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Run one batch, print estimates of time and memory, and stop.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings and their meaning as YAML and stop.")
    ] = False,
    json_output: opt.Json = False,
) -> None:
    """Train a masked language model on your sequences.

    Training stops at the first limit reached; without a limit, after 1,000 steps.

    Example: seqmlm train --domain protein my_proteins.fasta.gz --max-time 10m --name enzymes
    """
    from seqmlm.tasks.config import PretrainConfig, check_paths

    if not print_config:
        check_paths(opt.merged(paths, data))
    from seqmlm.cli.console import TrainingConsole
    from seqmlm.cli.output import print_json
    from seqmlm.config import parse_options
    from seqmlm.tasks.dry_run import dry_run as estimate
    from seqmlm.tasks.launch import TrainRequest, request_config
    from seqmlm.tasks.pretrain import pretrain

    flags: dict[str, Any] = {
        "data": {"paths": opt.merged(paths, data) or None, "options": parse_options(option or [])},
        "model": {"size": size, "init": init},
        "train": {"max_steps": max_steps, "max_time": max_time},
    }
    request = TrainRequest(
        domain=domain, name=name, resume=resume, config=config, flags=flags, settings=tuple(settings or ())
    )
    if print_config:
        printed = request_config(request)
        say("\n".join(described(PretrainConfig, printed)))
        if "size" not in printed["model"]:
            say("# model.size: measured when the training starts, since train.max_time is set; it decides")
            say("# train.learning_rate and train.tokens_per_batch where they are null")
        elif printed["model"]["init"] is None:
            say("# train.learning_rate and train.tokens_per_batch go by model.size: change them with it")
        return
    with TrainingConsole() as console:
        if dry_run:
            report = estimate(request, console)
        else:
            result = pretrain(request, console)
    if dry_run:
        print_json(report) if json_output else say("\n".join(f"{k:24} {v}" for k, v in report.items()))
        return
    if json_output and result.is_main:
        print_json(result.to_dict())
    elif result.is_main and result.model is not None:
        advise(f"next: seqmlm score {result.model} NEW --fpr 0.05 --report new.html")
    if result.signal is not None:
        raise typer.Exit(128 + result.signal)
