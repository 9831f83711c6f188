"""`seqmlm ray`: run the shares of a task's command on a Ray cluster.

A share is the part of the input that `--shard I/N` selects. Each share writes its own file of rows, so that
finished work is kept. If the process of a share dies, another process continues the share. If the driver
dies, the user runs the command again. The price: every machine must see the same files, and every share reads
the whole input once to count it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from seqmlm.cli.options import Json
from seqmlm.cli.output import print_json, tell
from seqmlm.errors import StateError, UsageError, nearest, number_of

LOST = 5
"""Number of times that the process of a share may die before the command fails."""

LAST = 4000  # last characters of the messages of a failed share, which are printed
PR_SET_PDEATHSIG = 1


def ray(
    context: typer.Context,
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND", help="The command to distribute, after a bare --. Leave out its --out."
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for the shares and rows.jsonl; all machines must see it.")
    ],
    shares: Annotated[
        int,
        typer.Option(
            min=1, help="Number of shares of the input; use a few per process, so that no process is idle."
        ),
    ] = 16,
    address: Annotated[
        str | None, typer.Option(help="Address of a cluster, or auto. Default: this machine.")
    ] = None,
    cpus: Annotated[float, typer.Option(help="CPUs for each process.")] = 1.0,
    gpus: Annotated[float, typer.Option(help="GPUs for each process.")] = 0.0,
    json_output: Json = False,
) -> None:
    """Split a command into shares, run them on Ray, and merge the rows.

    Run it again to continue a stopped run. Needs the optional package Ray. The rows are
    byte-identical to the rows of the same command with --shard 0/1.

    Example: seqmlm ray --address auto --shares 64 --out parts -- score enzymes new.fasta --fpr 0.05
    """
    from seqmlm.management.merge import merge
    from seqmlm.tasks.shards import SHARE_SUFFIX

    _check(command, context.find_root().command.list_commands(context))  # type: ignore[attr-defined]
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    parts = [out / f"part-{number:05}-of-{shares}.jsonl" for number in range(shares)]
    todo = [
        number for number, part in enumerate(parts) if not part.with_name(part.name + SHARE_SUFFIX).exists()
    ]
    if len(todo) < shares:
        tell(f"{shares - len(todo)} of {number_of(shares, 'share')} are done")
    if todo:
        commands = [
            [*command, "--shard", f"{share_number}/{shares}", "--out", str(parts[share_number]), "--resume"]
            for share_number in todo
        ]
        _run(commands, address=address, cpus=cpus, gpus=gpus, done=shares - len(todo))
    items = merge(parts, rows := out / "rows.jsonl")
    if json_output:
        print_json({"shares": shares, "items": items, "out": rows})
    else:
        tell(f"{rows}: rows of {number_of(items, 'item')} from {number_of(shares, 'share')}")


def _check(command: Sequence[str], command_names: Sequence[str]) -> None:
    """Refuse unknown commands, and options that this command sets itself."""
    if command[0] not in command_names:
        raise UsageError(f"no command {command[0]!r}{nearest(command[0], command_names)}")
    reserved_options = {"--out", "--shard", "--resume", "--report"} & {
        word.partition("=")[0] for word in command
    }
    if reserved_options:
        raise UsageError(
            f"remove {', '.join(sorted(reserved_options))} from the command: each share gets its own, and "
            "rows.jsonl gets the rows of all shares"
        )


def _run(
    commands: Sequence[Sequence[str]], *, address: str | None, cpus: float, gpus: float, done: int
) -> None:
    """Run commands on Ray, and restart each command whose process dies.

    Raises:
        UsageError: Ray is not installed.
        StateError: Ray fails, or a process dies too often.
        typer.Exit: a command failed, with its exit code.
    """
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray as library
    except ImportError:
        raise UsageError("Ray is not installed: pip install 'seqmlm[ray]'") from None
    library.init(address=address, log_to_driver=False, include_dashboard=False, logging_level="warning")
    try:
        here = {name: os.environ[name] for name in os.environ if name.startswith(("SEQMLM_", "MLFLOW_"))}
        options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": LOST}
        remote = library.remote(share).options(**options, retry_exceptions=[ChildProcessError])
        waiting = [remote.remote([*words], os.getcwd(), here) for words in commands]
        while waiting:
            [first], waiting = library.wait(waiting)
            try:
                code, output = library.get(first)
            except library.exceptions.RayError as error:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
                raise StateError(
                    f"a share failed ({reason}). If its process died, it was restarted {LOST} times; check "
                    "that each machine has enough memory. Finished shares are kept: run the command again to "
                    "continue"
                ) from None
            if code:
                tell(output)
                raise typer.Exit(code)
            done += 1
            tell(f"{done} of {done + len(waiting)} shares")
    finally:
        library.shutdown()


def share(command: Sequence[str], folder: str, environment: Mapping[str, str]) -> tuple[int, str]:
    """Run one command in a child process; return its exit code and its last messages.

    Raises:
        ChildProcessError: the process was killed, for example because memory ran out.
    """
    done = subprocess.run(
        [sys.executable, "-m", "seqmlm", *command],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
        preexec_fn=_end_together,
        check=False,
    )
    if done.returncode < 0:
        raise ChildProcessError(f"killed by signal {-done.returncode}")
    return done.returncode, done.stderr[-LAST:].strip()


def _end_together() -> None:
    """Make this process die with its parent (prctl(2)), so that two processes never write the same share."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
