"""Live standard input: what others still write to is read as it comes, and pauses are told."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class LiveInput:
    """Standard input that others still write to: what has come is handed on before more comes.

    Reads are whatever the pipe holds. When it has held nothing for a moment, and something was read at least
    `tick` seconds ago, a pause is reported, upon which readers hand on what they keep; under load, when there
    is always more to read, only after twice that.

    Args:
        tick: seconds, above 0.
        descriptor: of the pipe; that of standard input if None.
    """

    def __init__(self, tick: float, descriptor: int | None = None) -> None:
        self.tick = tick
        self._input = sys.stdin.fileno() if descriptor is None else descriptor
        self._wake, self._alarm = os.pipe()
        self._paused_at = time.monotonic()
        self.stopped = False

    def read(self, size: int) -> bytes | None:
        """Up to `size` bytes; b"" at the end of the input, or when `stop` was called; None at a pause."""
        while True:
            late = time.monotonic() - self._paused_at
            ready, _, _ = select.select([self._input, self._wake], [], [], max(0.0, self.tick - late))
            if self._wake in ready:
                self.stopped = True
                return b""
            late = time.monotonic() - self._paused_at
            if late >= 2 * self.tick or (not ready and late >= self.tick):
                self._paused_at = time.monotonic()
                return None
            if ready:
                return os.read(self._input, size)

    def stop(self) -> None:
        """End the input as if nothing came any more; from any thread."""
        os.write(self._alarm, b".")

    def close(self) -> None:
        """Let go of what `stop` needs."""
        os.close(self._wake)
        os.close(self._alarm)


_live: LiveInput | None = None


@contextmanager
def live_stdin(tick: float) -> Iterator[LiveInput]:
    """While this lasts, every reader of "-" reads standard input live."""
    global _live
    _live = LiveInput(tick)
    try:
        yield _live
    finally:
        _live.close()
        _live = None


def live_input(source: str) -> LiveInput | None:
    """The live input behind a source; None for files, and where standard input is read as a file."""
    return _live if source == "-" else None
