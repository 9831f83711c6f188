"""Compressed files and files that are no text at all, known by their first bytes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

from seqmlm.errors import DataError

MAGIC_BYTES = 6
"""So many bytes tell what a file is."""

RESAVE = "convert it to UTF-8, for example with iconv"
"""What to do about text in another encoding."""

_BLOCK = 1 << 20
_INPUT = {"gzip": 1 << 16, "Zstandard": 1 << 13}  # compressed bytes at a time bound what one step expands to
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "Zstandard"}
_ZLIB = type(zlib.decompressobj())
_UNPACK = "unpack it, or pack it as .gz or .zst"
_FOREIGN = {
    b"PK\x03\x04": ("a zip archive", _UNPACK),
    b"BZh": ("compressed with bzip2", _UNPACK),
    b"\xfd7zXZ\x00": ("compressed with xz", _UNPACK),
    b"PAR1": ("a parquet file", "name the format parquet and a column"),
    b"\xff\xfe": ("UTF-16 text", RESAVE),
    b"\xfe\xff": ("UTF-16 text", RESAVE),
}


def compression(head: bytes) -> str | None:
    """How a file that begins like this is compressed: "gzip", "Zstandard", or None."""
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


def may_begin(head: bytes) -> bool:
    """Whether so few bytes could become the mark of a compressed or foreign file."""
    return any(len(head) < len(magic) and magic.startswith(head) for magic in (*_MAGIC, *_FOREIGN))


def refuse_foreign(head: bytes, source: str) -> None:
    """Refuse what begins like no text and no compression that can be read.

    Raises:
        DataError: it does; says what the file is.
    """
    for magic, (what, remedy) in _FOREIGN.items():
        if head.startswith(magic):
            raise DataError(f"the file is {what}", source=source, remedy=remedy)


def decompress(read: Callable[[int], bytes], data: bytes, source: str, kind: str) -> Iterator[bytes]:
    """Decompress member after member; zero bytes may follow the last one, as tape padding does.

    Args:
        read: gives up to so many further bytes of the file, b"" at its end.
        data: the bytes that were read before.
        source: for messages.
        kind: what `compression` says.

    Raises:
        DataError: the data is broken or cut off; what came before has been yielded.
    """
    import zstandard

    out: list[bytes] = []
    whole = True
    try:
        while data := data or read(_INPUT[kind]):
            if whole and not (data := data.lstrip(b"\0")):
                continue
            if whole:
                member = (
                    zlib.decompressobj(31) if kind == "gzip" else zstandard.ZstdDecompressor().decompressobj()
                )
            for piece in _pieces(member, data):
                out.append(piece)
                if sum(map(len, out)) >= _BLOCK:
                    yield b"".join(out)
                    out.clear()
            whole = member.eof
            data = member.unused_data if whole else b""
    except (zlib.error, zstandard.ZstdError):
        whole = False
    if out:
        yield b"".join(out)
    if not whole:
        raise DataError(
            f"the {kind} data is broken or cut off",
            source=source,
            remedy="fetch or pack the file again; --on-error skip keeps what came before",
        )


def _pieces(member: Any, data: bytes) -> Iterator[bytes]:
    """Feed `data` to one member of a compressed file, in steps of bounded output."""
    if not isinstance(member, _ZLIB):
        yield member.decompress(data)
        return
    piece = b""
    while data or len(piece) == _BLOCK:
        piece = member.decompress(data, _BLOCK)
        yield piece
        data = member.unconsumed_tail
