"""Rules for resuming a run, shared by all trainings: which run is resumed, and what must not change.

A resumed run keeps its first settings. The user may change only those that decide when it ends. Any other
change would make the resumed training differ from an uninterrupted training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from seqmlm.config import read_yaml
from seqmlm.errors import StateError, UsageError, nearest
from seqmlm.tracking import LEDGER
from seqmlm.workspace import Workspace

TrainingTask = Literal["pretrain", "finetune"]
"""A kind of training, as in MLflow's tag."""
REQUESTS: Mapping[TrainingTask, str] = {"pretrain": "config.yaml", "finetune": "finetune.yaml"}
"""The file with the settings in the folder of a run. Its name tells the kind of training."""
COMMANDS: Mapping[TrainingTask, str] = {"pretrain": "train", "finetune": "finetune"}
NOUNS: Mapping[TrainingTask, str] = {"pretrain": "a training run", "finetune": "a fine-tuning run"}
FINISHED = "result.json"
MODEL_FOLDER = "model"
CHECKPOINTS = "checkpoints"
_PARTS = (*REQUESTS.values(), CHECKPOINTS, LEDGER, MODEL_FOLDER, FINISHED)
_MISSING = object()


def resume_mode(value: str | bool) -> str:
    """The mode of resuming: never, auto or the name of a run. True means auto, and False means never."""
    return value if isinstance(value, str) else "auto" if value else "never"


def resume_command(name: str, task: TrainingTask) -> str:
    """The command that continues a run."""
    return f"seqmlm {COMMANDS[task]} --resume {name}"


def run_to_resume(
    task: TrainingTask, workspace: Workspace, *, name: str | None, resume: str, domain: str | None = None
) -> str | None:
    """The name of the run to resume. None for a new run.

    Args:
        task: kind of training.
        workspace: the workspace.
        name: name of the run, if given.
        resume: never, auto or the name of a run. With auto, it is the run `name`, if it exists. Without a
            name, it is the newest unfinished run of the domain.
        domain: name of the domain, if given.

    Raises:
        UsageError: `name` and `resume` are two different names.
        StateError: the run does not exist, or is a run of another kind of training.
    """
    if resume == "never":
        return None
    runs = _runs(task, workspace)
    if resume == "auto" and name is not None:
        return name if name in runs else None
    if resume == "auto":
        unfinished = (run for run in reversed(runs) if not (runs[run] / FINISHED).exists())
        return next(
            (run for run in unfinished if domain in (None, saved_settings(runs[run], task).get("domain"))),
            None,
        )
    if name not in (None, resume):
        raise UsageError(f"--resume {resume} and --name {name} name two different runs; give one of them")
    if resume not in runs:
        for other_task in REQUESTS.keys() - {task}:
            if (workspace.run_dir(resume) / REQUESTS[other_task]).is_file():
                raise StateError(
                    f"run {resume!r} is {NOUNS[other_task]}, not {NOUNS[task]}: continue it with "
                    f"{resume_command(resume, other_task)}"
                )
        raise StateError(f"there is no run {resume!r} to resume{nearest(resume, runs)}")
    return resume


def _runs(task: TrainingTask, workspace: Workspace) -> dict[str, Path]:
    """Folders of the runs of a task that have settings, by name, the oldest first."""
    folder, request = workspace.runs, REQUESTS[task]
    paths = [path for path in folder.iterdir() if (path / request).is_file()] if folder.is_dir() else []
    return {path.name: path for path in sorted(paths, key=lambda path: (path / request).stat().st_mtime)}


def saved_settings(directory: Path, task: TrainingTask) -> dict[str, Any]:
    """The settings with which a run was started.

    Raises:
        UsageError: they cannot be read.
    """
    return read_yaml(directory / REQUESTS[task])


def check_name_is_free(name: str, task: TrainingTask, directory: Path, *, longer: str = "") -> None:
    """Refuse the name of an existing run for a new run. The error says how to continue the existing run.

    Args:
        name: name of the new run.
        task: kind of training.
        directory: folder of the new run.
        longer: command that trains a finished run longer. Empty if there is none.

    Raises:
        StateError: the name is taken.
    """
    if (directory / REQUESTS[task]).exists():
        how = f"continue it with {resume_command(name, task)}"
        if longer and (directory / FINISHED).exists():
            how = f"train it longer: {longer}"
        raise StateError(f"run {name!r} exists ({directory}): {how}, or take another --name")
    if any((directory / part).exists() for part in _PARTS):
        raise StateError(
            f"{name!r} is a run of another kind, not {NOUNS[task]} ({directory}): take another --name"
        )


def check_unchanged(
    name: str,
    saved: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    frozen: Iterable[str],
    alternative: str,
) -> None:
    """Refuse to resume a run with other values of its frozen settings.

    Args:
        name: name of the run.
        saved: settings with which the run was started. A setting that is absent may have any value.
        settings: settings of the resumed run.
        frozen: dotted names of the settings that must not change.
        alternative: advice for users who want other values.

    Raises:
        StateError: a frozen setting differs. The message names it.
    """
    changed = [
        key
        for key in frozen
        if (begun := _setting(saved, key)) is not _MISSING and begun != _setting(settings, key)
    ]
    if changed:
        raise StateError(
            f"run {name!r} was started with other values of {', '.join(changed)}: give the original "
            "values, or "
            f"{alternative}"
        )


def _setting(settings: Any, key: str) -> Any:
    for part in key.split("."):
        settings = settings.get(part, _MISSING) if isinstance(settings, Mapping) else _MISSING
    return settings
