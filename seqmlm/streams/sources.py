"""Live input: readers that receive their input piece by piece, and pipes that are still being written."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from seqmlm.data.files import Memory, Source
from seqmlm.errors import SeqmlmError

T = TypeVar("T")

_MOMENT = 0.05  # longest time in seconds between two checks of `stopping`
_MOST = 1 << 18  # bytes that are read before their records are processed


class Fed(Generic[T]):
    """A reader that receives its input piece by piece, and returns the records of each piece.

    Readers pull bytes. Here the reader runs in its own thread, which waits whenever it requests bytes. At any
    time either the reader or the caller of `feed` runs, never both.

    Args:
        path: the name of the input for the reader.
        reader: a function that reads a source and yields records.
        memory: the state that the reader keeps between runs, if any.

    Attributes:
        records: after a failure of the reader, the records that `feed` has not returned.
        stopped: whether the end was requested, so that the last record may be incomplete.
    """

    stopped = _given_up = _over = False
    _block: bytes | None = b""
    _error: BaseException | None = None

    def __init__(
        self, path: str, reader: Callable[[Source], Iterator[T]], memory: Memory | None = None
    ) -> None:
        self.memory, self.records = memory, list[T]()
        self._asks, self._given = threading.Semaphore(0), threading.Semaphore(0)
        arguments = reader, Source(path, self)
        self._thread = threading.Thread(target=self._run, args=arguments, name="fed-reader", daemon=True)

    def feed(self, block: bytes | None) -> list[T]:
        """Pass a block of bytes to the reader, and return the records that are now complete.

        Args:
            block: bytes, None for a pause, or b"" at the end of the input.

        Raises:
            BaseException: any exception of the reader. The reader has then ended.
        """
        if self._thread.ident is None:
            self._thread.start()
            self._asks.acquire()
        if not self._over:
            self._block = block
            self._given.release()
            self._asks.acquire()
        if self._error is not None:
            raise self._error
        records, self.records = self.records, []
        return records

    def read(self, size: int) -> bytes | None:
        """Wait for the next block and return it; None at a pause. The reader calls this."""
        self._asks.release()
        self._given.acquire()
        if self._given_up:
            raise GeneratorExit  # no reader catches this exception
        return self._block

    def close(self) -> None:
        """Stop the reader. Its incomplete records are dropped."""
        if self._thread.ident is not None and not self._given_up:
            self._given_up = True
            self._given.release()
            self._thread.join()

    def _run(self, reader: Callable[[Source], Iterator[T]], source: Source) -> None:
        try:
            for record in reader(source):
                self.records.append(record)
        except GeneratorExit:
            pass
        except BaseException as error:
            self._error = error
        self._over = True
        self._asks.release()


def live(
    reader: Callable[[Source], Iterator[T]],
    tick: float,
    stopping: Callable[[], bool],
    descriptor: int | None = None,
) -> Iterator[list[T]]:
    """Yield the records of a pipe that is still being written, as soon as they are complete.

    All bytes in the pipe are passed to the reader at once. If the pipe is empty and the last pause was at
    least `tick` seconds ago, the reader gets a pause. It then returns the records that it holds back. If the
    pipe is never empty, the reader gets a pause after twice that time.

    Args:
        reader: a function that reads a source and yields records.
        tick: time between pauses in seconds, above 0.
        stopping: called repeatedly, even without input. If it returns True, the input ends.
        descriptor: file descriptor of the pipe; None for standard input.

    Yields:
        Lists of records.

    Raises:
        SeqmlmError: an error of the reader, after the records before it.
    """
    fed = Fed("-", reader)
    try:
        for piece in _pieces(sys.stdin.fileno() if descriptor is None else descriptor, tick, stopping):
            if records := fed.feed(piece):
                yield records
        fed.stopped = stopping()
        if records := fed.feed(b""):
            yield records
    except SeqmlmError:
        if fed.records:
            yield fed.records
        raise
    finally:
        fed.close()


def _pieces(pipe: int, tick: float, stopping: Callable[[], bool]) -> Iterator[bytes | None]:
    """Yield the bytes that arrive in a pipe, in blocks, and None at a pause."""
    paused = time.monotonic()
    while not stopping():
        late = time.monotonic() - paused
        ready = select.select([pipe], [], [], min(_MOMENT, max(0.0, tick - late)))[0]
        late = time.monotonic() - paused
        if ready:  # even if a pause is due: bytes that arrived during processing are kept together
            block = piece = os.read(pipe, _MOST)
            while block and len(piece) < _MOST and select.select([pipe], [], [], 0)[0]:
                block = os.read(pipe, _MOST)
                piece += block
            if piece:
                yield piece
            if not block:
                return
        if late >= 2 * tick or (not ready and late >= tick):
            paused = time.monotonic()
            yield None
