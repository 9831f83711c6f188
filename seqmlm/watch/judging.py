"""The model that judges the rows of a stream, what is written of them, and what is counted of all of them."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from seqmlm.errors import StateError
from seqmlm.inference.batches import Encoded
from seqmlm.inference.detector import Detector, JudgedRow
from seqmlm.rows.judge import Normal
from seqmlm.scoring.output import Familiar, Tally, planned_line, tells_shares, unit_fields
from seqmlm.scoring.plan import ScoringPlan
from seqmlm.scoring.shift import TOO_LOW_LIVE, Shift, shifted
from seqmlm.tasks.task import Progress
from seqmlm.watch.config import ROLLING, WatchConfig
from seqmlm.watch.rolling import Rolling, RollingDetector, judged_by
from seqmlm.watch.versions import Shadow, alias_of, reference

P_EDGES = (0.001, 0.01, 0.05, *(tenths / 10 for tenths in range(1, 11)))
"""Upper ends of the bins that p-values are counted in."""

RECENT = 200
"""Rows whose p-values are looked at together."""

_DAY = 86_400.0  # seconds after which a shift that goes on is told again
_LONGEST = 1000  # characters of a message or template that an alarm tells
_BESIDE = ("shadow_alarms", "shadow_served", "shadow_common")


class WatchCounts(Tally):
    """What is counted of all rows of a stream; kept with each commit, for rows without an alarm may not be.

    `kept` gives the number of incidents.
    """

    kept: Callable[[], int] = staticmethod(lambda: 0)

    asked: int  # records that were scored
    never_seen: int  # rows that name something no training line had
    shadow_rows: int  # that a shadow judged, too
    shadow_failed: int  # that it did not
    shadow_alarms: int  # of those that both judged, rows that it would alarm
    shadow_served: int  # that alarmed
    shadow_common: int  # both
    p_sum: float
    numbers = (*Tally.numbers, "asked", "never_seen", "p_sum", "shadow_rows", "shadow_failed", *_BESIDE)

    def __init__(self) -> None:
        super().__init__()
        self.p_histogram = [0] * len(P_EDGES)
        self.recent: deque[int] = deque(maxlen=RECENT)  # of the last rows with p-values, the bin of each
        self.told: dict[str, float] = {}  # of shifts that were told, when; seconds since 1970-01-01 UTC

    def snapshot(self) -> dict[str, Any]:
        """What is kept with a commit; JSON can hold it."""
        names = (*self.numbers, "first", "p_histogram", "told")
        return {**{name: getattr(self, name) for name in names}, "recent": list(self.recent)}

    def restore(self, counts: Mapping[str, Any]) -> None:
        """Go on from what `snapshot` gave at the last commit; empty at the beginning."""
        vars(self).update(counts)
        self.recent = deque(self.recent, maxlen=RECENT)

    def take(self, judged: JudgedRow, beside: Mapping[str, Any] | None = None) -> None:
        """Count a row, and what a shadow says of it."""
        row = judged.row
        fields = {name: getattr(row, name) for name in ("source", "line", "score")}
        fields |= {name: getattr(judged, name) for name in ("p_value", "alarm", "unfamiliar")}
        self.add({**fields, "units": len(row.units)})
        if judged.p_value is not None:
            self.p_sum += judged.p_value
            bin = min(bisect_left(P_EDGES, judged.p_value), len(P_EDGES) - 1)
            self.p_histogram[bin] += 1
            self.recent.append(bin)
        self.never_seen += bool(row.extra.get("never_seen"))
        if beside is not None:
            self.shadow_rows += 1
            self.shadow_alarms += beside["alarm"]
            self.shadow_served += bool(judged.alarm)
            self.shadow_common += beside["alarm"] and bool(judged.alarm)

    def incidents(self) -> int:
        return self.kept()

    def recent_shares(self, plan: ScoringPlan) -> dict[str, float]:
        """`shares` of the last `RECENT` rows; nothing of fewer, or of a small calibration."""
        bins = list(self.recent)
        if len(bins) < RECENT or not tells_shares(plan):
            return {}
        shares = {"low_p": 0.5, "lowest_p": 0.05}
        return {name: sum(P_EDGES[bin] <= most for bin in bins) / RECENT for name, most in shares.items()}


class Judging:
    """The model that judges, and what makes lines of what it judged."""

    plan: ScoringPlan
    rolling: Rolling | None = None  # its calibration, where there is one, and it may be kept with the rows
    shadow: Shadow | None = None  # another version that judges beside it

    def __init__(
        self,
        config: WatchConfig,
        counts: WatchCounts,
        progress: Progress,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._counts, self._progress, self._clock = config, counts, progress, clock

    def take_up(self, plan: ScoringPlan) -> None:
        """Judge by this plan from now on; StateError: it has no calibration that could move on."""
        rolling, rolls = None, self._config.calibration == ROLLING
        if rolls and plan.stored is None:
            raise StateError(
                f"--calibration {ROLLING} moves on from the calibration of the model, which has none of "
                f"level {plan.level.name} in mode {plan.mode}: make one ('seqmlm calibrate')"
            )
        if plan.stored is not None and (rolls or not plan.sensitive):
            own = plan.stored.fitted
            by = judged_by(plan.session, own, plan.level.name, str(plan.mode))
            rolling = Rolling(own, by, rate=plan.alpha, fixed=not rolls)
        self._detector = plan.detector(Detector if rolling is None else partial(RollingDetector, rolling))
        self.plan, self.rolling, self.familiar = plan, rolling, Familiar(plan)
        self._counts.recent.clear()  # the p-values of another model

    def rows(self, batch: Sequence[Encoded], after: int) -> list[dict[str, Any]]:
        """Judge a batch: what is to be written of it, behind the row of a number."""
        judged = self._detector.encoded(batch)
        beside: Sequence[Mapping[str, Any] | None] = [None] * len(judged)
        if self.shadow is not None:
            beside = self.shadow.beside(batch, judged)
            self._counts.shadow_failed += sum(one is None for one in beside)
        named = alias_of(self._config, self.plan) is not None
        model = {"model": reference(self._config, self.plan)} if named else {}
        made = []
        for one, other in zip(judged, beside, strict=True):
            self._counts.take(one, other)
            if one.alarm or not self._config.alarms_only:
                told = brief(one, self.plan) if one.alarm else {}
                told |= {} if other is None else {"shadow": other}
                made.append(planned_line(one, self.plan) | told | model)
        if self.rolling is not None:
            alarms = (number for number, row in enumerate(made, after + 1) if row.get("alarm"))
            self.rolling.tie(((one.row.score is not None, bool(one.alarm)) for one in judged), alarms)
        self.tell_shift()
        return made

    def judges(self) -> tuple[ScoringPlan, Normal] | None:
        """The plan, and the normal rows that judge now; None without calibration."""
        if self.plan.stored is None:
            return None
        return self.plan, self.plan.stored.fitted if self.rolling is None else self.rolling.fitted

    @property
    def shift(self) -> tuple[Shift, str] | None:
        """How the last p-values are not those of normal data, and a sentence that says so."""
        instead = f", or follow with --calibration {ROLLING} and another --out"
        moves_on = "; the rolling calibration moves on to these rows, which takes as many as it rests on"
        return shifted(
            **{"low_p": None, "lowest_p": None, **self._counts.recent_shares(self.plan)},
            judged=RECENT,
            normal=0 if self.plan.stored is None else self.plan.stored.rows,
            least=TOO_LOW_LIVE,
            rows=f"the last {RECENT} rows",
            instead=moves_on if self._config.calibration == ROLLING else instead,
        )

    def tell_shift(self) -> None:
        """Say it, once a day."""
        shift, told, now = self.shift, self._counts.told, self._clock()
        if shift is not None and abs(now - told.get(shift[0], -math.inf)) >= _DAY:
            told[shift[0]] = now
            self._progress.message(shift[1])


def brief(judged: JudgedRow, plan: ScoringPlan) -> dict[str, Any]:
    """Further fields of an alarm, by which those of a followed file become incidents: `what` is wrong; of the
    unit that says most its `message`, `template` and what was `expected`; times; and as `Level.brief` says.
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
