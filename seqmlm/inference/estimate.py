"""What a scoring takes, by estimate, before it begins: by its input and the model, never by a clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np

from seqmlm.anomaly.levels import WHOLE, Level
from seqmlm.anomaly.values import Bools, Doubles
from seqmlm.data.files import metered
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import Mode
from seqmlm.errors import SeqmlmError
from seqmlm.inference.record_batches import batches, characters, encoded, forward_tokens, input_bytes
from seqmlm.inference.session import Session, digest

LOOK = 1 << 21
"""Tokens that are looked at, at most, to choose among modes: some seconds of reading."""

GLANCE = 1 << 14
"""Tokens where there is one mode: all that depends on them is how much is said to be left."""


class Work(NamedTuple):
    """Estimated work of a scoring.

    tokens: forward tokens (`forward_tokens`) in each mode that it is asked of.
    characters: of all records.
    """

    tokens: Mapping[str, float]
    characters: float


def work_of(
    session: Session,
    level: Level,
    modes: Sequence[Mode],
    sources: Sequence[str],
    *,
    format: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Work | None:
    """Estimated work of a scoring in each mode; no clock is read.

    Records are read and counted, equal ones once; what cannot be read counts nothing. Of an input of more
    than `LOOK` tokens, or `GLANCE`, the rest is taken to be like its beginning, by the bytes that were read
    for it, which may be compressed. None of an input, as `Field.read` takes it, that can be read only once.
    """
    costs = [cost_of(session, level, mode) for mode in modes]
    size = input_bytes(sources)
    if size is None:
        return None
    problems = Problems("skip")
    records = session.reader(sources, format=format, options=options)(problems)
    total, letters = _totals(session, costs, records, problems, size)
    return Work(dict(zip(map(str, modes), total.tolist(), strict=True)), letters)


def _totals(
    session: Session,
    costs: Sequence[Cost],
    records: Iterable[Record],
    problems: Problems,
    size: int,
) -> tuple[Doubles, float]:
    """(C,) what all records of an input of so many bytes cost together, and their characters."""
    digests, total, look = set[bytes](), np.zeros(len(costs)), LOOK if len(costs) > 1 else GLANCE
    tokens, letters, factor = 0, 0, 1.0
    stored, bytes_per_letter = (
        0,
        0.0,
    )  # bytes read; bytes of a character, of those before the last block of the file
    with metered() as meter, suppress(SeqmlmError):  # the run itself says what is wrong with its input
        for batch in batches(records):
            batch_letters = sum(map(characters, batch))
            if meter.bytes > stored:  # a block was read amid this batch, and is used from there on
                bytes_per_letter, stored = (
                    stored / (letters + batch_letters / 2) if stored else bytes_per_letter,
                    meter.bytes,
                )
            letters += batch_letters
            for sequence in encoded(session.domain, session.tokenizer, batch, problems):
                tokens += len(sequence.encoding)
                key = digest(sequence.encoding)
                if key not in digests:
                    digests.add(key)
                    total += [cost(sequence.encoding) for cost in costs]
            if tokens >= look:
                factor = max(1.0, size / (bytes_per_letter * letters or meter.bytes or letters))
                break
    return factor * total, factor * letters


class Cost(Protocol):
    """Forward tokens that a record takes, or the units of it at the (L,) wanted tokens."""

    def __call__(self, encoding: Encoding, selected: Bools | None = None) -> float: ...


def cost_of(session: Session, level: Level, mode: Mode) -> Cost:
    """Forward tokens that a record takes at a level in a mode."""
    model, view, tokenizer = session.model, level.view, session.tokenizer
    longest, special = session.card.max_length, tokenizer.space.is_special
    if view is not WHOLE:  # what is asked there depends on the record
        rule = view.units(tokenizer)

        def of_windows(encoding: Encoding, selected: Bools | None = None) -> float:
            parts = view.windows(encoding, tokenizer, longest, selected)
            queries = (query for window, owned in parts for query in rule.questions(window, owned, mode))
            return float(sum(query.variants * len(query.encoding) for query in queries))

        return of_windows
    passes = forward_tokens(model, mode)
    ways = 2 if level.second and tokenizer.units.facts.strands else 1

    def cost(encoding: Encoding, selected: Bools | None = None) -> float:
        if selected is not None:
            windows = view.windows(encoding, tokenizer, longest, selected & ~special[encoding.ids])
            return float(ways * sum(of_window(*window) for window in windows))
        length, share = len(encoding), 1.0
        if not mode.asks_windows and length:
            share = np.count_nonzero((encoding.groups >= 0) & ~special[encoding.ids]) / length
        return float(ways * share * passes(length))

    def of_window(window: Encoding, owned: Bools) -> float:
        length, window_passes = len(window), passes(len(window))
        if mode.asks_windows:
            return window_passes
        return min(length, window_passes) + np.count_nonzero(owned) / length * max(
            0.0, window_passes - length
        )

    return cost
