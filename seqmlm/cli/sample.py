"""`seqmlm sample`: write a domain's built-in sample, with what was planted in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def sample(
    domain: Annotated[str, typer.Option("--domain", "-d", help="Which domain's sample.")],
    out: Annotated[Path, typer.Option(help="Folder to write to.")],
    n: Annotated[
        int | None, typer.Option(min=1, help="Number of records; the domain's own if absent.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Changes what is drawn, never what is planted.")] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Write a sample with known truth: data in the domain's ordinary format, truth.json beside it.

    Example: seqmlm sample --domain protein --out sample --n 500
    """
    from seqmlm.cli.output import print_json
    from seqmlm.tasks.corpus import draw_sample

    drawn = draw_sample(domain, out, n=n, seed=seed)
    if json_output:
        print_json({"files": [str(path) for path in drawn.files], "truth": str(drawn.truth)})
    else:
        for path in (*drawn.files, drawn.truth):
            typer.echo(str(path))
