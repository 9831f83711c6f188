"""Settings completed for a run: they mean the same tomorrow, and in any folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from seqmlm.data.files import is_reference
from seqmlm.data.readers.huggingface import Reference
from seqmlm.data.stdin import save_stdin
from seqmlm.engine.masking.base import MaskingConfig
from seqmlm.registry import Registry, resolve
from seqmlm.tasks.assemble import batch_tokens, loop_config, row_length
from seqmlm.tasks.config import PretrainConfig
from seqmlm.tasks.corpus import split_source
from seqmlm.tasks.maskers import inline_words
from seqmlm.workspace import Workspace


def complete(config: PretrainConfig, workspace: Workspace) -> PretrainConfig:
    """Complete settings as they are saved with a run; completing them again changes nothing.

    Paths become absolute, standard input a file, the initial model its folder, a file of words its words, and
    the lengths of batch and row numbers.

    Raises:
        UsageError: durations, limits or word lists that cannot be used.
        StateError: the initial model does not exist.
    """
    model, data, tokenizer = config.model, config.data, config.tokenizer
    if model.init is not None:
        model = replace(model, init=resolve(model.init, lambda: Registry(workspace)).location)
    data = replace(data, paths=tuple(_kept(path, workspace) for path in data.paths))
    if tokenizer.path is not None:
        tokenizer = replace(tokenizer, path=str(Path(tokenizer.path).expanduser().resolve()))
    masking: MaskingConfig = replace(config.masking, options=inline_words(config.masking.options))
    config = replace(config, model=model, data=data, tokenizer=tokenizer, masking=masking)
    train = replace(config.train, tokens_per_batch=batch_tokens(config), tokens_per_row=row_length(config))
    config = replace(config, train=train)
    loop_config(config)  # what it refuses is refused before anything is read
    return config


def _kept(source: str, workspace: Workspace) -> str:
    """A source that will still mean the same tomorrow and elsewhere."""
    name, path = split_source(source)
    # Not in the cache, which may be deleted: this is the only copy.
    if path == "-":
        kept = str(save_stdin(workspace.runs / ".inputs"))
    elif is_reference(path):
        kept = str(Reference.parse(path).fixed())
    else:
        kept = str(Path(path).expanduser().resolve())
    return f"{name}={kept}" if name else kept
