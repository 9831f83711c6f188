"""`token_class.v1`: masking rates by token class, and all occurrences of a name together.

An identifier that occurs elsewhere in the sequence can be copied from there. DOBF (Roziere et al. 2021)
therefore hides all occurrences at once. Commas and brackets are easy and frequent. Rates for each class
spend the masks on tokens that are worth learning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.masking.base import Outcome, RateMasker, check_share, number_units
from seqmlm.engine.types import Bools, Encoding, Ids, TokenSpace
from seqmlm.errors import UsageError, nearest
from seqmlm.parsing import Share

Shares = NDArray[np.float64]


class TokenClass(RateMasker):
    """Selects whole units at rates that depend on their class, with a fixed total.

    In a sequence of n eligible tokens, n * `rate` are selected in expectation. A unit of class c is selected
    with probability min(1, f * rate of c), where f is the same for all units of the sequence.

    With probability `together`, the units of one symbol are tied, such as the occurrences of an identifier
    in its scope. Either all are selected or none, with the mean of their probabilities, which keeps the
    expectation. Otherwise they are selected independently. At least one unit is selected.

    The outcome ([MASK], random or unchanged) is drawn once for all selected tokens of a symbol, and once for
    every other unit. Otherwise an unchanged occurrence would reveal the others. With probability `in_class`,
    a random token comes from the tokens of the same class in the sequence, else from the whole vocabulary.

    Args:
        rate: expected fraction of tokens to select, in [0, 1].
        space: the vocabulary.
        classes: names of the classes, in the order of their numbers; the tokenizer supplies them.
        class_rates: relative rate of each class, by name.
        rates: relative rates that replace the rates in `class_rates`, by name; a class with 0 is never
            selected.
        together: probability that the occurrences of a symbol are tied, in [0, 1].
        in_class: probability that a random token comes from the same class, in [0, 1].

    Raises:
        UsageError: a class does not exist, a rate is below 0, or no class has a rate above 0.
    """

    name: ClassVar[str] = "token_class.v1"
    outcome: ClassVar[Outcome] = "symbol"

    def __init__(
        self,
        *,
        rate: float,
        space: TokenSpace,
        classes: Sequence[str] = (),
        class_rates: Mapping[str, float] | None = None,
        rates: Mapping[str, float] | None = None,
        together: Share = 0.5,
        in_class: Share = 0.5,
    ) -> None:
        super().__init__(rate=rate, space=space)
        self.together, self.in_class = check_share("together", together), check_share("in_class", in_class)
        relative_rates = {**dict.fromkeys(classes, 1.0), **(class_rates or {}), **(rates or {})}
        for name, value in relative_rates.items():
            if name not in classes:
                raise UsageError(f"masking.options.rates: no class {name!r}{nearest(name, classes)}")
            if not 0 <= value < np.inf:
                raise UsageError(f"masking.options.rates: {name} must be a number from 0 on, not {value}")
        if classes and not any(relative_rates.values()):
            raise UsageError("masking.options.rates: every class has rate 0, so nothing could be selected")
        # The last entry is for tokens without a class (-1), and for sequences without classes.
        self._rates = np.array([*(relative_rates[name] for name in classes), 1.0], dtype=np.float64)
        self._ordinary = space.ordinary
        self._is_special = space.is_special

    def select(self, encoding: Encoding, eligible: Bools, rng: np.random.Generator) -> Bools:
        """(L,) True at the positions to predict; none if every eligible class has rate 0."""
        selected = np.zeros(len(eligible), dtype=np.bool_)
        inner = eligible.nonzero()[0]
        numbers, count = number_units(encoding.groups[inner])
        if not count:
            return selected
        first = np.zeros(count, dtype=np.intp)
        first[numbers[::-1]] = inner[::-1]  # the class of a unit is that of its first token
        sizes = np.bincount(numbers, minlength=count).astype(np.float64)
        rates = self._class_rates(encoding, first)
        if not rates.any():
            return selected
        shares = _shares(rates, sizes, self.rate * len(inner))
        units = self._draw(shares, sizes, encoding, first, rng)
        if not units.any():
            candidates = rates.nonzero()[0]
            units[candidates[int(rng.random() * len(candidates))]] = True
        selected[inner] = units[numbers]
        return selected

    def _class_rates(self, encoding: Encoding, positions: NDArray[np.intp]) -> Shares:
        if encoding.classes is None:
            return np.ones(len(positions))
        classes = encoding.classes[positions]
        has_rate = (classes >= 0) & (classes < len(self._rates) - 1)
        return self._rates[np.where(has_rate, classes, -1)]

    def _draw(
        self,
        shares: Shares,
        sizes: Shares,
        encoding: Encoding,
        first: NDArray[np.intp],
        rng: np.random.Generator,
    ) -> Bools:
        """(U,) True at the selected units."""
        draws = rng.random(len(shares))
        if encoding.symbols is not None and self.together:
            named = ((encoding.symbols[first] >= 0) & (shares > 0)).nonzero()[0]
            _, symbols = np.unique(encoding.symbols[first[named]], return_inverse=True)
            tokens = np.bincount(symbols, weights=sizes[named])
            means = np.bincount(symbols, weights=(shares * sizes)[named]) / tokens
            tied = (rng.random(len(means)) < self.together)[symbols]
            shares = shares.copy()
            shares[named[tied]] = means[symbols[tied]]
            draws[named[tied]] = rng.random(len(means))[symbols[tied]]
        units: Bools = draws < shares
        return units

    def replace(self, encoding: Encoding, swapped: NDArray[np.intp], rng: np.random.Generator) -> Ids:
        """(S,) ids for the positions `swapped`: of the same class in this sequence, or of the vocabulary."""
        uniform, inside = rng.random(len(swapped)), rng.random(len(swapped)) < self.in_class
        ids = self._ordinary[(uniform * len(self._ordinary)).astype(np.intp)]
        if encoding.classes is None:
            return ids
        classes = encoding.classes[swapped]
        ordinary = ~self._is_special[encoding.ids] & (encoding.groups >= 0)
        for number in np.unique(classes[inside]).tolist():
            pool = encoding.ids[ordinary & (encoding.classes == number)]
            here = inside & (classes == number)
            ids[here] = pool[(uniform[here] * len(pool)).astype(np.intp)]
        return ids


def _shares(rates: Shares, sizes: Shares, budget: float) -> Shares:
    """(U,) min(1, f * rates), with f such that sum(shares * sizes) = budget.

    If the budget is larger than the sum of the sizes, all are 1.
    """
    shares = np.zeros(len(rates))
    free = rates > 0
    while free.any():
        factor = (budget - sizes[shares == 1].sum()) / (rates * sizes)[free].sum()
        full = free & (factor * rates >= 1)
        if not full.any():
            shares[free] = factor * rates[free]
            break
        shares[full] = 1
        free &= ~full
    return shares
