"""The structure that a field reads from a map of dependence, its truth, its measure and its pictures.

A sequence with its map (`Decoded`) is written as rows, one per pair of units, and can be restored from them.

A field declares a `Decoder` (`Field.structure`). The code that computes maps knows only units and their
pairs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.reports.scales import colour_scale
from seqmlm.structure.maps import DependenceMap

if TYPE_CHECKING:
    from seqmlm.reports.page import Page

LAYERS = ("value", "se", "z", "p")
"""Columns of a row with the figures of its pair."""

LISTED = 10
"""Number of strongest pairs that are listed next to the picture of a sequence."""

Pair = tuple[int, int]
"""Two units as 0-based positions in the sequence, the smaller first."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """The true structure of one sequence, as far as it is known.

    Args:
        edges: the pairs that depend on each other.
        kinds: the kind of a pair (a grammatical relation, a range), if it is known. A pair of the kind
            "indirect" is not an edge: its units depend on each other only through others.
        covers: whether the truth covers a pair; None if it covers all pairs. For example, it covers no pair
            with a residue without coordinates.
    """

    edges: frozenset[Pair]
    kinds: Mapping[Pair, str] = field(default_factory=dict)
    covers: Callable[[Pair], bool] | None = None

    def labels(
        self, first: NDArray[Any], second: NDArray[Any]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(P,) whether the truth covers each pair of units; (P,) whether the pair is an edge."""
        pairs = list(zip(first.tolist(), second.tolist(), strict=True))
        is_covered = np.array([self.covers is None or self.covers(pair) for pair in pairs], dtype=np.bool_)
        return is_covered, np.array([pair in self.edges for pair in pairs], dtype=np.bool_)


@dataclass(frozen=True, kw_only=True, eq=False)
class Decoded:
    """One sequence with its map and the edges that a decoder found in it.

    Args:
        units: (N,) the spelling of each unit.
        dependence: the map, (N, N).
        predicted: the pairs that the decoder predicts as edges.
        truth: the known true structure, or None.
    """

    record: Record
    units: Sequence[str]
    dependence: DependenceMap
    predicted: frozenset[Pair]
    truth: Truth | None = None

    @property
    def edges(self) -> list[tuple[int, int, float]]:
        """(unit, unit, value) of each predicted edge, in order; NaN for an edge without a value."""
        return [(i, j, float(self.dependence.values[i, j])) for i, j in sorted(self.predicted)]

    def rows(self, separation: int | None) -> list[dict[str, Any]]:
        """A row for each edge and for each pair at least `separation` apart, in order.

        If `separation` is None, only edges get a row.
        """
        grid = self.dependence
        places = ((), ()) if separation is None else (at.tolist() for at in grid.finite_pairs(separation))
        # An edge may have no value, because a tree connects all units.
        pairs = sorted({*zip(*places, strict=True), *self.predicted})
        first, second = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        layers = [grid.values, grid.error, grid.z, grid.p]
        columns = [[None] * len(pairs) if x is None else x[first, second].tolist() for x in layers]
        return [
            {
                "i": i,
                "j": j,
                "position_i": i + 1,
                "position_j": j + 1,
                "unit_i": self.units[i],
                "unit_j": self.units[j],
                **dict(zip(LAYERS, values, strict=True)),
                "predicted": (i, j) in self.predicted,
                "method": grid.method,
                **grid.details,
            }
            for (i, j), *values in zip(pairs, *columns, strict=True)
        ]

    def ranking(self, separation: int) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.int64]]:
        """(P,) whether a pair is a true edge, its value, and its distance; only for pairs in the truth."""
        assert self.truth is not None
        first, second = self.dependence.finite_pairs(separation)
        valid, labels = self.truth.labels(first, second)
        return (labels[valid], self.dependence.values[first, second][valid], (second - first)[valid])


def map_of(rows: Iterable[Mapping[str, Any]], size: int, *, nats: bool) -> tuple[DependenceMap, set[Pair]]:
    """Restore the map (N, N) and the predicted edges from the rows of one sequence (`Decoded.rows`)."""
    method, layers, edges = "", np.full((len(LAYERS), size, size), np.nan), set[Pair]()
    for row in rows:
        i, j, method = row["i"], row["j"], row["method"]
        layers[:, i, j] = layers[:, j, i] = np.array([row[name] for name in LAYERS], dtype=np.float64)
        if row.get("predicted"):
            edges.add((i, j))
    values, error, z, p = layers
    return DependenceMap(values=values, error=error, z=z, p=p, method=method, nats=nats), edges


class Decoder(ABC):
    """Read the structure of a field from maps of dependence, and compare it with the truth.

    Attributes:
        separation: the least distance |i - j| of units in a pair that is evaluated.
        apc: whether the average product correction is applied before pairs are evaluated.
        measure: name of the field's own measure for maps with a truth, such as "uuas".
        together: whether units with the same name are hidden together; None if the field does not define
            names.
    """

    separation: int = 1
    apc: bool = False
    measure: str
    together: bool | None = None

    def names(self, record: Record, units: Sequence[str]) -> Sequence[str]:
        """(N,) the name of each unit, by default its spelling."""
        return units

    @abstractmethod
    def decode(self, record: Record, units: Sequence[str], dependence: DependenceMap) -> frozenset[Pair]:
        """Predict edges from a map: a tree, contacts, base pairs or a graph."""

    @abstractmethod
    def truths(self, path: Path, problems: Problems) -> Callable[[Record, Sequence[str]], Truth | None]:
        """Read a file of truth.

        Args:
            path: `truth.json` of a sample, or a file of the field (CoNLL-U, a PDB file, contacts).
            problems: receives the parts that cannot be read.

        Returns:
            (record, its units) -> the truth for this record, or None if the file has none.

        Raises:
            DataError: the file does not exist, or has no truth for this field.
        """

    def measures(self, decoded: Iterable[Decoded]) -> dict[str, float]:
        """The field's own figures over all sequences with a truth; `measure` and its rivals come first."""
        return {}

    def picture(self, decoded: Decoded) -> str | None:
        """One sequence as HTML or SVG, with all text from the data escaped; None if only the map is shown."""
        return None

    def files(self, decoded: Iterable[Decoded]) -> Mapping[str, Iterator[str]]:
        """Files in formats of the field (CoNLL-U, dot-bracket): file name to its text in pieces."""
        return {}


def unit_spans(text: str, units: Sequence[str]) -> list[tuple[int, int]] | None:
    """Half-open spans of the units in a text; None if the units are not its pieces in order.

    Only white space may be between units. A unit that is only white space must occur as it is.

    >>> unit_spans("a b.", ["a", "b", "."])
    [(0, 1), (2, 3), (3, 4)]
    """
    spans: list[tuple[int, int]] = []
    last_end = 0
    for unit in units:
        at = text.find(unit, last_end)
        if at < 0 or text[last_end:at].strip():
            return None
        last_end = at + len(unit)
        spans.append((at, last_end))
    return spans


def draw(page: Page, decoder: Decoder | None, decoded: Decoded, separation: int) -> None:
    """Add a sequence to a report: the field's picture, the map, and the strongest pairs.

    There is a picture only if the field has a decoder. Listed pairs are at least `separation` units apart.
    """
    unit, note = "nats" if decoded.dependence.nats else "value", "positions count from 1"
    picture = None
    if decoder is not None:
        picture = decoder.picture(decoded)
    if picture is not None:
        page.section(decoded.record.id, Markup(picture))
    (first, second), values = decoded.dependence.finite_pairs(separation), decoded.dependence.values
    units = [" ".join(text.split()) or repr(text)[1:-1] for text in decoded.units]
    page.matrix(
        decoded.record.id if picture is None else "",
        values,
        units,
        decoded.predicted,
        frozenset() if decoded.truth is None else decoded.truth.edges,
        scale=colour_scale(values[first, second], 0.995),
        unit=unit,
        note=note,
    )
    strongest = np.argsort(-values[first, second], kind="stable")[:LISTED]
    pairs = zip(first[strongest].tolist(), second[strongest].tolist(), strict=True)
    rows = [
        (f"{i + 1} {units[i]}", f"{j + 1} {units[j]}", float(values[i, j]), (i, j) in decoded.predicted)
        for i, j in pairs
    ]
    page.table("", ["unit", "and unit", unit, "edge"], rows)
