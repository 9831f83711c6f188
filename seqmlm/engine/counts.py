"""Counts of units next to their neighbours: n-grams read in any direction, in bounded memory.

A chain is a list of places around a unit, nearest first. For example, (-1, -2, -3, -4) is a forward n-gram
and (1, 2, 3, 4) a backward n-gram. The chain (-1, 1, -2, 2) reads both sides. Let h_k be the units at the
first k places of a chain, and n the number of tokens of the unit. With counts c over training units of n
tokens,

    P_k(u | h_k, n) = (max(c(h_k u) - d_k, 0) + r_k P_{k-1}(u | h_{k-1}, n)) / (c(h_k) + a_k)
    r_k = a_k + d_k t(h_k) + the count in c(h_k) of pruned units       P_{-1}(u | n) = product of the unigram

where t(h) is the number of different units kept after h. This is the predictive rule of the hierarchical
Pitman-Yor process (Teh 2006). Counts among the other units of the same record are added in the same way,
with d = 0. Sources are Kuhn and De Mori (1990) and, for code, Tu et al. (2014). Every P_k sums to 1 over all
strings of n ordinary tokens.

Units at the same position form a set, such as the events of a visit, and their order is never used. The
places of a chain are then other members of the set, or members of the set before or after. They are drawn
several times, and P is the average over these draws.

Units and contexts are stored as 64-bit hashes in sorted arrays. They take a tenth of the memory of
dictionaries, and no text can be read from them. The cost: two of 10^7 hashes are equal with probability
3e-6.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.randomness import splitmix64
from seqmlm.engine.types import Bools, Encoding, Longs, ranges
from seqmlm.engine.units import Units

Doubles = NDArray[np.float64]
Hashes = NDArray[np.uint64]
Where = Literal["sequence", "together", "before", "after"]

FIT_DRAWS, _ASK_DRAWS = 4, 16
RECORD_LENGTHS = 3  # number of context lengths that are counted in the record, including length 0
FEW_SYMBOLS = 8  # an alphabet of at most this size uses long contexts and no counts from the record
_COUNT = np.dtype(np.uint32)
_EDGE = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Chain:
    """The places of the context that a chain reads around a unit.

    Args:
        name: name of the chain.
        places: distances in units, nearest first. For a set, only their number matters.
        where: whether the context is in the sequence, or in which set.

    Raises:
        ValueError: `where` is unknown, or a place is 0.
    """

    name: str
    places: tuple[int, ...]
    where: Where = "sequence"

    def __post_init__(self) -> None:
        if self.where not in get_args(Where) or 0 in self.places:
            raise ValueError(f"the chain {self.name} has unknown places")


def chains_for(symbols: int, *, sets: bool) -> tuple[Chain, ...]:
    """The chains for an alphabet: contexts of 4 units, or of 10 if it has at most eight symbols.

    The first chain reads both sides or, for sets, the whole set.

    Args:
        symbols: number of symbols in the alphabet.
        sets: whether units at the same position form sets.
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


# Units and their hashes


@dataclass(frozen=True, eq=False)
class UnitHashes:
    """N units of several sequences, one sequence after another.

    Args:
        hashes: (N,) hash of the symbols of each unit.
        tokens: (N,) number of symbols of each unit; 0 for a unit of special tokens, which is used only as
            context.
        log2_unigram: (N,) log2 of the product of the unigram probabilities of the symbols.
        sequence: (N,) number of the sequence, ascending.
        record: (N,) number of the record.
        position: (N,) position, ascending within a sequence and equal within a set; None if there are no
            sets.
    """

    hashes: Hashes
    tokens: Longs
    log2_unigram: Doubles
    sequence: Longs
    record: Longs
    position: Longs | None

    def __len__(self) -> int:
        return len(self.hashes)


def hash_units(
    rule: Units,
    encodings: Iterable[Encoding],
    log2_unigram: Doubles,
    records: Sequence[int] | None = None,
    *,
    mirrored: bool = False,
) -> UnitHashes:
    """The units of sequences as hashes.

    Args:
        rule: defines what a unit is.
        encodings: the sequences.
        log2_unigram: (K,) log2 of the unigram probability of each symbol.
        records: number of the record for each sequence; None if each sequence is its own record.
        mirrored: whether to add the other reading of each sequence, if units have one (the other strand of
            DNA).
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
    if mirrored and rule.facts.strands is not None:
        complement = rule.facts.strands.complement
        symbols += [complement[sequence[::-1]].astype(np.int64) for sequence in symbols[1:]]
        sizes += [sequence[::-1] for sequence in sizes[1:]]
        owners = np.tile(owners, 2)
    counts = [len(sequence) for sequence in sizes[1:]]
    tokens, flat = np.concatenate(sizes), np.concatenate(symbols)
    place = ranges(np.zeros_like(tokens), tokens)
    letters = _scramble(flat.astype(np.uint64) + (place.astype(np.uint64) << np.uint64(40)))
    unit = np.repeat(np.arange(len(tokens)), tokens)
    return UnitHashes(
        hashes=_scramble(_sums(tokens, letters)),
        tokens=tokens,
        log2_unigram=np.bincount(unit, weights=log2_unigram[flat], minlength=len(tokens)).astype(np.float64),
        sequence=np.repeat(np.arange(len(counts)), counts),
        record=np.repeat(owners, counts),
        position=np.concatenate(positions) if sets else None,
    )


def symbol_hashes(symbols: Longs) -> Hashes:
    """(K,) hashes of units that consist of one symbol each."""
    return _scramble(_scramble(symbols.astype(np.uint64)))


def _sums(sizes: Longs, names: Hashes) -> Hashes:
    """The sum of each of consecutive ranges with the given sizes, modulo 2^64; 0 for an empty range."""
    upto = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(names, dtype=np.uint64)])
    ends = np.cumsum(sizes)
    return np.asarray(upto[ends] - upto[ends - sizes])


def _scramble(values: Hashes) -> Hashes:
    """A permutation of the 64-bit numbers (SplitMix64)."""
    return splitmix64(values + _EDGE)


def _pair(first: Hashes, second: Hashes) -> Hashes:
    """The hash of an ordered pair of hashes."""
    return _scramble(first * np.uint64(3) + second)


# Contexts


def contexts(units: UnitHashes, chain: Chain, draws: int = _ASK_DRAWS) -> Iterator[Hashes]:
    """(D, N) hash of the context of each unit, for contexts of 0, 1, ... places.

    D is the number of draws for sets, and 1 otherwise.
    """
    sets = chain.where != "sequence"
    context = np.broadcast_to(_scramble(units.tokens.astype(np.uint64)), (draws if sets else 1, len(units)))
    yield context
    for number, place in enumerate(chain.places):
        if sets:
            neighbour = _set_members(units, chain, number, draws)
        else:
            index, inside = _neighbours(units, place)
            neighbour = np.where(inside, units.hashes[index], _EDGE)[None]
        context = _pair(context, neighbour)
        yield context


def _neighbours(units: UnitHashes, place: int) -> tuple[Longs, Bools]:
    """The unit at distance `place` from each unit.

    Returns:
        (N,) index of that unit; (N,) whether the sequence has a unit there.
    """
    index = np.arange(len(units)) + place
    inside = (index >= 0) & (index < len(units))
    index = np.where(inside, index, 0)
    return index, inside & (units.sequence[index] == units.sequence)


def _set_members(units: UnitHashes, chain: Chain, number: int, draws: int) -> Hashes:
    """(D, N) a drawn member of the set that the chain reads, for each unit and draw; never the unit itself.

    The draw depends only on the other units of the sequence. It does not depend on their order, on other
    sequences, or on the unit whose probability is computed. Otherwise P would not sum to 1.
    """
    assert units.position is not None
    first = np.ones(len(units), dtype=np.bool_)
    first[1:] = (np.diff(units.sequence) != 0) | (np.diff(units.position) != 0)
    group = np.cumsum(first) - 1
    start = np.flatnonzero(first)
    size = np.diff(np.append(start, len(units)))
    shift = {"together": 0, "before": -1, "after": 1}[chain.where]
    source_set = group + shift
    exists = (source_set >= 0) & (source_set < len(start))
    source_set = np.where(exists, source_set, 0)
    exists &= units.sequence[start[source_set]] == units.sequence
    count = np.where(exists, size[source_set] - (shift == 0), 0)
    # Neither the sum of hashes nor the rank of a hash in its set depends on the order of the units.
    other_hashes = _sums(np.bincount(units.sequence), units.hashes)[units.sequence] - units.hashes
    draw_number = np.arange(draws, dtype=np.uint64)[:, None] + np.uint64(draws * number)
    random_bits = _scramble(_pair(other_hashes[None], draw_number)) >> np.uint64(11)
    pick = (random_bits.astype(np.float64) / 2**53 * count).astype(np.int64)
    order = np.lexsort((units.hashes, group))
    if shift == 0:
        rank = np.empty(len(units), dtype=np.int64)
        rank[order] = np.arange(len(units))
        pick = pick + (pick >= rank - start[group])
    return np.where(count > 0, units.hashes[order[np.where(count > 0, start[source_set] + pick, 0)]], _EDGE)


class Counts(NamedTuple):
    """Counts of units in contexts of one length, each (..., N).

    Args:
        counts: count of the unit in the context.
        totals: count of the context.
        kept: number of units counted in the context that were kept after pruning.
        types: number of different units kept in the context.
    """

    counts: Doubles
    totals: Doubles
    kept: Doubles
    types: Doubles


@dataclass(frozen=True, eq=False)
class Level:
    """Contexts of one length and the units in them, as sorted arrays of hashes.

    Args:
        contexts: (C,) hashes of the contexts, ascending.
        totals, kept, types: (C,) see `Counts`.
        events: (E,) hashes of pairs of a context and a unit, ascending.
        counts: (E,) count of each pair.

    Raises:
        ValueError: the arrays have different lengths or wrong types.
    """

    contexts: Hashes
    totals: NDArray[np.uint32]
    kept: NDArray[np.uint32]
    types: NDArray[np.uint32]
    events: Hashes
    counts: NDArray[np.uint32]

    def __post_init__(self) -> None:
        sizes = {len(array) for array in (self.contexts, self.totals, self.kept, self.types)}
        names = {array.dtype for array in (self.contexts, self.events)} == {np.dtype(np.uint64)}
        counts = {array.dtype for array in (self.totals, self.kept, self.types, self.counts)}
        if len(sizes) > 1 or len(self.events) != len(self.counts) or not names or counts != {_COUNT}:
            raise ValueError("hashes and counts do not belong together")

    @property
    def bytes(self) -> int:
        """Memory of the arrays, in bytes."""
        return sum(getattr(self, column.name).nbytes for column in fields(self))

    def find(self, context: Hashes, unit: Hashes) -> Counts:
        """The counts of units in contexts, 0 for those that do not occur in the training data.

        Args:
            context, unit: hashes, of shapes that broadcast to the shape of the result.
        """
        if not len(self.contexts):
            zeros = np.zeros(np.broadcast_shapes(context.shape, unit.shape))
            return Counts(zeros, zeros, zeros, zeros)
        row = _index_of(self.contexts, context)
        event = _index_of(self.events, _pair(context, unit))

        def get(values: NDArray[np.uint32], place: Longs) -> Doubles:
            return np.where(place < 0, 0.0, values[place]).astype(np.float64)

        return Counts(
            get(self.counts, event), get(self.totals, row), get(self.kept, row), get(self.types, row)
        )


def _index_of(hashes: Hashes, keys: Hashes) -> Longs:
    """The index of each key in the sorted hashes, or -1 if it is missing."""
    place = np.minimum(np.searchsorted(hashes, keys), len(hashes) - 1)
    return np.where(hashes[place] == keys, place, -1)


def count(units: UnitHashes, chain: Chain, *, budget: int, min_records: int = 1) -> list[Level]:
    """Count a chain over training units.

    Args:
        units: units of the training split.
        chain: the chain to count.
        budget: bytes for all levels. Each level gets an equal part, plus the rest that shorter levels did
            not use. If a level needs more, its rarest units are dropped.
        min_records: number of records in which a context or unit must occur to be kept.

    Returns:
        One level for each context length, from 0 on.
    """
    inside = np.flatnonzero(units.tokens > 0)
    levels: list[Level] = []
    bytes_left, lengths = budget, len(chain.places) + 1
    draws = FIT_DRAWS if chain.where != "sequence" else 1
    for length, context in enumerate(contexts(units, chain, draws)):
        flat_contexts = context[:, inside].ravel()
        unit, record = np.tile(units.hashes[inside], draws), np.tile(units.record[inside], draws)
        level = _level(flat_contexts, unit, record, bytes_left // (lengths - length), min_records)
        bytes_left -= level.bytes
        levels.append(level)
    return levels


def _level(context: Hashes, unit: Hashes, record: Longs, budget: int, min_records: int) -> Level:
    pairs = _pair(context, unit)
    events, first, counts = np.unique(pairs, return_index=True, return_counts=True)
    names, totals = np.unique(context, return_counts=True)
    is_allowed = np.ones(len(events), dtype=np.bool_)
    if min_records > 1:
        frequent_contexts = names[_records_with(names, context, record) >= min_records]
        is_allowed = np.isin(context[first], frequent_contexts)
        is_allowed &= _records_with(events, pairs, record) >= min_records
    # An event takes 12 bytes and a context 20. The rarest units are dropped until everything fits.
    rarest, max_events = 1, budget // 12
    if len(counts) > max_events:
        rarest = int(np.partition(counts, len(counts) - max_events - 1)[len(counts) - max_events - 1]) + 1
    while True:
        chosen = np.flatnonzero(is_allowed & (counts >= rarest))
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


def _records_with(names: Hashes, occurrences: Hashes, record: Longs) -> Longs:
    """(E,) number of different records in which each hash occurs."""
    order = np.lexsort((record, occurrences))
    name, owner = occurrences[order], record[order]
    is_new = np.ones(len(name), dtype=np.bool_)
    is_new[1:] = (np.diff(owner) != 0) | (name[1:] != name[:-1])
    return np.bincount(np.searchsorted(names, name[is_new]), minlength=len(names))


def record_counts(units: UnitHashes, chain: Chain) -> list[Counts]:
    """Counts among the other units of each unit's record, for contexts of 0, 1, ... places: (1, N) each.

    The unit itself is not counted. Units that have it in their context are not counted either, because they
    would reveal it.
    """
    by_length = []
    lengths = RECORD_LENGTHS if chain.where == "sequence" else 1
    record, has_tokens = units.record.astype(np.uint64), units.tokens > 0
    for length, context in zip(range(lengths), contexts(units, chain, 1), strict=False):
        context_names = _pair(context[0], record)
        event_names = _pair(context_names, units.hashes)
        total = _occurrences_elsewhere(context_names, has_tokens)
        unit_counts = _occurrences_elsewhere(event_names, has_tokens)
        for place in chain.places[:length]:
            # The unit whose context has this unit at `place`.
            index, exists = _neighbours(units, -place)
            exists &= has_tokens[index]
            total -= exists & (context_names[index] == context_names)
            unit_counts -= exists & (event_names[index] == event_names)
        context_total = total[None].astype(np.float64)
        unit_count = unit_counts[None].astype(np.float64)
        by_length.append(Counts(unit_count, context_total, context_total, np.zeros_like(context_total)))
    return by_length


def _occurrences_elsewhere(names: Hashes, is_counted: Bools) -> Longs:
    """Number of other places where each hash occurs and `is_counted` is True."""
    _, place = np.unique(names, return_inverse=True)
    times = np.bincount(place[is_counted], minlength=int(place.max(initial=-1)) + 1)
    return times[place] - is_counted
