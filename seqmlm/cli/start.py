"""The start time of the command, including the start of its process."""

from __future__ import annotations

import time

_is_own: list[bool] = []


def own_process() -> None:
    """Record that this process was started only for the command."""
    _is_own.append(True)


def began() -> float:
    """The value of `time.monotonic` when the command began; now, if the process also does other work."""
    now = time.monotonic()
    if not _is_own:
        return now
    import psutil

    return now - max(0.0, time.time() - psutil.Process().create_time())
