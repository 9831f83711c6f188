"""Rules that hide units behind [MASK] and read their log-probabilities from the answers of the model.

Bits per unit are comparable between tokenizers only if a unit means the same for all of them. In most
domains a unit is a group of tokens, which is what `Units` implements. If tokens are not the symbols that
units are spelled in, the tokenizer supplies another rule with the same methods. Evaluation and scoring use
only these methods:

    query = rule.ask(encoding, hidden=np.array([3, 4]), asked=np.array([3]))
    [answer] = conditionals.ask([query], rule.needs(want))
    log_probs = rule.unit_log_probs(query, answer, want)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.holes import Gapped, resize_gaps, split_units, tokens_at
from seqmlm.engine.masking.base import number_units, uniform_units
from seqmlm.engine.query import Answer, Query
from seqmlm.engine.reductions import Reduction, TargetLogProb, union
from seqmlm.engine.types import Bools, Encoding, Ids, Longs, TokenSpace, ranges, running_totals
from seqmlm.engine.windows import windows
from seqmlm.errors import UsageError

Doubles = NDArray[np.float64]
Kind = Literal["exact", "partition", "one-pass"]

# Largest number of tokens in the masked copies of one query; it bounds the memory for very long sequences.
QUERY_TOKENS = 1 << 20

_PARTITION_SEED = 0


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode of scoring: how many units are hidden at a time.

    Args:
        kind: "exact" predicts each token with itself and the later tokens of its unit hidden (Kauf and
            Ivanova 2023). For units of one token this is the original metric (Salazar et al. 2020). The kind
            "partition" hides several units together, each exactly once in `parts` passes. The kind
            "one-pass" hides nothing.
        parts: number of passes of a partition, at least 1; 1 for other kinds.

    >>> str(Mode.parse("partition:8"))
    'partition:8'
    """

    kind: Kind
    parts: int = 1

    @property
    def asks_windows(self) -> bool:
        """Whether one pass scores many units of a window, so that a few units cost as much as all."""
        return self.kind != "exact"

    @classmethod
    def parse(cls, text: str) -> Mode:
        """The mode for a value of `--mode`.

        Raises:
            UsageError: the mode is unknown, or a partition has no number of passes.
        """
        kind, _, parts = text.partition(":")
        if kind == "partition" and parts.isdecimal() and int(parts) >= 1:
            return cls("partition", int(parts))
        for mode in (EXACT, ONE_PASS):
            if text == mode.kind:
                return mode
        raise UsageError(f"unknown mode {text!r}; known: exact, partition:K (K passes), one-pass")

    def __str__(self) -> str:
        return f"{self.kind}:{self.parts}" if self.kind == "partition" else self.kind


EXACT = Mode("exact")
ONE_PASS = Mode("one-pass")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitLogProbs:
    """Log-probabilities of units in the answer to one query.

    A unit may have several entries, which are added up.

    Args:
        position: (E,) a token that shows the unit.
        unit: (E,) number of the unit in its sequence, from 0 in order of appearance.
        symbol: (E,) the observed symbol, in the alphabet of `Units.frequencies`.
        log_probs: (E,) natural log-probability of the observed symbol.
        variant: (E,) variant of the query in which the unit was predicted.
        tokens: (E,) fraction of a token that the entry represents, or None for 1.
        values: the other requested values, (E, ...) as in `Answer`, over the alphabet of symbols, by name.
    """

    position: Ids
    unit: Longs
    symbol: Longs
    log_probs: Doubles
    variant: Longs
    tokens: Doubles | None = None
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def totals(self) -> tuple[Longs, Longs, Doubles]:
        """Variants (U,) and units (U,), ascending, and (U,) the sum of their log-probabilities in nats."""
        width = int(self.unit.max(initial=0)) + 1
        pairs, place = np.unique(self.variant * width + self.unit, return_inverse=True)
        sums = np.bincount(place, weights=self.log_probs, minlength=len(pairs))
        return pairs // width, pairs % width, sums.astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Strands:
    """The two directions in which a sequence can be read, such as the strands of DNA.

    Args:
        complement: (K,) symbol on the other strand for each symbol; for units of one symbol.
        mirrored: function that returns the other strand of a sequence, with its units in the opposite order.
            It returns None if the units would not be the same.
    """

    complement: Ids
    mirrored: Callable[[Encoding], Encoding | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitFacts:
    """Facts about units that a tokenizer declares.

    Args:
        unfamiliar: ids of units outside the vocabulary. A sequence with only these carries no information.
        names: spelling of each symbol, or None if the symbols are tokens.
        one_pass: whether visible tokens can be scored, because no other token shows the same content.
        augment: function that makes an equivalent form of a training sequence, of equal length; None for
            none.
        strands: the two directions of a sequence; None if it has only one.
        masking: facts about the vocabulary that maskers may need, by the name of their keyword parameter. A
            masker with a parameter `k` gets `masking["k"]` unless the masking options set it.
    """

    unfamiliar: Sequence[int]
    names: Sequence[str] | None = None
    one_pass: bool = True
    augment: Callable[[Encoding, np.random.Generator], Encoding] | None = None
    strands: Strands | None = None
    masking: Mapping[str, Any] = field(default_factory=dict)


class Units:
    """Units that are groups of tokens: words, residues, lexer tokens, visits.

    Args:
        space: the vocabulary.
        facts: facts about the units; None if only the unknown token is unfamiliar.
    """

    def __init__(self, space: TokenSpace, facts: UnitFacts | None = None) -> None:
        self.space = space
        self.facts = UnitFacts(unfamiliar=space.unknown_ids) if facts is None else facts

    def windows(self, encoding: Encoding, max_length: int) -> list[Encoding]:
        """Windows of a sequence for training, with at most `max_length` tokens each."""
        return windows(encoding, self.space, max_length)

    def masker_problem(self, masker: type[Any]) -> str | None:
        """The reason why units that a masker hides would still be visible, with the remedy, or None."""
        return None

    @property
    def symbols(self) -> int:
        """K, the size of the alphabet that units are spelled in: their own, or the vocabulary."""
        return self.space.size if self.facts.names is None else len(self.facts.names)

    def frequencies(self, counts: NDArray[Any]) -> Doubles:
        """(K,) unigram probabilities of the symbols, with 1 added to each count; 0 for special symbols.

        Args:
            counts: (V,) number of occurrences of each token in the training split.

        Raises:
            UsageError: `counts` does not fit the vocabulary.
        """
        if counts.shape != (self.space.size,):
            raise UsageError(f"token counts have shape {counts.shape} for a vocabulary of {self.space.size}")
        smoothed: Doubles = np.where(self.space.is_special, 0.0, counts.astype(np.float64) + 1)
        smoothed /= smoothed.sum()
        return smoothed

    def numbers(self, encoding: Encoding) -> Longs:
        """(N,) number of each unit of a sequence or window in the whole sequence, as in `Encoding.groups`."""
        return encoding.groups[self.places(encoding)].astype(np.int64)

    def spans(self, encoding: Encoding) -> Longs:
        """(N, 2) start and end of each unit in the raw text, end excluded."""
        numbers = unit_numbers(encoding)
        inside = numbers >= 0
        unit_spans = np.zeros((int(numbers.max(initial=-1)) + 1, 2), dtype=np.int64)
        if encoding.spans is None:
            return unit_spans
        unit_spans[:, 0] = np.iinfo(np.int64).max
        np.minimum.at(unit_spans[:, 0], numbers[inside], encoding.spans[inside, 0])
        np.maximum.at(unit_spans[:, 1], numbers[inside], encoding.spans[inside, 1])
        return unit_spans

    def symbols_of(self, encoding: Encoding) -> tuple[Longs, Longs]:
        """The symbols of each of N units.

        Returns:
            (N + 1,) start of each unit, and (M,) the symbols of all units in order.
        """
        first, tokens = self._tokens(encoding)
        return first.astype(np.int64), encoding.ids[tokens].astype(np.int64)

    def count(self, ids: Ids, groups: Ids, offsets: Ids) -> int:
        """Number of units in concatenated sequences.

        A unit is a run of equal group numbers. Special tokens (-1) are not counted.

        Args:
            ids, groups: (T,) ids and groups of all tokens.
            offsets: (N + 1,) start of each sequence, and the total.
        """
        starts = np.ones(len(groups), dtype=np.bool_)
        starts[1:] = groups[1:] != groups[:-1]
        starts[offsets[:-1][np.diff(offsets) > 0]] = True
        return int(np.count_nonzero(starts & (groups >= 0)))

    def needs(self, want: Collection[Reduction] = ()) -> tuple[Reduction, ...]:
        """The reductions to request from the model, so that `unit_log_probs` can return `want`."""
        return union(want, [TargetLogProb()])

    def ask(
        self,
        encoding: Encoding,
        hidden: Longs,
        asked: Longs,
        *,
        hidden_in: Longs | None = None,
        asked_in: Longs | None = None,
    ) -> Query:
        """The query for selected units while these and other units are hidden.

        A unit is hidden together with every token that shows it. Tokens of special ids stay visible. For a
        queried unit that is not hidden, the model predicts tokens that it sees.

        Args:
            encoding: the sequence, or a window.
            hidden: (M,) indices of the hidden units among all units of `encoding`, in the order of
                `numbers`.
            asked: (A,) indices of the queried units, at least one.
            hidden_in, asked_in: variant of each hidden and queried unit, from 0 on, as in `Query`; None for
                one variant.

        Returns:
            One query, for `unit_log_probs`. A queried unit without an ordinary token has no entry there.

        Raises:
            UsageError: a unit does not exist, nothing can be queried, or a unit cannot be queried while it
                is visible.
        """
        if (hidden_in is None) is not (asked_in is None):
            raise UsageError("hidden_in, asked_in: set both or neither")
        first, tokens = self._tokens(encoding)
        masked_tokens, masked_tokens_in = unit_tokens(first, tokens, hidden, hidden_in)
        asked_tokens, asked_tokens_in = unit_tokens(first, tokens, asked, asked_in)
        if not len(asked_tokens):
            raise UsageError("none of the queried units ('asked') has a token that can be predicted")
        return Query(
            encoding=encoding,
            masked=masked_tokens.astype(np.int32),
            asked=asked_tokens.astype(np.int32),
            masked_in=None if hidden_in is None else masked_tokens_in.astype(np.int32),
            asked_in=None if asked_in is None else asked_tokens_in.astype(np.int32),
        )

    def open_gaps(
        self, encoding: Encoding, spans: Sequence[tuple[int, int]], counts: Sequence[int] | None = None
    ) -> Gapped:
        """A sequence with gaps.

        Args:
            encoding: the sequence, with spans; every gap contains text.
            spans: (start, end) characters of each gap in the raw text, end excluded, in order and without
                overlap.
            counts: new number of tokens of each gap; None keeps the present tokens.

        Raises:
            UsageError: a gap contains no token, or contains a token that is not in the vocabulary.
        """
        gaps = [tokens_at(encoding, start, end) for start, end in spans]
        empty = next((number for number, tokens in enumerate(gaps, 1) if not len(tokens)), None)
        if empty is not None:
            raise UsageError(f"gap {empty} contains nothing that the model reads as a unit")
        if counts is not None:
            encoding, gaps = resize_gaps(encoding, gaps, counts, self.space)
        elif self.space.is_special[encoding.ids[np.concatenate(gaps)]].any():
            raise UsageError("the text in a gap is not in the vocabulary of the model")
        encoding = split_units(encoding, np.unique(np.concatenate(gaps)))
        numbers = unit_numbers(encoding)
        return Gapped(encoding=encoding, gaps=tuple(numbers[tokens] for tokens in gaps))

    def evaluation_query(self, encoding: Encoding, rate: float, rng: np.random.Generator) -> Query | None:
        """The query for an evaluation: units chosen at `rate`, at least one, with all their tokens masked.

        It is None if the sequence has nothing to hide.
        """
        chosen = np.flatnonzero(uniform_units(encoding, self.space, rate, rng)).astype(np.int32)
        return Query(encoding=encoding, masked=chosen, asked=chosen) if len(chosen) else None

    def questions(
        self, encoding: Encoding, owned: Bools | None = None, mode: Mode = EXACT
    ) -> Iterator[Query]:
        """The queries that score every unit in a mode; together they query each scored position once.

        Args:
            encoding: the sequence, or a window.
            owned: (L,) True at the positions to score, None for all; a window may overlap others.
            mode: how units are hidden. By default, each unit is hidden with the later tokens of its unit.
        """
        if mode.kind == "exact":
            yield from _exact_queries(encoding, self.space, owned)
            return
        numbers = unit_numbers(encoding)
        scored = (numbers >= 0) & ~self.space.is_special[encoding.ids]
        if mode.kind == "one-pass":
            positions = np.flatnonzero(scored if owned is None else scored & owned).astype(np.int32)
            if len(positions):
                yield Query(encoding=encoding, masked=np.zeros(0, dtype=np.int32), asked=positions)
            return
        count = int(numbers.max(initial=-1)) + 1
        passes = partition(count, mode.parts)
        hidden = np.where(scored, passes[numbers] if count else -1, -1)
        yield from _pass_queries(encoding, hidden, owned)

    def unit_log_probs(self, query: Query, answer: Answer, want: Collection[Reduction] = ()) -> UnitLogProbs:
        """Log-probabilities of units from the answer to a query of this rule.

        Args:
            query: a query of this rule.
            answer: its answer, with the reductions of `needs(want)`.
            want: the values to return besides log-probabilities.
        """
        return UnitLogProbs(
            position=query.asked,
            unit=unit_numbers(query.encoding)[query.asked],
            symbol=query.encoding.ids[query.asked].astype(np.int64),
            log_probs=answer.values[TargetLogProb.name].astype(np.float64),
            variant=variants(query),
            values={reduction.name: answer.values[reduction.name] for reduction in want},
        )

    def places(self, encoding: Encoding) -> Longs:
        """(N,) a token that shows each unit: here the first."""
        numbers = unit_numbers(encoding)
        unit_ids, first = np.unique(numbers, return_index=True)
        return first[unit_ids >= 0].astype(np.int64)

    def _tokens(self, encoding: Encoding) -> tuple[Longs, Longs]:
        """The ordinary tokens of N units.

        Returns:
            (N + 1,) start of each unit, and (M,) the tokens of all units in order.
        """
        numbers = np.where(self.space.is_special[encoding.ids], -1, unit_numbers(encoding))
        order = np.argsort(numbers, kind="stable")
        tokens = order[numbers[order] >= 0]
        first = np.searchsorted(numbers[tokens], np.arange(len(self.numbers(encoding)) + 1))
        return first, tokens


def unit_symbols(rule: Units, encoding: Encoding) -> list[tuple[int, ...]]:
    """(N,) the symbols of each unit; () for a unit of special tokens."""
    first, flat = (part.tolist() for part in rule.symbols_of(encoding))
    return [tuple(flat[a:b]) for a, b in pairwise(first)]


def unit_tokens(first: Longs, tokens: Longs, units: Longs, variant: Longs | None) -> tuple[Longs, Longs]:
    """The tokens of selected units, and their variants; a token is listed once for each variant.

    Args:
        first: (N + 1,) start of each unit in `tokens`.
        tokens: tokens of all units in order.
        units: (M,) indices among the N units.
        variant: (M,) variant of each, or None for one variant.

    Returns:
        Tokens (T,) and variants (T,), ordered by variant and token.

    Raises:
        UsageError: a unit does not exist.
    """
    count = len(first) - 1
    if len(units) and not 0 <= units.min() <= units.max() < count:
        raise UsageError(
            f"units {units.min()} to {units.max()} are not all in a sequence of {count} units, from 0 on"
        )
    size = first[units + 1] - first[units]
    inside = np.zeros_like(units) if variant is None else variant
    places = tokens[ranges(first[units], size)]
    width = int(places.max(initial=0)) + 1
    pairs = np.unique(np.repeat(inside, size).astype(np.int64) * width + places)
    return pairs % width, pairs // width


def variants(query: Query) -> Longs:
    """(A,) variant of each queried position."""
    inside = np.zeros(len(query.asked)) if query.asked_in is None else query.asked_in
    return inside.astype(np.int64)


def unit_numbers(encoding: Encoding) -> Longs:
    """(L,) number of the unit of each token, from 0 in order of appearance; -1 outside all units."""
    inside = encoding.groups >= 0
    numbers = np.full(len(encoding), -1, dtype=np.int64)
    numbers[inside] = number_units(encoding.groups[inside])[0]
    return numbers


def partition(count: int, parts: int) -> Longs:
    """(N,) pass in 0..parts-1 that hides each of N units.

    In every block of `parts` neighbouring units, each pass hides one, in an order from a fixed seed.
    Therefore no pass hides more than two neighbours, and no pass hides a regular pattern.
    """
    blocks = np.tile(np.arange(parts), (-(-count // parts), 1))
    orders = np.random.default_rng(_PARTITION_SEED).permuted(blocks, axis=1)
    return np.asarray(orders.ravel()[:count], dtype=np.int64)


def _exact_queries(encoding: Encoding, space: TokenSpace, owned: Bools | None) -> Iterator[Query]:
    """The queries for an exact pseudo-log-likelihood (see `Mode`): every owned unit is scored once.

    The queried positions of all queries together are the scored positions, in order. Special tokens are
    neither queried nor hidden. A very long sequence has several queries. A sequence that cannot be scored
    has none.
    """
    ordinary = (encoding.groups >= 0) & ~space.is_special[encoding.ids]
    scored = np.flatnonzero(ordinary).astype(np.int32)
    step = max(1, QUERY_TOKENS // max(1, len(encoding)))
    later, count = _later_in_unit(encoding.groups[scored])
    hidden, positions = scored[later], scored
    if owned is not None:
        is_owned = owned[scored]
        hidden, positions, count = hidden[np.repeat(is_owned, count)], scored[is_owned], count[is_owned]
    ends = running_totals(count)
    for first in range(0, len(positions), step):
        last = min(first + step, len(positions))
        variants = np.arange(last - first, dtype=np.int32)
        yield Query(
            encoding=encoding,
            masked=hidden[ends[first] : ends[last]],
            masked_in=np.repeat(variants, count[first:last]),
            asked=positions[first:last],
            asked_in=variants,
        )


def _pass_queries(encoding: Encoding, passes: Longs, owned: Bools | None) -> Iterator[Query]:
    """The queries for passes that each hide several tokens and query all of them.

    Queries have several variants. Each has fewer tokens than `QUERY_TOKENS`, but at least one pass. The
    hidden tokens do not depend on `owned`. Passes without a queried token are left out.

    Args:
        encoding: the sequence, or a window.
        passes: (L,) pass of each token, from 0 on; -1 for tokens that are never hidden.
        owned: (L,) True at the positions to score, None for all.
    """
    is_asked = passes >= 0 if owned is None else (passes >= 0) & owned
    order = np.argsort(passes, kind="stable")
    masked = order[passes[order] >= 0]
    asked_positions = order[is_asked[order]]
    pass_numbers = np.unique(passes[asked_positions])
    masked = masked[np.isin(passes[masked], pass_numbers)]
    masked_in = np.searchsorted(pass_numbers, passes[masked])
    asked_in = np.searchsorted(pass_numbers, passes[asked_positions])
    step = max(1, QUERY_TOKENS // max(1, len(encoding)))
    for first in range(0, len(pass_numbers), step):
        hides, asks = (
            slice(*np.searchsorted(variant, [first, first + step])) for variant in (masked_in, asked_in)
        )
        yield Query(
            encoding=encoding,
            masked=masked[hides].astype(np.int32),
            masked_in=(masked_in[hides] - first).astype(np.int32),
            asked=asked_positions[asks].astype(np.int32),
            asked_in=(asked_in[asks] - first).astype(np.int32),
        )


def _later_in_unit(groups: Ids) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each of A tokens, the token itself and the later tokens of its unit.

    Returns:
        Indices into 0..A-1, token after token, and (A,) how many each token has.

    >>> _later_in_unit(np.array([4, 4, 7]))
    (array([0, 1, 1, 2]), array([2, 1, 1]))
    """
    if (groups[1:] > groups[:-1]).all():  # units of one token, such as residues
        return np.arange(len(groups)), np.ones(len(groups), dtype=np.int64)
    order = np.argsort(groups, kind="stable")
    ends = np.searchsorted(groups[order], groups[order], side="right")
    ranks = np.arange(len(groups))
    count = np.empty_like(ranks)
    count[order] = ends - ranks
    start = np.empty_like(ranks)
    start[order] = ranks
    return order[ranges(start, count)], count
