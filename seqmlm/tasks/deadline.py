"""One deadline for all that a command with a time limit does, and a record of what the clock cut.

A limit counts from the start of the process. Imports, steps, evaluation, counts and calibration share it.
Reading is never cut: it may take half of the limit, and what it takes beyond that extends the deadline.

After the last step each phase has a share of the time that is left. A phase stops between two units of work,
such as two batches, when the next one would end after its share. How many units it did is written to the
run's folder before their result is used. A run that is resumed takes the number from there, so that it comes
to the same bytes. Time between a kill and the resumption does not count.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqmlm.engine.durable import replace_file
from seqmlm.errors import StateError, UsageError
from seqmlm.parsing import read_json

if TYPE_CHECKING:
    from seqmlm.engine.loop import LoopResult

CUTS = "cuts.json"
"""File of a run's folder with the amounts of work that the clock cut."""

AFTERWARDS = 0.2
"""Share of `max_time`, less the start, for what follows the last step: evaluation, counts and calibration."""

_LEAST_STEPS = 0.1  # share of the limit that is for steps, however long the start took
_READING = 0.5  # share of the limit that reading may take
# Seconds of processor time, measured with tiny models on one core of an AMD EPYC: what evaluation, counts and
# calibration take at least, and what registers a model and draws its page.
_LEAST_AFTERWARDS, _FINISH = 4.0, 1.5
_MOST_SLOWNESS = 10.0

Progress = Callable[[str, float], None]


def seconds(text: str | float) -> float:
    """Seconds of a duration such as 90, 90s, 10m or 1.5h; UsageError for anything else, or for zero.

    >>> seconds("10m")
    600.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(text).strip())
    value = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
    if value <= 0:
        raise UsageError(f"{text!r} is not a duration; write 90s, 10m or 2h")
    return value


@dataclass(frozen=True)
class Start:
    """How the time of a training is divided when its first step begins.

    Args:
        limit: seconds in all.
        elapsed: seconds of them that are over.
        steps: seconds of them that steps may take.
        slowness: seconds that a second of processor time took so far, 1 at least.
        reading: seconds that reading took.
    """

    limit: float
    elapsed: float
    steps: float
    slowness: float
    reading: float = 0.0

    @property
    def spent(self) -> float:
        """Seconds of the limit that are not for steps."""
        return self.limit - self.steps

    @property
    def finish(self) -> float:
        """Seconds that are kept for what cannot be cut at the end: registration and the page."""
        return min(_FINISH * self.slowness, self.limit / 4)


class Deadline:
    """The moment when a command must end.

    Args:
        began: reading of `time.monotonic` when the process started. Default: now.

    Attributes:
        limit: seconds; None for a command without one, which has all the time.
    """

    def __init__(self, began: float | None = None) -> None:
        self.limit: float | None = None
        self._began = self._origin = time.monotonic() if began is None else began
        self._processor = time.process_time() if began is None else 0.0
        self._reading = self._uncounted = 0.0

    def wall(self) -> float:
        """Seconds since the process started."""
        return time.monotonic() - self._began

    def elapsed(self) -> float:
        """Seconds that count for the limit."""
        return time.monotonic() - self._origin

    def seconds_left(self) -> float:
        """Seconds until the end; infinite without a limit."""
        return math.inf if self.limit is None else self.limit - self.elapsed()

    def carry(self, elapsed: float) -> None:
        """Set the elapsed seconds to those that an earlier process of the run counted."""
        self._origin = time.monotonic() - elapsed

    def extend(self, reading: float) -> str:
        """Take so many seconds of reading into account; a sentence where they were more than their share."""
        self._reading += reading
        if self.limit is None or reading <= (share := _READING * self.limit):
            return ""
        self._uncounted += reading - share
        self._origin += reading - share
        return (
            f"reading took {reading:.0f} s, more than half of --max-time {self.limit:g}s; reading is never "
            f"cut, so the whole may take {reading - share:.0f} s longer"
        )

    def start(self, trainings: int = 1) -> Start:
        """The division of the time, for steps of the first of several trainings, which begin now."""
        assert self.limit is not None
        elapsed = self.elapsed()
        processor = time.process_time() - self._processor
        slowness = (elapsed + self._uncounted) / processor if processor > 0 else 1.0
        slowness = min(max(slowness, 1.0), _MOST_SLOWNESS)
        without_steps = Start(self.limit, elapsed, 0.0, slowness)
        usable = max(0.0, self.limit - elapsed - without_steps.finish)
        afterwards = max(AFTERWARDS * usable, min(_LEAST_AFTERWARDS * slowness, usable / 2))
        steps = max(usable - afterwards, _LEAST_STEPS * self.limit) / trainings
        return Start(self.limit, elapsed, steps, slowness, self._reading)


class Cuts:
    """Amounts of work that the clock cut in a run, in a file of its folder: name -> plain values.

    Args:
        file: of the run.
        of: what the cuts are of; those that a file has of anything else are forgotten.
    """

    def __init__(self, file: Path, of: Mapping[str, Any]) -> None:
        self._file, self._of = file, dict(of)
        self._cuts: dict[str, dict[str, Any]] = {}
        if file.exists():
            try:
                saved = read_json(file)
                if saved["of"] == self._of:
                    self._cuts = dict(saved["cuts"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise StateError(
                    f"{file} cannot be read ({error}): remove it, and the run measures its time anew"
                ) from None

    def get(self, name: str) -> dict[str, Any] | None:
        """The values of a cut that an earlier process made."""
        return self._cuts.get(name)

    def write(self, name: str, **values: Any) -> None:
        """Write the values of a cut, before they are used."""
        self._cuts[name] = values
        replace_file(self._file, (json.dumps({"of": self._of, "cuts": self._cuts}, indent=1) + "\n").encode())


@dataclass(eq=False)
class Phase:
    """A part of a run that stops between two units of work.

    Call `ends_after` behind each unit; once no more are to be done, `settle` before their result is used.

    Args:
        key: of its cut.
        reports: receives how much of the work was done, where the clock cut it.
        progress: told name and share of the work that is done.
        end: seconds of the deadline at which its share is over; infinite where the clock cuts nothing.
        min_units: units that are done in any case.
        done: units that an earlier process settled; None for none.
    """

    name: str
    deadline: Deadline
    cuts: Cuts | None = None
    key: str = ""
    reports: list[str] = field(default_factory=list)
    progress: Progress = lambda name, share: None
    end: float = math.inf
    min_units: int = 1
    done: int | None = None
    units: int = field(default=0, init=False)
    share: float = field(default=0.0, init=False)
    seconds: float = field(default=0.0, init=False)
    is_cut: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._last = self.deadline.elapsed()

    def ends_after(self, share: float) -> bool:
        """Count a unit, after which `share` of the work is done; True if no further unit may begin."""
        self.units, self.share = self.units + 1, share
        self.progress(self.name, share)
        if self.cuts is None:
            return False
        if self.done is not None:
            return self.units >= self.done
        now = self.deadline.elapsed()
        unit, self._last = now - self._last, now
        self.seconds += unit
        self.is_cut = self.share < 1 and self.units >= self.min_units and now + unit > self.end
        return self.is_cut

    def settle(self, work: str, **facts: Any) -> dict[str, Any]:
        """Write how many units were done before they are used.

        Args:
            work: what all units are, for people.
            facts: what the clock has measured.

        Returns:
            The facts; those of an earlier process where there was one.
        """
        if self.cuts is None:
            return facts
        recorded = self.cuts.get(self.key)
        if recorded is None:
            recorded = {"units": self.units, "cut": self.is_cut, "elapsed": self.deadline.elapsed(), **facts}
            self.cuts.write(self.key, **recorded)
        else:
            self.deadline.carry(recorded["elapsed"])
        self.is_cut = bool(recorded["cut"])
        self.reports += [f"{self.share:.0%} of {work}"] if self.is_cut else []
        return recorded


_MARGIN = 0.8  # of a share, for work whose length is estimated


@dataclass(eq=False, kw_only=True)
class RemainingTime:
    """The time that is left for what follows the last step.

    Args:
        deadline: of the run.
        start: how its time was divided; None without a limit.
        cuts: of the run; None without a limit.
        key: beginning of the names of cuts.
        progress: told the name of a phase and the share of it that is done.

    Attributes:
        reports: what the clock cut, for people.
    """

    deadline: Deadline
    start: Start | None = None
    cuts: Cuts | None = None
    key: str = ""
    progress: Progress = lambda name, share: None
    reports: list[str] = field(default_factory=list, init=False)

    @property
    def seconds_left(self) -> float:
        """Seconds that phases may still take; 0 where the time is over."""
        return math.inf if self.start is None else max(0.0, self.deadline.seconds_left() - self.start.finish)

    def phase(self, name: str, share: float = 1.0, min_units: int = 1) -> Phase:
        """A phase that begins now, with a share of the seconds that are left."""
        key, end, done = self._key(name), math.inf, None
        if self.cuts is not None:
            end, recorded = self.deadline.elapsed() + share * self.seconds_left, self.cuts.get(key)
            done = None if recorded is None else int(recorded["units"])
        self.progress(name, 0.0)
        return Phase(
            name,
            self.deadline,
            self.cuts,
            key=key,
            reports=self.reports,
            progress=self.progress,
            end=end,
            min_units=min_units,
            done=done,
        )

    def is_over(self, name: str) -> bool:
        """Whether no time is left for a part that may be left out; as an earlier process decided."""
        return self.amount(f"{name} may begin", lambda: 1 + (self.seconds_left > 0)) == 1

    def amount(self, name: str, measure: Callable[[], float]) -> int | None:
        """An amount of work that is measured by the clock, 1 at least; None without a limit.

        It is written before it is used. Where an earlier process has written it, nothing is measured.
        """
        if self.cuts is None:
            return None
        recorded = self.cuts.get(self._key(name))
        if recorded is None:
            recorded = {"amount": max(1, int(measure())), "elapsed": self.deadline.elapsed()}
            self.cuts.write(self._key(name), **recorded)
        else:
            self.deadline.carry(recorded["elapsed"])
        return int(recorded["amount"])

    def affordable(
        self, name: str, work: Callable[[int], object], *, count: int, probe: int, share: float
    ) -> int:
        """Number of items, `count` at most, that work can take within a share of the seconds left.

        The work of a few items is measured for it. Without a limit it is `count`.

        Args:
            name: of the work, for people too.
            work: takes so many items; what it makes is thrown away.
        """
        probe = max(1, min(probe, count))

        def measure() -> float:
            seconds, began = share * self.seconds_left, self.deadline.elapsed()
            work(probe)
            speed = probe / max(self.deadline.elapsed() - began, 1e-9)
            # Work takes a little more than in proportion, and its speed changes.
            return min(float(count), max(float(probe), _MARGIN * seconds * speed))

        number = self.amount(name, measure)
        if number is None or number >= count:
            return count
        self.reports.append(f"{number / count:.0%} of {name}")
        return number

    def _key(self, name: str) -> str:
        return f"{self.key}{name}"


_FORWARD = 3.0  # a forward pass is a third of a training step's work
_LEAST_CALIBRATION = 600_000


@dataclass(eq=False, kw_only=True)
class TimeAfterTraining(RemainingTime):
    """The time that is left after a training, and what a model may compute in it.

    A budget is a share of that time at the measured speed. Without a limit nothing is cut, and calibration
    takes a fifth of the work of the steps.

    Args:
        outcome: of the steps.
    """

    outcome: LoopResult

    def __post_init__(self) -> None:
        self.key = f"{self.outcome.steps} steps: "
        self._speed = _FORWARD * self.outcome.tokens / max(self.outcome.seconds, 1e-9)
        if self.start is not None and self.outcome.resumed_from is not None:
            self.deadline.carry(self.start.elapsed + self.outcome.seconds)

    def set_speed(self, speed: float) -> None:
        """Take a measured speed of forward passes, in tokens a second, for the budgets of later phases."""
        self._speed = speed if speed > 0 else self._speed

    def budget(self, name: str, share: float) -> int | None:
        """Forward tokens for a share of the seconds that are left; None without a limit."""
        return self.amount(name, lambda: share * self.seconds_left * self._speed)

    @property
    def calibration(self) -> int:
        """Forward tokens that calibration may take."""
        budget = self.budget("calibration", 1.0)
        spent = AFTERWARDS * _FORWARD * self.outcome.tokens
        return max(int(spent), _LEAST_CALIBRATION) if budget is None else budget
