"""When the command began: with its process, where the process is the command's own."""

from __future__ import annotations

import time

_is_own: list[bool] = []


def own_process() -> None:
    """Say that this process was started for the command."""
    _is_own.append(True)


def began() -> float:
    """The reading of `time.monotonic` at which the command began: now, where the process does other work."""
    now = time.monotonic()
    if not _is_own:
        return now
    import psutil

    return now - max(0.0, time.time() - psutil.Process().create_time())
