"""The mixture of the model with counts: a second source of probabilities for each unit.

A masked model that trained for some minutes knows a word of several tokens only piece by piece, and hardly
knows rare words. Counts know such words as a whole (`seqmlm.engine.counts`). Both give p(unit | its number
of tokens, all other units). A mixture is again such a conditional, as long as its weights do not depend on
the unit itself. The weights are fitted on held-out units. They depend on the number of tokens of the unit.
They also depend on the length of its longest known context, in the training data and in the record.

A weighted sum does not need the probabilities of other units, so each unit costs only some look-ups. A
product of experts (Hinton 2002),

    p(u) = prod over experts e of P_e(u)^w_e / sum over all symbols of the same product

gives sharper probabilities when several experts are informative. For example, it combines the neighbours on
both sides, which a sum cannot do. It needs the probabilities of all symbols from each expert. It is
therefore used only for alphabets of a few symbols, such as DNA.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.counts import (
    FEW_SYMBOLS,
    FIT_DRAWS,
    RECORD_LENGTHS,
    Chain,
    Counts,
    Doubles,
    Hashes,
    Level,
    UnitHashes,
    chains_for,
    contexts,
    count,
    hash_units,
    record_counts,
    symbol_hashes,
)
from seqmlm.engine.reductions import Reduction, Rows
from seqmlm.engine.types import Encoding, Longs
from seqmlm.engine.units import EXACT, Units

COUNTS_ALONE = "counts"
"""Name of the weights for counts without the model."""

BUDGET = 64 << 20
"""Largest memory of the counts of a model, in bytes."""

Smoothing = tuple[tuple[float, float], ...]
"""Discount and strength for each context length: those of the training data from 0 on, then of the record."""


def log2_probabilities(
    by_length: Iterable[Counts], log2_unigram: Doubles, smoothing: Sequence[tuple[float, float]]
) -> Doubles:
    """(D, N) log2 P of units according to one chain, by recursion over context lengths.

    Args:
        by_length: counts for each context length in the training data, followed by those in the record.
        log2_unigram: (N,) log2 of P_{-1}.
        smoothing: (discount, strength) for each entry of `by_length`.
    """
    lower = log2_unigram
    for counts, (discount, strength) in zip(by_length, smoothing, strict=True):
        lower = _step(counts, lower, discount, strength)
    return np.atleast_2d(lower)


def _step(counts: Counts, lower: Doubles, discount: float, strength: float) -> Doubles:
    """log2 P_k of units from their counts in contexts of k places and from log2 P_{k-1} (`lower`)."""
    mass = counts.totals + strength
    from_counts = np.maximum(counts.counts - discount, 0) / mass
    from_shorter = (strength + discount * counts.types + counts.totals - counts.kept) / mass
    # Computed in logarithms: the probability of a unit of many tokens is too small for a double.
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp2(np.log2(from_counts), np.log2(from_shorter) + lower))


def all_counts(units: UnitHashes, chain: Chain, levels: Sequence[Level], *, record: bool) -> list[Counts]:
    """The counts of every unit for each context length.

    If `record` is True, they are followed by the counts in its record.
    """
    trained = _find_counts(units, chain, levels, units.hashes)
    return [*trained, *(record_counts(units, chain) if record else [])]


def _find_counts(units: UnitHashes, chain: Chain, levels: Sequence[Level], names: Hashes) -> Iterator[Counts]:
    """The counts of units with the given hashes at the places of `units`, for each context length."""
    for level, context in zip(levels, contexts(units, chain), strict=True):
        yield level.find(context, names)


def fit_smoothing(by_length: Sequence[Counts], log2_unigram: Doubles, start: Smoothing) -> Smoothing:
    """The smoothing with which a chain predicts these units best, found by coordinate descent.

    Contexts in the record keep a discount of 0. `start` marks them by a discount of 0.
    """
    chosen = list(start)
    for _ in range(_SWEEPS):
        lower = np.atleast_2d(log2_unigram)
        for number, counts in enumerate(by_length):
            for candidates in (_discounts, _strengths):
                trials = [[trial, *chosen[number + 1 :]] for trial in candidates(*chosen[number])]
                trial_log2 = [_mean(log2_probabilities(by_length[number:], lower, trial)) for trial in trials]
                # Rounded, so that the last bits, which differ between processors, do not decide ties.
                costs = np.round([-float(log2_means.mean()) for log2_means in trial_log2], 9)
                chosen[number] = trials[int(np.argmin(costs))][0]
            lower = _step(counts, lower, *chosen[number])
    return tuple(chosen)


_SWEEPS = 2
TUNED = 10_000
_DISCOUNTS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
_STRENGTHS = tuple(2.0**e for e in range(-3, 14))


def _discounts(discount: float, strength: float) -> list[tuple[float, float]]:
    return [(candidate, strength) for candidate in _DISCOUNTS] if discount else [(discount, strength)]


def _strengths(discount: float, strength: float) -> list[tuple[float, float]]:
    return [(discount, candidate) for candidate in _STRENGTHS]


def _mean(log2_probs: Doubles) -> Doubles:
    """(N,) log2 of the mean over draws of (D, N) log2 probabilities."""
    return np.asarray(np.logaddexp2.reduce(log2_probs, axis=0) - np.log2(len(log2_probs)))


# The expert


@dataclass(frozen=True, eq=False)
class CountProbs:
    """Log-probabilities of N units according to counts.

    Args:
        log2: (C, N) log2 P of each unit by each of C chains. If experts are multiplied, (C, N, K) log2 P of
            each symbol that is possible at that place.
        kind: (N,) kind of place, which selects the weights of the mixture. It depends on the number of
            tokens of the unit and on the length of the longest known context.
        longest: (N, 3) facts about the longest context of the first chain that occurs in the training data.
            They are its number of places, the count of the unit in it, and the count of the context.
        symbol: (N,) index of the observed symbol among the K symbols, -1 for none; None if experts are
            added.
    """

    log2: Doubles
    kind: Longs
    longest: Longs
    symbol: Longs | None = None

    def take(self, units: Any) -> CountProbs:
        """The log-probabilities of selected units.

        Args:
            units: index along the axis of units.
        """
        symbol = None if self.symbol is None else self.symbol[units]
        return CountProbs(self.log2[:, units], self.kind[units], self.longest[units], symbol)


@dataclass(frozen=True, kw_only=True, eq=False)
class CountExpert:
    """Counts of the training split, as a second source of probabilities besides the model.

        p(u) = lambda_0 p_model(u) + sum over chains c of lambda_c P_c(u)

    The weights lambda depend on the kind of place. For an alphabet of a few symbols, the product of model
    and chains is used instead.

    Args:
        rule: defines what a unit is.
        log2_unigram: (K,) log2 of the unigram probability of each symbol in the training split.
        chains: the C chains.
        levels: the counts of each chain; see `count`.
        smoothing: the smoothing of each chain.
        record: whether the other units of the record are also counted.
        product: whether experts are multiplied instead of added.
        weights: for each mode of scoring (see `Mode`), (KINDS, C + 1) lambda or (1, C + 1) exponents; those
            of the model come first. The entry `COUNTS_ALONE` has the weights for counts without the model.
        facts: measurements from the fit of the weights.
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
        min_records: int = 1,
    ) -> CountExpert:
        """Count the training split.

        Args:
            sequences: sequences of the training split, all or an even sample. Each unit takes about 130
                bytes of memory, or 400 in sets. Both numbers double if both strands are counted.
            rule: defines what a unit is.
            unigram: (K,) probabilities of the symbols; see `Units.frequencies`.
            records: number of the record for each sequence; None if each sequence is its own record.
            budget: bytes for all counts.
            min_records: number of records in which a context or unit must occur to be kept.

        Returns:
            An expert with default smoothing and without weights.
        """
        with np.errstate(divide="ignore"):
            log2_unigram = np.log2(unigram)
        units = hash_units(rule, sequences, log2_unigram, records, mirrored=True)
        symbols = int(np.count_nonzero(unigram))
        chains = chains_for(symbols, sets=units.position is not None)
        record = symbols > FEW_SYMBOLS
        levels, bytes_left = [], budget
        for number, chain in enumerate(chains):
            share = bytes_left // (len(chains) - number)
            levels.append(tuple(count(units, chain, budget=share, min_records=min_records)))
            bytes_left -= sum(level.bytes for level in levels[-1])
        return cls(
            rule=rule,
            log2_unigram=log2_unigram,
            chains=chains,
            levels=tuple(levels),
            smoothing=tuple(_first_smoothing(chain, record) for chain in chains),
            record=record,
            product=multiplies_experts(rule, unigram),
        )

    @cached_property
    def alphabet(self) -> Longs:
        """(K,) the symbols that units consist of: those with a probability above 0."""
        return np.flatnonzero(np.isfinite(self.log2_unigram))

    @property
    def needs(self) -> tuple[Reduction, ...]:
        """The reductions that the mixture needs from the model besides log-probabilities."""
        return (Rows(),) if self.product else ()

    def model_log_probs(self, log2: Doubles, values: Mapping[str, NDArray[Any]]) -> Doubles:
        """log2 p of units according to the model, in the form that `mixture` takes.

        Args:
            log2: (N,) log2 p of each unit.
            values: the other reductions, including `needs`.

        Returns:
            (N,), or (N, K) if experts are multiplied.
        """
        if not self.product:
            return log2
        rows = values[Rows.name] if len(log2) else np.zeros((0, len(self.log2_unigram)))
        return np.asarray(rows[:, self.alphabet] / np.log(2), dtype=np.float64)

    @property
    def bytes(self) -> int:
        """Memory of the counts, in bytes."""
        return sum(level.bytes for chain in self.levels for level in chain)

    def hash_units(self, encodings: Sequence[Encoding], records: Sequence[int] | None = None) -> UnitHashes:
        """The units of sequences, in the form that `count_log_probs` takes."""
        return hash_units(self.rule, encodings, self.log2_unigram, records)

    def with_best_smoothing(self, units: UnitHashes, max_units: int = TUNED) -> CountExpert:
        """The same expert with the smoothing that predicts held-out units best.

        Args:
            units: units of whole records; at least one unit has tokens.
            max_units: largest number of units with tokens that are predicted.
        """
        real = np.flatnonzero(units.tokens > 0)
        real = real[:: -(-len(real) // max_units)]
        smoothings = []
        for chain, levels, start in zip(self.chains, self.levels, self.smoothing, strict=True):
            by_length = [
                Counts(*(values[:, real] for values in counts))
                for counts in all_counts(units, chain, levels, record=self.record)
            ]
            smoothings.append(fit_smoothing(by_length, units.log2_unigram[real], start))
        return replace(self, smoothing=tuple(smoothings))

    def count_log_probs(self, units: UnitHashes) -> CountProbs:
        """log2 p of every unit according to counts, given all other units."""
        prices, kind = [], np.minimum(np.maximum(units.tokens, 1), _TOKENS) - 1
        letters = symbol_hashes(self.alphabet)[:, None] if self.product else None
        for number, chain in enumerate(self.chains):
            levels, smoothing = self.levels[number], self.smoothing[number]
            if letters is not None:
                by_symbol = _find_counts(units, chain, levels, letters)
                shape = (len(letters), len(units))
                log2_unigram = np.broadcast_to(self.log2_unigram[self.alphabet, None], shape)
                prices.append(log2_probabilities(by_symbol, log2_unigram, smoothing).T)
            needed = number == 0 or not self.product
            by_length = all_counts(units, chain, levels, record=self.record) if needed else []
            if letters is None:
                prices.append(_mean(log2_probabilities(by_length, units.log2_unigram, smoothing)))
            if number == 0:
                trained = by_length[: len(chain.places) + 1]
                in_record = by_length[len(chain.places) + 2 :]
                longest = _longest(trained)
                if chain.where != "sequence":  # each unit was counted in FIT_DRAWS contexts
                    longest[:, 1:] = -(-longest[:, 1:] // FIT_DRAWS)
                kind = kind * _SEEN + np.minimum(longest[:, 0], _SEEN - 1)
                kind = kind * RECORD_LENGTHS + _longest([trained[0], *in_record])[:, 0]
        if letters is None:
            return CountProbs(np.stack(prices), kind, longest)
        stands = units.hashes == letters
        symbol = np.where(stands.any(axis=0), stands.argmax(axis=0), -1)
        return CountProbs(np.stack(prices), kind, longest, symbol)

    def mixture(self, model: Doubles, counts: CountProbs, mode: str) -> tuple[Doubles, Doubles]:
        """The mixture of model and counts.

        Args:
            model: log2 p of units from `model_log_probs`; NaN stays NaN.
            counts: log-probabilities of the same units by counts.
            mode: mode of the queries to the model. If no weights were fitted for it, those of "exact" are
                used.

        Returns:
            (N,) log2 p; (N,) the fraction of p that comes from counts, or of the exponents if experts are
            multiplied.
        """
        weights = self.weights[mode if mode in self.weights else str(EXACT)]
        if counts.symbol is not None:
            log2 = _product(weights[0], np.concatenate([model[None], counts.log2]))
            unit_log2 = np.take_along_axis(log2, np.maximum(counts.symbol, 0)[:, None], axis=1)[:, 0]
            sizes = np.abs(weights[0])
            share = np.full(len(unit_log2), 1 - sizes[0] / sizes.sum())
            return np.where(counts.symbol < 0, np.nan, unit_log2), share
        with np.errstate(divide="ignore"):
            parts = np.log2(weights.T[:, counts.kind]) + np.concatenate([model[None], counts.log2])
        total = np.logaddexp2.reduce(parts, axis=0)
        return total, 1 - np.exp2(parts[0] - total)

    def count_mixture(self, counts: CountProbs) -> Doubles:
        """(N,) log2 p according to the combined counts, without the model."""
        silent = np.full(counts.log2.shape[1:], -np.inf if counts.symbol is None else 0.0)
        return self.mixture(silent, counts, COUNTS_ALONE)[0]

    def lower_of_both(self, model: Doubles, counts: CountProbs) -> tuple[Doubles, Doubles]:
        """The lower of the two probabilities of each unit.

        It is for modes in which the model sees the unit. The only possible error of the model is then to be
        too certain.

        Args:
            model: (N,) log2 p according to the model.
            counts: log-probabilities of the same units by counts.

        Returns:
            (N,) log2 p; (N,) 1 if it comes from counts, else 0.
        """
        count_log2 = self.count_mixture(counts)
        return np.minimum(model, count_log2), (count_log2 < model).astype(np.float64)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays to store, by name; `description` has the other values."""
        stored: dict[str, NDArray[Any]] = {"unigram": self.log2_unigram}
        for chain, levels in enumerate(self.levels):
            for length, level in enumerate(levels):
                for column in fields(level):
                    stored[f"{chain}/{length}/{column.name}"] = getattr(level, column.name)
        return {**stored, **{f"weights/{mode}": table for mode, table in self.weights.items()}}

    def description(self) -> dict[str, Any]:
        """All values to store besides `arrays`, as JSON."""
        settings = {name: getattr(self, name) for name in ("smoothing", "record", "product", "facts")}
        return {"chains": [asdict(chain) for chain in self.chains], **settings}

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], description: Mapping[str, Any], rule: Units
    ) -> CountExpert:
        """The expert that `arrays` and `description` were made from.

        Raises:
            ValueError, LookupError, TypeError: they do not fit together, or belong to another alphabet.
        """
        chains = tuple(
            Chain(**{**chain, "places": tuple(map(int, chain["places"]))}) for chain in description["chains"]
        )
        columns = [column.name for column in fields(Level)]
        levels = tuple(
            tuple(
                Level(**{column: arrays[f"{number}/{length}/{column}"] for column in columns})
                for length in range(len(chain.places) + 1)
            )
            for number, chain in enumerate(chains)
        )
        weights = {
            name.partition("/")[2]: table for name, table in arrays.items() if name.startswith("weights/")
        }
        smoothing = tuple(tuple((float(d), float(a)) for d, a in pairs) for pairs in description["smoothing"])
        double = {arrays["unigram"].dtype, *(table.dtype for table in weights.values())} == {np.dtype(float)}
        if not double or arrays["unigram"].shape != (rule.symbols,):
            raise ValueError(
                f"counts for {len(arrays['unigram'])} symbols, but the alphabet has {rule.symbols}"
            )
        record, facts = bool(description["record"]), description["facts"]
        product = description["product"] is True
        wide = (1 if product else KINDS, len(chains) + 1)
        if len(smoothing) != len(chains) or any(table.shape != wide for table in weights.values()):
            raise ValueError("smoothing and weights do not fit the chains")
        for chain, chain_smoothing in zip(chains, smoothing, strict=True):
            if len(chain_smoothing) != len(_first_smoothing(chain, record)):
                raise ValueError(f"smoothing does not fit the chain {chain.name}")
        if not isinstance(facts, dict):
            raise TypeError("facts are not a mapping")
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


# Numbers of tokens, and context lengths, that are distinguished; the last one includes all larger numbers.
_TOKENS, _SEEN = 3, 4
KINDS = _TOKENS * _SEEN * RECORD_LENGTHS

_ROUNDS = 50
_PRIOR, _LEAST = 20.0, 0.1


def _longest(by_length: Sequence[Counts]) -> Longs:
    """(N, 3) for the longest known context: its places, how often the unit occurs in it, and its total count.

    If contexts are drawn several times, the draw with the highest count is used.
    """
    longest = np.zeros((by_length[0].totals.shape[1], 3), dtype=np.int64)
    for places, counts in enumerate(by_length):
        draw = counts.totals.argmax(axis=0)[None]
        unit_counts, total = (
            np.take_along_axis(values, draw, axis=0)[0] for values in (counts.counts, counts.totals)
        )
        numbers = np.stack([np.full(len(longest), places), unit_counts, total], axis=1)
        longest = np.where((total > 0)[:, None], numbers.astype(np.int64), longest)
    return longest


def _first_smoothing(chain: Chain, record: bool) -> Smoothing:
    lengths = RECORD_LENGTHS if chain.where == "sequence" else 1
    counted = ((0.7, 1.0),) * (len(chain.places) + 1)
    return counted + (((0.0, 64.0),) * lengths if record else ())


def multiplies_experts(rule: Units, unigram: Doubles) -> bool:
    """Whether experts are multiplied: for small alphabets that can be read in two directions, such as DNA.

    Args:
        rule: defines what a unit is.
        unigram: (K,) probabilities of the symbols.
    """
    few = np.count_nonzero(unigram) <= FEW_SYMBOLS
    return bool(few and rule.facts.strands is not None and rule.facts.names is None)


def _product(weights: Doubles, log2: Doubles) -> Doubles:
    """(N, K) log2 of the normalised product of (M, N, K) experts, each raised to its weight."""
    log2_product = np.tensordot(weights, log2, 1)
    return np.asarray(log2_product - np.logaddexp2.reduce(log2_product, axis=1, keepdims=True))


def fit_weights(model: Doubles | None, counts: CountProbs) -> Doubles:
    """(KINDS, C + 1) weights of the mixture, or (1, C + 1) exponents if experts are multiplied.

    Weights are fitted by expectation-maximization (Jelinek and Mercer 1980). The weights of a kind with few
    places are drawn towards those of all places, by a prior of 20 places. The prior of the latter is a tenth
    of a place for each part. No probability thus becomes exactly 0 or 1.

    Exponents minimise the cost, which is convex in them, with a prior of one place for equal exponents.

    Args:
        model: log2 p from `CountExpert.model_log_probs`; None for counts without the model, whose weight is
            then 0.
        counts: log-probabilities of the same units by counts.
    """
    if counts.symbol is not None:
        return _exponents(model, counts)
    silent = np.full(counts.log2.shape[1], -np.inf)
    log2 = np.concatenate([(silent if model is None else model)[None], counts.log2])
    shares = np.exp2(log2 - log2.max(axis=0))
    speaks = np.isfinite(log2).any(axis=1)
    pooled = np.where(speaks, 1.0, 0.0)[None] / np.count_nonzero(speaks)
    single_kind = np.zeros_like(counts.kind)
    for _ in range(_ROUNDS):
        pooled = _em_round(pooled, shares, single_kind, 1, np.where(speaks, _LEAST, 0.0)[None])
    weights = np.repeat(pooled, KINDS, axis=0)
    for _ in range(_ROUNDS):
        weights = _em_round(weights, shares, counts.kind, KINDS, _PRIOR * pooled)
    return weights


def _exponents(model: Doubles | None, counts: CountProbs) -> Doubles:
    """(1, C + 1) exponents of the product of experts that predicts the units best; see `fit_weights`."""
    import torch
    from torch.nn.functional import cross_entropy

    expert_log2 = counts.log2 if model is None else np.concatenate([model[None], counts.log2])
    assert counts.symbol is not None
    usable = (counts.symbol >= 0) & np.isfinite(expert_log2).all(axis=(0, 2))
    log2, symbol = expert_log2[:, usable], counts.symbol[usable]
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
    exponents = weights.detach().numpy()
    return np.asarray(exponents if model is not None else np.append(0.0, exponents))[None]


def _em_round(weights: Doubles, shares: Doubles, kind: Longs, kinds: int, prior: Doubles) -> Doubles:
    """One round of expectation-maximization.

    Args:
        weights: (kinds, M) current weights of the experts.
        shares: (M, N) relative probability of each unit according to each expert.
        kind: (N,) kind of each unit.
        kinds: number of kinds.
        prior: counts that are added to each weight.
    """
    owed = weights[kind].T * shares
    owed /= owed.sum(axis=0)
    sums = [np.bincount(kind, weights=expert_shares, minlength=kinds) for expert_shares in owed]
    counts = np.stack(sums, axis=1) + prior
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))
