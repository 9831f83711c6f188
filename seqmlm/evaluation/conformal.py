"""The p-values of a row's statistics as one number; what that number is worth is ranked, not derived.

Which way suits a level was chosen on faults planted in normal records, without labels. Fisher's sum asks that
statistics agree: it suits a few that say different things. Ten that mostly say the same, of which a fault
moves two or three, dilute it; the harmonic mean is led by the smallest p-values, as their minimum is,
and yet tells one small p-value from several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from seqmlm.errors import DataError, StateError, UsageError
from seqmlm.evaluation.ranks import Arrays, Bools, Longs, Ranks, RanksByLength, length_edges

Doubles = NDArray[np.float64]
Fusion = Literal["fisher", "harmonic"]


def fisher(p_values: Mapping[str, Doubles]) -> Doubles:
    """(M,) -2 sum log p over statistics, all with equal weight (Fisher 1932); higher is more unusual."""
    return np.asarray(-2.0 * np.sum([np.log(one) for one in p_values.values()], axis=0), dtype=np.float64)


def harmonic(p_values: Mapping[str, Doubles]) -> Doubles:
    """(M,) minus the log of the statistics' harmonic mean p-value (Wilson 2019); higher is more unusual.

    In its upper tail it is the Cauchy combination of Liu and Xie (2020).
    """
    logs = -np.log(np.stack(list(p_values.values())))
    return np.asarray(logsumexp(logs, axis=0) - np.log(len(logs)), dtype=np.float64)


FUSIONS: Mapping[Fusion, Callable[[Mapping[str, Doubles]], Doubles]] = {
    "fisher": fisher,
    "harmonic": harmonic,
}


# Calibrated anomalies without labels: several statistics of a row become one p-value among normal rows.
#
# Each statistic becomes its tail p-value among normal rows of similar length, and these are
# fused (`seqmlm.evaluation.conformal`). Statistics depend on each other, so the fused statistic has no known
# law: it is ranked among normal rows again. That is valid by construction, for the rows whose ranks count
# are others than those the statistics' ranks were learnt from (split conformal prediction: Vovk, Gammerman &
# Shafer 2005): under exchangeability, P(p <= alpha) <= alpha for every alpha of at least 1 / (n + 1). Below
# that the p-value is extrapolated by a generalized Pareto tail (`seqmlm.evaluation.ranks`) and marked so.
#
# Fewer than 200 rows are too few to be divided: they take turns. Each fifth is ranked by statistics learnt
# from the other four; a new row is ranked by all five, and of a statistic's five p-values the largest counts.
# That keeps to alpha as the split does (the minmax of Barber, Candes, Ramdas & Tibshirani 2021), and errs
# on the quiet side.
#
# A single statistic needs no fusion, and no rows are kept apart: it is ranked among all rows of its length
# bin.

Statistics = Mapping[str, Doubles]

FORMAT = 3

# Rows of a length bin: where ranks are the answer they must resolve small rates; before fusion they need not.
_FEWEST_ALONE, _FEWEST_FUSED = 200, 50
_FEW, _FOLDS, _FEWEST_TEACHING = 200, 5, 12


@dataclass(frozen=True, eq=False)
class Judgement:
    """What rows are worth beside normal ones.

    Args:
        p_value: (M,) in (0, 1]; smaller is more unusual.
        p_values: name -> (M,) its own p-value, 1 where it does not apply.
        extrapolated: (M,) True where the row is beyond all normal ones and the tail told how far.
    """

    p_value: Doubles
    p_values: dict[str, Doubles]
    extrapolated: Bools


@dataclass(frozen=True, eq=False)
class Marginals:
    """The statistics' own ranks by length: any number of statistics to as many p-values, and to one number.

    Args:
        by_statistic: name -> its ranks.
    """

    by_statistic: dict[str, RanksByLength]

    @classmethod
    def fit(cls, statistics: Statistics, lengths: Longs, edges: Longs) -> Marginals:
        """Learn from (N,) statistics and lengths of normal rows; bins as `length_edges` gives them."""
        return cls({name: RanksByLength.of(values, lengths, edges) for name, values in statistics.items()})

    def p_values(self, statistics: Statistics, lengths: Longs) -> tuple[dict[str, Doubles], Bools]:
        """Name -> (M,) p-values, and (M,) True where any of them is extrapolated.

        Raises:
            StateError: the statistics are others than those of the calibration.
        """
        if set(statistics) != set(self.by_statistic):
            raise StateError(
                f"calibrated for the statistics {', '.join(self.by_statistic)}, not {', '.join(statistics)}; "
                "calibrate the model again"
            )
        found, beyond = {}, np.zeros(len(lengths), dtype=np.bool_)
        for name, ranks in self.by_statistic.items():
            found[name], here = ranks.p_values(statistics[name], lengths)
            beyond |= here
        return found, beyond

    def to_state(self, name: str, arrays: Arrays) -> dict[str, Any]:
        """Plain values by name; arrays go into `arrays`."""
        return {c: ranks.to_state(f"{name}/{c}", arrays) for c, ranks in self.by_statistic.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], name: str, arrays: Mapping[str, NDArray[Any]]) -> Marginals:
        """What `to_state` wrote."""
        found = {c: RanksByLength.from_state(one, f"{name}/{c}", arrays) for c, one in state.items()}
        return cls(found)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Tail p-values of statistics from normal rows: by length, fused, no labels.

    Only sorted values of each statistic and of the fused one are held, never which belong together.

    Args:
        turns: ranks of the statistics, one for each turn in teaching them; the largest p-value counts.
        fused: ranks of the fused statistic among rows that the statistics' ranks have not seen; None for one
            statistic, whose own ranks are the answer.
        rows: normal rows it was fitted to.
        fusion: how the statistics' p-values become the fused statistic.
    """

    turns: tuple[Marginals, ...]
    fused: Ranks | None
    rows: int
    fusion: Fusion = "fisher"

    @classmethod
    def fit(
        cls,
        statistics: Statistics,
        lengths: NDArray[Any],
        *,
        seed: int,
        fuse: bool | None = None,
        fusion: Fusion = "fisher",
        turns: bool = True,
    ) -> Calibration:
        """Learn what is normal.

        Args:
            statistics: name -> (N,) statistics of normal rows, higher = more unusual; not-a-number where
                one does not apply, infinity where it could not be more unusual.
            lengths: (N,) units of the rows.
            seed: decides which half of the rows teaches the marginals, or whose turn it is when.
            fuse: rank the fused statistic of the other rows; by default where there are several statistics.
            fusion: how p-values become the fused statistic.
            turns: let fewer than 200 rows take turns; else `teaching_part` of them teaches.

        Raises:
            DataError: no row, or no statistic.
        """
        values, sizes = _checked(statistics, lengths)
        if not (len(values) > 1 if fuse is None else fuse):
            edges = length_edges(sizes, _FEWEST_ALONE)
            kept = np.ones(len(sizes), dtype=np.bool_)
            # A row whose length decided where a bin begins is no ordinary member of it: with it there, a new
            # row would rank one place too high.
            kept[[np.flatnonzero(sizes == edge)[0] for edge in edges.tolist()]] = False
            own = {name: one[kept] for name, one in values.items()}
            return cls((Marginals.fit(own, sizes[kept], edges),), None, len(sizes), fusion)
        if turns and len(sizes) < _FEW:
            fold = np.random.default_rng(seed).permutation(len(sizes)) % _FOLDS
            edges = length_edges(sizes, _FEWEST_FUSED)
            parts = [_fused(values, sizes, fold != turn, edges, fusion) for turn in np.unique(fold)]
        else:
            teaches = teaching_part(len(sizes), seed)
            edges = length_edges(sizes[teaches], _FEWEST_FUSED)
            parts = [_fused(values, sizes, teaches, edges, fusion)]
        scores = np.concatenate([own for _, own in parts])
        return cls(tuple(marginals for marginals, _ in parts), Ranks.of(scores), len(sizes), fusion)

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the statistics it judges."""
        return tuple(self.turns[0].by_statistic)

    @property
    def _alone(self) -> list[Ranks]:
        """Of one statistic: its ranks, by length."""
        return [one for ranks in self.turns[0].by_statistic.values() for one in ranks.bins]

    @property
    def ranked(self) -> int:
        """Rows whose ranks are the answer: of the fused statistic, or of the smallest length bin."""
        if self.fused is not None:
            return self.fused.total
        return min(one.total for one in self._alone)

    @property
    def smallest_rate(self) -> float:
        """The smallest rate of false alarms it guarantees, 1 / (n + 1); below, a tail is extrapolated."""
        return 1.0 / (self.ranked + 1.0)

    @property
    def has_tail(self) -> bool:
        """Whether rates below `smallest_rate` can be asked for."""
        tested = self._alone if self.fused is None else [self.fused]
        return all(one.tail is not None for one in tested)

    def judge(self, statistics: Statistics, lengths: NDArray[Any]) -> Judgement:
        """Judge (M,) rows by the statistics that were calibrated and their (M,) lengths.

        Raises:
            StateError: the statistics are others than those of the calibration.
        """
        values, sizes = _arrays(statistics, lengths)
        each = [marginals.p_values(values, sizes) for marginals in self.turns]
        p_values = {name: np.max([found[name] for found, _ in each], axis=0) for name in self.statistics}
        if self.fused is None:
            (p_value,), beyond = p_values.values(), each[0][1]
        else:
            p_value, beyond = self.fused.p_values(FUSIONS[self.fusion](p_values))
        return Judgement(p_value, p_values, beyond)

    def to_state(self) -> tuple[dict[str, Any], Arrays]:
        """JSON values and arrays; `from_state` gives the same calibration back, to the last bit."""
        arrays: Arrays = {}
        fused = None if self.fused is None else self.fused.to_state("fused", arrays)
        turns = [one.to_state(f"channel/{turn}", arrays) for turn, one in enumerate(self.turns)]
        state = {"format": FORMAT, "rows": self.rows, "fusion": self.fusion}
        return {**state, "turns": turns, "fused": fused}, arrays

    @classmethod
    def from_state(cls, state: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Calibration:
        """What `to_state` gave.

        Raises:
            StateError: it is of another format, or a part of it is missing.
        """
        with_format(state)
        try:
            turns = [Marginals.from_state(o, f"channel/{k}", arrays) for k, o in enumerate(state["turns"])]
            fused = None if state["fused"] is None else Ranks.from_state(state["fused"], "fused", arrays)
            fusion: Fusion = state["fusion"]
            if fusion not in FUSIONS:
                raise ValueError(f"no fusion {fusion!r}")
            return cls(tuple(turns), fused, int(state["rows"]), fusion)
        except (KeyError, TypeError, ValueError) as error:
            raise broken(error) from None


def teaching_part(rows: int, seed: int) -> Bools:
    """(N,) True for the rows that teach, the others being ranked: half, and of few rows a quarter.

    Of few rows, half would leave too few to rank a new one among: so 132 guarantee a rate of .01. A dozen
    teach where they can: fewer show statistics no tail.
    """
    count = rows // 2 if rows >= _FEW else min(rows // 2, max(-(-rows // 4), _FEWEST_TEACHING))
    teaches = np.zeros(rows, dtype=np.bool_)
    teaches[np.random.default_rng(seed).permutation(rows)[:count]] = True
    return teaches


def with_format(state: Mapping[str, Any]) -> None:
    """Raise StateError where a state has another format than this version's."""
    if state.get("format") != FORMAT:
        raise StateError(
            f"the calibration has format {state.get('format')}, this version of seqmlm reads {FORMAT}; "
            "calibrate the model again"
        )


def broken(error: Exception) -> StateError:
    """The error for a state that lacks a part."""
    return StateError(f"the calibration is incomplete ({error}); calibrate the model again")


def _fused(
    values: Statistics, sizes: Longs, teaches: Bools, edges: Longs, fusion: Fusion
) -> tuple[Marginals, Doubles]:
    """The statistics' ranks as some rows teach them, and the fused statistic of the others."""
    taught = {name: one[teaches] for name, one in values.items()}
    marginals = Marginals.fit(taught, sizes[teaches], edges)
    others = {name: one[~teaches] for name, one in values.items()}
    return marginals, FUSIONS[fusion](marginals.p_values(others, sizes[~teaches])[0])


def _arrays(statistics: Statistics, lengths: NDArray[Any]) -> tuple[dict[str, Doubles], Longs]:
    sizes = np.asarray(lengths, dtype=np.int64)
    values = {name: np.asarray(one, dtype=np.float64) for name, one in statistics.items()}
    for name, one in values.items():
        if one.shape != sizes.shape:
            raise ValueError(f"statistic {name}: {len(one)} values for {len(sizes)} lengths")
    return values, sizes


def _checked(statistics: Statistics, lengths: NDArray[Any]) -> tuple[dict[str, Doubles], Longs]:
    values, sizes = _arrays(statistics, lengths)
    if not values or not len(sizes):
        raise DataError(
            "there is nothing to calibrate with: no row has a score",
            remedy="give normal records that the model can read, of the kind it will judge",
        )
    return values, sizes


# Calibration of a cascade: a cheap screening for all rows, exact statistics for those it finds unusual.
#
# A row is ranked by what is known of it, lexicographically: every row that was escalated ranks above every
# row that was not; among themselves they rank by the exact and by the screening statistic. With n normal
# rows,
#
#     escalated:  p = (1 + escalated normal rows with an exact statistic as large or larger) / (n + 1)
# others:     p = (1 + escalated normal rows + others with a screening statistic as large) / (n + 1)
#
# Both are ranks among the same n rows, so the p-values are as valid as those of `Calibration`: what is
# ranked (the fused statistics, of both passes) is learnt from the other rows.

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
        exact: the exact statistics' own ranks, learnt from escalated rows.
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
            screen: name -> (N,) screening statistics of the normal rows.
            exact: name -> (N,) exact statistics; read only where `screening.judge` escalates.
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
            screen: name -> (M,) screening statistics.
            lengths: (M,) units of the rows.
            near: (M,) what `near` said of them.
            exact: name -> (M,) exact statistics; read only where `near`.

        Returns:
            Where a row was not escalated, the p-values of exact statistics that the screening has too are the
            screening's, and those of the others 1.

        Raises:
            StateError: the statistics are others than those of the calibration.
        """
        sizes = np.asarray(lengths, dtype=np.int64)
        screened, _ = self.screening.judge(screen, sizes)
        values = {name: np.asarray(one, dtype=np.float64)[near] for name, one in exact.items()}
        marginal, _ = self.exact.p_values(values, sizes[near])
        # Rows that were not escalated have the screening's own rank, which counts all those above them.
        fused = FUSIONS[self.screening.calibration.fusion]
        p_value, beyond = screened.p_value.copy(), np.zeros(len(sizes), dtype=np.bool_)
        p_value[near], beyond[near] = self.ranks.p_values(fused(marginal))
        p_values = {}
        for name, own in marginal.items():
            p_values[name] = screened.p_values.get(name, np.ones(len(sizes))).copy()
            p_values[name][near] = own
        return Judgement(p_value, p_values, beyond)

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
