"""Blocks of bytes to lines of text: encodings, byte order marks, line ends, and faults with their line.

UTF-8 unless a byte order mark or the user names another encoding. A fault costs the line it is in, and never
the lines before it.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, cast

from seqmlm.data.compressed import compression
from seqmlm.data.counts import Things
from seqmlm.data.files import (
    MAX_BYTES,
    RESAVE,
    blocks,
    live_of,
    memory_of,
    refuse_foreign,
    source_of,
    too_long,
    transcoded,
)
from seqmlm.data.problems import Problems
from seqmlm.errors import DataError, UsageError

Undecodable = Literal["refuse", "replace", "event"]
"""What becomes of a line that cannot be read: it goes to the problems; its bad bytes are replaced; or a text
stands for it."""

BINARY, OVERLONG = "(binary)", "(over-long line)"
"""The texts that stand for lines which cannot be read."""

_NAME_IT = "name the encoding, for example with --option encoding=latin-1, or convert it to UTF-8"
_BOM = b"\xef\xbb\xbf"


def lines(
    source: str | Path, problems: Problems, *, max_bytes: int = MAX_BYTES, encoding: str | None = None
) -> Iterator[tuple[int, str]]:
    """Yield (1-based number, text without its line end) for every line of a text file.

    Faults go to `problems`, each with its line: bytes that are not of the encoding, binary data, a line
    longer than `max_bytes` (in UTF-8), compressed data that breaks off (the whole lines before it have been
    yielded). `encoding` is a name that Python knows (else UsageError); None is UTF-8, for readers without
    such an option.
    """
    numbered = lines_and_pauses(source, problems, max_bytes=max_bytes, pauses=False, encoding=encoding)
    return cast("Iterator[tuple[int, str]]", numbered)


def lines_and_pauses(
    source: str | Path,
    problems: Problems,
    *,
    max_bytes: int = MAX_BYTES,
    pauses: bool = True,
    encoding: str | None = None,
    undecodable: Undecodable = "refuse",
) -> Iterator[tuple[int, str] | None]:
    """The same as `lines`, and None at each pause of a live source.

    Args:
        undecodable: "replace" puts U+FFFD for bytes that are no UTF-8 and leaves out NUL bytes (what a
            machine that lost power leaves), with a note, instead of refusing the line. "event" does so where
            few bytes of the line are bad; `BINARY` stands for any other line, `OVERLONG` for one that is too
            long. No line of a followed file is refused.
    """
    name, memory = source_of(source), memory_of(source)
    if memory is not None and undecodable == "refuse":
        undecodable = "event"
    replace, refuses_long = undecodable == "replace", undecodable != "event" and memory is None
    number, binary = 0, undecodable != "refuse"
    stream = text_blocks(name, problems, lambda: number + 1, pauses=pauses, encoding=encoding, binary=binary)
    for chunk in _chunks_of_lines(stream, max_bytes):
        if not chunk:
            number = number if memory is None else memory.numbered(number)
            yield None
            continue
        if isinstance(chunk, _TooLong):
            number += 1
            if refuses_long:
                problems.bad(too_long(name, number, max_bytes), chunk.decode("utf-8", "backslashreplace"))
            else:
                yield number, OVERLONG
            continue
        try:
            if b"\0" in chunk or len(chunk) > max_bytes:
                raise ValueError
            texts = chunk.decode("utf-8").split("\n")
        except ValueError:
            for raw in chunk.removesuffix(b"\n").split(b"\n"):
                number += 1
                if len(raw) > max_bytes:
                    if not refuses_long:
                        yield number, OVERLONG
                        continue
                    fault = too_long(name, number, max_bytes)
                elif undecodable == "event":
                    yield number, _event(raw, problems).removesuffix("\r")
                    continue
                elif b"\0" in raw and not replace:
                    fault = _binary(name, number)
                elif replace or _is_utf8(raw):
                    yield number, (_replaced(raw, problems) if replace else raw.decode()).removesuffix("\r")
                    continue
                else:
                    encoding_name = "UTF-8" if encoding is None or _codec(encoding) is None else encoding
                    remedy = RESAVE if encoding is None else _NAME_IT
                    fault = DataError(
                        f"bytes that are not {encoding_name}", source=name, line=number, remedy=remedy
                    )
                problems.bad(fault, raw.decode("utf-8", "backslashreplace"))
            continue
        if not texts[-1]:
            texts.pop()
        for text in texts:
            number += 1
            yield number, text.removesuffix("\r")


def text_blocks(
    source: str,
    problems: Problems,
    line: Callable[[], int],
    *,
    pauses: bool = False,
    encoding: str | None = None,
    binary: bool = False,
) -> Iterator[bytes | None]:
    """The blocks of a text file without byte order marks; None is the last where it ended early, so that its
    last line or record is incomplete.

    A mark is left out at the beginning and, where files were put together, at the beginning of a line. In a
    file whose lines end in CR alone, as on old Macs, these become line ends.

    Args:
        source, encoding: see `lines`; blocks are UTF-8 whatever the encoding.
        problems: receives a fault of the file.
        line: called when a fault is met after the first block; gives the line reached.
        pauses: see `blocks`.
        binary: take a file that its first bytes show to be binary, too; a followed file is always taken.
    """
    codec = None if encoding is None else _codec(encoding)
    started = False
    try:
        parts = blocks(source, pauses=pauses, encoded=codec is not None)
        parts = parts if codec is None else transcoded(parts, codec, source)
        for block in _without_marks(_decided(parts, source, problems, binary), problems, source):
            started = started or bool(block)
            if block or pauses:
                yield block
    except DataError as error:
        at = line() if started else None
        problems.bad(DataError(error.reason, source=source, line=at, remedy=error.remedy))
        yield None
    if (live := live_of(source)) is not None and live.stopped:
        yield None


def _decided(parts: Iterator[bytes], source: str, problems: Problems, binary: bool) -> Iterator[bytes]:
    """The blocks, after it is decided by the first one that they are text, and how its lines end."""
    if memory_of(source) is not None:
        yield from parts
        return
    first, carriage_returns = True, False
    for block in parts:
        if first and block:
            first = False
            _refuse_other_text(block, source, binary)
            if carriage_returns := b"\n" not in block and b"\r" in block[:-1]:
                problems.note("lines that end in CR alone (old Macs)", Things(1), source=source)
        yield block.replace(b"\r", b"\n") if carriage_returns else block


def _codec(encoding: str) -> str | None:
    """The codec of this name, None for UTF-8, whose bytes are taken as they are; else a UsageError."""
    try:
        "".encode(encoding)  # refuses codecs that are none of text, such as hex
        name = codecs.lookup(encoding).name
        codecs.getincrementaldecoder(name)
    except (LookupError, ValueError):
        raise UsageError(
            f"option encoding: no encoding {encoding!r}; name one that Python knows, such as utf-8, latin-1, "
            "cp1252, utf-16 or shift_jis"
        ) from None
    return None if name in ("utf-8", "utf-8-sig") else name


def _without_marks(parts: Iterator[bytes], problems: Problems, source: str) -> Iterator[bytes]:
    """The same bytes without byte order marks where a line begins; empty blocks pass."""
    begins, number, carried = True, 0, b""
    for block in parts:
        if not block:
            yield block
            continue
        block = carried + block
        carried = b""
        if not block.isascii():
            if begins and block.startswith(_BOM):
                block = block[len(_BOM) :]
                number += 1
            inside = block.count(b"\n" + _BOM)
            if inside:
                block = block.replace(b"\n" + _BOM, b"\n")
                number += inside
            for part in (_BOM[:2], _BOM[:1]):
                if block.endswith(b"\n" + part) or (begins and block == part):
                    block, carried = block[: -len(part)], part
                    break
        if block:
            begins = block.endswith(b"\n")
            yield block
    if carried:
        yield carried
    problems.note(
        "a byte order mark inside the file, left out", number - 1 if number > 1 else 0, source=source
    )


_LOOKED_AT = 1 << 16
_TOLD_BY = 256  # bytes from which on a file can be told to be binary as a whole
_CONTROLS = bytes(sorted({*range(32), 127} - set(b"\t\n\r\f\x1b")))


def _refuse_other_text(block: bytes, source: str, binary: bool) -> None:
    """Refuse what its first bytes show to be binary, packed twice, or in another encoding.

    A NUL alone does not: it costs the line it is in, since logs have stretches of them after a crash.
    """
    refuse_foreign(block, source)
    if kind := compression(block):
        raise DataError(f"the file is compressed twice ({kind})", source=source, remedy="unpack it once")
    head = block[:_LOOKED_AT]
    if b"\0" not in head:
        return
    half = len(head) // 2
    even, odd = head[: 2 * half : 2].count(0), head[1 : 2 * half : 2].count(0)
    if max(even, odd) > 0.8 * half and min(even, odd) < 0.2 * half:
        codec = "UTF-16BE" if even > odd else "UTF-16LE"
        raise DataError(
            "the file is UTF-16 text without a byte order mark",
            source=source,
            remedy=f"convert it: iconv -f {codec} -t UTF-8 FILE > NEW, or name it where the format has an "
            f"option for that: --option encoding={codec.lower()}",
        )
    if binary:
        return
    head = head.lstrip(b"\0")
    complete = head.split(b"\n")[:-1] or [head]
    controls = len(head) - len(head.translate(None, _CONTROLS))
    if (
        len(head) >= _TOLD_BY
        and 10 * controls > len(head)
        and 2 * sum(b"\0" in line or not _is_utf8(line) for line in complete) > len(complete)
    ):
        raise _binary(source, None)


class _TooLong(bytes):
    """The beginning of a line that was too long to keep."""


def _chunks_of_lines(parts: Iterator[bytes | None], limit: int) -> Iterator[bytes]:
    blocks: list[bytes] = []
    size = 0
    for block in parts:
        if block is None:
            blocks, size = blocks[:1], size if size > limit else 0
            break
        if not block:
            yield b""  # a pause
            continue
        cut = block.rfind(b"\n") + 1
        if not cut:
            size += len(block)
            # Beyond the limit only its first bytes stay, to name it by.
            blocks = (
                [*blocks, block]
                if size <= limit
                else [b"".join(part[:1000] for part in [*blocks, block])[:1000]]
            )
            continue
        first = block.find(b"\n") + 1
        if size and size + first - 1 > limit:
            yield _TooLong((blocks[0] + block[:first])[:1000])
            if first < cut:
                yield block[first:cut]
        else:
            yield b"".join(blocks) + block[:cut]
        blocks, size = [block[cut:]], len(block) - cut
    if size:
        yield _TooLong(blocks[0][:1000]) if size > limit else b"".join(blocks)


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _replaced(raw: bytes, problems: Problems) -> str:
    if b"\0" in raw:
        problems.note("NUL bytes were left out")
        raw = raw.replace(b"\0", b"")
    if not _is_utf8(raw):
        problems.note("bytes that are not text were replaced")
    return raw.decode("utf-8", "replace")


def _event(raw: bytes, problems: Problems) -> str:
    """The text of a line, or what stands for it where it holds a NUL, or a sixth of it is no text."""
    if b"\0" not in raw and _is_utf8(raw):
        return raw.decode()
    text = raw.decode("utf-8", "replace")
    if b"\0" in raw or 6 * text.count("\ufffd") > len(text):
        problems.note("a line that is binary, an event of its own")
        return BINARY
    return _replaced(raw, problems)


def _binary(source: str, line: int | None) -> DataError:
    return DataError(
        "binary data where text was expected", source=source, line=line, remedy="name a text file"
    )
