"""The command line in processes forked from a warm parent: a start of Python with torch costs seconds.

The parent imports everything and computes nothing: no pool of threads may exist at a fork.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ended:
    """How a process ended: exit code, or minus the signal; what it printed; its peak of memory in bytes."""

    code: int
    out: str
    err: str
    memory: int


@dataclass(frozen=True)
class Started:
    """A process under way, the leader of a group of its own; `streams` has its `stdout` and `stderr`."""

    process: int
    streams: Path

    def kill(self) -> None:
        """kill -9, for it and what it has started."""
        os.killpg(self.process, signal.SIGKILL)

    def wait(self) -> Ended:
        """Wait for its end; whatever it has left behind is killed."""
        _, status, usage = os.wait4(self.process, 0)
        with contextlib.suppress(ProcessLookupError):
            self.kill()
        files = (self.streams / name for name in ("stdout", "stderr"))  # none of what was killed at once
        out, err = (
            file.read_text(encoding="utf-8", errors="surrogateescape") if file.exists() else ""
            for file in files
        )
        return Ended(os.waitstatus_to_exitcode(status), out, err, usage.ru_maxrss * 1024)


def start(work: Callable[[], None], streams: Path, *, seconds: int = 0) -> Started:
    """Run `work` in a child.

    Args:
        work: raises SystemExit with its exit code, or returns.
        streams: a folder for what it prints; its standard input is empty.
        seconds: after which SIGALRM ends it; 0 for never.
    """
    streams.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child == 0:
        code = 97
        gc.freeze()  # a collection would copy the parent's memory
        try:
            os.setpgid(0, 0)
            os.fsync = lambda descriptor: None  # kills are tested, power cuts are not
            signal.alarm(seconds)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number, name in ((1, "stdout"), (2, "stderr")):
                os.dup2(os.open(streams / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            try:
                work()
                code = 0
            except SystemExit as stop:
                code = int(stop.code or 0)
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    with contextlib.suppress(PermissionError, ProcessLookupError):  # whoever is first
        os.setpgid(child, child)
    return Started(child, streams)


def command(*words: object) -> Callable[[], None]:
    """A command line, as `start` takes it."""

    def run() -> None:
        from seqmlm.cli import main

        main([str(word) for word in words])

    return run


def vanishing(work: Callable[[], None], path: Path, after: int) -> Callable[[], None]:
    """The same work, for `start`: a file is deleted when Python is about to open it, after so many times."""

    def run() -> None:
        left = after

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event == "open" and str(arguments[0]) == str(path):
                if left == 0:
                    path.unlink(missing_ok=True)
                left -= 1

        sys.addaudithook(watch)
        work()

    return run


def run(*words: object, streams: Path, seconds: int = 0) -> Ended:
    """Run a command line to its end."""
    return start(command(*words), streams, seconds=seconds).wait()


def import_what(work: Callable[[], None], streams: Path) -> Ended:
    """Run `work` in a child to its end, and import here what it imported there."""

    def listed() -> None:
        try:
            work()
        finally:
            (streams / "modules.json").write_text(json.dumps(sorted(sys.modules)))

    done = start(listed, streams).wait()
    if done.code:
        raise RuntimeError(done.err)
    import_known(streams / "modules.json")
    no_threads()
    return done


def import_known(file: Path) -> None:
    """Import the modules that a file names; nothing where there is no such file."""
    for name in json.loads(file.read_text()) if file.exists() else ():
        if name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def build_once(put: Callable[[object, str, object], None] = setattr) -> None:
    """Have Typer make the parsers of commands here, and not again in every child or test."""
    import typer

    from seqmlm import cli

    make = typer.main.get_command
    made = make(cli.app)
    put(typer.main, "get_command", lambda one: made if one is cli.app else make(one))
    for name in ("command", "first_line"):
        put(cli, name, functools.cache(getattr(cli, name)))


def no_threads() -> None:
    """Refuse a fork that could leave a lock held for ever.

    Raises:
        RuntimeError: there are threads besides this one and that of an allocator, which knows of forks.
    """
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    if len([name for name in threads if name != "jemalloc_bg_thd"]) != 1:
        raise RuntimeError(f"threads before a fork: {threads}")
