"""`seqmlm data` and `seqmlm sample`: look at data before training on it; write a built-in sample."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from seqmlm.cli import options as opt
from seqmlm.cli.output import advise, print_json, say, tell
from seqmlm.config import from_dict, parse_options
from seqmlm.errors import UsageError, nearest

_SHOWN = 12  # file name endings listed per format

app = typer.Typer(
    no_args_is_help=True, help="List file formats; inspect data before training on it; export it."
)


@app.command("formats")
def formats(
    domain: opt.Domain,
    format: Annotated[str | None, typer.Option(help="Show only this format.")] = None,
    json_output: opt.Json = False,
) -> None:
    """List the file formats of a domain and the options of each (--option KEY=VALUE).

    Example: seqmlm data formats --domain ehr --format wide
    """
    from seqmlm.management.inspect import formats as formats_of

    found = formats_of(domain)
    if format is not None:
        known = {one.name: one for one in found}
        if format not in known:
            raise UsageError(f"domain {domain} has no format {format!r}{nearest(format, known)}")
        found = [known[format]]
    if json_output:
        print_json(found)
        return
    listed = None
    for one in found:
        shown = [*one.suffixes[:_SHOWN], *(["..."] if len(one.suffixes) > _SHOWN else [])]
        known_by = ", ".join(shown) or ("a folder" if one.folder else "--format alone")
        say(f"{one.name} ({known_by}{', a folder' if one.folder and one.suffixes else ''})")
        if one.options == listed:
            continue  # the same as of the previous format
        listed = one.options
        say(textwrap.fill(one.reads, 96, initial_indent="  ", subsequent_indent="  "))
        for option in one.options:
            line = f"{option.name}={option.default}  {option.meaning}"
            say(textwrap.fill(line, 96, initial_indent="    ", subsequent_indent="        "))


@app.command("export")
def export(
    domain: opt.Domain,
    out: Annotated[Path, typer.Option("--out", help="Folder to write; it must not exist yet.")],
    paths: opt.Paths = None,
    data: opt.Data = None,
    format: opt.Format = None,
    option: opt.Option = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Folder of a saved tokenizer or model. Default: the domain's own, fitted to the data."
        ),
    ] = None,
    on_error: Annotated[str, typer.Option(help="Bad records: raise (stop) or skip.")] = "raise",
    sensitive: Annotated[
        bool, typer.Option("--sensitive", help="Data are confidential: refuse to export them.")
    ] = False,
    json_output: opt.Json = False,
) -> None:
    """Write records, with token ids and groups, as a folder that datasets.load_from_disk loads.

    Records are split as a training would split them, and read again with the reader options that name the
    columns id and document (see `seqmlm data formats`). Sensitive data are refused.

    Example: seqmlm data export --domain protein my_proteins.fasta.gz --out proteins
    """
    from seqmlm.management.export import ExportConfig
    from seqmlm.management.export import export as write

    given: dict[str, Any] = {"domain": domain, "out": out, "paths": opt.merged(paths, data), "format": format}
    given |= {"options": parse_options(option or []), "tokenizer": tokenizer}
    found = write(from_dict(ExportConfig, {**given, "on_error": on_error, "sensitive": sensitive}))
    if json_output:
        print_json(found)
        return
    for name, count in found.splits.items():
        say(f"{name:<26} {count:,}")
    say(f"{'columns':<26} {', '.join(found.columns)}")
    for reason, count in found.problems.items():
        tell(f"{reason}: {count:,}")


@app.command("inspect")
def inspect(
    domain: opt.Domain,
    paths: opt.Paths = None,
    data: opt.Data = None,
    format: opt.Format = None,
    option: opt.Option = None,
    sensitive: Annotated[
        bool, typer.Option("--sensitive", help="Treat the data as sensitive: show counts, never values.")
    ] = False,
    show_records: Annotated[
        bool,
        typer.Option("--show-records", help="Show a masked example record even if the data are sensitive."),
    ] = False,
    json_output: opt.Json = False,
) -> None:
    """Count records, lengths, tokens, duplicates, splits, leaks and problems; show one masked record.

    Without a path, the domain's built-in sample is inspected.

    Example: seqmlm data inspect --domain protein my_proteins.fasta.gz
    """
    from seqmlm.management.inspect import inspect_data

    same: dict[str, Any] = {"format": format, "sensitive": sensitive, "show_records": show_records}
    options = parse_options(option or [])
    found = asdict(inspect_data(domain, opt.merged(paths, data), options=options, **same))
    if json_output:
        print_json(found)
        return
    if not found["records"]:
        tell("no record could be read: see the problems below")
    for key, value in found.items():
        if not isinstance(value, dict):
            say(f"{key.replace('_', ' '):<26} {_shown(value)}")
        elif value:
            say(f"{key.replace('_', ' ')}:")
            for name, item in value.items():
                say(f"  {name!s:<24} {_shown(item)}")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def sample(
    domain: opt.Domain,
    out: opt.OutFolder,
    n: Annotated[int | None, typer.Option(min=1, help="Number of records. Default: by domain.")] = None,
    seed: opt.Seed = 0,
    json_output: opt.Json = False,
) -> None:
    """Write a synthetic sample with known truth: data in the domain's usual format, and truth.json.

    The seed changes what is drawn, never the planted truth.

    Example: seqmlm sample --domain protein --out sample --n 500
    """
    from seqmlm.training.corpus import draw_sample

    drawn = draw_sample(domain, out, n=n, seed=seed)
    if json_output:
        files, apart = ([str(path) for path in own] for own in (drawn.files, drawn.apart))
        print_json({"files": files, "apart": apart, "truth": str(drawn.truth)})
    else:
        for path in (*drawn.files, *drawn.apart, drawn.truth):
            say(str(path))
        advise(f"next: seqmlm train --domain {domain} {drawn.files[0]}")
