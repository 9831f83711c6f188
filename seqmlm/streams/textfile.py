"""Rows that are lines of text: into a file that can be cut back to what was committed, or into a stream."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TextIO

from seqmlm.streams.sinks import Mark, Row, Sink, changed, unwritable

_BUFFER = 1 << 18  # bytes that wait for the next write
_LOOKED_AT = 4096  # bytes before a mark by which a file is known again


class Rows(Protocol):
    """How rows become bytes; what a file begins with is `header`."""

    header: bytes

    def encode(self, rows: Sequence[Row]) -> bytes: ...


class TextFileSink(Sink):
    """A file of lines.

    Args:
        path: replaced when the first row or commit comes.
        rows: how rows become lines.
        private: only the owner may read it.
        mark: {"bytes", "tail"}: the length to cut the file back to, and a checksum of what stands before it.

    Raises:
        StateError: the file is not the one of the mark.
    """

    def __init__(self, path: Path, rows: Rows, *, private: bool = False, mark: Mark | None = None) -> None:
        self._path, self._rows, self._private = path, rows, private
        self._handle: int | None = None
        self._held: list[bytes] = []
        self._waiting = self._size = 0
        self._regular = False  # a device or pipe takes lines too, but nothing can be found again there
        if mark is not None:
            self._reopen(mark)

    def _reopen(self, mark: Mark) -> None:
        try:
            handle = os.open(self._path, os.O_RDWR)
        except FileNotFoundError:
            raise changed(self._path) from None
        except OSError as error:
            raise unwritable(self._path, error) from None
        size = mark["bytes"]
        self._regular = True
        if os.fstat(handle).st_size < size or _tail(handle, size) != mark["tail"]:
            os.close(handle)
            raise changed(self._path)
        os.ftruncate(handle, size)
        os.lseek(handle, size, os.SEEK_SET)
        self._handle, self._size = handle, size

    def _open(self) -> int:
        if self._handle is None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                mode = 0o600 if self._private else 0o666
                about = self._path.stat() if self._path.exists() else None
                self._regular = about is None or stat.S_ISREG(about.st_mode)
                access = os.O_RDWR if self._regular else os.O_WRONLY
                self._handle = os.open(self._path, access | os.O_CREAT | os.O_TRUNC, mode)
                if self._private and self._regular:
                    os.fchmod(self._handle, 0o600)  # also when the file was there before
            except OSError as error:
                raise unwritable(self._path, error) from None
            self._hold(self._rows.header)
        return self._handle

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._waiting += len(data)

    def write(self, rows: Sequence[Row]) -> None:
        self._open()
        self._hold(self._rows.encode(rows))
        if self._waiting >= _BUFFER:
            self.flush()

    def flush(self) -> None:
        """Hand what waits to the system; after an error the file ends with the last whole flush.

        Raises:
            StateError: the system refuses it.
        """
        handle = self._open()
        data, self._held, self._waiting = b"".join(self._held), [], 0
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(handle, rest) :]
        except OSError as error:
            if self._regular:
                with suppress(OSError):
                    os.ftruncate(handle, self._size)
            raise unwritable(self._path, error) from None
        self._size += len(data)

    def commit(self) -> Mark:
        self.flush()
        handle = self._open()
        if not self._regular:
            return {}
        try:
            os.fsync(handle)
        except OSError as error:
            raise unwritable(self._path, error) from None
        return {"bytes": self._size, "tail": _tail(handle, self._size)}

    def finish(self) -> None:
        self.commit()

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class StreamSink(Sink):
    """A stream of lines, such as standard output: every write is flushed, nothing can be taken back."""

    def __init__(self, stream: TextIO, rows: Rows) -> None:
        self._stream, self._rows = stream, rows
        self._begun = False

    def write(self, rows: Sequence[Row]) -> None:
        text = self._rows.encode(rows)
        if not self._begun:
            text, self._begun = self._rows.header + text, True
        try:
            self._stream.write(text.decode("utf-8", "surrogatepass"))
            self._stream.flush()
        except BrokenPipeError:
            raise  # the reader has gone: no error of ours
        except OSError as error:
            raise unwritable("standard output", error) from None

    def commit(self) -> Mark:
        return {}

    def finish(self) -> None:
        if not self._begun:
            self.write([])

    def close(self) -> None:
        """The stream is not ours to close."""


def _tail(handle: int, size: int) -> int:
    """Checksum of the last bytes before `size`."""
    start = max(0, size - _LOOKED_AT)
    return zlib.crc32(os.pread(handle, size - start, start))
