"""The plan of a scoring: the level, mode, calibration and alarm rate for a request and a model.

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
"""Maximum estimated seconds for the forward passes in the field's default mode.

If they take longer, a cheaper mode is chosen. It is about as long as people wait for a result without
planning.
"""

EXPECTED = top(3)
"""Values for each unit in `top`."""

PER_UNIT = (Entropy(), Rank())
"""More values for each unit in `per_unit`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoringPlan:
    """How to score records.

    Args:
        session: the model.
        level: the level of the rows.
        mode: how units are masked.
        stored: the calibration for this level and mode, or None.
        background: the level's statistics of normal data, or None.
        alpha: share of normal rows that may raise an alarm, or None.
        per_unit: whether rows have the entropy and rank of every unit.
        notes: messages about the choices.
        characters: estimated characters of all records (`inference.record_batches.characters`), or None if
            the input was not inspected.
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
        """The size of batches and of the work between commits."""
        return Budget.of(self.session.model, self.mode)

    def detector(self) -> Detector:
        """The detector that makes and scores the rows of records according to this plan."""
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
    """Choose the level, the mode and the calibration.

    The time estimate for a mode does not use a clock. The same request therefore always gets the same mode on
    the same kind of device. A resumed scoring continues in its mode.

    Raises:
        UsageError: the level or the mode is unknown, the model does not support the mode, or the calibration
            is too small for the rate of alarms. Alarms per day also need normal data with times.
        StateError: alarms are requested, and the model has no calibration for them.
    """
    model = session.model
    level = model.domain.level(config.level)
    notes: list[str] = []
    mode_name, characters = config.mode, None
    if mode_name is None:
        mode_name, why, characters = choose_mode(config, session, level)
        notes.append(f"using {mode_name}{why}")
    mode = Mode.parse(mode_name)
    name = str(mode)
    stored = stored_calibration(model, level, name)
    notes += _count_notes(session, level)
    if stored is not None and not _rests_on(stored, session, level):
        if config.rate_option is not None:
            raise StateError(f"no alarms are possible: {_OTHER_COUNTS}; {_SAME_COUNTS}")
        notes.append(f"rows have no p-values: {_OTHER_COUNTS}; {_SAME_COUNTS}")
        stored = None
    elif stored is None:
        notes.append(
            f"rows have no p-values: level {level.name} is not calibrated in mode {name}; calibrate it with "
            f"normal data: {_calibrate_command(config, level, name)}"
        )
    if stored is not None and stored.precision != session.precision:
        notes.append(
            f"the calibration used {stored.precision}, this scoring uses {session.precision}: "
            f"p-values are slightly inaccurate; for exact p-values use --set precision={stored.precision}"
        )
    alpha = _alpha(config, level, name, stored)
    if stored is not None:
        if stored.coarse:  # the first line of output, because it limits all p-values
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
    """The mode for a scoring that does not name one.

    Attributes:
        why: the reason, as the end of a sentence that begins with the mode.
        characters: estimated characters of all records, None if the input was not inspected.
    """

    mode: str
    why: str
    characters: float | None = None


def choose_mode(config: ScoringRequest, session: Session, level: Level) -> Choice:
    """Choose the mode: the field's default if it is calibrated for the request and takes at most `PATIENCE`.

    Otherwise it is the cheapest calibrated mode, or the cheapest of all modes if none is calibrated. Without
    a requested rate, a calibration should support `USUAL_RATE`. One that does not is used only if there is no
    better one.
    """
    if config.begun_mode is not None:
        return Choice(config.begun_mode, ", the mode of the scoring that is continued")
    usual, stored = str(session.mode), _usable_calibrations(session, level)
    enough = [name for name, fit in stored.items() if _supports(config, level, name, fit)]
    if stored and not enough:
        name = min(stored, key=lambda mode: stored[mode].fitted.smallest_rate)
        return Choice(name, ", the mode with the most calibration rows")
    modes = enough or [usual, *([str(ONE_PASS)] if session.tokenizer.units.facts.one_pass else [])]
    candidates = [Mode.parse(name) for name in dict.fromkeys([*modes, usual])]
    work = work_of(session, level, candidates, config.measured, format=config.format, options=config.options)
    default = f"{usual}, the {session.domain.name} default,"
    if work is None:  # an input of unknown size
        if usual in modes:
            return Choice(usual, f", the {session.domain.name} default")
        return Choice(modes[0], f"; {default} {_lack(config, usual, stored)}")
    rate = tokens_per_second(session.model)
    seconds = {name: tokens / rate for name, tokens in work.tokens.items()}
    estimates = {name: f" (estimated time: {duration_text(seconds[name])})" for name in seconds}
    if usual in modes and seconds[usual] <= PATIENCE:
        return Choice(usual, f", the {session.domain.name} default{estimates[usual]}", work.characters)
    name = min(modes, key=seconds.__getitem__)
    why = estimates[name]
    if name != usual:
        long = f"would take {duration_text(seconds[usual])}"
        why += f"; {default} {long if usual in modes else _lack(config, usual, stored)}"
    return Choice(name, why, work.characters)


def _lack(config: ScoringRequest, mode: str, stored: Mapping[str, Stored]) -> str:
    """The reason why a mode is not chosen, as the end of a sentence."""
    if mode not in stored:
        return "has no calibration for this level and these counts"
    rate = f"p-values of {USUAL_RATE}" if config.rate_option is None else "this rate"
    return f"has too few calibration rows for {rate} ({stored[mode].rows:,})"


def _usable_calibrations(session: Session, level: Level) -> dict[str, Stored]:
    """The calibrations of a level by mode, if they used the same counts as these scores."""
    all_stored = stored_calibrations(Path(session.model.path))
    of_level = {mode: fit for (name, mode), fit in all_stored.items() if name == level.name}
    return {mode: fit for mode, fit in of_level.items() if _rests_on(fit, session, level)}


_OTHER_COUNTS = "the calibration uses other n-gram counts than these scores"
_SAME_COUNTS = "remove --set expert, or calibrate with the same setting"


def _rests_on(stored: Stored, session: Session, level: Level) -> bool:
    """Whether a calibration used the same counts as these scores. True for levels without counts."""
    return level.view != WHOLE or stored.counts == counts_identity(session)


def _count_notes(session: Session, level: Level) -> list[str]:
    """Notes on whether scores use n-gram counts, and on the bits with and without them."""
    expert = session_expert(session)
    if expert is None:
        return []
    if level.view != WHOLE:
        return [f"scores use only the model, because level {level.name} shows it only a part of each record"]
    bits = {name: expert.facts[f"{name}_bits"] for name in ("mixture", "model", "counts")}
    unit = session.tokenizer.traits.unit
    return [
        f"scores use the model and n-gram counts: {bits['mixture']:.3f} bits per {unit} on validation "
        f"records ({bits['model']:.3f} with the model, {bits['counts']:.3f} with n-gram counts). Without "
        "counts: --set expert=none"
    ]


def check_rate(config: ScoringRequest) -> None:
    """Check before the model is loaded that one of its calibrations allows the rate of alarms.

    Raises:
        UsageError: the rate is too small for all possible modes.
        StateError: the model does not exist, or has no calibration.
    """
    option = config.rate_option
    folder = None if option is None else resolve(config.model).path
    card = None if folder is None else read_card(folder)
    if option is None or folder is None or card is None:
        return  # no rate is requested, or loading reports what is wrong
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
    """The message that a calibration is too small for the rate of alarms, or None."""
    if config.rate_option is None:
        return None
    alpha, fitted = _rate(config, stored), stored.fitted
    if alpha >= fitted.smallest_rate or (config.extrapolate and fitted.has_tail):
        return None
    lowest_rate = rate_above(fitted.smallest_rate)
    tail = ", or extrapolate with a fitted tail: --set extrapolate=true"
    tail_hint = tail if fitted.has_tail else ""
    rows = max(fitted.rows, fitted.counts.rows) if isinstance(fitted, TwoPopulations) else fitted.rows
    return (
        f"{config.rate_option} asks for a rate of {alpha:.3g}, but the lowest possible rate is "
        f"{lowest_rate}: level {level.name} has {rows:,} calibration rows in mode {mode}. Use a higher rate, "
        f"or calibrate with about {fitted.rows_for(alpha):,} rows: {_calibrate_command(config, level, mode)}"
        f"{tail_hint}"
    )


def _supports(config: ScoringRequest, level: Level, mode: str, stored: Stored) -> bool:
    """Whether a calibration has enough rows for the requested rate, or for `USUAL_RATE`."""
    if config.rate_option is None:
        return not stored.coarse
    return _rate_refusal(config, level, mode, stored) is None


def _coarse_note(config: ScoringRequest, level: Level, mode: str, stored: Stored) -> str:
    """The note that a calibration has too few rows for small p-values."""
    lowest_p, rows = rate_above(stored.fitted.smallest_rate), number_of(stored.rows, "normal row")
    return (
        f"no p-value can be below {lowest_p}: level {level.name} in mode {mode} is calibrated with only "
        f"{rows}; calibrate with more normal data: {_calibrate_command(config, level, mode)}"
    )


def _few(stored: Stored) -> list[str]:
    """A note if a calibration has rows from only few records."""
    if not stored.few:
        return []
    records = released_count(stored.records)
    return [
        f"the model was calibrated with {stored.rows:,} rows from only {records} records. Rows of one record "
        "are alike, so the rate of false alarms is less certain than the number of rows suggests. Give more "
        "normal data to 'seqmlm calibrate'"
    ]


def _silent(
    config: ScoringRequest, level: Level, mode: str, stored: Stored, alpha: float | None
) -> list[str]:
    """A note if some statistics have too few calibration rows to raise alarms at this rate."""
    if alpha is None or alpha >= stored.fitted.silent_below:
        return []
    return [
        f"only rules based on counts raise alarms at this rate. Model-based alarms need a rate of at least "
        f"{rate_above(stored.fitted.silent_below)}, because only {stored.rows:,} normal rows calibrate them; "
        f"calibrate with more normal data: {_calibrate_command(config, level, mode)}"
    ]


def _no_calibration(config: ScoringRequest, level: Level, mode: str, option: str) -> StateError:
    counts = "" if config.expert == "auto" else f" with expert={config.expert}"
    return StateError(
        f"{option} needs a calibration, and model {config.model} has none for level {level.name} in mode "
        f"{mode}{counts}: calibrate with normal data: {_calibrate_command(config, level, mode)}"
    )


def _calibrate_command(config: ScoringRequest, level: Level, mode: str) -> str:
    """The command that makes the calibration for this scoring."""
    counts = "" if config.expert == "auto" else f" --set expert={config.expert}"
    return f"'seqmlm calibrate {config.model} NORMAL --level {level.name} --mode {mode}{counts}'"
