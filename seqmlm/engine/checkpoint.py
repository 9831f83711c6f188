"""Checkpoints that are either complete or absent, with everything that a resumed training needs.

A checkpoint is a folder `step-00000050` with

    model.safetensors, optimizer.safetensors, ...   tensors, one file for each group
    state.json                                      everything else
    manifest.json                                   size and SHA-256 of the others, written last

The folder is first written as `step-00000050.tmp`. Every file and the folder are synced, then the folder is
renamed, then its parent is synced. Older checkpoints are removed only after that. A crash at any moment
leaves the previous checkpoint intact and leaves at most a `.tmp` folder, which the next save removes. The
hashes cost a second read of the weights, but they ensure that no training resumes from a damaged file.
Nothing is pickled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from seqmlm.engine import durable
from seqmlm.engine.device import random_state, set_random_state
from seqmlm.engine.distributed import Processes
from seqmlm.engine.optimizer import module_tensors, optimizer_tensors, restore_module, restore_optimizer
from seqmlm.errors import StateError
from seqmlm.parsing import read_json

FORMAT = 1

_NAME = re.compile(r"step-(\d{8,})")
_MANIFEST, _STATE = "manifest.json", "state.json"

# The names safetensors gives to element types (https://github.com/huggingface/safetensors, "Format").
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class SkippedCheckpoint(NamedTuple):
    """A checkpoint folder that cannot be used, and the reason."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Checkpoint:
    """A saved checkpoint: its folder, its step and its JSON state. Tensors are read on request."""

    path: Path
    step: int
    state: dict[str, Any]

    def tensors(self, group: str) -> dict[str, Tensor]:
        """The tensors of one group ("model", "optimizer", "random"), on the CPU.

        They may be unaligned views of a mapped file. Copy them into existing memory before you use them.

        Raises:
            StateError: the group is missing or incomplete.
        """
        try:
            return load_file(self.path / f"{group}.safetensors")
        except (OSError, SafetensorError) as error:
            raise StateError(f"{self.path}: {group}.safetensors cannot be read: {error}") from error

    def progress(self) -> Progress:
        """The state of the training.

        Raises:
            StateError: another version of seqmlm wrote it.
        """
        try:
            return Progress(**self.state)
        except TypeError as error:
            raise StateError(f"{self.path}: another version of seqmlm wrote state.json: {error}") from error


def save(
    root: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    *,
    keep_last: int = 2,
    keep_every: int | None = None,
) -> Path:
    """Write the checkpoint of a step, then remove older checkpoints.

    Args:
        root: folder for the checkpoints, created if missing.
        step: number of completed optimizer steps.
        tensors: group -> name -> tensor on the CPU.
        state: everything else, as values that JSON can represent.
        keep_last: number of newest checkpoints to keep.
        keep_every: keep the checkpoints at multiples of this step permanently; None for none.

    Returns:
        The folder `step-XXXXXXXX`.

    Raises:
        StateError: the disk is full or cannot be written. Earlier checkpoints are intact.
    """
    target = folder(root, step)
    partial = root / f"{target.name}.tmp"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for left_behind in root.glob("step-*.tmp"):
            durable.DISK.remove(left_behind)
        partial.mkdir()
        _write_files(partial, step, tensors, state)
        if target.exists():  # incomplete: a complete one is not saved again
            durable.DISK.rename(target, target.with_name(f"{target.name}.old.tmp"))
        durable.DISK.rename(partial, target)
        durable.DISK.sync(root)
    except OSError as error:
        with suppress(OSError):
            if partial.exists():
                durable.DISK.remove(partial)
        raise _cannot_save(target, error) from error
    with suppress(OSError):  # the next save removes what cannot be removed now
        _prune(root, target, keep_last, keep_every)
    return target


def _write_files(
    partial: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
) -> None:
    files = {
        f"{group}.safetensors": write_tensors(partial / f"{group}.safetensors", values)
        for group, values in tensors.items()
    }
    text = json.dumps(state, indent=1, allow_nan=False)
    files[_STATE] = durable.write_bytes(partial / _STATE, text.encode())
    manifest = json.dumps({"format": FORMAT, "step": step, "files": files}, indent=1)
    durable.write_bytes(partial / _MANIFEST, manifest.encode())
    durable.DISK.sync(partial)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, int | str]:
    """Write and sync a safetensors file tensor by tensor; returns its manifest entry {size, sha256}.

    `save_file` of safetensors is not used. Its result would have to be read again to compute the hash, and
    it reports a full disk as its own error without the errno. The format is an 8-byte length, a JSON header
    and the raw bytes.

    Args:
        path: the file, created or overwritten.
        tensors: dense tensors on the CPU; tensors that share memory are written twice.
    """
    header, offset = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb", buffering=0) as handle:
        file = durable.HashingFile(handle)
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            if tensor.numel():
                file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    durable.DISK.sync(path)
    return file.entry()


def _cannot_save(target: Path, error: OSError) -> StateError:
    consequence = "earlier checkpoints are intact"
    if durable.is_full(error):
        return StateError(
            f"{target.parent}: no space left to save {target.name} ({error.strerror}); {consequence}. "
            "Free space there, or keep fewer checkpoints (keep_last), and resume"
        )
    return StateError(
        f"{target.parent}: cannot save {target.name}: {error}; {consequence}. Fix that and resume"
    )


def _prune(root: Path, newest: Path, keep_last: int, keep_every: int | None) -> None:
    """Remove old checkpoints.

    Each is renamed first, so that a crash leaves no incomplete checkpoint under a valid name.
    """
    for path in folders(root)[max(keep_last, 1) :]:
        kept_for_ever = keep_every is not None and step_of(path) % keep_every == 0
        if path != newest and not kept_for_ever:
            doomed = path.with_name(f"{path.name}.tmp")
            durable.DISK.rename(path, doomed)
            durable.DISK.remove(doomed)
    for path in root.glob("step-*.old.tmp"):
        durable.DISK.remove(path)


def folder(root: Path, step: int) -> Path:
    """The folder for the checkpoint of a step."""
    return root / f"step-{step:08d}"


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint folder, or -1 for other names."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def folders(root: Path) -> list[Path]:
    """All checkpoint folders, valid or not, newest first."""
    if not root.is_dir():
        return []
    return sorted((path for path in root.iterdir() if step_of(path) >= 0), key=step_of, reverse=True)


def newest_valid(root: Path, skipped: list[SkippedCheckpoint] | None = None) -> Path | None:
    """The checkpoint to resume from: the newest one whose manifest and hashes are correct, or None.

    Args:
        root: folder of the checkpoints.
        skipped: unusable newer checkpoints are appended to this list, with the reason.
    """
    for path in folders(root):
        reason = problem(path)
        if reason is None:
            return path
        if skipped is not None:
            skipped.append(SkippedCheckpoint(path, reason))
    return None


def problem(path: Path) -> str | None:
    """The reason why a checkpoint folder is unusable, or None if it is usable."""
    try:
        manifest = read_json(path / _MANIFEST)
        files = manifest["files"]
        if manifest["format"] != FORMAT:
            return f"its format is {manifest['format']}, this version reads {FORMAT}"
        torn = [name for name, entry in files.items() if not durable.matches(path / name, entry)]
    except FileNotFoundError:
        return f"{_MANIFEST} is missing: it was not written to the end"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{_MANIFEST} cannot be read: {error}"
    if torn:
        return f"{', '.join(torn)}: size or hash differs from {_MANIFEST}"
    return None if _STATE in files else f"{_STATE} is missing from {_MANIFEST}"


def open_checkpoint(path: Path, *, verify: bool = True) -> Checkpoint:
    """Open a checkpoint folder.

    Args:
        path: the folder.
        verify: check sizes and hashes first. Use False after `newest_valid`, which checks them.

    Raises:
        StateError: the checkpoint is missing or incomplete.
    """
    reason = problem(path) if verify else None
    if reason is not None:
        raise StateError(f"{path}: unusable checkpoint: {reason}; choose another one or train again")
    try:
        return Checkpoint(path, step_of(path), dict(read_json(path / _STATE)))
    except (OSError, ValueError, TypeError) as error:
        raise StateError(f"{path / _STATE} cannot be read: {error}; choose another checkpoint") from None


@dataclass(kw_only=True)
class Progress:
    """The state of a training, except tensors; `asdict` makes it JSON.

    Args:
        step: number of completed optimizer steps, including skipped ones. Each step uses one global batch.
        tokens: number of tokens trained on.
        seconds: training time in seconds, over all resumed runs.
        loss: loss of the last step that was not skipped, in nats per masked token.
        bad_steps: number of steps skipped in a row up to now.
        skipped: total number of skipped steps.
        micro_tokens: largest micro-batch in tokens, as configured or lowered when memory ran out; None for
            no limit.
        position: position of the row planner after the last batch that was used.
        time_plan: decisions made under a time limit.
        evaluated: step of the last evaluation.
        best: best result of an evaluation so far, according to the goal of the loop.
        stale: number of evaluations since the best one.
        settings: the configuration, used to detect changes in a resumed run.
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
    evaluated: int = 0
    best: float | None = None
    stale: int = 0
    settings: dict[str, Any] = field(default_factory=dict)


def find_checkpoint(
    directory: Path, resume: bool, processes: Processes, on_event: Callable[[str, dict[str, Any]], None]
) -> Checkpoint | None:
    """The checkpoint to resume from, the same in all processes, or None if there is none yet.

    Args:
        directory: folder of the checkpoints.
        resume: whether checkpoints may exist.
        processes: the processes of this training.
        on_event: called with ("checkpoint_skipped", {path, reason}) for each unusable newer checkpoint.

    Raises:
        StateError: checkpoints exist although `resume` is False, or all of them are unusable.
    """
    step, error = -1, None
    if processes.is_main:
        skipped: list[SkippedCheckpoint] = []
        try:
            step = _step_to_resume(directory, resume, skipped)
        except StateError as raised:
            error = raised
        else:
            for unusable in skipped:
                on_event("checkpoint_skipped", {"path": str(unusable.path), "reason": unusable.reason})
    processes.agree(error)
    step = processes.from_main(step)
    return None if step < 0 else open_checkpoint(folder(directory, step), verify=False)


def _step_to_resume(directory: Path, resume: bool, skipped: list[SkippedCheckpoint]) -> int:
    """The step of the newest valid checkpoint, or -1 if there is none yet; see `find_checkpoint`."""
    present = folders(directory)
    if present and not resume:
        raise StateError(
            f"{directory} already has {present[0].name}: resume that training, or use another folder"
        )
    path = newest_valid(directory, skipped)
    if path is None and present:
        reasons = "; ".join(f"{unusable.path.name}: {unusable.reason}" for unusable in skipped)
        raise StateError(f"{directory}: no checkpoint can be resumed ({reasons}); remove them to start again")
    return -1 if path is None else step_of(path)


def save_progress(
    directory: Path,
    progress: Progress,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    processes: Processes,
    *,
    keep_last: int,
    keep_every: int | None,
) -> Path:
    """Write a checkpoint and return its folder. Every process must call this; the main process writes.

    Raises:
        StateError: the checkpoint cannot be written (in the main process; TrainingError in the others).
    """
    tensors = {
        "model": module_tensors(module),
        "optimizer": optimizer_tensors(optimizer, module),
        "random": {
            f"{kind}.{rank}": state
            for kind, local_state in random_state(processes.device).items()
            for rank, state in enumerate(processes.gather(local_state))
        },
    }
    error = None
    if processes.is_main:
        try:
            state = asdict(progress)
            save(directory, progress.step, tensors, state, keep_last=keep_last, keep_every=keep_every)
        except StateError as raised:
            error = raised
    processes.agree(error)
    return folder(directory, progress.step)


def restore_progress(
    saved: Checkpoint, module: nn.Module, optimizer: torch.optim.Optimizer, processes: Processes
) -> Progress:
    """Restore model, optimizer and random state, and return the state of the training.

    If there are more processes than before, the additional ones keep their seeded random state.

    Raises:
        StateError: the checkpoint belongs to another model or another version.
    """
    restore_module(module, saved.tensors("model"))
    restore_optimizer(optimizer, module, saved.tensors("optimizer"))
    mine = {}
    for name, state in saved.tensors("random").items():
        kind, _, rank = name.partition(".")
        if int(rank) == processes.rank:
            mine[kind] = state
    if mine:
        set_random_state(processes.device, mine)
    return saved.progress()


def changed_settings(saved_settings: dict[str, Any], new_settings: dict[str, Any]) -> dict[str, list[Any]]:
    """The settings that differ in a resumed run: name -> [before, now]."""
    pairs = {name: [saved_settings.get(name), value] for name, value in new_settings.items()}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
