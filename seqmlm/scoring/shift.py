"""Detect a shift of the data: p-values that differ from p-values of normal data.

P-values of normal data are uniform in every field, so one rule fits all fields. It reports only large
differences. The random variation of shares depends on the number of rows, here and in the calibration. It
also depends on the similarity of neighbouring rows, which is unknown.
"""

from __future__ import annotations

import math
from typing import Literal

TOO_LOW, USUAL, FEWEST_TOLD = (0.65, 0.1), 0.1, 40
"""Limits for shares of p-values: upper limits, lower limit, and minimum number of rows.

`TOO_LOW` has the upper limits for the shares of p-values of at most .5 and at most .05. `USUAL` is the lower
limit for the share of at most .5. `FEWEST_TOLD` is the minimum number of rows.

The limits were checked with held-out normal data of three models in each of four fields, at 39 levels and
modes. Two of the 39 exceeded the limits, and they also had too many alarms (`benchmarks/calibration.py`). The
second limit matters when only the tail shifts. An example: sessions of a length that calibration did not
contain, among many normal ones.
"""

TOO_LOW_LIVE = (0.75, 0.2)
"""The same upper limits for the last rows of a stream.

They are higher, because a stream is checked repeatedly and similar rows follow each other.
"""

_ERRORS = 3.0  # standard errors, assuming independent rows

Shift = Literal["low", "lowest", "usual"]


def detect_shift(
    low_p: float | None,
    lowest_p: float | None,
    *,
    judged: int,
    normal: int,
    limits: tuple[float, float] = TOO_LOW,
    rows: str = "the rows",
    instead: str = "",
) -> tuple[Shift, str] | None:
    """The kind of shift that shares of p-values show, and a sentence about it. None without a shift.

    Args:
        low_p, lowest_p: shares of p-values of at most .5 and at most .05, or None if unknown.
        judged: number of rows with p-values.
        normal: number of rows in the calibration.
        limits: upper limits for the two shares.
        rows: a name for the rows in the sentence.
        instead: what to do after the calibration, as the end of a sentence.
    """

    def exceeds(observed: float | None, expected: float, limit: float) -> bool:
        error = math.sqrt(expected * (1 - expected) * (1 / max(1, judged) + 1 / max(1, normal)))
        return observed is not None and observed > max(limit, expected + _ERRORS * error)

    if exceeds(low_p, 0.5, limits[0]):
        return (
            "low",
            f"{low_p:.0%} of {rows} have p-values below .5, compared with half of normal rows. These data "
            "differ from the calibration data, and their p-values are too low; calibrate the model with "
            f"normal data like these ('seqmlm calibrate'){instead}",
        )
    if exceeds(lowest_p, 0.05, limits[1]):
        return (
            "lowest",
            f"{lowest_p:.0%} of {rows} have p-values below .05, compared with 5% of normal rows. Either "
            "many rows are unusual, or these data differ from the calibration data and raise false alarms; "
            "look at some of these rows. If they are normal, calibrate the model with them "
            f"('seqmlm calibrate'){instead}",
        )
    if low_p is not None and low_p < USUAL:
        return (
            "usual",
            f"only {low_p:.0%} of {rows} have p-values below .5, compared with half of normal rows. The "
            "model expects these data more than its calibration data, as with repeats and copies; a missing "
            "alarm therefore means little",
        )
    return None
