"""Counts of units among their neighbours: n-grams read in any direction, in bounded memory.

A chain is a list of places around a unit, nearest first: (-1, -2, -3, -4) is a forward n-gram, (1, 2, 3, 4) a
backward one, (-1, 1, -2, 2) reads both sides. With h_k the units at its first k places, n the number of
tokens of the unit, and counts over training units with n tokens,

    P_k(u | h_k, n) = (max(c(h_k u) - d_k, 0) + r_k P_{k-1}(u | h_{k-1}, n)) / (c(h_k) + a_k)
    r_k = a_k + d_k t(h_k) + what c(h_k) counts of pruned units        P_{-1}(u | n) = product of the unigram

where t(h) is the number of different units kept after h: the predictive rule of the hierarchical Pitman-Yor
process (Teh 2006). What is counted among the other units of the same record comes on top, with d = 0 (Kuhn
and De Mori 1990; for code Tu et al. 2014). Every P_k sums to 1 over all strings of n ordinary tokens.

Units of one position are a set (the events of a visit): their order is never read. The places of a chain are
then other members of the set, or members of the set before or after, drawn anew in each of several draws over
which P is averaged.

The trade-off: names of units and contexts are 64-bit hashes in sorted arrays. That is a tenth of the memory
of dictionaries, and no text can be read out of them; two in 10^7 of them are equal with probability 3e-6.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.randomness import mixed
from seqmlm.engine.types import Bools, Encoding, Longs, ranges
from seqmlm.engine.units import Units

Doubles = NDArray[np.float64]
Names = NDArray[np.uint64]
Where = Literal["sequence", "together", "before", "after"]

FIT_DRAWS, _ASK_DRAWS = 4, 16
CACHED = 3  # contexts of so many lengths are counted in the record, the empty one included
FEW_SYMBOLS = 8  # an alphabet so small has long contexts, and nothing of its own in a record
_COUNT = np.dtype(np.uint32)
_EDGE = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Chain:
    """Where the contexts of a unit stand.

    Args:
        name: of the chain.
        places: distances in units, nearest first; of a set only their number counts.
        where: in a sequence, or in which set.
    """

    name: str
    places: tuple[int, ...]
    where: Where = "sequence"

    def __post_init__(self) -> None:
        if self.where not in get_args(Where) or 0 in self.places:
            raise ValueError(f"the chain {self.name} reads no places known here")


def chains_for(symbols: int, *, sets: bool) -> tuple[Chain, ...]:
    """The chains of an alphabet: contexts of 4 units, of 10 where it has at most eight symbols.

    The chain that reads both sides, or the whole set, is the first.
    """
    if sets:
        return (
            Chain("together", (1, 2), "together"),
            Chain("before", (-1,), "before"),
            Chain("after", (1,), "after"),
        )
    depth = 10 if symbols <= FEW_SYMBOLS else 4
    near = range(1, depth + 1)
    sides = tuple(sign * distance for distance in range(1, depth // 2 + 1) for sign in (-1, 1))
    return (
        Chain("both sides", sides),
        Chain("before", tuple(-distance for distance in near)),
        Chain("after", tuple(near)),
    )


# Units by name


@dataclass(frozen=True, eq=False)
class Named:
    """N units of several sequences, end to end.

    Args:
        name: (N,) hash of each unit's symbols.
        tokens: (N,) how many they are; 0 for a unit of special tokens, which is context and nothing else.
        spelled: (N,) log2 of the product of their unigram probabilities.
        sequence: (N,) number of its sequence, ascending. record: (N,) of its record.
        position: (N,) ascending within a sequence, equal within a set; None where nothing is a set.
    """

    name: Names
    tokens: Longs
    spelled: Doubles
    sequence: Longs
    record: Longs
    position: Longs | None

    def __len__(self) -> int:
        return len(self.name)


def named(
    rule: Units,
    encodings: Iterable[Encoding],
    log2_unigram: Doubles,
    records: Sequence[int] | None = None,
    *,
    mirrored: bool = False,
) -> Named:
    """The units of sequences.

    Args:
        rule: says what a unit is.
        log2_unigram: (K,) of each symbol.
        records: for each sequence the number of its record; None where each is one.
        mirrored: also the other reading of each, where units have one (the other strand of DNA).
    """
    empty = np.zeros(0, dtype=np.int64)
    sizes, symbols, positions, sets = [empty], [empty], [empty], False
    for encoding in encodings:
        first, flat = rule.symbols_of(encoding)
        sizes.append(np.diff(first))
        symbols.append(flat)
        if encoding.positions is not None:
            sets = True
            positions.append(encoding.positions[rule.places(encoding)].astype(np.int64))
    owners = np.arange(len(sizes) - 1) if records is None else np.asarray(records, dtype=np.int64)
    if mirrored and rule.complement is not None:
        symbols += [rule.complement[one[::-1]].astype(np.int64) for one in symbols[1:]]
        sizes += [one[::-1] for one in sizes[1:]]
        owners = np.tile(owners, 2)
    counts = [len(one) for one in sizes[1:]]
    tokens, flat = np.concatenate(sizes), np.concatenate(symbols)
    place = ranges(np.zeros_like(tokens), tokens)
    letters = _mixed(flat.astype(np.uint64) + (place.astype(np.uint64) << np.uint64(40)))
    unit = np.repeat(np.arange(len(tokens)), tokens)
    return Named(
        name=_mixed(_sums(tokens, letters)),
        tokens=tokens,
        spelled=np.bincount(unit, weights=log2_unigram[flat], minlength=len(tokens)).astype(np.float64),
        sequence=np.repeat(np.arange(len(counts)), counts),
        record=np.repeat(owners, counts),
        position=np.concatenate(positions) if sets else None,
    )


def names_of(symbols: Longs) -> Names:
    """(K,) the names of units of one symbol each."""
    return _mixed(_mixed(symbols.astype(np.uint64)))


def _sums(sizes: Longs, names: Names) -> Names:
    """The sum of each of consecutive stretches of these sizes, modulo 2^64; 0 for an empty one."""
    upto = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(names, dtype=np.uint64)])
    ends = np.cumsum(sizes)
    return np.asarray(upto[ends] - upto[ends - sizes])


def _mixed(values: Names) -> Names:
    """A permutation of 64-bit numbers (SplitMix64)."""
    return mixed(values + _EDGE)


def _pair(first: Names, second: Names) -> Names:
    """A name for two names in this order."""
    return _mixed(first * np.uint64(3) + second)


# Contexts


def contexts(units: Named, chain: Chain, draws: int = _ASK_DRAWS) -> Iterator[Names]:
    """(D, N) the name of each unit's context of 0, 1, ... places; D is 1 but for sets."""
    sets = chain.where != "sequence"
    context = np.broadcast_to(_mixed(units.tokens.astype(np.uint64)), (draws if sets else 1, len(units)))
    yield context
    for number, place in enumerate(chain.places):
        if sets:
            near = _drawn(units, chain, number, draws)
        else:
            at, inside = _beside(units, place)
            near = np.where(inside, units.name[at], _EDGE)[None]
        context = _pair(context, near)
        yield context


def _beside(units: Named, place: int) -> tuple[Longs, Bools]:
    """(N,) the index of the unit at a distance from each; (N,) whether its sequence has one there."""
    at = np.arange(len(units)) + place
    inside = (at >= 0) & (at < len(units))
    at = np.where(inside, at, 0)
    return at, inside & (units.sequence[at] == units.sequence)


def _drawn(units: Named, chain: Chain, number: int, draws: int) -> Names:
    """(D, N) a member of the set that the chain reads, for each unit and draw; never the unit itself.

    What is drawn depends on the sequence's other units alone: not on their order or on other sequences, and
    not on the unit that is asked, or P would not sum to 1.
    """
    assert units.position is not None
    first = np.ones(len(units), dtype=np.bool_)
    first[1:] = (np.diff(units.sequence) != 0) | (np.diff(units.position) != 0)
    group = np.cumsum(first) - 1
    start = np.flatnonzero(first)
    size = np.diff(np.append(start, len(units)))
    shift = {"together": 0, "before": -1, "after": 1}[chain.where]
    other = group + shift
    there = (other >= 0) & (other < len(start))
    other = np.where(there, other, 0)
    there &= units.sequence[start[other]] == units.sequence
    count = np.where(there, size[other] - (shift == 0), 0)
    # A sum of names does not know their order, nor does the place of a name among those of its set.
    rest = _sums(np.bincount(units.sequence), units.name)[units.sequence] - units.name
    draw = np.arange(draws, dtype=np.uint64)[:, None] + np.uint64(draws * number)
    chance = _mixed(_pair(rest[None], draw)) >> np.uint64(11)
    pick = (chance.astype(np.float64) / 2**53 * count).astype(np.int64)
    order = np.lexsort((units.name, group))
    if shift == 0:
        rank = np.empty(len(units), dtype=np.int64)
        rank[order] = np.arange(len(units))
        pick = pick + (pick >= rank - start[group])
    return np.where(count > 0, units.name[order[np.where(count > 0, start[other] + pick, 0)]], _EDGE)


class Found(NamedTuple):
    """Counts of M places and contexts of one length: each (..., N).

    seen: of the unit in the context. total: of the context. kept, types: units counted in the context that
    were kept, and how many different ones.
    """

    seen: Doubles
    total: Doubles
    kept: Doubles
    types: Doubles


@dataclass(frozen=True, eq=False)
class Level:
    """Contexts of one length and what stood in them, as sorted arrays of names.

    Args:
        contexts: (C,) names; totals, kept, types: (C,) see `Found`.
        events: (E,) names of a context with a unit; counts: (E,).
    """

    contexts: Names
    totals: NDArray[np.uint32]
    kept: NDArray[np.uint32]
    types: NDArray[np.uint32]
    events: Names
    counts: NDArray[np.uint32]

    def __post_init__(self) -> None:
        sizes = {len(one) for one in (self.contexts, self.totals, self.kept, self.types)}
        names = {one.dtype for one in (self.contexts, self.events)} == {np.dtype(np.uint64)}
        counts = {one.dtype for one in (self.totals, self.kept, self.types, self.counts)}
        if len(sizes) > 1 or len(self.events) != len(self.counts) or not names or counts != {_COUNT}:
            raise ValueError("names and counts that do not belong together")

    @property
    def bytes(self) -> int:
        return sum(getattr(self, one.name).nbytes for one in fields(self))

    def find(self, context: Names, unit: Names) -> Found:
        """The counts of units in contexts, of any one shape; 0 where never seen."""
        if not len(self.contexts):
            nothing = np.zeros(np.broadcast_shapes(context.shape, unit.shape))
            return Found(nothing, nothing, nothing, nothing)
        at = _place(self.contexts, context)
        event = _place(self.events, _pair(context, unit))

        def of(values: NDArray[np.uint32], place: Longs) -> Doubles:
            return np.where(place < 0, 0.0, values[place]).astype(np.float64)

        return Found(of(self.counts, event), of(self.totals, at), of(self.kept, at), of(self.types, at))


def _place(names: Names, wanted: Names) -> Longs:
    """The index of each wanted name, -1 where it is not there."""
    place = np.minimum(np.searchsorted(names, wanted), len(names) - 1)
    return np.where(names[place] == wanted, place, -1)


def count(units: Named, chain: Chain, *, budget: int, least: int = 1) -> list[Level]:
    """Count a chain over training units.

    Args:
        units: of the training split; their records are the subjects.
        budget: bytes that the levels may take. Each gets an equal part, and what shorter ones leave; of a
            level that needs more, the rarest units go.
        least: subjects (records) that what is kept must have been seen in.

    Returns:
        A level for each length, from 0 on.
    """
    inside = np.flatnonzero(units.tokens > 0)
    levels: list[Level] = []
    left, lengths = budget, len(chain.places) + 1
    draws = FIT_DRAWS if chain.where != "sequence" else 1
    for length, context in enumerate(contexts(units, chain, draws)):
        some = context[:, inside].ravel()
        unit, record = np.tile(units.name[inside], draws), np.tile(units.record[inside], draws)
        made = _level(some, unit, record, left // (lengths - length), least)
        left -= made.bytes
        levels.append(made)
    return levels


def _level(context: Names, unit: Names, record: Longs, budget: int, least: int) -> Level:
    pairs = _pair(context, unit)
    events, first, counts = np.unique(pairs, return_index=True, return_counts=True)
    names, totals = np.unique(context, return_counts=True)
    able = np.ones(len(events), dtype=np.bool_)
    if least > 1:
        known = names[_subjects(names, context, record) >= least]
        able = (_subjects(events, pairs, record) >= least) & np.isin(context[first], known)
    # One event takes 12 bytes, its context 20: the rarest units go until all fit.
    rarest, most = 1, budget // 12
    if len(counts) > most:
        rarest = int(np.partition(counts, len(counts) - most - 1)[len(counts) - most - 1]) + 1
    while True:
        chosen = np.flatnonzero(able & (counts >= rarest))
        used, owner = np.unique(context[first[chosen]], return_inverse=True)
        if 12 * len(chosen) + 20 * len(used) <= budget:
            break
        rarest += 1
    weights = counts[chosen]
    return Level(
        contexts=used,
        totals=totals[np.searchsorted(names, used)].astype(np.uint32),
        kept=np.bincount(owner, weights=weights, minlength=len(used)).astype(np.uint32),
        types=np.bincount(owner, minlength=len(used)).astype(np.uint32),
        events=events[chosen],
        counts=weights.astype(np.uint32),
    )


def _subjects(names: Names, every: Names, record: Longs) -> Longs:
    """(E,) in how many different records each name occurs."""
    order = np.lexsort((record, every))
    name, owner = every[order], record[order]
    new = np.ones(len(name), dtype=np.bool_)
    new[1:] = (np.diff(owner) != 0) | (name[1:] != name[:-1])
    return np.bincount(np.searchsorted(names, name[new]), minlength=len(names))


def cached(units: Named, chain: Chain) -> list[Found]:
    """What the other units of each unit's record say of it, for contexts of 0, 1, ... places: (1, N) each.

    Neither the unit itself is counted nor what has it as context, which would say what it is.
    """
    found = []
    lengths = CACHED if chain.where == "sequence" else 1
    record, some = units.record.astype(np.uint64), units.tokens > 0
    for length, context in zip(range(lengths), contexts(units, chain, 1), strict=False):
        inside = _pair(context[0], record)
        event = _pair(inside, units.name)
        total, seen = _times(inside, some), _times(event, some)
        for place in chain.places[:length]:
            # The unit that has this one at `place` of its context.
            at, there = _beside(units, -place)
            there &= some[at]
            total -= there & (inside[at] == inside)
            seen -= there & (event[at] == event)
        context_total = total[None].astype(np.float64)
        seen_there = seen[None].astype(np.float64)
        found.append(Found(seen_there, context_total, context_total, np.zeros_like(context_total)))
    return found


def _times(names: Names, some: Bools) -> Longs:
    """How often each name occurs elsewhere, where `some` is true."""
    _, place = np.unique(names, return_inverse=True)
    times = np.bincount(place[some], minlength=int(place.max(initial=-1)) + 1)
    return times[place] - some
