"""Score sequences with one model, in any mode of the engine, for records and strings.

Records become `ScoredRecord`, unit by unit, and the session remembers them. Strings whose units are not
needed (sentences of pairs, hypotheses) become `SequenceScore`, which is faster to compute.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from seqmlm.anomaly.levels import WHOLE, View
from seqmlm.anomaly.values import Bools, ScoredRecord, merge_windows
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.reductions import Reduction, union
from seqmlm.engine.scoring import Scorer, SequenceScore
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import EXACT, ONE_PASS, Mode
from seqmlm.errors import NotFiniteError
from seqmlm.inference.expert import mixed, mixed_sequences, session_expert
from seqmlm.inference.record_batches import Encoded, encoded
from seqmlm.inference.session import Session


class _Request(NamedTuple):
    """The mode, reductions and view for scoring a sequence."""

    mode: Mode
    want: tuple[Reduction, ...]
    view: View


class RecordScorer:
    """Scores sequences with one model, batch by batch."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._scorers: dict[_Request, Scorer] = {}

    def encoded(self, records: Sequence[Record], problems: Problems) -> list[Encoded]:
        """Tokenize a batch. Records that cannot be tokenized go to `problems`."""
        return encoded(self.session.domain, self.session.tokenizer, records, problems)

    def unit_scores(
        self,
        batch: Sequence[Encoded],
        mode: Mode = EXACT,
        *,
        want: Collection[Reduction] = (),
        view: View = WHOLE,
        selected: Sequence[Bools] | None = None,
    ) -> list[ScoredRecord]:
        """Score every unit of a batch.

        Long records are scored in windows, each unit where it is most central.

        Sequences that the model cannot distinguish are scored once. If the model has useful counts and sees
        whole records, surprisals come from the mixture of both. If the model also sees the predicted units,
        the larger surprisal of the two is used.

        Args:
            batch: the encoded records.
            mode: how units are masked.
            want: values to read for every unit besides its surprisal (`seqmlm.engine.reductions`).
            view: the part of a record that the model sees.
            selected: (L,) for each record, True at the tokens of the units to score. None scores all units,
                and remembers their scores.
        """
        expert = session_expert(self.session) if view == WHOLE else None
        request = _Request(mode, union(want, () if expert is None else expert.needs), view)

        def score(chosen: list[int]) -> list[ScoredRecord]:
            sequences = [batch[number] for number in chosen]
            encodings = [sequence.encoding for sequence in sequences]
            selected_here = None if selected is None else [selected[number] for number in chosen]
            rule = self._scorer(request).rule
            try:
                parts = self._windows(request, encodings, selected_here)
            except NotFiniteError as error:
                record = sequences[self._culprit(request, encodings, selected_here)].record
                where = f"{self.session.model.path}: record {self.session.place_of(record)}"
                raise NotFiniteError(f"{where}: {error}") from None
            pairs = zip(sequences, parts, strict=True)
            unit_values = [
                merge_windows(sequence.record, sequence.encoding, rule, windows, request.want)
                for sequence, windows in pairs
            ]
            return unit_values if expert is None else mixed(expert, unit_values, visible=self._sees(mode))

        conceal = self.session.tokenizer.spelling.conceal
        if selected is None:
            record_scores = self.session.cache.scores(
                [sequence.encoding for sequence in batch], request, score
            )
        else:
            record_scores = score([*range(len(batch))])
        return [
            replace(scores, record=sequence.record, encoding=sequence.encoding, conceal=conceal)
            for scores, sequence in zip(record_scores, batch, strict=True)
        ]

    def sequences(
        self,
        encodings: Sequence[Encoding],
        mode: Mode = EXACT,
        *,
        selected: Sequence[Bools] | None = None,
        view: View = WHOLE,
        name_of: Callable[[int], str] = "sequence {}".format,
    ) -> list[SequenceScore]:
        """Compute the pseudo-log-likelihood of sequences. Nothing is remembered.

        In a sequence with several windows, positions count the scored tokens.

        Args:
            encodings: the sequences.
            mode, view: as in `unit_scores`.
            selected: (L,) for each sequence, True at the tokens to score. None scores all tokens.
            name_of: name of a sequence by its number, from 0, for the error if its result is not finite.

        Raises:
            NotFiniteError: a result is not a finite number.
        """
        expert = session_expert(self.session) if view == WHOLE else None
        request = _Request(mode, () if expert is None else expert.needs, view)
        try:
            scores = [_merge_windows(parts) for parts in self._windows(request, encodings, selected)]
        except NotFiniteError as error:
            name = name_of(self._culprit(request, encodings, selected))
            raise NotFiniteError(f"{self.session.model.path}: {name}: {error}") from None
        if expert is None:
            return scores
        return mixed_sequences(expert, encodings, scores, visible=self._sees(mode))

    def _sees(self, mode: Mode) -> bool:
        """Whether the model sees the units that it predicts. A linear model never sees them."""
        return mode == ONE_PASS and self.session.model.rows.has_hidden_states

    def _windows(
        self, request: _Request, encodings: Sequence[Encoding], selected: Sequence[Bools] | None
    ) -> Iterator[list[SequenceScore]]:
        """The scores of the windows of each sequence. Each sequence has at least one window."""
        tokenizer, longest = self.session.tokenizer, self.session.card.max_length
        counts: list[int] = []

        def windows() -> Iterator[tuple[Encoding, Bools]]:
            for number, encoding in enumerate(encodings):
                chosen = None if selected is None else selected[number]
                parts = request.view.windows(encoding, tokenizer, longest, chosen)
                counts.append(len(parts))
                yield from parts

        stream = iter(list(self._scorer(request).windows(windows())))
        return (list(islice(stream, count)) or [_NOTHING] for count in counts)

    def _culprit(
        self, request: _Request, encodings: Sequence[Encoding], selected: Sequence[Bools] | None
    ) -> int:
        """The number of the first sequence whose result is not finite, if each is scored separately."""
        for number, encoding in enumerate(encodings):
            try:
                self._windows(request, [encoding], None if selected is None else [selected[number]])
            except NotFiniteError:
                return number
        return 0

    def _scorer(self, request: _Request) -> Scorer:
        """The scorer for a request. It is created once."""
        if request not in self._scorers:
            rule, ask = request.view.units(self.session.tokenizer), self.session.conditionals()
            self._scorers[request] = Scorer(ask, rule, mode=request.mode, want=request.want)
        return self._scorers[request]


_EMPTY = np.zeros(0, dtype=np.int32)
_NOTHING = SequenceScore(_EMPTY, np.zeros(0, dtype=np.float32), _EMPTY)


def _merge_windows(parts: list[SequenceScore]) -> SequenceScore:
    """Combine the scores of the windows of a sequence. Units remain in order."""
    if len(parts) == 1:
        return parts[0]
    groups = np.concatenate([part.groups for part in parts])
    log_probs = np.concatenate([part.log_probs for part in parts])
    filled = [part.values for part in parts if len(part.groups)]
    values = {
        name: np.concatenate([part_values[name] for part_values in filled])
        for name in (filled[0] if filled else ())
    }
    return SequenceScore(np.arange(len(groups), dtype=np.int32), log_probs, groups, values)
