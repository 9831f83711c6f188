"""Counts of few people are not told."""

from __future__ import annotations

from collections.abc import Mapping

SMALLEST = 11
"""Counts below it are not told: the rule of US Medicare for published cells, common in health statistics."""

Cell = int | str
SMALL: Cell = f"<{SMALLEST}"


def told(count: int) -> Cell:
    """A count that may be shown: itself, or "<11" for 1 to 10."""
    return count if count <= 0 or count >= SMALLEST else SMALL


def cells(counts: Mapping[str, int], *, parts: bool = False) -> dict[str, Cell]:
    """Counts that may be shown, by name.

    Args:
        counts: any.
        parts: they add up to a total that is shown too: where a single one is withheld, or several that are
            few together, so is the next larger one, because the total would give them away.

    >>> cells({"train": 56, "validation": 7}, parts=True)
    {'train': 'withheld', 'validation': '<11'}
    >>> cells({"train": 56, "validation": 2, "calibration": 3}, parts=True)
    {'calibration': '<11', 'train': 'withheld', 'validation': '<11'}
    >>> cells({"train": 56, "validation": 8, "calibration": 7}, parts=True)
    {'calibration': '<11', 'train': 56, 'validation': '<11'}
    """
    found = {name: told(count) for name, count in sorted(counts.items())}
    rest = sorted((count, name) for name, count in counts.items() if count >= SMALLEST)
    few = [count for count in counts.values() if 0 < count < SMALLEST]
    if parts and rest and few and (len(few) == 1 or sum(few) < SMALLEST):
        found[rest[0][1]] = "withheld"
    return found
