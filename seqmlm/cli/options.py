"""Arguments and options that several commands share, each declared once as an `Annotated` type.

An option has the same meaning in every command. The options of tasks are not declared here. `cli/command.py`
generates them from the fields of their configs, such as --fpr from `scoring/config.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="The model: NAME, NAME@ALIAS, NAME:VERSION, a model folder or a hub id."
    ),
]

OptionalModel = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="The model: NAME, NAME@ALIAS, NAME:VERSION, a model folder or a hub id. Not needed with "
        "--resume.",
    ),
]

# Input


def inputs(paths: list[str] | None) -> list[str] | None:
    """The paths, with every name of standard input replaced by "-", the only name that readers know."""
    names = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
    return paths and ["-" if path in names else path for path in paths]


Paths = Annotated[
    list[str] | None,
    typer.Argument(
        callback=inputs,
        metavar="PATH|-",
        help="Files, folders or Hugging Face data sets (hf:NAME[:SPLIT]) to read; - is standard input.",
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option("--data", callback=inputs, metavar="PATH", help="Same as a positional PATH; repeatable."),
]
Domain = Annotated[
    str,
    typer.Option(
        "--domain",
        "-d",
        help="Field of the sequences: code, dna, ehr, logs, protein, text, or the name of a plug-in.",
    ),
]
Format = Annotated[
    str | None, typer.Option(help="Format of the input files (see `seqmlm data formats`). Default: detected.")
]
Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="KEY=VALUE", help="Option of the file reader, such as column=text; repeatable."
    ),
]

Seed = Annotated[int, typer.Option(help="Seed of the random draws.")]

# Output

OutFolder = Annotated[Path, typer.Option(help="Folder to write to; created if missing.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]


def merged(paths: list[str] | None, data: list[str] | None) -> list[str]:
    """The positional paths, followed by the paths from `--data`."""
    return [*(paths or []), *(data or [])]
