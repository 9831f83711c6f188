"""`seqmlm generate`: new sequences from a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqmlm.cli import options as opt
from seqmlm.cli.output import tell
from seqmlm.errors import number_of


def generate(
    model: opt.Model,
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="Files of sequences with gaps.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="A sequence with gaps, as `seqmlm fill` takes it; the rest stays.")
    ] = None,
    length: Annotated[
        str | None, typer.Option(help="Units of sequences that are all gaps: 100, or drawn from 80-120.")
    ] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Sequences, of each template.")] = 1,
    seed: opt.Seed = 0,
    temperature: Annotated[
        float,
        typer.Option(
            min=0, help="Of the draws: 1 for what the model says, less for what is probable, 0 for the best."
        ),
    ] = 1.0,
    method: Annotated[
        str,
        typer.Option(
            help="How to fill gaps: mask-predict (all at once, the least sure again) or gibbs (one by one)."
        ),
    ] = "mask-predict",
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of mask-predict, or sweeps of Gibbs sampling over all units.")
    ] = 10,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of stdout.")] = None,
    domain: opt.ModelDomain = None,
    format: opt.Format = None,
    option: opt.Option = None,
    tokens_per_batch: opt.TokensPerBatch = None,
    precision: opt.Precision = "fp32",
    json_output: Annotated[
        bool, typer.Option("--json", help="JSON lines with `id`, `text` and what was `filled` in.")
    ] = False,
) -> None:
    """Generate sequences: gaps are filled with what is drawn from the model, in several rounds.

    They are written as the field has them: lines of text, FASTA, sessions of a log, a table of events. Equal
    seeds give equal sequences. What is generated is what the model finds probable, and may repeat its
    training data; sequences of a model of sensitive data go to a file that only you can read.

    Example: seqmlm generate enzymes --length 80-120 --n 10 --seed 1 --out new.fasta

    Example: seqmlm generate english --template 'The [MASK] sat on [MASK:3].' --n 5
    """
    given = locals()
    import sys

    from seqmlm.tasks.generate import GenerateConfig
    from seqmlm.tasks.generate import generate as draw

    written = draw(
        opt.configured(GenerateConfig, given, paths=tuple(paths or ())), sys.stdout, rows=json_output
    )
    tell(f"{number_of(written, 'sequence')} generated")
