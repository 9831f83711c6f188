"""Maps of dependence by hand, as a field's decoder has them decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.structure import Decoded, Decoder, Pair, Truth
from seqmlm.structure.maps import DependenceMap


def map_of(size: int, pairs: Mapping[Pair, float], rest: float = 0.0) -> DependenceMap:
    """A map with these values, and elsewhere `rest`."""
    values = np.full((size, size), rest)
    for (i, j), value in pairs.items():
        values[i, j] = values[j, i] = value
    np.fill_diagonal(values, np.nan)
    return DependenceMap(values=values, method="by hand")


def decoded(
    decoder: Decoder,
    record: Record,
    units: Sequence[str],
    values: np.ndarray | DependenceMap,
    truth: Truth | None = None,
) -> Decoded:
    """What a decoder makes of a map."""
    made = values if isinstance(values, DependenceMap) else DependenceMap(values=values, method="by hand")
    found = decoder.decode(record, units, made)
    return Decoded(record=record, units=units, dependence=made, predicted=found, truth=truth)


def planted_and_noise(
    decoder: Decoder, path: Path, records: Iterable[Record], units_of: Callable[[Record], list[str]]
) -> tuple[list[Decoded], list[Decoded]]:
    """Of each record a map that shows what is planted and nothing else, and one of noise alone."""
    knows, rng = decoder.truths(path, Problems()), np.random.default_rng(1)
    right, noise = [], []
    for record in records:
        units = units_of(record)
        truth = knows(record, units)
        assert truth is not None
        values = 0.01 * rng.random((len(units),) * 2)
        values += values.T
        noise.append(decoded(decoder, record, units, values.copy(), truth))
        for i, j in truth.edges:
            values[i, j] = values[j, i] = 1.0
        right.append(decoded(decoder, record, units, values, truth))
    return right, noise
