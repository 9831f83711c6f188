"""What `train` and `seqmlm calibrate` do with normal records: calibrations for a model, kept with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.anomaly.levels import Background, Level
from seqmlm.data.identity import TrainedOn
from seqmlm.data.prepare import combined, file_fingerprint
from seqmlm.data.privacy import redact_small_counts
from seqmlm.data.problems import OnError, Problems
from seqmlm.data.record import Record
from seqmlm.engine.device import Precision, resolved
from seqmlm.engine.types import Sequences
from seqmlm.engine.units import EXACT, ONE_PASS
from seqmlm.errors import DataError, StateError, UsageError
from seqmlm.inference import model_folder
from seqmlm.inference.calibrations import (
    CASCADE,
    Stored,
    kept_calibrations,
    store,
    store_backgrounds,
    store_trained_on,
    stored_background,
    stored_calibrations,
    stored_trained_on,
)
from seqmlm.inference.one_pass import correction_for
from seqmlm.registry import CalibrationEntry, ModelEntry, Registry, resolve
from seqmlm.tasks.calibration import MOST_RECORDS, Calibrator, Normal
from seqmlm.tasks.corpus import split_source
from seqmlm.workspace import Workspace

TRAINING_SHARE = 0.05
"""How much longer a training may take for its calibration."""

_ONE_PASS = (str(ONE_PASS), CASCADE)

# A forward pass is a third of a training step's work.
_FORWARD = 3.0


@dataclass(frozen=True, kw_only=True)
class CalibrateConfig:
    """What `seqmlm calibrate` can be told."""

    model: str
    paths: tuple[str, ...] = ()
    level: str | None = None
    mode: str | None = None
    alpha: float | None = None
    domain: str | None = None
    format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    on_error: OnError = "raise"
    records: int = 2_000
    seed: int = 0
    tokens_per_batch: int | None = None
    precision: Precision = "fp32"


@dataclass(frozen=True, kw_only=True)
class CalibrateResult:
    """What was calibrated.

    Args:
        model: as the user named it.
        level: judged at.
        records: normal records that were used; left_out: those the model was trained on.
        modes: for each mode rows, smallest_rate (of false alarms that is guaranteed), tail (whether smaller
            ones are extrapolated), rows_per_day, precision, of one-pass modes the correction ("derived", or
            "fitted": an approximation) and, where a rate was asked for, what it rests on.
        problems: by reason.
    """

    model: str
    level: str
    records: Any
    left_out: Any
    modes: Mapping[str, Mapping[str, Any]]
    problems: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def calibrate_files(config: CalibrateConfig, say: Callable[[str], None]) -> CalibrateResult:
    """Replace a model's calibrations of one level by those from normal data.

    Args:
        config: which model, which data.
        say: told what could not be done.

    Raises:
        UsageError: no input, or a level or mode the model does not have.
        DataError: records the model was trained on, unreadable ones, or none with a score.
        StateError: no such model, or its folder cannot be written; then it has the calibrations it had.
    """
    if not config.paths:
        raise UsageError("nothing to calibrate with: name files or folders of normal data, or - for stdin")
    if config.alpha is not None and not 0 < config.alpha < 1:
        raise UsageError(f"--alpha is a rate of false alarms between 0 and 1, not {config.alpha}")
    workspace = Workspace.locate()
    found = resolve(config.model, lambda: Registry(workspace))
    if found.path is None:
        raise StateError(
            f"{config.model} is on the Hugging Face hub: download it to a folder, then calibrate that"
        )
    model = model_folder.load(found.path, domain=config.domain)
    level = model.domain.level(config.level)
    with Problems(config.on_error, sensitive=model.card.sensitive) as problems:
        normal, left_out = _normal(config, model, problems)
        asking: Any = {"tokens_per_batch": config.tokens_per_batch, "precision": resolved(config.precision)}
        calibrator = Calibrator(model=model, problems=problems, seed=config.seed, say=say, **asking)
        fitted = _replaced(calibrator, level, config.mode, normal)
        counts = problems.counts
    if found.entry is not None:
        with Registry(workspace) as registry:
            register_calibrations(registry, found.entry)
    told = redact_small_counts({"records": len(normal.records), "left_out": left_out}, model.card.sensitive)
    return CalibrateResult(
        model=config.model,
        level=level.name,
        **told,
        modes={mode: _facts(model, mode, one, config.alpha) for (_, mode), one in fitted.items()},
        problems=redact_small_counts(counts, model.card.sensitive),
    )


def _replaced(
    calibrator: Calibrator, level: Level, mode: str | None, normal: Normal
) -> dict[tuple[str, str], Stored]:
    """Fit the calibrations of a level and put them in the place of those the model had; others stay.

    Raises:
        DataError: no record has a score, or there are too few of sensitive data.
        StateError: the folder cannot be written.
    """
    model = calibrator.model
    folder, private = Path(model.path), model.card.sensitive
    stored = kept_calibrations(folder, calibrator.say)
    background = stored_background(model, level)
    learnt: dict[str, Background] = {}
    if level.background is not None and background is None:
        background, normal = calibrator.background(level, normal, None)
        assert background is not None
        learnt[level.name] = background
    modes: tuple[str, ...] = (str(EXACT), *_ONE_PASS) if mode is None else (mode,)
    if mode is None and not any(name != level.name and one in _ONE_PASS for name, one in stored):
        # Another level's one-pass calibrations rest on the correction there is: with these it may change.
        modes, normal = calibrator.default_modes(normal)
    fitted = calibrator.calibrate(level, modes, normal, background)
    if not fitted:
        raise DataError("too few normal records for sensitive data", remedy="give at least eleven")
    if learnt:
        store_backgrounds(folder, {**_other_backgrounds(model, level), **learnt}, private=private)
    calibrator.keep_correction()
    store(folder, fitted, others=stored, private=private)
    return fitted


def _other_backgrounds(model: model_folder.LoadedModel, level: Level) -> dict[str, Background]:
    """The backgrounds that the model's folder has of other levels."""
    found = {one.name: stored_background(model, one) for one in model.domain.levels if one.name != level.name}
    return {name: one for name, one in found.items() if one is not None}


def calibrate_trained(
    model: model_folder.LoadedModel,
    *,
    calibrating: Callable[[int], Iterator[Record]],
    of: int,
    train: Sequences,
    trained_on: TrainedOn,
    tokens: int,
    source: str,
    seed: int,
    say: Callable[[str], None],
) -> None:
    """Calibrate a model just trained with the records set aside, and write into its folder what it needs.

    A model whose data leave nothing to calibrate with stays without calibrations.

    Args:
        model: in the folder that is being written.
        calibrating: streams at most so many of the records set aside.
        of: how many those are.
        train: the training split.
        trained_on: tells whether a record trained.
        tokens: trained on.
        source: the data set's fingerprint.
        seed: of the training.
        say: told what could not be done.
    """
    folder, private = Path(model.path), model.card.sensitive
    store_trained_on(folder, trained_on, private=private)
    records = list(calibrating(MOST_RECORDS))
    if not records:
        say("no records were set aside for calibration; 'seqmlm calibrate' makes up for it with normal data")
        return
    level = model.domain.level(None)
    budget = int(TRAINING_SHARE * _FORWARD * tokens)
    calibrator = Calibrator(
        model=model, problems=Problems("skip", sensitive=private), seed=seed, budget=budget, say=say
    )
    normal = Normal(records=records, of=of, source=source)
    background, rest = calibrator.background(level, normal, train)
    if background is not None:
        store_backgrounds(folder, {level.name: background}, private=private)
    try:
        modes, rest = calibrator.default_modes(rest)
        fitted = calibrator.calibrate(level, modes, rest, background)
    except DataError as error:
        say(f"not calibrated: {error.reason}; 'seqmlm calibrate' makes up for it with normal data")
        return
    calibrator.keep_correction()
    if fitted:
        store(folder, fitted, private=private)


def register_calibrations(registry: Registry, entry: ModelEntry) -> None:
    """Tell the registry which calibrations a version's folder has."""
    stored = stored_calibrations(entry.path)
    registry.set_calibrations(
        entry,
        [
            CalibrationEntry(level=level, mode=mode, rows=one.rows, source=one.source)
            for (level, mode), one in stored.items()
        ],
    )


def _normal(
    config: CalibrateConfig, model: model_folder.LoadedModel, problems: Problems
) -> tuple[Normal, int]:
    """At most `config.records` normal records, drawn evenly, and how many the model was trained on.

    Raises:
        DataError: some were, and they shall not be left out; or there is none.
    """
    sources = [split_source(path)[1] for path in config.paths]
    known = stored_trained_on(Path(model.path))
    drawn: list[tuple[int, Record]] = []
    rng = np.random.default_rng(config.seed)
    first: Record | None = None
    left_out = fresh = 0
    for record in model.domain.read(sources, problems, format=config.format, **config.options):
        if known is not None and model.domain.identity(record) in known:
            first = first or record
            left_out += 1
            continue
        # Algorithm R (Vitter 1985): every record is drawn with the same probability.
        place = fresh if fresh < config.records else int(rng.integers(fresh + 1))
        if place < len(drawn):
            drawn[place] = (fresh, record)
        elif place < config.records:
            drawn.append((fresh, record))
        fresh += 1
    if first is not None and config.on_error == "raise":
        # Of patients neither how many are known nor how many are not may be told.
        some = "some" if model.card.sensitive else f"{left_out}"
        count = "" if model.card.sensitive else f"{left_out + fresh} "
        raise DataError(
            f"the model was trained on {some} of the {count}records, this one first: what it "
            "knows by heart does not show what is usual",
            source=first.source,
            line=first.line,
            remedy="give other normal data, or go on without these records (--on-error skip)",
        )
    if not drawn:
        raise DataError("no normal record is left to calibrate with", source=sources[0], remedy="give others")
    drawn.sort(key=lambda one: one[0])
    streamed = "-" in sources
    files = [] if streamed else model.domain.files(sources, format=config.format, options=config.options)
    source = combined(files=file_fingerprint(files) if files else f"stdin:{fresh}", left_out=left_out)
    return Normal(records=[record for _, record in drawn], of=fresh, source=source), left_out


def _facts(model: model_folder.LoadedModel, mode: str, stored: Stored, alpha: float | None) -> dict[str, Any]:
    fitted = stored.fitted
    facts: dict[str, Any] = {
        "rows": fitted.rows,
        "smallest_rate": fitted.smallest_rate,
        "tail": fitted.has_tail,
        "rows_per_day": stored.rows_per_day,
        "precision": stored.precision,
    }
    if mode in _ONE_PASS:
        facts["correction"] = correction_for(model).kind
    if alpha is not None:
        rests = "ranks" if alpha >= fitted.smallest_rate else "tail" if fitted.has_tail else "nothing"
        facts["alpha"] = {"rate": alpha, "rests_on": rests}
    return facts
