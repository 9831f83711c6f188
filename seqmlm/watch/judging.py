"""The model that judges the rows of a stream, and what makes lines of what it judged."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from seqmlm.errors import StateError
from seqmlm.inference.batches import Encoded
from seqmlm.inference.detector import Detector, JudgedRow
from seqmlm.streams.cursor import file_facts
from seqmlm.tasks.score_output import Familiar, line
from seqmlm.tasks.score_plan import ScoringPlan
from seqmlm.tasks.score_shift import Shift, shifted
from seqmlm.tasks.task import Progress
from seqmlm.watch.calibration import judged_by
from seqmlm.watch.config import ROLLING, WatchConfig
from seqmlm.watch.outbox import Outbox
from seqmlm.watch.rolling import Rolling, RollingDetector
from seqmlm.watch.rows import RECENT, WatchCounts, further
from seqmlm.watch.versions import Shadow, alias_of, reference

_DAY = 86_400.0  # seconds after which a shift that goes on is told again


class Judging:
    """The model that judges, and what makes lines of what it judged.

    Args:
        config: what is asked.
        counts: of all rows.
        progress: told when p-values are not those of normal data any more.
        clock: seconds since 1970-01-01 UTC.

    Attributes:
        rolling: its calibration, which may move on with the rows; None of sensitive data where it may not, or
            where there is none.
        shadow: another version that judges beside it; None for none.
    """

    plan: ScoringPlan
    rolling: Rolling | None = None
    shadow: Shadow | None = None

    def __init__(
        self,
        config: WatchConfig,
        counts: WatchCounts,
        progress: Progress,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._counts, self._progress, self._clock = config, counts, progress, clock

    def take_up(self, plan: ScoringPlan) -> None:
        """Judge by this plan from now on.

        Raises:
            StateError: the model has no calibration that could move on.
        """
        rolling, rolls = None, self._config.calibration == ROLLING
        if rolls and plan.stored is None:
            raise StateError(
                f"--calibration {ROLLING} moves on from the calibration of the model, which has none of "
                f"level {plan.level.name} in mode {plan.mode}: make one ('seqmlm calibrate')"
            )
        if plan.stored is not None and (rolls or not plan.sensitive):
            rolling = Rolling(
                plan.stored.fitted,
                _identity(plan),
                rate=plan.alpha,
                fixed=not rolls,
                judged_by=judged_by(plan.session, plan.stored.fitted, plan.level.name, str(plan.mode)),
            )
        self._detector = plan.detector(Detector if rolling is None else partial(RollingDetector, rolling))
        self.plan, self.rolling, self.familiar = plan, rolling, Familiar(plan)
        self._counts.recent.clear()  # the p-values of another model

    def answers(self, batch: Sequence[Encoded]) -> Sequence[JudgedRow]:
        """Judge a batch. A rolling calibration moves on with it; but turns are not broken off by signals."""
        judged = self._detector.encoded(batch)
        return judged if self.shadow is None else self.shadow.beside(batch, judged)

    def rows(self, outbox: Outbox, judged: Sequence[JudgedRow]) -> list[dict[str, Any]]:
        """The lines of rows that were judged, which are to be written next."""
        made = [self._line(one) for one in judged if one.alarm or not self._config.alarms_only]
        for one in judged:
            self._counts.take(one)
        if alias_of(self._config, self.plan) is not None:
            made = [{**row, "model": reference(self._config, self.plan)} for row in made]
        if self.rolling is not None:
            alarms = (number for number, row in enumerate(made, outbox.number + 1) if row.get("alarm"))
            self.rolling.tie(((one.row.score is not None, bool(one.alarm)) for one in judged), alarms)
        self._tell_shift()
        return made

    def _line(self, judged: JudgedRow) -> dict[str, Any]:
        plan = self.plan
        own = line(
            judged,
            plan.session.tokenizer,
            per_unit=plan.per_unit,
            sensitive=plan.sensitive,
            calibrated=plan.calibrated,
            level=plan.level,
        )
        return {**own, **further(plan, judged)}

    @property
    def shift(self) -> tuple[Shift, str] | None:
        """How the last p-values are not those of normal data, and a sentence that says so."""
        instead = f", or follow with --calibration {ROLLING} and another --out"
        moves_on = "; the rolling calibration moves on to these rows, which takes as many as it rests on"
        return shifted(
            **{"low_p": None, "lowest_p": None, **self._counts.recent_shares(self.plan)},
            rows=f"the last {RECENT} rows",
            instead=moves_on if self._config.calibration == ROLLING else instead,
        )

    def _tell_shift(self) -> None:
        shift, told, now = self.shift, self._counts.told, self._clock()
        if shift is not None and abs(now - told.get(shift[0], -math.inf)) >= _DAY:
            told[shift[0]] = now
            self._progress.message(shift[1])


def _identity(plan: ScoringPlan) -> str:
    """Names what a rolling calibration began with: its rows are of no use to another model or mode."""
    files = {Path(path).name: digest for path, digest in file_facts(plan.session.model.files).items()}
    told = json.dumps([files, plan.level.name, str(plan.mode), plan.session.counts, plan.session.precision])
    return sha256(told.encode()).hexdigest()
