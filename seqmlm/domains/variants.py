"""Variants of a known sequence: what changes where, and what a field must say so that they can be scored.

A field declares `Variants` (`Field.variants`): how its tables name variants, what is checked, and which
cheap predictions stand beside the model's. Whoever scores them sees edits of a wild type alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from seqmlm.data.problems import Problems
from seqmlm.errors import DataError, UsageError


class Edit(NamedTuple):
    """Text that stands in place of characters start..end-1 of the wild type, counted from 0."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One variant.

    Args:
        name: as its file spells it.
        wildtype: the raw sequence it is a variant of.
        edits: in order, none overlapping; none where nothing changes.
        source, line: where it stands.
        fields: the columns of its row.
        first: number of the wild type's first unit, as people count there.
        numbers: of every letter of it, where it is a row of an alignment (of gaps, whatever); None: from
            `first` on.
        scored: whether a masked model can say anything about it (a stop codon is no unit).
        flank: units at each side of the edits that count in a PLL-delta; None: the whole sequence.
    """

    name: str
    wildtype: str
    edits: tuple[Edit, ...]
    source: str
    line: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    first: int = 1
    numbers: tuple[int, ...] | None = None
    scored: bool = True
    flank: int | None = None

    @property
    def substitutions(self) -> bool:
        """Whether units are exchanged one for one, so that masked conventions apply."""
        return all(edit.end - edit.start == len(edit.text) == 1 for edit in self.edits)

    @property
    def mutant(self) -> str:
        """The raw sequence with all edits made.

        >>> edits = (Edit(1, 2, "W"), Edit(3, 3, "GG"))
        >>> Variant(name="", wildtype="ACDE", edits=edits, source="", line=0).mutant
        'AWDGGE'
        """
        pieces, done = [], 0
        for edit in self.edits:
            pieces += [self.wildtype[done : edit.start], edit.text]
            done = edit.end
        return "".join([*pieces, self.wildtype[done:]])


def changes(wildtype: str, mutant: str) -> tuple[Edit, ...]:
    """The edits that turn one sequence into another: each differing letter, or one stretch.

    >>> changes("ACDE", "AWDF"), changes("ACDE", "ACE")
    ((Edit(start=1, end=2, text='W'), Edit(start=3, end=4, text='F')), (Edit(start=2, end=3, text=''),))
    """
    if len(wildtype) == len(mutant):
        pairs = enumerate(zip(wildtype, mutant, strict=True))
        return tuple(Edit(place, place + 1, b) for place, (a, b) in pairs if a != b)
    shorter = min(len(wildtype), len(mutant))
    head = next((i for i in range(shorter) if wildtype[i] != mutant[i]), shorter)
    tail = next((i for i in range(shorter - head) if wildtype[-1 - i] != mutant[-1 - i]), shorter - head)
    return (Edit(head, len(wildtype) - tail, mutant[head : len(mutant) - tail]),)


@cache
def blosum62() -> Any:
    """Log-odds of a residue in place of another, half bits, by both letters (Henikoff and Henikoff 1992)."""
    from Bio.Align import substitution_matrices

    return substitution_matrices.load("BLOSUM62")


@dataclass(frozen=True, kw_only=True)
class VariantTable:
    """A file of variants, and what is told about it.

    Args:
        path: the file.
        wildtype: a file with the sequence that they are variants of, or None where the table has it.
        sequence: that sequence itself, where it is known.
        column: that names the variants, or holds the changed sequences; None: by name.
        first: number that the table gives to the first unit of the wild type; None: inferred.
        window: letters that the model sees at once, where wild types are cut out of something longer.
        copied: a copy of the table will be made, with the effects in it.
        family: an alignment that the wild type, or one like it, is a row of.
        query: id of the row that is the wild type, where no sequence is named; None: the first.
        columns: of the rows that the model reads, which is linear; None: it reads sequences.
        genes: a file of the genes of the sequence that wild types are cut out of.
    """

    path: str
    wildtype: str | None = None
    sequence: str | None = None
    column: str | None = None
    first: int | None = None
    window: int | None = None
    copied: bool = False
    family: str | None = None
    query: str | None = None
    columns: int | None = None
    genes: str | None = None


@dataclass(frozen=True, kw_only=True)
class Assay:
    """One of the tables of a benchmark, of variants of one subject; assays of a subject count together.

    measured: column of the measurements, higher = fitter. kind: what was selected for; all kinds count alike.
    """

    name: str
    table: VariantTable
    measured: str
    subject: str
    kind: str


LEAVE_OUT = "correct it, or leave it out (--on-error skip)"


def bad_variant(reason: str, path: str, line: int, remedy: str = LEAVE_OUT) -> DataError:
    """The error for a variant that cannot be read, or does not fit the wild type."""
    return DataError(reason, source=path, line=line, remedy=remedy)


def lower_names(fields: Mapping[str, Any]) -> dict[str, str]:
    """The columns of a table by their names in lower case."""
    return {str(name).lower().removeprefix("\ufeff"): str(name) for name in fields}


Predict = Callable[[Variant], float | None]
"""A rival without a model: the predicted effect of a variant, higher = fitter; None where it has none."""


def additive_prediction(worth: Callable[[str, int, str], float], letters: str) -> Predict:
    """A predictor that sums an effect over the exchanges of a variant; None for variants of other kinds.

    Args:
        worth: (wild type, place, new letter) -> effect of one exchange.
        letters: that may be exchanged.

    >>> predict = additive_prediction(lambda wildtype, place, new: float(place), "ACGT")
    >>> edits = (Edit(1, 2, "A"), Edit(3, 4, "G"))
    >>> predict(Variant(name="", wildtype="ACGT", edits=edits, source="", line=0))
    4.0
    """

    def predict(variant: Variant) -> float | None:
        is_covered = variant.substitutions and all(
            {variant.wildtype[edit.start], edit.text} <= {*letters} for edit in variant.edits
        )
        if not is_covered:
            return None
        total = sum(worth(variant.wildtype, edit.start, edit.text) for edit in variant.edits)
        return None if math.isnan(total) else float(total)

    return predict


class Variants(ABC):
    """The variants of a field: how its files are read, and which predictions need no model.

    Attributes:
        letters: what can stand at one place; a map of all changes has a row for each.
        windows: whether every variant has a wild type of its own, a window; such tables are read as a stream.
        columns: fields of a variant that its row repeats.
        display_columns: those of them that a person reads beside the effect.
        counted: the one by whose values variants are counted; "" for none.
        formats: of a copy of a table, and the endings of its name.
    """

    letters: str
    windows: ClassVar[bool] = False
    columns: Sequence[str] = ()
    display_columns: ClassVar[Sequence[str]] = ()
    counted: ClassVar[str] = ""
    formats: ClassVar[Mapping[str, Sequence[str]]] = {}

    @abstractmethod
    def table_variants(self, table: VariantTable, problems: Problems) -> Iterator[Variant]:
        """The variants of a file, in order.

        Args:
            table: the file.
            problems: receives variants that cannot be read or do not fit the wild type; notes what was
                inferred, such as how the table numbers the wild type, and what has no score.

        Raises:
            UsageError: a request that makes no sense.
            DataError: no such file or column, or one that is no table of variants; under "raise", bad ones.
        """

    @abstractmethod
    def rivals(self, wildtypes: Sequence[str], alignment: str | None) -> Mapping[str, Predict]:
        """Predictions that need no model, by name, for comparison, for variants of some sequences.

        Raises:
            DataError: an alignment of related sequences that cannot be read, or that no wild type belongs to.
        """

    def mirrored(self, variant: Variant) -> Variant | None:
        """The same variant as the other strand has it, where there is one: the mean of both is the effect."""
        return None

    def copy(self, path: str, rows: Iterator[Mapping[str, Any]], note: str) -> Iterator[str]:
        """A copy of a table with the effects of its variants, in one of `formats`, line by line: `rows` has
        them in order (`line`, `effect`, the field's `columns`), `note` says in one line what they are."""
        raise NotImplementedError

    def assays(self, folder: Path) -> list[Assay]:
        """The assays of a benchmark that the field has, of its folder or its reference file.

        Raises:
            UsageError: the field has none.
            DataError: the folder is not laid out as it is published.
        """
        raise UsageError("this field has no benchmark of variants")
