"""Decompress gzip and Zstandard data in bounded memory, and keep everything before a fault.

The decoders are part of zlib and zstandard. Only the loops around them are part of seqmlm, for three
reasons. `gzip.GzipFile` loses the bytes that the failing call had unpacked. The reader of `zstandard` takes a
truncated frame for the end of the data. A small file may expand to any size, so a step here returns at most 1
MiB.
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
"""First bytes of a compressed file, and its compression."""

PACKED = (".gz", ".bgz")
"""Name endings of files that are written compressed."""

_BLOCK = 1 << 20
_INPUT = 3 << 15  # compressed bytes per read


def compression(head: bytes) -> str | None:
    """The compression of a file that begins with these bytes: "gzip", "Zstandard", or None."""
    return next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), None)


def decompress(read_block: Callable[[int], bytes], data: bytes, source: str, kind: str) -> Iterator[bytes]:
    """Decompress all members. Zero bytes may follow the last member, as in tape padding.

    Args:
        read_block: returns up to the given number of bytes, and b"" at the end.
        data: bytes that were read before.
        source: name of the file, for messages.
        kind: the result of `compression`.

    Raises:
        DataError: the data are damaged or truncated. Everything before the fault has been yielded.
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
        remedy = "download or compress the file again; on_error=skip keeps everything before the fault"
        fault = DataError(reason, source=source, remedy=remedy)
    if size:  # an empty block would mark the end
        yield b"".join(out)
    if fault is not None:
        raise fault


class _Damaged(Exception):
    """Compressed data that cannot be continued. It has a message if the reason is not plain damage."""


class _Packed:
    """The compressed bytes of a file."""

    def __init__(self, read_block: Callable[[int], bytes], data: bytes) -> None:
        self._read, self._held, self._at = read_block, data, 0

    def next_bytes(self) -> bytes:
        """The bytes in the buffer, or else the next bytes of the file. b"" at the end."""
        data = self._held[self._at :] or self._read(_INPUT)
        self.put_back(b"")
        return data

    def put_back(self, data: bytes) -> None:
        """Put back bytes that were returned but not used."""
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
        """Read exactly `size` bytes. The number must be small."""
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
                except zlib.error:  # the bytes that this call had unpacked are lost
                    yield from _bytes_before_fault(copy_before, data)
                    raise _Damaged from None
                yield piece
                data = member.unconsumed_tail
            packed.put_back(member.unused_data)


def _bytes_before_fault(member: Any, data: bytes) -> Iterator[bytes]:
    """The decompressed bytes of a gzip member, up to the damaged byte."""
    with suppress(zlib.error):
        for at in range(len(data)):
            yield member.decompress(data[at : at + 1])


_WINDOW = 128 << 20  # the limit of the command zstd without options for more memory
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
    """The ending of a name in lower case, with the ending for its compression. "" for a name without ending.

    >>> ending(Path("a.CSV")), ending(Path("b.v1.csv.gz")), ending(Path("scores"))
    ('.csv', '.csv.gz', '')
    """
    last = path.suffix.lower()
    return f"{Path(path.stem).suffix.lower()}{last}" if last in PACKED else last


def packing(
    path: Path, fill: Callable[[IO[bytes]], object], *, blocks: bool
) -> Callable[[IO[bytes]], object]:
    """A function that fills a file, and compresses it if its name says so. Equal contents give equal bytes.

    Args:
        path: name of the file. It is compressed if it ends in .gz or .bgz.
        fill: writes the contents to a binary file.
        blocks: use the blocks of bgzip, so that an index (tabix) can find places. Otherwise gzip is used.
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
