"""`seqmlm fill`: what belongs into the gaps of a sequence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqmlm.cli import options as opt
from seqmlm.cli.output import end_as_asked, say, tell
from seqmlm.errors import number_of

if TYPE_CHECKING:
    from seqmlm.tasks.fill import Filled


def fill(
    model: opt.Model,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="SEQUENCE|[PATH|-]...", help="A sequence with gaps, or files of them."),
    ] = None,
    data: opt.Data = None,
    top: Annotated[int, typer.Option(min=1, help="Candidates of each gap.")] = 5,
    rounds: Annotated[
        int,
        typer.Option(
            min=1, help="Rounds in which several gaps are filled together (mask-predict); 1: one pass."
        ),
    ] = 10,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the rows to this file instead of stdout: .jsonl, .csv or .parquet."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted --out.")] = False,
    domain: opt.ModelDomain = None,
    format: opt.Format = None,
    option: opt.Option = None,
    on_error: opt.OnError = "raise",
    tokens_per_batch: opt.TokensPerBatch = None,
    precision: opt.Precision = "fp32",
    json_output: opt.Json = False,
) -> None:
    """Fill the gaps of sequences: the most probable candidates of each, and what fits into all together.

    A gap is written [MASK] in text and source code ([MASK:3] is one of three tokens), _ in proteins and DNA;
    in logs it is a line, and in patient histories a code, that is [MASK]. A backslash in front makes it text.
    `p` is the probability of a candidate while all gaps of the sequence are hidden.

    Example: seqmlm fill english 'the dog [MASK] the cat.' --top 5

    Example: seqmlm fill enzymes MKTAYIA_QRQISFVK --json
    """
    given = locals()
    import sys

    from seqmlm.cli.output import print_json
    from seqmlm.tasks.fill import FillConfig, Filled
    from seqmlm.tasks.fill import fill as fill_gaps

    found = fill_gaps(opt.configured(FillConfig, given), sys.stdout)
    if not isinstance(found, Filled):
        tell(f"filled the gaps of {number_of(found.records, 'sequence')}")
        end_as_asked(found.stopped, found.out)
    elif json_output:
        print_json({"filled": found.whole, "masks": found.masks()})
    else:
        _show(found)


def _show(found: Filled) -> None:
    from seqmlm.cli.output import escape, print_table

    say(found.whole)
    rows = []
    for number, mask in enumerate(found.masks(), 1):
        lists = [mask["candidates"]] if "candidates" in mask else mask["tokens"]
        for place, candidates in enumerate(lists, 1):
            name = str(number) if len(lists) == 1 else f"{number}, token {place}"
            for one in candidates:
                text = f"{one['text']} {one['description']}" if "description" in one else one["text"]
                rows.append([name, escape(text), f"{one['p']:.2%}"])
    print_table(["gap", "candidate", "p"], rows)
