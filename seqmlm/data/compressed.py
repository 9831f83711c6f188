"""What gzip and Zstandard data expand to: in bounded memory, and all that came before a fault.

The decoders are those of zlib and zstandard; the loops around them are ours. `gzip.GzipFile` loses what the
call that meets a fault had unpacked, and the reader of `zstandard` takes a frame that is cut off for the end
of the data. A small file may expand to any size, so a step here gives at most 1 MiB.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from seqmlm.errors import DataError

MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "Zstandard"}
"""First bytes of a compressed file, and what it is."""

PACKED = (".gz", ".bgz")
"""Endings of files that are written compressed."""

_BLOCK = 1 << 20
_INPUT = 3 << 15  # compressed bytes that are read at a time


def compression(head: bytes) -> str | None:
    """Compression of a file that begins with these bytes: "gzip", "Zstandard", or None."""
    return next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), None)


def decompress(read_block: Callable[[int], bytes], data: bytes, source: str, kind: str) -> Iterator[bytes]:
    """Decompress member after member; zero bytes may follow the last one, as tape padding does.

    Args:
        read_block: returns up to so many further bytes, b"" at the end; `data` are those read so far.
        source, kind: for messages; what `compression` says.

    Raises:
        DataError: the data are damaged or truncated; all that came before the fault has been yielded.
    """
    out: list[bytes] = []
    size = 0
    fault: DataError | None = None
    try:
        for piece in (_gunzip if kind == "gzip" else _unzstd)(_Packed(read_block, data)):
            out.append(piece)
            size += len(piece)
            if size >= _BLOCK:
                yield b"".join(out)
                out, size = [], 0
    except _Damaged as error:
        reason = error.args[0] if error.args else f"the {kind} data are damaged or truncated"
        remedy = "download or compress the file again; on_error=skip keeps what came before"
        fault = DataError(reason, source=source, remedy=remedy)
    if size:  # an empty block would be the end
        yield b"".join(out)
    if fault is not None:
        raise fault


class _Damaged(Exception):
    """Compressed data that cannot go on; with a sentence where it is not plain damage."""


class _Packed:
    """The compressed bytes of a file."""

    def __init__(self, read_block: Callable[[int], bytes], data: bytes) -> None:
        self._read, self._held, self._at = read_block, data, 0

    def next_bytes(self) -> bytes:
        """Bytes that are held, else the next ones of the file; b"" at the end."""
        data = self._held[self._at :] or self._read(_INPUT)
        self.put_back(b"")
        return data

    def put_back(self, data: bytes) -> None:
        """Hold these bytes, of which more was given than was used."""
        self._held, self._at = data, 0

    def member(self) -> bool:
        """Whether another member begins, after any zero bytes."""
        if self._held[self._at : self._at + 1].strip(b"\0"):
            return True
        while data := self.next_bytes():
            if data := data.lstrip(b"\0"):
                self.put_back(data)
                return True
        return False

    def take(self, size: int) -> bytes:
        """Exactly so many bytes, of which there are few."""
        while len(self._held) - self._at < size:
            if not (block := self._read(_INPUT)):
                raise _Damaged
            self.put_back(self._held[self._at :] + block)
        self._at += size
        return self._held[self._at - size : self._at]


def _gunzip(packed: _Packed) -> Iterator[bytes]:
    """Decompress the members of a gzip file into pieces of at most 1 MiB."""
    while packed.member():
        member = zlib.decompressobj(31)
        while not member.eof:
            if not (data := packed.next_bytes()):
                raise _Damaged
            piece = b""
            while (data or len(piece) == _BLOCK) and not member.eof:
                copy_before = member.copy()
                try:
                    piece = member.decompress(data, _BLOCK)
                except zlib.error:  # what this call had unpacked until then is lost with it
                    yield from _bytes_before_fault(copy_before, data)
                    raise _Damaged from None
                yield piece
                data = member.unconsumed_tail
            packed.put_back(member.unused_data)


def _bytes_before_fault(member: Any, data: bytes) -> Iterator[bytes]:
    """Bytes that a member of a gzip file expands to, up to the byte at which it is damaged."""
    with suppress(zlib.error):
        for at in range(len(data)):
            yield member.decompress(data[at : at + 1])


_WINDOW = 128 << 20  # what the command zstd unpacks without being asked to use more memory
_SKIPPABLE = b"\x2a\x4d\x18"


def _unzstd(packed: _Packed) -> Iterator[bytes]:
    """Decompress Zstandard frames into blocks of at most 128 KiB (RFC 8878, section 3.1.1)."""
    import zstandard

    while packed.member():
        magic = packed.take(4)
        if magic[1:] == _SKIPPABLE and magic[0] >> 4 == 5:
            skipped = int.from_bytes(packed.take(4), "little")
            while skipped:
                skipped -= len(packed.take(min(skipped, _INPUT)))
            continue
        try:
            start = magic + packed.take(1)
            header = start + packed.take(zstandard.frame_header_size(start) - len(start))
            facts = zstandard.get_frame_parameters(header)
            if facts.window_size > _WINDOW:
                raise _Damaged(
                    f"the Zstandard data ask for {facts.window_size >> 20:,} MiB of memory, more than "
                    f"{_WINDOW >> 20} MiB"
                )
            frame = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
            frame.decompress(header)
            last = 0
            while not last:
                head = packed.take(3)
                word = int.from_bytes(head, "little")
                last, repeated, size = word & 1, (word >> 1) & 3 == 1, word >> 3
                yield frame.decompress(head + packed.take(1 if repeated else size))
            if facts.has_checksum:
                frame.decompress(packed.take(4))
        except zstandard.ZstdError:
            raise _Damaged from None


def ending(path: Path) -> str:
    """The ending of a name in lower case, with that of its compression; "" for a name without one.

    >>> ending(Path("a.CSV")), ending(Path("b.v1.csv.gz")), ending(Path("scores"))
    ('.csv', '.csv.gz', '')
    """
    last = path.suffix.lower()
    return f"{Path(path.stem).suffix.lower()}{last}" if last in PACKED else last


def packing(
    path: Path, fill: Callable[[IO[bytes]], object], *, blocks: bool
) -> Callable[[IO[bytes]], object]:
    """A function that fills a file, compressed where the name says so; equal contents give equal bytes.

    Args:
        path: name of the file; one that ends in .gz or .bgz is compressed.
        fill: writes the contents to a binary file.
        blocks: compress in the blocks of bgzip, in which an index (tabix) can find places; else as gzip.
    """

    def fill_blocks(file: IO[bytes]) -> None:
        from Bio.bgzf import BgzfWriter

        with BgzfWriter(fileobj=file) as packed:
            fill(packed)

    def fill_gzip(file: IO[bytes]) -> None:
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
            fill(packed)  # type: ignore[arg-type]

    if path.suffix.lower() not in PACKED:
        return fill
    return fill_blocks if blocks else fill_gzip
