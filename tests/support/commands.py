"""Every command of the command line by its words, those of tasks too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from seqmlm.cli import app, tasks
from seqmlm.cli.command import command
from seqmlm.tasks.task import Task


def _leaves(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(group, "commands"):
        yield words, group
        return
    for name, inner in group.commands.items():
        yield from _leaves(inner, (*words, name))


CONFIGURED = {name: one.load() for name, one in tasks().items()}
TASKS = {name: one for name, one in CONFIGURED.items() if issubclass(one, Task)}
COMMANDS = dict(_leaves(get_command(app))) | {(name,): command(name, one) for name, one in CONFIGURED.items()}
