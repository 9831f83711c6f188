"""Read JSON objects: one per line, or the items of an array, with one item in memory at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from seqmlm.data.files import MAX_BYTES, too_long
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.errors import DataError

_GAP = re.compile(r"[,\s]*")
_ITEM = re.compile(r"\n[^\S\n]*(?=\{)")  # matches once in a run of blank lines, which may be very long
_LONGEST_WORD = 16  # characters: -Infinity, \ud83d\ude00
_FILL = 1 << 16


def json_value(text: str | bytes, source: str, line: int, remedy: str) -> Any:
    """Parse a JSON text, or UTF-8 bytes. All readers of JSON use this function.

    Numbers may be infinite or NaN. Code that calculates with numbers must check this.

    Args:
        text: the JSON text.
        source: the file.
        line: line of the file where the text begins.
        remedy: remedy for the error.

    Raises:
        DataError: the text is not JSON, not UTF-8, nested deeper than about 1,000, or has a whole number with
            more than 4,300 digits.
    """
    try:
        # json.loads would also accept UTF-16 bytes and lone surrogates
        return json.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
    except RecursionError:
        reason = "JSON that is nested too deeply"
    except json.JSONDecodeError as error:
        reason, line = "not JSON", line + error.lineno - 1
    except ValueError as error:
        digits = "digits" in str(error)
        reason = "JSON with a number of thousands of digits" if digits else "bytes that are not UTF-8"
    raise DataError(reason, source=source, line=line, remedy=remedy)


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object in a text. None for any other text, including texts that `json_value` refuses."""
    try:
        value = json_value(text, "", 1, "")
    except DataError:
        return None
    return value if isinstance(value, dict) else None


def no_object(source: str, line: int) -> DataError:
    """The error for a line that is not a JSON object."""
    remedy = "write one object per line, or an array of objects, or name the actual format of the file"
    return DataError("not a JSON object", source=source, line=line, remedy=remedy)


def json_rows(
    source: str, problems: Problems, *, max_bytes: int = MAX_BYTES, encoding: str | None = None
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield (first line, text, object) for each line, or item of an array, that is a JSON object.

    Objects may have at most `max_bytes`. Other lines go to `problems`, and blank lines are skipped.
    """
    numbered = lines(source, problems, max_bytes=max_bytes, encoding=encoding)
    filled = ((number, text) for number, text in numbered if text and not text.isspace())
    first = next(filled, None)
    if first is None:
        return
    if first[1].lstrip().startswith("["):
        for number, value in _of_array(first, numbered, source, max_bytes, problems):
            text = json.dumps(value, ensure_ascii=False)
            if isinstance(value, dict):
                yield number, text, value
            else:
                problems.bad(no_object(source, number), text)
        return
    for number, text in chain([first], filled):
        if (row := json_object(text)) is None:
            problems.bad(no_object(source, number), text)
        else:
            yield number, text, row


def _is_broken(error: Exception, text: str) -> bool:
    """Whether an item cannot become JSON with more text: the fault is not at the end of the text."""
    if not isinstance(error, json.JSONDecodeError):
        return True
    return not error.msg.startswith("Unterminated string") and error.pos < len(text) - _LONGEST_WORD


def _of_array(
    first: tuple[int, str],
    numbered: Iterator[tuple[int, str]],
    source: str,
    max_bytes: int,
    problems: Problems,
) -> Iterator[tuple[int, Any]]:
    """The items of an array, with one item in memory at a time.

    Items are decoded from a buffer. If its first item is incomplete, the size of the buffer is doubled.
    Therefore the number of attempts for a large item grows only with the logarithm of its size. After an item
    that is not JSON, reading continues at the next line that begins with `{`.
    """
    decode = json.JSONDecoder().raw_decode
    begins, pieces = first[0], [first[1].lstrip()[1:]]
    while True:
        text, at = "\n".join(pieces), 0
        while True:
            skipped = _GAP.match(text, at).end()  # type: ignore[union-attr]  # it may be empty
            begins += text.count("\n", at, skipped)
            at = skipped
            if text[at : at + 1] in ("", "]"):
                break
            try:
                value, end = decode(text, at)
            except (ValueError, RecursionError) as error:
                item = _ITEM.search(text, at) if _is_broken(error, text) else None
                if item is None:
                    break
                problems.bad(no_object(source, begins), text[at : at + 1000])
                begins += text.count("\n", at, item.end())
                at = item.end()
                continue
            yield begins, value
            begins += text.count("\n", at, end)
            at = end
        if text[at : at + 1] == "]":
            return
        pieces, size = [text[at:]], len(text) - at
        enough = size + max(size, _FILL)
        if size > max_bytes:
            problems.bad(too_long(source, begins, max_bytes, "object"))
            return
        while size < enough:
            following = next(numbered, None)
            if following is None:
                break
            pieces.append(following[1])
            size += len(following[1]) + 1
        if len(pieces) == 1:
            if text[at:].strip(", \t\r\n"):
                problems.bad(no_object(source, begins), text[at : at + 1000])
            return
