"""Formulas of the code sample: a computation, and under it the one that takes it back.

    speed = (width + 7) * rate
    width = (speed / rate) - 7

A map of dependence should show which tokens belong together: every name, number and operator of the first
line determines one of the second, and no other two tell anything about each other, given the shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from random import Random
from typing import Any, NamedTuple

FILE = "formulas.jsonl"

PREFERRED = 0.5
"""Share of the formulas in which a slot holds what its shape prefers there for certain; in the others it is
any item of its kind, all alike."""
NAMES = ("area", "cost", "depth", "force", "mass", "rate", "speed", "width")
NUMBERS = ("2", "3", "4", "5", "6", "7", "8", "9")
INVERSE = {"+": "-", "-": "+", "*": "/", "/": "*"}

SHAPES = {
    "short": ("speed", "width", "+7", "*rate"),
    "middle": ("cost", "area", "*depth", "-4", "/mass"),
    "long": ("force", "mass", "/3", "+area", "*5", "-width"),
}
"""What each shape prefers: the result, the input, and the steps in order, each an operator and an operand."""


class Formula(NamedTuple):
    """One drawn formula; pairs are 0-based characters at which two tokens begin."""

    id: str
    shape: str
    text: str
    pairs: list[list[int]]

    def row(self) -> dict[str, str]:
        """As it stands in the file."""
        return {"id": self.id, "code": self.text, "language": "python", "shape": self.shape}

    def truth(self) -> dict[str, Any]:
        """As it stands in `truth.json`."""
        return {"id": self.id, "shape": self.shape, "pairs": self.pairs}


def draw(n: int, seed: int) -> Iterator[Formula]:
    """`n` formulas, of a shape each at random."""
    random = Random(f"formulas {seed}")
    for number in range(n):
        shape = random.choice(list(SHAPES))
        result, given, *steps = (_drawn(random, preferred) for preferred in SHAPES[shape])
        there, first = _line(result, given, steps)
        back, second = _line(given, result, [INVERSE[step[0]] + step[1:] for step in reversed(steps)])
        sides, taken_back = second[1::-1], [second[i : i + 2] for i in range(2, len(second), 2)]
        partners = chain(sides, *reversed(taken_back))
        pairs = [[a, len(there) + b] for a, b in zip(first, partners, strict=True)]
        yield Formula(f"formula-{number}", shape, there + back, pairs)


def truth(formulas: Iterable[Formula]) -> dict[str, Any]:
    """The keys of `truth.json` that are about formulas."""
    return {
        "shapes": [{"name": name, "preferred": list(own)} for name, own in SHAPES.items()],
        "formulas": [one.truth() for one in formulas],
    }


def _drawn(random: Random, preferred: str) -> str:
    """A name, or an operator and its operand, that is the preferred one or another of the kind."""
    if preferred[0] in INVERSE:
        return _one_of(random, preferred[0]) + _one_of(random, preferred[1:])
    return _one_of(random, preferred)


def _one_of(random: Random, preferred: str) -> str:
    kind = next(kind for kind in (NAMES, NUMBERS, tuple(INVERSE)) if preferred in kind)
    return preferred if random.random() < PREFERRED else random.choice(kind)


def _line(left: str, right: str, steps: list[str]) -> tuple[str, list[int]]:
    """An assignment, and where its tokens that vary begin: both sides, then operator and operand by step."""
    text = f"{left} = {'(' * (len(steps) - 1)}{right}"
    starts = [0, len(text) - len(right)]
    for number, step in enumerate(steps):
        text += (")" if number else "") + " "
        starts += [len(text), len(text) + 2]
        text += f"{step[0]} {step[1:]}"
    return text + "\n", starts
