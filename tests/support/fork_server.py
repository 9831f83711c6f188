"""Commands and scripts in processes of their own, forked from a warm one: torch takes seconds to import.

The test's side is `ForkServer`. The other side runs this file: it imports what commands need, and after each
command what that one imported besides; it computes nothing, for no pool of threads may exist at a fork. One
process at a time.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import runpy
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from forked_cli import command, import_known, no_threads, start

KILLED_SECONDS = 60
# Libraries read these when they are imported.
AT_IMPORT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
WARM = ("seqmlm.cli", "seqmlm.scoring.score", "transformers.models.modernbert.modeling_modernbert")


@dataclass(frozen=True)
class Finished:
    """How a command ended: exit code or minus the signal, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The object a command printed with --json."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[Any]:
        """The objects it printed, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    def ok(self) -> Finished:
        """Itself, where the command ended well."""
        assert self.code == 0, self.err
        return self

    def refused(self, code: int, *words: str) -> Finished:
        """Itself, where the command ended with this code and a message that has each of these words."""
        assert self.code == code, self.err
        assert not [one for one in words if one not in self.err], self.err
        assert "Traceback" not in self.err
        return self


Run = Callable[..., Finished]  # a command line, its words as they come


class Running:
    """A process under way, the leader of a group of its own.

    Args:
        server: where its end is told.
        pid: of the process.
        streams: a folder with `stdout` and `stderr`, which are files.
        stdin: the other end of its standard input, where that is a pipe.
    """

    def __init__(self, server: ForkServer, pid: int, streams: Path, stdin: IO[str] | None) -> None:
        self._server, self.pid, self._streams, self.stdin = server, pid, streams, stdin
        self._code: int | None = None

    def poll(self, seconds: float | None = 0.0) -> int | None:
        """Its exit code, or minus the signal that ended it; None after so many seconds without."""
        if self._code is None and select.select([self._server.told], [], [], seconds)[0]:
            self._code = int(self._server.told.readline())
        return self._code

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> int:
        """kill -9, and its exit code: that it was killed, or what it ended with before."""
        self.signal(signal.SIGKILL)
        code = self.poll(KILLED_SECONDS)
        assert code is not None
        return code

    def wait(self, seconds: float | None) -> Finished:
        """Its end.

        Raises:
            TimeoutError: it went on for so many seconds, and was killed.
        """
        if self.stdin is not None:
            self.stdin.close()
        code = self.poll(seconds)
        if code is None:
            self.kill()
            raise TimeoutError(f"killed after {seconds} seconds: {self.text('stderr')[-2000:]}")
        return Finished(code, self.text("stdout"), self.text("stderr"))

    def text(self, stream: str) -> str:
        """What it has printed so far."""
        return (self._streams / stream).read_text(encoding="utf-8", errors="surrogateescape")

    def line(self, number: int, seconds: float) -> str:
        """The n-th line of its standard output, waited for."""
        until = time.monotonic() + seconds
        while len(lines := self.text("stdout").split("\n")) <= number + 1:
            assert time.monotonic() < until, f"no line {number}: {self.text('stderr')[-2000:]}"
            time.sleep(0.005)
        return lines[number]


class ForkServer:
    """The warm process, as a context.

    Args:
        folder: for the streams of the processes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._running: Running | None = None

    def __enter__(self) -> Self:
        support = Path(__file__).parent
        plugin = support.parents[1] / "examples" / "dnabert"  # its entry points are in `support`
        path = os.pathsep.join([str(support), str(plugin), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, **AT_IMPORT, "HF_HOME": str(self._folder / "hf"), "PYTHONPATH": path},
        )
        assert self._process.stdout is not None
        self.told = self._process.stdout
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running is not None:
            self._running.kill()
        with self._process as server:  # its pipe is not read to the end: an orphan may hold it open
            server.kill()

    def start(
        self,
        *words: object,
        script: Path | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: str | None = "",
        most_bytes: int = 0,
    ) -> Running:
        """Begin a command line; what is left of the one before is killed.

        Args:
            words: its arguments.
            script: a file of Python to run with them instead of `seqmlm`.
            environment: variables besides those of this process.
            stdin: its standard input; None for a pipe, `Running.stdin`.
            most_bytes: of a file that it writes; 0 for as many as there is room for.
        """
        if self._running is not None:
            self._running.kill()
        self._count += 1
        streams = self._folder / str(self._count)
        streams.mkdir()
        given = streams / "stdin"
        if stdin is None:
            os.mkfifo(given)
        else:
            given.write_text(stdin)
        asked = {
            "words": [str(word) for word in words],
            "script": str(script or ""),
            "environment": {**os.environ, **(environment or {})},
            "folder": os.getcwd(),
            "streams": str(streams),
            "most_bytes": most_bytes,
        }
        self._process.stdin.write(json.dumps(asked) + "\n")
        pid = int(self.told.readline())
        self._running = Running(self, pid, streams, given.open("w") if stdin is None else None)
        return self._running

    def run(self, *words: object, seconds: float | None = 300, **settings: Any) -> Finished:
        """Run a command line to its end."""
        return self.start(*words, **settings).wait(seconds)


def _work(asked: Mapping[str, Any]) -> Callable[[], None]:
    """What is asked for, as `forked_cli.start` takes it."""

    def work() -> None:
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        os.dup2(os.open(f"{asked['streams']}/stdin", os.O_RDONLY), 0)
        if asked["most_bytes"]:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (asked["most_bytes"],) * 2)
        try:
            if asked["script"]:
                sys.argv[:] = [asked["script"], *asked["words"]]
                sys.path.insert(0, str(Path(asked["script"]).parent))
                runpy.run_path(asked["script"], run_name="__main__")
            else:
                command(*asked["words"])()
        finally:
            with suppress(OSError):
                Path(asked["streams"], "modules.json").write_text(json.dumps(sorted(sys.modules)))

    return work


def main() -> None:
    """Serve until nobody asks any more."""
    orders, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name in WARM:
        importlib.import_module(name)
    while line := orders.readline():
        asked = json.loads(line)
        no_threads()
        begun = start(_work(asked), Path(asked["streams"]))
        answers.write(f"{begun.process}\n")
        answers.write(f"{begun.wait().code}\n")
        import_known(Path(asked["streams"], "modules.json"))


if __name__ == "__main__":
    main()
