"""`seqmlm data`: look at data before training on it."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Look at data before training on it.")


@app.callback()
def _group() -> None:
    """Keep `inspect` a sub-command, though it is the only one."""


@app.command("inspect")
def inspect(
    domain: Annotated[str, typer.Option("--domain", "-d", help="What the sequences are: protein, text ...")],
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH|-]...", help="Files or folders; - is standard input.")
    ] = None,
    data: Annotated[list[str] | None, typer.Option("--data", help="The same as PATH.")] = None,
    format: Annotated[str | None, typer.Option(help="Input format; guessed from the name if absent.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Reader option, as column=text.")
    ] = None,
    sensitive: Annotated[
        bool, typer.Option("--sensitive", help="The data hold secrets: show counts, never values.")
    ] = False,
    show_records: Annotated[
        bool, typer.Option("--show-records", help="Show the masked example of sensitive data too.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Count records, lengths, tokens, duplicates, splits, leaks and problems; show one record masked.

    Without a path the domain's built-in sample is inspected.

    Example: seqmlm data inspect --domain protein my_proteins.fasta.gz
    """
    from seqmlm.cli.output import print_json
    from seqmlm.config import parse_options
    from seqmlm.tasks.inspect import inspect as look

    found = look(
        domain,
        [*(paths or []), *(data or [])],
        format=format,
        options=parse_options(option or []),
        sensitive=sensitive,
        show_records=show_records,
    ).to_dict()
    if json_output:
        print_json(found)
        return
    for key, value in found.items():
        if isinstance(value, dict):
            if value:
                typer.echo(f"{key.replace('_', ' ')}:")
            for name, item in value.items():
                typer.echo(f"  {name!s:<24} {_shown(item)}")
        else:
            typer.echo(f"{key.replace('_', ' '):<26} {_shown(value)}")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
