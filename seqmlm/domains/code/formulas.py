"""Formulas of the code sample: a computation, and its inverse on the next line.

    speed = (width + 7) * rate
    width = (speed / rate) - 7

A map should show which tokens depend on each other. Every name, number and operator of the first line
determines a token of the second line. Given the shape of the formula, no other two tokens depend on each
other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from random import Random
from typing import Any, NamedTuple

FILE = "formulas.jsonl"

PREFERRED = 0.5
"""Share of the formulas with the preferred token of the shape in a slot. In the other formulas, all tokens of
the kind have the same probability."""
NAMES = ("area", "cost", "depth", "force", "mass", "rate", "speed", "width")
NUMBERS = ("2", "3", "4", "5", "6", "7", "8", "9")
INVERSE = {"+": "-", "-": "+", "*": "/", "/": "*"}

SHAPES = {
    "short": ("speed", "width", "+7", "*rate"),
    "middle": ("cost", "area", "*depth", "-4", "/mass"),
    "long": ("force", "mass", "/3", "+area", "*5", "-width"),
}
"""The preferred tokens of each shape: the result, the input, and the steps (operator and operand)."""


class Formula(NamedTuple):
    """A generated formula. `pairs` are the 0-based characters at which two dependent tokens begin."""

    id: str
    shape: str
    text: str
    pairs: list[list[int]]

    def row(self) -> dict[str, str]:
        """The object of this formula in the file of formulas."""
        return {"id": self.id, "code": self.text, "language": "python", "shape": self.shape}

    def truth(self) -> dict[str, Any]:
        """The object of this formula in `truth.json`."""
        return {"id": self.id, "shape": self.shape, "pairs": self.pairs}


def draw(n: int, seed: int) -> Iterator[Formula]:
    """Generate `n` formulas, each of a random shape."""
    random = Random(f"formulas {seed}")
    for number in range(n):
        shape = random.choice(list(SHAPES))
        target, source, *steps = (_random_part(random, preferred) for preferred in SHAPES[shape])
        forward, forward_starts = _line(target, source, steps)
        inverse, back_starts = _line(
            source, target, [INVERSE[step[0]] + step[1:] for step in reversed(steps)]
        )
        sides, step_starts = (
            back_starts[1::-1],
            [back_starts[i : i + 2] for i in range(2, len(back_starts), 2)],
        )
        partners = chain(sides, *reversed(step_starts))
        pairs = [[a, len(forward) + b] for a, b in zip(forward_starts, partners, strict=True)]
        yield Formula(f"formula-{number}", shape, forward + inverse, pairs)


def truth(formulas: Iterable[Formula]) -> dict[str, Any]:
    """The part of `truth.json` about formulas."""
    return {
        "shapes": [{"name": name, "preferred": list(preferred)} for name, preferred in SHAPES.items()],
        "formulas": [formula.truth() for formula in formulas],
    }


def _random_part(random: Random, preferred: str) -> str:
    """Generate a name, or an operator and its operand: preferred tokens, or random tokens of their kind."""
    if preferred[0] in INVERSE:
        return _random_token(random, preferred[0]) + _random_token(random, preferred[1:])
    return _random_token(random, preferred)


def _random_token(random: Random, preferred: str) -> str:
    """Generate a token: the preferred token, or any token of its kind."""
    kind = next(kind for kind in (NAMES, NUMBERS, tuple(INVERSE)) if preferred in kind)
    return preferred if random.random() < PREFERRED else random.choice(kind)


def _line(target: str, source: str, steps: list[str]) -> tuple[str, list[int]]:
    """An assignment, and the starts of its variable tokens: both sides, then operator and operand by step."""
    text = f"{target} = {'(' * (len(steps) - 1)}{source}"
    starts = [0, len(text) - len(source)]
    for number, step in enumerate(steps):
        text += (")" if number else "") + " "
        starts += [len(text), len(text) + 2]
        text += f"{step[0]} {step[1:]}"
    return text + "\n", starts
