"""Estimate the work of a scoring before it begins, from its input and the model. Nothing is timed."""

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
"""Largest number of tokens that are read to choose among modes. Reading them takes some seconds."""

GLANCE = 1 << 14
"""The same for a single mode. The estimate is then used only to show the remaining time."""


class Work(NamedTuple):
    """The estimated work of a scoring.

    Attributes:
        tokens: forward tokens (`forward_tokens`) by mode.
        characters: characters of all records.
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
    """Estimate the work of a scoring in each mode, without reading a clock.

    Records are read and counted. Equal records count once, and records that cannot be read do not count.
    After `LOOK` or `GLANCE` tokens, the rest of the input is extrapolated from its beginning, in proportion
    to its bytes, which may be compressed.

    Args:
        session: the model.
        level: the level of the rows.
        modes: the modes to compare.
        sources: the inputs, as in `Field.read`.
        format: the format of the inputs. None detects it.
        options: options of the reader.

    Returns:
        The work. None if an input can be read only once.
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
    """The cost of all records of an input with `size` bytes, as an array (C,), and their characters."""
    digests, total, look = set[bytes](), np.zeros(len(costs)), LOOK if len(costs) > 1 else GLANCE
    tokens, letters, factor = 0, 0, 1.0
    stored, bytes_per_letter = (
        0,
        0.0,
    )  # bytes read so far; bytes per character before the last block of the file
    with metered() as meter, suppress(SeqmlmError):  # the run itself reports errors of its input
        for batch in batches(records):
            batch_letters = sum(map(characters, batch))
            if meter.bytes > stored:  # a block was read during this batch, and is used from there on
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
    """The forward tokens for a record, or only for its units at the selected tokens (L,)."""

    def __call__(self, encoding: Encoding, selected: Bools | None = None) -> float: ...


def cost_of(session: Session, level: Level, mode: Mode) -> Cost:
    """A function that computes the forward tokens for a record, at a level in a mode."""
    model, view, tokenizer = session.model, level.view, session.tokenizer
    longest, special = session.card.max_length, tokenizer.space.is_special
    if view is not WHOLE:  # the queries depend on the record
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
