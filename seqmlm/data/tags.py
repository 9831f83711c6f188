"""Convert between tags of words and entities, in the schemes IO, BIO (IOB2) and BIOES.

Incorrect tags of a tagger are read as in `seqeval`, so that figures can be compared with published figures.
BILOU is BIOES with other letters. IOB1 (in which an I- begins an entity, Ramshaw and Marcus 1995) is read as
BIO with repairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from seqmlm.errors import DataError

Scheme = Literal["io", "bio", "bioes"]
Entity = tuple[int, int, str]
"""First word, the word after the last, and type."""

_LETTERS = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S"}
_OUTSIDE = ("O", "")


def entities(
    tags: Sequence[str], *, scheme: Scheme = "bio", source: str | None = None, line: int | None = None
) -> tuple[list[Entity], int]:
    """The entities of a sentence, and the number of tags that do not follow from the previous tag.

    An I- without a beginning starts an entity. A BIOES entity without an end ends with its last tag.

    Args:
        tags: one tag per word. "O" means no entity.
        scheme: the intended scheme.
        source, line: the place of the sentence, for messages.

    Raises:
        DataError: a tag belongs to no scheme.

    >>> entities(["B-PER", "I-PER", "O", "I-LOC"])
    ([(0, 2, 'PER'), (3, 4, 'LOC')], 1)
    """
    spans: list[Entity] = []
    # the letter before, and the type of the open entity
    repaired, first, letter_before, inside = 0, 0, "O", ""
    for n, tag in enumerate([*tags, "O"]):
        letter, kind = _parted(tag, source, line)
        goes_on = letter in ("I", "E") and letter_before in ("B", "I") and kind == inside
        if not goes_on:
            if letter_before in ("B", "I"):
                spans.append((first, n, inside))
            if (scheme == "bioes" and letter_before in ("B", "I")) or (
                scheme != "io" and letter in ("I", "E")
            ):
                repaired += 1
            first = n
        if letter in ("E", "S"):
            spans.append((first, n + 1, kind))
        letter_before, inside = letter, kind
    return spans, repaired


def _parted(tag: str, source: str | None, line: int | None) -> tuple[str, str]:
    if tag in _OUTSIDE:
        return "O", ""
    letter, _, kind = tag.partition("-")
    if letter not in _LETTERS or not kind:
        remedy = "write O, or B-TYPE and I-TYPE; for tags of single words use --task tags"
        raise DataError("not a tag of entities", source=source, line=line, remedy=remedy)
    return _LETTERS[letter], kind


def tagged(spans: Iterable[Entity], n: int, scheme: Scheme) -> list[str]:
    """The tags of a sentence with n words. IO joins neighbouring entities of the same type.

    Raises:
        DataError: entities overlap, or are not within the sentence.

    >>> tagged([(0, 2, "PER"), (3, 4, "LOC")], 4, "bioes")
    ['B-PER', 'E-PER', 'O', 'S-LOC']
    """
    tags = ["O"] * n
    for first, end, kind in spans:
        if not 0 <= first < end <= n or tags[first:end] != ["O"] * (end - first):
            raise DataError("entities that overlap, or are not within their sentence", remedy="leave one out")
        tags[first:end] = [f"I-{kind}"] * (end - first)
        if scheme != "io":
            tags[first] = f"B-{kind}"
        if scheme == "bioes":
            tags[end - 1] = f"{'S' if end - first == 1 else 'E'}-{kind}"
    return tags


def scheme_of(tags: Iterable[str]) -> Scheme | None:
    """The scheme of all tags in a data set. None if they are not tags of entities.

    >>> scheme_of(["O", "B-LOC", "I-LOC"]), scheme_of(["NOUN", "VERB"])
    ('bio', None)
    """
    letters = set()
    for tag in set(tags).difference(_OUTSIDE):
        letter, _, kind = tag.partition("-")
        letters.add(_LETTERS.get(letter) if kind else None)
    if not letters or None in letters:
        return None
    return "bioes" if letters & {"E", "S"} else "bio" if "B" in letters else "io"
