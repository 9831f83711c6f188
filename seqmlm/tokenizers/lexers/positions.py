"""From a syntax tree's positions (line, column in UTF-8 bytes) to character offsets into the text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_BREAK = re.compile(r"\r\n|\r|\n")
_BYTE_BREAK = re.compile(rb"\r\n|\r|\n")
Value = TypeVar("Value")


class Positions:
    """Offsets of the places in one text.

    Args:
        text: as it was parsed; lines end at \\n, \\r\\n and \\r, and at nothing else.
    """

    def __init__(self, text: str) -> None:
        self._size = len(text)
        self._characters: NDArray[np.int64] | None = None
        if text.isascii():
            self._lines = [0, *(match.end() for match in _BREAK.finditer(text))]
            return
        data = text.encode("utf-8", "surrogatepass")
        self._lines = [0, *(match.end() for match in _BYTE_BREAK.finditer(data))]
        # Characters in front of each byte: continuation bytes (10xxxxxx) begin none.
        begins = (np.frombuffer(data, dtype=np.uint8) & 0xC0) != 0x80
        self._characters = np.concatenate([[0], np.cumsum(begins)])

    def offset(self, position: tuple[int, int]) -> int:
        """Character offset of (line from 1, column in bytes)."""
        line, column = position
        at = self._lines[min(line, len(self._lines)) - 1] + column
        if self._characters is None:
            return min(at, self._size)
        return int(self._characters[min(at, len(self._characters) - 1)])

    def keyed(self, places: Mapping[tuple[int, int], Value]) -> dict[int, Value]:
        """The same mapping by character offset."""
        if self._characters is not None:
            return {self.offset(position): value for position, value in places.items()}
        lines = self._lines
        return {lines[line - 1] + column: value for (line, column), value in places.items()}
