"""A field's decoder and an estimator that need no model: equal units depend on each other, near ones more."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.structure import Decoded, Decoder, Truth
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import Units, unit_symbols
from seqmlm.errors import DataError
from seqmlm.structure.maps import DependenceMap


def value(one: int, other: int, i: int, j: int) -> float:
    """Of two units with these ids at these places of what the model is shown."""
    return float(one == other) + 1 / (1 + j - i) + (one * other % 7) / 10


class Equal:
    """The estimator; remembers which sequences it was asked about."""

    name = "cmi/equal"
    nats = True
    asked: list[Encoding]

    def __init__(self, settings: Any, conditionals: Any, units: Units, **_: Any) -> None:
        self.settings, self.units, self.asked = settings, units, []

    def passes(self, units: int, tokens: int) -> int:
        return units

    def passes_of(self, encoding: Encoding) -> int:
        return len(self.units.numbers(encoding))

    def representatives(self, encoding: Encoding) -> Any:
        return np.arange(len(self.units.numbers(encoding)))

    def maps(self, encodings: Sequence[Encoding]) -> list[DependenceMap]:
        self.asked += encodings
        return [self.map(one) for one in encodings]

    def map(self, encoding: Encoding) -> DependenceMap:
        ids = [symbols[0] for symbols in unit_symbols(self.units, encoding)]
        count = len(ids)
        values = np.full((count, count), np.nan)
        for i in range(count):
            for j in range(i + 1, min(count, i + 1 + (self.settings.distance or count))):
                values[i, j] = values[j, i] = value(ids[i], ids[j], i, j)
        details = {"mass": 1 / count} if count else {}
        return DependenceMap(values=values, method=self.name, passes=count, details=details)


class Best(Decoder):
    """The best partner of each unit; truth is JSON, id to pairs."""

    measure = "share"

    def decode(
        self, record: Record, units: Sequence[str], dependence: DependenceMap
    ) -> frozenset[tuple[int, int]]:
        found = set()
        for i, row in enumerate(dependence.values):
            far = [j for j in range(len(row)) if abs(i - j) >= self.separation and np.isfinite(row[j])]
            if far:
                best = max(far, key=lambda j: row[j])
                found.add((min(i, best), max(i, best)))
        return frozenset(found)

    def truths(self, path: Path, problems: Problems) -> Callable[[Record, Sequence[str]], Truth | None]:
        if not path.exists():
            raise DataError("no such file", source=str(path), remedy="check the path")
        known = json.loads(path.read_text())

        def knows(record: Record, units: Sequence[str]) -> Truth | None:
            pairs = known.get(record.id)
            if pairs is None:
                return None
            return Truth(edges=frozenset((i, j) for i, j in pairs), covers=lambda pair: pair[1] < 50)

        return knows

    def measures(self, decoded: Iterable[Decoded]) -> dict[str, float]:
        hits = [len(one.predicted & one.truth.edges) for one in decoded if one.truth is not None]
        return {"share": float(np.mean(hits)), "random": 0.5}

    def picture(self, decoded: Decoded) -> str | None:
        return f"<p>picture of {len(decoded.units)} units</p>"

    def files(self, decoded: Iterable[Decoded]) -> Mapping[str, Iterator[str]]:
        return {
            "pairs.txt": (f"{one.record.id} {sorted(one.predicted)}\n" for one in decoded),
            "units.txt": ("".join(one.units) + "\n" for one in decoded),
        }
