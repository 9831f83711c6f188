"""Calibration of a cascade: a cheap screening for all rows, exact statistics for those it finds unusual.

A row is ranked by what is known of it, lexicographically: every row that was escalated ranks above every row
that was not; among themselves they rank by the exact and by the screening statistic. With n normal rows,

    escalated:  p = (1 + escalated normal rows with an exact statistic as large or larger) / (n + 1)
    others:     p = (1 + escalated normal rows + others with a screening statistic as large) / (n + 1)

Both are ranks among the same n rows, so the p-values are as valid as those of `Calibration`: what is ranked
(the fused statistics, of both passes) is learnt from the other rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqmlm.errors import UsageError
from seqmlm.evaluation.conformal import (
    FORMAT,
    Calibration,
    Judgement,
    Marginals,
    Statistics,
    broken,
    teaching_part,
    with_format,
)
from seqmlm.evaluation.fusion import FUSIONS, Fusion
from seqmlm.evaluation.ranks import Arrays, Bools, Ranks, length_edges

_FEWEST_EXACT = 50


@dataclass(frozen=True, eq=False)
class Screening:
    """The first half of a cascade: which rows are worth an exact look.

    Args:
        calibration: of the screening statistics, always with a fused rank.
        escalate: rows with a screening p-value of at most this are escalated, in (0, 1).
    """

    calibration: Calibration
    escalate: float

    @classmethod
    def fit(
        cls,
        statistics: Statistics,
        lengths: NDArray[Any],
        *,
        escalate: float,
        seed: int,
        fusion: Fusion = "fisher",
    ) -> Screening:
        """Learn from normal rows, as `Calibration.fit` does without turns; both stages fuse alike.

        Raises:
            UsageError: `escalate` is not between 0 and 1.
            DataError: no row.
        """
        if not 0 < escalate < 1:
            raise UsageError(f"the escalated share lies between 0 and 1, not {escalate}")
        # No turns: the exact statistics are ranked among the very rows that the screening's are.
        fitted = Calibration.fit(statistics, lengths, seed=seed, fuse=True, fusion=fusion, turns=False)
        return cls(fitted, escalate)

    def judge(self, statistics: Statistics, lengths: NDArray[Any]) -> tuple[Judgement, Bools]:
        """Judge (M,) rows by their screening statistics; (M,) True where one needs the exact ones."""
        judged = self.calibration.judge(statistics, lengths)
        return judged, judged.p_value <= self.escalate


class Stages(Protocol):
    """What judges rows in two stages."""

    def near(self, screen: Statistics, lengths: NDArray[Any]) -> Bools:
        """(M,) True where a row's screening statistics ask for the exact ones."""
        ...

    def judge(self, screen: Statistics, lengths: NDArray[Any], near: Bools, exact: Statistics) -> Judgement:
        """Judge (M,) rows once the exact statistics of those `near` are known."""
        ...


@dataclass(frozen=True, eq=False)
class CascadeCalibration:
    """Lexicographic p-values: the screening's for most rows, the exact statistics' for those escalated.

    Args:
        screening: decides which rows are escalated, and ranks those that are not.
        exact: the exact channels' own ranks, learnt from escalated rows.
        ranks: of the fused exact statistic among the escalated normal rows; its total counts all rows.
    """

    screening: Screening
    exact: Marginals
    ranks: Ranks

    @classmethod
    def fit(
        cls,
        screening: Screening,
        screen: Statistics,
        exact: Statistics,
        lengths: NDArray[Any],
        *,
        seed: int,
    ) -> CascadeCalibration:
        """Complete a screening with the exact statistics of the rows it escalates.

        Args:
            screening: fitted to `screen` and `lengths` with the same seed.
            screen: channel -> (N,) screening statistics of the normal rows.
            exact: channel -> (N,) exact statistics; read only where `screening.judge` escalates.
            lengths: (N,) units of the rows.
            seed: the screening's.
        """
        _, escalated = screening.judge(screen, lengths)
        sizes = np.asarray(lengths, dtype=np.int64)
        teaches = teaching_part(len(sizes), seed)
        taught, ranked = escalated & teaches, escalated & ~teaches
        values = {name: np.asarray(one, dtype=np.float64) for name, one in exact.items()}
        edges = length_edges(sizes[taught], _FEWEST_EXACT)
        marginals = Marginals.fit(_rows(values, taught), sizes[taught], edges)
        fused = FUSIONS[screening.calibration.fusion]
        scores = fused(marginals.p_values(_rows(values, ranked), sizes[ranked])[0])
        return cls(screening, marginals, Ranks.of(scores, total=int(np.count_nonzero(~teaches))))

    @property
    def rows(self) -> int:
        """Normal rows it was fitted to."""
        return self.screening.calibration.rows

    @property
    def smallest_rate(self) -> float:
        """The smallest rate of false alarms it guarantees, 1 / (n + 1); below, a tail is extrapolated."""
        return 1.0 / (self.ranks.total + 1.0)

    @property
    def has_tail(self) -> bool:
        """Whether rates below `smallest_rate` can be asked for."""
        return self.ranks.tail is not None

    def near(self, screen: Statistics, lengths: NDArray[Any]) -> Bools:
        """(M,) True where a row's screening statistics ask for the exact ones."""
        return self.screening.judge(screen, lengths)[1]

    def judge(self, screen: Statistics, lengths: NDArray[Any], near: Bools, exact: Statistics) -> Judgement:
        """Judge (M,) rows.

        Args:
            screen: channel -> (M,) screening statistics.
            lengths: (M,) units of the rows.
            near: (M,) what `near` said of them.
            exact: channel -> (M,) exact statistics; read only where `near`.

        Returns:
            Where a row was not escalated, the p-values of exact channels that the screening has too are the
            screening's, and those of the others 1.

        Raises:
            StateError: the channels are others than those of the calibration.
        """
        sizes = np.asarray(lengths, dtype=np.int64)
        screened, _ = self.screening.judge(screen, sizes)
        values = {name: np.asarray(one, dtype=np.float64)[near] for name, one in exact.items()}
        marginal, _ = self.exact.p_values(values, sizes[near])
        # Rows that were not escalated have the screening's own rank, which counts all those above them.
        fused = FUSIONS[self.screening.calibration.fusion]
        p_value, beyond = screened.p_value.copy(), np.zeros(len(sizes), dtype=np.bool_)
        p_value[near], beyond[near] = self.ranks.p_values(fused(marginal))
        channels = {}
        for name, own in marginal.items():
            channels[name] = screened.channels.get(name, np.ones(len(sizes))).copy()
            channels[name][near] = own
        return Judgement(p_value, channels, beyond)

    def to_state(self) -> tuple[dict[str, Any], Arrays]:
        """JSON values and arrays; `from_state` gives the same calibration back, to the last bit."""
        screen, screen_arrays = self.screening.calibration.to_state()
        arrays: Arrays = {f"screen/{name}": one for name, one in screen_arrays.items()}
        ranks = self.ranks.to_state("exact", arrays)
        exact = self.exact.to_state("exact_channel", arrays)
        state = {"format": FORMAT, "escalate": self.screening.escalate, "screen": screen}
        return {**state, "exact": exact, "ranks": ranks}, arrays

    @classmethod
    def from_state(cls, state: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> CascadeCalibration:
        """What `to_state` gave.

        Raises:
            StateError: it is of another format, or a part of it is missing.
        """
        with_format(state)
        try:
            prefix = "screen/"
            own = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
            screening = Screening(Calibration.from_state(state["screen"], own), float(state["escalate"]))
            exact = Marginals.from_state(state["exact"], "exact_channel", arrays)
            return cls(screening, exact, Ranks.from_state(state["ranks"], "exact", arrays))
        except (KeyError, TypeError, ValueError) as error:
            raise broken(error) from None


def _rows(values: Statistics, chosen: Bools) -> dict[str, Any]:
    return {name: one[chosen] for name, one in values.items()}
