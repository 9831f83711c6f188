"""Split blocks of bytes into lines of text: encodings, byte order marks, line ends, and faults by line.

The encoding is UTF-8, unless a byte order mark or the user selects another encoding. A fault affects only its
own line, never the lines before it.
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
"""Treatment of unreadable lines: report them, replace their bad bytes, or use a text in their place."""

BINARY, OVERLONG = "(binary)", "(over-long line)"
"""The texts that replace lines that cannot be read."""

_NAME_IT = "name the encoding, for example with --option encoding=latin-1, or convert it to UTF-8"
_BOM = b"\xef\xbb\xbf"


def lines(
    source: str | Path, problems: Problems, *, max_bytes: int = MAX_BYTES, encoding: str | None = None
) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, text without line end) for every line of a text file.

    Faults go to `problems`, with their line. They are: bytes outside the encoding, binary data, a line longer
    than `max_bytes` in UTF-8, and truncated compressed data. The complete lines before them have been
    yielded.

    Args:
        source: the file, or a `Source`.
        problems: receives faults.
        max_bytes: length limit of a line.
        encoding: an encoding that Python knows. None is UTF-8, for readers without such an option.

    Raises:
        UsageError: the encoding is unknown.
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
    """Yield the same as `lines`, and None at each pause of a live source.

    Args:
        source, problems, max_bytes, encoding: as in `lines`.
        pauses: whether to yield None at pauses.
        undecodable: treatment of lines that are not valid UTF-8. With "refuse", they are reported. With
            "replace", invalid bytes become U+FFFD and NUL bytes (left by a machine that lost power) are
            removed, with a note. With "event", this is done only if few bytes are bad. Other lines become
            `BINARY`, and lines that are too long become `OVERLONG`. In a followed file, no line is refused.
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
    """The blocks of a text file without byte order marks.

    A mark is removed at the beginning of the file. It is also removed at the beginning of a line, where files
    were concatenated. In a file whose lines end only in CR, as on old Macs, these become line ends. The last
    block is None if the file ended early, so that its last line or record is incomplete.

    Args:
        source, encoding: see `lines`. Blocks are always UTF-8.
        problems: receives a fault of the file.
        line: called for a fault after the first block. Returns the current line.
        pauses: see `blocks`.
        binary: accept a file even if its first bytes show that it is binary. A followed file is always
            accepted.
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
    """The blocks, after the first block was checked for text and for its line ends."""
    if memory_of(source) is not None:
        yield from parts
        return
    first, carriage_returns = True, False
    for block in parts:
        if first and block:
            first = False
            _refuse_other_text(block, source, binary)
            if carriage_returns := b"\n" not in block and b"\r" in block[:-1]:
                problems.note("lines that end only in CR (old Macs), read as lines", Things(1), source=source)
        yield block.replace(b"\r", b"\n") if carriage_returns else block


def _codec(encoding: str) -> str | None:
    """The codec with this name. None for UTF-8, whose bytes are not converted.

    Raises:
        UsageError: the encoding is unknown.
    """
    try:
        "".encode(encoding)  # refuses codecs that are not for text, such as hex
        name = codecs.lookup(encoding).name
        codecs.getincrementaldecoder(name)
    except (LookupError, ValueError):
        raise UsageError(
            f"option encoding: no encoding {encoding!r}; name one that Python knows, such as utf-8, latin-1, "
            "cp1252, utf-16 or shift_jis"
        ) from None
    return None if name in ("utf-8", "utf-8-sig") else name


def _without_marks(parts: Iterator[bytes], problems: Problems, source: str) -> Iterator[bytes]:
    """The blocks without byte order marks at the beginning of lines. Empty blocks are passed on."""
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
_TOLD_BY = 256  # smallest number of bytes from which a file can be recognised as binary
_CONTROLS = bytes(sorted({*range(32), 127} - set(b"\t\n\r\f\x1b")))


def _refuse_other_text(block: bytes, source: str, binary: bool) -> None:
    """Refuse a file if its first bytes show that it is binary, compressed twice, or in another encoding.

    A NUL is not enough: it affects only its own line, because logs contain stretches of NULs after a crash.
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
            remedy=f"convert it: iconv -f {codec} -t UTF-8 FILE > NEW, or, if the format has the "
            f"option, use --option encoding={codec.lower()}",
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
            # Beyond the limit, only the first bytes are kept, to identify the line.
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
    """The text of a line. `BINARY` if it contains a NUL, or if a sixth of it is not text."""
    if b"\0" not in raw and _is_utf8(raw):
        return raw.decode()
    text = raw.decode("utf-8", "replace")
    if b"\0" in raw or 6 * text.count("\ufffd") > len(text):
        problems.note("a binary line, read as a separate event")
        return BINARY
    return _replaced(raw, problems)


def _binary(source: str, line: int | None) -> DataError:
    return DataError(
        "binary data where text was expected", source=source, line=line, remedy="name a text file"
    )
