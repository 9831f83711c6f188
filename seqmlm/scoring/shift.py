"""Shift of the data: p-values that are not those of normal data, in a whole scoring or in a stream.

P-values of normal data are uniform, whatever the data are; so one rule serves all fields. It speaks of large
differences alone: how far shares stray by chance depends on how many rows there are, here and in the
calibration, and on how alike neighbouring rows are, which nobody knows.
"""

from __future__ import annotations

import math
from typing import Literal

TOO_LOW, USUAL, FEWEST_TOLD = (0.65, 0.1), 0.1, 40
"""Shares of rows with p-values of at most .5 and .05 above which they may be said to be too large, and of at
most .5 below which that is said to be too small, of so many rows at least.

Of 39 levels and modes of normal data that were held out, of three models each of four fields, two had more,
and their alarms were too many, too (`benchmarks/calibration.py`). A tail may move alone: sessions of a length
that calibration never met, among others that are most usual."""

TOO_LOW_LIVE = (0.75, 0.2)
"""The same of the last rows of a stream, which is looked at again and again, and where what is alike comes
together."""

_ERRORS = 3.0  # standard errors, of rows that say nothing of each other

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
    """The kind of shift that shares of p-values show, and a sentence about it; None where they show none.

    Args:
        low_p, lowest_p: shares of p-values of at most .5 and .05; None where they are not known.
        judged, normal: rows that they are shares of, and rows of the calibration.
        limits: shares above which they are called too large.
        rows: a name for the rows in the sentence.
        instead: a further remedy beside a calibration, as a part of the sentence.
    """

    def exceeds(observed: float | None, expected: float, limit: float) -> bool:
        error = math.sqrt(expected * (1 - expected) * (1 / max(1, judged) + 1 / max(1, normal)))
        return observed is not None and observed > max(limit, expected + _ERRORS * error)

    if exceeds(low_p, 0.5, limits[0]):
        return (
            "low",
            f"{low_p:.0%} of {rows} have p-values below .5, as half of the rows of normal data "
            "do: these data are not like those the model was calibrated with, and their p-values are too "
            f"low; calibrate it with normal data like these ('seqmlm calibrate'){instead}",
        )
    if exceeds(lowest_p, 0.05, limits[1]):
        return (
            "lowest",
            f"{lowest_p:.0%} of {rows} have p-values below .05, as 5% of those of normal data do: "
            "either so many are unusual, or these data are not like those the model was calibrated with, "
            "and raise alarms where nothing is wrong; look at some, and if they are normal, calibrate it "
            f"with them ('seqmlm calibrate'){instead}",
        )
    if low_p is not None and low_p < USUAL:
        return (
            "usual",
            f"only {low_p:.0%} of {rows} have p-values below .5, as half of the rows of normal "
            "data do: to the model these data are more usual than those it was calibrated with, as "
            "repeats and copies are; where no alarm is raised, that says little of them",
        )
    return None
