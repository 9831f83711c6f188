"""What normal rows look like, and how unusual a new one is among them: p-values without labels.

Each statistic becomes its tail p-value among normal rows of similar length, and these are fused
(`FUSIONS`). Statistics depend on each other, so the fused statistic has no known distribution: it is ranked
among normal rows again, which are not those the statistics' ranks were estimated on. To this end rows are
cross-fitted in five folds of whole records: each fold is ranked by statistics estimated on the other four. A
new row is fused by each of the five and compared with the rows of that fold only,

    p = (1 + rows of its fold that are as unusual or more, added over folds) / (n + 1),

the cross-conformal p-value of Vovk (2015). It keeps to about alpha; what is proven, if each record has one
row, is P(p <= alpha) <= 2 alpha + 2 (1 - 1/K) / (n/K + 1) with K folds (the CV+ of Barber, Candes, Ramdas &
Tibshirani 2021). Where half of the rows teach and the others are ranked, rates realised spread by up to twice
as much, and only rates twice as large are known. From 10,000 rows on that does not matter, and is what is
done (split conformal prediction: Vovk, Gammerman & Shafer 2005): under exchangeability, P(p <= alpha) <=
alpha for every alpha of at least 1 / (n + 1). A single statistic needs no fusion and no division: it is
ranked among all rows of its length bin.

Statistics that no model is asked for can be known of far more rows, those of the training data, and are
judged among these (`TwoPopulations`). Of two such p-values, each valid whatever the other is, twice the
smaller one is a p-value (Bonferroni). That of fewer rows is then not extrapolated: the other one guarantees
less.

Which statistics are fused, and how, each level declares. Fisher's sum suits a few statistics that
measure different things. Ten correlated statistics, of which a fault moves two or three, dilute it; the
harmonic mean is dominated by the smallest p-values, as their minimum is, but distinguishes one small p-value
from several.
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
"""Rows from which one half teaches; in how many folds fewer are cross-fitted."""
_MOST_SIMILAR = 40
"""Most bins of lengths where statistics are fused."""
# Fewest rows of a length bin. Without fusion its ranks are the result and must resolve small rates.
_FEWEST_ALONE, _FEWEST_FUSED = 200, 50


def fisher(p_values: Statistics) -> Doubles:
    """(M,) -2 sum log p over statistics, all with equal weight (Fisher 1932); higher is more unusual."""
    return np.asarray(-2.0 * np.sum([np.log(p) for p in p_values.values()], axis=0), dtype=np.float64)


def harmonic(p_values: Statistics) -> Doubles:
    """(M,) minus the log of the statistics' harmonic mean p-value (Wilson 2019); higher is more unusual.

    In its upper tail it is the Cauchy combination of Liu and Xie (2020).
    """
    from scipy.special import logsumexp

    logs = -np.log(np.stack(list(p_values.values())))
    return np.asarray(logsumexp(logs, axis=0) - np.log(len(logs)), dtype=np.float64)


FUSIONS: Mapping[Fusion, Callable[[Statistics], Doubles]] = {"fisher": fisher, "harmonic": harmonic}


def fuse(p_values: Statistics, fusion: Fusion) -> Doubles:
    """(M,) the fused statistic of (M,) p-values by name; higher is more unusual."""
    rows = len(next(iter(p_values.values())))
    if rows == 1:
        # numpy adds up a single column in another order than several, and equal rows must stay equal.
        p_values = {name: np.repeat(p, 2) for name, p in p_values.items()}
    return FUSIONS[fusion](p_values)[:rows]


@dataclass(frozen=True, eq=False)
class Judgement:
    """How unusual M rows are among normal ones.

    Args:
        p_value: (M,) in (0, 1]; smaller is more unusual.
        p_values: name -> (M,) those of a statistic, 1 where it does not apply.
        extrapolated: (M,) True where the row is beyond all normal ones and the p-value comes from the tail.
    """

    p_value: Doubles
    p_values: dict[str, Doubles]
    extrapolated: Bools


@dataclass(frozen=True, eq=False)
class Fold:
    """How the rows of a fold are fused: by ranks of the statistics of all other rows.

    Args:
        ranks: of each statistic.
        level: ranks by length of the fused statistic of the rows that estimate it, which it is expressed by;
            None where there is one bin of lengths. Without this the fused statistic of short rows, whose
            statistics have many ties, would be less than that of long ones, and their p-values larger.
        fused: (K,) that of the fold's own rows, ascending.
    """

    ranks: Mapping[str, Ranks]
    level: Ranks | None
    fused: Doubles

    @classmethod
    def of(cls, statistics: Statistics, lengths: Longs, teaches: Bools, fusion: Fusion) -> Fold:
        """From (N,) statistics and lengths; `teaches` is True for rows that are not the fold's own."""
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
        """(M,) the fused statistic, and name -> (M,) p-values.

        Where one of K statistics is infinite, and of no normal row of about that length, a Kth of its
        p-value is fused: among few rows its rank is that of the largest finite one, which one row or another
        has in each statistic. What is fused is ranked again, so this is valid.
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
    """Calibration by normal rows of a level: sorted values of each statistic, never which belong together.

    Args:
        folds: several, or one where rows are many.
        rows: number of rows that it was made of.
        fusion: how the statistics' p-values become the fused statistic.
        tail: (4,) of the fused statistic, where the least of a row's values in the folds lies.
        unfamiliar: further normal rows of which no statistic is known.
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
        """Estimate the distribution of normal rows; the seed is of their division.

        Args:
            statistics: statistic -> (N,) statistics of normal rows, higher = more unusual; NaN where one does
                not apply, infinity where it could not be more unusual.
            lengths: (N,) units of the rows.
            records: (N,) what each row is of, as numbers: rows of one record are in one fold. Default: each
                row is a record.

        Raises:
            DataError: no rows, or no statistics.
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
            # A row whose length determined the start of a bin is not exchangeable with a new row: with it in
            # the bin, a new row would rank one place too high.
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
        """Names of the statistics that some normal row has."""
        ranks = self.folds[0].ranks
        return tuple(name for name in ranks if any((values > -np.inf).any() for values in ranks[name].bins))

    @property
    def _only_ranks(self) -> Ranks | None:
        """The ranks of the only statistic, which are the result; None where several are fused."""
        return next(iter(self.folds[0].ranks.values())) if len(self.statistics) == 1 else None

    @property
    def ranked(self) -> int:
        """Rows that p-values rank among: those of the fused statistic, or of the smallest length bin."""
        if (ranks := self._only_ranks) is not None:
            return min(len(values) for values in ranks.bins)
        return sum(len(fold.fused) for fold in self.folds)

    @property
    def smallest_rate(self) -> float:
        """The smallest false positive rate it guarantees, 1 / (n + 1); below, a tail is extrapolated."""
        return 1.0 / (self.ranked + 1.0)

    @property
    def silent_below(self) -> float:
        """The rate below which some of its statistics raise no alarm: 0, as all have the same rows."""
        return 0.0

    def compared(self, length: int) -> int:
        """Normal rows that the p-value of a row of this length can lie beyond."""
        return self.ranked if (ranks := self._only_ranks) is None else ranks.size(length)

    def rows_for(self, rate: float) -> int:
        """Normal rows, of lengths as here, that guarantee a rate."""
        rows = math.ceil(1 / rate - 1)
        if self._only_ranks:
            return math.ceil(rows * self.rows / max(self.ranked, 1))
        return rows if rows < MANY else 2 * rows

    @property
    def unfamiliar_rate(self) -> float:
        """The share of normal rows of which no statistic is known.

        It is the p-value of such a row, if it is called more unusual than all rows that have statistics.
        """
        return (1.0 + self.unfamiliar) / (self.rows + self.unfamiliar + 1.0)

    @property
    def has_tail(self) -> bool:
        """Whether rates below `smallest_rate` are possible."""
        tails = self.tail if (ranks := self._only_ranks) is None else ranks.tails
        return not np.isnan(tails).any()

    def judge(self, statistics: Statistics, lengths: NDArray[Any]) -> Judgement:
        """Judge (M,) rows by the statistics that were calibrated and their (M,) lengths.

        Raises:
            StateError: the statistics differ from those of the calibration.
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
        """The value of a statistic that one in a hundred normal rows of about a length exceeds, at most."""
        return self.folds[0].ranks[name].usual(length)

    def to_state(self) -> tuple[dict[str, Any], Arrays]:
        """JSON values and arrays; `calibration_from_state` restores the same, bit for bit."""
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
            StateError: a part is missing, or does not fit.
        """
        try:
            if state["fusion"] not in FUSIONS:
                raise ValueError(f"no fusion {state['fusion']!r}")
            folds = []
            for number in range(state["folds"]):
                ranks = {
                    name: Ranks.from_arrays(f"{number}/of/{name}", arrays) for name in state["statistics"]
                }
                has_level = f"{number}/level/edges" in arrays
                level = Ranks.from_arrays(f"{number}/level", arrays) if has_level else None
                folds.append(Fold(ranks, level, arrays[f"{number}/fused"].astype(np.float64)))
            if not folds or not folds[0].ranks or arrays["tail"].shape != (4,):
                raise ValueError("it has no statistic")
            tail = arrays["tail"] if arrays["tail"][1] > 0 else NO_TAIL
            rows, unfamiliar = int(state["rows"]), int(state.get("unfamiliar", 0))
            return cls(tuple(folds), rows, state["fusion"], tail, unfamiliar)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _incomplete(error) from None


@dataclass(frozen=True, eq=False)
class TwoPopulations:
    """Calibration by two sets of normal rows: twice the smaller of both p-values (Bonferroni).

    Args:
        model: judges the statistics that need the model.
        counts: judges the statistics that need counts only; of other normal rows, or of more.
    """

    model: Normal
    counts: Normal

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the statistics, those of the model first."""
        return (*self.model.statistics, *self.counts.statistics)

    @property
    def applying(self) -> tuple[str, ...]:
        """Names of the statistics that some normal row has."""
        return (*self.model.applying, *self.counts.applying)

    @property
    def rows(self) -> int:
        """Number of normal rows that the model was asked about."""
        return self.model.rows

    @property
    def fusion(self) -> Fusion:
        """How the p-values of the statistics of a population become the fused statistic."""
        return self.model.fusion

    @property
    def unfamiliar_rate(self) -> float:
        """The share of normal rows of which no statistic is known; see `Normal.unfamiliar_rate`."""
        return self.model.unfamiliar_rate

    @property
    def smallest_rate(self) -> float:
        """The smallest false positive rate it guarantees: twice that of the population with more rows."""
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
        """Normal rows that the p-value of a row of this length can lie beyond."""
        return self._larger.compared(length)

    @property
    def has_tail(self) -> bool:
        """Whether rates below `smallest_rate` are possible."""
        return self._larger.has_tail

    def rows_for(self, rate: float) -> int:
        """Normal rows, of lengths as here, that guarantee a rate: each population has half of it."""
        return self.model.rows_for(rate / 2)

    def judge(self, statistics: Statistics, lengths: NDArray[Any]) -> Judgement:
        """Judge (M,) rows by the statistics that were calibrated and their (M,) lengths.

        Raises:
            StateError: the statistics differ from those of the calibration.
        """
        _check_names(statistics, self.statistics)
        parts = [
            normal.judge({name: statistics[name] for name in normal.statistics}, lengths)
            for normal in (self.model, self.counts)
        ]
        p_values, beyond = [part.p_value for part in parts], [part.extrapolated for part in parts]
        rates = self.model.smallest_rate, self.counts.smallest_rate
        fewer = 1 - rates.index(min(rates))
        # Beyond fewer rows nothing is extrapolated: the other population guarantees less.
        p_values[fewer] = np.maximum(p_values[fewer], rates[fewer])
        beyond[fewer] = np.zeros_like(beyond[fewer])
        p_value = np.minimum(2.0 * np.minimum(*p_values), 1.0)
        extrapolated = np.where(p_values[0] <= p_values[1], *beyond)
        return Judgement(p_value, {**parts[0].p_values, **parts[1].p_values}, extrapolated)

    def usual(self, name: str, length: int) -> float:
        """The value of a statistic that one in a hundred normal rows of about a length exceeds, at most."""
        normal = self.counts if name in self.counts.statistics else self.model
        return normal.usual(name, length)

    def to_state(self) -> tuple[dict[str, Any], Arrays]:
        """JSON values and arrays; `calibration_from_state` restores the same, bit for bit."""
        state, arrays = self.model.to_state()
        state["counted"], count_arrays = self.counts.to_state()
        return state, arrays | {f"{_COUNTED}{name}": array for name, array in count_arrays.items()}


Calibration = Normal | TwoPopulations

_COUNTED = "counted/"
"""What names of the arrays of `TwoPopulations.counts` begin with, in a file."""


def calibration_from_state(state: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Calibration:
    """The calibration that `to_state` stored.

    Raises:
        StateError: a part is missing, or does not fit.
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
    """Raise a StateError where statistics are not those of a calibration."""
    if set(statistics) != set(calibrated):
        raise StateError(
            f"calibrated for the statistics {', '.join(calibrated)}, not {', '.join(statistics)}; "
            "calibrate it again with normal data ('seqmlm calibrate MODEL NORMAL')"
        )


def teaching_part(rows: int, seed: int) -> Bools:
    """(N,) True for the half of the rows that estimates the marginals; the others are ranked."""
    teaches = np.zeros(rows, dtype=np.bool_)
    teaches[np.random.default_rng(seed).permutation(rows)[: rows // 2]] = True
    return teaches


def _folds(records: NDArray[Any], seed: int) -> Longs:
    """(N,) the fold of each row, of (N,) numbers of records: whole records, folds of about as many rows each.

    The rows of one single record are divided: there is nothing better.
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
    """Name -> (M,) values of statistics, and (M,) lengths, as arrays of their types."""
    sizes = np.asarray(lengths, dtype=np.int64)
    values = {name: np.asarray(column, dtype=np.float64) for name, column in statistics.items()}
    for name, column in values.items():
        if column.shape != sizes.shape:
            raise ValueError(f"statistic {name}: {len(column)} values for {len(sizes)} lengths")
    return values, sizes
