"""A second opinion beside the model: what counts say of a unit, and the mixture of both.

A masked model of some minutes knows a word of several tokens piece by piece and a rare one hardly at all;
counts know it whole (`seqmlm.engine.counts`). Both give p(unit | its number of tokens, all others), so any
mixture whose weights do not look at the unit itself is such a conditional too. The weights are learnt on
held-out units, for each kind of place: tokens of the unit, and how long a context was seen in training and
in the record.

The trade-off: linear mixtures need no sum over a vocabulary, so that a unit costs some look-ups; a product of
experts would be sharper where both sides speak, and dear.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.counts import (
    CACHED,
    FEW_SYMBOLS,
    FIT_DRAWS,
    Chain,
    Doubles,
    Found,
    Level,
    Named,
    cached,
    chains_for,
    contexts,
    count,
    named,
)
from seqmlm.engine.types import Encoding, Longs
from seqmlm.engine.units import EXACT, Units

ALONE = "counts"

BUDGET = 64 << 20
"""Bytes of counts that a model keeps."""

Smoothing = tuple[tuple[float, float], ...]
"""Discount and strength of each length of context, from 0 on, and then of those in the record."""


def log2_probabilities(
    found: Sequence[Found], spelled: Doubles, smoothing: Sequence[tuple[float, float]]
) -> Doubles:
    """(D, N) log2 P of units by one chain: the recursion over lengths.

    Args:
        found: of each length in training, then in the record.
        spelled: (N,) log2 of P_{-1}.
        smoothing: (discount, strength) of each of `found`.
    """
    lower = spelled
    for one, (discount, strength) in zip(found, smoothing, strict=True):
        lower = _step(one, lower, discount, strength)
    return np.atleast_2d(lower)


def _step(found: Found, lower: Doubles, discount: float, strength: float) -> Doubles:
    whole = found.total + strength
    own = np.maximum(found.seen - discount, 0) / whole
    handed = (strength + discount * found.types + found.total - found.kept) / whole
    # In logarithms: the probability of a unit of many tokens is too small for a double.
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp2(np.log2(own), np.log2(handed) + lower))


def evidence(units: Named, chain: Chain, levels: Sequence[Level], *, record: bool) -> list[Found]:
    """The counts of every unit, for each length of context, then (with `record`) of those in its record."""
    found = [
        level.find(context, units.name) for level, context in zip(levels, contexts(units, chain), strict=True)
    ]
    return found + (cached(units, chain) if record else [])


def smoothed(found: Sequence[Found], spelled: Doubles, start: Smoothing) -> Smoothing:
    """The smoothing with which a chain predicts these units best, by coordinate descent.

    Lengths of contexts in the record keep a discount of 0: `start` says which they are by theirs.
    """
    chosen = list(start)
    for _ in range(_SWEEPS):
        lower = np.atleast_2d(spelled)
        for number, one in enumerate(found):
            for way in (_discounts, _strengths):
                trials = [[trial, *chosen[number + 1 :]] for trial in way(chosen[number])]
                # Rounded: another processor's last bits must not choose among equals.
                costs = np.round([_bits(found[number:], lower, trial) for trial in trials], 9)
                chosen[number] = trials[int(np.argmin(costs))][0]
            lower = _step(one, lower, *chosen[number])
    return tuple(chosen)


_SWEEPS = 2
_TUNED = 10_000
_DISCOUNTS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
_STRENGTHS = tuple(2.0**e for e in range(-3, 14))


def _discounts(one: tuple[float, float]) -> list[tuple[float, float]]:
    return [(discount, one[1]) for discount in _DISCOUNTS] if one[0] else [one]


def _strengths(one: tuple[float, float]) -> list[tuple[float, float]]:
    return [(one[0], strength) for strength in _STRENGTHS]


def _bits(found: Sequence[Found], lower: Doubles, smoothing: Sequence[tuple[float, float]]) -> float:
    """Mean bits of units, their draws averaged."""
    return -float(_mean(log2_probabilities(found, lower, smoothing)).mean())


def _mean(drawn: Doubles) -> Doubles:
    """(N,) log2 of the mean over draws of (D, N) log2 probabilities."""
    return np.asarray(np.logaddexp2.reduce(drawn, axis=0) - np.log2(len(drawn)))


# The expert


@dataclass(frozen=True, eq=False)
class Priced:
    """What counts say of N units.

    Args:
        log2: (C, N) log2 P of each by each chain.
        kind: (N,) by what the mixture's weights differ: tokens of the unit, and how long a context was seen.
        seen: (N, 3) of the first chain's longest context seen in training: its places, how often the unit
            stood there, and how often anything did.
    """

    log2: Doubles
    kind: Longs
    seen: Longs

    def some(self, units: Any) -> Priced:
        """Of some units alone: an index of their axis."""
        return Priced(self.log2[:, units], self.kind[units], self.seen[units])


@dataclass(frozen=True, kw_only=True, eq=False)
class CountExpert:
    """Counts of the training split, as a second opinion on what stands at a place beside the model's.

    Both are conditionals p(unit | its number of tokens, everything else), so a mixture of them is one, whose
    weights may depend on all but the unit itself:

        p(u) = lambda_0 p_model(u) + sum over chains c of lambda_c P_c(u)       lambda by kind of place

    Args:
        rule: what a unit is.
        log2_unigram: (K,) of each symbol in the training split.
        chains: C of them. levels: of each, see `count`. smoothing: of each.
        record: whether what the rest of a record says is counted too.
        weights: by mode of asking (see `Mode`): (KINDS, C + 1) lambda, the model's first; by `ALONE` those of
            counts without a model.
        facts: what was measured when the weights were learnt.
    """

    rule: Units
    log2_unigram: Doubles
    chains: tuple[Chain, ...]
    levels: tuple[tuple[Level, ...], ...]
    smoothing: tuple[Smoothing, ...]
    record: bool
    weights: Mapping[str, Doubles] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def fit(
        cls,
        sequences: Iterable[Encoding],
        rule: Units,
        unigram: Doubles,
        *,
        records: Sequence[int] | None = None,
        budget: int = BUDGET,
        least: int = 1,
    ) -> CountExpert:
        """Count the training split.

        Args:
            sequences: of the training split, all of them or an even sample; some 130 bytes of memory a unit,
                400 in sets, twice that where both strands are counted.
            rule: what a unit is.
            unigram: (K,) probabilities of symbols, see `Units.frequencies`.
            records: for each sequence the number of its record; None where each is one.
            budget: bytes of all counts.
            least: records that whatever is kept must occur in.
        """
        with np.errstate(divide="ignore"):
            log2_unigram = np.log2(unigram)
        units = named(rule, sequences, log2_unigram, records, mirrored=True)
        symbols = int(np.count_nonzero(unigram))
        chains = chains_for(symbols, sets=units.position is not None)
        record = symbols > FEW_SYMBOLS
        levels, left = [], budget
        for number, chain in enumerate(chains):
            levels.append(tuple(count(units, chain, budget=left // (len(chains) - number), least=least)))
            left -= sum(level.bytes for level in levels[-1])
        return cls(
            rule=rule,
            log2_unigram=log2_unigram,
            chains=chains,
            levels=tuple(levels),
            smoothing=tuple(_first_smoothing(chain, record) for chain in chains),
            record=record,
        )

    @property
    def bytes(self) -> int:
        """What the counts take."""
        return sum(level.bytes for chain in self.levels for level in chain)

    def named(self, encodings: Sequence[Encoding], records: Sequence[int] | None = None) -> Named:
        """The units of sequences, as `priced` takes them."""
        return named(self.rule, encodings, self.log2_unigram, records)

    def tuned(self, units: Named) -> CountExpert:
        """The same with the smoothing that predicts held-out units best; at least one has tokens.

        Args:
            units: whole records; of more than 10,000 units with tokens so many are predicted.
        """
        real = np.flatnonzero(units.tokens > 0)
        real = real[:: -(-len(real) // _TUNED)]
        found = []
        for chain, levels, start in zip(self.chains, self.levels, self.smoothing, strict=True):
            every = [
                Found(*(values[:, real] for values in one))
                for one in evidence(units, chain, levels, record=self.record)
            ]
            found.append(smoothed(every, units.spelled[real], start))
        return replace(self, smoothing=tuple(found))

    def priced(self, units: Named) -> Priced:
        """What counts say of every unit when all others are seen."""
        prices, kind = [], np.minimum(np.maximum(units.tokens, 1), _TOKENS) - 1
        for number, chain in enumerate(self.chains):
            found = evidence(units, chain, self.levels[number], record=self.record)
            prices.append(_mean(log2_probabilities(found, units.spelled, self.smoothing[number])))
            if number == 0:
                trained, here = found[: len(chain.places) + 1], found[len(chain.places) + 2 :]
                seen = _longest(trained)
                if chain.where != "sequence":  # each unit was counted in so many contexts
                    seen[:, 1:] = -(-seen[:, 1:] // FIT_DRAWS)
                kind = kind * _SEEN + np.minimum(seen[:, 0], _SEEN - 1)
                kind = kind * CACHED + _longest([trained[0], *here])[:, 0]
        return Priced(np.stack(prices), kind, seen)

    def mixed(self, model: Doubles, priced: Priced, mode: str) -> tuple[Doubles, Doubles]:
        """The mixture of model and counts.

        Args:
            model: (N,) log2 p by the model; NaN stays NaN.
            priced: of the same units.
            mode: how the model was asked; one whose weights were not learnt has those of "exact".

        Returns:
            (N,) log2 p; (N,) the share of p that comes from counts.
        """
        weights = self.weights[mode if mode in self.weights else str(EXACT)]
        with np.errstate(divide="ignore"):
            parts = np.log2(weights.T[:, priced.kind]) + np.concatenate([model[None], priced.log2])
        total = np.logaddexp2.reduce(parts, axis=0)
        return total, 1 - np.exp2(parts[0] - total)

    def alone(self, priced: Priced) -> Doubles:
        """(N,) log2 p by the mixture of counts alone."""
        return self.mixed(np.full(priced.log2.shape[1], -np.inf), priced, ALONE)[0]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that is stored beside `described`."""
        found: dict[str, NDArray[Any]] = {"unigram": self.log2_unigram}
        for chain, levels in enumerate(self.levels):
            for length, level in enumerate(levels):
                for one in fields(level):
                    found[f"{chain}/{length}/{one.name}"] = getattr(level, one.name)
        return {**found, **{f"weights/{mode}": table for mode, table in self.weights.items()}}

    def described(self) -> dict[str, Any]:
        """What is stored beside `arrays`, as JSON."""
        chains = [{"name": one.name, "places": one.places, "where": one.where} for one in self.chains]
        return {
            "chains": chains,
            "smoothing": self.smoothing,
            "record": self.record,
            "facts": self.facts,
        }

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], described: Mapping[str, Any], rule: Units) -> CountExpert:
        """From `arrays` and `described`.

        Raises:
            ValueError, LookupError, TypeError: they do not fit together, or another alphabet.
        """
        chains = tuple(
            Chain(str(one["name"]), tuple(map(int, one["places"])), one["where"])
            for one in described["chains"]
        )
        levels = tuple(
            tuple(
                Level(**{one.name: arrays[f"{number}/{length}/{one.name}"] for one in fields(Level)})
                for length in range(len(chain.places) + 1)
            )
            for number, chain in enumerate(chains)
        )
        weights = {
            name.partition("/")[2]: table for name, table in arrays.items() if name.startswith("weights/")
        }
        smoothing = tuple(tuple((float(d), float(a)) for d, a in one) for one in described["smoothing"])
        double = {arrays["unigram"].dtype, *(table.dtype for table in weights.values())} == {np.dtype(float)}
        if not double or arrays["unigram"].shape != (rule.symbols,):
            raise ValueError(f"counts of {len(arrays['unigram'])} symbols for {rule.symbols}")
        if len(smoothing) != len(chains) or any(
            w.shape != (KINDS, len(chains) + 1) for w in weights.values()
        ):
            raise ValueError("smoothing and weights do not fit the chains")
        record, facts = bool(described["record"]), described["facts"]
        for chain, one in zip(chains, smoothing, strict=True):
            if len(one) != len(_first_smoothing(chain, record)):
                raise ValueError(f"smoothing does not fit the chain {chain.name}")
        if not isinstance(facts, dict):
            raise TypeError("facts are no mapping")
        return cls(
            rule=rule,
            log2_unigram=arrays["unigram"],
            chains=chains,
            levels=levels,
            smoothing=smoothing,
            record=record,
            weights=weights,
            facts=facts,
        )


# Tokens of a unit, and lengths of context, that are told apart; the last stands for more too.
_TOKENS, _SEEN = 3, 4
KINDS = _TOKENS * _SEEN * CACHED

_ROUNDS = 50
_PRIOR, _LEAST = 20.0, 0.1


def _longest(found: Sequence[Found]) -> Longs:
    """(N, 3) places of the longest context that was seen, how often the unit and anything stood there.

    Of several draws, the context that was seen most.
    """
    seen = np.zeros((found[0].total.shape[1], 3), dtype=np.int64)
    for places, one in enumerate(found):
        draw = one.total.argmax(axis=0)[None]
        own, total = (np.take_along_axis(values, draw, axis=0)[0] for values in (one.seen, one.total))
        numbers = np.stack([np.full(len(seen), places), own, total], axis=1)
        seen = np.where((total > 0)[:, None], numbers.astype(np.int64), seen)
    return seen


def _first_smoothing(chain: Chain, record: bool) -> Smoothing:
    lengths = CACHED if chain.where == "sequence" else 1
    counted = ((0.7, 1.0),) * (len(chain.places) + 1)
    return counted + (((0.0, 64.0),) * lengths if record else ())


def learnt_weights(model: Doubles | None, priced: Priced) -> Doubles:
    """(KINDS, C + 1) weights by expectation-maximization (Jelinek and Mercer 1980).

    Those of a kind with few places are drawn towards those of all: they begin with 20 places of these, and
    all with a tenth of a place for each part, so that nothing is ever quite sure.

    Args:
        model: (N,) log2 p by the model; None for a mixture of counts alone, where its weight is 0.
        priced: the same units by counts.
    """
    silent = np.full(priced.log2.shape[1], -np.inf)
    log2 = np.concatenate([(silent if model is None else model)[None], priced.log2])
    shares = np.exp2(log2 - log2.max(axis=0))
    shown = np.isfinite(log2).any(axis=1)
    whole = np.where(shown, 1.0, 0.0)[None] / np.count_nonzero(shown)
    one = np.zeros_like(priced.kind)
    for _ in range(_ROUNDS):
        whole = _maximized(whole, shares, one, 1, np.where(shown, _LEAST, 0.0)[None])
    found = np.repeat(whole, KINDS, axis=0)
    for _ in range(_ROUNDS):
        found = _maximized(found, shares, priced.kind, KINDS, _PRIOR * whole)
    return found


def _maximized(weights: Doubles, shares: Doubles, kind: Longs, kinds: int, prior: Doubles) -> Doubles:
    """One round: shares (M, N) of the probability of each unit, divided by kind."""
    owed = weights[kind].T * shares
    owed /= owed.sum(axis=0)
    sums = np.stack([np.bincount(kind, weights=one, minlength=kinds) for one in owed], axis=1) + prior
    return np.asarray(sums / sums.sum(axis=1, keepdims=True))
