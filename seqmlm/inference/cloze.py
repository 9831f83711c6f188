"""What fits into a gap: the most probable units of a gap, and how probable given candidates are in it.

A candidate is put into the sequence as its field writes it, and encoded there; then its tokens are hidden and
asked from left to right, so that candidates of several tokens have a log-probability like any other. Copies
that are equal once the gap is hidden are computed once: all candidates of one token take one pass together.
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
"""Number of a sequence, round, and (A, K) log-probabilities of units -> (A,) a symbol for each."""


Again = Callable[[int, int, int], Longs]
"""Number of a sequence, round from 1 on, and units of its gaps -> places of those to be asked again."""


def most_probable(number: int, done: int, log_probs: Doubles) -> Longs:
    """The most probable symbol of each unit."""
    return np.asarray(log_probs.argmax(axis=1), dtype=np.int64)


class Fit(NamedTuple):
    """How well a candidate fits: the natural log-probability of all its units, and how many these are."""

    log_prob: float
    units: int


class _State:
    """A sequence whose gaps are being filled, as it was given."""

    def __init__(self, prompt: Prompt, gapped: Gapped) -> None:
        self.prompt, self.gapped = prompt, gapped
        self.symbols = np.zeros(len(gapped.units), dtype=np.int64)
        self.sure = np.full(len(gapped.units), -np.inf)

    def least_sure(self, done: int, rounds: int) -> Longs:
        """The units, by their place in the gaps, that are hidden after so many of all rounds."""
        count = -(-len(self.sure) * (rounds - done) // rounds)
        return np.sort(np.argsort(self.sure, kind="stable")[:count])


class Cloze:
    """Asks one model about gaps.

    Args:
        session: the model. Counts are not mixed in: they know sequences, and no gaps.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.tokenizer, self.domain = session.tokenizer, session.domain
        self.rule = session.tokenizer.units
        allowed = self.domain.gaps.candidates(self.tokenizer)
        self._allowed = None if allowed is None else frozenset(allowed)

    @property
    def forms(self) -> tuple[str, ...]:
        """How gaps may be written."""
        mask_token = self.tokenizer.tokens[self.tokenizer.space.mask]
        return tuple(dict.fromkeys((*self.domain.gaps.forms, mask_token)))

    def opened(self, prompts: Sequence[Prompt]) -> list[Gapped]:
        """Encode sequences with gaps in which nothing is known.

        Raises:
            UsageError: a gap that cannot be one.
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
        """Tokens that the model sees of a sequence with gaps; a window, where the gaps cannot be opened."""
        longest = self.session.card.max_length
        try:
            return min(longest, len(self.opened([prompt])[0].encoding))
        except (DataError, UsageError):
            return longest

    def encode_filled(self, prompts: Sequence[Prompt], texts: Sequence[Sequence[str]]) -> list[Gapped]:
        """Encode sequences with a candidate in each gap.

        Raises:
            UsageError: a text that is not there once it is encoded, or that the vocabulary does not have.
            DataError: one that the alphabet does not have.
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
        """For each sequence, for each unit of its gaps in order, the k most probable guesses, best first,
        while all gaps are hidden."""
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
        """How probable what stands in a gap of each sequence is, while nothing is known of the other gaps."""
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
        """Fill all gaps together, so that what stands in one fits what stands in the others: a text for each.

        All units are asked while all are hidden; then, in every further round, some are hidden again and
        asked anew, given what the others have become.

        Args:
            choose: what is put at units, given their distributions.
            units_again: units to ask again; None for mask-predict (Ghazvininejad et al. 2019): the least
                certain ones, fewer each time.

        Raises:
            UsageError: a sequence is longer than the model.
        """
        states = [
            _State(prompt, sequence) for prompt, sequence in zip(prompts, self.opened(prompts), strict=True)
        ]
        for state in states:
            if len(state.gapped.encoding) > self.session.card.max_length:
                raise UsageError(
                    f"a sequence of {len(state.gapped.encoding)} tokens with several gaps is longer than the "
                    f"{self.session.card.max_length} that the model sees: shorten it"
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
        """Hide some units of each state, ask for them, and put there what is chosen."""
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
        """(K,) the symbols that may be put into a gap."""
        if self.rule.facts.names is not None:
            return np.ones(self.symbols, dtype=np.bool_)
        possible = ~self.tokenizer.space.is_special
        if self._allowed is not None:
            possible &= np.array(
                [self.symbol_text(symbol) in self._allowed for symbol in range(self.symbols)]
            )
        return possible

    def _gapped_with_symbols(self, state: _State) -> Gapped:
        """The sequence with what was chosen for its gaps in them."""
        if self.tokenizer.traits.closed:
            return self.encode_filled([state.prompt], [self._texts(state)])[0]
        encoding = state.gapped.encoding
        ids = encoding.ids.copy()
        ids[self.rule.places(encoding)[state.gapped.units]] = state.symbols
        return replace(state.gapped, encoding=replace(encoding, ids=ids))

    def _texts(self, state: _State) -> list[str]:
        """Text of the chosen symbols for each gap, as the field writes it."""
        ends = np.cumsum([len(units) for units in state.gapped.gaps])
        parts = np.split(state.symbols, ends[:-1])
        if self.rule.facts.names is not None:
            return ["".join(self.symbol_text(symbol) for symbol in part) for part in parts]
        return [self.tokenizer.spelling.text_of_tokens(part.tolist()) for part in parts]

    @property
    def symbols(self) -> int:
        """How many units there are that could stand in a gap."""
        return self.rule.symbols

    def _windows(self, gapped: Sequence[Gapped]) -> tuple[list[Query], list[tuple[int, int, Gapped]]]:
        """The questions about all gaps; where all of a sequence fit one window, they are one."""
        longest = self.session.card.max_length
        queries, origins = [], []
        for number, sequence in enumerate(gapped):
            for gap in range(len(sequence.gaps)):
                window = gap_window(self.rule, sequence, gap, longest)
                queries.append(gaps_query(self.rule, window))
                origins.append((number, gap, window))
        return queries, origins

    def _allowed_guesses(self, ids: Sequence[int], log_probs: Sequence[float], k: int) -> list[Guess]:
        """The first k guesses that the field allows in a gap, in the order given."""
        guesses: Iterator[Guess] = (
            Guess(self.symbol_text(symbol), symbol, log_prob)
            for symbol, log_prob in zip(ids, log_probs, strict=True)
            if symbol >= 0 and np.isfinite(log_prob)
        )
        allowed = (guess for guess in guesses if self._allowed is None or guess.text in self._allowed)
        return [guess for guess, _ in zip(allowed, range(k), strict=False)]

    def symbol_text(self, symbol: int) -> str:
        """Text of a symbol of the units' alphabet, as the field's data write it."""
        names = self.rule.facts.names
        return self.tokenizer.spelling.surface(symbol) if names is None else names[symbol]

    def prompts(self, raws: Sequence[object], written: Sequence[str] = ()) -> list[Prompt]:
        """Sequences in which gaps are written; `written`: what each is called in a message.

        Raises:
            UsageError: one has no gap.
        """
        prompts = [self.domain.gaps.prompt(raw, self.forms) for raw in raws]
        for number, prompt in enumerate(prompts):
            if not prompt.holes:
                name = written[number] if written else "this sequence"
                raise UsageError(f"{name} has no gap; write {' or '.join(self.forms)} where one is")
        return prompts
