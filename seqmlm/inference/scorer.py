"""Remembers how sequences were priced: what comes again, as most log windows do, is not asked again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple

import numpy as np

from seqmlm.anomaly.levels import WHOLE, View
from seqmlm.anomaly.values import Bools, Scored, scored
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.correction import Correction
from seqmlm.engine.device import Precision, best_device
from seqmlm.engine.reductions import Reduction, union
from seqmlm.engine.scoring import Scorer, SequenceScore
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import EXACT, ONE_PASS, Mode
from seqmlm.inference.batches import Encoded, encoded
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.one_pass import correction_in, head_for

UNITS = 1 << 20
"""Most units remembered, over all sequences; beyond it those not asked for longest are forgotten."""

Key = tuple[bytes, Hashable]

_NOBODY = Record(id="", raw="", source="", line=0)
_BLANK = Encoding(ids=np.zeros(0, dtype=np.int32), groups=np.zeros(0, dtype=np.int32))


class ScoreCache:
    """Prices by what the model saw; bounded, exact, and the same for any order of the input."""

    def __init__(self, units: int = UNITS) -> None:
        self._most, self._units = units, 0
        self._known: OrderedDict[Key, Scored] = OrderedDict()

    def priced(
        self,
        encodings: Sequence[Encoding],
        request: Hashable,
        price: Callable[[list[int]], list[Scored]],
        wanted: Sequence[Bools] | None = None,
    ) -> list[Scored]:
        """Prices of a batch, one each, without record and encoding; of equal sequences the same object.

        Args:
            encodings: what the model sees.
            request: whatever else decides the answer (mode, what is kept of it).
            price: prices the sequences with these indices, those that are not known.
            wanted: (L,) for each sequence, True at the tokens to price; None for all.
        """
        keys = [
            (digest(one, None if wanted is None else wanted[number]), request)
            for number, one in enumerate(encodings)
        ]
        fresh = {key: number for number, key in reversed(list(enumerate(keys))) if key not in self._known}
        asked = sorted(fresh.values())
        prices = price(asked) if asked else []
        found = {  # neither texts nor the batch that an encoding is a view of are kept
            keys[number]: replace(one, record=_NOBODY, encoding=_BLANK)
            for number, one in zip(asked, prices, strict=True)
        }
        known = [found[key] if key in found else self._again(key) for key in keys]
        for key, one in found.items():
            self._keep(key, one)
        return known

    def _again(self, key: Key) -> Scored:
        self._known.move_to_end(key)
        return self._known[key]

    def _keep(self, key: Key, one: Scored) -> None:
        self._known[key] = one
        self._units += len(one) + 1
        while self._units > self._most:
            self._units -= len(self._known.popitem(last=False)[1]) + 1


def digest(encoding: Encoding, wanted: Bools | None = None) -> bytes:
    """16 bytes that are equal for encodings a model cannot tell apart, and for equal wishes."""
    state = blake2b(encoding.ids.tobytes(), digest_size=16)
    state.update(encoding.groups.tobytes())
    for array in (encoding.positions, wanted):
        state.update(b"\1" if array is not None else b"\0")
        if array is not None:
            state.update(array.tobytes())
    for name in sorted(encoding.channels):
        state.update(name.encode() + b"\0")
        state.update(encoding.channels[name].tobytes())
    return state.digest()


# Records to units and their surprisals: one model, any of the engine's modes.


class _Asking(NamedTuple):
    """One way of asking, with a scorer of its own."""

    mode: Mode
    want: tuple[Reduction, ...]
    view: View


class RecordScorer:
    """Scores records with one model, batch by batch.

    Args:
        model: asked.
        correction: of its outputs in the one-pass mode, where that shall not be the model's own
            (`seqmlm.inference.one_pass`); what other modes need follows from the model.
        tokens_per_batch: budget of a forward pass; None for what suits the device.
        precision: of the matrix products, for all that this scorer is asked and remembers.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        correction: Correction | None = None,
        tokens_per_batch: int | None = None,
        precision: Precision = "fp32",
    ) -> None:
        self.model, self._correction = model, correction
        self.conditionals = Conditionals(
            model.rows, tokens_per_batch=tokens_per_batch, device=best_device(), precision=precision
        )
        self._memory = ScoreCache()
        self._scorers: dict[_Asking, Scorer] = {}

    def encoded(self, records: Sequence[Record], problems: Problems) -> list[Encoded]:
        """Tokenize a batch; records that the tokenizer cannot spell go to `problems`."""
        return encoded(self.model.domain, self.model.tokenizer, records, problems)

    def scored(
        self,
        batch: Sequence[Encoded],
        mode: Mode = EXACT,
        *,
        want: Collection[Reduction] = (),
        wanted: Sequence[Bools] | None = None,
        view: View = WHOLE,
    ) -> list[Scored]:
        """Score every unit of a batch; long records window by window, each unit where it is most central.

        Args:
            batch: what `encoded` gave.
            mode: how units are hidden.
            want: what is read of every unit beside its surprisal (`seqmlm.engine.reductions`).
            wanted: for each record (L,) True at the tokens to score; None for all of all.
            view: what of a record the model is shown.

        Sequences that the model cannot tell apart are scored once.

        Returns:
            One for each record, in order, with the units that were scored.
        """
        asking = _Asking(mode, union(want), view)

        def ask(chosen: list[int]) -> list[Scored]:
            parts = None if wanted is None else [wanted[number] for number in chosen]
            return self._asked(asking, [batch[number] for number in chosen], parts)

        known = self._memory.priced([one.encoding for one in batch], asking, ask, wanted)
        return [
            replace(scores, record=one.record, encoding=one.encoding)
            for scores, one in zip(known, batch, strict=True)
        ]

    def _asked(
        self, asking: _Asking, batch: Sequence[Encoded], wanted: Sequence[Bools] | None
    ) -> list[Scored]:
        scorer = self._scorer(asking)
        tokenizer, longest = self.model.tokenizer, self.model.card.max_length
        counts: list[int] = []

        def windows() -> Iterator[tuple[Encoding, Bools]]:
            for number, one in enumerate(batch):
                chosen = None if wanted is None else wanted[number]
                parts = asking.view.windows(one.encoding, tokenizer, longest, chosen)
                counts.append(len(parts))
                yield from parts

        stream = iter(list(scorer.windows(windows())))
        parts = (list(islice(stream, count)) or [_NOTHING] for count in counts)
        return [
            scored(one.record, one.encoding, scorer.rule, own, asking.want)
            for one, own in zip(batch, parts, strict=True)
        ]

    def _scorer(self, asking: _Asking) -> Scorer:
        """The one scorer for a way of asking."""
        made = self._scorers.get(asking)
        if made is None:
            ask, head = self.conditionals, asking.mode.head
            if head:
                ask = Conditionals(
                    head_for(self.model),
                    tokens_per_batch=ask.tokens_per_batch,
                    device=ask.device,
                    precision=ask.precision,
                )
            made = self._scorers[asking] = Scorer(
                ask,
                asking.view.units(self.model.tokenizer),
                mode=asking.mode,
                correction=self._correction_in(asking.mode),
                want=asking.want,
            )
        return made

    def _correction_in(self, mode: Mode) -> Correction | None:
        if mode == ONE_PASS and self._correction is not None:
            return self._correction
        return correction_in(self.model, mode)


_EMPTY = np.zeros(0, dtype=np.int32)
_NOTHING = SequenceScore(_EMPTY, np.zeros(0, dtype=np.float32), _EMPTY)
