"""Calibrate a trained model with the records that were set aside, in the time that is left."""

from __future__ import annotations

import time
from pathlib import Path

from seqmlm.data.problems import Problems
from seqmlm.errors import DataError
from seqmlm.inference.calibrations import calibration_summary, store, store_backgrounds
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.session import Session
from seqmlm.scoring.calibrate import MOST_RECORDS, Calibrator, Records, default_modes
from seqmlm.tasks.deadline import TimeAfterTraining
from seqmlm.training.corpus import Corpus
from seqmlm.training.normal_rows import counted_rows
from seqmlm.training.observers import Console

_COUNTED_SHARE = 0.3  # share of the time that is left


def calibrate_trained(
    model: LoadedModel, corpus: Corpus, time_left: TimeAfterTraining, console: Console
) -> dict[str, float]:
    """Calibrate a trained model with the records that were set aside, and write the results into its folder.

    Calibration takes the time that is left. If no records were set aside, the model remains without
    calibrations. Returns the number of rows and the smallest rate of each mode, by name of the metric.
    """
    began, level = time.monotonic(), model.domain.level(None)
    folder, notify = Path(model.path), console.message
    calibrator = Calibrator(
        session=Session(model),
        problems=Problems("skip"),
        seed=model.card.seed,
        budget=time_left.calibration,
        notify=notify,
        progress=console.calibration,
        clock=time_left,
    )
    records = list(corpus.calibrating(MOST_RECORDS))
    normal = Records(records=records, of=corpus.held_out, source=corpus.fingerprint)
    try:
        if not normal.records:
            raise DataError("no records were set aside for calibration")
        background, calibration_records = calibrator.background(level, normal, corpus.train)
        if background is not None:
            store_backgrounds(folder, {level.name: background})
        if not calibration_records.records:
            raise DataError("too few records were set aside")
        judging = time_left.phase("calibration counts", _COUNTED_SHARE)
        counted = counted_rows(level, calibrator.session, corpus, calibrator.seed, judging)
        modes = default_modes(calibrator.session)
        calibrations = calibrator.calibrate(level, modes, calibration_records, background, counted)
    except DataError as error:
        notify(f"not calibrated: {error.reason}; run 'seqmlm calibrate' with normal data")
        return {}
    if calibrations:
        store(folder, calibrations)
        notify(f"{calibration_summary(calibrations)}; {time.monotonic() - began:.0f} s")
    return {
        f"calibration/{mode}_{name}": float(value)
        for (_, mode), calibration in calibrations.items()
        for name, value in (("rows", calibration.rows), ("smallest_rate", calibration.fitted.smallest_rate))
    }
