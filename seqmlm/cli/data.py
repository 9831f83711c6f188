"""`seqmlm data`: look at data before training on it."""

from __future__ import annotations

from typing import Annotated

import typer

from seqmlm.cli import words

_SHOWN = 12  # endings of a format that are listed

app = typer.Typer(no_args_is_help=True, help="Look at data before training on it.")


@app.command("formats")
def formats(
    domain: Annotated[str, typer.Option("--domain", "-d", help=words.DOMAIN)],
    format: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON list on stdout.")] = False,
) -> None:
    """List the file formats of a domain and the options of each (--option KEY=VALUE).

    Example: seqmlm data formats --domain ehr --format wide
    """
    import textwrap

    from seqmlm.cli.output import print_json
    from seqmlm.errors import UsageError, nearest
    from seqmlm.tasks.inspect import formats as formats_of

    found = formats_of(domain)
    if format is not None:
        known = [one.name for one in found]
        if format not in known:
            raise UsageError(f"domain {domain} has no format {format!r}{nearest(format, known)}")
        found = [one for one in found if one.name == format]
    if json_output:
        print_json([one.to_dict() for one in found])
        return
    told = None
    for one in found:
        shown = [*one.suffixes[:_SHOWN], *(["..."] if len(one.suffixes) > _SHOWN else [])]
        known_by = ", ".join(shown) or ("a folder" if one.folder else "--format alone")
        typer.echo(f"{one.name} ({known_by}{', a folder' if one.folder and one.suffixes else ''})")
        if one.options == told:
            continue  # the same as of the format before
        told = one.options
        typer.echo(textwrap.fill(one.reads, 96, initial_indent="  ", subsequent_indent="  "))
        for option in one.options:
            line = f"{option.name}={option.default}  {option.meaning}"
            typer.echo(textwrap.fill(line, 96, initial_indent="    ", subsequent_indent="        "))


@app.command("inspect")
def inspect(
    domain: Annotated[str, typer.Option("--domain", "-d", help=words.DOMAIN)],
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
    from seqmlm.tasks.inspect import inspect_data as look

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
    if not found["records"]:
        typer.echo("no record could be read: the problems below say why", err=True)
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
