"""`seqmlm demo`: run the commands that a new user would type, in three minutes."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqmlm.cli.output import escape, print_table, say, tell

if TYPE_CHECKING:
    from seqmlm.management.demo_folder import DemoFolder

ODD = 5
"""Number of sequences with shuffled letters, in addition to twenty sequences like the training data."""

SHUFFLED = "shuffled-"
"""The prefix of their ids."""

MADE = (
    *("new.fasta", "scores.jsonl", "report.html", "sample/protein.fasta", "sample/truth.json"),
    "mlartifacts/seqmlm-protein/*",
)
"""Patterns of the files that the commands of a demo write, in addition to its databases and runs."""

_NEXT = """\
A p-value is the fraction of held-out normal proteins that are at least as unusual. With --fpr 0.05, one
normal protein in twenty raises an alarm. {alarms}
What to try next:

  show the run, its curves and its model in MLflow:
    SEQMLM_HOME={home} {seqmlm} ui
  score your own proteins with this model:
    {seqmlm} score {model} YOUR.fasta --fpr 0.05
  train your own model in your own workspace (the next demo deletes the files of this one):
    SEQMLM_HOME=$HOME/seqmlm {seqmlm} train --domain protein YOUR.fasta --max-time 10m --name mine"""

_SHARED = ("SEQMLM_DATABASE_URL", "MLFLOW_TRACKING_URI")
"""Variables that name databases which other people may share. The demo ignores them."""


def demo(
    context: typer.Context,
    out: Annotated[
        Path, typer.Option(help="Workspace of the demo: a new folder, or the folder of an earlier demo.")
    ] = Path("seqmlm-demo"),
    max_time: Annotated[str, typer.Option(help="Training time.")] = "60s",
    show: Annotated[bool, typer.Option("--show/--no-show", help="Open the report in a browser.")] = True,
    remove: Annotated[
        bool, typer.Option("--remove", help="Delete the files of an earlier demo and stop.")
    ] = False,
) -> None:
    """Train on built-in proteins, score new ones, and open the report, in less than three minutes.

    The file seqmlm-demo.json in the folder lists the files of the demo. The next demo deletes only these
    files.

    Example: seqmlm demo
    """
    from seqmlm.management.demo_folder import DemoFolder
    from seqmlm.tasks.deadline import seconds

    folder = DemoFolder(out)
    if remove:
        folder.remove()
        return
    seconds(max_time)
    folder.clear(("new.fasta", "seqmlm.db", "mlflow.db"))
    folder.begin(MADE)
    with _workspace(folder.home), _listing(folder):
        report = _steps(context, folder, max_time)
    if show and sys.stdout.isatty():
        webbrowser.open(report.as_uri())


def _steps(context: typer.Context, folder: DemoFolder, max_time: str) -> Path:
    """Train, score, and print the next steps; return the path of the report."""
    home = folder.home
    tell(f"The commands run in a workspace of their own:\n\n$ export SEQMLM_HOME={shlex.quote(str(home))}\n")
    tell("Train a tiny model on the built-in sample (three protein families), about a minute:")
    train = ("train", "--domain", "protein", "--name", "demo", "--size", "tiny", "--max-time", max_time)
    _run(context, *train)
    tell("\nThe registered model:")
    _run(context, "models", "list")
    tell(f"\nWhich proteins are unusual? Score twenty new ones, and {ODD} of them with shuffled residues:")
    _run(context, "sample", "--domain", "protein", "--out", home / "sample", "--n", 20, "--seed", 7)
    new_proteins, rows, report = (home / name for name in ("new.fasta", "scores.jsonl", "report.html"))
    _shuffle(home / "sample" / "protein.fasta", new_proteins)
    _run(context, "score", "demo", new_proteins, "--fpr", 0.05, "--report", report, "--out", rows)
    alarms = _show(rows)
    texts = {"home": home, "model": home / "runs" / "demo" / "model"}
    quoted = {name: shlex.quote(str(path)) for name, path in texts.items()}
    say(f"\n{_NEXT.format(**quoted, alarms=alarms, seqmlm=program())}\n\nReport with all proteins: {report}")
    return report


def program() -> str:
    """The words that start this program in a shell, even if it is not on the PATH."""
    started = Path(sys.argv[0])
    # The program was started by python -m, or inside another program.
    if started.name == "__main__.py" or not os.access(started, os.X_OK):
        return f"{shlex.quote(sys.executable)} -m seqmlm"
    if (on_path := shutil.which(started.name)) and Path(on_path).resolve() == started.resolve():
        return started.name
    return shlex.quote(str(started.absolute()))


@contextmanager
def _workspace(home: Path) -> Iterator[None]:
    """Use the folder as workspace, with its own databases, until the demo ends."""
    saved_environment = {name: os.environ[name] for name in ("SEQMLM_HOME", *_SHARED) if name in os.environ}
    if ignored_variables := [name for name in _SHARED if name in saved_environment]:
        tell(f"the demo uses its own databases in {home}, and ignores {' and '.join(ignored_variables)}")
    for name in saved_environment:
        del os.environ[name]
    os.environ["SEQMLM_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SEQMLM_HOME"]
        os.environ.update(saved_environment)


@contextmanager
def _listing(folder: DemoFolder) -> Iterator[None]:
    """Write the list of the demo's files when the context ends, even after an error."""
    try:
        yield
    finally:
        folder.list_files()


def _run(context: typer.Context, *words: object) -> None:
    """Run a command line in this process. If it fails, exit with its exit code."""
    arguments = [str(word) for word in words]
    tell(f"\n$ {program()} {shlex.join(arguments)}")
    code: Any = context.find_root().command.main(arguments, prog_name="seqmlm", standalone_mode=False)
    if code:
        raise typer.Exit(code)


def _shuffle(sample: Path, out: Path) -> None:
    """Write the sequences of a sample, followed by the first `ODD` of them with shuffled letters."""
    records = [text.split("\n", 1) for text in sample.read_text().split(">")[1:]]
    proteins = [(name.split()[0], sequence.replace("\n", "")) for name, sequence in records]
    draw = random.Random(0)
    odd = [(SHUFFLED + name, "".join(draw.sample(text, len(text)))) for name, text in proteins[:ODD]]
    out.write_text("".join(f">{name}\n{text}\n" for name, text in [*proteins, *odd]))


def _show(rows: Path) -> str:
    """Print the ten most unusual rows; return a sentence with the numbers of alarms."""
    judged_rows = [
        row for row in map(json.loads, rows.read_text().splitlines()) if row["p_value"] is not None
    ]
    ranked_rows = sorted(judged_rows, key=lambda row: row["p_value"])
    cells = []
    for ranked in ranked_rows[:10]:
        p = ranked["p_value"]
        judged = [f"{p:.2g}" if p >= 0.001 else "below 0.001", "ALARM" * ranked["alarm"]]
        cells.append([escape(ranked["id"]), f"{ranked['bits_per_unit']:.2f}", *judged])
    print_table(["protein", "bits per residue", "p-value", ""], cells)
    say(f"... and {len(ranked_rows) - 10} less unusual ones")
    alarms = [row["id"].startswith(SHUFFLED) for row in judged_rows if row["alarm"]]
    shuffled, unshuffled = sum(alarms), len(alarms) - sum(alarms)
    verb = "raises" if (shuffled, unshuffled) == (0, 1) else "raise"
    return f"{shuffled} of {ODD} shuffled proteins and {unshuffled} of the others {verb} an alarm."
