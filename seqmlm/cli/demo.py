"""`seqmlm demo`: the first three minutes, by the very commands that a person would type."""

from __future__ import annotations

import json
import os
import random
import sys
import webbrowser
from pathlib import Path
from shutil import rmtree
from typing import Annotated, Any

import typer

from seqmlm.cli.output import escape, print_table, say, tell
from seqmlm.errors import StateError

ODD = 5
"""Sequences whose letters are shuffled, beside twenty that are as those of the training."""

_NEXT = """\
A p-value is the share of normal proteins, set aside by the training, that are at least as unusual; --fpr 0.05
lets one normal protein in twenty raise an alarm. A minute of training is little: some shuffled ones pass.
What to try next:

  export SEQMLM_HOME={home}
  seqmlm ui                                     the run, its curves and its model in MLflow
  seqmlm score demo YOUR.fasta --fpr 0.05       your own proteins, judged by this model
  seqmlm train --domain protein YOUR.fasta --max-time 10m --name mine      a model of your own"""


def demo(
    context: typer.Context,
    out: Annotated[
        Path, typer.Option(help="Workspace of the demo: a new folder, or that of an earlier demo.")
    ] = Path("seqmlm-demo"),
    max_time: Annotated[str, typer.Option(help="Time of the training.")] = "60s",
    show: Annotated[bool, typer.Option("--show/--no-show", help="Open the report in a browser.")] = True,
) -> None:
    """Train on built-in proteins, score new ones, and open the report; under three minutes.

    Example: seqmlm demo
    """
    home = _workspace(out)
    tell("A tiny protein model of the built-in sample (three protein families), about a minute:")
    train = ("train", "--domain", "protein", "--name", "demo", "--size", "tiny", "--max-time", max_time)
    _run(context, *train)
    tell("\nThe registered model:")
    _run(context, "models", "list")
    tell(f"\nWhich proteins are odd? Twenty new ones, and {ODD} of them with their residues shuffled:")
    _run(context, "sample", "--domain", "protein", "--out", home / "sample", "--n", 20, "--seed", 7)
    new, rows, report = (home / name for name in ("new.fasta", "scores.jsonl", "report.html"))
    _shuffle(next((home / "sample").glob("*.fasta")), new)
    _run(context, "score", "demo", new, "--fpr", 0.05, "--report", report, "--out", rows)
    _show(rows)
    say(f"\n{_NEXT.format(home=home)}\n\nWhere each protein is odd: {report}")
    if show and sys.stdout.isatty():
        webbrowser.open(report.as_uri())


def _workspace(out: Path) -> Path:
    """The folder, made or emptied, as the workspace; StateError where something else is there."""
    home = out.expanduser().resolve()
    if home.exists() and any(home.iterdir()) and not (home / "seqmlm.db").exists():
        raise StateError(f"{out} exists and is no demo of ours: name another folder with --out")
    rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    os.environ["SEQMLM_HOME"] = str(home)
    return home


def _run(context: typer.Context, *words: object) -> None:
    """Run a command line in this process, and end as it does where it fails."""
    given = [str(word) for word in words]
    tell(f"\n$ seqmlm {' '.join(given)}")
    code: Any = context.find_root().command.main(given, prog_name="seqmlm", standalone_mode=False)
    if code:
        raise typer.Exit(code)


def _shuffle(sample: Path, out: Path) -> None:
    """The sequences of a sample, and behind them the first ones with their letters shuffled."""
    records = [text.split("\n", 1) for text in sample.read_text().split(">")[1:]]
    known = [(name.split()[0], sequence.replace("\n", "")) for name, sequence in records]
    draw = random.Random(0)
    odd = [(f"shuffled-{name}", "".join(draw.sample(text, len(text)))) for name, text in known[:ODD]]
    out.write_text("".join(f">{name}\n{text}\n" for name, text in [*known, *odd]))


def _show(rows: Path) -> None:
    """The ten most unusual rows."""
    found = sorted(map(json.loads, rows.read_text().splitlines()), key=lambda row: row["p_value"])
    cells = []
    for one in found[:10]:
        p = one["p_value"]
        judged = [f"{p:.2g}" if p >= 0.001 else "below 0.001", "ALARM" * one["alarm"]]
        cells.append([escape(one["id"]), f"{one['bits_per_unit']:.2f}", *judged])
    print_table(["protein", "bits per residue", "p-value", ""], cells)
    say(f"... and {len(found) - 10} more usual ones")
