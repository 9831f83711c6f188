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

Statistics that no model is asked for (`Normal.counted`) can be known of far more rows, those of the training
data, and are judged among these. Of two such p-values, each valid whatever the other is, twice the smaller
one is a p-value (Bonferroni). That of fewer rows is then not extrapolated: the other one guarantees less.

Beyond the largest normal value a p-value is extrapolated by peaks over threshold (Pickands 1975; Davison &
Smith 1990) and marked as such: excesses over a high quantile are fitted by a generalized Pareto distribution,
whose survival function says how much rarer a value is. A weak prior on the shape (in the manner of Martins &
Stedinger 2000) stabilises the fit where there are few excesses, and a shape below 0 is excluded: it would
give the tail an end and call larger values impossible.

Which statistics are fused, and how, each level declares. Fisher's sum suits a few statistics that
measure different things. Ten correlated statistics, of which a fault moves two or three, dilute it; the
harmonic mean is dominated by the smallest p-values, as their minimum is, but distinguishes one small p-value
from several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seqmlm.errors import DataError, StateError

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]
Arrays = dict[str, NDArray[Any]]
Statistics = Mapping[str, Doubles]
Fusion = Literal["fisher", "harmonic"]
HARMONIC: Fusion = "harmonic"

LEAST_P = 1e-12
"""Smallest p-value: further out, every model of a tail is a guess. That of infinite statistics."""
MANY, _FOLDS = 10_000, 5
"""Rows from which one half teaches; in how many folds fewer are cross-fitted."""
MOST_BINS, _SIMILAR, _MOST_SIMILAR = 10, 1.25, 40
"""Most bins of lengths; and where statistics are fused, and lengths that differ by a quarter are told apart:
of bursts of 4 and 5 lines in one bin those of 4 lack most, and alarm twice as often."""
_USUAL = 0.99
# Fewest rows of a length bin. Without fusion its ranks are the result and must resolve small rates.
_FEWEST_ALONE, _FEWEST_FUSED = 200, 50


def fisher(p_values: Statistics) -> Doubles:
    """(M,) -2 sum log p over statistics, all with equal weight (Fisher 1932); higher is more unusual."""
    return np.asarray(-2.0 * np.sum([np.log(one) for one in p_values.values()], axis=0), dtype=np.float64)


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
        p_values = {name: np.repeat(one, 2) for name, one in p_values.items()}
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


# Tails: threshold, scale above 0 and shape in [0, 1] of a generalized Pareto distribution, and the largest
# value that it was fitted to, from which on p-values are extrapolated; NaN where it cannot be fitted.

QUANTILE, FEWEST = 0.98, 25
"""Threshold of the excesses; lower if that would leave fewer than so many of them."""

_LARGEST_SHARE = 0.25  # of the values that may count as tail
_SHAPES, _PRIOR_MEAN, _PRIOR_DEVIATION = (0.0, 1.0), 0.1, 0.25
_STRAIGHT = 1e-12  # a smaller shape is that of an exponential distribution
NO_TAIL = np.full(4, np.nan)


def fitted_tail(values: Doubles) -> Doubles:
    """(4,) the tail of (N,) ascending values; `NO_TAIL` of too few, equal or infinite ones."""
    count = min(max(round((1 - QUANTILE) * len(values)), FEWEST), int(_LARGEST_SHARE * len(values)))
    if count < 2 or not np.isfinite(values[-count - 1 :]).all():
        return NO_TAIL
    threshold = float(values[-count - 1])
    excesses = values[-count:] - threshold
    excesses = excesses[excesses > 0]
    if len(excesses) < 2 or excesses[0] == excesses[-1]:
        return NO_TAIL
    return np.array([threshold, *_penalised_likelihood(excesses), values[-1]])


def beyond_largest(tail: Doubles, values: Doubles) -> Doubles:
    """(M,) values at or above the largest of a tail to the ratio of their survival to its own, in [0, 1]."""
    threshold, scale, shape, largest = tail.tolist()
    # Logarithms: both survivals may be too small for a number. (scipy.stats takes a second to load.)
    excess = (np.append(values, largest) - threshold) / scale
    log = -np.log1p(shape * excess) / shape if shape > _STRAIGHT else -excess
    return np.asarray(np.exp(np.minimum(log[:-1] - log[-1], 0.0)), dtype=np.float64)


def _penalised_likelihood(excesses: Doubles) -> tuple[float, float]:
    """Scale and shape that maximise likelihood times prior; (K,) excesses above 0."""
    from scipy.optimize import minimize

    unit = float(excesses.mean())
    scaled = excesses / unit

    def cost(parameters: Doubles) -> tuple[float, Doubles]:
        """The value, and its (2,) gradient."""
        log_scale, shape = float(parameters[0]), float(parameters[1])
        x = scaled * np.exp(-log_scale)
        share = x / (1 + shape * x)
        # log(1 + shape x) / shape tends to x; the series keeps it smooth where the quotient loses its digits.
        few = shape < 1e-6
        bent = x - shape * x**2 / 2 if few else np.log1p(shape * x) / shape
        bending = float((shape * x**3 / 1.5 - x**2 / 2 if few else (share - bent) / shape).sum())
        total, away = float(bent.sum()), (shape - _PRIOR_MEAN) / _PRIOR_DEVIATION
        value = len(x) * log_scale + (1 + shape) * total + away**2 / 2
        slope = total + (1 + shape) * bending + away / _PRIOR_DEVIATION
        return value, np.array([len(x) - (1 + shape) * float(share.sum()), slope])

    starts = [np.array([np.log(max(1e-3, 1 - shape)), shape]) for shape in (0.05, 0.5)]
    bounds = [(-20.0, 20.0), _SHAPES]
    found = [minimize(cost, start, jac=True, bounds=bounds, method="L-BFGS-B") for start in starts]
    best = min(found, key=lambda one: float(one.fun))
    return float(np.exp(best.x[0])) * unit, float(best.x[1])


def _p_values(at_least: Longs, total: int, tail: Doubles, values: Doubles) -> tuple[Doubles, Bools]:
    """(M,) p-values of values that so many of a total reach, and (M,) True where they are extrapolated.

    (1 + values as large or larger) / (total + 1), which is a valid p-value of a row exchangeable with the
    normal ones (Vovk et al. 2005). Beyond the largest value the tail reduces it further; NaN has 1.
    """
    applies = ~np.isnan(values)
    found = np.where(applies, (1.0 + at_least) / (total + 1.0), 1.0)
    beyond = applies & (values > tail[3])
    if beyond.any():
        found[beyond] *= beyond_largest(tail, values[beyond])
    return np.maximum(found, LEAST_P), beyond


def _at_least(ascending: Doubles, values: Doubles) -> Longs:
    """(M,) how many of some values are as large as each of (M,) values, or larger."""
    return np.asarray(len(ascending) - np.searchsorted(ascending, values, side="left"))


@dataclass(frozen=True, eq=False)
class Ranks:
    """Sorted values of a statistic of normal rows, by length.

    Args:
        edges: (B - 1,) lengths at which a new bin begins, ascending.
        bins: B times the values, ascending; minus infinity where the statistic does not apply.
        tails: (B, 4) of each.
    """

    edges: Longs
    bins: tuple[Doubles, ...]
    tails: Doubles

    @classmethod
    def of(cls, values: Doubles, lengths: Longs, edges: Longs) -> Ranks:
        """From (N,) values, NaN where the statistic does not apply, and lengths, and `length_edges`."""
        owner = np.searchsorted(edges, lengths, side="right")
        known = np.where(np.isnan(values), -np.inf, values)
        bins = tuple(np.sort(known[owner == number]) for number in range(len(edges) + 1))
        return cls(edges, bins, np.stack([fitted_tail(own) for own in bins]))

    def _owner(self, lengths: Longs) -> Longs:
        """(M,) the bin of each length."""
        return np.asarray(np.searchsorted(self.edges, lengths, side="right"))

    def p_values(self, values: Doubles, lengths: Longs) -> tuple[Doubles, Bools]:
        """(M,) values and lengths to (M,) p-values and (M,) True where they are extrapolated."""
        owner = self._owner(lengths)
        found, beyond = np.ones(len(values)), np.zeros(len(values), dtype=np.bool_)
        for number in np.unique(owner).tolist():
            here, own = owner == number, self.bins[number]
            counts = _at_least(own, values[here])
            found[here], beyond[here] = _p_values(counts, len(own), self.tails[number], values[here])
        return found, beyond

    def levelled(self, values: Doubles, lengths: Longs) -> Doubles:
        """(M,) finite values to minus the log of p-values by rank, interpolated, so that their order is kept.

        Beyond the largest value it is that of the largest, and by how much it is exceeded.
        """
        owner = self._owner(lengths)
        found = np.empty(len(values))
        for number in np.unique(owner).tolist():
            here, own = owner == number, self.bins[number]
            known = np.unique(own)
            heights = -np.log((1.0 + _at_least(own, known)) / (len(own) + 1.0))
            over = np.maximum(values[here] - known[-1], 0.0)
            found[here] = np.interp(values[here], known, heights) + over
        return found

    def size(self, length: int) -> int:
        """Normal rows that one of this length is compared with."""
        return len(self.bins[int(self._owner(np.asarray(length)))])

    def finite(self, lengths: Longs) -> Bools:
        """(M,) True where no normal row of about this length has an infinite value."""
        ends = np.array([not np.isposinf(own[-1:]).any() for own in self.bins])
        return np.asarray(ends[self._owner(lengths)])

    def usual(self, length: int) -> float:
        """What at most one in a hundred normal rows of about this length exceeds; minus infinity where the
        statistic applies to none."""
        own = self.bins[int(self._owner(np.asarray(length)))]
        return float(own[min(int(_USUAL * len(own)), len(own) - 1)]) if len(own) else -np.inf

    def arrays(self, name: str) -> Arrays:
        """What `restored` reads, under names that begin with this one."""
        sizes = np.array([len(own) for own in self.bins], np.int64)
        parts = {"edges": self.edges, "values": np.concatenate(self.bins), "sizes": sizes}
        # safetensors may hold no NaN here: a scale of 0 stands for no tail.
        return {f"{name}/{key}": one for key, one in {**parts, "tails": np.nan_to_num(self.tails)}.items()}

    @classmethod
    def restored(cls, name: str, arrays: Mapping[str, NDArray[Any]]) -> Ranks:
        """From `arrays`."""
        edges, values, sizes, tails = (
            arrays[f"{name}/{key}"] for key in ("edges", "values", "sizes", "tails")
        )
        if sizes.sum() != len(values) or tails.shape != (len(sizes), 4) or len(edges) != len(sizes) - 1:
            raise ValueError(f"{name} does not fit")
        bins = tuple(np.split(values.astype(np.float64), np.cumsum(sizes)[:-1]))
        return cls(edges.astype(np.int64), bins, np.where(tails[:, 1:2] > 0, tails, np.nan))


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
        own, others = ({n: one[rows] for n, one in statistics.items()} for rows in (teaches, ~teaches))
        ranks = {name: Ranks.of(values, lengths[teaches], edges) for name, values in own.items()}
        made, level = cls(ranks, None, np.zeros(0)), None
        if len(edges):
            level = Ranks.of(made.scores(own, lengths[teaches], fusion)[0], lengths[teaches], edges)
        made = cls(ranks, level, np.zeros(0))
        return cls(ranks, level, np.sort(made.scores(others, lengths[~teaches], fusion)[0]))

    def scores(
        self, statistics: Statistics, lengths: Longs, fusion: Fusion
    ) -> tuple[Doubles, dict[str, Doubles]]:
        """(M,) the fused statistic, and name -> (M,) p-values.

        Where one of K statistics is infinite, and of no normal row of about that length, a Kth of its
        p-value is fused: among few rows its rank is that of the largest finite one, which one row or another
        has in each statistic. What is fused is ranked again, so this is valid.
        """
        found = {name: own.p_values(statistics[name], lengths)[0] for name, own in self.ranks.items()}
        fused = dict(found)
        for name, own in self.ranks.items():
            if (endless := np.isposinf(statistics[name])).any():
                share = np.where(endless & own.finite(lengths), len(self.ranks), 1)
                fused[name] = np.maximum(found[name] / share, LEAST_P)
        scores = fuse(fused, fusion)
        return scores if self.level is None else self.level.levelled(scores, lengths), found


@dataclass(frozen=True, eq=False)
class Normal:
    """Normal rows of a level: sorted values of each statistic, never which belong together.

    Args:
        folds: several, or one where rows are many.
        rows: that it was made of.
        fusion: how the statistics' p-values become the fused statistic.
        tail: (4,) of the fused statistic, where the least of a row's values in the folds lies.
        counted: judges further statistics, which no model is asked for; of other normal rows, or of more.
        unfamiliar: further normal rows of which no statistic is known.
    """

    folds: tuple[Fold, ...]
    rows: int
    fusion: Fusion
    tail: Doubles
    counted: Normal | None = None
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
            kept = np.ones(n, dtype=np.bool_)
            # A row whose length determined the start of a bin is not exchangeable with a new row: with it in
            # the bin, a new row would rank one place too high.
            kept[[np.flatnonzero(sizes == edge)[0] for edge in edges.tolist()]] = False
            ranks = {name: Ranks.of(one[kept], sizes[kept], edges) for name, one in values.items()}
            return cls((Fold(ranks, None, np.zeros(0)),), n, fusion, NO_TAIL)
        if n < MANY:
            fold = _folds(np.arange(n) if records is None else np.asarray(records), seed)
            taught = [fold != turn for turn in np.unique(fold)]
        else:
            taught = [teaching_part(n, seed)]
        folds = tuple(Fold.of(values, sizes, teaches, fusion) for teaches in taught)
        return cls(folds, n, fusion, fitted_tail(np.sort(np.concatenate([one.fused for one in folds]))))

    @property
    def _own(self) -> tuple[str, ...]:
        """Names of the statistics that `counted` does not judge."""
        return tuple(self.folds[0].ranks)

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the statistics."""
        return self._own if self.counted is None else (*self._own, *self.counted.statistics)

    @property
    def applying(self) -> tuple[str, ...]:
        """Those of the statistics that some normal row has."""
        ranks = self.folds[0].ranks
        own = tuple(name for name in ranks if any((own > -np.inf).any() for own in ranks[name].bins))
        return own if self.counted is None else (*own, *self.counted.applying)

    @property
    def _alone(self) -> Ranks | None:
        """The ranks of the only statistic, which are the result."""
        return next(iter(self.folds[0].ranks.values())) if len(self._own) == 1 else None

    @property
    def ranked(self) -> int:
        """Rows that p-values rank among: those of the fused statistic, or of the smallest length bin."""
        if (alone := self._alone) is not None:
            return min(len(own) for own in alone.bins)
        return sum(len(one.fused) for one in self.folds)

    @property
    def _guaranteed(self) -> float:
        """The smallest p-value that ranks alone give its own statistics."""
        return 1.0 / (self.ranked + 1.0)

    @property
    def smallest_rate(self) -> float:
        """The smallest false positive rate it guarantees, 1 / (n + 1); below, a tail is extrapolated.

        With `counted` it is twice that of the larger n.
        """
        own = self._guaranteed
        return own if self.counted is None else 2.0 * min(own, self.counted._guaranteed)

    def compared(self, length: int) -> int:
        """Normal rows that the p-value of a row of this length can lie beyond."""
        if self.counted is not None and self.counted._guaranteed < self._guaranteed:
            return self.counted.compared(length)
        return self.ranked if (alone := self._alone) is None else alone.size(length)

    def rows_for(self, rate: float) -> int:
        """Normal rows, of lengths as here, that guarantee a rate."""
        rows = math.ceil((1 if self.counted is None else 2) / rate - 1)
        if self._alone:
            return math.ceil(rows * self.rows / max(self.ranked, 1))
        return rows if rows < MANY else 2 * rows

    @property
    def silent_below(self) -> float:
        """The rate below which some of its statistics raise no alarm, for too few rows are known of them."""
        own = self._guaranteed
        return 0.0 if self.counted is None else 2.0 * max(own, self.counted._guaranteed)

    @property
    def unfamiliar_rate(self) -> float:
        """How rare it is that nothing is known of a row: its p-value, if it is called more unusual than all
        of which something is."""
        return (1.0 + self.unfamiliar) / (self.rows + self.unfamiliar + 1.0)

    @property
    def has_tail(self) -> bool:
        """Whether rates below `smallest_rate` are possible."""
        if self.counted is not None and self.counted._guaranteed < self._guaranteed:
            return self.counted.has_tail
        tails = self.tail if (alone := self._alone) is None else alone.tails
        return not np.isnan(tails).any()

    def judge(self, statistics: Statistics, lengths: NDArray[Any]) -> Judgement:
        """Judge (M,) rows by the statistics that were calibrated and their (M,) lengths.

        Raises:
            StateError: the statistics differ from those of the calibration.
        """
        values, sizes = _arrays(statistics, lengths)
        if set(values) != set(self.statistics):
            raise StateError(
                f"calibrated for the statistics {', '.join(self.statistics)}, not {', '.join(values)}; "
                "calibrate it again with normal data ('seqmlm calibrate MODEL NORMAL')"
            )
        own = self._judged({name: values[name] for name in self._own}, sizes)
        if self.counted is None:
            return own
        counted = self.counted.judge({name: values[name] for name in self.counted.statistics}, sizes)
        return self._either(own, counted)

    def _either(self, own: Judgement, counted: Judgement) -> Judgement:
        """Twice the smaller p-value of each row, by the bound of Bonferroni."""
        assert self.counted is not None
        least = self._guaranteed, self.counted._guaranteed
        more = least.index(min(least))
        p_values, beyond = [own.p_value, counted.p_value], [own.extrapolated, counted.extrapolated]
        p_values[1 - more] = np.maximum(p_values[1 - more], least[1 - more])
        beyond[1 - more] = np.zeros_like(beyond[1 - more])
        smaller = np.minimum(2.0 * np.minimum(*p_values), 1.0)
        extrapolated = np.where(p_values[0] <= p_values[1], *beyond)
        return Judgement(smaller, {**own.p_values, **counted.p_values}, extrapolated)

    def _judged(self, values: dict[str, Doubles], sizes: Longs) -> Judgement:
        """`judge` of the statistics that `counted` does not judge."""
        if (alone := self._alone) is not None:
            p_value, beyond = alone.p_values(values[self._own[0]], sizes)
            return Judgement(p_value, {self._own[0]: p_value}, beyond)
        each = [one.scores(values, sizes, self.fusion) for one in self.folds]
        counts = sum(_at_least(one.fused, own) for one, (own, _) in zip(self.folds, each, strict=True))
        least = np.min(np.stack([own for own, _ in each]), axis=0)
        p_value, beyond = _p_values(np.asarray(counts), self.ranked, self.tail, least)
        p_values = {name: np.mean([found[name] for _, found in each], axis=0) for name in self._own}
        return Judgement(p_value, p_values, beyond)

    def usual(self, name: str, length: int) -> float:
        """What at most one in a hundred normal rows of about a length has more of, of one statistic."""
        if self.counted is not None and name in self.counted.statistics:
            return self.counted.usual(name, length)
        return self.folds[0].ranks[name].usual(length)

    def to_state(self) -> tuple[dict[str, Any], Arrays]:
        """JSON values and arrays; `from_state` restores the same, bit for bit."""
        arrays: Arrays = {"tail": np.nan_to_num(self.tail)}
        for number, one in enumerate(self.folds):
            arrays[f"{number}/fused"] = one.fused
            arrays |= {} if one.level is None else one.level.arrays(f"{number}/level")
            for name, ranks in one.ranks.items():
                arrays |= ranks.arrays(f"{number}/of/{name}")
        facts = {"rows": self.rows, "fusion": self.fusion, "statistics": self._own}
        state: dict[str, Any] = {**facts, "folds": len(self.folds)}
        if self.unfamiliar:
            state["unfamiliar"] = self.unfamiliar
        if self.counted is not None:
            state["counted"], further = self.counted.to_state()
            arrays |= {f"counted/{name}": own for name, own in further.items()}
        return state, arrays

    @classmethod
    def from_state(cls, state: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Normal:
        """Restore what `to_state` gave.

        Raises:
            StateError: a part is missing, or does not fit.
        """
        try:
            if state["fusion"] not in FUSIONS:
                raise ValueError(f"no fusion {state['fusion']!r}")
            folds = []
            for number in range(state["folds"]):
                ranks = {name: Ranks.restored(f"{number}/of/{name}", arrays) for name in state["statistics"]}
                there = f"{number}/level/edges" in arrays
                level = Ranks.restored(f"{number}/level", arrays) if there else None
                folds.append(Fold(ranks, level, arrays[f"{number}/fused"].astype(np.float64)))
            if not folds or not folds[0].ranks or arrays["tail"].shape != (4,):
                raise ValueError("it has no statistic")
            tail = arrays["tail"] if arrays["tail"][1] > 0 else NO_TAIL
            counted = None
            if "counted" in state:
                own = {name: one for name, one in arrays.items() if name.startswith("counted/")}
                further = {name.removeprefix("counted/"): one for name, one in own.items()}
                counted = cls.from_state(state["counted"], further)
            rows, unfamiliar = int(state["rows"]), int(state.get("unfamiliar", 0))
            return cls(tuple(folds), rows, state["fusion"], tail, counted, unfamiliar)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"the calibration is incomplete ({error}); calibrate the model again") from None


def length_edges(lengths: Longs, fewest: int, most: int = MOST_BINS) -> Longs:
    """(B - 1,) first lengths of all bins but the lowest, ascending: rows are compared with rows of similar
    length.

    Bins are quantiles of the lengths (N,) of normal rows, ten at most; or `most` at most, where one with a
    `most`th of the rows ends before lengths that are a quarter larger than its first. One of fewer than
    `fewest` rows, if there are as many, is merged with its neighbour.
    """
    sizes, counts = np.unique(lengths, return_counts=True)
    wanted, enough = (max(fewest, -(-len(lengths) // number)) for number in (MOST_BINS, most))
    edges: list[int] = []
    first, held, left = 0, 0, len(lengths)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        if left >= fewest and held >= (enough if size >= _SIMILAR * first else wanted):
            edges.append(size)
            held = 0
        first = size if held == 0 else first
        held += count
        left -= count
    return np.array(edges, dtype=np.int64)


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
    fold, held = np.zeros(len(rows), dtype=np.int64), np.zeros(_FOLDS, dtype=np.int64)
    drawn = np.random.default_rng(seed).permutation(len(rows))
    for record in np.lexsort((drawn, -rows)).tolist():  # the largest first
        fold[record] = held.argmin()
        held[fold[record]] += rows[record]
    return fold[owner]


def _arrays(statistics: Statistics, lengths: NDArray[Any]) -> tuple[dict[str, Doubles], Longs]:
    sizes = np.asarray(lengths, dtype=np.int64)
    values = {name: np.asarray(one, dtype=np.float64) for name, one in statistics.items()}
    for name, one in values.items():
        if one.shape != sizes.shape:
            raise ValueError(f"statistic {name}: {len(one)} values for {len(sizes)} lengths")
    return values, sizes
