"""Calibrated anomalies without labels: several statistics of a row become one p-value among normal rows.

Each statistic (a *channel*) becomes its tail p-value among normal rows of similar length, and these are fused
(`seqmlm.evaluation.fusion`). Channels depend on each other, so the fused statistic has no known law: it is
ranked among normal rows again. That is valid by construction, for the rows whose ranks count are others than
those the channels' ranks were learnt from (split conformal prediction: Vovk, Gammerman & Shafer 2005): under
exchangeability, P(p <= alpha) <= alpha for every alpha of at least 1 / (n + 1). Below that the p-value is
extrapolated by a generalized Pareto tail (`seqmlm.evaluation.tail`) and marked so.

Fewer than 200 rows are too few to be divided: they take turns. Each fifth is ranked by channels learnt from
the other four; a new row is ranked by all five, and of a channel's five p-values the largest counts. That
keeps to alpha as the split does (the minmax of Barber, Candes, Ramdas & Tibshirani 2021), and errs on the
quiet side.

A single channel needs no fusion, and no rows are kept apart: it is ranked among all rows of its length bin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.errors import DataError, StateError
from seqmlm.evaluation.fusion import FUSIONS, Fusion
from seqmlm.evaluation.ranks import Arrays, Bools, Doubles, Longs, Ranks, RanksByLength, length_edges

__all__ = ["Calibration", "Judgement", "Marginals"]

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
        channels: channel -> (M,) its own p-value, 1 where the statistic does not apply.
        extrapolated: (M,) True where the row is beyond all normal ones and the tail told how far.
    """

    p_value: Doubles
    channels: dict[str, Doubles]
    extrapolated: Bools


@dataclass(frozen=True, eq=False)
class Marginals:
    """The channels' own ranks by length: any number of statistics to as many p-values, and to one number.

    Args:
        by_channel: channel -> its ranks.
    """

    by_channel: dict[str, RanksByLength]

    @classmethod
    def fit(cls, statistics: Statistics, lengths: Longs, edges: Longs) -> Marginals:
        """Learn from (N,) statistics and lengths of normal rows; bins as `length_edges` gives them."""
        return cls({name: RanksByLength.of(values, lengths, edges) for name, values in statistics.items()})

    def p_values(self, statistics: Statistics, lengths: Longs) -> tuple[dict[str, Doubles], Bools]:
        """Channel -> (M,) p-values, and (M,) True where any of them is extrapolated.

        Raises:
            StateError: the channels are others than those of the calibration.
        """
        if set(statistics) != set(self.by_channel):
            raise StateError(
                f"calibrated for the channels {', '.join(self.by_channel)}, not {', '.join(statistics)}; "
                "calibrate the model again"
            )
        found, beyond = {}, np.zeros(len(lengths), dtype=np.bool_)
        for name, ranks in self.by_channel.items():
            found[name], here = ranks.p_values(statistics[name], lengths)
            beyond |= here
        return found, beyond

    def to_state(self, name: str, arrays: Arrays) -> dict[str, Any]:
        """Plain values by channel; arrays go into `arrays`."""
        return {c: ranks.to_state(f"{name}/{c}", arrays) for c, ranks in self.by_channel.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], name: str, arrays: Mapping[str, NDArray[Any]]) -> Marginals:
        """What `to_state` wrote."""
        found = {c: RanksByLength.from_state(one, f"{name}/{c}", arrays) for c, one in state.items()}
        return cls(found)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Tail p-values of statistics from normal rows: by length, fused, no labels.

    Only sorted values of each channel and of the fused statistic are held, never which belong together.

    Args:
        turns: ranks of the channels, one for each turn in teaching them; the largest p-value counts.
        fused: ranks of the fused statistic among rows that the channels' ranks have not seen; None for one
            channel, whose own ranks are the answer.
        rows: normal rows it was fitted to.
        fusion: how the channels' p-values become the fused statistic.
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
            statistics: channel -> (N,) statistics of normal rows, higher = more unusual; not-a-number where
                one does not apply, infinity where it could not be more unusual.
            lengths: (N,) units of the rows.
            seed: decides which half of the rows teaches the marginals, or whose turn it is when.
            fuse: rank the fused statistic of the other rows; by default where there are several channels.
            fusion: how p-values become the fused statistic.
            turns: let fewer than 200 rows take turns; else `teaching_part` of them teaches.

        Raises:
            DataError: no row, or no channel.
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
    def channels(self) -> tuple[str, ...]:
        """Names of the statistics it judges."""
        return tuple(self.turns[0].by_channel)

    @property
    def _alone(self) -> list[Ranks]:
        """Of one channel: its ranks, by length."""
        return [one for ranks in self.turns[0].by_channel.values() for one in ranks.bins]

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
        """Judge (M,) rows by the statistics of the calibration's channels and their (M,) lengths.

        Raises:
            StateError: the channels are others than those of the calibration.
        """
        values, sizes = _arrays(statistics, lengths)
        each = [marginals.p_values(values, sizes) for marginals in self.turns]
        channels = {name: np.max([found[name] for found, _ in each], axis=0) for name in self.channels}
        if self.fused is None:
            (p_value,), beyond = channels.values(), each[0][1]
        else:
            p_value, beyond = self.fused.p_values(FUSIONS[self.fusion](channels))
        return Judgement(p_value, channels, beyond)

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
    teach where they can: fewer show channels no tail.
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
    """The channels' ranks as some rows teach them, and the fused statistic of the others."""
    taught = {name: one[teaches] for name, one in values.items()}
    marginals = Marginals.fit(taught, sizes[teaches], edges)
    others = {name: one[~teaches] for name, one in values.items()}
    return marginals, FUSIONS[fusion](marginals.p_values(others, sizes[~teaches])[0])


def _arrays(statistics: Statistics, lengths: NDArray[Any]) -> tuple[dict[str, Doubles], Longs]:
    sizes = np.asarray(lengths, dtype=np.int64)
    values = {name: np.asarray(one, dtype=np.float64) for name, one in statistics.items()}
    for name, one in values.items():
        if one.shape != sizes.shape:
            raise ValueError(f"channel {name}: {len(one)} statistics for {len(sizes)} lengths")
    return values, sizes


def _checked(statistics: Statistics, lengths: NDArray[Any]) -> tuple[dict[str, Doubles], Longs]:
    values, sizes = _arrays(statistics, lengths)
    if not values or not len(sizes):
        raise DataError(
            "there is nothing to calibrate with: no row has a score",
            remedy="give normal records that the model can read, of the kind it will judge",
        )
    return values, sizes
