"""`seqmlm calibrate`: store the scores of normal data, so that new scores get p-values and alarms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TextIO

from seqmlm.cli.command import Answer
from seqmlm.cli.output import number
from seqmlm.scoring.calibrate import CalibrateConfig, CalibrateResult, calibrate_files


class Calibrate:
    """Calibrate a model on normal data, so that `score` gives p-values and alarms; no labels are used.

    A p-value is the share of normal rows of similar length that are at least as unusual. The new calibration
    replaces the one that training made from its held-out data.

    Example: seqmlm calibrate web-logs last-week.log --fpr 1e-4
    """

    Config = CalibrateConfig
    trains = False

    @classmethod
    def launch(
        cls, name: str, config: CalibrateConfig, *, stdout: TextIO, progress: Any, as_json: bool
    ) -> Answer:
        """Calibrate the model, and return the figures of its calibrations with remarks about them."""
        result = calibrate_files(config, progress.message)
        for text in () if as_json else _remarks(result, config.fpr):
            progress.message(text)
        return Answer(
            figures=result,
            answer=f"calibrated level {result.level} with {result.records} records",
            tables=[("", _COLUMNS, [_row(result.level, name, of) for name, of in result.modes.items()])],
            hint=f"next: seqmlm score {config.model} NEW --fpr 0.05",
        )


_COLUMNS = ("level", "mode", "rows", "smallest rate", "below it", "rows a day", "judged by")


def _row(level: str, mode: str, facts: Any) -> tuple[str, ...]:
    below = "extrapolated" if facts["tail"] else "no alarms"
    rate = f"{facts['smallest_rate']:.3g}"
    return level, mode, str(facts["rows"]), rate, below, number(facts["rows_per_day"]), facts["judged_by"]


_RESTS = {
    "ranks": "guaranteed by ranks",
    "tail": "extrapolated by a fitted tail",
    "nothing": "too small for this number of rows",
}


def _remarks(result: CalibrateResult, alpha: float | None) -> Iterator[str]:
    yield from (f"{reason}: {count}" for reason, count in result.problems.items())
    if result.left_out:
        yield f"left out: {result.left_out} records from the training data"
    for name, facts in result.modes.items():
        if facts["few_records"]:
            yield (
                f"mode {name}: the rows come from only {facts['records']} records. Rows of one record are "
                "alike, so the rate of false alarms is less certain than the number of rows suggests. Give "
                "more records"
            )
        if "alpha" in facts:
            yield f"false positive rate {alpha:g} in mode {name}: {_RESTS[facts['alpha']['rests_on']]}"
