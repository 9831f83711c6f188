"""Versions of the model that watches files: aliases move while it runs, and a shadow judges beside it.

A shadow judges the rows of the version that serves, of the same records and at the same level, with its own
tokenizer, calibration and background. Its answers are written beside those of the serving version and lead to
nothing else; whatever fails in it is said once, and costs its own answers alone. The trade-off: it takes its
turn in the same process, so every batch takes as long as both of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from seqmlm.data.problems import Problems
from seqmlm.errors import SeqmlmError, StateError, UsageError
from seqmlm.inference.batches import Encoded
from seqmlm.inference.detector import Detector, JudgedRow
from seqmlm.registry.store import Registry
from seqmlm.scoring.plan import ScoringPlan, check_rate, choose
from seqmlm.tasks.task import Progress, open_model
from seqmlm.watch.config import WatchConfig

_LOOK = 1.0  # seconds between two looks at what an alias names


def alias_of(config: WatchConfig, plan: ScoringPlan) -> str | None:
    """The alias that names the model, NAME@ALIAS, which may name another version at any time; else None."""
    name, _, alias = config.model.partition("@")
    entry = plan.session.entry
    return alias if entry is not None and name == entry.name and alias else None


def reference(config: WatchConfig, plan: ScoringPlan) -> str:
    """Which version judges, where the model is registered."""
    entry = plan.session.entry
    return config.model if entry is None else entry.reference


def plan_of(config: WatchConfig) -> ScoringPlan:
    """How a model will judge, once it is loaded."""
    check_rate(config)
    return choose(config, open_model(config))


def version_plan(config: WatchConfig, named: str, beside: ScoringPlan) -> ScoringPlan:
    """The plan for another version of a model, of this reference, which is to judge as the one `beside` does;
    UsageError: it is of another field, level or kind of data, or its calibration has too few rows;
    StateError: it cannot be loaded, or is not calibrated."""
    plan = plan_of(replace(config, model=named, mode=str(beside.mode)))
    if beside.calibrated and not plan.calibrated:
        raise StateError(
            f"it is not calibrated for level {beside.level.name} in mode {beside.mode} ('seqmlm calibrate')"
        )
    parts = {
        "domain": (beside.session.domain.name, plan.session.domain.name),
        "level": (beside.level.name, plan.level.name),
        "kind of data: one model is of sensitive data": (beside.sensitive, plan.sensitive),
    }
    if differing := next((name for name, (one, two) in parts.items() if one != two), None):
        raise UsageError(f"it has another {differing}; score with it to another --out")
    return plan


class Successor:
    """Takes up another version of a model between two turns, when the alias that names it moves: `seen` is
    the reference of the one that the alias names, `judging` of the one that was taken up; StateError: the
    model has no such alias.

    Args:
        take_up: takes up the version of a reference; raises a `SeqmlmError` where that cannot be.
        progress: told which version `does` what it is for from now on, or why it is not taken up.
    """

    judging: str | None

    def __init__(
        self,
        name: str,
        alias: str,
        take_up: Callable[[str], None],
        registry: Registry,
        progress: Progress,
        does: str = "judges",
    ) -> None:
        self._name, self._alias, self._take_up, self._does = name, alias, take_up, does
        self._registry, self._progress = registry, progress
        self.judging = self.seen = registry.get(name, alias=alias).reference
        self._looked = time.monotonic()

    def look(self) -> None:
        """Take up the version that the alias names, if that is another one."""
        if time.monotonic() - self._looked < _LOOK:
            return
        self._looked = time.monotonic()
        try:
            named = self._registry.get(self._name, alias=self._alias).reference
        except StateError:  # a database that is locked, or an alias that was taken away: asked again
            return
        if named == self.seen:  # it judges, or was refused
            return
        self.seen, alias, before = named, f"{self._name}@{self._alias}", self.judging
        if named == before:
            return
        try:
            self._take_up(named)
        except SeqmlmError as error:
            self._progress.message(f"{alias} names {named}, and {before or 'none'} goes on: {error}")
            return
        self.judging = named
        was = "" if before is None else f"; it was {before}"
        self._progress.message(f"{alias} is {named} now, which {self._does} from here on{was}")


class Shadow:
    """Another version of the model, which judges the same rows and raises nothing; `serving` gives the plan
    of the one that serves, and `progress` is told which version it is, and once what fails in it; UsageError:
    the model is not registered, or the alias is the one that serves; StateError: it has no such alias."""

    _detector: Detector | None = None
    _version = ""
    _failing = False

    def __init__(
        self, config: WatchConfig, serving: Callable[[], ScoringPlan], registry: Registry, progress: Progress
    ) -> None:
        entry, alias = serving().session.entry, config.shadow
        assert alias is not None
        if entry is None:
            raise UsageError(
                f"--shadow {alias} is an alias of a registered model, and {config.model} is none: name the "
                "model as 'seqmlm models list' does"
            )
        if alias == alias_of(config, serving()):
            raise UsageError(
                f"--shadow {alias} names the version that serves: give another alias, as of 'seqmlm models "
                f"alias {entry.name}:VERSION candidate'"
            )
        self._config, self._serving, self._progress, self._alias = config, serving, progress, alias
        successor = Successor(entry.name, alias, self._take_up, registry, progress, "judges beside it")
        told = f"{entry.name}@{alias} is {successor.seen}"
        try:
            self._take_up(successor.seen)
            progress.message(f"{told}, which judges the same rows beside it, and raises no alarm (--shadow)")
        except SeqmlmError as error:
            successor.judging = None
            progress.message(f"{told}, which cannot judge beside it, so nothing is compared: {error}")
        self.look = successor.look

    def _take_up(self, named: str) -> None:
        try:
            plan = version_plan(self._config, named, self._serving())
            self._detector, self._version, self._failing = plan.detector(), named, False
        except SeqmlmError:
            raise
        except Exception as error:  # memory of a GPU, say: the version that serves has to go on
            raise StateError(f"it cannot be loaded ({type(error).__name__})") from None

    def beside(self, batch: Sequence[Encoded], judged: Sequence[JudgedRow]) -> list[Mapping[str, Any] | None]:
        """What the shadow says of each row of a batch that was judged; None where it says nothing."""
        found: Mapping[tuple[int, int], JudgedRow] = {}
        if self._detector is not None:
            try:
                found = _by_place(self._detector.batch([one.record for one in batch], Problems("skip")))
            except Exception as error:  # whatever it is, the version that serves has to go on
                self._tell(error)
        told = [self._said(one, found.get(place)) for place, one in _by_place(judged).items()]
        if None in told and self._detector is not None:
            self._tell(StateError("it cannot read their records, or makes other rows of them"))
        return told

    def _said(self, judged: JudgedRow, other: JudgedRow | None) -> Mapping[str, Any] | None:
        if other is None or (judged.row.id, judged.row.line) != (other.row.id, other.row.line):
            return None  # two versions made other rows of the record
        p_value = None if other.row.score is None else other.p_value
        named = {"alias": self._alias, "version": self._version}
        return {**named, "p_value": p_value, "alarm": bool(other.alarm)}

    def _tell(self, error: Exception) -> None:
        if not self._failing:
            self._failing = True
            why = str(error) if isinstance(error, SeqmlmError) else type(error).__name__
            self._progress.message(
                f"{self._version}, the shadow, cannot judge some rows, which have no answer of it; this is "
                f"said once, and counted: {why}"
            )


def _by_place(judged: Sequence[JudgedRow]) -> dict[tuple[int, int], JudgedRow]:
    """Rows by their record, which is the same object to both versions, and their place in it; in order."""
    seen, found = Counter[int](), {}
    for one in judged:
        record = id(one.scored.record)
        found[record, seen[record]] = one
        seen[record] += 1
    return found
