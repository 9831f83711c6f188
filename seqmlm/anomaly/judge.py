"""Calibration with normal rows, and the p-values of new rows; no labels are used.

Each statistic of a row is converted to its p-value among normal rows of similar length. These p-values are
combined into one fused statistic (`FUSIONS`). The statistics depend on each other, so the distribution of the
fused statistic is unknown. Therefore the fused statistic is ranked among normal rows again. These must be
other rows than those that the ranks of the statistics were estimated on.

**Cross-fitting.** The rows are divided into five folds of whole records. Each fold is ranked by statistics
estimated on the other four. A new row is fused with the ranks of each fold, and compared only with the rows
of that fold:

    p = (1 + rows of its fold that are as unusual or more, added over folds) / (n + 1)

This is the cross-conformal p-value of Vovk (2015). Its false positive rate is about alpha. If each record has
one row, a bound for K folds is proven (CV+ of Barber, Candes, Ramdas & Tibshirani 2021):

    P(p <= alpha) <= 2 alpha + 2 (1 - 1/K) / (n/K + 1)

**Splitting.** An alternative is to estimate with half of the rows and rank the others. With few rows, the
realised rates then vary up to twice as much, and only rates twice as large are possible. From 10,000 rows on,
this does not matter, and the rows are split (split conformal prediction: Vovk, Gammerman & Shafer 2005).
Under exchangeability, P(p <= alpha) <= alpha for every alpha of at least 1 / (n + 1).

**One statistic.** A single statistic needs no fusion and no division. It is ranked among all rows of its
length bin.

**Two populations.** Statistics that need no model are known for many more rows: all rows of the training
data. They are compared with these (`TwoPopulations`). Both p-values are valid by themselves, so twice the
smaller one is a valid p-value (Bonferroni). The p-value from fewer rows is then not extrapolated, because the
other one guarantees smaller rates.

**Fusion.** Each level declares which statistics are fused, and how. Fisher's sum is good for a few statistics
that measure different things. With ten correlated statistics, a fault changes only two or three, and the
others dilute the sum. The harmonic mean depends mainly on the smallest p-values, like their minimum. Unlike
the minimum, it distinguishes one small p-value from several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.p_values import LEAST_P, NO_TAIL, Bools, Doubles, Longs, fit_tail, rank_p_values
from seqmlm.anomaly.ranks import Arrays, Ranks, at_least, length_edges
from seqmlm.errors import DataError, StateError

Statistics = Mapping[str, Doubles]
Fusion = Literal["fisher", "harmonic"]
HARMONIC: Fusion = "harmonic"

MANY, _FOLDS = 10_000, 5
"""Number of rows from which they are split in halves, and number of folds for fewer rows."""
_MOST_SIMILAR = 40
"""Maximum number of length bins if statistics are fused."""
# Fewest rows in a length bin. Without fusion, its ranks are the result and must resolve small rates.
_FEWEST_ALONE, _FEWEST_FUSED = 200, 50


def fisher(p_values: Statistics) -> Doubles:
    """(M,) -2 sum log p over statistics with equal weights (Fisher 1932); higher is more unusual."""
    return np.asarray(-2.0 * np.sum([np.log(p) for p in p_values.values()], axis=0), dtype=np.float64)


def harmonic(p_values: Statistics) -> Doubles:
    """(M,) minus the log of the harmonic mean of the p-values (Wilson 2019); higher is more unusual.

    In its upper tail, it equals the Cauchy combination of Liu and Xie (2020).
    """
    from scipy.special import logsumexp

    logs = -np.log(np.stack(list(p_values.values())))
    return np.asarray(logsumexp(logs, axis=0) - np.log(len(logs)), dtype=np.float64)


FUSIONS: Mapping[Fusion, Callable[[Statistics], Doubles]] = {"fisher": fisher, "harmonic": harmonic}


def fuse(p_values: Statistics, fusion: Fusion) -> Doubles:
    """(M,) the fused statistic of p-values (name -> (M,)); higher is more unusual."""
    rows = len(next(iter(p_values.values())))
    if rows == 1:
        # numpy adds a single column in another order than several columns. Equal rows must get equal results.
        p_values = {name: np.repeat(p, 2) for name, p in p_values.items()}
    return FUSIONS[fusion](p_values)[:rows]


@dataclass(frozen=True, eq=False)
class Judgement:
    """How unusual M rows are compared with normal rows.

    Args:
        p_value: (M,) p-values in (0, 1]; smaller is more unusual.
        p_values: statistic -> (M,) its p-values, 1 where it does not apply.
        extrapolated: (M,) True if the row is beyond all normal rows and its p-value comes from the tail.
    """

    p_value: Doubles
    p_values: dict[str, Doubles]
    extrapolated: Bools


@dataclass(frozen=True, eq=False)
class Fold:
    """One fold: ranks estimated on all other rows, and the fused statistics of its own rows.

    Args:
        ranks: the ranks of each statistic.
        level: ranks of the fused statistic by length, from the rows that estimate `ranks`. The fused
            statistic is converted to these ranks. None if there is only one length bin. The statistics of
            short rows have many ties. Without this conversion, the fused statistic of short rows would be
            smaller than the number for long rows, and their p-values are larger.
        fused: (K,) the fused statistics of the fold's own rows, ascending.
    """

    ranks: Mapping[str, Ranks]
    level: Ranks | None
    fused: Doubles

    @classmethod
    def of(cls, statistics: Statistics, lengths: Longs, teaches: Bools, fusion: Fusion) -> Fold:
        """The fold of (N,) statistics and lengths; `teaches` is True for rows outside of the fold."""
        edges = length_edges(lengths[teaches], _FEWEST_FUSED, _MOST_SIMILAR)
        teaching, ranked = (
            {name: values[rows] for name, values in statistics.items()} for rows in (teaches, ~teaches)
        )
        ranks = {name: Ranks.of(values, lengths[teaches], edges) for name, values in teaching.items()}
        fold, level = cls(ranks, None, np.zeros(0)), None
        if len(edges):
            level = Ranks.of(fold.scores(teaching, lengths[teaches], fusion)[0], lengths[teaches], edges)
        fold = cls(ranks, level, np.zeros(0))
        return cls(ranks, level, np.sort(fold.scores(ranked, lengths[~teaches], fusion)[0]))

    def scores(
        self, statistics: Statistics, lengths: Longs, fusion: Fusion
    ) -> tuple[Doubles, dict[str, Doubles]]:
        """(M,) the fused statistic, and statistic -> (M,) p-values.

        If one of K statistics of a row is infinite, its p-value is divided by K before fusion. This applies
        only if no normal row of similar length has an infinite value. Among few rows, an infinite value would
        otherwise rank no higher than the largest finite value, and every statistic has such a row. The result
        is valid because the fused statistic is ranked again.
        """
        p_values = {name: ranks.p_values(statistics[name], lengths)[0] for name, ranks in self.ranks.items()}
        fused = dict(p_values)
        for name, ranks in self.ranks.items():
            if (endless := np.isposinf(statistics[name])).any():
                share = np.where(endless & ranks.finite(lengths), len(self.ranks), 1)
                fused[name] = np.maximum(p_values[name] / share, LEAST_P)
        scores = fuse(fused, fusion)
        return scores if self.level is None else self.level.log_ranks(scores, lengths), p_values


@dataclass(frozen=True, eq=False)
class Normal:
    """Calibration with the normal rows of a level.

    It stores the sorted values of each statistic, never the values of one row together.

    Args:
        folds: several folds, or one if there are many rows or there is one statistic.
        rows: number of normal rows.
        fusion: how the p-values of the statistics are combined.
        tail: (4,) the tail of the fused statistic (`fit_tail`). For a new row, the smallest of its values
            over the folds is compared with it.
        unfamiliar: number of additional normal rows for which no statistic is known.
    """

    folds: tuple[Fold, ...]
    rows: int
    fusion: Fusion
    tail: Doubles
    unfamiliar: int = 0

    @classmethod
    def fit(
        cls,
        statistics: Statistics,
        lengths: NDArray[Any],
        *,
        seed: int,
        fusion: Fusion = "fisher",
        records: NDArray[Any] | None = None,
    ) -> Normal:
        """Estimate the distribution of normal rows.

        Args:
            statistics: statistic -> (N,) values of normal rows; higher is more unusual. NaN means that it
                does not apply, infinity that it cannot be more unusual.
            lengths: (N,) number of units of each row.
            seed: seed of the division into folds or halves.
            fusion: how the p-values of the statistics are combined.
            records: (N,) number of the record of each row. Rows of one record are in one fold. By default,
                each row is a record.

        Raises:
            DataError: there are no rows, or no statistics.
        """
        values, sizes = _arrays(statistics, lengths)
        n = len(sizes)
        if not values or not n:
            reason = "there is nothing to calibrate with: no row has a score"
            remedy = "give normal records that the model can read, of the kind it will score"
            raise DataError(reason, remedy=remedy)
        if len(values) == 1:
            edges = length_edges(sizes, _FEWEST_ALONE)
            ranked = np.ones(n, dtype=np.bool_)
            # A row whose length determined the start of a bin is not exchangeable with a new row. If it were
            # in the bin, a new row would rank one place too high.
            ranked[[np.flatnonzero(sizes == edge)[0] for edge in edges.tolist()]] = False
            ranks = {name: Ranks.of(column[ranked], sizes[ranked], edges) for name, column in values.items()}
            return cls((Fold(ranks, None, np.zeros(0)),), n, fusion, NO_TAIL)
        if n < MANY:
            fold = _folds(np.arange(n) if records is None else np.asarray(records), seed)
            taught = [fold != turn for turn in np.unique(fold)]
        else:
            taught = [teaching_part(n, seed)]
        folds = tuple(Fold.of(values, sizes, teaches, fusion) for teaches in taught)
        return cls(folds, n, fusion, fit_tail(np.sort(np.concatenate([part.fused for part in folds]))))

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the statistics."""
        return tuple(self.folds[0].ranks)

    @property
    def applying(self) -> tuple[str, ...]:
        """Names of the statistics that apply to at least one normal row."""
        ranks = self.folds[0].ranks
        return tuple(name for name in ranks if any((values > -np.inf).any() for values in ranks[name].bins))

    @property
    def _only_ranks(self) -> Ranks | None:
        """The ranks of the only statistic, which are the result; None if several are fused."""
        return next(iter(self.folds[0].ranks.values())) if len(self.statistics) == 1 else None

    @property
    def ranked(self) -> int:
        """Number of rows behind a p-value: rows with a fused statistic, or in the smallest length bin."""
        if (ranks := self._only_ranks) is not None:
            return min(len(values) for values in ranks.bins)
        return sum(len(fold.fused) for fold in self.folds)

    @property
    def smallest_rate(self) -> float:
        """The smallest false positive rate that is guaranteed, 1 / (n + 1); lower rates need a tail."""
        return 1.0 / (self.ranked + 1.0)

    @property
    def silent_below(self) -> float:
        """The rate below which some statistics cannot raise an alarm.

        Here it is 0, because all statistics are calibrated with the same rows.
        """
        return 0.0

    def compared(self, length: int) -> int:
        """Number of normal rows that a row of this length is compared with."""
        return self.ranked if (ranks := self._only_ranks) is None else ranks.size(length)

    def rows_for(self, rate: float) -> int:
        """Number of normal rows, with the present distribution of lengths, that guarantee a rate."""
        rows = math.ceil(1 / rate - 1)
        if self._only_ranks:
            return math.ceil(rows * self.rows / max(self.ranked, 1))
        return rows if rows < MANY else 2 * rows

    @property
    def unfamiliar_rate(self) -> float:
        """The fraction of normal rows for which no statistic is known.

        It is the p-value of such a row, if such rows count as more unusual than all rows with statistics.
        """
        return (1.0 + self.unfamiliar) / (self.rows + self.unfamiliar + 1.0)

    @property
    def has_tail(self) -> bool:
        """Whether a tail was fitted, so that rates below `smallest_rate` are possible."""
        tails = self.tail if (ranks := self._only_ranks) is None else ranks.tails
        return not np.isnan(tails).any()

    def judge(self, statistics: Statistics, lengths: NDArray[Any]) -> Judgement:
        """The p-values of (M,) rows.

        Args:
            statistics: statistic -> (M,) values, for the statistics of the calibration.
            lengths: (M,) number of units of each row.

        Raises:
            StateError: the statistics differ from the statistics of the calibration.
        """
        _check_names(statistics, self.statistics)
        values, sizes = _arrays(statistics, lengths)
        if (ranks := self._only_ranks) is not None:
            (name,) = self.statistics
            p_value, beyond = ranks.p_values(values[name], sizes)
            return Judgement(p_value, {name: p_value}, beyond)
        scores, p_values = zip(*(fold.scores(values, sizes, self.fusion) for fold in self.folds), strict=True)
        counts = sum(at_least(fold.fused, fused) for fold, fused in zip(self.folds, scores, strict=True))
        smallest = np.min(np.stack(scores), axis=0)
        p_value, beyond = rank_p_values(np.asarray(counts), self.ranked, self.tail, smallest)
        means = {name: np.mean([by_name[name] for by_name in p_values], axis=0) for name in self.statistics}
        return Judgement(p_value, means, beyond)

    def usual(self, name: str, length: int) -> float:
        """The 99th percentile of a statistic among normal rows of similar length."""
        return self.folds[0].ranks[name].usual(length)

    def to_state(self) -> tuple[dict[str, Any], Arrays]:
        """JSON values and arrays, from which `calibration_from_state` restores an identical calibration."""
        arrays: Arrays = {"tail": np.nan_to_num(self.tail)}
        for number, fold in enumerate(self.folds):
            arrays[f"{number}/fused"] = fold.fused
            arrays |= {} if fold.level is None else fold.level.arrays(f"{number}/level")
            for name, ranks in fold.ranks.items():
                arrays |= ranks.arrays(f"{number}/of/{name}")
        facts = {"rows": self.rows, "fusion": self.fusion, "statistics": self.statistics}
        state: dict[str, Any] = {**facts, "folds": len(self.folds)}
        if self.unfamiliar:
            state["unfamiliar"] = self.unfamiliar
        return state, arrays

    @classmethod
    def from_state(cls, state: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Normal:
        """The calibration that `to_state` stored.

        Raises:
            StateError: a part is missing or inconsistent.
        """
        try:
            if state["fusion"] not in FUSIONS:
                raise ValueError(f"unknown fusion {state['fusion']!r}")
            folds = []
            for number in range(state["folds"]):
                ranks = {
                    name: Ranks.from_arrays(f"{number}/of/{name}", arrays) for name in state["statistics"]
                }
                has_level = f"{number}/level/edges" in arrays
                level = Ranks.from_arrays(f"{number}/level", arrays) if has_level else None
                folds.append(Fold(ranks, level, arrays[f"{number}/fused"].astype(np.float64)))
            if not folds or not folds[0].ranks or arrays["tail"].shape != (4,):
                raise ValueError("no statistics are stored")
            tail = arrays["tail"] if arrays["tail"][1] > 0 else NO_TAIL
            rows, unfamiliar = int(state["rows"]), int(state.get("unfamiliar", 0))
            return cls(tuple(folds), rows, state["fusion"], tail, unfamiliar)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _incomplete(error) from None


@dataclass(frozen=True, eq=False)
class TwoPopulations:
    """Calibration with two sets of normal rows: twice the smaller of both p-values (Bonferroni).

    Args:
        model: the calibration of the statistics that need the model.
        counts: the calibration of the statistics that need only counts, from other or from more normal rows.
    """

    model: Normal
    counts: Normal

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the statistics; statistics of the model come first."""
        return (*self.model.statistics, *self.counts.statistics)

    @property
    def applying(self) -> tuple[str, ...]:
        """Names of the statistics that apply to at least one normal row."""
        return (*self.model.applying, *self.counts.applying)

    @property
    def rows(self) -> int:
        """Number of normal rows that the model scored."""
        return self.model.rows

    @property
    def fusion(self) -> Fusion:
        """How the p-values of the statistics of one population are combined."""
        return self.model.fusion

    @property
    def unfamiliar_rate(self) -> float:
        """The fraction of normal rows for which no statistic is known; see `Normal.unfamiliar_rate`."""
        return self.model.unfamiliar_rate

    @property
    def smallest_rate(self) -> float:
        """The smallest guaranteed false positive rate: twice the rate of the population with more rows."""
        return 2.0 * min(self.model.smallest_rate, self.counts.smallest_rate)

    @property
    def silent_below(self) -> float:
        """The rate below which the population with fewer rows raises no alarm."""
        return 2.0 * max(self.model.smallest_rate, self.counts.smallest_rate)

    @property
    def _larger(self) -> Normal:
        """The population that guarantees the smaller rate."""
        return self.counts if self.counts.smallest_rate < self.model.smallest_rate else self.model

    def compared(self, length: int) -> int:
        """Number of normal rows that a row of this length is compared with."""
        return self._larger.compared(length)

    @property
    def has_tail(self) -> bool:
        """Whether rates below `smallest_rate` are possible."""
        return self._larger.has_tail

    def rows_for(self, rate: float) -> int:
        """Number of normal rows that guarantee a rate. Each population gets half of the rate."""
        return self.model.rows_for(rate / 2)

    def judge(self, statistics: Statistics, lengths: NDArray[Any]) -> Judgement:
        """The p-values of (M,) rows.

        Args:
            statistics: statistic -> (M,) values, for the statistics of the calibration.
            lengths: (M,) number of units of each row.

        Raises:
            StateError: the statistics differ from the statistics of the calibration.
        """
        _check_names(statistics, self.statistics)
        parts = [
            normal.judge({name: statistics[name] for name in normal.statistics}, lengths)
            for normal in (self.model, self.counts)
        ]
        p_values, beyond = [part.p_value for part in parts], [part.extrapolated for part in parts]
        rates = self.model.smallest_rate, self.counts.smallest_rate
        fewer = 1 - rates.index(min(rates))
        # The population with fewer rows is not extrapolated: the other one guarantees smaller rates.
        p_values[fewer] = np.maximum(p_values[fewer], rates[fewer])
        beyond[fewer] = np.zeros_like(beyond[fewer])
        p_value = np.minimum(2.0 * np.minimum(*p_values), 1.0)
        extrapolated = np.where(p_values[0] <= p_values[1], *beyond)
        return Judgement(p_value, {**parts[0].p_values, **parts[1].p_values}, extrapolated)

    def usual(self, name: str, length: int) -> float:
        """The 99th percentile of a statistic among normal rows of similar length."""
        normal = self.counts if name in self.counts.statistics else self.model
        return normal.usual(name, length)

    def to_state(self) -> tuple[dict[str, Any], Arrays]:
        """JSON values and arrays, from which `calibration_from_state` restores an identical calibration."""
        state, arrays = self.model.to_state()
        state["counted"], count_arrays = self.counts.to_state()
        return state, arrays | {f"{_COUNTED}{name}": array for name, array in count_arrays.items()}


Calibration = Normal | TwoPopulations

_COUNTED = "counted/"
"""Prefix of the names of the stored arrays of `TwoPopulations.counts`."""


def calibration_from_state(state: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Calibration:
    """The calibration that `to_state` stored.

    Raises:
        StateError: a part is missing or inconsistent.
    """
    try:
        counts = state.get("counted")
    except AttributeError as error:
        raise _incomplete(error) from None
    normal = Normal.from_state(state, arrays)
    if counts is None:
        return normal
    nested = {
        name.removeprefix(_COUNTED): array for name, array in arrays.items() if name.startswith(_COUNTED)
    }
    return TwoPopulations(normal, Normal.from_state(counts, nested))


def _incomplete(error: Exception) -> StateError:
    """The error for a stored calibration that lacks a part."""
    return StateError(f"the calibration is incomplete ({error}); calibrate the model again")


def _check_names(statistics: Collection[str], calibrated: Collection[str]) -> None:
    """Raise a StateError if statistics differ from the statistics of a calibration."""
    if set(statistics) != set(calibrated):
        raise StateError(
            f"the calibration is for the statistics {', '.join(calibrated)}, not {', '.join(statistics)}; "
            "calibrate the model again with normal data ('seqmlm calibrate MODEL NORMAL')"
        )


def teaching_part(rows: int, seed: int) -> Bools:
    """(N,) True for the half of the rows that estimates ranks of statistics; the others are ranked."""
    teaches = np.zeros(rows, dtype=np.bool_)
    teaches[np.random.default_rng(seed).permutation(rows)[: rows // 2]] = True
    return teaches


def _folds(records: NDArray[Any], seed: int) -> Longs:
    """(N,) the fold of each row, from the (N,) numbers of their records.

    Records are kept whole, and folds have about equally many rows. If there is only one record, its rows are
    divided.
    """
    owner, rows = np.unique(records, return_inverse=True, return_counts=True)[1:]
    if len(rows) == 1:
        owner, rows = np.arange(len(records)), np.ones(len(records), dtype=np.int64)
    fold, fold_rows = np.zeros(len(rows), dtype=np.int64), np.zeros(_FOLDS, dtype=np.int64)
    order = np.random.default_rng(seed).permutation(len(rows))
    for record in np.lexsort((order, -rows)).tolist():  # the largest first
        fold[record] = fold_rows.argmin()
        fold_rows[fold[record]] += rows[record]
    return fold[owner]


def _arrays(statistics: Statistics, lengths: NDArray[Any]) -> tuple[dict[str, Doubles], Longs]:
    """Statistic -> (M,) values, and (M,) lengths, as arrays of the right types."""
    sizes = np.asarray(lengths, dtype=np.int64)
    values = {name: np.asarray(column, dtype=np.float64) for name, column in statistics.items()}
    for name, column in values.items():
        if column.shape != sizes.shape:
            raise ValueError(f"statistic {name}: {len(column)} values for {len(sizes)} lengths")
    return values, sizes
