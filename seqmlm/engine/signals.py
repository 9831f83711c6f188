"""Stop signals: SIGTERM and SIGINT stop training after the current step; a second signal stops it at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(BaseException):
    """A signal arrived inside `StopSignals.breaking`; not an `Exception`, so that no handler catches it."""


class StopSignals:
    """Context in which the first SIGTERM or SIGINT only sets `received`.

    The second signal raises KeyboardInterrupt (SIGINT) or SystemExit(143) at once. It also restores the
    default handlers of the system, so that a third signal kills even a process that hangs in native code.
    Python cannot set handlers outside the main thread; the context then does nothing.

    Args:
        patience: time in seconds after the first signal in which repetitions are ignored. A launcher such as
            torchrun passes on a Ctrl-C that the terminal has already sent to the whole process group.
    """

    def __init__(self, patience: float = 0.0) -> None:
        self.received: int | None = None
        self._patience, self._since = patience, 0.0
        self._breaks = False
        self._previous: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            # None: a handler that was not set from Python and cannot be restored
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous = {}

    @contextmanager
    def breaking(self) -> Iterator[None]:
        """Context for interruptible work: the first signal ends it between two operations of a forward pass.

        Do not write anything inside that must be complete.

        Raises:
            Stopped: a signal arrived, now or before.
        """
        self._breaks = True
        try:
            if self.received is not None:
                raise Stopped
            yield
        finally:
            self._breaks = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._since = number, time.monotonic()
            if self._breaks:
                raise Stopped
        elif time.monotonic() - self._since >= self._patience:
            for stop_signal in _SIGNALS:
                signal.signal(stop_signal, signal.SIG_DFL)
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + number)


def ignore_in_worker(worker: int) -> None:
    """Ignore stop signals in a loader worker: the parent process handles them.

    Otherwise a Ctrl-C would kill the workers first, and the current step would have no data. The workers
    still end with the parent, which closes their queues; they also watch for its death.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
