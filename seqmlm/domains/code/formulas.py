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
        """Its JSON line in the file of formulas."""
        return {"id": self.id, "code": self.text, "language": "python", "shape": self.shape}

    def truth(self) -> dict[str, Any]:
        """Its object in `truth.json`."""
        return {"id": self.id, "shape": self.shape, "pairs": self.pairs}


def draw(n: int, seed: int) -> Iterator[Formula]:
    """`n` formulas, of a shape each at random."""
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
    """The keys of `truth.json` that are about formulas."""
    return {
        "shapes": [{"name": name, "preferred": list(preferred)} for name, preferred in SHAPES.items()],
        "formulas": [formula.truth() for formula in formulas],
    }


def _random_part(random: Random, preferred: str) -> str:
    """A name, or an operator and its operand: the preferred one, or a random one of the same kind."""
    if preferred[0] in INVERSE:
        return _random_token(random, preferred[0]) + _random_token(random, preferred[1:])
    return _random_token(random, preferred)


def _random_token(random: Random, preferred: str) -> str:
    """The preferred token, or any token of its kind."""
    kind = next(kind for kind in (NAMES, NUMBERS, tuple(INVERSE)) if preferred in kind)
    return preferred if random.random() < PREFERRED else random.choice(kind)


def _line(target: str, source: str, steps: list[str]) -> tuple[str, list[int]]:
    """An assignment, and where its tokens that vary begin: both sides, then operator and operand by step."""
    text = f"{target} = {'(' * (len(steps) - 1)}{source}"
    starts = [0, len(text) - len(source)]
    for number, step in enumerate(steps):
        text += (")" if number else "") + " "
        starts += [len(text), len(text) + 2]
        text += f"{step[0]} {step[1:]}"
    return text + "\n", starts
