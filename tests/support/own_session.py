"""Scripts that fork and kill, run by a test in a session of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def printed(folder: Path, script: Path, *words: object, environment: Mapping[str, str] | None = None) -> str:
    """What a script prints; it must end with 0, and nothing it has started outlives it.

    Into files and not into pipes: a process whose parent was killed may hold a pipe open for ever.

    Args:
        folder: for the files.
        script: run by this Python.
        words: its arguments.
        environment: variables besides those of this process.
    """
    told, errors = folder / "told", folder / "errors"
    with told.open("w") as out, errors.open("w") as err:
        process = subprocess.Popen(
            [sys.executable, *map(str, (script, *words))],
            env={**os.environ, **(environment or {})},
            stdout=out,
            stderr=err,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert code == 0, errors.read_text()[-4000:]
    return told.read_text()
