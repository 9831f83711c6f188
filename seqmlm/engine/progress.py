"""All that a training run must remember to go on as if it had never stopped, to and from a checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seqmlm.engine import checkpoint
from seqmlm.engine.checkpoint import Checkpoint, Skipped
from seqmlm.engine.device import random_state, set_random_state
from seqmlm.engine.distributed import Processes
from seqmlm.engine.optimizer import module_tensors, optimizer_tensors, restore_module, restore_optimizer
from seqmlm.errors import StateError


@dataclass(kw_only=True)
class Progress:
    """How far training has come; JSON-ready through `asdict`.

    Args:
        step: optimizer steps done, skipped ones included; each has used up one global batch.
        tokens: trained on so far.
        seconds: training time so far, over all resumptions.
        loss: of the last step that was not skipped, nats per masked token.
        bad_steps: skipped in a row, up to now.
        skipped: in all.
        micro_tokens: the memory's limit, as far as found.
        position: of the row planner, after the last batch that was used.
        time_plan: decisions taken under a time limit.
        settings: the configuration, to tell whether a resumed run changes it.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss: float | None = None
    bad_steps: int = 0
    skipped: int = 0
    micro_tokens: int | None = None
    position: dict[str, Any] | None = None
    time_plan: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def find(directory: Path, resume: bool, processes: Processes) -> tuple[Checkpoint | None, list[Skipped]]:
    """The checkpoint to go on from, agreed between all processes; None where there is none yet.

    Raises:
        StateError: checkpoints are there but resuming was not asked for, or all of them are torn.
    """
    skipped: list[Skipped] = []
    step, error = -1, None
    if processes.is_main:
        try:
            step = _choose(directory, resume, skipped)
        except StateError as raised:
            error = raised
    processes.agree(error)
    step = processes.from_main(step)
    if step < 0:
        return None, skipped
    return checkpoint.read(checkpoint.folder(directory, step), verify=False), skipped


def _choose(directory: Path, resume: bool, skipped: list[Skipped]) -> int:
    present = checkpoint.folders(directory)
    if present and not resume:
        raise StateError(
            f"{directory} already holds {present[0].name}: resume that training, or use another folder"
        )
    path = checkpoint.newest_valid(directory, skipped)
    if path is None and present:
        reasons = "; ".join(f"{each.path.name}: {each.reason}" for each in skipped)
        raise StateError(f"{directory}: no checkpoint can be resumed ({reasons}); remove them to start anew")
    return -1 if path is None else checkpoint.step_of(path)


def save(
    directory: Path,
    progress: Progress,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    processes: Processes,
    *,
    keep_last: int,
    keep_every: int | None,
) -> Path:
    """Write a checkpoint; every process must call this, the main one writes.

    Raises:
        StateError: it cannot be written (on the main process; TrainingError on the others).
    """
    tensors = {
        "model": module_tensors(module),
        "optimizer": optimizer_tensors(optimizer, module),
        "random": _gather_random_state(processes),
    }
    error = None
    if processes.is_main:
        try:
            checkpoint.save(
                directory,
                progress.step,
                tensors,
                asdict(progress),
                keep_last=keep_last,
                keep_every=keep_every,
            )
        except StateError as raised:
            error = raised
    processes.agree(error)
    return checkpoint.folder(directory, progress.step)


def restore(
    saved: Checkpoint, module: nn.Module, optimizer: torch.optim.Optimizer, processes: Processes
) -> Progress:
    """Put model, optimizer and random state back where they were.

    With more processes than before, the additional ones keep the random state they were seeded with.

    Raises:
        StateError: the checkpoint is of another model or of another version.
    """
    restore_module(module, saved.tensors("model"))
    restore_optimizer(optimizer, module, saved.tensors("optimizer"))
    random = saved.tensors("random")
    mine = {name.partition(".")[0]: state for name, state in random.items() if _rank(name) == processes.rank}
    if mine:
        set_random_state(processes.device, mine)
    try:
        return Progress(**saved.state)
    except TypeError as error:
        raise StateError(f"{saved.path}: state.json is of another version of seqmlm: {error}") from error


def _rank(name: str) -> int:
    return int(name.partition(".")[2])


def _gather_random_state(processes: Processes) -> dict[str, Tensor]:
    return {
        f"{kind}.{rank}": state
        for kind, own in random_state(processes.device).items()
        for rank, state in enumerate(processes.gather(own))
    }


def changes(before: dict[str, Any], now: dict[str, Any]) -> dict[str, list[Any]]:
    """Settings that a resumed run changes: name -> [before, now]."""
    pairs = {name: [before.get(name), value] for name, value in now.items()}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
