"""The command line: each command parses its arguments, calls one task and prints the result.

Data go to stdout, progress to stderr. The exit codes are:

    0          done, or the reader of the output has stopped reading (head, less)
    1          other errors
    2          usage
    3          data
    4          state
    5          training
    130, 143   stopped by Ctrl-C or SIGTERM, after saving

Errors are one sentence. With `--debug`, the traceback is shown.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import re
import select
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import EntryPoint
from itertools import pairwise
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from seqmlm import __version__, plugins
from seqmlm.cli import data, demo, incidents, models, ray, report, rows, runs, start, train, workspace
from seqmlm.cli.command import command, first_line, setting
from seqmlm.cli.output import say, tell
from seqmlm.errors import DataError, SeqmlmError, UsageError, nearest

# Commands that can skip bad records, in addition to the tasks with that option.
_TAKES_ON_ERROR = {"train", "data"}
_KEEPS_NONE = {"calibrate", "data"}  # commands that cannot save bad records to a file


_OWN = {
    name: EntryPoint(name, place, "seqmlm.tasks")
    for name, place in {
        "score": "seqmlm.scoring.score:Score",
        "watch": "seqmlm.watch.scoring:Watch",
        "review": "seqmlm.scoring.review:Review",
        "calibrate": "seqmlm.cli.calibrate:Calibrate",
        "evaluate": "seqmlm.cli.evaluate:Evaluate",
    }.items()
}
"""Commands that are built from a config but listed here, not as plug-ins; help lists them after `train`."""


def tasks() -> dict[str, EntryPoint]:
    """The commands that are built from a config, by name. Nothing is imported."""
    return {**_OWN, **plugins.entries("tasks")}


_LINE_END = re.compile(r"(?<!\n)\n(?!\n)")
"""The line ends inside a paragraph. They are removed, so that help fills the width of the terminal."""


_PANELS = {
    **dict.fromkeys(("out", "report", "resume", "json_output"), "Output"),
    **dict.fromkeys(("domain", "data", "options", "option", "on_error"), "Input"),
    **dict.fromkeys(("shard", "settings", "config", "print_config", "help"), "More options"),
}
"""The help panel of each shared option. All other options of a command come first."""


_VALUES = {"str": "TEXT", "list[str]": "TEXT", "Path": "PATH", "int": "NUMBER", "float": "NUMBER"}
"""The placeholder of a value in the help, by its type."""


def _in_panels(command: Any, ctx: Any) -> None:
    """Assign options to panels, and give their values readable placeholders. Flags have none."""
    several = len(command.params) > 9 and not hasattr(command, "commands")
    for parameter in command.get_params(ctx):
        if parameter.param_type_name == "option" and parameter.metavar is None:
            parameter.metavar = "" if parameter.is_flag else _VALUES.get(parameter.bare_type())
        elif parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda **_: None  # the name is enough
        if several and parameter.name in _PANELS and parameter.param_type_name == "option":
            parameter.rich_help_panel = _PANELS[parameter.name]
    for inner in getattr(command, "commands", {}).values():
        _in_panels(inner, ctx)


def _with_resume_value(args: Sequence[str]) -> list[str]:
    """Arguments in which `--resume` without a value is `--resume=auto`: Typer requires a value.

    `--resume` has no value before another option and at the end. With --name, its value can only be a mode or
    that name. Any other word after it is a model or a file.
    """
    names = {following for arg, following in pairwise(args) if arg == "--name"}
    names |= {arg.partition("=")[2] for arg in args if arg.startswith("--name=")}
    modes = {"auto", "never", *names}
    return [
        "--resume=auto"
        if arg == "--resume" and (following.startswith("-") or (names and following not in modes))
        else arg
        for arg, following in pairwise([*args, "-"])
    ]


class _BrokenPipe(Exception):
    """A broken pipe. Typer would exit with 1 and no message on a plain BrokenPipeError."""

    def __init__(self, error: BrokenPipeError) -> None:
        self.error = error


class _Commands(TyperGroup):
    def make_context(self, *arguments: Any, **keywords: Any) -> Any:  # prints --help
        _in_panels(self, typer.Context(self))
        try:
            return super().make_context(*arguments, **keywords)
        except BrokenPipeError as error:
            raise _BrokenPipe(error) from error

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return [names[0], *_OWN, *plugins.names("tasks"), *names[1:]]

    def get_command(self, ctx: Any, name: str) -> Any:  # the list of commands must not import tasks
        command = super().get_command(ctx, name)
        if command is None and name in tasks():
            return TyperCommand(name, help=first_line(tasks()[name]))
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None:
            raise self._unknown(ctx, args[0])
        name, resolved, remaining_args = super().resolve_command(ctx, args)
        if isinstance(resolved, TyperCommand) and resolved.callback is None and name is not None:
            resolved = command(name, _OWN[name].load() if name in _OWN else plugins.load("tasks", name))
        if isinstance(resolved, TyperCommand) and resolved.help:
            resolved.help = _LINE_END.sub(" ", resolved.help)
        _in_panels(resolved, ctx)
        parameters = [] if resolved is None else resolved.params
        if any(param.name == "resume" and not getattr(param, "is_flag", False) for param in parameters):
            remaining_args = _with_resume_value(remaining_args)
        return name, resolved, remaining_args

    def _unknown(self, ctx: Any, name: str) -> UsageError:
        """The error for an unknown command. It names the command that was probably meant."""
        groups = {group: getattr(command, "commands", {}) for group, command in self.commands.items()}
        meant = [f"'seqmlm {group} {name}'" for group, command in groups.items() if name in command]
        if meant:
            return UsageError(f"no command {name!r}; did you mean {' or '.join(meant)}?")
        return UsageError(f"no command {name!r}{nearest(name, self.list_commands(ctx))}")

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _BrokenPipe(error) from error
        except typer.TyperException as error:
            _name_setting(ctx.invoked_subcommand, getattr(error, "option_name", ""))
            raise


def _name_setting(command: str, option: str) -> None:
    """Raise a UsageError if an unknown option is a setting of the command. The error names the setting."""
    kind: type[Any] | None = None
    if command == "train":
        from seqmlm.training.config import PretrainConfig as kind
    elif command in tasks():
        kind = tasks()[command].load().Config
    if kind is not None and (name := setting(kind, option)):
        raise UsageError(f"{command} has no option {option}, but a setting: --set {name}=VALUE")


app = typer.Typer(
    name="seqmlm",
    cls=_Commands,
    no_args_is_help=True,
    help="Masked language models for any kind of sequence. To begin: seqmlm demo",
)
app.command("train")(train.train)
app.command("demo")(demo.demo)
app.command("sample")(data.sample)
app.add_typer(data.app, name="data")
app.add_typer(runs.app, name="runs")
app.add_typer(models.app, name="models")
app.add_typer(incidents.app, name="incidents")
app.add_typer(rows.app, name="rows")
app.command("ray")(ray.ray)
app.command("report")(report.report)
app.add_typer(workspace.db, name="db")
app.command("ui")(workspace.ui)
app.command("doctor")(workspace.doctor)


def _version(requested: bool) -> None:
    if requested:
        say(f"seqmlm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if debug:
        os.environ["SEQMLM_DEBUG"] = "1"


def main(arguments: Sequence[str] | None = None) -> Any:
    """Run the command line. A `SeqmlmError` becomes one line on stderr and an exit code."""
    # OpenMP threads that spin while they wait slow each other down many times on a shared machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if arguments is None:  # the process runs only this command
        start.own_process()
        # Importing torch and transformers creates a million permanent objects. Python's garbage collection
        # after every 700 new objects would take a tenth of the start time.
        gc.set_threshold(10_000)
    _open_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            return app(words)
        except SystemExit:
            sys.stdout.flush()  # here, so that a failure is reported below
            raise
    except (SeqmlmError, OSError, _BrokenPipe, MemoryError, RecursionError) as error:
        if isinstance(error, (BrokenPipeError, _BrokenPipe)) and _reader_has_left():
            _end(0)
        if os.environ.get("SEQMLM_DEBUG"):
            raise
        _fail(error.error if isinstance(error, _BrokenPipe) else error, words)


def _fail(error: BaseException, words: Sequence[str]) -> NoReturn:
    if isinstance(error, SeqmlmError):
        tell(f"error: {error}")
        command = next((word for word in words if not word.startswith("-")), "")
        if isinstance(error, DataError) and error.skippable and _takes_on_error(command):
            flag = "--set data.on_error=" if command == "train" else "--on-error "
            quarantine_hint = (
                "" if command in _KEEPS_NONE else f", {flag}quarantine also saves them to a file"
            )
            tell(f"hint: {flag}skip ignores bad records{quarantine_hint}")
        _end(error.exit_code)
    if isinstance(error, MemoryError):
        tell("error: not enough memory: use a smaller tokens_per_batch, or less input at a time")
        _end(1)
    if isinstance(error, RecursionError):
        tell("error: the input or a setting is nested too deeply: check both")
        _end(1)
    assert isinstance(error, OSError)
    if error.errno == errno.ENOSPC:
        tell("error: the disk is full: free space and run the command again")
        _end(4)
    if error.errno == errno.EBADF and error.filename is None:
        tell("error: standard output is closed, so results cannot be written: redirect it to a file")
        _end(4)
    place = "" if error.filename is None else f"{error.filename}: "
    tell(f"error: {place}{error.strerror or error}: check that the file exists and that you may use it")
    _end(3 if str(error.filename) in words else 4)


def _takes_on_error(command: str) -> bool:
    """Whether a command has the option `--on-error`, or an equivalent setting."""
    return command in _TAKES_ON_ERROR or (
        command in tasks() and "on_error" in tasks()[command].load().Config.option_fields
    )


def _open_streams() -> None:
    """Open missing standard streams, before other files get their descriptors.

    A closed stdin reads as empty. Messages to a closed stderr are lost. Writing to a closed stdout fails, as
    on a full disk. Characters that the encoding cannot represent are written as escapes.
    """
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            setattr(sys, name, open(descriptor, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _reader_has_left() -> bool:
    """Whether the reader of standard output has closed it. If not, another pipe or connection broke."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _end(code: int) -> NoReturn:
    """Exit, without the interpreter's own error message about output that cannot be flushed."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
