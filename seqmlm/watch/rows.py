"""What a watching writes of a row beside what `score` does, and what it counts of all rows of a stream."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from seqmlm.inference.detector import JudgedRow
from seqmlm.tasks.score_output import Tally, tells_shares, unit_fields
from seqmlm.tasks.score_plan import ScoringPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What another version of the model says of a row.

    Args:
        alias, version: which alias names it, and its reference.
        p_value: None where it has no score of the row.
        alarm: whether it would alarm.
    """

    alias: str
    version: str
    p_value: float | None
    alarm: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComparedRow(JudgedRow):
    """A row that another version of the model has judged, too.

    Args:
        beside: what that says.
    """

    beside: Beside


def further(plan: ScoringPlan, judged: JudgedRow) -> dict[str, Any]:
    """Fields that the line of a row has behind those of `score`."""
    fields = brief(judged, plan) if judged.alarm else {}
    return {**fields, "shadow": asdict(judged.beside)} if isinstance(judged, ComparedRow) else fields


_LONGEST = 1000  # characters of a message or template that an alarm tells


def brief(judged: JudgedRow, plan: ScoringPlan) -> dict[str, Any]:
    """Further fields of an alarm, by which those of a followed file become incidents.

    They are `what` is wrong; of the unit that says most its `message`, its `template` and what was `expected`
    instead, the most probable first; `time` and `last_time` in ISO 8601; and as `Level.brief` says.
    """
    row, scored = judged.row, judged.scored
    if row.score is None:
        return {"what": f"an unfamiliar {plan.level.name}"}
    told = plan.level.brief(row, scored, plan.background, judged.fired)
    unit, times = told.pop("unit", None), told.pop("times", None) or (row.time, row.time)
    if unit is not None:
        fields = unit_fields(row, scored, unit, plan.session.tokenizer)
        told["message"] = fields["unit"][:_LONGEST]
        told["expected"] = [one["unit"] for one in fields.get("expected", ())]
    if "template" in told:
        told["template"] = told["template"][:_LONGEST]
    for name, seconds in zip(("time", "last_time"), times, strict=True):
        with suppress(ValueError, OverflowError, OSError):  # a year beyond all calendars
            told |= {} if seconds is None else {name: datetime.fromtimestamp(seconds, UTC).isoformat()}
    return told


P_EDGES = (0.001, 0.01, 0.05, *(tenths / 10 for tenths in range(1, 11)))
"""Upper ends of the bins that p-values are counted in."""

RECENT = 200
"""Rows whose p-values are looked at together."""


class WatchCounts(Tally):
    """Counts the rows of a stream, those of earlier processes included.

    Attributes:
        asked: records that the model was asked about.
        kept: how many incidents the stream has.
        p_histogram: rows with p-values up to each of `P_EDGES`, and above the one before; `p_sum` is of all.
        never_seen: rows that name something which no training line had.
        shadow_rows, shadow_failed: rows that a version beside judged, too, and that it could not judge.
        shadow_alarms, shadow_served, shadow_common: of those that both judged, rows that it would alarm, that
            alarmed, and both.
        recent: of the last `RECENT` rows with p-values, the bin of each.
        told: of shifts that were told, when; seconds since 1970-01-01 UTC.
    """

    kept: Callable[[], int] = staticmethod(lambda: 0)

    asked: int
    never_seen: int
    shadow_rows: int
    shadow_failed: int
    shadow_alarms: int
    shadow_served: int
    shadow_common: int
    p_sum: float
    p_histogram: list[int]
    recent: deque[int]
    told: dict[str, float]
    numbers = (
        *Tally.numbers,
        *("asked", "never_seen", "shadow_rows", "shadow_failed"),
        *("shadow_alarms", "shadow_served", "shadow_common"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.restore({})

    def restore(self, counts: Mapping[str, Any]) -> None:
        """Go on from what `snapshot` gave at the last commit; empty at the beginning."""
        for name in self.numbers:
            setattr(self, name, int(counts.get(name, 0)))
        self.first = str(counts.get("first_unscored", ""))
        self.p_sum = float(counts.get("p_sum", 0.0))
        self.p_histogram = list(counts.get("p_histogram", [0] * len(P_EDGES)))
        self.recent = deque(counts.get("recent", ()), maxlen=RECENT)
        self.told = dict(counts.get("told", {}))

    def take(self, judged: JudgedRow) -> None:
        """Count a row."""
        row = judged.row
        fields = {name: getattr(row, name) for name in ("source", "line", "score")}
        fields |= {name: getattr(judged, name) for name in ("p_value", "alarm", "unfamiliar")}
        self.add({**fields, "units": len(row.units)})
        if judged.p_value is not None:
            self.p_sum += judged.p_value
            bin = min(bisect_left(P_EDGES, judged.p_value), len(P_EDGES) - 1)
            self.p_histogram[bin] += 1
            self.recent.append(bin)
        self.never_seen += bool(judged.row.extra.get("never_seen"))
        if isinstance(judged, ComparedRow):
            self.shadow_rows += 1
            self.shadow_alarms += judged.beside.alarm
            self.shadow_served += bool(judged.alarm)
            self.shadow_common += judged.beside.alarm and bool(judged.alarm)

    def incidents(self) -> int:
        return self.kept()

    def snapshot(self) -> dict[str, Any]:
        """What is kept with a commit; JSON can hold it."""
        return {
            **{name: getattr(self, name) for name in self.numbers},
            "first_unscored": self.first,
            "p_sum": self.p_sum,
            "p_histogram": list(self.p_histogram),
            "recent": list(self.recent),
            "told": self.told,
        }

    def recent_shares(self, plan: ScoringPlan) -> dict[str, float]:
        """`shares` of the last `RECENT` rows; nothing of fewer, or of a small calibration."""
        if len(self.recent) < RECENT or not tells_shares(plan):
            return {}
        shares = {"low_p": 0.5, "lowest_p": 0.05}
        return {
            name: sum(P_EDGES[bin] <= most for bin in list(self.recent)) / RECENT
            for name, most in shares.items()
        }
