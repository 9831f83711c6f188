"""The command line: each command parses its arguments, calls one task and prints the result.

stdout is data, stderr is progress. Exit codes: 0 done, 1 other errors, 2 usage, 3 data, 4 state, 5 training;
130 and 143 when stopped by Ctrl-C or SIGTERM (after saving).
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from seqmlm import __version__
from seqmlm.cli import calibrate, data, evaluate, models, pairs, rescore, runs, score, train, workspace
from seqmlm.errors import DataError, SeqmlmError

# Commands that can skip bad records.
_TAKES_ON_ERROR = {"train", "score", "calibrate", "data"}

app = typer.Typer(
    name="seqmlm",
    no_args_is_help=True,
    help="Masked language models for any kind of sequence. To begin: seqmlm train --domain protein",
)
app.command("train")(train.train)
app.command("score")(score.score)
app.command("calibrate")(calibrate.calibrate)
app.command("evaluate")(evaluate.evaluate)
app.command("pairs")(pairs.pairs)
app.command("rescore")(rescore.rescore)
app.command("sample")(data.sample)
app.add_typer(data.app, name="data")
app.add_typer(runs.app, name="runs")
app.add_typer(models.app, name="models")
app.add_typer(workspace.db, name="db")
app.command("ui")(workspace.ui)
app.command("doctor")(workspace.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"seqmlm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if debug:
        os.environ["SEQMLM_DEBUG"] = "1"


def main(arguments: Sequence[str] | None = None) -> Any:
    """Run the command line; a `SeqmlmError` becomes one line on stderr and an exit code."""
    # OpenMP threads that spin while waiting slow each other down many times over on a shared machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        return app(list(arguments) if arguments is not None else None)
    except SeqmlmError as error:
        if os.environ.get("SEQMLM_DEBUG"):
            raise
        print(f"error: {error}", file=sys.stderr)
        given = sys.argv[1:] if arguments is None else arguments
        command = next((word for word in given if not word.startswith("-")), "")
        if isinstance(error, DataError) and error.skippable and command in _TAKES_ON_ERROR:
            print(
                "hint: --on-error skip ignores bad records, --on-error quarantine also saves them to a file",
                file=sys.stderr,
            )
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # Whoever read our output (head, less) has closed the pipe: not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        if error.errno != errno.ENOSPC or os.environ.get("SEQMLM_DEBUG"):
            raise
        print("error: the disk is full: free space and run the command again", file=sys.stderr)
        sys.exit(4)
