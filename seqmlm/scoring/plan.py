"""The plan of a scoring: level, mode, calibration and alarm rate that a request means for one model.
The same request to the same model always gives the same plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from seqmlm import plugins
from seqmlm.anomaly.judge import TwoPopulations
from seqmlm.anomaly.levels import WHOLE, Background, Level
from seqmlm.data.counts import released_count
from seqmlm.engine.reductions import Entropy, Rank, top
from seqmlm.engine.units import ONE_PASS, Mode
from seqmlm.errors import StateError, UsageError, duration_text, number_of
from seqmlm.evaluation.incidents import rate_for
from seqmlm.inference.calibrations import (
    USUAL_RATE,
    Stored,
    rate_above,
    stored_background,
    stored_calibration,
    stored_calibrations,
)
from seqmlm.inference.detector import Detector
from seqmlm.inference.estimate import work_of
from seqmlm.inference.expert import counts_identity, session_expert
from seqmlm.inference.model_folder import read_card
from seqmlm.inference.record_batches import Budget, tokens_per_second
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.registry.references import resolve
from seqmlm.scoring.config import ScoringRequest

PATIENCE = 600.0
"""Seconds that the forward passes of a scoring may take, by estimate, in the mode that is the field's own:
about as long as a person waits for one result without planning."""

EXPECTED = top(3)
"""What a row says of each unit that it names."""

PER_UNIT = (Entropy(), Rank())
"""What a row says of each unit, where it names all."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoringPlan:
    """How records will be scored.

    Args:
        session: the model.
        level: what of a record is judged.
        mode: how units are hidden.
        stored: the calibration of this level and mode; None where the model has none.
        background: what the level knows of normal data, or None.
        alpha: share of normal rows that may raise an alarm, or None.
        per_unit: entropy and rank of every unit are wanted.
        notes: what a person should know about the choice.
        characters: of all records by estimate, as `inference.record_batches.characters` counts them; None
            where it was not looked at.
    """

    session: Session
    level: Level
    mode: Mode
    stored: Stored | None
    background: Background | None
    alpha: float | None
    per_unit: bool
    notes: tuple[str, ...]
    characters: float | None = None

    @property
    def calibrated(self) -> bool:
        """Whether rows will have p-values."""
        return self.stored is not None

    @property
    def budget(self) -> Budget:
        """How much is done at a time."""
        return Budget.of(self.session.model, self.mode)

    def detector(self) -> Detector:
        """The detector that makes and judges the rows of records by this plan."""
        return Detector(
            RecordScorer(self.session),
            self.level,
            mode=self.mode,
            background=self.background,
            calibration=None if self.stored is None else self.stored.fitted,
            alpha=self.alpha,
            want=(*EXPECTED, *(PER_UNIT if self.per_unit else ())),
        )


def choose(config: ScoringRequest, session: Session) -> ScoringPlan:
    """Decide level, mode and calibration.

    The estimate of what a mode takes rests on no clock: the same request always gets the same mode on the
    same kind of device, and what is resumed goes on in the mode it began with.

    Raises:
        UsageError: an unknown level or mode, one the model cannot be asked in, or a rate of alarms that its
            calibration is too small for, or whose normal data had no times.
        StateError: alarms of a model that is not calibrated for them.
    """
    model = session.model
    level = model.domain.level(config.level)
    notes: list[str] = []
    mode_name, characters = config.mode, None
    if mode_name is None:
        mode_name, why, characters = choose_mode(config, session, level)
        notes.append(f"--mode {mode_name}: {why}")
    mode = Mode.parse(mode_name)
    name = str(mode)
    stored = stored_calibration(model, level, name)
    notes += _count_notes(session, level)
    if stored is not None and not _rests_on(stored, session, level):
        if config.rate_option is not None:
            raise StateError(f"alarms: {_OTHER_COUNTS}; {_SAME_COUNTS}")
        notes.append(f"{_OTHER_COUNTS}, so rows have no p-values: {_SAME_COUNTS}")
        stored = None
    elif stored is None:
        notes.append(
            f"rows have no p-values: level {level.name} is not calibrated in mode {name}; from "
            f"normal data {_calibrate_command(config, level, name)} does that"
        )
    if stored is not None and stored.precision != session.precision:
        notes.append(
            f"the calibration was made in {stored.precision}, this scoring is in {session.precision}: their "
            "log-probabilities differ by some hundredths"
        )
    alpha = _alpha(config, level, name, stored)
    if stored is not None:
        if stored.coarse:  # the first line of output: it limits what all others can say
            notes.insert(0, _coarse_note(config, level, name, stored))
        notes += [*_few(stored), *_silent(config, level, name, stored, alpha)]
    return ScoringPlan(
        session=session,
        level=level,
        mode=mode,
        stored=stored,
        background=stored_background(model, level),
        alpha=alpha,
        per_unit=config.per_unit,
        notes=tuple(notes),
        characters=characters,
    )


class Choice(NamedTuple):
    """The mode chosen for a scoring that names none; the reason, as a part of a sentence; and the characters
    of all records, by estimate, None where the input was not looked at."""

    mode: str
    why: str
    characters: float | None = None


def choose_mode(config: ScoringRequest, session: Session, level: Level) -> Choice:
    """The field's own mode, where it is calibrated for what is asked and takes at most `PATIENCE`.

    Else one that is calibrated; the cheapest of them, and of all where none is. Where no rate is asked for, a
    calibration must support `USUAL_RATE`; one that does not is taken if there is no better.
    """
    if config.begun_mode is not None:
        return Choice(config.begun_mode, "as the scoring that is continued began")
    usual, stored = str(session.mode), _usable_calibrations(session, level)
    enough = [name for name, fit in stored.items() if _supports(config, level, name, fit)]
    if stored and not enough:
        name = min(stored, key=lambda mode: stored[mode].fitted.smallest_rate)
        return Choice(name, "it is calibrated with the most rows")
    modes = enough or [usual, *([str(ONE_PASS)] if session.tokenizer.units.facts.one_pass else [])]
    candidates = [Mode.parse(name) for name in dict.fromkeys([*modes, usual])]
    work = work_of(session, level, candidates, config.measured, format=config.format, options=config.options)
    if work is None:  # an input of unknown size
        if usual in modes:
            return Choice(usual, _DEFAULT)
        return Choice(modes[0], f"--mode {usual}, {_DEFAULT}, {_lack(config, usual, stored)}")
    rate = tokens_per_second(session.model)
    seconds = {name: tokens / rate for name, tokens in work.tokens.items()}
    if usual in modes and seconds[usual] <= PATIENCE:
        return Choice(usual, f"{_DEFAULT}; {duration_text(seconds[usual])} by estimate", work.characters)
    name = min(modes, key=seconds.__getitem__)
    why = f"{duration_text(seconds[name])} by estimate"
    if name != usual:
        lacks = f", {_lack(config, usual, stored)}" if usual not in modes else ""
        why += f"; --mode {usual}, {_DEFAULT}{lacks}, {duration_text(seconds[usual])}"
    return Choice(name, why, work.characters)


_DEFAULT = "the default of this field"


def _lack(config: ScoringRequest, mode: str, stored: Mapping[str, Stored]) -> str:
    """The reason why a mode is not chosen, as a part of a sentence."""
    if mode not in stored:
        return "is not calibrated for these scores"
    rate = f"p-values of {USUAL_RATE}" if config.rate_option is None else "the rate"
    return f"has too few normal rows for {rate} ({stored[mode].rows:,})"


def _usable_calibrations(session: Session, level: Level) -> dict[str, Stored]:
    """The calibrations of a level, by mode, that were made with the counts that scores mix in now."""
    all_stored = stored_calibrations(Path(session.model.path))
    of_level = {mode: fit for (name, mode), fit in all_stored.items() if name == level.name}
    return {mode: fit for mode, fit in of_level.items() if _rests_on(fit, session, level)}


_OTHER_COUNTS = "the calibration was made with other counts than these scores mix in"
_SAME_COUNTS = "leave expert out, or calibrate with the same"


def _rests_on(stored: Stored, session: Session, level: Level) -> bool:
    """Whether a calibration was made with the counts that these scores mix in, if this level has any."""
    return level.view != WHOLE or stored.counts == counts_identity(session)


def _count_notes(session: Session, level: Level) -> list[str]:
    """Notes on the counts of training data in scores: whether they are mixed in, and what that is worth."""
    expert = session_expert(session)
    if expert is None:
        return []
    if level.view != WHOLE:
        return [f"counts are not mixed in: level {level.name} shows the model a part of each record alone"]
    bits = {name: expert.facts[f"{name}_bits"] for name in ("mixture", "model", "counts")}
    unit = session.tokenizer.traits.unit
    return [
        f"counts are mixed in: {bits['mixture']:.3f} bits per {unit} on validation records "
        f"({bits['model']:.3f} by the model alone, {bits['counts']:.3f} by counts alone; --set expert=none "
        "leaves them out)"
    ]


def check_rate(config: ScoringRequest) -> None:
    """Refuse a rate of alarms that no calibration of the model allows, before the model is loaded.

    Raises:
        UsageError: the rate is too small for all modes that may be taken.
        StateError: no such model, or none of them is calibrated.
    """
    option = config.rate_option
    folder = None if option is None else resolve(config.model).path
    card = None if folder is None else read_card(folder)
    if option is None or folder is None or card is None:
        return  # nothing is asked, or loading says what is wrong
    level = plugins.domain(card.domain).level(config.level)
    stored = stored_calibrations(folder)
    of_level = {mode: fit for (name, mode), fit in stored.items() if name == level.name}
    candidates = {mode: fit for mode, fit in of_level.items() if config.mode in (None, mode)}
    if not candidates:
        raise _no_calibration(
            config, level, config.mode or str(plugins.domain(card.domain).defaults.mode), option
        )
    best_mode = min(candidates, key=lambda mode: candidates[mode].fitted.smallest_rate)
    if refusal := _rate_refusal(config, level, best_mode, candidates[best_mode]):
        raise UsageError(refusal)


def _alpha(config: ScoringRequest, level: Level, mode: str, stored: Stored | None) -> float | None:
    option = config.rate_option
    if option is None:
        return None
    if stored is None:
        raise _no_calibration(config, level, mode, option)
    if refusal := _rate_refusal(config, level, mode, stored):
        raise UsageError(refusal)
    return _rate(config, stored)


def _rate(config: ScoringRequest, stored: Stored) -> float:
    if config.alarms_per_day is not None:
        return rate_for(config.alarms_per_day, stored.rows_per_day or 0.0)
    assert config.fpr is not None
    return config.fpr


def _rate_refusal(config: ScoringRequest, level: Level, mode: str, stored: Stored) -> str | None:
    """The message that a calibration is too small for the rate of alarms; None where it is not."""
    if config.rate_option is None:
        return None
    alpha, fitted = _rate(config, stored), stored.fitted
    if alpha >= fitted.smallest_rate or (config.extrapolate and fitted.has_tail):
        return None
    lowest_rate = rate_above(fitted.smallest_rate)
    tail = ", or continue below it by the fit of a tail with --set extrapolate=true"
    tail_hint = tail if fitted.has_tail else ""
    rows = max(fitted.rows, fitted.counts.rows) if isinstance(fitted, TwoPopulations) else fitted.rows
    return (
        f"{config.rate_option} asks for a rate of {alpha:.3g}; the {rows:,} normal rows that level "
        f"{level.name} is calibrated with in mode {mode} guarantee rates of {lowest_rate} and above: ask for "
        f"that, or give more normal data, about {fitted.rows_for(alpha):,} rows, with "
        f"{_calibrate_command(config, level, mode)}{tail_hint}"
    )


def _supports(config: ScoringRequest, level: Level, mode: str, stored: Stored) -> bool:
    """Whether a calibration has rows enough for the rate that is asked, or for usual ones."""
    if config.rate_option is None:
        return not stored.coarse
    return _rate_refusal(config, level, mode, stored) is None


def _coarse_note(config: ScoringRequest, level: Level, mode: str, stored: Stored) -> str:
    """The note that a calibration has too few rows for small p-values."""
    lowest_p, rows = rate_above(stored.fitted.smallest_rate), number_of(stored.rows, "normal row")
    return (
        f"no p-value can be below {lowest_p}: level {level.name} is calibrated in mode {mode} with {rows} "
        f"only; more normal data give smaller ones: {_calibrate_command(config, level, mode)}"
    )


def _few(stored: Stored) -> list[str]:
    """The note that a calibration rests on few records; none where it does not."""
    if not stored.few:
        return []
    records = released_count(stored.records)
    return [
        f"the model was calibrated with {stored.rows:,} rows of {records} records only, and rows of one "
        "record are alike: rates of alarms are less sure than so many rows say; give more normal data to "
        "'seqmlm calibrate'"
    ]


def _silent(
    config: ScoringRequest, level: Level, mode: str, stored: Stored, alpha: float | None
) -> list[str]:
    """The note that some statistics rest on too few rows to raise an alarm at a rate; none where all can."""
    if alpha is None or alpha >= stored.fitted.silent_below:
        return []
    return [
        f"the model's surprisals raise no alarm below a rate of {rate_above(stored.fitted.silent_below)}, "
        f"for {stored.rows:,} normal rows were held out to judge them; what is counted does: give more "
        f"normal data with {_calibrate_command(config, level, mode)}"
    ]


def _no_calibration(config: ScoringRequest, level: Level, mode: str, option: str) -> StateError:
    counts = "" if config.expert == "auto" else f" with expert={config.expert}"
    return StateError(
        f"{option} needs a calibration, and the model {config.model} has none of level {level.name} in mode "
        f"{mode}{counts}: make one from normal data with {_calibrate_command(config, level, mode)}"
    )


def _calibrate_command(config: ScoringRequest, level: Level, mode: str) -> str:
    """The command that makes the calibration such a scoring needs."""
    counts = "" if config.expert == "auto" else f" --set expert={config.expert}"
    return f"'seqmlm calibrate {config.model} NORMAL --level {level.name} --mode {mode}{counts}'"
