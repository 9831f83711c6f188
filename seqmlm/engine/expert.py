"""A second opinion beside the model: what counts say of a unit, and the mixture of both.

A masked model of some minutes knows a word of several tokens piece by piece and a rare one hardly at all;
counts know it whole (`seqmlm.engine.counts`). Both give p(unit | its number of tokens, all others), so any
mixture whose weights do not look at the unit itself is such a conditional too. The weights are learnt on
held-out units, for each kind of place: tokens of the unit, and how long a context was seen in training and
in the record.

A sum needs nothing of the rest of a vocabulary, so that a unit costs some look-ups. A product of experts,

    p(u) = prod over experts e of P_e(u)^w_e / sum over all symbols of the same

is sharper where several speak (Hinton 2002; for neighbours on both sides, which a sum cannot combine), and
needs the whole alphabet of each: it is taken where that is a few symbols, as of DNA.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
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
    Names,
    cached,
    chains_for,
    contexts,
    count,
    named,
    names_of,
)
from seqmlm.engine.reductions import Reduction, Rows
from seqmlm.engine.types import Encoding, Longs
from seqmlm.engine.units import EXACT, Units

ALONE = "counts"

BUDGET = 64 << 20
"""Bytes of counts that a model keeps."""

Smoothing = tuple[tuple[float, float], ...]
"""Discount and strength of each length of context, from 0 on, and then of those in the record."""


def log2_probabilities(
    found: Iterable[Found], spelled: Doubles, smoothing: Sequence[tuple[float, float]]
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
    return [*_counted(units, chain, levels, units.name), *(cached(units, chain) if record else [])]


def _counted(units: Named, chain: Chain, levels: Sequence[Level], names: Names) -> Iterator[Found]:
    """The counts of units of these names in the places of `units`, for each length of context."""
    for level, context in zip(levels, contexts(units, chain), strict=True):
        yield level.find(context, names)


def smoothed(found: Sequence[Found], spelled: Doubles, start: Smoothing) -> Smoothing:
    """The smoothing with which a chain predicts these units best, by coordinate descent.

    Lengths of contexts in the record keep a discount of 0: `start` says which they are by theirs.
    """
    chosen = list(start)
    for _ in range(_SWEEPS):
        lower = np.atleast_2d(spelled)
        for number, one in enumerate(found):
            for way in (_discounts, _strengths):
                trials = [[trial, *chosen[number + 1 :]] for trial in way(*chosen[number])]
                priced = [_mean(log2_probabilities(found[number:], lower, trial)) for trial in trials]
                # Rounded: another processor's last bits must not choose among equals.
                costs = np.round([-float(own.mean()) for own in priced], 9)
                chosen[number] = trials[int(np.argmin(costs))][0]
            lower = _step(one, lower, *chosen[number])
    return tuple(chosen)


_SWEEPS = 2
TUNED = 10_000
_DISCOUNTS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
_STRENGTHS = tuple(2.0**e for e in range(-3, 14))


def _discounts(discount: float, strength: float) -> list[tuple[float, float]]:
    return [(other, strength) for other in _DISCOUNTS] if discount else [(discount, strength)]


def _strengths(discount: float, strength: float) -> list[tuple[float, float]]:
    return [(discount, other) for other in _STRENGTHS]


def _mean(drawn: Doubles) -> Doubles:
    """(N,) log2 of the mean over draws of (D, N) log2 probabilities."""
    return np.asarray(np.logaddexp2.reduce(drawn, axis=0) - np.log2(len(drawn)))


# The expert


@dataclass(frozen=True, eq=False)
class Priced:
    """What counts say of N units.

    Args:
        log2: (C, N) log2 P of each by each chain; (C, N, K) of each symbol that may stand there, where
            experts are multiplied.
        kind: (N,) by what the mixture's weights differ: tokens of the unit, and how long a context was seen.
        seen: (N, 3) of the first chain's longest context seen in training: its places, how often the unit
            stood there, and how often anything did.
        symbol: (N,) which of the K symbols stands there, -1 for none; None where experts are added.
    """

    log2: Doubles
    kind: Longs
    seen: Longs
    symbol: Longs | None = None

    def some(self, units: Any) -> Priced:
        """Of some units alone: an index of their axis."""
        symbol = None if self.symbol is None else self.symbol[units]
        return Priced(self.log2[:, units], self.kind[units], self.seen[units], symbol)


@dataclass(frozen=True, kw_only=True, eq=False)
class CountExpert:
    """Counts of the training split, as a second opinion on what stands at a place beside the model's:

        p(u) = lambda_0 p_model(u) + sum over chains c of lambda_c P_c(u)       lambda by kind of place

    or, over an alphabet of a few symbols, their product.

    Args:
        rule: what a unit is.
        log2_unigram: (K,) of each symbol in the training split.
        chains: C of them. levels: of each, see `count`. smoothing: of each.
        record: whether what the rest of a record says is counted too.
        product: experts are multiplied, not added.
        weights: by mode of asking (see `Mode`): (KINDS, C + 1) lambda, the model's first, or (1, C + 1)
            exponents; by `ALONE` those of counts without a model.
        facts: what was measured when the weights were learnt.
    """

    rule: Units
    log2_unigram: Doubles
    chains: tuple[Chain, ...]
    levels: tuple[tuple[Level, ...], ...]
    smoothing: tuple[Smoothing, ...]
    record: bool
    product: bool = False
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
            product=multiplied(rule, unigram),
        )

    @cached_property
    def alphabet(self) -> Longs:
        """(K,) the symbols that units are made of."""
        return np.flatnonzero(np.isfinite(self.log2_unigram))

    @property
    def needs(self) -> tuple[Reduction, ...]:
        """What must be read of the model beside log-probabilities."""
        return (Rows(),) if self.product else ()

    def told(self, log2: Doubles, values: Mapping[str, NDArray[Any]]) -> Doubles:
        """What the model says of units, as `mixed` takes it: (N,), or (N, K) where experts are multiplied.

        Args:
            log2: (N,) log2 p of each. values: what else was read, `needs` among it.
        """
        if not self.product:
            return log2
        rows = values[Rows.name] if len(log2) else np.zeros((0, len(self.log2_unigram)))
        return np.asarray(rows[:, self.alphabet] / np.log(2), dtype=np.float64)

    @property
    def bytes(self) -> int:
        """What the counts take."""
        return sum(level.bytes for chain in self.levels for level in chain)

    def named(self, encodings: Sequence[Encoding], records: Sequence[int] | None = None) -> Named:
        """The units of sequences, as `priced` takes them."""
        return named(self.rule, encodings, self.log2_unigram, records)

    def tuned(self, units: Named, most: int = TUNED) -> CountExpert:
        """The same with the smoothing that predicts held-out units best; at least one has tokens.

        Args:
            units: whole records.
            most: units with tokens that are predicted.
        """
        real = np.flatnonzero(units.tokens > 0)
        real = real[:: -(-len(real) // most)]
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
        letters = names_of(self.alphabet)[:, None] if self.product else None
        for number, chain in enumerate(self.chains):
            levels, smoothing = self.levels[number], self.smoothing[number]
            if letters is not None:
                each = _counted(units, chain, levels, letters)
                spelled = np.broadcast_to(self.log2_unigram[self.alphabet, None], (len(letters), len(units)))
                prices.append(log2_probabilities(each, spelled, smoothing).T)
            found = (
                evidence(units, chain, levels, record=self.record) if number == 0 or not self.product else []
            )
            if letters is None:
                prices.append(_mean(log2_probabilities(found, units.spelled, smoothing)))
            if number == 0:
                trained, here = found[: len(chain.places) + 1], found[len(chain.places) + 2 :]
                seen = _longest(trained)
                if chain.where != "sequence":  # each unit was counted in so many contexts
                    seen[:, 1:] = -(-seen[:, 1:] // FIT_DRAWS)
                kind = kind * _SEEN + np.minimum(seen[:, 0], _SEEN - 1)
                kind = kind * CACHED + _longest([trained[0], *here])[:, 0]
        if letters is None:
            return Priced(np.stack(prices), kind, seen)
        stands = units.name == letters
        return Priced(np.stack(prices), kind, seen, np.where(stands.any(axis=0), stands.argmax(axis=0), -1))

    def mixed(self, model: Doubles, priced: Priced, mode: str) -> tuple[Doubles, Doubles]:
        """The mixture of model and counts.

        Args:
            model: what `told` gives; NaN stays NaN.
            priced: of the same units.
            mode: how the model was asked; one whose weights were not learnt has those of "exact".

        Returns:
            (N,) log2 p; (N,) the share of p that comes from counts, of a product that of the exponents.
        """
        weights = self.weights[mode if mode in self.weights else str(EXACT)]
        if priced.symbol is not None:
            log2 = _product(weights[0], np.concatenate([model[None], priced.log2]))
            own = np.take_along_axis(log2, np.maximum(priced.symbol, 0)[:, None], axis=1)[:, 0]
            sizes = np.abs(weights[0])
            share = np.full(len(own), 1 - sizes[0] / sizes.sum())
            return np.where(priced.symbol < 0, np.nan, own), share
        with np.errstate(divide="ignore"):
            parts = np.log2(weights.T[:, priced.kind]) + np.concatenate([model[None], priced.log2])
        total = np.logaddexp2.reduce(parts, axis=0)
        return total, 1 - np.exp2(parts[0] - total)

    def alone(self, priced: Priced) -> Doubles:
        """(N,) log2 p by counts alone, together."""
        silent = np.full(priced.log2.shape[1:], -np.inf if priced.symbol is None else 0.0)
        return self.mixed(silent, priced, ALONE)[0]

    def bounded(self, model: Doubles, priced: Priced) -> tuple[Doubles, Doubles]:
        """What both say where the model sees the unit and can only be too sure: p is at most that of counts.

        Args:
            model: (N,) log2 p by the model. priced: of the same units.

        Returns:
            (N,) log2 p; (N,) 1 where it is that of counts, else 0.
        """
        counts = self.alone(priced)
        return np.minimum(model, counts), (counts < model).astype(np.float64)

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
        own = {name: getattr(self, name) for name in ("smoothing", "record", "product", "facts")}
        return {"chains": [asdict(one) for one in self.chains], **own}

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], described: Mapping[str, Any], rule: Units) -> CountExpert:
        """From `arrays` and `described`.

        Raises:
            ValueError, LookupError, TypeError: they do not fit together, or another alphabet.
        """
        chains = tuple(
            Chain(**{**one, "places": tuple(map(int, one["places"]))}) for one in described["chains"]
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
        record, facts = bool(described["record"]), described["facts"]
        product = described["product"] is True
        wide = (1 if product else KINDS, len(chains) + 1)
        if len(smoothing) != len(chains) or any(table.shape != wide for table in weights.values()):
            raise ValueError("smoothing and weights do not fit the chains")
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
            product=product,
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


def multiplied(rule: Units, unigram: Doubles) -> bool:
    """Whether experts are multiplied: where tokens are units of an alphabet of a few symbols, with two
    readings (DNA).

    Args:
        unigram: (K,) probabilities of symbols.
    """
    few = np.count_nonzero(unigram) <= FEW_SYMBOLS
    return bool(few and rule.complement is not None and rule.names is None)


def _product(weights: Doubles, log2: Doubles) -> Doubles:
    """(N, K) log2 of the product of (M, N, K) experts, each with its exponent."""
    found = np.tensordot(weights, log2, 1)
    return np.asarray(found - np.logaddexp2.reduce(found, axis=1, keepdims=True))


def learnt_weights(model: Doubles | None, priced: Priced) -> Doubles:
    """(KINDS, C + 1) weights by expectation-maximization (Jelinek and Mercer 1980), or (1, C + 1) exponents.

    Those of a kind with few places are drawn towards those of all: they begin with 20 places of these, and
    all with a tenth of a place for each part, so that nothing is ever quite sure.

    Exponents are those of the smallest cost, which is convex in them, drawn by one place towards all equal.

    Args:
        model: what `CountExpert.told` gives; None for counts alone, where its weight is 0.
        priced: the same units by counts.
    """
    if priced.symbol is not None:
        return _exponents(model, priced)
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


def _exponents(model: Doubles | None, priced: Priced) -> Doubles:
    import torch
    from torch.nn.functional import cross_entropy

    told = priced.log2 if model is None else np.concatenate([model[None], priced.log2])
    assert priced.symbol is not None
    known = (priced.symbol >= 0) & np.isfinite(told).all(axis=(0, 2))
    log2, symbol = told[:, known], priced.symbol[known]
    nats = torch.from_numpy(log2 * np.log(2)).permute(1, 2, 0)  # (N, K, M)
    target = torch.from_numpy(symbol)
    equal = torch.full((len(log2),), 1 / len(log2), dtype=torch.float64)
    weights = equal.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def cost() -> torch.Tensor:
        optimizer.zero_grad()
        away = weights - equal
        total = cross_entropy(nats @ weights, target, reduction="sum") + away @ away
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(cost)  # type: ignore[no-untyped-call]
    found = weights.detach().numpy()
    return np.asarray(found if model is not None else np.append(0.0, found))[None]


def _maximized(weights: Doubles, shares: Doubles, kind: Longs, kinds: int, prior: Doubles) -> Doubles:
    """One round: shares (M, N) of the probability of each unit, divided by kind."""
    owed = weights[kind].T * shares
    owed /= owed.sum(axis=0)
    sums = np.stack([np.bincount(kind, weights=one, minlength=kinds) for one in owed], axis=1) + prior
    return np.asarray(sums / sums.sum(axis=1, keepdims=True))
