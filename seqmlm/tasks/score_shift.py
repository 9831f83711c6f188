"""When p-values are not those of normal data: what is said of a whole scoring, and of a stream as it goes.

P-values of normal data are uniform, whatever the data are; so one rule serves all fields. It speaks of large
differences alone: how far shares stray by chance depends on how alike neighbouring rows are.
"""

from __future__ import annotations

from typing import Literal

SHIFTED, ALARMED, USUAL, FEWEST_TOLD = 0.75, 0.2, 0.1, 40
"""Shares of rows with p-values of at most .5 and .05 that are said to be too large, and of at most .5 that is
said to be too small, of so many rows at least.

With as many rows in the calibration the share of normal data is .5 but for .08: of fewer it says little. A
tail may move alone: sessions of a length that calibration never met, among others that are most usual."""

Shift = Literal["low", "lowest", "usual"]


def shifted(
    low_p: float | None, lowest_p: float | None, rows: str = "the rows", instead: str = ""
) -> tuple[Shift, str] | None:
    """How p-values are not those of normal data, and a sentence that says so; None where they are.

    Args:
        low_p, lowest_p: shares of p-values of at most .5 and .05; None where they are not known.
        rows: what they are of.
        instead: what else can be done than to calibrate.
    """
    if low_p is not None and low_p > SHIFTED:
        return (
            "low",
            f"{low_p:.0%} of {rows} have p-values below .5, as half of the rows of normal data "
            "do: these data are not like those the model was calibrated with, and their p-values are too "
            f"low; calibrate it with normal data like these ('seqmlm calibrate'){instead}",
        )
    if lowest_p is not None and lowest_p > ALARMED:
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
            "repeats and copies are, and that there is no alarm says little of them",
        )
    return None
