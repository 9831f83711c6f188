"""Fill gaps: the most probable units of a gap, and the probabilities of given candidates.

A candidate is written into the sequence in the form of its field, and encoded there. Then its tokens are
masked and predicted from left to right, so that candidates of several tokens get a log-probability too.
Copies that are equal after masking are computed once. Therefore all candidates of a single token share one
pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from seqmlm.domains.holes import Prompt
from seqmlm.engine.gap_queries import chain_query, gap_window, gaps_query
from seqmlm.engine.holes import Gapped
from seqmlm.engine.query import Query
from seqmlm.engine.reductions import Rows, TopIds, TopLogProbs, top
from seqmlm.engine.types import Bools, Longs
from seqmlm.engine.units import Doubles
from seqmlm.errors import DataError, UsageError
from seqmlm.inference.session import Session


class Guess(NamedTuple):
    """A unit that may fill a place: its text, its symbol and its log-probability (nats)."""

    text: str
    symbol: int
    log_prob: float


Choose = Callable[[int, int, Doubles], Longs]
"""Selects symbols: (sequence number, round, (A, K) log-probabilities of units) -> (A,) symbols."""


Again = Callable[[int, int, int], Longs]
"""Selects units to predict again: (sequence number, round from 1, units in its gaps) -> places of units."""


def most_probable(number: int, done: int, log_probs: Doubles) -> Longs:
    """The most probable symbol of each unit."""
    return np.asarray(log_probs.argmax(axis=1), dtype=np.int64)


class Fit(NamedTuple):
    """The log-probability (nats) of all units of a candidate, and the number of its units."""

    log_prob: float
    units: int


class _State:
    """A sequence whose gaps are being filled, with its original prompt."""

    def __init__(self, prompt: Prompt, gapped: Gapped) -> None:
        self.prompt, self.gapped = prompt, gapped
        self.symbols = np.zeros(len(gapped.units), dtype=np.int64)
        self.sure = np.full(len(gapped.units), -np.inf)

    def least_sure(self, done: int, rounds: int) -> Longs:
        """The least certain units, by their place in the gaps, to mask after `done` of `rounds` rounds."""
        count = -(-len(self.sure) * (rounds - done) // rounds)
        return np.sort(np.argsort(self.sure, kind="stable")[:count])


class Cloze:
    """Predicts gaps with one model.

    Args:
        session: the model. Counts are not mixed in, because they cannot predict gaps.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.tokenizer, self.domain = session.tokenizer, session.domain
        self.rule = session.tokenizer.units
        allowed = self.domain.gaps.candidates(self.tokenizer)
        self._allowed = None if allowed is None else frozenset(allowed)

    @property
    def forms(self) -> tuple[str, ...]:
        """The ways to write a gap."""
        mask_token = self.tokenizer.tokens[self.tokenizer.space.mask]
        return tuple(dict.fromkeys((*self.domain.gaps.forms, mask_token)))

    def opened(self, prompts: Sequence[Prompt]) -> list[Gapped]:
        """Encode sequences with empty gaps.

        Raises:
            UsageError: a gap cannot be masked.
        """
        spelling = self.tokenizer.spelling
        filled = [
            self.domain.gaps.filled(prompt, [spelling.stand_in] * len(prompt.holes)) for prompt in prompts
        ]
        encode = spelling.encode_gaps or self.tokenizer.encode_batch
        encodings = encode([sequence.raw for sequence in filled])
        return [
            self.rule.open_gaps(encoding, sequence.spans, sequence.tokens)
            for encoding, sequence in zip(encodings, filled, strict=True)
        ]

    def tokens(self, prompt: Prompt) -> int:
        """Number of tokens that the model sees for a sequence with gaps.

        If the gaps cannot be encoded, it is the length of a window.
        """
        longest = self.session.card.max_length
        try:
            return min(longest, len(self.opened([prompt])[0].encoding))
        except (DataError, UsageError):
            return longest

    def encode_filled(self, prompts: Sequence[Prompt], texts: Sequence[Sequence[str]]) -> list[Gapped]:
        """Encode sequences with a candidate in each gap.

        Raises:
            UsageError: a candidate is not in the sequence after encoding, or not in the vocabulary.
            DataError: a candidate has characters outside the alphabet.
        """
        filled = [
            self.domain.gaps.filled(prompt, gap_texts)
            for prompt, gap_texts in zip(prompts, texts, strict=True)
        ]
        encodings = self.tokenizer.encode_batch([sequence.raw for sequence in filled])
        return [
            self.rule.open_gaps(encoding, sequence.spans)
            for encoding, sequence in zip(encodings, filled, strict=True)
        ]

    def guesses(self, gapped: Sequence[Gapped], k: int) -> list[list[list[Guess]]]:
        """The k most probable guesses for each unit of the gaps of each sequence, while all gaps are masked.

        Units are in order, and the best guess is first.
        """
        k = min(k, self.symbols)
        width = k if self._allowed is None else self.symbols
        want = top(width)
        queries, origins = self._windows(gapped)
        parts: dict[tuple[int, int], list[list[Guess]]] = {}
        answers = self.session.conditionals().ask(queries, self.rule.needs(want))
        for query, answer, (number, at, window) in zip(queries, answers, origins, strict=True):
            unit_values = self.rule.unit_log_probs(query, answer, want)
            place = {int(unit): row for row, unit in enumerate(unit_values.unit)}
            rows = [place[int(unit)] for unit in window.gaps[at]]
            ids, log_probs = unit_values.values[TopIds.name][rows], unit_values.values[TopLogProbs.name][rows]
            parts[number, at] = [
                self._allowed_guesses(top_ids, top_log_probs, k)
                for top_ids, top_log_probs in zip(ids.tolist(), log_probs.tolist(), strict=True)
            ]
        return [
            [units for at in range(len(sequence.gaps)) for units in parts[number, at]]
            for number, sequence in enumerate(gapped)
        ]

    def fits(self, gapped: Sequence[Gapped], gap: int = 0) -> list[Fit]:
        """How well the content of a gap fits in each sequence, while the other gaps are masked."""
        longest = self.session.card.max_length
        queries = [
            chain_query(self.rule, gap_window(self.rule, sequence, gap, longest), gap) for sequence in gapped
        ]
        answers = self.session.conditionals().ask(queries, self.rule.needs())
        fits = []
        for query, answer, sequence in zip(queries, answers, gapped, strict=True):
            chain = self.rule.unit_log_probs(query, answer)
            fits.append(Fit(log_prob=float(chain.log_probs.sum()), units=len(sequence.gaps[gap])))
        return fits

    def refined(
        self, prompts: Sequence[Prompt], rounds: int, choose: Choose, units_again: Again | None = None
    ) -> list[list[str]]:
        """Fill all gaps of each sequence together, so that their contents fit each other.

        Returns a text per gap.

        First all units are masked and predicted. In each later round, some units are masked and predicted
        again, given the current content of the others.

        Args:
            prompts: sequences with gaps.
            rounds: number of rounds.
            choose: selects the symbols of units from their distributions.
            units_again: selects the units to predict again. None uses mask-predict (Ghazvininejad et al.
                2019): the least certain units, fewer in each round.

        Raises:
            UsageError: a sequence is longer than the model allows.
        """
        states = [
            _State(prompt, sequence) for prompt, sequence in zip(prompts, self.opened(prompts), strict=True)
        ]
        for state in states:
            if len(state.gapped.encoding) > self.session.card.max_length:
                raise UsageError(
                    f"a sequence with several gaps has {len(state.gapped.encoding)} tokens, more than the "
                    f"{self.session.card.max_length} that the model can see: shorten it"
                )
        for done in range(rounds):
            units_by_state = [
                units_again(number, done, len(state.sure))
                if units_again and done
                else state.least_sure(done, rounds)
                for number, state in enumerate(states)
            ]
            self._fill_units(states, units_by_state, done, choose)
        return [self._texts(state) for state in states]

    def _fill_units(
        self, states: Sequence[_State], units_by_state: Sequence[Longs], done: int, choose: Choose
    ) -> None:
        """Mask some units of each state, predict them, and store the selected symbols."""
        queries, origins = [], []
        for number, (state, units) in enumerate(zip(states, units_by_state, strict=True)):
            if len(units):
                current = state.gapped if not done else self._gapped_with_symbols(state)
                places = current.units[units]
                queries.append(self.rule.ask(current.encoding, places, np.sort(places)))
                origins.append((number, units, places))
        answers = self.session.conditionals().ask(queries, self.rule.needs([Rows()]))
        for query, answer, (number, units, places) in zip(queries, answers, origins, strict=True):
            answer_values = self.rule.unit_log_probs(query, answer, [Rows()])
            row = {int(unit): place for place, unit in enumerate(answer_values.unit)}
            log_probs = answer_values.values[Rows.name][[row[int(place)] for place in places]].astype(
                np.float64
            )
            log_probs[:, ~self._possible] = -np.inf
            log_probs -= np.logaddexp.reduce(log_probs, axis=1, keepdims=True)
            symbols = choose(number, done, log_probs)
            states[number].symbols[units] = symbols
            states[number].sure[units] = log_probs[np.arange(len(units)), symbols]

    @cached_property
    def _possible(self) -> Bools:
        """(K,) True for symbols that may fill a gap."""
        if self.rule.facts.names is not None:
            return np.ones(self.symbols, dtype=np.bool_)
        possible = ~self.tokenizer.space.is_special
        if self._allowed is not None:
            possible &= np.array(
                [self.symbol_text(symbol) in self._allowed for symbol in range(self.symbols)]
            )
        return possible

    def _gapped_with_symbols(self, state: _State) -> Gapped:
        """The sequence with the selected symbols in its gaps."""
        if self.tokenizer.traits.closed:
            return self.encode_filled([state.prompt], [self._texts(state)])[0]
        encoding = state.gapped.encoding
        ids = encoding.ids.copy()
        ids[self.rule.places(encoding)[state.gapped.units]] = state.symbols
        return replace(state.gapped, encoding=replace(encoding, ids=ids))

    def _texts(self, state: _State) -> list[str]:
        """The text of the selected symbols for each gap, in the form of the field."""
        ends = np.cumsum([len(units) for units in state.gapped.gaps])
        parts = np.split(state.symbols, ends[:-1])
        if self.rule.facts.names is not None:
            return ["".join(self.symbol_text(symbol) for symbol in part) for part in parts]
        return [self.tokenizer.spelling.text_of_tokens(part.tolist()) for part in parts]

    @property
    def symbols(self) -> int:
        """The number of different units that could fill a gap."""
        return self.rule.symbols

    def _windows(self, gapped: Sequence[Gapped]) -> tuple[list[Query], list[tuple[int, int, Gapped]]]:
        """The queries of all gaps, each in a window around the gap.

        If a sequence fits one window, its queries are equal.
        """
        longest = self.session.card.max_length
        queries, origins = [], []
        for number, sequence in enumerate(gapped):
            for gap in range(len(sequence.gaps)):
                window = gap_window(self.rule, sequence, gap, longest)
                queries.append(gaps_query(self.rule, window))
                origins.append((number, gap, window))
        return queries, origins

    def _allowed_guesses(self, ids: Sequence[int], log_probs: Sequence[float], k: int) -> list[Guess]:
        """The first k guesses that the field allows in a gap, in the given order."""
        guesses: Iterator[Guess] = (
            Guess(self.symbol_text(symbol), symbol, log_prob)
            for symbol, log_prob in zip(ids, log_probs, strict=True)
            if symbol >= 0 and np.isfinite(log_prob)
        )
        allowed = (guess for guess in guesses if self._allowed is None or guess.text in self._allowed)
        return [guess for guess, _ in zip(allowed, range(k), strict=False)]

    def symbol_text(self, symbol: int) -> str:
        """The text of a symbol of the units' alphabet, in the form of the field."""
        names = self.rule.facts.names
        return self.tokenizer.spelling.surface(symbol) if names is None else names[symbol]

    def prompts(self, raws: Sequence[object], written: Sequence[str] = ()) -> list[Prompt]:
        """Find the gaps in sequences.

        Args:
            raws: the sequences, with written gaps.
            written: a description of each sequence, for messages.

        Raises:
            UsageError: a sequence has no gap.
        """
        prompts = [self.domain.gaps.prompt(raw, self.forms) for raw in raws]
        for number, prompt in enumerate(prompts):
            if not prompt.holes:
                name = written[number] if written else "this sequence"
                raise UsageError(f"{name} has no gap; write {' or '.join(self.forms)} in its place")
        return prompts
