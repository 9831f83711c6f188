"""Live scoring: a model that scores records while other programs write them, and counts of all rows.

`seqmlm.watch` scores only through this module, and does not deal with levels and calibrations. The trade-off:
one class combines the model, the plan and the detector, which are separate in `scoring.score`.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.anomaly.values import Row
from seqmlm.data.counts import released
from seqmlm.data.files import Source
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.errors import UsageError, p_value_text
from seqmlm.inference.detector import JudgedRow
from seqmlm.inference.record_batches import encoded
from seqmlm.parsing import magnitude
from seqmlm.reports.summary import Summary, problem_counts
from seqmlm.scoring.config import ScoringRequest
from seqmlm.scoring.output import Familiar, Tally, planned_line, sentence, tells_shares, unit_fields
from seqmlm.scoring.plan import ScoringPlan, check_rate, choose
from seqmlm.scoring.shift import FEWEST_TOLD, TOO_LOW_LIVE, Shift, detect_shift
from seqmlm.streams.cursor import file_facts
from seqmlm.tasks.reading import TICK_SHARE, parts_of
from seqmlm.tasks.settings import check_field
from seqmlm.tasks.task import open_model

P_EDGES = (0.001, 0.01, 0.05, *(tenths / 10 for tenths in range(1, 11)))
"""Upper ends of the bins for counting recent p-values."""

RECENT = 200
"""Number of recent rows whose p-values are examined for a shift."""

_DAY = 86_400.0  # seconds after which a continuing shift is reported again
_LONGEST = 1000  # maximum characters of a message or template in an alarm
_FEW = 0.35  # if a smaller share of p-values is at most .5, they are not uniform
_FULL_WINDOW = 1 << 40  # units


class LiveCounts(Tally):
    """Counts of all rows of a stream. A commit stores them, because rows without alarms need not be stored.

    incident_count: function that returns the number of incidents.
    """

    incident_count: Callable[[], int] = staticmethod(lambda: 0)

    records: int  # number of scored records
    numbers = (*Tally.numbers, "records")

    def __init__(self) -> None:
        super().__init__()
        self.recent: deque[int] = deque(maxlen=RECENT)  # bins of the last p-values
        self.shift_times: dict[str, float] = {}  # when shifts were reported; seconds since 1970-01-01 UTC

    def snapshot(self) -> dict[str, Any]:
        """The counts as values for JSON."""
        names = (*self.numbers, "first", "shift_times")
        return {**{name: getattr(self, name) for name in names}, "recent": list(self.recent)}

    def restore(self, counts: Mapping[str, Any]) -> None:
        """Continue from a `snapshot`, also one from an earlier version. It is empty at the beginning."""
        new_names = {"asked": "records", "told": "shift_times"}
        present = {new_names.get(name, name): count for name, count in counts.items()}
        vars(self).update({name: present[name] for name in self.snapshot() if name in present})
        self.recent = deque(self.recent, maxlen=RECENT)

    def take(self, judged: JudgedRow) -> None:
        """Count a row."""
        row = judged.row
        fields = {name: getattr(row, name) for name in ("source", "line", "score")}
        fields |= {name: getattr(judged, name) for name in ("p_value", "alarm", "unfamiliar")}
        self.add({**fields, "units": len(row.units)})
        if judged.p_value is not None:
            self.recent.append(min(bisect_left(P_EDGES, judged.p_value), len(P_EDGES) - 1))

    def incidents(self) -> int:
        return self.incident_count()

    def recent_shares(self) -> dict[str, float]:
        """`shares` of the last `RECENT` rows, empty for fewer rows."""
        if len(self.recent) < RECENT:
            return {}
        limits = {"low_p": 0.5, "lowest_p": 0.05}
        return {
            name: sum(P_EDGES[bin] <= limit for bin in self.recent) / RECENT for name, limit in limits.items()
        }


@dataclass(frozen=True, kw_only=True)
class JudgedRecords:
    """The rows of some records, ready to write, and the records that the model cannot read."""

    rows: Sequence[dict[str, Any]]
    unreadable: Sequence[Record]


class LiveModel:
    """A model that scores records as they arrive, with a plan that fits its calibrations.

    Args:
        config: level, mode and rate of alarms.
        say: called with messages for the user.
        clock: returns seconds since 1970-01-01 UTC.

    Raises:
        UsageError: the request is not valid, or files of the field cannot be followed.
        StateError: the model does not exist, or alarms are requested without a calibration.
    """

    plan: ScoringPlan

    def __init__(
        self, config: ScoringRequest, say: Callable[[str], None], clock: Callable[[], float] = time.time
    ) -> None:
        check_field(config, config.level)
        check_rate(config)
        self._config, self._say, self._clock = config, say, clock
        self.counts = LiveCounts()
        self._use(choose(config, open_model(config)))
        domain = self.plan.session.domain
        if not domain.reading.followed:
            raise UsageError(
                f"files of the domain {domain.name} cannot be watched: pipe them into 'seqmlm score MODEL -'"
            )
        for note in self.plan.notes:
            say(note)

    def _use(self, plan: ScoringPlan) -> None:
        self.plan, self._detector, self._familiar = plan, plan.detector(), Familiar(plan)

    @property
    def reference(self) -> str:
        """The name of the model version in rows: NAME:VERSION for a registered model."""
        entry = self.plan.session.entry
        return self._config.model if entry is None else entry.reference

    @property
    def version(self) -> dict[str, Any]:
        """The fields of a row that identify the model version and its calibration."""
        stored = self.plan.stored
        return {"model": self.reference} | ({} if stored is None else {"calibrated": stored.created})

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of each of the model's files, by path."""
        return file_facts(self.plan.session.model.files)

    @property
    def sensitive(self) -> bool:
        """Whether rows contain sensitive data."""
        return self.plan.session.card.sensitive

    @property
    def shows_incidents(self) -> bool:
        """Whether incidents are possible and their number may be shown. It is hidden for sensitive data."""
        return self.rated and not self.sensitive

    def data_rules(self) -> AbstractContextManager[None]:
        """A context that applies the rules for the model's data (`Session.data_rules`)."""
        return self.plan.session.data_rules()

    @property
    def rated(self) -> bool:
        """Whether rows can raise alarms."""
        return self.plan.alpha is not None

    def rotation(self, path: str) -> tuple[Any, ...]:
        """A sort key that puts the files of one log in the order in which they were written."""
        return self.plan.session.domain.reading.rotation(path)

    def tick(self, latency: float) -> float:
        """Seconds that lines may wait to become records, if rows are due within `latency`."""
        return TICK_SHARE * latency

    def read(self, source: Source, problems: Problems) -> Iterator[Record]:
        """The records of a source."""
        config = self._config
        reader = self.plan.session.reader([source], format=config.format, options=config.options)
        return iter(reader(problems))

    def judge(self, records: Sequence[Record], problems: Problems) -> JudgedRecords:
        """Score some records and count their rows."""
        session, rows = self.plan.session, list[dict[str, Any]]()
        readable = encoded(session.domain, session.tokenizer, records, problems)
        for part in parts_of(readable, self.plan.budget.share):
            self._familiar.note(part.items, problems)
            for judged in self._detector.encoded(part.items):
                self.counts.take(judged)
                if judged.alarm or not self._config.alarms_only:
                    alarm = alarm_fields(judged, self.plan) if judged.alarm else {}
                    rows.append(planned_line(judged, self.plan) | alarm | self.version)
        self.counts.records += len(readable)
        self._tell_shift()
        ids = {id(item.record) for item in readable}
        return JudgedRecords(rows=rows, unreadable=[record for record in records if id(record) not in ids])

    def pause_row(self, path: str, line: int, *, seconds: float, last: float) -> dict[str, Any] | None:
        """The alarm for a log without new lines for some seconds, or None if that is not unusual.

        The alarm is counted.

        Args:
            seconds: seconds without a line.
            last: time of the last line, in seconds since 1970-01-01 UTC.
        """
        row = pause_row(self.plan, path, line, seconds=seconds, last=last)
        if row is not None:
            self.counts.add(row)
            row |= self.version
        return row

    @property
    def shift(self) -> tuple[Shift, str] | None:
        """The shift that the last p-values show, with a sentence about it, or None."""
        plan = self.plan
        shares = self.counts.recent_shares() if tells_shares(plan) else {}
        return detect_shift(
            **{"low_p": None, "lowest_p": None, **shares},
            judged=RECENT,
            normal=0 if plan.stored is None else plan.stored.rows,
            limits=TOO_LOW_LIVE,
            rows=f"the last {RECENT} rows",
            instead=", then restart this command: it continues with the new calibration",
        )

    def _tell_shift(self) -> None:
        """Report a shift once a day."""
        shift, times, now = self.shift, self.counts.shift_times, self._clock()
        if shift is not None and abs(now - times.get(shift[0], -math.inf)) >= _DAY:
            times[shift[0]] = now
            self._say(shift[1])

    def summary(self, task: str, problems: Problems, quarantine: Path, seconds: float) -> Summary:
        """The summary of the whole stream.

        Args:
            seconds: duration of this run.
        """
        plan, counts = self.plan, self.counts
        figures = released({**counts.figures(plan), "level": plan.level.name})
        return Summary(
            task=task,
            **problem_counts(problems, counts.records, quarantine),
            figures={**figures, "mode": str(plan.mode)},
            answer=sentence(plan, figures, counts.records, seconds, None),  # most of the time is waiting
        )


def alarm_fields(judged: JudgedRow, plan: ScoringPlan) -> dict[str, Any]:
    """Additional fields of an alarm, used for grouping alarms of a file into incidents.

    These are `what` is wrong, the times, and the fields of `Reasons.alarm_facts`. The most telling unit gives
    its `message`, its `template` and what was `expected`.
    """
    row, scored = judged.row, judged.scored_record
    if row.score is None:
        return {"what": f"an unfamiliar {plan.level.name}"}
    fields = plan.level.reasons.alarm_facts(row, scored, plan.background, judged.fired)
    unit, times = fields.pop("unit", None), fields.pop("times", None) or (row.time, row.time)
    if unit is not None:
        of_unit = unit_fields(row, scored, unit, plan.session.tokenizer)
        fields["message"] = of_unit["unit"][:_LONGEST]
        fields["expected"] = [likely["unit"] for likely in of_unit.get("expected", ())]
    if "template" in fields:
        fields["template"] = fields["template"][:_LONGEST]
    for name, seconds in zip(("time", "last_time"), times, strict=True):
        with suppress(ValueError, OverflowError, OSError):  # a year beyond all calendars
            fields |= {} if seconds is None else {name: _iso(seconds)}
    return fields


def pause_row(
    plan: ScoringPlan, path: str, line: int, *, seconds: float, last: float
) -> dict[str, Any] | None:
    """The alarm for a pause, compared with the longest pauses of full windows; see `LiveModel.pause_row`."""
    statistics = plan.level.reasons.pause_statistics(seconds)
    if plan.stored is None or plan.alpha is None or not statistics:
        return None
    normal = plan.stored.fitted
    if not statistics.keys() <= set(normal.applying):
        return None
    values = {name: np.array([statistics.get(name, np.nan)]) for name in normal.statistics}
    p_value = float(normal.judge(values, np.array([_FULL_WINDOW])).p_value[0])
    if p_value > plan.alpha:
        return None
    [(name, score)] = statistics.items()
    place: dict[str, Any] = {"id": f"{Path(path).name}:{line}", "source": path, "line": line, "score": score}
    no_units = np.zeros(0, dtype=np.int64)
    row = Row(**place, start=0, end=0, units=no_units, length=_FULL_WINDOW, statistics=statistics)
    text = plan.level.reasons.meaning(name, row, normal.usual(name, _FULL_WINDOW))
    return {
        **place,
        "units": 0,
        "silence": seconds,
        "time": _iso(last),
        "last_time": _iso(time.time()),
        "p_value": p_value,
        "alarm": True,
        "lines": 0,
        "what": "the log has stopped",
        "scale": magnitude(seconds),
        "reason": f"The log has stopped: {text} (p {p_value_text(p_value)}).",
        **({"sensitive": True} if plan.session.card.sensitive else {}),
    }


def period_sentence(count: int, half: int, low: int) -> str:
    """A sentence on whether the p-values of a period look like p-values of normal rows; "" without any.

    Args:
        count: number of p-values.
        half, low: number of p-values of at most .5 and at most .05.
    """
    if not count:
        return ""
    if count < FEWEST_TOLD:
        return f"{count:,} p-values are too few to tell whether they are uniform, like those of normal rows"
    share, low_share = half / count, low / count
    shift = detect_shift(share, low_share, judged=count, normal=count, limits=TOO_LOW_LIVE)
    if shift is not None:
        return shift[1]
    alike = "about uniform, like those of normal rows"
    if share < _FEW:
        alike = "fewer small p-values than normal rows have, as for repeats and for training data"
    return f"{alike}: {share:.0%} are at most 0.5, {low_share:.1%} at most 0.05"


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
