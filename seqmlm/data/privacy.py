"""Aggregates of sensitive data: small counts of people are withheld, and so are files about single records.

Small is below 11, the limit of US Medicare for published cells, common in health statistics. A suppressed
count must not be derivable from a total that is shown, so one more part is withheld where needed. A record
counts as a person. Whatever counts something else (parts of records, files, tables) says so by the type
`Things`, where it is counted. A plain number may count people.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

SMALLEST = 11
"""Smaller counts (except 0) are withheld."""

Cell = int | str
SMALL: Cell = f"<{SMALLEST}"


class Things(int):
    """A count of things that are not people, such as alarms or files. It is never withheld.

    >>> redacted_count(3), redacted_count(Things(3))
    ('<11', 3)
    """


def with_things(counts: Mapping[str, int], names: Collection[str]) -> dict[str, int]:
    """Counts of which those of some names are `Things`."""
    return {name: Things(count) if name in names else count for name, count in counts.items()}


def is_small(count: int) -> bool:
    """Whether a count is of 1 to 10 people."""
    return 0 < count < SMALLEST and not isinstance(count, Things)


def redacted_count(count: int) -> Cell:
    """The count, or "<11" for 1 to 10 people."""
    return SMALL if is_small(count) else int(count)


def shown_count(count: int, sensitive: bool) -> Cell:
    """The count as people may see it: `redacted_count` of sensitive data."""
    return redacted_count(count) if sensitive else count


def redacted_counts(counts: Mapping[str, int], *, parts: bool = False) -> dict[str, Cell]:
    """Counts with small ones withheld, by name.

    Args:
        counts: by name.
        parts: they add up to a total that is shown too: if a single one is withheld, or several with a small
            sum, the next larger one is withheld as well, because the total would reveal them.

    >>> redacted_counts({"train": 56, "validation": 7}, parts=True)
    {'train': 'withheld', 'validation': '<11'}
    >>> redacted_counts({"train": 56, "validation": 2, "calibration": 3}, parts=True)
    {'calibration': '<11', 'train': 'withheld', 'validation': '<11'}
    >>> redacted_counts({"train": 56, "validation": 8, "calibration": 7}, parts=True)
    {'calibration': '<11', 'train': 56, 'validation': '<11'}
    """
    redacted = {name: redacted_count(count) for name, count in sorted(counts.items())}
    visible = sorted((count, name) for name, count in counts.items() if count >= SMALLEST)
    few = [count for count in counts.values() if is_small(count)]
    if parts and visible and few and (len(few) == 1 or sum(few) < SMALLEST):
        redacted[visible[0][1]] = "withheld"
    return redacted


PERSONAL = (
    *("trained_on.safetensors", "calibration.safetensors", "background.safetensors"),
    "counts.safetensors",
)
"""Files of a model folder about records: which ones trained, the score or counts of each that calibrated, and
what the training records have in common. For sensitive data they are not exported."""

_EXTREMES = ("0.0", "1.0")


def redact_small_counts(values: Mapping[str, Any], sensitive: bool) -> dict[str, Any]:
    """Counts as they may leave the workspace.

    For sensitive data a count from 1 to 10 becomes "<11", in nested mappings too, unless it is of `Things`.
    The lowest and highest quantile, each the value of one record, are removed.

    >>> redact_small_counts({"records": 5, "tokens": 120, "problems": {"no time": 3}}, True)
    {'records': '<11', 'tokens': 120, 'problems': {'no time': '<11'}}
    """
    if not sensitive:
        return dict(values)
    return {key: _redacted(key, value) for key, value in values.items()}


def _redacted(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        parts = {k: v for k, v in value.items() if not ("quantiles" in key and k in _EXTREMES)}
        return parts if "quantiles" in key else redact_small_counts(parts, True)
    if "quantiles" in key and isinstance(value, (list, tuple)):
        return list(value[1:-1])
    if isinstance(value, (list, tuple)):
        return [_redacted(key, part) if isinstance(part, Mapping) else part for part in value]
    return redacted_count(value) if isinstance(value, int) and not isinstance(value, bool) else value
