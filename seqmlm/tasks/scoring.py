"""Records to units and their surprisals: one model, any of the engine's modes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from seqmlm.anomaly.values import Bools, Scored, scored
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.correction import Correction
from seqmlm.engine.mode import EXACT, Mode
from seqmlm.engine.scoring import Scorer, SequenceScore
from seqmlm.engine.types import Encoding
from seqmlm.engine.windows import central_windows
from seqmlm.errors import DataError
from seqmlm.tasks.bundle import LoadedModel
from seqmlm.tasks.one_pass import head_for
from seqmlm.tokenizers.base import UnknownUnit

BATCH_RECORDS = 256
BATCH_CHARACTERS = 1 << 18

_UNFAMILIAR = "a record most of which the model's vocabulary does not know: is it data of another kind?"


class Encoded(NamedTuple):
    """A record and what the model sees of it."""

    record: Record
    encoding: Encoding


class RecordScorer:
    """Scores records with one model, batch by batch.

    Args:
        model: asked.
        correction: of its outputs (`seqmlm.tasks.one_pass`); needed for the one-pass mode alone.
        top: expected alternatives kept of each unit.
        tokens_per_batch: budget of a forward pass.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        correction: Correction | None = None,
        top: int = 0,
        tokens_per_batch: int = 16384,
    ) -> None:
        self.model, self._correction, self._top = model, correction, top
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        self.conditionals = Conditionals(model.rows, tokens_per_batch=tokens_per_batch, device=device)
        self._scorers: dict[tuple[Mode, bool, bool], Scorer] = {}
        self._unfamiliar = np.array(model.tokenizer.unfamiliar, dtype=np.int32)

    def encoded(self, records: Sequence[Record], problems: Problems) -> list[Encoded]:
        """Tokenize a batch; records that the tokenizer cannot spell go to `problems`."""
        try:
            encodings = self.model.tokenizer.encode_batch([record.raw for record in records])
            found = list(map(Encoded, records, encodings))
        except DataError:
            found = list(self._singly(records, problems))
        for one in found:
            ordinary = one.encoding.ids[one.encoding.groups >= 0]
            if len(self._unfamiliar) and len(ordinary) and np.isin(ordinary, self._unfamiliar).mean() > 0.5:
                problems.note(_UNFAMILIAR)
        return found

    def _singly(self, records: Sequence[Record], problems: Problems) -> Iterator[Encoded]:
        model = self.model
        for record in records:
            try:
                yield Encoded(record, model.tokenizer.encode(record.raw))
            except UnknownUnit as error:
                shown = model.domain.unknown_error(record, [error.found], sensitive=problems.sensitive)
                problems.bad(shown, str(record.raw))
            except DataError as error:
                placed = DataError(error.reason, source=record.source, line=record.line, remedy=error.remedy)
                problems.bad(placed, str(record.raw))

    def scored(
        self,
        batch: Sequence[Encoded],
        mode: Mode = EXACT,
        *,
        entropy: bool = False,
        ranks: bool = False,
        wanted: Sequence[Bools] | None = None,
    ) -> list[Scored]:
        """Price every unit of a batch; long records window by window, each unit where it is most central.

        Args:
            batch: what `encoded` gave.
            mode: how units are hidden.
            entropy, ranks: whether they are wanted of every unit.
            wanted: for each record (L,) True at the tokens to price; None for all of all.

        Returns:
            One for each record, in order, with the units that were priced.
        """
        tokenizer, longest = self.model.tokenizer, self.model.card.max_length
        counts: list[int] = []

        def windows() -> Iterator[tuple[Encoding, Bools]]:
            for number, one in enumerate(batch):
                chosen = None if wanted is None else wanted[number]
                parts = central_windows(one.encoding, tokenizer.space, longest, chosen)
                counts.append(len(parts))
                yield from parts

        stream = iter(list(self._scorer(mode, entropy, ranks).windows(windows())))
        return [
            scored(one.record, one.encoding, tokenizer.units, list(islice(stream, count)) or [_NOTHING])
            for one, count in zip(batch, counts, strict=True)
        ]

    def _scorer(self, mode: Mode, entropy: bool, ranks: bool) -> Scorer:
        """The one scorer for a way of asking: it remembers windows from batch to batch."""
        made = self._scorers.get((mode, entropy, ranks))
        if made is None:
            ask = self.conditionals
            if mode.head:
                ask = Conditionals(
                    head_for(self.model), tokens_per_batch=ask.tokens_per_batch, device=ask.device
                )
            made = self._scorers[mode, entropy, ranks] = Scorer(
                ask,
                self.model.tokenizer.units,
                mode=mode,
                correction=None if mode.head else self._correction,
                entropy=entropy,
                ranks=ranks,
                top=self._top,
            )
        return made


_EMPTY = np.zeros(0, dtype=np.int32)
_NOTHING = SequenceScore(_EMPTY, np.zeros(0, dtype=np.float32), _EMPTY)


def batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Records that are scored together: up to `BATCH_RECORDS` of them or `BATCH_CHARACTERS`, one at least."""
    batch: list[Record] = []
    characters = 0
    for record in records:
        batch.append(record)
        characters += len(record.raw) if isinstance(record.raw, str) else 1024
        if len(batch) >= BATCH_RECORDS or characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
