"""Counts of few people are not told."""

from __future__ import annotations

SMALLEST = 11
"""Counts below it are not told: the rule of US Medicare for published cells, common in health statistics."""

Cell = int | str
SMALL: Cell = f"<{SMALLEST}"


def told(count: int) -> Cell:
    """A count that may be shown: itself, or "<11" for 1 to 10."""
    return count if count <= 0 or count >= SMALLEST else SMALL
