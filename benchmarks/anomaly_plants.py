"""Faults planted in sequences: changes of order, which counts cannot detect, and substitutions."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from typing import TypeVar

import numpy as np

Unit = TypeVar("Unit", bound=Hashable)
Random = np.random.Generator

_TRIES = 20


def swapped(units: tuple[Unit, ...], random: Random) -> tuple[Unit, ...]:
    """Two different neighbours change places."""
    apart = [i for i in range(len(units) - 1) if units[i] != units[i + 1]]
    if not apart:
        return units
    i = int(random.choice(apart))
    return (*units[:i], units[i + 1], units[i], *units[i + 2 :])


def exchanged(units: tuple[Unit, ...], random: Random) -> tuple[Unit, ...]:
    """Two different units that are not neighbours change places."""
    for _ in range(_TRIES):
        i, j = sorted(random.integers(len(units), size=2).tolist())
        if j - i > 1 and units[i] != units[j]:
            return (*units[:i], units[j], *units[i + 1 : j], units[i], *units[j + 1 :])
    return units


def moved(units: tuple[Unit, ...], random: Random) -> tuple[Unit, ...]:
    """One to three units go elsewhere."""
    size = min(int(random.integers(1, 4)), len(units))
    start = int(random.integers(len(units) - size + 1))
    block, rest = units[start : start + size], units[:start] + units[start + size :]
    at = int(random.integers(len(rest) + 1))
    return rest[:at] + block + rest[at:]


def reversed_part(units: tuple[Unit, ...], random: Random) -> tuple[Unit, ...]:
    """Three to six units are reversed."""
    size = min(int(random.integers(3, 7)), len(units))
    start = int(random.integers(len(units) - size + 1))
    return units[:start] + units[start : start + size][::-1] + units[start + size :]


def deleted(units: tuple[Unit, ...], random: Random) -> tuple[Unit, ...]:
    """One unit is missing."""
    i = int(random.integers(len(units)))
    return units[:i] + units[i + 1 :]


def duplicated(units: tuple[Unit, ...], random: Random) -> tuple[Unit, ...]:
    """One unit is repeated somewhere."""
    i, at = int(random.integers(len(units))), int(random.integers(len(units) + 1))
    return (*units[:at], units[i], *units[at:])


def substituted(units: tuple[Unit, ...], random: Random, alphabet: Sequence[Unit]) -> tuple[Unit, ...]:
    """One unit is another of the alphabet."""
    i = int(random.integers(len(units)))
    others = [unit for unit in alphabet if unit != units[i]]
    return (*units[:i], others[int(random.integers(len(others)))], *units[i + 1 :])


REORDERINGS: dict[str, Callable[[tuple[int, ...], Random], tuple[int, ...]]] = {
    "swap": swapped,
    "exchange": exchanged,
    "move": moved,
    "reverse": reversed_part,
}
COUNT_CHANGES: dict[str, Callable[[tuple[int, ...], Random], tuple[int, ...]]] = {
    "delete": deleted,
    "duplicate": duplicated,
}


def planted(
    sessions: Sequence[tuple[int, ...]],
    fault: Callable[[tuple[int, ...], Random], tuple[int, ...]],
    normal: Container[tuple[int, ...]],
    seed: int,
) -> list[tuple[int, ...] | None]:
    """One faulty copy of each session; None if every draw gave a sequence that is known to be normal."""
    random = np.random.default_rng(seed)
    found: list[tuple[int, ...] | None] = []
    for session in sessions:
        drawn = (fault(session, random) for _ in range(_TRIES))
        found.append(next((one for one in drawn if one and one not in normal), None))
    return found
