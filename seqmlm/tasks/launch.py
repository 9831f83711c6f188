"""From a request to a plan: resolved settings, the run's name and folder, a new run or a resumed one.

A resumed run keeps the settings that determine its numbers (`FROZEN`) and may change the others, such as its
limits: anything else would make "resumed" and "uninterrupted" different trainings.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seqmlm import plugins
from seqmlm.config import merge, parse_assignments, read_yaml, to_dict
from seqmlm.data.files import is_reference, save_stdin
from seqmlm.data.readers.huggingface import Reference
from seqmlm.engine.masking.base import MaskingConfig
from seqmlm.engine.shapes import LINEAR, SHAPE_KEYS, SIZES
from seqmlm.errors import StateError, UsageError, nearest
from seqmlm.inference.model_folder import inline_words
from seqmlm.registry import Registry, resolve
from seqmlm.tasks.assemble import batch_tokens, loop_config, row_length
from seqmlm.tasks.config import LIMITS, PretrainConfig, resolve_config
from seqmlm.tasks.corpus import KEPT_INPUTS, split_source
from seqmlm.workspace import Workspace

RUN_CONFIG = "config.yaml"
FINISHED = "result.json"

FROZEN = ("domain", "seed", "data", "tokenizer", "masking", "model")
FROZEN_TRAINING = ("tokens_per_batch", "tokens_per_row", "betas", "sharding")


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What the user requested, unresolved.

    Args:
        domain: its name; may be left out when a run is resumed or the config file names it.
        name: of the run; made from domain, size and time when absent.
        resume: "never", "auto" or the name of a run.
        config: YAML file of settings.
        flags: nested settings from flags; None values mean "not given".
        settings: `a.b=c` assignments; they win over the flags.
    """

    domain: str | None = None
    name: str | None = None
    resume: str = "never"
    config: Path | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A resolved request: settings, the run's name and folder, and whether it resumes an existing run.

    Where the training has a limit of time and the user names no size, it is that of the domain until
    `sizing.sized` takes one of `candidates`: the same request for every size, the smallest first.
    """

    config: PretrainConfig
    name: str
    directory: Path
    resume: bool
    candidates: tuple[Plan, ...] = ()


def request_config(request: TrainRequest) -> Any:
    """The resolved settings of a request as plain values, for `--print-config`.

    The size is not among them where it is measured: as a setting it would be named. What depends on it is
    null then, and else a number.
    """
    asked = _asked(request)
    config = _resolve(request, asked, {})
    settled = _settled(config)
    if not _leaves_size(asked, config):
        return to_dict(settled)
    values = to_dict(config)
    del values["model"]["size"]
    return values


def plan(request: TrainRequest, workspace: Workspace, processes: int = 1) -> Plan:
    """Resolve a request in this workspace; writes no file, except for data on standard input.

    Args:
        request: the user's settings.
        workspace: where its run is or will be.
        processes: that will train; each has a row of a batch whose size is still to be measured.

    Raises:
        UsageError: no domain, unknown keys or names.
        StateError: the name is taken, the run to resume is missing, or its settings would change.
    """
    name, asked = _existing_run(request, workspace), _asked(request)
    if name is None:
        return _new(request, asked, workspace, processes)
    directory = workspace.run_dir(name)
    saved = read_yaml(directory / RUN_CONFIG)
    config = complete(_resolve(request, asked, saved), workspace)
    _check_unchanged(name, saved, to_dict(config))
    return Plan(config=config, name=name, directory=directory, resume=True)


def _new(request: TrainRequest, asked: Mapping[str, Any], workspace: Workspace, processes: int) -> Plan:
    """The plan of a new run, with one for every size if the size is to be measured."""
    now = time.strftime("%Y%m%d-%H%M%S")

    def planned(config: PretrainConfig) -> Plan:
        name = request.name or f"{config.domain}-{config.model.size}-{now}"
        directory = workspace.run_dir(name)
        if (directory / RUN_CONFIG).exists() or (directory / "checkpoints").exists():
            raise StateError(
                f"run {name!r} exists ({directory}): continue it with --resume auto, or choose another --name"
            )
        return Plan(config=config, name=name, directory=directory, resume=False)

    config = complete(_resolve(request, asked, {}), workspace)
    first = planned(config)
    if not _leaves_size(asked, config):
        return first
    candidates = []
    for size in SIZES:
        of_size = _resolve(request, merge(asked, {"model": {"size": size}}), {})
        # Not read again: standard input, say, is empty now.
        read = replace(of_size, data=config.data, tokenizer=config.tokenizer, masking=config.masking)
        candidates.append(planned(complete(_divided(read, processes), workspace)))
    return replace(first, candidates=tuple(candidates))


def _divided(config: PretrainConfig, processes: int) -> PretrainConfig:
    """The settings with rows so short that each process has one of a batch, unless their length is named."""
    if config.train.tokens_per_row is not None or loop_config(config).rows_per_batch >= processes:
        return config
    length = max(config.model.max_length, batch_tokens(config) // processes)
    return replace(config, train=replace(config.train, tokens_per_row=length))


def _leaves_size(asked: Mapping[str, Any], config: PretrainConfig) -> bool:
    """Whether there is a limit of time, and neither size, shape nor weights of the model are named."""
    model = config.model
    named = "size" in asked.get("model", {}) or model.init is not None or SHAPE_KEYS & set(model.overrides)
    return config.train.max_time is not None and not named


def _existing_run(request: TrainRequest, workspace: Workspace) -> str | None:
    """The run to continue, or None for a new one."""
    known = _runs(workspace)
    if request.resume == "never":
        return None
    if request.resume == "auto":
        if request.name is not None:
            return request.name if request.name in known else None
        return _newest_unfinished(request, known)
    if request.name not in (None, request.resume):
        raise UsageError(
            f"--resume {request.resume} and --name {request.name} name two different runs; give one of them"
        )
    if request.resume not in known:
        raise StateError(f"there is no run {request.resume!r} to resume{nearest(request.resume, known)}")
    return request.resume


def _runs(workspace: Workspace) -> dict[str, Path]:
    """Runs with saved settings, oldest first."""
    folder = workspace.runs
    found = [path for path in folder.iterdir() if (path / RUN_CONFIG).is_file()] if folder.is_dir() else []
    return {path.name: path for path in sorted(found, key=lambda path: (path / RUN_CONFIG).stat().st_mtime)}


def _newest_unfinished(request: TrainRequest, known: Mapping[str, Path]) -> str | None:
    for name, directory in reversed(list(known.items())):
        finished = (directory / FINISHED).exists()
        if not finished and request.domain in (None, read_yaml(directory / RUN_CONFIG).get("domain")):
            return name
    return None


def _asked(request: TrainRequest) -> dict[str, Any]:
    """The settings that the request names, nested."""
    from_file = read_yaml(request.config) if request.config else {}
    asked = merge(from_file, _given(request.flags), parse_assignments(request.settings))
    _check_init(asked)
    _check_linear(asked)
    return asked


def _resolve(request: TrainRequest, asked: Mapping[str, Any], saved: Mapping[str, Any]) -> PretrainConfig:
    train = asked.get("train")
    if saved and isinstance(train, dict) and any(limit in train for limit in LIMITS):
        # A new limit replaces the old ones: the first limit reached would stop the training.
        saved = merge(saved, {"train": dict.fromkeys(LIMITS)})
    domain = request.domain or asked.get("domain") or saved.get("domain")
    if domain is None:
        known = ", ".join(plugins.names("domains"))
        raise UsageError(f"name the field of the sequences with --domain (known: {known})")
    for other in (asked.get("domain"), saved.get("domain")):
        if other not in (None, domain):
            raise UsageError(f"--domain {domain} contradicts {other!r} in the settings")
    return resolve_config(plugins.domain(domain), saved, asked)


def _check_init(asked: Mapping[str, Any]) -> None:
    """Refuse settings that the initial model determines."""
    model, tokenizer = asked.get("model"), asked.get("tokenizer")
    if not isinstance(model, dict) or model.get("init") is None:
        return
    decided = [
        f"model.{key}" for key in ("size", "dropout", "layers", "initialization", "overrides") if key in model
    ]
    decided += [f"tokenizer.{key}" for key in (tokenizer if isinstance(tokenizer, dict) else {})]
    if decided:
        raise UsageError(
            f"{', '.join(decided)} cannot be set together with --init: the initial model determines them"
        )


def _check_linear(asked: Mapping[str, Any]) -> None:
    """Refuse settings of encoders for a linear model."""
    model, train = asked.get("model"), asked.get("train")
    if not isinstance(model, dict) or model.get("size") != LINEAR:
        return
    unread = {"model": ("dropout", "layers", "initialization"), "train": ("learning_rate", "sharding")}
    named = [
        f"{section}.{key}"
        for section, values in (("model", model), ("train", train))
        for key in unread[section]
        if isinstance(values, dict) and key in values
    ]
    if named:
        raise UsageError(
            f"{', '.join(named)} cannot be set with --size linear, which has nothing of the kind"
        )


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Drop what was not given (None) from nested flags."""
    kept = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            inner = _given(value)
            if inner:
                kept[key] = inner
        elif value is not None:
            kept[key] = value
    return kept


def _check_unchanged(name: str, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changed = [key for key in FROZEN if key in saved and saved[key] != now[key]]
    changed += [
        f"train.{key}"
        for key in FROZEN_TRAINING
        if key in saved.get("train", {}) and saved["train"][key] != now["train"][key]
    ]
    if changed:
        raise StateError(
            f"run {name!r} was started with other values of {', '.join(changed)}; a resumed run keeps them "
            f"(to continue from its model with new settings, start a new run with --init {name})"
        )


def complete(config: PretrainConfig, workspace: Workspace) -> PretrainConfig:
    """Complete settings as they are saved with a run, independent of time and folder; idempotent.

    Paths become absolute, standard input becomes a file, the initial model its folder, a file of words its
    words; the lengths of batch and row become numbers.

    Raises:
        UsageError: durations, limits or word lists that cannot be used.
        StateError: the initial model does not exist.
    """
    config = _settled(config)  # what cannot be used is refused before anything is read, standard input too
    model, data, tokenizer = config.model, config.data, config.tokenizer
    if model.init is not None:
        model = replace(model, init=resolve(model.init, lambda: Registry(workspace)).location)
    data = replace(data, paths=tuple(_kept(path, workspace) for path in data.paths))
    if tokenizer.path is not None:
        tokenizer = replace(tokenizer, path=str(Path(tokenizer.path).expanduser().resolve()))
    masking: MaskingConfig = replace(config.masking, options=inline_words(config.masking.options))
    config = replace(config, model=model, data=data, tokenizer=tokenizer, masking=masking)
    return replace(config, train=replace(config.train, tokens_per_row=row_length(config)))


def _settled(config: PretrainConfig) -> PretrainConfig:
    """The settings with numbers for those that the model's size decides where they are not given.

    Raises:
        UsageError: durations, limits or rates that cannot be used.
    """
    rate, batch = loop_config(config).learning_rate, batch_tokens(config)
    return replace(config, train=replace(config.train, learning_rate=rate, tokens_per_batch=batch))


def _kept(source: str, workspace: Workspace) -> str:
    """The source as an absolute path; standard input is saved to a file first."""
    name, path = split_source(source)
    # Not in the cache, which may be deleted: this is the only copy.
    if path == "-":
        kept = str(save_stdin(workspace.runs / KEPT_INPUTS))
    elif is_reference(path):
        kept = str(Reference.parse(path).fixed())
    else:
        kept = str(Path(path).expanduser().resolve())
    return f"{name}={kept}" if name else kept
