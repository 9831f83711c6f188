"""What a field makes of a map of dependence: its own structure, its truth, its measure and its pictures.

A field declares a `Decoder` (`Domain.decoder`). Whoever computes maps knows units and pairs of them alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.structure.maps import DependenceMap

Pair = tuple[int, int]
"""Two units, 0-based in the sequence, the smaller first."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """What is known of the structure of one sequence.

    Args:
        edges: the pairs that depend on each other.
        kinds: what a pair is (a relation of grammar, a range), where that is known. A pair of the kind
            "indirect" is no edge: the two depend on each other through others alone.
        known: the pairs about which the truth says anything; None for all. (A residue without coordinates has
            no pairs here.)
    """

    edges: frozenset[Pair]
    kinds: Mapping[Pair, str] = field(default_factory=dict)
    known: Callable[[Pair], bool] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Decoded:
    """One sequence with its map, and what a decoder made of it.

    Args:
        record: the sequence.
        units: (N,) how each unit is spelled.
        dependence: its map, (N, N).
        predicted: pairs that the decoder takes for edges.
        truth: what is known of it, or None.
    """

    record: Record
    units: Sequence[str]
    dependence: DependenceMap
    predicted: frozenset[Pair]
    truth: Truth | None = None


class Decoder(ABC):
    """What maps of dependence mean in a field.

    Attributes:
        separation: the least distance |i - j| of units whose pair is judged.
        apc: whether the average product correction is made before pairs are judged.
        measure: name of the field's own measure where a truth is given, such as "uuas".
        together: whether units of one name are hidden together; None in a field that does not say which are.
    """

    separation: int = 1
    apc: bool = False
    measure: str
    together: bool | None = None

    def names(self, record: Record, units: Sequence[str]) -> Sequence[str]:
        """(N,) what each unit names; by default how it is spelled."""
        return units

    @abstractmethod
    def decode(self, record: Record, units: Sequence[str], dependence: DependenceMap) -> frozenset[Pair]:
        """The pairs that are taken for edges: a tree, contacts, base pairs, a graph."""

    @abstractmethod
    def truths(self, path: Path, problems: Problems) -> Callable[[Record, Sequence[str]], Truth | None]:
        """Read a file of truth.

        Args:
            path: `truth.json` of a sample, or a file of the field (CoNLL-U, a PDB file, contacts).
            problems: receives what cannot be read.

        Returns:
            (record, its units) -> what the file knows of it, None where that is nothing.

        Raises:
            DataError: no such file, or one that is no truth of this field.
        """

    def measures(self, decoded: Iterable[Decoded]) -> dict[str, float]:
        """The field's own figures over all sequences with a truth, `measure` and its trivial rivals first."""
        return {}

    def picture(self, decoded: Decoded) -> str | None:
        """One sequence as HTML or SVG, everything of the data escaped; None: the map alone is shown."""
        return None

    def files(self, decoded: Iterable[Decoded]) -> Mapping[str, Iterator[str]]:
        """Formats of the field, by the name of the file: its text in pieces (CoNLL-U, dot-bracket)."""
        return {}


def placed(text: str, units: Sequence[str]) -> list[tuple[int, int]] | None:
    """Where the units of a text stand in it, half-open; None where they are not its pieces in order.

    Only white space may be between units; a unit of white space alone is looked for as it is.

    >>> placed("a b.", ["a", "b", "."])
    [(0, 1), (2, 3), (3, 4)]
    """
    spans: list[tuple[int, int]] = []
    done = 0
    for unit in units:
        at = text.find(unit, done)
        if at < 0 or text[done:at].strip():
            return None
        done = at + len(unit)
        spans.append((at, done))
    return spans
