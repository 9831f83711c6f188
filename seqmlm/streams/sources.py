"""Input that others still write to: standard input as it comes, and reading ahead in a thread."""

from __future__ import annotations

import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_MOMENT = 0.05  # seconds between two looks at whether something else has happened


class LiveInput:
    """Standard input that others still write to: what has come is handed on before more comes.

    The readers of `seqmlm.data` take it as `Source("-", live)`.

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


@dataclass(frozen=True)
class _End:
    """The last thing in the queue: how reading ended."""

    error: BaseException | None


class ReadAhead(Generic[T]):
    """Takes items from an iterator in a thread of its own, at most `capacity` ahead; none is dropped.

    Args:
        items: iterated in the thread alone.
        capacity: items that wait at most; then the iterator waits, and so does whoever writes to its pipe.
    """

    def __init__(self, items: Iterator[T], *, capacity: int) -> None:
        self._items = items
        self._waiting: queue.Queue[T | _End] = queue.Queue(capacity)
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._read, name="read-ahead", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._items:
                if not self._put(item):
                    return
        except BaseException as raised:
            error = raised
        self._put(_End(error))

    def _put(self, item: T | _End) -> bool:
        while not self._given_up.is_set():
            with suppress(queue.Full):
                self._waiting.put(item, timeout=_MOMENT)
                return True
        return False

    def batches(self, most: int, *, meanwhile: Callable[[], None] = lambda: None) -> Iterator[list[T]]:
        """What has come since the last batch, as soon as there is anything; more at a time under load.

        Args:
            most: items of a batch.
            meanwhile: called again and again, also while nothing comes.

        Raises:
            whatever the iterator raised, after the items before it.
        """
        while True:
            meanwhile()
            try:
                batch = [self._waiting.get(timeout=_MOMENT)]
            except queue.Empty:
                continue
            with suppress(queue.Empty):
                while len(batch) < most and not isinstance(batch[-1], _End):
                    batch.append(self._waiting.get_nowait())
            if items := [item for item in batch if not isinstance(item, _End)]:
                yield items
            if isinstance(end := batch[-1], _End):
                if end.error is not None:
                    raise end.error
                return

    def close(self) -> None:
        """Stop reading; what waits is forgotten. An iterator that waits for its own input is left behind."""
        self._given_up.set()
        self._thread.join(timeout=1.0)
