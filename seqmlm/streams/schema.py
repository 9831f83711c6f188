"""What a row of results consists of: named columns of fixed kinds, declared before the first row comes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from seqmlm.errors import UsageError

Kind = Literal["text", "integer", "number", "flag", "channels", "units", "json"]
"""Of a column. "channels" is a mapping from channel to p-value, "units" a list of units with their spans and
surprisals, "json" anything else."""

EXTRA = "extra"
"""The flat column that holds, as JSON, every field of a row that the schema does not name."""


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns of a table of results.

    Args:
        columns: name to kind, in order.
        channels: names of the channels; where columns are flat each has one, `p_<channel>`.

    Raises:
        UsageError: a column and a channel whose flat names are the same.
    """

    columns: Mapping[str, Kind]
    channels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        spread = {f"p_{channel}" for channel in self.channels} | {EXTRA}
        if twice := spread & self.columns.keys():
            raise UsageError(f"two columns of the results are called {min(twice)!r}; rename the channel")

    @property
    def flat_columns(self) -> dict[str, Kind]:
        """Name to kind of the columns of a table whose cells are flat: channels are columns of their own."""
        flat: dict[str, Kind] = {}
        for name, kind in self.columns.items():
            if kind == "channels":
                flat |= {f"p_{channel}": "number" for channel in self.channels}
            else:
                flat[name] = kind
        flat[EXTRA] = "json"
        return flat

    def flat(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row with its channels spread, and what the schema does not name under "extra"; every column."""
        known: dict[str, Any] = {}
        for name, kind in self.columns.items():
            value = row.get(name)
            if kind == "channels":
                known |= {f"p_{channel}": (value or {}).get(channel) for channel in self.channels}
            else:
                known[name] = value
        further = {name: value for name, value in row.items() if name not in self.columns}
        known[EXTRA] = further or None
        return known


def finite(value: Any) -> Any:
    """The value with None for every number that is not finite: JSON has none of those."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(one) for one in value]
    return value
