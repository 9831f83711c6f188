"""`seqmlm data` and `seqmlm sample`: inspect data before training, and write a built-in sample."""

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

    file_formats = formats_of(domain)
    if format is not None:
        by_name = {file_format.name: file_format for file_format in file_formats}
        if format not in by_name:
            raise UsageError(f"domain {domain} has no format {format!r}{nearest(format, by_name)}")
        file_formats = [by_name[format]]
    if json_output:
        print_json(file_formats)
        return
    listed = None
    for file_format in file_formats:
        endings = [*file_format.suffixes[:_SHOWN], *(["..."] if len(file_format.suffixes) > _SHOWN else [])]
        known_by = ", ".join(endings) or ("a folder" if file_format.folder else "--format alone")
        also_folder = ", a folder" if file_format.folder and file_format.suffixes else ""
        say(f"{file_format.name} ({known_by}{also_folder})")
        if file_format.options == listed:
            continue  # the same options as the previous format
        listed = file_format.options
        say(textwrap.fill(file_format.reads, 96, initial_indent="  ", subsequent_indent="  "))
        for option in file_format.options:
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
        bool,
        typer.Option("--sensitive", help="Treat the data as confidential, so that the export is refused."),
    ] = False,
    json_output: opt.Json = False,
) -> None:
    """Write records, with token ids and groups, as a folder that datasets.load_from_disk loads.

    Records are split as for training. To read the folder back, name its columns `id` and `document` with
    reader options (see `seqmlm data formats`). Sensitive data are refused.

    Example: seqmlm data export --domain protein my_proteins.fasta.gz --out proteins
    """
    from seqmlm.management.export_data import ExportConfig
    from seqmlm.management.export_data import export as write

    settings: dict[str, Any] = {
        "domain": domain,
        "out": out,
        "paths": opt.merged(paths, data),
        "format": format,
    }
    settings |= {"options": parse_options(option or []), "tokenizer": tokenizer}
    exported = write(from_dict(ExportConfig, {**settings, "on_error": on_error, "sensitive": sensitive}))
    if json_output:
        print_json(exported)
        return
    for name, count in exported.splits.items():
        say(f"{name:<26} {count:,}")
    say(f"{'columns':<26} {', '.join(exported.columns)}")
    for reason, count in exported.problems.items():
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
    """Count records, lengths, tokens, duplicates, splits, leaks and problems. Show one masked record.

    Without a path, the built-in sample of the domain is inspected.

    Example: seqmlm data inspect --domain protein my_proteins.fasta.gz
    """
    from seqmlm.management.inspect import inspect_data

    same: dict[str, Any] = {"format": format, "sensitive": sensitive, "show_records": show_records}
    options = parse_options(option or [])
    inspection = asdict(inspect_data(domain, opt.merged(paths, data), options=options, **same))
    if json_output:
        print_json(inspection)
        return
    if not inspection["records"]:
        tell("no record could be read: see the problems below")
    for key, value in inspection.items():
        if not isinstance(value, dict):
            say(f"{key.replace('_', ' '):<26} {_figure_text(value)}")
        elif value:
            say(f"{key.replace('_', ' ')}:")
            for name, item in value.items():
                say(f"  {name!s:<24} {_figure_text(item)}")


def _figure_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def sample(
    domain: opt.Domain,
    out: opt.OutFolder,
    n: Annotated[
        int | None, typer.Option(min=1, help="Number of records. Default: depends on the domain.")
    ] = None,
    seed: opt.Seed = 0,
    json_output: opt.Json = False,
) -> None:
    """Write a synthetic sample with known truth: data in the domain's default format, and truth.json.

    The seed changes the drawn records, but never the planted truth.

    Example: seqmlm sample --domain protein --out sample --n 500
    """
    from seqmlm.training.corpus import draw_sample

    drawn_sample = draw_sample(domain, out, n=n, seed=seed)
    if json_output:
        files, apart_files = (
            [str(path) for path in paths] for paths in (drawn_sample.files, drawn_sample.extra_files)
        )
        print_json({"files": files, "apart": apart_files, "truth": str(drawn_sample.truth)})
    else:
        for path in (*drawn_sample.files, *drawn_sample.extra_files, drawn_sample.truth):
            say(str(path))
        advise(f"next: seqmlm train --domain {domain} {drawn_sample.files[0]}")
