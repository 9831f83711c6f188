"""How ids are written: the text of one, of several, of a sequence; of a gap, and what is not shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from seqmlm.engine.types import Encoding, Ids


class Spelling:
    """Each id as the vocabulary has it, units in lines of their own.

    Attributes:
        stand_in: what is written where a gap is; a unit, where the alphabet is closed.
        encode_gaps: encodes sequences with `stand_in` in every gap; None where `encode_batch` does that well.

    Args:
        tokens: (V,) the vocabulary's string for each id.
        conceal: text of a record to what rows and reports may show of it, of equal length.
    """

    stand_in: ClassVar[str] = "\ue000"  # Unicode assigns it no character, so texts do not have it
    encode_gaps: Callable[[Sequence[Any]], list[Encoding]] | None = None

    def __init__(self, tokens: Sequence[str], conceal: Callable[[str], str] = str) -> None:
        self.tokens, self.conceal = tokens, conceal

    def surface(self, token: int) -> str:
        """The text of an id in a raw sequence, without the vocabulary's markers ("##", "▁")."""
        return self.tokens[token]

    def text_of_tokens(self, tokens: Sequence[int]) -> str:
        """The text that some tokens have together, one after the other; lines, where units are lines."""
        return "\n".join(map(self.surface, tokens))

    def unit_text(self, token: int) -> str | None:
        """The text of an id where it can be a unit by itself; None where it is but a piece of one."""
        return self.surface(token)

    def meaning(self, text: str) -> str | None:
        """The meaning of a unit spelled so, in words, where the data gave all alike the same; here None."""
        return None

    def show(self, text: str, encoding: Encoding, places: Ids, predicted: Ids, hidden: str) -> str:
        """Three lines for a person: the sequence as the model saw it, as it guessed, and as it is.

        Args:
            places: (A,) positions of `encoding` (whose spans point into `text`) that `hidden` stands for.
            predicted: (A,) the ids the model found most likely there.
        """
        masked = _filled(text, encoding, places, [hidden] * len(places))
        guess = _filled(text, encoding, places, [self.surface(int(token)) for token in predicted])
        lines = ("masked", masked), ("predicted", guess), ("true", text)
        return "\n".join(f"{label:<10}{' '.join(line.split())}" for label, line in lines)

    def respelled(self, encoding: Encoding) -> tuple[str, Ids]:
        """The text of an encoding, with spaces where units were separate, and (L, 2) spans into that text."""
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
    """Letters of a closed alphabet, which A stands in for; they follow one another without a space."""

    stand_in: ClassVar[str] = "A"

    def text_of_tokens(self, tokens: Sequence[int]) -> str:
        return "".join(map(self.surface, tokens))


def _filled(text: str, encoding: Encoding, places: Ids, surfaces: Sequence[str]) -> str:
    """The text with the spans of some positions replaced by surfaces."""
    assert encoding.spans is not None
    pieces, last_end = list[str](), 0
    for place, surface in sorted(zip(places.tolist(), surfaces, strict=True)):
        start, end = encoding.spans[place].tolist()
        if start >= last_end:  # byte pieces of one character share its span: the first one stands for them
            pieces += [text[last_end:start], surface]
            last_end = end
    return "".join(pieces) + text[last_end:]
