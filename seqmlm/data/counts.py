"""Counts of people and things, and the rules for showing them.

For sensitive data (`seqmlm.privacy`), a count from 1 to 10 people is withheld. A withheld count must not
follow from a total that is shown. Therefore another part is withheld too if needed. A record counts as a
person. A plain number may count people, so it is withheld too. Counts of other things (files, tables, alarms)
have the type `Things`. Counts of people in sentences have the type `People`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from seqmlm.privacy import sensitive_data

SMALLEST = 11
"""Smaller counts (except 0) are withheld: the limit of US Medicare for published cells."""

Cell = int | str
SMALL: Cell = f"<{SMALLEST}"


class Things(int):
    """A count of things that are not people, such as alarms or files. It is never withheld.

    >>> redacted_count(3), redacted_count(Things(3))
    ('<11', 3)
    """


class People(int):
    """A count of people. It cannot be formatted: sentences must use its `cell`.

    Sums and differences of such counts are also of this type.

    >>> f"{People(12).cell} records"
    '12 records'
    >>> f"{People(12)} records"
    Traceback (most recent call last):
        ...
    TypeError: a count of people cannot be formatted; use its `cell`
    """

    @property
    def cell(self) -> Cell:
        """The count as it may be shown: "<11" for 1 to 10 people in sensitive data."""
        return released_count(int(self))

    @property
    def withheld(self) -> bool:
        """Whether the count must not be shown."""
        return isinstance(self.cell, str)

    @property
    def progress(self) -> int:
        """The count for a progress bar: 0 as long as it is withheld."""
        return 0 if self.withheld else int(self)

    def __add__(self, count: int) -> People:
        return People(int(self) + int(count))

    __radd__ = __add__

    def __sub__(self, count: int) -> People:
        return People(int(self) - int(count))

    def __format__(self, spec: str) -> str:
        raise TypeError("a count of people cannot be formatted; use its `cell`")

    def __str__(self) -> str:
        raise TypeError("a count of people cannot be formatted; use its `cell`")

    def __repr__(self) -> str:
        return f"People({self.cell})"


def with_things(counts: Mapping[str, int], names: Collection[str]) -> dict[str, int]:
    """The counts, with the type `Things` for those in `names`."""
    return {name: Things(count) if name in names else count for name, count in counts.items()}


def is_small(count: int) -> bool:
    """Whether a count is of 1 to 10 people."""
    return 0 < count < SMALLEST and not isinstance(count, Things)


def redacted_count(count: int) -> Cell:
    """The count, or "<11" for 1 to 10 people."""
    return SMALL if is_small(count) else count if isinstance(count, Things) else int(count)


def released_count(count: int) -> Cell:
    """The count as it may leave the process: "<11" for 1 to 10 people in sensitive data."""
    return redacted_count(count) if sensitive_data() else int(count)


def redacted_counts(counts: Mapping[str, int], *, parts: bool = False) -> dict[str, Cell]:
    """The counts by name, with small counts withheld.

    Args:
        counts: counts by name.
        parts: whether they add up to a total that is shown too. The total would reveal a single withheld
            count, or several withheld counts with a small sum. In these cases the next larger count is
            withheld too.

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


def released_counts(counts: Mapping[str, int], *, parts: bool = False) -> dict[str, Cell]:
    """The counts as they may leave the process: `redacted_counts` for sensitive data."""
    return redacted_counts(counts, parts=parts) if sensitive_data() else dict(counts)


def released_extremes(values: Sequence[float]) -> dict[str, float]:
    """The smallest and largest value as "min" and "max".

    For sensitive data none, since each is one person's.
    """
    return {} if sensitive_data() else {"min": min(values), "max": max(values)}


_EXTREMES = ("0.0", "1.0")


def redacted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of sensitive data as they may leave the process.

    A count from 1 to 10 becomes "<11", also in nested mappings, unless it has the type `Things`. The lowest
    and the highest quantile are removed, because each is the value of one record.

    >>> redacted({"records": 5, "tokens": 120, "problems": {"no time": 3}})
    {'records': '<11', 'tokens': 120, 'problems': {'no time': '<11'}}
    """
    return {key: _redacted_value(key, value) for key, value in values.items()}


def released(values: Mapping[str, Any]) -> dict[str, Any]:
    """Figures as they may leave the process: `redacted` for sensitive data."""
    return redacted(values) if sensitive_data() else dict(values)


def _redacted_value(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        parts = {k: v for k, v in value.items() if not ("quantiles" in key and k in _EXTREMES)}
        return parts if "quantiles" in key else redacted(parts)
    if "quantiles" in key and isinstance(value, (list, tuple)):
        return list(value[1:-1])
    if isinstance(value, (list, tuple)):
        return [_redacted_value(key, part) if isinstance(part, Mapping) else part for part in value]
    return redacted_count(value) if isinstance(value, int) and not isinstance(value, bool) else value
