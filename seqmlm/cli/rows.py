"""`seqmlm rows`: files of rows that several processes wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqmlm.cli.options import Json
from seqmlm.cli.output import print_json, tell
from seqmlm.errors import number_of

app = typer.Typer(no_args_is_help=True, help="Put rows together that several processes wrote.")


@app.callback()
def _group() -> None:
    """Further commands will stand beside `merge`."""


@app.command("merge")
def merge(
    parts: Annotated[list[Path], typer.Argument(metavar="PART...", help="Files that --shard I/N wrote.")],
    out: Annotated[Path, typer.Option(help="Write the rows of all parts to this file (.jsonl).")],
    json_output: Json = False,
) -> None:
    """Merge the parts of one request: complete, unchanged, in the order of the input.

    Example: seqmlm rows merge part-*.jsonl --out scores.jsonl
    """
    from seqmlm.management.merge import merge as put_together

    items = put_together(parts, out)
    if json_output:
        print_json({"parts": len(parts), "items": items, "out": out})
    else:
        tell(f"{out}: rows of {number_of(items, 'item')} from {number_of(len(parts), 'part')}")
