"""Faults planted in the raw text of five fields. Each fault reports which characters it changed."""

from __future__ import annotations

import io
import keyword
import re
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

Random = np.random.Generator
Span = tuple[int, int]

_COMPARISONS = {"<": ">", ">": "<", "<=": ">", ">=": "<", "==": "!=", "!=": "=="}
_OPERATORS = {**_COMPARISONS, "+": "-", "-": "+", "*": "/", "//": "%", "and": "or", "or": "and"}


@dataclass(frozen=True, kw_only=True)
class Faulty:
    """A text with a fault in it.

    Args:
        text: the whole text.
        spans: half-open character offsets of the changed parts.
    """

    text: str
    spans: tuple[Span, ...]


Fault = Callable[[str, Random], Faulty | None]


def words_swapped(text: str, random: Random) -> Faulty | None:
    """Two different neighbouring words change places."""
    words = list(re.finditer(r"[A-Za-z]+", text))
    pairs = [
        (a, b)
        for a, b in pairwise(words)
        if text[a.end() : b.start()] == " " and a[0].lower() != b[0].lower()
    ]
    if not pairs:
        return None
    a, b = pairs[int(random.integers(len(pairs)))]
    changed = f"{text[: a.start()]}{b[0]} {a[0]}{text[b.end() :]}"
    middle = a.start() + len(b[0])
    return Faulty(text=changed, spans=((a.start(), middle), (middle + 1, b.end())))


def wrong_word(words: list[str]) -> Fault:
    """A lower-case word is replaced with a word drawn from running text, so that it is not always rare."""

    def fault(text: str, random: Random) -> Faulty | None:
        found = list(re.finditer(r"\b[a-z]+\b", text))
        if not found:
            return None
        old = found[int(random.integers(len(found)))]
        new = next(w for _ in iter(int, 1) if (w := words[int(random.integers(len(words)))]) != old[0])
        end = old.start() + len(new)
        return Faulty(text=text[: old.start()] + new + text[old.end() :], spans=((old.start(), end),))

    return fault


def substituted(letters: str, number: int) -> Fault:
    """Some letters are replaced with others, drawn with their frequencies in `letters`."""

    def fault(text: str, random: Random) -> Faulty | None:
        if len(text) < 4 * number:
            return None
        at = sorted(random.choice(len(text), size=number, replace=False).tolist())
        changed = list(text)
        for i in at:
            changed[i] = next(
                x for _ in iter(int, 1) if (x := letters[int(random.integers(len(letters)))]) != text[i]
            )
        return Faulty(text="".join(changed), spans=tuple((i, i + 1) for i in at))

    return fault


def segment_shuffled(size: int, *, unit: int = 1) -> Fault:
    """The letters of a stretch (or its pieces of `unit` letters) are shuffled."""

    def fault(text: str, random: Random) -> Faulty | None:
        if len(text) < 2 * size:
            return None
        start = int(random.integers(len(text) - size + 1))
        part = [text[i : i + unit] for i in range(start, start + size, unit)]
        mixed = "".join(part[i] for i in random.permutation(len(part)).tolist())
        if mixed == "".join(part):
            return None
        return Faulty(text=text[:start] + mixed + text[start + size :], spans=((start, start + size),))

    return fault


def foreign_insert(foreign: str, size: int) -> Fault:
    """A stretch is replaced with a stretch of another genome."""

    def fault(text: str, random: Random) -> Faulty | None:
        start = int(random.integers(len(text) - size + 1))
        taken = int(random.integers(len(foreign) - size + 1))
        changed = text[:start] + foreign[taken : taken + size] + text[start + size :]
        return Faulty(text=changed, spans=((start, start + size),))

    return fault


def wrong_operator(text: str, random: Random) -> Faulty | None:
    """A comparison is reversed, a plus becomes a minus, or an "and" becomes an "or"."""
    found = [(a, b) for kind, word, a, b in _python(text) if word in _OPERATORS and kind != tokenize.STRING]
    if not found:
        return None
    a, b = found[int(random.integers(len(found)))]
    new = _OPERATORS[text[a:b]]
    return Faulty(text=text[:a] + new + text[b:], spans=((a, a + len(new)),))


def operands_swapped(text: str, random: Random) -> Faulty | None:
    """The names on both sides of an operator, or two neighbouring arguments, change places."""
    tokens = _python(text)
    triples = [
        (one, three)
        for one, two, three in zip(tokens, tokens[1:], tokens[2:], strict=False)
        if _is_name(one)
        and _is_name(three)
        and one[1] != three[1]
        and two[1] in {*_OPERATORS, ",", "in", "="}
    ]
    if not triples:
        return None
    (_, left, a, b), (_, right, c, d) = triples[int(random.integers(len(triples)))]
    changed = text[:a] + right + text[b:c] + left + text[d:]
    return Faulty(text=changed, spans=((a, a + len(right)), (d - len(left), d)))


def variable_misused(text: str, random: Random) -> Faulty | None:
    """A name is replaced with another name of the function."""
    names = [token for token in _python(text) if _is_name(token)][1:]
    kinds = sorted({word for _, word, _, _ in names})
    if len(kinds) < 2:
        return None
    _, old, a, b = names[int(random.integers(len(names)))]
    others = [name for name in kinds if name != old]
    new = others[int(random.integers(len(others)))]
    return Faulty(text=text[:a] + new + text[b:], spans=((a, a + len(new)),))


def _is_name(token: tuple[int, str, int, int]) -> bool:
    kind, word, _, _ = token
    return kind == tokenize.NAME and not keyword.iskeyword(word)


def _python(text: str) -> list[tuple[int, str, int, int]]:
    """(kind, text, start, end) of the tokens that are not layout; [] if Python cannot tokenize the text."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    try:
        found = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return []
    return [
        (t.type, t.string, starts[t.start[0] - 1] + t.start[1], starts[t.end[0] - 1] + t.end[1])
        for t in found
        if t.string.strip() and t.type != tokenize.COMMENT
    ]
