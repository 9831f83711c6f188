"""The classes of lexer tokens, and the conversion from positions in a syntax tree to character offsets."""

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
"""The relative masking rate of each class. The order of the classes defines their numbers.

The rate is higher for tokens that are informative and hard to predict. The differences are small. If a class
is rarely masked in training, its probabilities are wrong where it competes with another class.
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
"""Classes of tokens that contain words. In these tokens, each word is a unit."""


class LexerTokens(NamedTuple):
    """The K lexer tokens of a text. They ascend, do not overlap, and have only white space between them.

    Attributes:
        starts, ends: (K,) the start and end (half open) of each token in characters.
        classes: (K,) the class of each token, as an index in `CLASSES`.
        symbols: (K,) the symbol of each identifier, numbered from 0 in order of appearance; -1 for other
            tokens. Identifiers of the same thing have the same symbol.
    """

    starts: Ids
    ends: Ids
    classes: NDArray[np.int16]
    symbols: Ids


def lexer_tokens(starts: list[int], ends: list[int], classes: list[int], names: list[Any]) -> LexerTokens:
    """Make `LexerTokens` from lists. Equal `names` get equal symbols, and None gets -1."""
    number_of: dict[Any, int] = {None: -1}
    symbols = [number_of.setdefault(name, len(number_of) - 1) for name in names]
    return LexerTokens(
        np.array(starts, dtype=np.int32),
        np.array(ends, dtype=np.int32),
        np.array(classes, dtype=np.int16),
        np.array(symbols, dtype=np.int32),
    )


# From positions in a syntax tree (line, column in UTF-8 bytes) to character offsets in the text.

_BREAK = re.compile(r"\r\n|\r|\n")
_BYTE_BREAK = re.compile(rb"\r\n|\r|\n")
Value = TypeVar("Value")


class Positions:
    """Converts positions in a syntax tree (line, column in UTF-8 bytes) to character offsets.

    Args:
        text: the parsed text. Only \\n, \\r\\n and \\r end a line.
    """

    def __init__(self, text: str) -> None:
        self._size = len(text)
        self._characters: NDArray[np.int64] | None = None
        if text.isascii():
            self._lines = [0, *(match.end() for match in _BREAK.finditer(text))]
            return
        data = text.encode("utf-8", "surrogatepass")
        self._lines = [0, *(match.end() for match in _BYTE_BREAK.finditer(data))]
        # The number of characters before each byte. Continuation bytes (10xxxxxx) do not begin a character.
        begins = (np.frombuffer(data, dtype=np.uint8) & 0xC0) != 0x80
        self._characters = np.concatenate([[0], np.cumsum(begins)])

    def offset(self, position: tuple[int, int]) -> int:
        """The character offset of a position: its line counted from 1, and its column in bytes from 0."""
        line, column = position
        at = self._lines[min(line, len(self._lines)) - 1] + column
        if self._characters is None:
            return min(at, self._size)
        return int(self._characters[min(at, len(self._characters) - 1)])

    def by_offset(self, places: Mapping[tuple[int, int], Value]) -> dict[int, Value]:
        """The mapping with character offsets instead of positions as keys."""
        if self._characters is not None:
            return {self.offset(position): value for position, value in places.items()}
        lines = self._lines
        return {lines[line - 1] + column: value for (line, column), value in places.items()}
