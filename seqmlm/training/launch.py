"""Turn a request into a plan: resolved settings, name and folder of the run, a new run or a resumed run.

A resumed run keeps the settings that determine its numbers (`FROZEN`). It may change the others, such as its
limits. Otherwise a resumed training would differ from an uninterrupted training.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqmlm import plugins
from seqmlm.config import from_dict, merge, parse_assignments, read_yaml, to_dict
from seqmlm.data.files import is_reference, save_stdin
from seqmlm.data.sources import KEPT_INPUTS, split_source
from seqmlm.engine.masking.base import MaskingConfig
from seqmlm.engine.shapes import LINEAR, SHAPE_KEYS, SIZES
from seqmlm.errors import UsageError
from seqmlm.inference.maskers import inline_words
from seqmlm.registry.references import resolve
from seqmlm.registry.store import Registry
from seqmlm.training.config import LIMITS, PretrainConfig, resolve_config
from seqmlm.training.resume import (
    check_name_is_free,
    check_unchanged,
    resume_command,
    run_to_resume,
    saved_settings,
)
from seqmlm.workspace import Workspace

if TYPE_CHECKING:
    from seqmlm.domains.files import Files
    from seqmlm.engine.distributed import Processes

FROZEN = (
    *("domain", "seed", "data", "tokenizer", "masking", "model"),
    *("train.tokens_per_batch", "train.tokens_per_row", "train.betas", "train.sharding"),
)

_OF_INITIAL = {"model": ("size", "dropout", "layers", "initialization", "overrides")}
_OF_ENCODERS = {"model": ("dropout", "layers", "initialization"), "train": ("learning_rate", "sharding")}


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """The user's request for a training, with settings that are not resolved yet.

    Args:
        domain: name of the domain. It may be left out if a run is resumed or the config file names it.
        name: name of the run. Default: domain, size and time.
        resume: "never", "auto" or the name of a run.
        config: YAML file of settings.
        flags: nested settings from flags. None values mean "not given".
        settings: `a.b=c` assignments. They override the flags.
    """

    domain: str | None = None
    name: str | None = None
    resume: str = "never"
    config: Path | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()

    @cached_property
    def user_settings(self) -> dict[str, Any]:
        """The settings of the request, nested."""
        from_file = read_yaml(self.config) if self.config else {}
        user_settings = merge(from_file, _named_flags(self.flags), parse_assignments(self.settings))
        _refuse_determined(user_settings)
        return user_settings

    def check(self) -> None:
        """Check the settings without loading torch.

        Raises:
            UsageError: an unknown key or name, a value out of range, or values that exclude each other.
        """
        user_settings = self.user_settings
        if self.resume == "never" and (self.domain or user_settings.get("domain")):
            self.resolved_config({}).check()

    def leaves_size(self, config: PretrainConfig) -> bool:
        """Whether the size must be measured: there is a time limit, but no size, shape or weights are set."""
        model = config.model
        has_size = "size" in self.user_settings.get("model", {}) or SHAPE_KEYS & set(model.overrides)
        return config.train.max_time is not None and not (has_size or model.init)

    def resolved_config(self, saved: Mapping[str, Any]) -> PretrainConfig:
        """The resolved settings. `saved` are the settings of the run that is resumed."""
        user_settings, train = self.user_settings, self.user_settings.get("train")
        if saved and isinstance(train, Mapping) and any(limit in train for limit in LIMITS):
            # A new limit replaces the old limits. Otherwise the first limit reached would stop the training.
            saved = merge(saved, {"train": dict.fromkeys(LIMITS)})
        domain = self.domain or user_settings.get("domain") or saved.get("domain")
        if domain is None:
            fields = ", ".join(plugins.names("domains"))
            raise UsageError(f"name the field of the sequences with --domain (known: {fields})")
        for domain_setting in (user_settings.get("domain"), saved.get("domain")):
            if domain_setting not in (None, domain):
                raise UsageError(f"--domain {domain} contradicts {domain_setting!r} in the settings")
        return resolve_config(plugins.domain(domain), saved, user_settings)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A resolved request: settings, name and folder of the run, and whether it resumes an existing run.

    If the training has a time limit and no size is set, the size is first the default of the domain. Then
    `sizing.sized_plan` selects one of `candidates`: the same request for every size, the smallest first.
    """

    config: PretrainConfig
    name: str
    directory: Path
    resume: bool
    candidates: tuple[Plan, ...] = ()


def request_config(request: TrainRequest) -> Any:
    """The resolved settings of a request as plain values, for `--print-config`.

    If the size will be measured, it is left out, because a printed size would be a set size. Settings that
    depend on the size are then null. Otherwise they are numbers.
    """
    config = request.resolved_config({})
    settled = _numeric_config(config)
    if not request.leaves_size(config):
        return to_dict(settled)
    values = to_dict(config)
    del values["model"]["size"]
    return values


def agreed_plan(request: TrainRequest, workspace: Workspace, processes: Processes) -> Plan:
    """The plan of the main process, sent to all processes."""
    text = ""
    if processes.is_main:
        decided = plan(request, workspace, processes.world)
        Registry(workspace).close()  # an unusable registry is refused now, not after the training
        text = json.dumps(to_dict(decided))
    return from_dict(Plan, json.loads(processes.text_from_main(text)))


def plan(request: TrainRequest, workspace: Workspace, processes: int = 1) -> Plan:
    """Resolve a request in this workspace. Writes no file, except for data on standard input.

    Args:
        request: the request.
        workspace: the workspace.
        processes: number of processes that will train. While the size is still to be measured, rows are so
            short that each process has a row of a batch.

    Raises:
        UsageError: the domain is missing, or a key or name is unknown.
        StateError: the name is taken, the run to resume is missing, or its settings would change.
    """
    name = run_to_resume(
        "pretrain", workspace, name=request.name, resume=request.resume, domain=request.domain
    )
    if name is not None:
        directory = workspace.run_dir(name)
        saved = saved_settings(directory, "pretrain")
        config = complete(request.resolved_config(saved), workspace)
        alternative = f"start a new run from its model with --init {name}"
        check_unchanged(name, saved, to_dict(config), frozen=FROZEN, alternative=alternative)
        return Plan(config=config, name=name, directory=directory, resume=True)
    now = time.strftime("%Y%m%d-%H%M%S")
    new_config = request.resolved_config({})
    configs = [complete(new_config, workspace)]
    for size in SIZES if request.leaves_size(new_config) else ():
        # The data that were read are reused, because standard input, for example, is empty now.
        resized = replace(configs[0], model=replace(new_config.model, size=size), train=new_config.train)
        configs.append(complete(_short_row_config(resized, processes), workspace))
    first, *candidates = (
        _new_plan(request.name or f"{config.domain}-{config.model.size}-{now}", config, workspace)
        for config in configs
    )
    return replace(first, candidates=tuple(candidates))


def _new_plan(name: str, config: PretrainConfig, workspace: Workspace) -> Plan:
    """The plan of a new run. Its name must be free."""
    directory = workspace.run_dir(name)
    check_name_is_free(name, "pretrain", directory, longer=longer_command(name))
    return Plan(config=config, name=name, directory=directory, resume=False)


def longer_command(name: str) -> str:
    """The command that continues a finished run."""
    how = "with a higher --max-steps or --max-time (the total over all its training)"
    return f"{resume_command(name, 'pretrain')}, {how}"


def _short_row_config(config: PretrainConfig, processes: int) -> PretrainConfig:
    """The settings with rows short enough for one per process and batch, unless the row length is set."""
    if config.train.tokens_per_row is not None or config.loop().rows_per_batch >= processes:
        return config
    length = max(config.model.max_length, config.batch_tokens // processes)
    return replace(config, train=replace(config.train, tokens_per_row=length))


def _refuse_determined(user_settings: Mapping[str, Any]) -> None:
    """Refuse settings that the initial model determines, and settings of encoders for a linear model.

    Raises:
        UsageError: the settings contain one of these.
    """
    sections = {name: section for name, section in user_settings.items() if isinstance(section, Mapping)}
    model = sections.get("model", {})
    refused: Mapping[str, Iterable[str]] = {}
    why = "with --size linear, which has no such settings"
    if model.get("init") is not None:
        refused, why = _OF_INITIAL, "together with --init: the initial model determines them"
        refused = {**refused, "tokenizer": sections.get("tokenizer", {})}
    elif model.get("size") == LINEAR:
        refused = _OF_ENCODERS
    named = [f"{name}.{key}" for name in refused for key in refused[name] if key in sections.get(name, {})]
    if named:
        raise UsageError(f"{', '.join(named)} cannot be set {why}")


def _named_flags(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested flags without those that were not given (None)."""
    flags = {key: _named_flags(flag) if isinstance(flag, Mapping) else flag for key, flag in values.items()}
    return {key: flag for key, flag in flags.items() if flag is not None and flag != {}}


def complete(config: PretrainConfig, workspace: Workspace) -> PretrainConfig:
    """Complete settings for saving with a run, independent of time and folder. Idempotent.

    Paths become absolute, standard input becomes a file, and the initial model becomes its folder. A file of
    words is replaced by its words. The lengths of batch and row become numbers.

    Raises:
        UsageError: a duration, limit or word list cannot be used.
        StateError: the initial model does not exist.
    """
    # Unusable settings are refused before anything is read, including standard input.
    config = _numeric_config(config)
    model, data, tokenizer = config.model, config.data, config.tokenizer
    if model.init is not None:
        model = replace(model, init=resolve(model.init, workspace).location)
    files = plugins.domain(config.domain).files
    data = replace(data, paths=tuple(_lasting_source(path, files, workspace) for path in data.paths))
    if tokenizer.path is not None:
        tokenizer = replace(tokenizer, path=str(Path(tokenizer.path).expanduser().resolve()))
    masking: MaskingConfig = replace(config.masking, options=inline_words(config.masking.options))
    config = replace(config, model=model, data=data, tokenizer=tokenizer, masking=masking)
    return replace(config, train=replace(config.train, tokens_per_row=config.row_tokens))


def _numeric_config(config: PretrainConfig) -> PretrainConfig:
    """The source as an absolute path. Standard input is saved to a file first."""
    rate, batch = config.loop().learning_rate, config.batch_tokens
    return replace(config, train=replace(config.train, learning_rate=rate, tokens_per_batch=batch))


def _lasting_source(source: str, files: Files, workspace: Workspace) -> str:
    """The source as an absolute path; standard input is saved to a file first."""
    name, path = split_source(source)
    # Not in the cache, which may be deleted, because this is the only copy.
    if path == "-":
        location = str(save_stdin(workspace.runs / KEPT_INPUTS))
    elif is_reference(path):
        location = files.fixed_reference(path)
    else:
        location = str(Path(path).expanduser().resolve())
    return f"{name}={location}" if name else location
