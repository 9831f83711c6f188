"""Which judge a scoring gets: level, mode and calibration, by what was asked and what the model has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from seqmlm.anomaly.levels import Background, Level
from seqmlm.engine.correction import Correction
from seqmlm.engine.device import Precision, resolved
from seqmlm.engine.units import EXACT, ONE_PASS, Mode
from seqmlm.errors import StateError, UsageError
from seqmlm.evaluation.incidents import rate_for
from seqmlm.inference.batches import Size
from seqmlm.inference.calibrations import CASCADE, Stored, stored_background, stored_calibration
from seqmlm.inference.detector import Detector
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.one_pass import correction_in
from seqmlm.inference.scorer import RecordScorer
from seqmlm.tasks.calibration import ESCALATE
from seqmlm.tasks.score_config import ScoreConfig, input_bytes
from seqmlm.tasks.score_output import EXPECTED, PER_UNIT

LARGE = 64 << 20
"""Bytes of input from which a calibrated model screens first, where no mode is asked for."""

_CORRECTED = {
    "none": "by nothing",
    "derived": "as the masking of the training implies, which is exact for a model that learnt it perfectly",
    "fitted": "as fitted to exact answers: an approximation",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoringPlan:
    """How records will be judged.

    Args:
        model: asked.
        level: what of a record is judged.
        mode: how units are hidden; of a cascade, by its first stage.
        mode_name: what a person calls it: "cascade", or the mode.
        stored: the calibration of this level and mode; None where the model has none.
        background: what the level knows of normal data, or None.
        correction: of the model's answers in this mode, or None.
        alpha: share of normal rows that may raise an alarm, or None.
        precision: of the matrix products, "fp32" or "bf16".
        notes: what a person should know about the choice.
    """

    model: LoadedModel
    level: Level
    mode: Mode
    mode_name: str
    stored: Stored | None
    background: Background | None
    correction: Correction | None
    alpha: float | None
    per_unit: bool
    tokens_per_batch: int | None
    precision: Precision
    notes: tuple[str, ...]

    @property
    def calibrated(self) -> bool:
        """Whether rows will have p-values."""
        return self.stored is not None

    @property
    def judge_cascades(self) -> bool:
        """Whether rows near the threshold are asked exactly after a first stage."""
        return self.stored is not None and self.stored.cascade is not None

    @property
    def files(self) -> list[Path]:
        """The files of the model that decide what it answers; none of a model from the hub."""
        folder = Path(self.model.path)
        found = (path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else ()
        return sorted(path for path in found if path.suffix in (".json", ".safetensors", ".txt"))

    def judge(self) -> Detector:
        """A judge that remembers no answers yet."""
        stored = self.stored
        scorer = RecordScorer(
            self.model,
            correction=self.correction,
            tokens_per_batch=self.tokens_per_batch,
            precision=self.precision,
        )
        return Detector(
            scorer,
            self.level,
            mode=self.mode,
            background=self.background,
            calibration=None if stored is None else stored.calibration,
            cascade=None if stored is None else stored.cascade,
            alpha=self.alpha,
            want=(*EXPECTED, *(PER_UNIT if self.per_unit else ())),
        )


def choose(config: ScoreConfig, model: LoadedModel) -> ScoringPlan:
    """Decide level, mode and calibration.

    Where no mode is asked for, a small input is scored exactly, and one of `LARGE` bytes or more, or from a
    pipe, by a cascade where the model is calibrated for it: the same request always gets the same mode.

    Raises:
        UsageError: an unknown level or mode, one the model cannot be asked in, or a rate of alarms that its
            calibration is too small for, or whose normal data had no times.
        StateError: a cascade or alarms of a model that is not calibrated for them.
    """
    level = model.domain.level(config.level)
    notes: list[str] = []
    name = config.mode
    if name is None:
        name, why = choose_mode(config.sources, model, level)
        notes.append(f"--mode {name}: {why}")
    stored = stored_calibration(model, level, name)
    if name == CASCADE and stored is None:
        raise _uncalibrated(config.model, level, name, "--mode cascade")
    mode = Mode.parse(name) if name != CASCADE else stored.screen if stored is not None else ONE_PASS
    name = name if name == CASCADE else str(mode)
    correction = correction_in(model, mode)
    if mode == ONE_PASS and correction is not None:
        notes.append(f"one-pass answers are corrected {_CORRECTED[correction.kind]}")
    precision = resolved(config.precision)
    notes += _other_precision(stored, precision)
    return ScoringPlan(
        model=model,
        level=level,
        mode=mode,
        mode_name=name,
        stored=stored,
        background=stored_background(model, level),
        correction=correction,
        alpha=_alpha(config, model, level, name, stored),
        per_unit=config.per_unit,
        tokens_per_batch=config.tokens_per_batch,
        precision=precision,
        notes=tuple(notes),
    )


def choose_mode(sources: Sequence[str], model: LoadedModel, level: Level) -> tuple[str, str]:
    """The mode of a scoring that asks for none, and why."""
    size = input_bytes(sources)
    if size is not None and size < LARGE:
        return str(EXACT), f"the input has less than {LARGE >> 20} MiB"
    large = "the input is a stream" if size is None else f"the input has {LARGE >> 20} MiB or more"
    if stored_calibration(model, level, CASCADE) is None:
        return str(EXACT), f"{large}, but the model has no cascade calibrated for the level {level.name}"
    return CASCADE, large


def _other_precision(stored: Stored | None, precision: Precision) -> list[str]:
    if stored is None or stored.precision == precision:
        return []
    return [
        f"the calibration was made in {stored.precision}, this scoring is in {precision}: their "
        "log-probabilities are apart by some hundredths"
    ]


def _alpha(
    config: ScoreConfig, model: LoadedModel, level: Level, mode: str, stored: Stored | None
) -> float | None:
    if config.fpr is None and config.alarms_per_day is None:
        return None
    option = "--fpr" if config.fpr is not None else "--alarms-per-day"
    if stored is None:
        raise _uncalibrated(config.model, level, mode, option)
    alpha = config.fpr
    if config.alarms_per_day is not None:
        alpha = rate_for(config.alarms_per_day, stored.rows_per_day or 0.0)
    assert alpha is not None
    fitted = stored.fitted
    if alpha < fitted.smallest_rate and not fitted.has_tail:
        raise UsageError(
            f"{option} asks for a rate of {alpha:.3g}, but {fitted.rows:,} calibration rows tell rates down "
            f"to {fitted.smallest_rate:.3g}: ask for that, or give more normal data to 'seqmlm calibrate'"
        )
    return alpha


def _uncalibrated(model: str, level: Level, mode: str, option: str) -> StateError:
    return StateError(
        f"{option} needs a calibration, and the model {model} has none of level {level.name} in mode {mode}: "
        f"make one from normal data with 'seqmlm calibrate {model} NORMAL --level {level.name} --mode {mode}'"
    )


# How much is done at a time: batches of seconds, legs of half a minute, by the size of the model.

BATCH_SECONDS, LEG_SECONDS = 2, 30

# Multiplications and additions a second: of two cores, and of a GPU that a small model does not fill.
_RATES = {False: 5e10, True: 1e13}
_LEAST = {False: 4096, True: 1 << 17}  # forward tokens of a batch: less would leave forwards half empty


@dataclass(frozen=True, kw_only=True)
class Work:
    """Forward tokens of a batch and of a leg; the same for the same model and kind of device.

    A clock must not decide them: a scoring that goes on after a kill has to cut the input where one that was
    not disturbed does.
    """

    batch: int
    leg: int

    @classmethod
    def of(cls, model: LoadedModel) -> Work:
        """What about `BATCH_SECONDS` and `LEG_SECONDS` are spent on."""
        fast = torch.accelerator.is_available()
        inputs = model.rows.model.get_input_embeddings().weight.numel()
        weights = max(1, sum(one.numel() for one in model.rows.parameters()) - inputs)
        each_second = _RATES[fast] / (2 * weights)
        batch = max(_LEAST[fast], int(BATCH_SECONDS * each_second))
        return cls(batch=batch, leg=max(batch, int(LEG_SECONDS * each_second)))


def batch_size(model: LoadedModel, mode: Mode, work: Work, *, cascade: bool) -> Size:
    """Batches of so much work.

    Args:
        mode: of the scoring; of a cascade, of its first stage.
        cascade: some of what is scored is asked exactly afterwards.
    """
    cost = _cost(mode, model.card.max_length)
    if cascade:
        first, second = cost, _cost(EXACT, model.card.max_length)
        cost = lambda tokens: first(tokens) + ESCALATE * second(tokens)  # noqa: E731
    return Size(work=work.batch, of=cost)


def _cost(mode: Mode, longest: int) -> Callable[[int], float]:
    """Forward tokens of a record by its tokens; windows of a long one overlap by half."""
    copies = {"one-pass": 1, "partition": mode.parts}.get(mode.kind)

    def of(tokens: int) -> float:
        window = min(tokens, longest)
        shown = tokens if tokens <= longest else 2 * tokens
        return float(shown * copies if copies is not None else tokens * window)

    return of
