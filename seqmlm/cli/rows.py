"""`seqmlm rows`: merge files of rows that several processes wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqmlm.cli.options import Json
from seqmlm.cli.output import print_json, tell
from seqmlm.errors import number_of

app = typer.Typer(no_args_is_help=True, help="Merge rows written by several processes.")


@app.callback()
def _group() -> None:
    """Keep the name `merge`: Typer drops the name of the only command in a group without a callback."""


@app.command("merge")
def merge(
    parts: Annotated[list[Path], typer.Argument(metavar="PART", help="Files written with --shard I/N.")],
    out: Annotated[Path, typer.Option(help="Write the merged rows to this file (.jsonl).")],
    json_output: Json = False,
) -> None:
    """Merge the parts of one request, in the order of the input; refuse missing or changed parts.

    Example: seqmlm rows merge part-*.jsonl --out scores.jsonl
    """
    from seqmlm.management.merge import merge as put_together

    items = put_together(parts, out)
    if json_output:
        print_json({"parts": len(parts), "items": items, "out": out})
    else:
        tell(f"{out}: rows of {number_of(items, 'item')} from {number_of(len(parts), 'part')}")
