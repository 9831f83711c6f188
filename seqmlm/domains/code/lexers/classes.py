"""The classes of lexer tokens, in the fixed order of their numbers; from tree positions to characters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.types import Ids

RATES = {
    "whitespace": 0.10,
    "keyword": 0.15,
    "operator": 0.25,
    "punctuation": 0.12,
    "definition": 0.30,
    "parameter": 0.25,
    "use": 0.25,
    "attribute": 0.25,
    "call": 0.25,
    "import": 0.25,
    "type": 0.50,
    "exception": 0.40,
    "number": 0.15,
    "string": 0.15,
    "comment": 0.15,
    "docstring": 0.15,
}
"""Relative masking rate of each class: higher for what is hard to predict and informative.

The differences are small: for a class that is rarely masked in training the model gives wrong probabilities
wherever it competes with another.
"""

CLASSES = tuple(RATES)
(
    WHITESPACE,
    KEYWORD,
    OPERATOR,
    PUNCTUATION,
    DEFINITION,
    PARAMETER,
    USE,
    ATTRIBUTE,
    CALL,
    IMPORT,
    TYPE,
    EXCEPTION,
    NUMBER,
    STRING,
    COMMENT,
    DOCSTRING,
) = range(len(CLASSES))

IDENTIFIERS = (DEFINITION, PARAMETER, USE, ATTRIBUTE, CALL, IMPORT, TYPE, EXCEPTION)
PROSE = (STRING, COMMENT, DOCSTRING)
"""Classes of tokens that contain words: there a word is the unit."""


class LexerTokens(NamedTuple):
    """A text's lexer tokens, ascending and disjoint; only white space is between them.

    starts, ends: (K,) half-open character offsets into the text.
    classes: (K,) numbers of `CLASSES`.
    symbols: (K,) number of what an identifier names, from 0 in order of appearance; -1 elsewhere.
    """

    starts: Ids
    ends: Ids
    classes: NDArray[np.int16]
    symbols: Ids


def lexer_tokens(starts: list[int], ends: list[int], classes: list[int], names: list[Any]) -> LexerTokens:
    """`LexerTokens` made of lists; equal `names` get equal symbols, None gets -1."""
    number_of: dict[Any, int] = {None: -1}
    symbols = [number_of.setdefault(name, len(number_of) - 1) for name in names]
    return LexerTokens(
        np.array(starts, dtype=np.int32),
        np.array(ends, dtype=np.int32),
        np.array(classes, dtype=np.int16),
        np.array(symbols, dtype=np.int32),
    )


# From a syntax tree's positions (line, column in UTF-8 bytes) to character offsets into the text.

_BREAK = re.compile(r"\r\n|\r|\n")
_BYTE_BREAK = re.compile(rb"\r\n|\r|\n")
Value = TypeVar("Value")


class Positions:
    """Character offsets of a syntax tree's positions (line, column in UTF-8 bytes).

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

    def by_offset(self, places: Mapping[tuple[int, int], Value]) -> dict[int, Value]:
        """The same mapping by character offset."""
        if self._characters is not None:
            return {self.offset(position): value for position, value in places.items()}
        lines = self._lines
        return {lines[line - 1] + column: value for (line, column), value in places.items()}
