"""What `events.v1` can be told, checked where it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from seqmlm.errors import UsageError, nearest

VisitRule = Literal["auto", "id", "day", "gap"]
Hierarchy = Literal["none", "prefix"]
Keep = Literal["all", "recent"]

# Further inputs a model can have for each token, and how `seqmlm.engine.channels` reads them.
CHANNELS: dict[str, dict[str, Any]] = {
    "age": {"kind": "time2vec", "center": 50.0, "scale": 100.0},
    "time": {"kind": "time2vec", "scale": 3650.0},
    "visit": {"kind": "sinusoid"},
    "segment": {"kind": "category", "size": 3},
}


@dataclass(frozen=True, kw_only=True)
class EventOptions:
    """Options of `events.v1`.

    Args:
        visits: what makes events one visit: "id" the source's visit, "day" the calendar day (UTC), "gap"
            less than `gap_hours` since the event before, "auto" the source's visit where there is one, else
            the day.
        gap_hours: see `visits`.
        bins: most bins of a measured value, of equal counts.
        min_subjects: people that every token stands for, at least.
        hierarchy: "prefix" spells a code with its family in front, both one unit.
        keep: windows of a history longer than the model's: "all" of them, or only the most "recent" one.
        channels: further inputs: any of age (years), time (days since the first visit), visit (number),
            segment (1 and 2 in turns).
        mask_time, mask_background: intervals, and background with visit classes, are units like events:
            hidden, predicted and scored.
    """

    visits: VisitRule = "auto"
    gap_hours: float = 24.0
    bins: int = 10
    min_subjects: int = 10
    hierarchy: Hierarchy = "none"
    keep: Keep = "all"
    channels: tuple[str, ...] = ()
    mask_time: bool = False
    mask_background: bool = False

    def __post_init__(self) -> None:
        for name, kind in (("visits", VisitRule), ("hierarchy", Hierarchy), ("keep", Keep)):
            if getattr(self, name) not in get_args(kind):
                raise UsageError(
                    f"tokenizer option {name!r} must be one of {', '.join(get_args(kind))}, "
                    f"not {getattr(self, name)!r}"
                )
        for name in ("bins", "min_subjects", "gap_hours"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 1:
                raise UsageError(f"tokenizer option {name!r} must be a number of at least 1, not {value!r}")
        if isinstance(self.channels, str):
            raise UsageError("tokenizer option 'channels' is a list, such as [age, time]")
        for name in self.channels:
            if name not in CHANNELS:
                raise UsageError(f"tokenizer option 'channels': unknown {name!r}{nearest(name, CHANNELS)}")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> EventOptions:
        """Options from plain values.

        Raises:
            UsageError: an unknown option, or a value that makes no sense.
        """
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise UsageError(f"events.v1 has no option {name!r}{nearest(name, known)}")
        channels = values.get("channels", ())
        return cls(**{**values, "channels": channels if isinstance(channels, str) else tuple(channels)})
