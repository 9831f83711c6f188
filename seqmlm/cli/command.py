"""Commands from tasks: options, help, choices and defaults come from the config class of a task.

A field becomes an option if `option_fields` lists it. All other fields are set by `--set NAME=VALUE`. The
help of an option is the field's line under `Args:` in the docstring of the class. A `Literal` gives choices.
The field `paths` is positional.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Protocol,
    TextIO,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

from seqmlm.cli import options as opt
from seqmlm.cli.output import advise, end_as_asked, escape, number, print_json, print_table, say, tell
from seqmlm.config import from_dict, meanings, merge, parse_assignments, parse_options, to_dict
from seqmlm.errors import DataError, UsageError, nearest
from seqmlm.parsing import Share, share

Parameters = dict[str, inspect.Parameter]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of a command that writes no rows.

    Args:
        figures: the result for `--json`, a dataclass or a mapping.
        answer: the result in one sentence.
        tables: title, columns and rows of each table.
        hint: the command to run next.
    """

    figures: Any
    answer: str
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[Any]]]] = ()
    hint: str = ""

    streamed: ClassVar[bool] = False
    stopped: ClassVar[int | None] = None
    go_on: ClassVar[str] = ""
    notes: ClassVar[Mapping[str, Any]] = {}
    places: ClassVar[Mapping[str, str]] = {}
    quarantine: ClassVar[Path | None] = None
    examples: ClassVar[Sequence[str]] = ()
    failure: ClassVar[str] = ""

    def to_dict(self) -> Any:
        """The figures as JSON values."""
        return self.figures


class Command(Protocol):
    """A command that is not a `seqmlm.tasks.task.Task`: it has no items, never ends or trains a model.

    Attributes:
        Config: class of the config. Its docstring describes the options.
        trains: whether it trains a model. The progress display then shows a training.
    """

    Config: ClassVar[type[Any]]
    trains: ClassVar[bool]

    @classmethod
    def launch(cls, name: str, config: Any, *, stdout: TextIO | None, progress: Any, as_json: bool) -> Any:
        """Run the command, and return a `seqmlm.reports.summary.Summary` or an `Answer`."""


def first_line(task: EntryPoint) -> str:
    """The first paragraph of a task's docstring. The task is not imported, because that would load torch."""
    spec = find_spec(task.module)
    if spec is None or spec.origin is None:
        return f"(cannot be imported: {task.module})"
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == task.attr:
            return (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")
    return f"(no class {task.attr} in {task.module})"


def command(name: str, make: type[Any]) -> Any:
    """The Typer command for a task or a `Command`."""

    def called(**arguments: Any) -> None:
        as_json, printed = arguments.pop("json_output"), arguments.pop("print_config")
        config = _configured(make.Config, arguments)
        if printed:
            say("\n".join(described(make.Config, to_dict(config))))
        else:
            _run(name, make, config, as_json)

    called.__doc__ = (inspect.getdoc(make) or "").partition("\nRaises:")[0]
    app = typer.Typer(add_completion=False)
    app.command(name)(declared(called, make.Config))
    return typer.main.get_command(app)


def declared(called: Callable[..., None], kind: type[Any]) -> Callable[..., None]:
    """Give a function the signature that a config declares, so that Typer makes options from it."""
    parameters = _parameters(kind)
    called.__signature__ = inspect.Signature([*parameters.values()])  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters.values()}
    return called


def _run(name: str, make: type[Any], config: Any, as_json: bool) -> None:
    """Run a task or command, and print its figures: on stderr if stdout has the rows, else on stdout."""
    from seqmlm.cli.console import ScoringConsole, TrainingConsole
    from seqmlm.cli.start import began

    live = getattr(config, "latency", None) is not None  # live input has no end, so no remaining time
    trains = getattr(make, "trains", False)
    with TrainingConsole(began()) if trains else ScoringConsole(lines=not live) as console:
        options: dict[str, Any] = {"stdout": sys.stdout, "progress": console, "as_json": as_json}
        if hasattr(make, "launch"):
            summary = make.launch(name, config, **options)
        else:
            from seqmlm.tasks.run import run  # imported here: it loads torch, which some commands do not need

            summary = run(name, make, config, **options)
    out = getattr(config, "out", None)
    if summary.answer:
        _show(summary, out, as_json)
    incomplete = bool(summary.go_on or not summary.answer)
    end_as_asked(summary.stopped, out if incomplete else None, go_on=summary.go_on)
    if summary.failure:
        raise DataError(summary.failure)


def _show(summary: Any, out: Path | None, as_json: bool) -> None:
    if as_json and not summary.streamed:
        print_json(summary.to_dict())
        return
    rows = summary.streamed or (out is not None and not summary.tables)
    (tell if rows else say)("\n".join([summary.answer, *summary.examples]))
    if summary.notes:
        where = {why: f" (first: {place})" for why, place in summary.places.items()}
        lines = (f"{_problem_text(n, why)}{where.get(why, '')}" for why, n in summary.notes.items())
        tell("warnings: " + "; ".join(lines))
    if summary.quarantine is not None:
        tell(f"bad records are in {summary.quarantine}")
    for title, columns, cells in summary.tables:
        print_table(columns, [[*map(_cell, row)] for row in cells], title=title or None, on_stderr=rows)
    advise(summary.hint)


def _problem_text(count: Any, reason: str) -> str:
    """A number of problems with their reason, such as "1 line out of time order, left in its place"."""
    noun = reason.removeprefix("a ").removeprefix("an ")
    if count == 1 and noun != reason:
        return f"1 {noun}"
    return f"{count:,} × {noun}" if isinstance(count, int) else f"{count} × {noun}"


def described(kind: type[Any], values: Mapping[str, Any]) -> list[str]:
    """Lines of YAML with each setting in `values`, below a comment with its meaning."""
    import yaml

    hints, helps, lines = get_type_hints(kind), descriptions(kind), []
    for name, value in values.items():
        lines += [f"# {helps[name]}"] if name in helps else []
        if dataclasses.is_dataclass(hints[name]):
            lines += [f"{name}:", *("  " + line for line in described(hints[name], value))]
        else:
            lines += yaml.safe_dump({name: value}, sort_keys=False).splitlines()
    return lines


def setting(kind: type[Any], option: str) -> str | None:
    """The setting with the name of an option, such as data.format for --format; None if there is none.

    The name of a section means its first setting: --tokenizer is tokenizer.name.
    """
    field_name = option.lstrip("-").replace("-", "_")
    hints = get_type_hints(kind)
    for name in (field.name for field in dataclasses.fields(kind)):
        hint = hints[name]
        inner = [field.name for field in dataclasses.fields(hint)] if dataclasses.is_dataclass(hint) else []
        if field_name == name:
            return ".".join([name, *inner[:1]])
        if field_name in inner:
            return f"{name}.{field_name}"
    return None


def _cell(value: Any) -> str:
    return escape(number(value) if isinstance(value, (int, float)) and value is not True else value or "-")


def _configured(kind: type[Any], arguments: Mapping[str, Any]) -> Any:
    settings = parse_assignments(arguments["settings"] or [])
    field_names = {field.name for field in dataclasses.fields(kind)}
    if unknown := next((key for key in settings if key not in field_names), None):
        raise UsageError(f"--set {unknown}: no such setting{nearest(unknown, field_names)}")
    values = {key: value for key, value in arguments.items() if value is not None and key in field_names}
    if "paths" in values or arguments.get("data"):
        values["paths"] = opt.merged(values.get("paths"), arguments.get("data"))
    if "options" in values:
        values["options"] = parse_options(values["options"])
    values = merge(values, settings)
    if "resume" in values and hasattr(kind, "resumed_settings"):
        values = merge(kind.resumed_settings(values), values)
    return from_dict(kind, values)


def _parameters(kind: type[Any]) -> Parameters:
    """The parameters of a command, in the order of its help. Shared options are added unless declared."""
    hints, helps = get_type_hints(kind, include_extras=True), descriptions(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    annotations: dict[str, tuple[Any, Any]] = {}  # annotation and default
    if "model" in fields:
        required = fields["model"].default is dataclasses.MISSING
        annotations["model"] = (opt.Model, inspect.Parameter.empty) if required else (opt.OptionalModel, None)
    if kind.metavar:
        argument = typer.Argument(metavar=kind.metavar, help=_sentence(helps["paths"]), callback=opt.inputs)
        annotations["paths"] = Annotated[list[str] | None, argument], None
        annotations |= {} if "data" in kind.option_fields else {"data": (opt.Data, None)}
    for name in kind.option_fields:
        shown_default = fields[name].metadata.get("default")
        annotations[name] = _option(fields[name], hints[name], helps[name]), shown_default
    hidden_names = ", ".join(sorted(fields.keys() - {"model", "paths", *kind.option_fields}))
    note = typer.Option("--set", metavar="NAME=VALUE", help=f"Another setting, repeatable: {hidden_names}.")
    annotations.setdefault("settings", (Annotated[list[str] | None, note], None))
    print_config = typer.Option("--print-config", help="Print all settings as YAML and stop.")
    annotations.setdefault("print_config", (Annotated[bool, print_config], False))
    annotations["json_output"] = opt.Json, False
    keyword = inspect.Parameter.KEYWORD_ONLY
    return {
        name: inspect.Parameter(name, keyword, default=default, annotation=annotation)
        for name, (annotation, default) in annotations.items()
    }


def _option(field: dataclasses.Field[Any], hint: Any, text: str) -> Any:
    """The Typer annotation of a field: its type, flag and help. The help ends with choices and default.

    These keys of the field's `metadata` change the annotation:

        flag      another flag
        also      more flags with the same meaning
        default   the default that Typer shows
        further   additional arguments for `typer.Option`
    """
    name, metadata = field.name, field.metadata
    default = None if "default" in metadata else field.default
    kinds = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    kind = next(choice for choice in kinds if choice is not type(None))
    typer_arguments = dict(metadata.get("further", {}))
    if kind == Share:
        kind, typer_arguments["parser"] = float, _share
    origin = get_origin(kind)
    flag = metadata.get("flag", "--" + name.replace("_", "-"))
    first, _, description = text.partition(": ")
    metavar = first if first.isupper() or {*first} & {*"=|"} else None
    text = text if metavar is None else description
    metavar = "SHARE" if "parser" in typer_arguments else metavar
    if origin is tuple or (inspect.isclass(origin) and issubclass(origin, Mapping)):
        flag = flag.removesuffix("es") if flag.endswith("sses") else flag.removesuffix("s")
        kind = list[str]
    elif origin is Literal:
        choices = [*map(str, get_args(kind))]
        if not all(choice in text for choice in choices):  # the first sentence says what is chosen
            about, _, more = text.rstrip(".").partition(". ")
            text = ". ".join(filter(None, (f"{about}: {', '.join(choices)}", more)))
        kind = str
    usual = ", ".join(default) if isinstance(default, tuple) else str(default)
    if default not in (None, (), False, dataclasses.MISSING) and usual not in text:
        text = f"{text.rstrip('.')}. Default: {usual}"
    if kind is bool:
        return Annotated[bool | None, typer.Option(flag, help=_sentence(text))]
    flags = (flag, *metadata.get("also", ()))
    return Annotated[
        kind | None, typer.Option(*flags, metavar=metavar, help=_sentence(text), **typer_arguments)
    ]


def _share(text: str) -> float:
    try:
        return share(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a share such as 0.05 or 5%") from None


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def descriptions(kind: type[Any]) -> dict[str, str]:
    """The help of each field: its line under `Args:` in the docstring of the class or a base class."""
    texts = (base.__doc__ or "" for base in reversed(kind.__mro__))
    return {name: meaning for text in texts for name, meaning in meanings(text).items()}
