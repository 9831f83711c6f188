"""Aggregates of sensitive data: counts below 11 are withheld, and so are files about single records.

The limit is that of US Medicare for published cells, common in health statistics. A suppressed count must not
be derivable from a total that is shown, so one more part is withheld where needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SMALLEST = 11
"""Smaller counts (except 0) are withheld."""

Cell = int | str
SMALL: Cell = f"<{SMALLEST}"


def redacted_count(count: int) -> Cell:
    """The count, or "<11" for 1 to 10."""
    return count if count <= 0 or count >= SMALLEST else SMALL


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
    found = {name: redacted_count(count) for name, count in sorted(counts.items())}
    rest = sorted((count, name) for name, count in counts.items() if count >= SMALLEST)
    few = [count for count in counts.values() if 0 < count < SMALLEST]
    if parts and rest and few and (len(few) == 1 or sum(few) < SMALLEST):
        found[rest[0][1]] = "withheld"
    return found


PERSONAL = (
    *("trained_on.safetensors", "calibration.safetensors", "background.safetensors"),
    "counts.safetensors",
)
"""Files of a model folder about records: which ones trained, the score or counts of each that calibrated, and
what the training records have in common. For sensitive data they are not exported."""

_EXTREMES = ("0.0", "1.0")


def redact_small_counts(values: Mapping[str, Any], sensitive: bool) -> dict[str, Any]:
    """Counts as they may leave the workspace.

    For sensitive data a count from 1 to 10 becomes "<11", in nested mappings too, and the lowest and highest
    quantile, each the value of one record, are removed.

    >>> redact_small_counts({"records": 5, "tokens": 120, "problems": {"no time": 3}}, True)
    {'records': '<11', 'tokens': 120, 'problems': {'no time': '<11'}}
    """
    if not sensitive:
        return dict(values)
    return {key: _redacted(key, value) for key, value in values.items()}


def _redacted(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {k: v for k, v in value.items() if not ("quantiles" in key and k in _EXTREMES)}
        return kept if "quantiles" in key else redact_small_counts(kept, True)
    if "quantiles" in key and isinstance(value, (list, tuple)):
        return list(value[1:-1])
    if isinstance(value, (list, tuple)):
        return [_redacted(key, one) if isinstance(one, Mapping) else one for one in value]
    return redacted_count(value) if isinstance(value, int) and not isinstance(value, bool) else value
