"""Calibrated p-values without labels: the statistics of a row become p-values, are fused, and ranked again.

Each statistic becomes its tail p-value among normal rows of similar length, and these are fused
(`FUSIONS`). Statistics depend on each other, so the fused statistic has no known distribution: it is ranked
among normal rows again. That is valid by construction, since the rows it is ranked among are not those the
statistics' ranks were estimated on (split conformal prediction: Vovk, Gammerman & Shafer 2005): under
exchangeability, P(p <= alpha) <= alpha for every alpha of at least 1 / (n + 1). Below that the p-value is
extrapolated by a generalized Pareto tail (`seqmlm.evaluation.ranks`) and marked as such.

Fewer than 200 rows are too few to be divided and are cross-fitted in five folds of whole records: each fold
is ranked by statistics estimated on the other four. A new row is fused by each of the five and compared with
the rows of that fold only,

    p = (1 + rows of its fold that are as unusual or more, added over folds) / (n + 1),

the cross-conformal p-value of Vovk (2015). It keeps to about alpha; what is proven, if each record has one
row, is P(p <= alpha) <= 2 alpha + 2 (1 - 1/K) / (n/K + 1) with K folds (the CV+ of Barber, Candes, Ramdas &
Tibshirani 2021). A single statistic needs no fusion and no division: it is ranked among all rows of its
length bin.

Which statistics are fused, and how, each level declares. Fisher's sum suits a few statistics that
measure different things. Ten correlated statistics, of which a fault moves two or three, dilute it; the
harmonic mean is dominated by the smallest p-values, as their minimum is, but distinguishes one small p-value
from several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from seqmlm.errors import DataError, StateError
from seqmlm.evaluation.ranks import (
    Arrays,
    Bools,
    CrossRanks,
    Longs,
    Marginals,
    Ranks,
    RanksByLength,
    length_edges,
)

Doubles = NDArray[np.float64]
Fusion = Literal["fisher", "harmonic"]
HARMONIC: Fusion = "harmonic"


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


Statistics = Mapping[str, Doubles]


def fuse(p_values: Mapping[str, Doubles], fusion: Fusion) -> Doubles:
    """(M,) the fused statistic of (M,) p-values by name; higher is more unusual."""
    rows = len(next(iter(p_values.values())))
    if rows == 1:
        # numpy adds up a single column in another order than several, and equal rows must stay equal.
        p_values = {name: np.repeat(one, 2) for name, one in p_values.items()}
    return FUSIONS[fusion](p_values)[:rows]


# Fewest rows of a length bin. Without fusion its ranks are the result and must resolve small rates.
_FEWEST_ALONE, _FEWEST_FUSED = 200, 50
FEW, _FOLDS = 200, 5
"""Rows below which they are cross-fitted, and in how many folds."""


@dataclass(frozen=True, eq=False)
class Judgement:
    """How unusual rows are among normal ones.

    Args:
        p_value: (M,) in (0, 1]; smaller is more unusual.
        p_values: name -> (M,) its own p-value, 1 where the statistic does not apply.
        extrapolated: (M,) True where the row is beyond all normal ones and the p-value comes from the tail.
    """

    p_value: Doubles
    p_values: dict[str, Doubles]
    extrapolated: Bools


@dataclass(frozen=True, eq=False)
class Calibration:
    """Tail p-values of statistics from normal rows: by length, fused, no labels.

    Holds only sorted values of each statistic and of the fused statistic, never which belong together.

    Args:
        turns: ranks of the statistics, each estimated without the rows of one fold.
        levels: of each turn the ranks by length of the fused statistic of the rows that estimate it, which
            it is expressed by; None where there is one bin of lengths. Without this the fused statistic of
            short rows, whose statistics have many ties, would be less than that of long ones, and their
            p-values larger. Empty for one statistic.
        fused: ranks of the fused statistic among the rows of each fold; None for one statistic, whose own
            ranks are the result.
        rows: normal rows it was fitted to.
        fusion: how the statistics' p-values become the fused statistic.
    """

    turns: tuple[Marginals, ...]
    fused: CrossRanks | None
    rows: int
    fusion: Fusion = "fisher"
    levels: tuple[RanksByLength | None, ...] = ()

    @classmethod
    def fit(
        cls,
        statistics: Statistics,
        lengths: NDArray[Any],
        *,
        seed: int,
        fusion: Fusion = "fisher",
        records: NDArray[Any] | None = None,
    ) -> Calibration:
        """Estimate the distribution of normal rows.

        Args:
            statistics: statistic -> (N,) statistics of normal rows, higher = more unusual; NaN where one does
                not apply, infinity where it could not be more unusual.
            lengths: (N,) units of the rows.
            seed: of the division into halves or folds.
            fusion: how p-values become the fused statistic.
            records: (N,) what each row is of, as numbers: rows of one record are in one fold. Default: each
                row is a record.

        Raises:
            DataError: no rows, or no statistics.
        """
        values, sizes = _checked(statistics, lengths)
        if len(values) == 1:
            edges = length_edges(sizes, _FEWEST_ALONE)
            kept = np.ones(len(sizes), dtype=np.bool_)
            # A row whose length determined the start of a bin is not exchangeable with a new row: with it in
            # the bin, a new row would rank one place too high.
            kept[[np.flatnonzero(sizes == edge)[0] for edge in edges.tolist()]] = False
            own = {name: one[kept] for name, one in values.items()}
            return cls((Marginals.fit(own, sizes[kept], edges),), None, len(sizes), fusion)
        if len(sizes) < FEW:
            fold = _folds(np.arange(len(sizes)) if records is None else np.asarray(records), seed)
            parts = [_fused(values, sizes, fold != turn, fusion) for turn in np.unique(fold)]
        else:
            parts = [_fused(values, sizes, teaching_part(len(sizes), seed), fusion)]
        scores = CrossRanks.of([own for _, _, own in parts])
        turns_, levels = tuple(one[0] for one in parts), tuple(one[1] for one in parts)
        return cls(turns_, scores, len(sizes), fusion, levels)

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the statistics."""
        return tuple(self.turns[0].by_statistic)

    @property
    def applying(self) -> tuple[str, ...]:
        """Those of the statistics that some normal row has."""
        ranks = self.turns[0].by_statistic
        return tuple(name for name in ranks if any((one.values > -np.inf).any() for one in ranks[name].bins))

    @property
    def _alone(self) -> list[Ranks]:
        """The only statistic's ranks, by length."""
        return [one for ranks in self.turns[0].by_statistic.values() for one in ranks.bins]

    @property
    def ranked(self) -> int:
        """Rows that p-values rank among: those of the fused statistic, or of the smallest length bin."""
        if self.fused is not None:
            return self.fused.total
        return min(one.total for one in self._alone)

    @property
    def smallest_rate(self) -> float:
        """The smallest false positive rate it guarantees, 1 / (n + 1); below, a tail is extrapolated."""
        return 1.0 / (self.ranked + 1.0)

    @property
    def has_tail(self) -> bool:
        """Whether rates below `smallest_rate` are possible."""
        tested = self._alone if self.fused is None else [self.fused]
        return all(one.tail is not None for one in tested)

    def judge(self, statistics: Statistics, lengths: NDArray[Any]) -> Judgement:
        """Judge (M,) rows by the statistics that were calibrated and their (M,) lengths.

        Raises:
            StateError: the statistics differ from those of the calibration.
        """
        values, sizes = _arrays(statistics, lengths)
        each = [marginals.p_values(values, sizes) for marginals in self.turns]
        if self.fused is None:
            p_values, _, beyond = each[0]
            (p_value,) = p_values.values()
        else:
            p_values = {
                name: np.mean([found[name] for found, *_ in each], axis=0) for name in self.statistics
            }
            scores = [fuse(one[1], self.fusion) for one in each]
            p_value, beyond = self.fused.p_values(
                [_levelled(level, one, sizes) for level, one in zip(self.levels, scores, strict=True)]
            )
        return Judgement(p_value, p_values, beyond)

    def to_state(self) -> tuple[dict[str, Any], Arrays]:
        """JSON values and arrays; `from_state` restores the same calibration, bit for bit."""
        arrays: Arrays = {}
        fused = None if self.fused is None else self.fused.to_state("fused", arrays)
        turns = [one.to_state(f"channel/{turn}", arrays) for turn, one in enumerate(self.turns)]
        levels = [_kept(one, f"levels/{turn}", arrays) for turn, one in enumerate(self.levels)]
        state = {"rows": self.rows, "fusion": self.fusion, "levels": levels}
        return {**state, "turns": turns, "fused": fused}, arrays

    @classmethod
    def from_state(cls, state: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Calibration:
        """Restore what `to_state` gave.

        Raises:
            StateError: a part is missing, or does not fit.
        """
        try:
            turns = [Marginals.from_state(o, f"channel/{k}", arrays) for k, o in enumerate(state["turns"])]
            fused = None
            if state["fused"] is not None:
                fused = CrossRanks.from_state(state["fused"], "fused", arrays)
            levels = tuple(_restored(one, f"levels/{k}", arrays) for k, one in enumerate(state["levels"]))
            if state["fusion"] not in FUSIONS:
                raise ValueError(f"no fusion {state['fusion']!r}")
            return cls(tuple(turns), fused, int(state["rows"]), state["fusion"], levels)
        except (KeyError, TypeError, ValueError) as error:
            raise broken(error) from None


def teaching_part(rows: int, seed: int) -> Bools:
    """(N,) True for the half of the rows that estimates the marginals; the others are ranked."""
    teaches = np.zeros(rows, dtype=np.bool_)
    teaches[np.random.default_rng(seed).permutation(rows)[: rows // 2]] = True
    return teaches


def broken(error: Exception) -> StateError:
    """The error for an incomplete state."""
    return StateError(f"the calibration is incomplete ({error}); calibrate the model again")


def _folds(records: NDArray[Any], seed: int) -> Longs:
    """(N,) the fold of each row, of (N,) numbers of records: whole records, folds of about as many rows each.

    The rows of one single record are divided: there is nothing better.
    """
    owner, rows = np.unique(records, return_inverse=True, return_counts=True)[1:]
    if len(rows) == 1:
        owner, rows = np.arange(len(records)), np.ones(len(records), dtype=np.int64)
    fold, held = np.zeros(len(rows), dtype=np.int64), np.zeros(_FOLDS, dtype=np.int64)
    drawn = np.random.default_rng(seed).permutation(len(rows))
    for record in np.lexsort((drawn, -rows)).tolist():  # the largest first
        fold[record] = held.argmin()
        held[fold[record]] += rows[record]
    return fold[owner]


def _fused(
    values: Statistics, sizes: Longs, teaches: Bools, fusion: Fusion
) -> tuple[Marginals, RanksByLength | None, Doubles]:
    """The ranks of the statistics and of the fused one, estimated on some rows, and that of the others."""
    edges = length_edges(sizes[teaches], _FEWEST_FUSED)
    own, others = ({n: one[rows] for n, one in values.items()} for rows in (teaches, ~teaches))
    marginals = Marginals.fit(own, sizes[teaches], edges)
    level = None
    if len(edges):
        scores = fuse(marginals.p_values(own, sizes[teaches])[1], fusion)
        level = RanksByLength.of(scores, sizes[teaches], edges)
    scores = fuse(marginals.p_values(others, sizes[~teaches])[1], fusion)
    return marginals, level, _levelled(level, scores, sizes[~teaches])


def _levelled(level: RanksByLength | None, scores: Doubles, lengths: Longs) -> Doubles:
    return scores if level is None else level.levelled(scores, lengths)


def _kept(level: RanksByLength | None, name: str, arrays: Arrays) -> dict[str, Any] | None:
    return None if level is None else level.to_state(name, arrays)


def _restored(state: Mapping[str, Any] | None, name: str, arrays: Mapping[str, Any]) -> RanksByLength | None:
    return None if state is None else RanksByLength.from_state(state, name, arrays)


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
            remedy="give normal records that the model can read, of the kind it will score",
        )
    return values, sizes
