"""`seqmlm train`: pretrain a masked language model on a user's sequences."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from seqmlm.cli import options as opt
from seqmlm.cli.command import declared, described
from seqmlm.cli.output import advise, print_json, say
from seqmlm.cli.start import began

if TYPE_CHECKING:
    from seqmlm.training.launch import TrainRequest


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of `seqmlm train`. All settings are in `seqmlm.training.config`.

    Args:
        paths: files, folders or Hugging Face data sets (hf:NAME[:SPLIT]) to train on; - is standard input.
            Default: the domain's built-in sample.
        domain: field of the sequences: code, dna, ehr, logs, protein, text, or the name of a plug-in.
        data: PATH: same as a positional PATH; repeatable. NAME=PATH names a corpus; several names are mixed.
        name: name of the run, of its folder and of the model. Default: DOMAIN-SIZE-TIME.
        config: read settings from this YAML file (see --print-config).
        settings: KEY=VALUE: change one setting, repeatable, such as masking.masker=span, train.epochs=3,
            data.on_error=skip (see --print-config).
        size: model size: tiny, small or base; or linear, a Potts model of aligned sequences (--option
            gaps=keep). Default: selected for --max-time; without it, the domain's default.
        init: start from this model's weights and vocabulary: a name, NAME@ALIAS, folder or hub id. Log
            templates that are new in the data get new ids.
        max_steps: stop after this many optimizer steps.
        max_time: end within this time: 90s, 10m, 2h, from the start of the command to its end. A fifth of it
            is for evaluation and calibration. Reading the data is never cut short: if it takes more than half
            of the limit, the limit is extended by the excess. Without --size the speed of this machine,
            measured for a second, selects the size; --max-time 5m on two cores selects tiny.
        options: KEY=VALUE: option of the file reader, such as column=text; repeatable.
        resume: never|auto|RUN: resume an interrupted run. RUN is its name. auto is the run with this --name
            or, without --name, the newest unfinished run.
        dry_run: run one batch, print estimates of time and memory, and stop.
        print_config: print all settings and their meaning as YAML and stop.
    """

    option_fields: ClassVar[tuple[str, ...]] = (
        *("domain", "data", "name", "config", "settings", "size", "init", "max_steps", "max_time"),
        *("options", "resume", "dry_run", "print_config"),
    )
    metavar: ClassVar[str] = "PATH|-"

    paths: tuple[str, ...] = ()
    domain: str | None = field(default=None, metadata={"also": ("-d",)})
    data: tuple[str, ...] = field(default=(), metadata={"further": {"callback": opt.inputs}})
    name: str | None = None
    config: Path | None = None
    settings: tuple[str, ...] = field(default=(), metadata={"flag": "--set"})
    size: str | None = None
    init: str | None = None
    max_steps: int | None = field(default=None, metadata={"further": {"min": 1}})
    max_time: str | None = None
    options: tuple[str, ...] = ()
    resume: str = field(default="never", metadata={"default": "never"})
    dry_run: bool = False
    print_config: bool = False


def _train(**arguments: Any) -> None:
    """Train a masked language model on your sequences.

    Training stops at the first limit reached; without a limit, after 1,000 steps.

    Example: seqmlm train --domain protein my_proteins.fasta.gz --max-time 10m --name enzymes
    """
    from seqmlm.training.config import check_paths

    paths = opt.merged(arguments["paths"], arguments["data"])
    if not arguments["print_config"]:
        check_paths(paths)
    request = _request(paths, arguments)
    if arguments["print_config"]:
        _print_settings(request)
        return
    request.check()  # before torch is loaded: that takes seconds
    from seqmlm.cli.console import TrainingConsole
    from seqmlm.training.dry_run import dry_run
    from seqmlm.training.pretrain import pretrain

    with TrainingConsole(began()) as console:
        result = dry_run(request, console) if arguments["dry_run"] else pretrain(request, console)
    if isinstance(result, dict):
        lines = "\n".join(f"{name:24} {value}" for name, value in result.items())
        print_json(result) if arguments["json_output"] else say(lines)
        return
    if arguments["json_output"] and result.is_main:
        print_json(result.to_dict())
    elif result.is_main and result.model is not None:
        advise(f"next: {result.next}" if result.next else "")
    if result.signal is not None:
        raise typer.Exit(128 + result.signal)


train = declared(_train, TrainOptions)


def _request(paths: list[str], arguments: dict[str, Any]) -> TrainRequest:
    from seqmlm.config import parse_options
    from seqmlm.training.launch import TrainRequest

    flags = {
        "data": {"paths": paths or None, "options": parse_options(arguments["options"] or [])},
        "model": {name: arguments[name] for name in ("size", "init")},
        "train": {name: arguments[name] for name in ("max_steps", "max_time")},
    }
    same = {name: arguments[name] for name in ("domain", "name", "resume", "config")}
    return TrainRequest(**same, flags=flags, settings=tuple(arguments["settings"] or ()))


def _print_settings(request: TrainRequest) -> None:
    from seqmlm.training.config import PretrainConfig
    from seqmlm.training.launch import request_config

    printed = request_config(request)
    say("\n".join(described(PretrainConfig, printed)))
    if "size" not in printed["model"]:
        say("# model.size: measured when the training starts, since train.max_time is set; it decides")
        say("# train.learning_rate and train.tokens_per_batch where they are null")
    elif printed["model"]["init"] is None:
        say("# train.learning_rate and train.tokens_per_batch depend on model.size: change them with it")
