"""The deadline of a command with a time limit, and a record of the work that was cut short.

The limit counts from the start of the process. Imports, steps, evaluation, counts and calibration share it.
Reading is never cut short. It can take half of the limit. If it takes longer, the deadline moves accordingly.

After the last step, each phase gets a share of the remaining time. A phase stops between two units of work,
such as two batches, if the next one would end after its share. The number of completed units is written to
the run's folder before their result is used. A resumed run reads this number, and therefore produces the same
bytes. The time between a kill and the resumption does not count.
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
"""File in a run's folder that records how much work the clock allowed."""

AFTERWARDS = 0.2
"""Share of `max_time`, without the start-up, for evaluation, counts and calibration after the last step."""

_LEAST_STEPS = 0.1  # share of the limit for steps, even if the start-up took long
_READING = 0.5  # share of the limit that reading may take
# Seconds of processor time, measured with tiny models on one core of an AMD EPYC: the minimum for evaluation,
# counts and calibration, and the time to register a model and draw its page.
_LEAST_AFTERWARDS, _FINISH = 4.0, 1.5
_MOST_SLOWNESS = 10.0

Progress = Callable[[str, float], None]


def seconds(text: str | float) -> float:
    """The seconds of a duration such as 90, 90s, 10m or 1.5h.

    >>> seconds("10m")
    600.0

    Raises:
        UsageError: the text is not a duration, or is zero.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(text).strip())
    value = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
    if value <= 0:
        raise UsageError(f"{text!r} is not a duration: write 90s, 10m or 2h")
    return value


@dataclass(frozen=True)
class Start:
    """The division of a training's time when its first step begins.

    Args:
        limit: all seconds.
        elapsed: seconds that have passed.
        steps: seconds for training steps.
        slowness: wall-clock seconds per second of processor time so far, at least 1.
        reading: seconds that reading took.
    """

    limit: float
    elapsed: float
    steps: float
    slowness: float
    reading: float = 0.0

    @property
    def spent(self) -> float:
        """Seconds of the limit that are not available for steps."""
        return self.limit - self.steps

    @property
    def finish(self) -> float:
        """Seconds reserved for the end, which cannot be cut short: registration and the page."""
        return min(_FINISH * self.slowness, self.limit / 4)


class Deadline:
    """The time at which a command must end.

    Args:
        began: value of `time.monotonic` when the process started. Default: now.

    Attributes:
        limit: seconds, or None for a command without a time limit.
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
        """Seconds that count towards the limit."""
        return time.monotonic() - self._origin

    def seconds_left(self) -> float:
        """Seconds until the deadline, infinite without a limit."""
        return math.inf if self.limit is None else self.limit - self.elapsed()

    def carry(self, elapsed: float) -> None:
        """Set the elapsed seconds to the number that an earlier process of the run recorded."""
        self._origin = time.monotonic() - elapsed

    def extend(self, reading: float) -> str:
        """Add `reading` seconds of reading time, and extend the deadline if they exceed their share.

        Returns:
            A sentence about the extension, "" without one.
        """
        self._reading += reading
        if self.limit is None or reading <= (share := _READING * self.limit):
            return ""
        self._uncounted += reading - share
        self._origin += reading - share
        return (
            f"reading took {reading:.0f} s, more than half of --max-time {self.limit:g}s. Reading is never "
            f"cut short, so the command takes up to {reading - share:.0f} s longer"
        )

    def start(self, trainings: int = 1) -> Start:
        """Divide the remaining time at the first step; `trainings` trainings share the time for steps."""
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
    """The amounts of work that the clock allowed in a run, kept in a file: name -> plain values.

    Args:
        file: the file in the run's folder.
        of: facts that identify the work. If the file has other facts, its contents are discarded.

    Raises:
        StateError: the file cannot be read.
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
                    f"{file} cannot be read ({error}): remove the file; the run then measures its time again"
                ) from None

    def get(self, name: str) -> dict[str, Any] | None:
        """The values that an earlier process recorded, or None."""
        return self._cuts.get(name)

    def write(self, name: str, **values: Any) -> None:
        """Record values before they are used."""
        self._cuts[name] = values
        replace_file(self._file, (json.dumps({"of": self._of, "cuts": self._cuts}, indent=1) + "\n").encode())


@dataclass(eq=False)
class Phase:
    """A part of a run that can stop between two units of work.

    Call `ends_after` after each unit. After the last unit, call `settle` before the result is used.

    Args:
        key: name of its entry in `cuts`.
        reports: list that receives the completed share of the work if the phase was cut short.
        progress: called with the name and the completed share of the work.
        end: elapsed seconds at which its share of the time ends; infinite without a limit.
        min_units: units that are always done.
        done: number of units that an earlier process recorded, or None.
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
        """Count a unit, after which `share` of the work is done.

        Returns:
            True if no other unit may begin.
        """
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
        """Record the number of completed units before their result is used.

        Args:
            work: a description of all units, for messages.
            facts: measurements to record with it.

        Returns:
            The facts, or the facts that an earlier process recorded.
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


_MARGIN = 0.8  # fraction of a share that estimated work may use


@dataclass(eq=False, kw_only=True)
class RemainingTime:
    """The time that remains after the last step.

    Args:
        deadline: the deadline of the run.
        start: the division of its time, or None without a limit.
        cuts: the record of the run, or None without a limit.
        key: prefix for names in `cuts`.
        progress: called with the name of a phase and its completed share.

    Attributes:
        reports: texts about work that was cut short, for messages.
    """

    deadline: Deadline
    start: Start | None = None
    cuts: Cuts | None = None
    key: str = ""
    progress: Progress = lambda name, share: None
    reports: list[str] = field(default_factory=list, init=False)

    @property
    def seconds_left(self) -> float:
        """Seconds that phases may still take, 0 if the time is over."""
        return math.inf if self.start is None else max(0.0, self.deadline.seconds_left() - self.start.finish)

    def phase(self, name: str, share: float = 1.0, min_units: int = 1) -> Phase:
        """A phase that begins now and gets a share of the remaining seconds."""
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
        """Whether no time is left for an optional part. A resumed run keeps the earlier decision."""
        return self.amount(f"{name} may begin", lambda: 1 + (self.seconds_left > 0)) == 1

    def amount(self, name: str, measure: Callable[[], float]) -> int | None:
        """An amount of work, at least 1, that depends on the clock. None without a limit.

        It is recorded before it is used. If an earlier process recorded it, `measure` is not called.
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
        """The number of items, at most `count`, that can be processed in a share of the remaining seconds.

        The time for a few items is measured. Without a limit the number is `count`.

        Args:
            name: name of the work, also for messages.
            work: processes a given number of items. Its result is discarded.
            probe: number of items to measure.
            share: share of the remaining seconds.
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


_FORWARD = 3.0  # a forward pass takes a third of the work of a training step
_LEAST_CALIBRATION = 600_000


@dataclass(eq=False, kw_only=True)
class TimeAfterTraining(RemainingTime):
    """The time that remains after a training, and budgets of forward tokens for it.

    A budget is a share of that time at the measured speed. Without a limit nothing is cut short, and
    calibration takes a fifth of the work of the steps.

    Args:
        outcome: the result of the training steps.
    """

    outcome: LoopResult

    def __post_init__(self) -> None:
        self.key = f"{self.outcome.steps} steps: "
        self._speed = _FORWARD * self.outcome.tokens / max(self.outcome.seconds, 1e-9)
        if self.start is not None and self.outcome.resumed_from is not None:
            self.deadline.carry(self.start.elapsed + self.outcome.seconds)

    def set_speed(self, speed: float) -> None:
        """Use a measured speed of forward passes, in tokens per second, for later budgets."""
        self._speed = speed if speed > 0 else self._speed

    def budget(self, name: str, share: float) -> int | None:
        """Forward tokens for a share of the remaining seconds. None without a limit."""
        return self.amount(name, lambda: share * self.seconds_left * self._speed)

    @property
    def calibration(self) -> int:
        """Forward tokens that calibration may take."""
        budget = self.budget("calibration", 1.0)
        spent = AFTERWARDS * _FORWARD * self.outcome.tokens
        return max(int(spent), _LEAST_CALIBRATION) if budget is None else budget
