"""Input that others still write to: readers that are given it piece by piece, and a pipe as it comes."""

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

_MOMENT = 0.05  # seconds between two looks at whether something else has happened
_MOST = 1 << 18  # bytes that are read before what came of them is dealt with


class Fed(Generic[T]):
    """A reader that is given its input piece by piece, and gives back the records it makes of each.

    Readers ask for bytes; here one runs in a thread of its own, which waits whenever it asks: at any time
    either the reader runs or whoever feeds it.

    Args:
        path: what the reader is to call its input.
        reader: begins to read it.
        memory: what the reader is to keep, if anything.

    Attributes:
        records: those that were made and not given back, where the reader has failed.
        stopped: the end was asked for, so that what came last may be torn.
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
        """Hand on some bytes, None for a pause, or b"" at the end; the records that are whole with them. What
        the reader raises is raised; then it has ended."""
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
        """The next block, for which the reader waits; None at a pause."""
        self._asks.release()
        self._given.acquire()
        if self._given_up:
            raise GeneratorExit  # which no reader handles
        return self._block

    def close(self) -> None:
        """Give the reader up; what it keeps is forgotten."""
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
    """Records that a reader makes of a pipe that others still write to, as soon as there are any.

    What the pipe holds is handed on before more comes. When it has held nothing for a moment, and the last
    pause is at least `tick` seconds ago, the reader is told of a pause, upon which it hands on what it keeps;
    under load, when there is always more to read, only after twice that.

    Args:
        tick: seconds, above 0.
        stopping: asked again and again, also while nothing comes; once it is true, that is the end.
        descriptor: of the pipe; that of standard input if None.

    Raises:
        SeqmlmError: as the reader does, after the records before it.
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
    """Blocks of bytes that a pipe holds, as they come, and None at a pause."""
    paused = time.monotonic()
    while not stopping():
        late = time.monotonic() - paused
        ready = select.select([pipe], [], [], min(_MOMENT, max(0.0, tick - late)))[0]
        late = time.monotonic() - paused
        if ready:  # also where a pause is due: what came while records were dealt with stays together
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
