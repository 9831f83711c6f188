r"""Gaps in raw sequences: how people write and fill them.

In a text, a gap is written [MASK] or as the model's own mask token. [MASK:3] is a gap of three tokens, and
`\[MASK]` is the text "[MASK]" itself. A closed alphabet has its own letter for a gap. So do fields with
structured records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from seqmlm.errors import UsageError, nearest


class Hole(NamedTuple):
    """A gap: its place in the text of a sequence, and its number of tokens."""

    start: int
    end: int
    tokens: int = 1


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A sequence with gaps.

    Args:
        raw: the sequence, with any text in its gaps.
        holes: its gaps, in order. Their places count as the spans of its encoding do.
    """

    raw: Any
    holes: tuple[Hole, ...]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The half-open place of each gap."""
        return [(hole.start, hole.end) for hole in self.holes]

    @property
    def tokens(self) -> list[int]:
        """The number of tokens of each gap."""
        return [hole.tokens for hole in self.holes]


MASK = "[MASK]"
_FIELD = re.compile(r"\{\{|\}\}|\{(\w+)\}")


def read_holes(text: str, forms: Sequence[str]) -> tuple[str, list[Hole]]:
    r"""Remove escapes from a text, and find the gaps in it.

    Args:
        text: the text that a person wrote.
        forms: how a gap may be written. `[MASK]` may include a number of tokens.

    >>> read_holes(r"a [MASK] in \[MASK], [MASK:2]", ["[MASK]"])
    ('a [MASK] in [MASK], [MASK:2]', [Hole(start=2, end=8, tokens=1), Hole(start=20, end=28, tokens=2)])
    """
    pattern = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
    if MASK in forms:
        pattern += r"|\[MASK:(?P<tokens>[1-9][0-9]{0,3})\]"
    pieces, holes, last_end, size = [], list[Hole](), 0, 0
    for match in re.finditer(rf"(?P<literal>\\)?(?:{pattern})", text):
        between = text[last_end : match.start()]
        piece = match[0] if match["literal"] is None else match[0][1:]
        size += len(between)
        if match["literal"] is None:
            tokens = match.groupdict().get("tokens")
            holes.append(Hole(size, size + len(piece), int(tokens or 1)))
        pieces += [between, piece]
        size, last_end = size + len(piece), match.end()
    return "".join([*pieces, text[last_end:]]), holes


def escape_holes(text: str, forms: Sequence[str]) -> str:
    r"""Escape the parts of a text that look like gaps. `read_holes` then returns the same text, without gaps.

    >>> escape_holes("[MASK] is a word", ["[MASK]"])
    '\\[MASK] is a word'
    """
    pattern = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
    if MASK in forms:
        pattern += r"|\[MASK:[1-9][0-9]{0,3}\]"
    return re.sub(rf"\\*(?:{pattern})", lambda match: "\\" + match[0], text)


def frame(template: str, fields: Mapping[str, Any], forms: Sequence[str]) -> str:
    """Fill a template with data, escape what looks like a gap in the data, and strip white space.

    >>> frame("{text} It was [MASK]. {{}}", {"text": "Not [MASK] again."}, ["[MASK]"])
    'Not \\\\[MASK] again. It was [MASK]. {}'

    Raises:
        UsageError: the template names a field that does not exist.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        if match[1] not in fields:
            raise UsageError(f"the template names {{{match[1]}}}{nearest(match[1], fields)}")
        return escape_holes(str(fields[match[1]]), forms)

    return _FIELD.sub(value, template).strip()


def fields_in(template: str) -> set[str]:
    """The names of the fields in a template.

    >>> fields_in("{text} by {author} {{x}}") == {"text", "author"}
    True
    """
    return {match[1] for match in _FIELD.finditer(template) if match[1]}


def fill_holes(text: str, holes: Sequence[Hole], texts: Sequence[str]) -> tuple[str, list[Hole]]:
    """Fill the gaps of a text, and return the text and the new places of the gaps.

    >>> fill_holes("a _ b _", [Hole(2, 3), Hole(6, 7)], ["xx", "y"])
    ('a xx b y', [Hole(start=2, end=4, tokens=1), Hole(start=7, end=8, tokens=1)])
    """
    pieces, new_holes, last_end, size = [], list[Hole](), 0, 0
    for hole, filling in zip(holes, texts, strict=True):
        between = text[last_end : hole.start]
        size += len(between)
        new_holes.append(Hole(size, size + len(filling), hole.tokens))
        pieces += [between, filling]
        size, last_end = size + len(filling), hole.end
    return "".join([*pieces, text[last_end:]]), new_holes
