"""`seqmlm score`: how usual is each sequence, and which part of it is odd."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def score(
    model: Annotated[str, typer.Argument(help="A model: name, name@alias, name:version, folder or hub id.")],
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH|-]...", help="Files or folders; - is standard input.")
    ] = None,
    data: Annotated[list[str] | None, typer.Option("--data", help="The same as PATH.")] = None,
    mode: Annotated[str, typer.Option(help="exact: every unit masked in turn.")] = "exact",
    per_unit: Annotated[
        bool, typer.Option("--per-unit", help="Add every unit's span and surprisal.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write JSON lines here instead of stdout.")] = None,
    domain: Annotated[
        str | None, typer.Option("--domain", "-d", help="Only for a model that does not know its own.")
    ] = None,
    format: Annotated[str | None, typer.Option(help="Input format; guessed from the name if absent.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Reader option, as column=text.")
    ] = None,
    on_error: Annotated[
        str, typer.Option(help="Bad records: raise, skip or quarantine (OUT.quarantine.jsonl).")
    ] = "raise",
    tokens_per_batch: Annotated[
        int, typer.Option(min=1, help="Tokens of one forward pass; halved when memory runs out.")
    ] = 16384,
) -> None:
    """Score sequences with a model: one JSON line each, higher score = more unusual.

    `pll` is the sum of ln p of all units, in nats; `bits_per_unit`, `score` and `surprisal` are in bits.
    Exact scores take one forward pass a unit, so a long record takes the square of its length.

    Example: seqmlm score enzymes new.fasta --per-unit --out scores.jsonl
    """
    import sys

    from seqmlm.config import from_dict, parse_options
    from seqmlm.tasks.score import ScoreConfig, score_files

    config = from_dict(
        ScoreConfig,
        {
            "model": model,
            "paths": [*(paths or []), *(data or [])],
            "mode": mode,
            "per_unit": per_unit,
            "out": out,
            "domain": domain,
            "format": format,
            "options": parse_options(option or []),
            "on_error": on_error,
            "tokens_per_batch": tokens_per_batch,
        },
    )
    summary = score_files(config, sys.stdout)
    print(summary.sentence(), file=sys.stderr)
