"""The spelling of ids: the text of a token, of a sequence and of a gap, and the parts that are concealed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from seqmlm.engine.types import Encoding, Ids


class Spelling:
    """The default spelling: each id as in the vocabulary, and each unit on its own line.

    Attributes:
        stand_in: the text for a gap; a unit of the alphabet if the alphabet is closed.
        encode_gaps: encodes sequences with `stand_in` in every gap; None if `encode_batch` can do it.

    Args:
        tokens: (V,) the vocabulary's string for each id.
        conceal: function from the text of a record to the text that rows and reports may show, of equal
            length.
    """

    stand_in: ClassVar[str] = "\ue000"  # Unicode assigns it no character, so texts do not have it
    encode_gaps: Callable[[Sequence[Any]], list[Encoding]] | None = None

    def __init__(self, tokens: Sequence[str], conceal: Callable[[str], str] = str) -> None:
        self.tokens, self.conceal = tokens, conceal

    def surface(self, token: int) -> str:
        """The text of an id in a raw sequence, without the markers of the vocabulary ("##", "▁")."""
        return self.tokens[token]

    def text_of_tokens(self, tokens: Sequence[int]) -> str:
        """The text of consecutive tokens; lines if units are lines."""
        return "\n".join(map(self.surface, tokens))

    def unit_text(self, token: int) -> str | None:
        """The text of an id if it can be a whole unit; None if it is only a piece of a unit."""
        return self.surface(token)

    def meaning(self, text: str) -> str | None:
        """The meaning of a unit with this spelling, if the data give a single meaning; None here."""
        return None

    def show(self, text: str, encoding: Encoding, places: Ids, predicted: Ids, hidden: str) -> str:
        """Three lines: the sequence with masks, with the predictions of the model, and unchanged.

        Args:
            places: (A,) masked positions of `encoding`, whose spans point into `text`.
            hidden: the text for a mask.
            predicted: (A,) the most probable ids at these positions.
        """
        masked = _filled(text, encoding, places, [hidden] * len(places))
        guess = _filled(text, encoding, places, [self.surface(int(token)) for token in predicted])
        lines = ("masked", masked), ("predicted", guess), ("true", text)
        return "\n".join(f"{label:<10}{' '.join(line.split())}" for label, line in lines)

    def respelled(self, encoding: Encoding) -> tuple[str, Ids]:
        """The text of an encoding, with spaces between separate units, and (L, 2) spans into that text."""
        pieces: list[str] = []
        spans = np.zeros((len(encoding), 2), dtype=np.int32)
        at, last_group, last_end = 0, None, None
        for position in np.flatnonzero(encoding.groups >= 0).tolist():
            group, text = int(encoding.groups[position]), self.surface(int(encoding.ids[position]))
            start, end = (0, 0) if encoding.spans is None else encoding.spans[position].tolist()
            if last_group is not None and group != last_group and start != last_end:
                pieces.append(" ")
                at += 1
            spans[position] = at, at + len(text)
            pieces.append(text)
            at, last_group, last_end = at + len(text), group, end
        return "".join(pieces), spans


class Letters(Spelling):
    """The spelling of a closed alphabet of letters, without spaces. The letter A is written for a gap."""

    stand_in: ClassVar[str] = "A"

    def text_of_tokens(self, tokens: Sequence[int]) -> str:
        return "".join(map(self.surface, tokens))


def _filled(text: str, encoding: Encoding, places: Ids, surfaces: Sequence[str]) -> str:
    """The text with the spans of some positions replaced by surfaces."""
    assert encoding.spans is not None
    pieces, last_end = list[str](), 0
    for place, surface in sorted(zip(places.tolist(), surfaces, strict=True)):
        start, end = encoding.spans[place].tolist()
        if start >= last_end:  # byte pieces of one character share its span; only the first is written
            pieces += [text[last_end:start], surface]
            last_end = end
    return "".join(pieces) + text[last_end:]
