"""`visit.v1`: single codes, whole visits, or all codes of a family, against copying of chronic codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.masking.base import Outcome, check_share, draw, number_units
from seqmlm.engine.types import Bools, Encoding, Ids, TokenSpace
from seqmlm.errors import UsageError
from seqmlm.parsing import Share

# Whole visits or families may take up to this many times the rate. With a lower limit, often none would fit.
_MOST = 5 / 3


class Visit:
    """Selects units in one of three ways, drawn for each sequence.

    *Codes*: each unit independently at `rate`. *Visits*: whole sets of units at the same position. Sets are
    taken in random order, as long as the total stays within 5/3 of the rate, until the rate is reached. All
    their units become [MASK], and their number stays visible. *Families*: in the same way, all units of one
    symbol, anywhere in the sequence. A chronic code is repeated at every visit and could otherwise be copied
    from another visit. If no set fits, or the encoding has no positions (or symbols), codes are selected.

    A random token comes from the pool of the true token (codes of the same vocabulary). If a unit begins
    with a family token, it becomes a random code with its own family.

    Args:
        rate: expected fraction of units to select, in [0, 1].
        space: the vocabulary.
        visits, families: fractions of the sequences that are masked in these two ways, together at most 1.
        pools: sets of interchangeable ids; an id in no set is replaced by any ordinary id.
        parents: for an id, the id before it in its unit.

    Raises:
        UsageError: a fraction is outside [0, 1], or a special id is in a pool.
    """

    name: ClassVar[str] = "visit.v1"
    outcome: ClassVar[Outcome] = "unit"

    def __init__(
        self,
        *,
        rate: float,
        space: TokenSpace,
        visits: Share = 0.2,
        families: Share = 0.1,
        pools: Sequence[Sequence[int]] = (),
        parents: Mapping[int, int] | None = None,
    ) -> None:
        self.rate = check_share("rate", rate)
        self.visits, self.families = check_share("visits", visits), check_share("families", families)
        if visits + families > 1:
            raise UsageError(f"masking keys 'visits' + 'families' must be at most 1, not {visits + families}")
        members = [space.ordinary, *(np.array(pool, dtype=np.int32) for pool in pools)]
        self._pools = np.concatenate(members)
        if not np.isin(self._pools, space.ordinary).all():
            raise UsageError("masking key 'pools' contains a special token or one outside the vocabulary")
        self._size = np.array([len(pool) for pool in members], dtype=np.int64)
        self._first = np.cumsum(self._size) - self._size
        self._pool = np.zeros(space.size, dtype=np.int64)  # (V,) the pool of each id, 0 for all ordinary ids
        for number, pool in enumerate(members[1:], start=1):
            self._pool[pool] = number
        self._parent = np.full(space.size, -1, dtype=np.int32)
        for token, parent in (parents or {}).items():
            self._parent[token] = parent

    def select(self, encoding: Encoding, eligible: Bools, rng: np.random.Generator) -> Bools:
        """(L,) True at the positions to predict."""
        return self.select_and_hide(encoding, eligible, rng)[0]

    def select_and_hide(
        self, encoding: Encoding, eligible: Bools, rng: np.random.Generator
    ) -> tuple[Bools, Bools]:
        """(L,) True at the positions to predict; (L,) True at those that always become [MASK].

        The latter are the units of whole visits.
        """
        selected, hidden = np.zeros((2, len(eligible)), dtype=np.bool_)
        places = eligible.nonzero()[0]
        numbers, count = number_units(encoding.groups[places])
        if not count:
            return selected, hidden
        way = rng.random()
        sets = None
        if way < self.visits:
            sets = encoding.positions
        elif way < self.visits + self.families:
            sets = encoding.symbols
        units = None if sets is None else self._whole_sets(_unit_sets(sets[places], numbers, count), rng)
        if units is None:
            units = draw(count, self.rate, rng)
        elif way < self.visits:
            hidden[places] = units[numbers]
        selected[places] = units[numbers]
        return selected, hidden

    def _whole_sets(self, sets: Ids, rng: np.random.Generator) -> Bools | None:
        """(U,) True at the units of randomly chosen sets; None if no set fits.

        Args:
            sets: (U,) number of the set of each unit, -1 for none.
            rng: source of random numbers.
        """
        set_numbers, member = np.unique(sets, return_inverse=True)
        sizes = np.bincount(member)
        limit = min(self.rate * _MOST, 1.0) * len(sets)
        chosen = np.zeros(len(set_numbers), dtype=np.bool_)
        total = 0
        order = rng.permutation(len(set_numbers))
        for number in order[(sizes[order] <= limit) & (set_numbers[order] >= 0)].tolist():
            if total >= self.rate * len(sets):
                break
            if total + sizes[number] <= limit:
                chosen[number] = True
                total += int(sizes[number])
        return chosen[member] if total else None

    def replace(self, encoding: Encoding, swapped: NDArray[np.intp], rng: np.random.Generator) -> Ids:
        """(S,) ids from the same pool as the true ids; units with a parent get another pair."""
        ids = encoding.ids[swapped]
        pool = self._pool[ids]
        replacements: Ids = self._pools[
            self._first[pool] + (rng.random(len(ids)) * self._size[pool]).astype(np.int64)
        ]
        inside = encoding.groups[swapped]
        # A parent is the token directly before its token, in the same unit.
        pair = (inside[1:] == inside[:-1]) & (self._parent[ids[1:]] == ids[:-1]) & (ids[:-1] >= 0)
        fronts = pair.nonzero()[0]
        replacements[fronts] = np.where(
            self._parent[replacements[fronts + 1]] >= 0,
            self._parent[replacements[fronts + 1]],
            replacements[fronts],
        )
        return replacements


def _unit_sets(sets: Ids, numbers: NDArray[np.intp], count: int) -> Ids:
    """(U,) set of the first token of each unit, from the set of each token."""
    first = np.full(count, -1, dtype=np.int32)
    first[numbers[::-1]] = sets[::-1]
    return first
