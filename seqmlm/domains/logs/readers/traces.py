"""Decide by its form whether a line continues the message before it.

Programs write traces of errors, and printed objects, over several lines. In a log with headers, these lines
belong to the message before them. In a log of JSON objects, they are between the objects, and each text is a
separate event.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from seqmlm.data.readers.objects import json_object
from seqmlm.domains.logs.readers.events import CONTINUED_LINES, STAND_INS, TRUNCATED

GOES_ON = re.compile(
    r"\s|$|[\])}]|[{\[(]$|</|---|(?:Wrapped by|Caused by|Suppressed|Stack ?trace|stack backtrace):"
    r"|Traceback \(|During handling of the |The above exception was |(?:[a-z_]\w*\.)+[A-Z][\w$]*(?::|$)"
    r"|[\w.$]*(?:Error|Exception|Warning|Interrupt|Exit|Failure)(?::|$)|at |\.\.\. \d+ |\S+:\d+:in [`']"
    r"|#\d+ |(?:panic|fatal error): |goroutine \d+ \[|created by |[\w./*()-]+\.\w+\([^()]*\)$",
    re.ASCII,
)
"""Lines of a trace, and of JSON or XML over several lines."""

_BEGINS = re.compile(r"Traceback \(|(?:panic|fatal error): |Exception in thread ", re.ASCII)
_CHAINS = re.compile(r"During handling of the |The above exception was ", re.ASCII)
_PRETTY = re.compile(r"\s*[{\[]\s*", re.ASCII)


class TextEvent:
    """The lines of one text between JSON objects; empty at first."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self.number = 0

    def __bool__(self) -> bool:
        return bool(self._lines)

    def take(self, number: int, line: str) -> None:
        """Begin or continue the text with a line."""
        self.number = self.number if self._lines else number
        self._lines.append(line)

    def goes_on(self, line: str) -> bool:
        """Whether a line that is not a JSON object belongs to the text."""
        lines = self._lines
        if not lines or len(lines) >= CONTINUED_LINES or line in STAND_INS or lines[0] in STAND_INS:
            return False
        if _PRETTY.fullmatch(lines[0]):
            return lines[-1][:1] not in ("}", "]") and (line[:1].isspace() or line[:1] in ("}", "]", ""))
        if lines[0].lstrip().startswith("{"):
            return False
        last = next(filter(str.strip, reversed(lines)))
        if _BEGINS.match(line):
            return _CHAINS.match(last) is not None
        # The exception of a Python traceback follows its last frame, whatever the exception's name is.
        return GOES_ON.match(line) is not None or (last[:1].isspace() and _has_traceback(lines))

    def end(self) -> dict[str, object] | str:
        """Return the text, or `TRUNCATED` for a part of an object, or an object over several lines.

        Then start anew.
        """
        lines = [line for line in self._lines if line and not line.isspace()]
        self._lines = []
        text = "\n".join(lines)
        if len(lines) > 1 and (row := json_object(text)) is not None:
            return row
        begins = text.lstrip().startswith("{")
        return TRUNCATED if begins or (len(lines) == 1 and '":' in text and text.endswith("}")) else text


def _has_traceback(lines: Sequence[str]) -> bool:
    """Whether a line begins the traceback of a Python program."""
    return any(line.startswith("Traceback (") for line in lines)
